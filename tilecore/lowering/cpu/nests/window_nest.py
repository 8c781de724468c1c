"""Short loops around a nest that adds to its own elements: the loops run inside, in registers.

``for r, s: for i, j in T.Parallel: acc[i, j] += X[y + r, x + s] * F[r, s]``: windows of
convolutions and poolings. An element is loaded and stored once, not once per step of the loops, and
lanes that leave a tensor are loaded under a mask.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.storage import Storage
from tilecore.ir.analysis import covers_whole
from tilecore.ir.arithmetic.bounds import linear, variables
from tilecore.ir.arithmetic.lane_offsets import lane_offsets
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Const, Load, Var, binary, int_value
from tilecore.ir.nodes import Fill, For, If, Let, Parallel, Seq, Stmt, Store
from tilecore.ir.visitor import loads
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.nests.blended import blended
from tilecore.lowering.cpu.nests.lets import inlined
from tilecore.lowering.cpu.nests.nest import NestLowering, lanes_of
from tilecore.lowering.cpu.place import LaneMask, Place, vector_load, vector_store
from tilecore.lowering.cpu.scalar import kept, memory_type
from tilecore.lowering.tir import add, broadcast, mul
from tilecore.target import Target

MOST_STEPS = 49  # of the loops together: what they read of one vector stays near
MOST_UNROLLED = 16  # of them in a row
BESIDE = 5  # registers beside those for what the vectors of a column have alike
MASKED_BYTES = 4  # of elements that are stored under a mask


@dataclass(frozen=True, slots=True)
class _Window:
    """Loops, outermost first, and the values of their variables; the nest inside of them."""

    loops: Mapping[Var, range]
    nest: Parallel
    store: Store
    lanes: int

    @property
    def var(self) -> Var:
        """What runs over lanes."""
        return self.nest.loop_vars[-1]


def _window(stmt: For, accessor: Accessor, target: Target) -> _Window | None:
    """Return what a loop is of this form, None: it is none."""
    loops: dict[Var, range] = {}
    inner: Stmt = stmt
    while isinstance(inner, For):
        ends = [int_value(e) for e in (inner.start, inner.stop, inner.step)]
        if None in ends or not ends[2]:
            return None
        loops[inner.loop_var] = range(*ends)  # type: ignore[arg-type]
        inner = inner.body
        while isinstance(inner, Seq) and len(inner.stmts) == 1:
            (inner,) = inner.stmts
    if not isinstance(inner, Parallel) or not 1 < math.prod(map(len, loops.values())) <= MOST_STEPS:
        return None
    nest = inlined(inner)
    nest = blended(nest) or nest
    body = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
    store, extents = body[-1], [int_value(extent) for extent in nest.extents]
    if not isinstance(store, Store) or None in extents:
        return None
    if not all(isinstance(s, Let) for s in body[:-1]) or not _adds_to_own(body, store, nest):
        return None
    place, lanes = accessor.places.get(store.buffer), lanes_of(nest.body, target)
    is_tile = place is not None and place.memory is not None and not place.shift
    if not is_tile or lanes == 1 or 2 * (extents[-1] or 0) < lanes:
        return None
    if not any(_slides(load, loops, nest) for s in body for load in loads(s)):
        return None
    return _Window(loops, nest, store, lanes)


def _adds_to_own(body: Sequence[Stmt], store: Store, nest: Parallel) -> bool:
    """Return whether every iteration has an element of a tile, and looks at no other of them."""
    if store.buffer.scope == "global" or store.buffer.base is not None or store.buffer.reducer:
        return False
    names = [index for index in store.indices if int_value(index) is None]
    if len(names) != len(nest.loop_vars) or {*names} != {*nest.loop_vars}:
        return False
    if store.indices[-1] is not nest.loop_vars[-1] or store.buffer.dtype.is_packed:
        return False
    own = [x for s in body for x in loads(s) if x.buffer.root is store.buffer]
    return bool(own) and all(_is_same(x, store) for x in own)


def _slides(load: Load, loops: Mapping[Var, range], nest: Parallel) -> bool:
    """Return whether neighbours of the nest read what lies side by side in windows."""
    sizes = {v: int_value(e) for v, e in zip(nest.loop_vars, nest.extents, strict=True)}
    for index in load.indices:
        form = linear(index)
        if form is None:
            continue
        reach = max((abs(form.coefficient(v)) * len(values) for v, values in loops.items()))
        along = [abs(form.coefficient(v)) for v, size in sizes.items() if size != 1]
        if any(0 < step <= reach for step in along):
            return True
    return False


def _is_same(load: Load, store: Store) -> bool:
    return load.buffer is store.buffer and all(
        a is b or (int_value(a) is not None and int_value(a) == int_value(b))
        for a, b in zip(load.indices, store.indices, strict=True)
    )


def window_of(
    stmt: For, accessor: Accessor, target: Target, statement: Callable[[Stmt], None]
) -> WindowLowering | None:
    """Return what emits a loop of this form, inside of its nest; None: it is another loop."""
    window = _window(stmt, accessor, target)
    if window is None:
        return None
    found = WindowLowering(accessor, target, statement, window)
    return found if found.is_vector else None


class WindowLowering(NestLowering):
    """Emits the nest with the loops inside."""

    def __init__(
        self,
        accessor: Accessor,
        target: Target,
        statement: Callable[[Stmt], None],
        window: _Window,
    ) -> None:
        super().__init__(accessor, target, statement)
        self.begun: Fill | None = None
        self.window, self.nest = window, window.nest
        self.held: list[dict[int, Any]] = []
        self.extents = [int_value(extent) or 0 for extent in window.nest.extents]
        self.place: Place = accessor.places[window.store.buffer]

    @contextmanager
    def _ranges(self, *, is_open: bool = False) -> Iterator[None]:
        """Make known what the variables may be; ``is_open``: lanes may be beyond the last one."""
        accessor, known = self.accessor, dict(self.accessor.ranges)
        for var, values in self.window.loops.items():
            accessor.ranges[var] = (min(values), max(values))
        for var, extent in zip(self.nest.loop_vars, self.extents, strict=True):
            accessor.ranges[var] = (0, extent - 1)
        if is_open:
            lanes, extent = self.window.lanes, self.extents[-1]
            accessor.ranges[self.window.var] = (0, -(-extent // lanes) * lanes - 1)
        yield
        accessor.ranges.clear()
        accessor.ranges.update(known)

    @property
    def is_vector(self) -> bool:
        """Whether all steps have a vector form, and all lanes that may be outside a mask."""
        if any(isinstance(s, If) for s in self._body):
            return False
        with self._ranges():
            lanes = self.window.lanes
            if not self._vectorises(self.nest, self.window.var, lanes) or not self._has_masks():
                return False
        return self.extents[-1] >= lanes or self._may_mask_rest

    def begins_with(self, fill: Fill) -> bool:
        """Return whether a constant fills the tile, right before the loops, and nothing else."""
        if not isinstance(fill.value, Const) or fill.value.dtype != fill.dst.buffer.dtype:
            return False
        store = self.window.store
        if store.buffer is not fill.dst.buffer or not covers_whole(fill.dst):
            return False
        sizes = dict(zip(self.nest.loop_vars, self.extents, strict=True))
        filled = [sizes.get(i, 1) for i in store.indices if isinstance(i, Var)]
        shape = [n for n in fill.dst.buffer.static_shape or () if n != 1]
        return [n for n in filled if n != 1] == shape

    @property
    def _body(self) -> tuple[Stmt, ...]:
        return self.nest.body.stmts if isinstance(self.nest.body, Seq) else (self.nest.body,)

    def _has_masks(self) -> bool:
        scope = self.accessor.scope(self.window.var, self.window.lanes)
        for load in self._loads():
            place = self.accessor.places[load.buffer]
            ends = self.accessor.open_ends(place, place.indices(load.indices))
            is_open = any(scope.is_vector(index) for index, _ in ends)
            if is_open and self.accessor.masked_lanes(load, scope) is None:
                return False
        return True

    def _loads(self) -> Iterator[Load]:
        for stmt in self._body:
            yield from loads(stmt)

    @property
    def _may_mask_rest(self) -> bool:
        """Return whether lanes beyond the last element may be loaded: under masks, or all alike."""
        storage, lanes = self.place.storage, self.window.lanes
        if DType(storage.dtype).itemsize < MASKED_BYTES or not isinstance(storage, Storage):
            return False
        with self._ranges(is_open=True):
            scope = self.accessor.scope(self.window.var, lanes)
            for load in self._loads():
                is_own = load.buffer is self.window.store.buffer
                if is_own or not scope.is_vector(load) or not any(self._apart(load)):
                    continue
                place = self.accessor.places[load.buffer]
                if not place.guarded:
                    return False
            return self._has_masks()

    def _apart(self, load: Load) -> tuple[int, ...]:
        found = (lane_offsets(i, self.window.var, self.window.lanes) for i in load.indices)
        return tuple(x for apart in found if apart is not None for x in apart)

    # --- loops --------------------------------------------------------------------------------

    def emit_window(self, begun: Fill | None = None) -> None:
        """Emit loops over the elements, the window's inside of them.

        Args:
            begun: fills the tile right before, which is left to the loops.
        """
        self.begun = begun
        window, builder = self.window, self.builder
        whole, rest = divmod(self.extents[-1], window.lanes)
        is_masked = bool(rest) and self._may_mask_rest
        with ExitStack() as outer:
            outer.enter_context(self._ranges(is_open=is_masked))
            for var, extent in zip(self.nest.loop_vars[:-2], self.extents[:-2], strict=True):
                self.accessor.assign(var, outer.enter_context(builder.loop(extent)))
            with builder.loop(whole) as q:
                self._column(builder.bind(mul(q, window.lanes)), window.lanes, None)
            if is_masked:
                limit = self.extents[-1]
                first = whole * window.lanes
                self._column(first, window.lanes, LaneMask(first, limit, window.lanes))
            elif rest:
                with builder.loop(rest, start=whole * window.lanes) as j:
                    self._column(j, 1, None)
        for var in (*self.nest.loop_vars, *window.loops):
            self.accessor.values.pop(var, None)

    def _column(self, first: Any, lanes: int, mask: LaneMask | None) -> None:
        """Emit the elements, or vectors, one below the other: what they have alike stays."""
        self.accessor.assign(self.window.var, first)
        self.held = self._held(lanes) if lanes > 1 else []
        if len(self.extents) == 1:
            self._one(lanes, mask)
            return
        with self.builder.loop(self.extents[-2]) as i:
            self.accessor.assign(self.nest.loop_vars[-2], i)
            self._one(lanes, mask)

    def _held(self, lanes: int) -> list[dict[int, Any]]:
        """Load what the vectors of a column have alike, step by step."""
        accessor = self.accessor
        alike = [load for load in self._loads() if self._is_alike(load)]
        count = math.prod(map(len, self.window.loops.values()))
        room = self.target.vector_registers - BESIDE
        if count > MOST_UNROLLED or not 0 < count * len(alike) <= room:
            return []
        scope, bind = accessor.scope(self.window.var, lanes), self.builder.bind
        return [{id(x): bind(accessor.load(x, scope)) for x in alike} for _ in self._steps()]

    def _is_alike(self, load: Load) -> bool:
        """Return whether all vectors of a column load the same, surely of a tensor or tile."""
        accessor, var = self.accessor, self.nest.loop_vars[-2:][0]
        if load.buffer.root is self.window.store.buffer:
            return False
        names = {v for index in load.indices for v in variables(index)}
        known = {*self.window.loops, *self.nest.loop_vars, *accessor.values}
        if (len(self.extents) > 1 and var in names) or not names <= known:
            return False
        place = accessor.places[load.buffer]
        return not accessor.open_ends(place, place.indices(load.indices))

    def _one(self, lanes: int, mask: LaneMask | None) -> None:
        """Emit all steps for an element or a vector of them."""
        accessor, builder, store = self.accessor, self.builder, self.window.store
        if lanes == 1:
            if self.begun is not None:
                self.statement(replace(store, value=self.begun.value))
            for _ in self._steps():
                self.statement(self.nest.body)
            return
        place, kind = self.place, memory_type(self.place.storage.dtype)
        offset, _ = accessor.offset(place, store.indices, of_vector=True)
        offset = builder.bind(offset)
        own = builder.alloc(lanes, kind, "own")
        plain = replace(place, memory=own, is_own=True)
        if self.begun is None:
            held = vector_load(builder, place, offset, lanes, place.storage.dtype, mask)
        else:
            given = self.begun.value
            held = broadcast(accessor.value(given), lanes)
            held = kept(held, given.dtype, store.buffer.dtype, place.storage.dtype, lanes)
        vector_store(builder, plain, held, 0, lanes)
        accessor.places[store.buffer] = plain
        cond = None if mask is not None else self._all_inside(lanes)
        if cond is not None:
            before = dict(accessor.places)
            with builder.when(cond):
                for load in self._loads():
                    inside = replace(before[load.buffer], guarded=False)
                    accessor.places[load.buffer] = inside
                self._vectors(lanes)
                accessor.places.update(before)
            with builder.otherwise():
                self._vectors(lanes)
        else:
            self._vectors(lanes)
        accessor.places[store.buffer] = place
        total = vector_load(builder, plain, 0, lanes, place.storage.dtype)
        vector_store(builder, place, total, offset, lanes, mask)

    def _vectors(self, lanes: int) -> None:
        """Emit all steps for a vector."""
        accessor = self.accessor
        accessor.masks = True
        for number, _ in enumerate(self._steps()):
            accessor.held = self.held[number] if self.held else {}
            self._vector_body(self.nest, accessor.scope(self.window.var, lanes))
        accessor.masks, accessor.held = False, {}

    def _all_inside(self, lanes: int) -> Any | None:
        """Return the condition that all steps read inside of tensors; None: there is none."""
        accessor, cond = self.accessor, None
        reaches = {v: (min(values), max(values)) for v, values in self.window.loops.items()}
        reaches[self.window.var] = (0, lanes - 1)
        for var in self.window.loops:
            accessor.assign(var, 0)
        for load in self._loads():
            place = accessor.places[load.buffer]
            for index, extent in accessor.open_ends(place, place.indices(load.indices)):
                form = linear(index)
                if form is None:
                    return None
                ends = [
                    sorted(form.coefficient(var) * end for end in reach)
                    for var, reach in reaches.items()
                ]
                low, high = (binary("add", index, sum(e[side] for e in ends)) for side in (0, 1))
                one = accessor.inside(low, extent, accessor.scope(), high)
                cond = one if cond is None else tir.And(cond, one)
        return cond

    def _steps(self) -> Iterator[None]:
        """Open the loops of the window, the innermost ones step by step."""
        accessor, outer = self.accessor, dict(self.window.loops)
        inner: dict[Var, range] = {}
        for var, values in reversed([*self.window.loops.items()]):
            if len(values) * math.prod(map(len, inner.values())) <= MOST_UNROLLED:
                inner = {var: outer.pop(var), **inner}
            else:
                break
        with ExitStack() as loops:
            for var, values in outer.items():
                index = loops.enter_context(self.builder.loop(len(values)))
                accessor.assign(var, add(values.start, mul(index, values.step)))
                accessor.ranges[var] = (min(values), max(values))
            for step in itertools.product(*inner.values()):
                for var, value in zip(inner, step, strict=True):
                    accessor.assign(var, value)
                    accessor.ranges[var] = (value, value)
                yield
        for var, values in self.window.loops.items():
            accessor.ranges[var] = (min(values), max(values))
