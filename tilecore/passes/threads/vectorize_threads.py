"""vectorize_threads: the threads of a block become lanes of vectors.

serialize_threads leaves loops over the threads of a block, whose iterations have nothing to do with
each other. Run one after the other, each thread waits for its own chain of sums, and what it loads
lies far from what it loads next: neighbouring threads have the neighbouring elements. So a group of
threads runs in step: loops that all of them run alike stay outside, and each store inside becomes a
nest over the group. What threads do differently is done by one after the other, as before.

The group is taken along the axis of the threads (thread_axes.py) where most accesses are of
neighbours; private tiles get that axis as their last one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilecore.ir.analysis import read_buffers, reads, writes, written_buffers
from tilecore.ir.arithmetic.bounds import step_of
from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.expr import Binary, Expr, Load, Var, binary, const, int_value
from tilecore.ir.nodes import (
    THREADS,
    Buffer,
    For,
    If,
    KernelLaunch,
    Parallel,
    PrimFunc,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.substitute import substitute_stmt
from tilecore.ir.visitor import (
    Rewriter,
    children,
    expressions,
    flat,
    has_jump,
    loads,
    per_launch,
    walk,
    walk_expr,
)
from tilecore.passes.threads.thread_axes import Axis, Places, axes_of, private_tiles

GROUP = 32  # most threads that run in step: sums of four vectors hide their latency
LEAST = 8  # threads along an axis, fewer fill no vector
APART = 6.0  # cost of loading a vector whose elements lie apart, relative to neighbours
OTHER = 4.0  # cost of what is no store, for one thread
WORTH_IT = 0.8  # of the cost of one thread after the other
UNKNOWN_TRIPS = 8
NOT_IN_VECTORS = ("floordiv", "mod", "pow")


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with the threads of its launches in groups."""
    return per_launch(func, _in_groups)


def _in_groups(stmt: KernelLaunch) -> Stmt:
    launch = replace(stmt, body=_Apart().visit(stmt.body))
    loops = [s for s in walk(launch) if isinstance(s, For) and s.kind == THREADS]
    if not loops:
        return stmt
    axes = axes_of(launch, loops)
    choices = [_InGroups(launch, axes, a) for a in axes if _group(a.extent) >= LEAST]
    best = min(choices, key=lambda choice: choice.cost, default=None)
    return best.launch if best is not None and best.pays else _Serial().visit(launch)


class _Apart(Rewriter):
    """Gives what threads do in a loop and what is done once in it loops of their own.

    Threads then run the loop one after the other, or in groups: what a thread goes through lies in
    a row.
    """

    def visit_for(self, stmt: For) -> Stmt:
        made = self.rebuild(stmt)
        parts = flat([made.body]) if isinstance(made, For) else []
        is_mixed = any(isinstance(part, For) and part.kind == THREADS for part in parts)
        if not is_mixed or not isinstance(made, For) or made.kind == THREADS or not _is_free(made):
            return made
        return Seq(tuple(self._alone(made, part) for part in parts), made.span)

    @staticmethod
    def _alone(loop: For, part: Stmt) -> Stmt:
        if not isinstance(part, For) or part.kind != THREADS:
            return replace(loop, body=part)
        return replace(part, body=replace(loop, body=part.body))


def _is_free(loop: For) -> bool:
    """Return whether the parts of a loop, and the threads in them, have nothing to do with others.

    That is, no part reads or writes what another one writes, and none reads what it writes itself.
    """
    parts = flat([loop.body])
    if has_jump(loop.body) or any(_is_deep(part) for part in parts):
        return False
    written = [{b.root for b in written_buffers(part)} for part in parts]
    read = [{b.root for b in read_buffers(part)} for part in parts]
    heads = {x.buffer.root for e in expressions(loop) for x in walk_expr(e) if isinstance(x, Load)}
    for number, mine in enumerate(written):
        others = (w | r for i, (w, r) in enumerate(zip(written, read, strict=True)) if i != number)
        if mine & (heads | read[number]) or any(mine & other for other in others):
            return False
    return True


def _is_deep(part: Stmt) -> bool:
    """Return whether a part is more than stores, or a loop of threads over them."""
    inner = flat([part.body]) if isinstance(part, For) and part.kind == THREADS else [part]
    return not all(isinstance(stmt, Store) for stmt in inner)


class _InGroups(Places):
    """A launch whose groups of threads run along ``lane``."""

    def __init__(self, launch: KernelLaunch, axes: Sequence[Axis], lane: Axis) -> None:
        self.lane = lane
        self.axes = axes[::-1]  # the outermost first: in the order of the threads
        self.outer = [a for a in self.axes if a is not lane]
        order = [*self.outer, lane]
        super().__init__(private_tiles(launch, order), order)
        self.group = _group(lane.extent)
        self.cost = self.serial_cost = 0.0
        self.launch = self.stmt(launch)

    @property
    def pays(self) -> bool:
        """Whether groups are expected to be faster than one thread after the other."""
        return self.cost < WORTH_IT * self.serial_cost

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return a statement, with the loops over threads in it rewritten."""
        if not isinstance(stmt, For) or stmt.kind != THREADS:
            return super().stmt(stmt)
        count = math.prod(a.extent for a in self.axes)
        is_whole = (int_value(stmt.start), int_value(stmt.stop)) == (0, count)
        self.thread, self.is_own = stmt.loop_var if is_whole else None, True
        body = flat([self.stmt(stmt.body)])
        self.thread, self.is_own = None, False
        if not is_whole:
            return replace(stmt, kind="serial", body=Seq(tuple(body), stmt.body.span))
        self._count(body)
        if not any(self._is_vector(s) for b in body for s in walk(b)):
            return self._rows(body) or _nested(self.axes, Seq(tuple(body), stmt.span))
        if all(isinstance(s, Store) for s in body):
            return Seq(tuple(map(self._element, body)), stmt.span)
        chunk = Var(f"{stmt.loop_var.name}_group", stmt.loop_var.dtype)
        made = Seq(tuple(self._in_step(body, chunk)), stmt.span)
        return _nested([*self.outer, Axis(chunk, 1, self.lane.extent // self.group)], made)

    def _rows(self, body: Sequence[Stmt]) -> Stmt | None:
        """Return a nest of what each thread copies in a row, or None."""
        loop = body[0]
        if len(body) > 1 or not isinstance(loop, For) or int_value(loop.start) != 0:
            return None
        (store, *more), size = flat([loop.body]), int_value(loop.stop)
        if more or not isinstance(store, Store) or size is None or int_value(loop.step) != 1:
            return None
        if _apart(store.buffer, store.indices, loop.loop_var) != 1 or _reads_itself(store):
            return None
        names = (*(axis.var for axis in self.axes), loop.loop_var)
        extents = (*(const(axis.extent) for axis in self.axes), const(size))
        return Parallel(names, extents, store, span=store.span)

    def _element(self, stmt: Stmt) -> Stmt:
        """Return a store as a nest over all threads, or as loops over them.

        What threads along an axis store alike, one of them stores.
        """
        names = {node for e in expressions(stmt) for node in walk_expr(e)}
        used = {axis for axis in self.axes if axis.var in names or _reads_itself(stmt)}
        if not self._is_vector(stmt):
            return _nested([axis for axis in self.axes if axis in used], stmt)
        order = [axis for axis in self.order if axis in used]
        extents = tuple(const(axis.extent) for axis in order)
        return Parallel(tuple(axis.var for axis in order), extents, stmt, span=stmt.span)

    def _in_step(self, body: Sequence[Stmt], chunk: Var) -> Iterator[Stmt]:
        """Yield statements as the threads of a group run them in step."""
        lane = Var(self.lane.var.name, chunk.dtype)
        here = binary("add", binary("mul", chunk, self.group), lane)
        for stmt in body:
            across = self._across(stmt, lane)
            if across:
                yield Seq(tuple(substitute_stmt(nest, {self.lane.var: here}) for nest in across))
                continue
            if isinstance(stmt, (For, If)) and self._is_common(stmt):
                yield self._within(stmt, chunk)
                continue
            mine = substitute_stmt(stmt, {self.lane.var: here})
            if self._is_vector(stmt):
                yield Parallel((lane,), (const(self.group),), mine, span=stmt.span)
            else:
                yield _nested([Axis(lane, 1, self.group)], mine)

    def _across(self, stmt: Stmt, lane: Var) -> list[Parallel]:
        """Return what each thread moves in a row of its own as nests; none: it does more.

        A thread's row in memory becomes its column of a private tile, or the other way round.
        """
        size = int_value(stmt.stop) if isinstance(stmt, For) else None
        if not isinstance(stmt, For) or size is None:
            return []
        if (int_value(stmt.start), int_value(stmt.step)) != (0, 1):
            return []
        row, written = stmt.loop_var, {b.root for b in written_buffers(stmt.body)}
        nests = []
        for store in flat([stmt.body]):
            load = store.value if isinstance(store, Store) else None
            if not isinstance(store, Store) or not isinstance(load, Load):
                return []
            if load.buffer.root in written:
                return []
            along = self.lane.var, row
            store_lane, store_row = (_apart(store.buffer, store.indices, v) for v in along)
            load_lane, load_row = (_apart(load.buffer, load.indices, v) for v in along)
            lanes, rows = const(self.group), const(size)
            if store_lane == load_row == 1 and any(index is row for index in store.indices):
                nests.append(Parallel((row, lane), (rows, lanes), store, span=store.span))
            elif store_row == load_lane == 1 and (store_lane or 0) >= size:
                nests.append(Parallel((lane, row), (lanes, rows), store, span=store.span))
            else:
                return []
        return nests

    def _within(self, stmt: For | If, chunk: Var) -> Stmt:
        def made(body: Stmt) -> Stmt:
            return Seq(tuple(self._in_step(flat([body]), chunk)))

        if isinstance(stmt, For):
            return replace(stmt, body=made(stmt.body))
        other = None if stmt.else_body is None else made(stmt.else_body)
        return replace(stmt, then_body=made(stmt.then_body), else_body=other)

    def _is_common(self, stmt: For | If) -> bool:
        """Return whether a group runs a loop or branch as one, and some of it in step."""
        leaves = has_jump(stmt.body if isinstance(stmt, For) else stmt)
        if leaves or not any(self._is_vector(s) for s in walk(stmt)):
            return False
        heads = (stmt.start, stmt.stop, stmt.step) if isinstance(stmt, For) else (stmt.cond,)
        parts = [node for head in heads for node in walk_expr(head)]
        return not any(part is self.lane.var or isinstance(part, Load) for part in parts)

    # --- what is worth it -------------------------------------------------------------------------

    def _is_vector(self, stmt: Stmt) -> bool:
        """Return whether neighbouring threads store neighbouring elements, of known places."""
        if not isinstance(stmt, Store) or _apart(stmt.buffer, stmt.indices, self.lane.var) != 1:
            return False
        if any(_apart(x.buffer, x.indices, self.lane.var) is None for x in loads(stmt)):
            return False
        parts = (node for e in expressions(stmt) for node in walk_expr(e))
        whole = (p for p in parts if isinstance(p, Binary) and p.op in NOT_IN_VECTORS)
        return not any(node is self.lane.var for p in whole for node in walk_expr(p))

    def _count(self, body: Sequence[Stmt], times: float = 1.0, *, apart: bool = False) -> None:
        """Add what statements cost in groups and one thread after the other, per LEAST threads."""
        for stmt in body:
            if isinstance(stmt, Store):
                steps = [_apart(x.buffer, x.indices, self.lane.var) for x in loads(stmt)]
                serial = times * LEAST * (2.0 + len(steps))
                vector = times * (2.0 + sum(1.0 if s in (0, 1) else APART for s in steps))
                self.cost += vector if self._is_vector(stmt) and not apart else serial
                self.serial_cost += serial
            elif not children(stmt):
                self.cost += times * LEAST * OTHER
                self.serial_cost += times * LEAST * OTHER
            else:
                is_apart = not (isinstance(stmt, (For, If)) and self._is_common(stmt))
                inside = times * _trips(stmt) if isinstance(stmt, For) else times
                self._count(flat(children(stmt)), inside, apart=apart or is_apart)


def _reads_itself(store: Stmt) -> bool:
    """Return whether a store reads the memory that it writes, by whatever name."""
    return bool({b.root for b in writes(store)} & {b.root for b in reads(store)})


def _apart(buffer: Buffer, indices: Sequence[Expr], along: Var) -> int | None:
    """Return the elements from one access to the next along an axis; None: not known."""
    strides = buffer.strides
    total = 0
    size: Expr = const(1)
    for axis in reversed(range(len(indices))):
        stride = int_value(size if strides is None else strides[axis])
        step = step_of(indices[axis], along)
        if step is None or (step and stride is None):
            return None
        total += step * (stride or 0)
        size = binary("mul", size, buffer.shape[axis])
    return total


def _trips(loop: For) -> int:
    count = int_value(trip_count(loop))
    return UNKNOWN_TRIPS if count is None else max(0, count)


def _group(extent: int) -> int:
    """Return how many threads run in step: the most that divide an axis."""
    return max(g for g in range(1, min(GROUP, extent) + 1) if extent % g == 0)


def _nested(axes: Sequence[Axis], body: Stmt) -> Stmt:
    """Return a body in loops over axes, the last one innermost."""
    for axis in reversed(axes):
        if axis.extent == 1:
            body = substitute_stmt(body, {axis.var: const(0)})
        else:
            bounds = (const(0), const(axis.extent), const(1))
            body = For(axis.var, *bounds, "serial", body, span=body.span)
    return body


class _Serial(Rewriter):
    """Makes loops over threads loops like others."""

    def visit_for(self, stmt: For) -> Stmt:
        made = replace(stmt, body=self.visit(stmt.body))
        return replace(made, kind="serial") if stmt.kind == THREADS else made
