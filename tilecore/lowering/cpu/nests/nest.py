"""Parallel nests: the last axis in vectors where every access has a constant lane distance.

Vectors that may leave a global tensor are tested as a whole; where the test fails the lanes run
one by one, each with its own guard.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.storage import Storage
from tilecore.ir.arithmetic.bounds import NON_NEGATIVE, variables
from tilecore.ir.arithmetic.lane_offsets import lane_offsets
from tilecore.ir.arithmetic.length import is_kept
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Var, cast, int_value
from tilecore.ir.nodes import Buffer, Let, Parallel, Seq, Stmt, Store
from tilecore.ir.visitor import expr_children, expressions, walk, walk_expr
from tilecore.lowering.cpu import gather
from tilecore.lowering.cpu.access import Accessor, Extent
from tilecore.lowering.cpu.functions.multiplied import multiplied
from tilecore.lowering.cpu.functions.quotients import without_division
from tilecore.lowering.cpu.nests import first_lane, scattered
from tilecore.lowering.cpu.nests.blended import blended
from tilecore.lowering.cpu.nests.guarded import Guarded, guarded
from tilecore.lowering.cpu.nests.lets import has_vector_form, indices_of, inlined, is_uniform
from tilecore.lowering.cpu.nests.rows_ahead import RowsAhead
from tilecore.lowering.cpu.scalar import LIBM, Scope, lower, widen
from tilecore.lowering.tir import add, maximum, mul, quotient, typed
from tilecore.target import Target

LEAST_LANES = 4  # of vectors along short axes
SCALAR_CALLS = ("pow", *LIBM)  # no vector lowering in TVM's LLVM code generator


class NestLowering:
    """Emits one parallel nest; ``statement`` lowers the body as scalar code."""

    def __init__(
        self, accessor: Accessor, target: Target, statement: Callable[[Stmt], None]
    ) -> None:
        self.accessor, self.builder, self.target = accessor, accessor.builder, target
        self.statement = statement
        self.guarded: Guarded | None = None  # the nest, if it is one under conditions
        self.blends = False
        self.plain: Stmt | None = None  # what runs lane by lane, where that is not what vectors run
        self.lane_zero: Var | None = (
            None  # what the last axis is in the first lane, if that is asked
        )

    def emit(self, nest: Parallel) -> None:
        """Emit loops over all axes and the body."""
        self._axis(inlined(nest), 0)

    def _axis(self, nest: Parallel, axis: int) -> None:
        var, extent = nest.loop_vars[axis], nest.extents[axis]
        size = int_value(extent)
        self.accessor.tops[var] = extent
        count: Any = size
        if size is None:
            number = self.accessor.scalar(cast(extent, "int32"))
            count = self.builder.bind(maximum(0, number))
        if axis < len(nest.loop_vars) - 1:
            with self._running(var, count, 0) as _:
                self._axis(nest, axis + 1)
            return
        steady, self.guarded = blended(nest), guarded(nest)
        self.blends = steady is not None
        self.plain = nest.body if steady is None else steady.body
        if steady is None:
            steady = nest if self.guarded is None else self.guarded.nest
        lanes = self._lanes(steady, var)
        if size is not None and size < lanes:
            lanes = _narrower(size)
        if lanes == 1:
            self._scalar(nest.body, var, 0, count)
            return
        found = self._vector_form(steady, var, lanes)
        if found is None:
            self._scalar(nest.body, var, 0, count)
            return
        steady = found
        shared = () if self.guarded is None else self.guarded.shared
        with self._where(shared):
            if size is None:
                self._dynamic(steady, var, count, lanes)
            else:
                self._whole_vectors(steady, var, size, lanes)

    def _vector_form(self, nest: Parallel, var: Var, lanes: int) -> Parallel | None:
        """Return a nest as vectors can run it, None where they cannot."""
        size = int_value(nest.extents[-1])
        if size is None:
            return self._as_vectors(nest, var, lanes)
        self.accessor.ranges[var] = (0, size - 1)
        found = self._as_vectors(nest, var, lanes)
        del self.accessor.ranges[var]
        return found

    def _as_vectors(self, nest: Parallel, var: Var, lanes: int) -> Parallel | None:
        if self._vectorises(nest, var, lanes):
            return nest
        self.lane_zero = Var("first")
        shared = first_lane.shared(inlined(nest, loads=True), self.lane_zero, lanes)
        if shared is not nest and self._vectorises(shared, var, lanes):
            return shared
        if var not in self.accessor.ranges:
            return None
        found = multiplied(shared, self.accessor.bounds)
        is_vector = found is not shared and self._vectorises(found, var, lanes)
        return found if is_vector else None

    @contextmanager
    def _where(self, conds: Sequence[Expr]) -> Iterator[None]:
        with ExitStack() as scopes:
            for cond in conds:
                scopes.enter_context(self.builder.when(self.accessor.scalar(cond)))
            yield

    def _whole_vectors(self, nest: Parallel, var: Var, size: int, lanes: int) -> None:
        """Emit whole vectors, then the rest, of an axis."""
        whole = size // lanes
        rows = self._rows_ahead(nest)
        with rows.begun(), self.builder.loop(whole) as q:
            first = self.builder.bind(mul(q, lanes))
            rows.fetch(first)
            self._vector(nest, var, first, lanes, (0, size - 1))
        if size % lanes:
            self._scalar(self._given(nest), var, whole * lanes, size % lanes)

    def _given(self, nest: Parallel) -> Stmt:
        """Return what runs lane by lane: all conditions, names for what each lane is."""
        return nest.body if self.plain is None else self.plain

    def _lanes(self, nest: Parallel, var: Var) -> int:
        """Return how many lanes a nest has; a vector lies within a panel."""
        lanes = moving_lanes(nest.body, var, self.target) or lanes_of(nest.body, self.target)
        for store in _stores(nest.body):
            place = self.accessor.places.get(store.buffer)
            if place is not None and isinstance(place.storage, Storage):
                is_paneled = place.storage.kind == "panels"
                lanes = math.gcd(lanes, place.storage.width) if is_paneled else lanes
        return lanes

    def _rows_ahead(self, nest: Parallel) -> RowsAhead:
        nodes = (n for s in walk(nest.body) for e in expressions(s) for n in _loads(e))
        extents = [int_value(extent) for extent in nest.extents]
        reads = ((n.buffer, n.indices) for n in nodes)
        updated = {s.buffer for s in _stores(nest.body) if s.buffer.scope != "global"}
        return RowsAhead(self.accessor, nest.loop_vars, extents, reads, updated)

    def _dynamic(self, nest: Parallel, var: Var, count: Any, lanes: int) -> None:
        """Emit whole vectors, then the rest, of an axis whose extent is known at run time."""
        whole = self.builder.bind(quotient(count, lanes))
        with self.builder.loop(whole) as q:
            self._vector(nest, var, mul(q, lanes), lanes, NON_NEGATIVE)
        done = self.builder.bind(mul(whole, lanes))
        self._scalar(self._given(nest), var, done, self.builder.bind(count - done))

    def _running(self, var: Var, count: Any, start: Any) -> _Running:
        return _Running(self.accessor, var, count, start)

    def _scalar(self, body: Stmt, var: Var, start: Any, count: Any) -> None:
        with self._running(var, count, start):
            self.statement(body)

    # --- vectors ------------------------------------------------------------------------------

    def _vectorises(self, nest: Parallel, var: Var, lanes: int) -> bool:
        body, accessor = _stmts(nest.body), self.accessor
        if not all(isinstance(s, (Let, Store)) for s in body):
            return False
        lets = [s for s in body if isinstance(s, Let)]
        if not has_vector_form(lets, [i for s in body for i in indices_of(s, accessor.is_table)]):
            return False
        for stmt in body:
            if isinstance(stmt, Store) and not _stores_neighbours(accessor, stmt, var, lanes):
                names = {s.var for s in lets}
                if not scattered.may_scatter(accessor, nest, stmt, var, lanes, names):
                    return False
                if not all(computes(accessor, index, var, lanes) for index in stmt.indices):
                    return False
        return self._values_vectorise(body, var, lanes)

    def _values_vectorise(self, body: Sequence[Stmt], var: Var, lanes: int) -> bool:
        """Return whether all that the statements compute has a vector form."""
        names = {s.var for s in body if isinstance(s, Let)}
        lane = _Lanes(self.accessor, var, lanes, names)
        lane = replace(lane, gathers=gather.pays(body, lane.knows_place_of))
        return all(lane.computes(e) for s in body for e in expressions(s))

    def _vector(
        self, nest: Parallel, var: Var, start: Any, lanes: int, bounds: tuple[int, int]
    ) -> None:
        accessor, builder = self.accessor, self.builder
        names = [var] if self.lane_zero is None else [var, self.lane_zero]
        for name in names:
            accessor.assign(name, start)
            accessor.ranges[name] = bounds
        scope = accessor.scope(var, lanes)
        ends = [p for p in self._open_ends(nest, lanes) if scope.is_vector(p[0])]
        terms: Sequence[Expr] = ()
        if self.guarded is not None:
            terms = self.guarded.some_lanes(lanes) if self.blends else self.guarded.all_lanes(lanes)
        conds = [accessor.scalar(term) for term in terms]
        conds += [self._all_lanes_inside(index, extent, var, lanes) for index, extent in ends]
        if not conds:
            self._vector_body(nest, scope)
        else:
            with builder.when(functools.reduce(tir.And, conds)):
                self._vector_body(nest, scope)
            if ends or not self.blends:
                with builder.otherwise():
                    self._at_edge(nest, var, start, scope)
        for name in names:
            accessor.values.pop(name, None)
            accessor.ranges.pop(name, None)

    def _at_edge(self, nest: Parallel, var: Var, start: Any, scope: Scope) -> None:
        """Emit a vector of which not all lanes are inside: under masks, or lane by lane."""
        if not self._may_mask(nest, scope):
            self._scalar(self._given(nest), var, start, scope.lanes)
            return
        self.accessor.masks = True
        self._vector_body(nest, scope)
        self.accessor.masks = False

    def _may_mask(self, nest: Parallel, scope: Scope) -> bool:
        """Return whether all lanes that may be outside are those of masks of loads."""
        accessor, names = self.accessor, {s.var for s in walk(nest.body) if isinstance(s, Let)}
        if self.guarded is not None:
            return False
        for stmt in walk(nest.body):
            accesses: list[tuple[Buffer, Sequence[Expr], Load | None]] = [
                (n.buffer, n.indices, n) for e in expressions(stmt) for n in _loads(e)
            ]
            if isinstance(stmt, Store):
                accesses.append((stmt.buffer, stmt.indices, None))
            for buffer, indices, load in accesses:
                place = accessor.places[buffer]
                ends = accessor.open_ends(place, place.indices(indices))
                if not any(scope.is_vector(index) for index, _ in ends):
                    continue
                if load is None or any(variables(i) & names for i in indices):
                    return False
                if accessor.masked_lanes(load, scope) is None:
                    return False
        return True

    def _all_lanes_inside(self, index: Expr, extent: Extent, var: Var, lanes: int) -> Any:
        """Return the condition that an index is inside in all lanes, the first one at ``var``."""
        apart = lane_offsets(index, var, lanes)
        assert apart is not None  # those of the whole access are known
        scope, least, most = self.accessor.scope(), min(apart), max(apart)
        return self.accessor.inside(index + least, extent, scope, index + most)

    def _open_ends(self, nest: Parallel, lanes: int) -> list[tuple[Expr, Extent]]:
        """Return what may leave a tensor, but by loads that heed that in each lane."""
        found: list[tuple[Expr, Extent]] = []
        names = {s.var for s in walk(nest.body) if isinstance(s, Let)}
        lane = _Lanes(self.accessor, nest.loop_vars[-1], lanes, names)
        for stmt in walk(nest.body):
            loads = [n for e in expressions(stmt) for n in _loads(e)]
            accesses = [(n.buffer, n.indices) for n in loads if lane.knows_place_of(n)]
            if isinstance(stmt, Store):
                accesses.append((stmt.buffer, stmt.indices))
            for buffer, indices in accesses:
                place = self.accessor.places[buffer]
                found += self.accessor.open_ends(place, place.indices(indices))
        return found

    def _vector_body(self, nest: Parallel, scope: Scope) -> None:
        for stmt in _stmts(nest.body):
            if isinstance(stmt, Let):
                scope = self._bind(stmt, scope)
                continue
            assert isinstance(stmt, Store)
            if scattered.stores_apart(self.accessor, stmt, scope):
                scattered.emit(self.accessor, stmt, stored_value(stmt, scope), scope)
            else:
                emit_store(self.accessor, stmt, scope)

    def _bind(self, stmt: Let, scope: Scope) -> Scope:
        """Bind a name, in all lanes where they differ, and return the scope that knows it."""
        is_vector = scope.is_vector(stmt.value)
        accessor = self.accessor
        names = accessor.of_places(scope) if stmt.var in accessor.of_index else scope
        value = lower(stmt.value, names)
        if is_kept(stmt.var, stmt.value, accessor.lengths):
            lanes = scope.lanes if is_vector else 1
            accessor.values[stmt.var] = self.builder.kept(value, str(stmt.var.dtype), lanes)
        else:
            accessor.values[stmt.var] = self.builder.bind(value)
        return replace(scope, vector_lets=scope.vector_lets | {stmt.var}) if is_vector else scope


def _narrower(size: int) -> int:
    """Return how many lanes a short axis has in vectors that do not fill a register; 1: none."""
    lanes = 1 << max(0, size.bit_length() - 1)
    return lanes if lanes >= LEAST_LANES else 1


def lanes_of(body: Stmt, target: Target) -> int:
    """Return how many lanes the widest values of a body leave in a vector register."""
    sizes = [4 if s.value.dtype.is_integer else 1 for s in _stores(body)]
    for stmt in walk(body):
        if isinstance(stmt, Store):
            sizes.append(stmt.buffer.dtype.itemsize)
        for expr in expressions(stmt):
            sizes += [node.dtype.itemsize for node in walk_expr(expr)]
    return target.vector_bytes // max(sizes)


def moving_lanes(body: Stmt, var: Var, target: Target) -> int | None:
    """Return how many lanes a body has that only moves elements of one type; None: it computes.

    What it chooses between elements by is the same in all lanes, so that their size alone counts.
    """
    store = _stmts(body)[0]
    if len(_stmts(body)) > 1 or not isinstance(store, Store):
        return None
    dtype = store.buffer.dtype
    is_moved = not dtype.is_packed and _is_moved(store.value, dtype, var)
    return target.lanes(dtype) if is_moved else None


def _is_moved(value: Expr, dtype: DType, var: Var) -> bool:
    if value.dtype != dtype:
        return False
    if isinstance(value, Select):
        parts = (value.a, value.b)
        return is_uniform(value.cond, {var}) and all(_is_moved(p, dtype, var) for p in parts)
    constant = value.a if isinstance(value, Cast) else value
    return isinstance(value, Load) or isinstance(constant, Const)


def runs_in_vectors(accessor: Accessor, stmt: Store, var: Var, lanes: int) -> bool:
    """Return whether a store and all it computes can run with ``var`` over the lanes."""
    if not _stores_neighbours(accessor, stmt, var, lanes):
        return False
    lane = _Lanes(accessor, var, lanes, set())
    return all(lane.computes(e) for e in expressions(stmt))


def computes(accessor: Accessor, expr: Expr, var: Var, lanes: int) -> bool:
    """Return whether an expression has a vector form with ``var`` over the lanes."""
    return _Lanes(accessor, var, lanes, set()).computes(expr)


def _stores_neighbours(accessor: Accessor, stmt: Store, var: Var, lanes: int) -> bool:
    if accessor.stride_of(stmt.buffer, stmt.indices, var) == 1:
        return True
    apart = accessor.offsets_of(stmt.buffer, stmt.indices, var, lanes)
    return apart == tuple(range(lanes))


@dataclass(frozen=True, slots=True)
class _Lanes:
    """A loop variable that is to run over lanes.

    ``bound`` are names of values in all of them; ``gathers``: lanes of loads may lie anywhere.
    """

    accessor: Accessor
    var: Var
    lanes: int
    bound: set[Var]
    gathers: bool = False

    def computes(self, expr: Expr) -> bool:
        """Return whether an expression has a vector form."""
        if isinstance(expr, Load) and not self._is_strided(expr):
            if self._is_apart(expr):
                return True
            if not self.accessor.is_table(expr) and not self._may_gather(expr):
                return False
        return self._has_form(expr) and all(self.computes(part) for part in expr_children(expr))

    def _has_form(self, node: Expr) -> bool:
        if isinstance(node, Load):
            return True
        if isinstance(node, Call):
            return node.name not in SCALAR_CALLS
        if isinstance(node, Binary):
            node = without_division(node)
        if isinstance(node, Binary) and node.op in ("pow", "floordiv", "mod"):
            return is_uniform(node, {self.var, *self.bound}) or _is_masked(node)
        if isinstance(node, Select):  # both sides run: only safe for loads that cannot trap
            return True
        return DType(node.dtype).bits >= 8

    def _may_gather(self, load: Load) -> bool:
        if any(variables(i) & (self.bound - {self.var}) for i in load.indices):
            return False
        return self.gathers and gather.may_gather(self.accessor, load)

    def knows_place_of(self, load: Load) -> bool:
        """Return whether lanes of a load are known distances apart."""
        return self._is_strided(load) or self._is_apart(load)

    def _is_strided(self, load: Load) -> bool:
        """Return whether lanes are a known distance apart, whatever names are bound to."""
        if any(variables(i) & (self.bound - {self.var}) for i in load.indices):
            return False
        return self.accessor.stride_of(load.buffer, load.indices, self.var) is not None

    def _is_apart(self, load: Load) -> bool:
        """Return whether lanes are known distances apart."""
        if any(variables(i) & (self.bound - {self.var}) for i in load.indices):
            return False
        place, var = self.accessor.places[load.buffer], self.var
        at = place.indices(load.indices)
        if any(lane_offsets(i, var, self.lanes) is None for i in at):
            return False  # of what may leave a tensor each index is looked at
        return self.accessor.offsets_of(load.buffer, load.indices, var, self.lanes) is not None


def _is_masked(node: Binary) -> bool:
    """Return whether a quotient or remainder is one by a power of two: a shift or a mask."""
    number = int_value(node.b) or 0
    return node.op != "pow" and node.dtype.is_integer and number > 0 and number & (number - 1) == 0


def emit_store(accessor: Accessor, stmt: Store, scope: Scope) -> None:
    """Emit a store of one value per lane."""
    stmt = unrounded(stmt, accessor)
    value = stored_value(stmt, scope)
    accessor.store(stmt.buffer, stmt.indices, value, stmt.value.dtype, scope)


def unrounded(stmt: Store, accessor: Accessor) -> Store:
    """Return a store without what its value is rounded to bfloat16 by, if the store does that."""
    match stmt.value:
        case Cast(a=given, dtype="bfloat16") if given.dtype == "float32":
            if accessor.places[stmt.buffer].flushes:
                return replace(stmt, value=given)
    return stmt


def stored_value(stmt: Store, scope: Scope) -> Any:
    """Return what is stored, one value per lane."""
    return widen(lower(stmt.value, scope), stmt.value, scope, scope.lanes)


class _Running:
    """A loop whose variable has a value and a range inside."""

    def __init__(self, accessor: Accessor, var: Var, count: Any, start: Any) -> None:
        self.accessor, self.var, self.start = accessor, var, start
        self.loop = accessor.builder.loop(count)
        known = isinstance(count, int) and isinstance(start, int)
        self.bounds = (start, max(start, start + count - 1)) if known else NON_NEGATIVE

    def __enter__(self) -> None:
        index = self.loop.__enter__()
        value = add(self.start, index)
        self.accessor.values[self.var] = (
            value if self.var.dtype == "int32" else typed(value, str(self.var.dtype))
        )
        self.outer = self.accessor.ranges.get(self.var)
        self.accessor.ranges[self.var] = self.bounds

    def __exit__(self, *error: Any) -> None:
        self.accessor.values.pop(self.var, None)
        if self.outer is None:
            self.accessor.ranges.pop(self.var, None)
        else:
            self.accessor.ranges[self.var] = self.outer
        self.loop.__exit__(*error)


def _stmts(body: Stmt) -> tuple[Stmt, ...]:
    return body.stmts if isinstance(body, Seq) else (body,)


def _stores(body: Stmt) -> Iterator[Store]:
    for stmt in walk(body):
        if isinstance(stmt, Store):
            yield stmt


def _loads(expr: Expr) -> Iterator[Load]:
    for node in walk_expr(expr):
        if isinstance(node, Load):
            yield node
