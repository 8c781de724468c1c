"""Which statements leave accesses of threads that asynchronous units do not see yet.

Units (wgmma, tcgen05, the tensor memory accelerator) see what threads wrote to shared memory once
these have said so, by a fence. It matters for tiles that such a unit reads, and for memory that
one fills: that memory may be overwritten before the loads of threads have come back from it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilecore.inference.gpu.plan import GpuLaunchPlan
from tilecore.inference.gpu.shared import sharing_memory
from tilecore.ir import nodes
from tilecore.ir.analysis import reads, writes
from tilecore.ir.nodes import Buffer, Copy, For, Stmt, While
from tilecore.ir.visitor import buffers_of, has_jump, walk


class HiddenWrites:
    """What the statements of a launch leave unseen.

    Args:
        plan: of the launch.
    """

    def __init__(self, plan: GpuLaunchPlan) -> None:
        self.plan = plan
        own = sharing_memory(plan.shared)
        filled = {t for tile in _filled_by_units(plan) for t in own.get(tile, {tile})}
        self._tiles = filled | set(_read_by_units(plan))
        asked = {b for stmt in _asked_for(plan) for b in _tiles_of(stmt)}
        self._filled_again = {
            t for tile in asked if tile.scope != "global" for t in own.get(tile, {tile})
        }
        self._ahead = {id(c) for p in plan.pipelines.values() for c in p.copies}
        self._by_units = {id(s) for s in (*plan.loads, *plan.multicasts)} | self._ahead
        self._gathered = {
            id(s) for p in plan.pipelines.values() for g in p.gathers for s in walk(g.nest)
        }
        self._by_units |= {id(s.copy) for s in plan.multicasts if isinstance(s, nodes.ClusterCopy)}
        self._known: dict[int, bool] = {}

    def by(self, stmt: Stmt) -> bool:
        """Return whether threads write such a tile in a statement; copies that run ahead aside.

        Or read one that the program has filled again: pipelines tell of theirs themselves.
        """
        if id(stmt) not in self._known:
            own = Copy | nodes.ClusterCopy
            found = [
                node
                for node in walk(stmt)
                if not (isinstance(node, own) and id(node) in self._by_units)
                and id(node) not in self._gathered
            ]
            self._known[id(stmt)] = any(self._matters(b) for n in found for b in writes(n)) or any(
                b.root in self._filled_again for n in found for b in self._read_by_threads(n)
            )
        return self._known[id(stmt)]

    def _read_by_threads(self, stmt: Stmt) -> Iterator[Buffer]:
        """Yield what threads read themselves in a statement."""
        plan = self.plan
        if stmt in plan.stores or stmt in plan.updates:
            return
        gemm = plan.gemms.get(stmt)
        in_place: set[Buffer] = set()
        if gemm is not None and isinstance(stmt, nodes.Gemm):
            operands = (gemm.a, stmt.a), (gemm.b, stmt.b)
            in_place = {
                tile.buffer
                for how, tile in operands
                if gemm.kind == "tcgen05" or how.source == "descriptor"
            }
        yield from (b for b in reads(stmt) if b not in in_place)

    def by_copies(self, tiles: Iterable[Buffer]) -> bool:
        """Return whether one of the tiles that copies of threads fill ahead is such a one."""
        return any(map(self._matters, tiles))

    def are_told_later(self, loop: For) -> bool:
        """Return whether the threads meet in a loop's body before a unit may read a tile."""
        body = loop.body.stmts if isinstance(loop.body, nodes.Seq) else (loop.body,)
        for stmt in body:
            if stmt in self.plan.barriers:
                return True
            if any(self._starts_unit(s) for s in walk(stmt)):
                return False
        return False

    def _starts_unit(self, stmt: Stmt) -> bool:
        plan = self.plan
        is_product = stmt in plan.gemms and plan.gemms[stmt].kind in ("wgmma", "tcgen05")
        by_units = (plan.stores, plan.loads, plan.updates, plan.multicasts)
        told = (nodes.Arrive, nodes.Sync, nodes.ClusterCopy, nodes.ChunkCopy)
        is_told = isinstance(stmt, told)
        return is_product or is_told or any(stmt in known for known in by_units)

    def at_turn(self, loop: For | While, before: bool) -> bool:
        """Return whether something is unseen where a turn of a loop may begin.

        Args:
            loop: the loop.
            before: whether something was where the loop begins.
        """
        pipeline = self.plan.pipelines.get(loop)
        if has_jump(loop.body) or (pipeline is not None and pipeline.overlap is not None):
            return before or self.by(loop)
        return before or self._after(loop.body, before)

    def _after(self, stmt: Stmt, before: bool) -> bool:
        """Return whether something may be unseen after a statement."""
        if stmt in self.plan.barriers:
            before = False
        match stmt:
            case nodes.Seq(stmts=stmts):
                for child in stmts:
                    before = self._after(child, before)
                return before
            case nodes.If(then_body=then, else_body=other):
                return self._after(then, before) | (
                    before if other is None else self._after(other, before)
                )
            case For() | While():
                return before or self.at_turn(stmt, before)
            case nodes.Sync(scope="block" | "group" | "named"):
                return False
            case _:
                return before or self.by(stmt)

    def _matters(self, buffer: Buffer) -> bool:
        if buffer.arrive_counts is not None:
            return False
        if buffer.root in self.plan.shared:
            return buffer.root in self._tiles
        return buffer.root.scope.startswith("shared")


def _read_by_units(plan: GpuLaunchPlan) -> Iterator[Buffer]:
    """Yield the tiles that asynchronous units read."""
    for stmt, gemm in plan.gemms.items():
        assert isinstance(stmt, nodes.Gemm)
        for operand, tile in ((gemm.a, stmt.a), (gemm.b, stmt.b)):
            if gemm.kind == "tcgen05" or operand.source == "descriptor":
                yield tile.buffer.root
    copied = [s for s in walk(plan.launch.body) if isinstance(s, nodes.ChunkCopy)]
    yield from (s.src.buffer.root for s in copied)
    for copy in plan.stores:
        yield from (b.root for b in buffers_of(copy))
    for update in plan.updates.values():
        yield update.here.buffer.root


def _asked_for(plan: GpuLaunchPlan) -> list[Stmt]:
    """Return the copies on barriers of the program that units make."""
    between = [s for s in walk(plan.launch.body) if isinstance(s, nodes.ClusterCopy)]
    return [*plan.loads, *plan.multicasts, *between]


def _tiles_of(copy: Stmt) -> Iterator[Buffer]:
    yield from (b.root for b in buffers_of(copy))


def _filled_by_units(plan: GpuLaunchPlan) -> Iterator[Buffer]:
    """Yield the tiles that asynchronous units fill, and those of copies between blocks."""
    for copy in _asked_for(plan):
        yield from _tiles_of(copy)
    for pipeline in plan.pipelines.values():
        if pipeline.boxes:
            yield from (c.dst.buffer.root for c in pipeline.copies)
