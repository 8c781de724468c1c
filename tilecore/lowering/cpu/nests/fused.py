"""Several statements in one loop nest, so that what they hand on stays in registers.

Where an element may lie outside a tensor, the block tests once whether all of them lie inside; if
not, the statements run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.plan import Ahead, FusedNest
from tilecore.inference.cpu.storage import CACHE_LINE_BYTES
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Call, Expr, binary
from tilecore.ir.nodes import Buffer, Reduce, Stmt, Store
from tilecore.ir.visitor import expressions, loads, walk_expr
from tilecore.lowering.cpu import prefetch
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.fold import UNROLL, FoldLowering
from tilecore.lowering.cpu.functions.bfloat16 import Pairs
from tilecore.lowering.cpu.nests.nest import lanes_of, runs_in_vectors, stored_value, unrounded
from tilecore.lowering.cpu.nests.rows_ahead import RowsAhead
from tilecore.lowering.cpu.place import Place
from tilecore.lowering.cpu.scalar import Scope, memory_type
from tilecore.lowering.tir import add, mul
from tilecore.target import Target


class FusedLowering:
    """Emits one fused nest; ``single`` lowers a member by itself."""

    def __init__(
        self, accessor: Accessor, target: Target, nest: FusedNest, single: Callable[[Stmt], None]
    ) -> None:
        self.accessor, self.builder = accessor, accessor.builder
        self.nest, self.single = nest, single
        *outer, self.last = range(len(nest.extents))
        self.outer = [axis for axis in outer if axis not in nest.folded]
        self.inner = [axis for axis in outer if axis in nest.folded]
        self.var = nest.loop_vars[self.last]
        self.folds = {
            step: FoldLowering(accessor, target, step, nest.loop_vars)
            for step in nest.steps
            if isinstance(step, Reduce)
        }
        stores = [lanes_of(step, target) for step in nest.steps if isinstance(step, Store)]
        self.lanes = min([*stores, *(fold.lanes for fold in self.folds.values())])
        for fold in self.folds.values():  # as many rows are folded together
            fold.lanes = self.lanes

    def emit(self) -> None:
        """Emit the nest."""
        accessor = self.accessor
        for var, extent in zip(self.nest.loop_vars, self.nest.extents, strict=True):
            accessor.ranges[var] = (0, extent - 1)
        ends = self._open_ends() if self._has_vector_form() else None
        if ends is None:
            self._one_by_one()
        elif not ends:
            self._all_inside([])
        else:
            cond = None
            for _, one in ends:
                cond = one if cond is None else tir.And(cond, one)
            with self.builder.when(cond):
                self._all_inside([buffer for buffer, _ in ends])
            with self.builder.otherwise():
                self._one_by_one()
        for var in self.nest.loop_vars:
            accessor.ranges.pop(var, None)

    def _one_by_one(self) -> None:
        for member in self.nest.members:
            self.single(member)

    def _has_vector_form(self) -> bool:
        if self.lanes < 2 or self.nest.extents[self.last] < self.lanes:
            return False
        is_folded = self.last in self.nest.folded
        return all(
            self.folds[step].has_vector_form(self.var, is_folded)
            if isinstance(step, Reduce)
            else runs_in_vectors(self.accessor, step, self.var, self.lanes)
            for step in self.nest.steps
        )

    def _open_ends(self) -> list[tuple[Buffer, Any]] | None:
        """Return the tensors that may be left, each with the condition that it is not.

        None: the first and the last element are not known to be at the ends of the nest.
        """
        accessor, found = self.accessor, []
        for buffer, indices in self._accesses():
            place = accessor.places[buffer]
            for index, extent in accessor.open_ends(place, place.indices(indices)):
                form = linear(index)
                if form is None:
                    return None
                factors = [form.coefficient(var) for var in self.nest.loop_vars]
                if min(factors) < 0:
                    return None
                reach = sum(f * (e - 1) for f, e in zip(factors, self.nest.extents, strict=True))
                with self._at(dict.fromkeys(range(len(self.nest.extents)), 0)):
                    last = binary("add", index, reach)
                    cond = accessor.inside(index, extent, accessor.scope(), last)
                found.append((buffer, self.builder.bind(cond)))
        return found

    def _accesses(self) -> Iterator[tuple[Buffer, Sequence[Expr]]]:
        yield from self._reads()
        for step in self.nest.steps:
            if isinstance(step, Reduce):
                yield self.folds[step].accesses[1]
            else:
                yield step.buffer, step.indices

    @contextmanager
    def _at(self, values: dict[int, Any]) -> Iterator[None]:
        """Give loop variables their values inside."""
        names = [self.nest.loop_vars[axis] for axis in values]
        for name, value in zip(names, values.values(), strict=True):
            self.accessor.assign(name, value)
        yield
        for name in names:
            self.accessor.values.pop(name)

    # --- loops --------------------------------------------------------------------------------

    def _all_inside(self, buffers: list[Buffer]) -> None:
        places = self.accessor.places
        before = {buffer: places[buffer] for buffer in buffers}
        places.update({buffer: replace(place, guarded=False) for buffer, place in before.items()})
        if self.folds and self.last not in self.nest.folded:
            with self._loops(self.outer):
                if any(buffer.scope == "global" for buffer, _ in self._accesses()):
                    self._rows_of_columns()
                else:
                    self._columns()
        elif self._folds_rows_together():
            self._groups()
        else:
            with self._loops(self.outer):
                self._row(self._close_lanes)
        places.update(before)

    def _folds_rows_together(self) -> bool:
        axes = [fold.grouped_axis(fold.axes[self.last]) for fold in self.folds.values()]
        return bool(axes) and all(
            axis is not None and fold.vars[axis] is self.nest.loop_vars[self.outer[-1]]
            for axis, fold in zip(axes, self.folds.values(), strict=True)
        )

    def _groups(self) -> None:
        """Emit as many rows as there are lanes, whose folds are closed together."""
        *outer, axis = self.outer
        groups, rest = divmod(self.nest.extents[axis], self.lanes)
        with self._loops(outer):
            blocks = {step: fold.block() for step, fold in self.folds.items()}
            with self.builder.loop(groups) as group:
                first = self.builder.bind(mul(group, self.lanes))
                with self.builder.loop(self.lanes) as row, self._at({axis: add(first, row)}):
                    self._row(partial(self._keep, blocks, row))
                with self._at({axis: first}):
                    for step, fold in self.folds.items():
                        fold.close_rows(blocks[step], self.nest.loop_vars[axis])
            with self.builder.loop(rest, start=groups * self.lanes) as row, self._at({axis: row}):
                self._row(self._close_lanes)

    def _keep(self, blocks: dict[Reduce, Any], row: Any, step: Reduce, part: Any, _: Any) -> None:
        value = self.builder.load(part, 0, self.lanes)
        self.builder.store(blocks[step], value, mul(row, self.lanes), self.lanes)

    def _close_lanes(self, step: Reduce, part: Any, total: Any) -> None:
        self.folds[step].close_lanes(part, total, self.lanes)

    @contextmanager
    def _loops(self, axes: list[int]) -> Iterator[None]:
        with ExitStack() as loops:
            for axis in axes:
                index = loops.enter_context(self.builder.loop(self.nest.extents[axis]))
                loops.enter_context(self._at({axis: index}))
            yield

    def _row(self, close: Callable[[Reduce, Any, Any], None]) -> None:
        """Emit vectors along the last axis, which is folded if anything is.

        ``close`` is given each partial fold of vectors, and that of the elements beyond them.
        """
        lanes = self.lanes
        vectors, rest = divmod(self.nest.extents[self.last], lanes)
        count = min(vectors, UNROLL) if self.folds and not self._calls() else 1
        parts = [self._accumulators(lanes) for _ in range(count)]
        total = self._accumulators(1)
        scope = self.accessor.scope(self.var, lanes)
        rows = self._rows_ahead()
        pairs = 1 if count > 1 or vectors % 2 else 2  # iterations that round together
        ahead = [self._lines_of(one) for one in self.nest.ahead]
        with self._loops(self.inner), rows.begun():
            with self.builder.loop(vectors // (count * pairs)) as q, self._paired(pairs > 1):
                first = self.builder.bind(mul(q, count * pairs * lanes))
                for i, part in enumerate(parts * pairs):
                    at = add(first, i * lanes)
                    rows.fetch(at)
                    self._steps(at, part, scope)
                    for one, per_line in ahead:
                        if i % per_line == 0:
                            self._fetch(one, at)
            for i in range(vectors % count):
                self._steps((vectors - vectors % count + i) * lanes, parts[i], scope)
            if rest:
                with self.builder.loop(rest, start=vectors * lanes) as index:
                    self._steps(index, total, self.accessor.scope())
        for step, fold in self.folds.items():
            close(step, fold.merged([part[step] for part in parts], lanes), total[step])

    def _rows_ahead(self) -> RowsAhead:
        nest = self.nest
        stored = {step.buffer for step in nest.steps if isinstance(step, Store)}
        updated = {buffer for buffer in stored if buffer.scope != "global"}
        return RowsAhead(self.accessor, nest.loop_vars, nest.extents, self._reads(), updated)

    def _reads(self) -> Iterator[tuple[Buffer, Sequence[Expr]]]:
        for step in self.nest.steps:
            if isinstance(step, Reduce):
                yield self.folds[step].accesses[0]
            else:
                yield from ((load.buffer, load.indices) for load in loads(step))

    def _lines_of(self, one: Ahead) -> tuple[Ahead, int]:
        """Return what is fetched ahead, and of how many vectors each a cache line has."""
        itemsize = DType(self.accessor.places[one.tile].storage.dtype).itemsize
        return one, max(1, CACHE_LINE_BYTES // (self.lanes * itemsize))

    def _fetch(self, one: Ahead, first: Any) -> None:
        """Fetch the line of an element of the next box."""
        accessor, values = self.accessor, self.accessor.values
        place, before = accessor.places[one.tile], values[one.var]
        values[one.var] = add(before, one.step)
        with self._at({self.last: first}):
            offset, _ = accessor.offset(place, place.indices(one.indices))
        values[one.var] = before
        prefetch.fetch(
            self.builder, place.memory, offset, prefetch.L1 if one.is_near else prefetch.L2
        )

    @contextmanager
    def _paired(self, is_paired: bool) -> Iterator[None]:
        """Round to bfloat16 in pairs of vectors what products alone read."""
        places = self.accessor.places
        stores = {step.buffer for step in self.nest.steps if isinstance(step, Store)}
        before = {b: places[b] for b in stores if is_paired and places[b].flushes}
        if not before:
            yield
            return
        pairs = Pairs(self.builder)
        places.update({b: replace(place, pairs=pairs) for b, place in before.items()})
        yield
        pairs.store()
        places.update(before)

    def _columns(self) -> None:
        """Emit vectors along the last axis, which is not folded, around the folded ones."""
        vectors, rest = divmod(self.nest.extents[self.last], self.lanes)
        with self.builder.loop(vectors) as q:
            self._column(self.builder.bind(mul(q, self.lanes)), self.lanes)
        if rest:
            with self.builder.loop(rest, start=vectors * self.lanes) as index:
                self._column(index, 1)

    def _rows_of_columns(self) -> None:
        """Emit rows, whose vectors go to the folds of their columns: tensors are read by rows."""
        extent, lanes = self.nest.extents[self.last], self.lanes
        whole = extent - extent % lanes
        sums = {step: fold.accumulators(extent, lanes) for step, fold in self.folds.items()}
        parts = [part for part in ((0, whole, lanes), (whole, extent, 1)) if part[0] < part[1]]
        rows = self._rows_ahead()
        with self._loops(self.inner), rows.begun():
            for part in parts:
                with self._vectors(*part) as (first, scope):
                    rows.fetch(first)
                    self._steps(first, sums, scope, first)
        for part in parts:
            with self._vectors(*part) as (first, scope), self._at({self.last: first}):
                for step, fold in self.folds.items():
                    fold.store(sums[step], scope, first)

    @contextmanager
    def _vectors(self, start: int, stop: int, lanes: int) -> Iterator[tuple[Any, Scope]]:
        """Emit a loop over a part of the last axis; give the first element and its scope."""
        accessor = self.accessor
        scope = accessor.scope(self.var, lanes) if lanes > 1 else accessor.scope()
        with self.builder.loop((stop - start) // lanes) as q:
            yield self.builder.bind(add(start, mul(q, lanes))), scope

    def _column(self, first: Any, lanes: int) -> None:
        scope = self.accessor.scope(self.var, lanes) if lanes > 1 else self.accessor.scope()
        sums = self._accumulators(lanes)
        with self._loops(self.inner):
            self._steps(first, sums, scope)
        with self._at({self.last: first}):
            for step, fold in self.folds.items():
                fold.store(sums[step], scope)

    def _accumulators(self, lanes: int) -> dict[Reduce, Any]:
        return {step: fold.accumulator(lanes) for step, fold in self.folds.items()}

    def _calls(self) -> bool:
        """Return whether a step takes long enough to hide the latency of a fold."""
        return any(
            isinstance(node, Call)
            for step in self.nest.steps
            for e in expressions(step)
            for node in walk_expr(e)
        )

    def _steps(self, first: Any, sums: dict[Reduce, Any], scope: Scope, at: Any = 0) -> None:
        places = self.accessor.places
        before = {buffer: places[buffer] for buffer in self.nest.handed_on}
        with self._at({self.last: first}):
            for step in self.nest.steps:
                if isinstance(step, Reduce):
                    self.folds[step].take(sums[step], scope, at)
                    continue
                step = unrounded(step, self.accessor)
                value = stored_value(step, scope)
                if step.buffer in before and not places[step.buffer].is_own:
                    places[step.buffer] = self._own(before[step.buffer], scope.lanes)
                self.accessor.store(step.buffer, step.indices, value, step.value.dtype, scope)
        places.update(before)

    def _own(self, place: Place, lanes: int) -> Place:
        """Return where the element of one iteration is kept from step to step: in a register."""
        storage = place.storage
        memory = self.builder.alloc(lanes, memory_type(storage.dtype), "own")
        return Place(memory, storage, flushes=place.flushes, is_own=True)
