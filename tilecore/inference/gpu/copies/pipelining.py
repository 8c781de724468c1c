"""Software pipelining: which copies of a loop run ahead of their use, through how many tiles."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace

from tilecore.amd_target import AmdTarget
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.copies.gathers import expressions_of, gather_of
from tilecore.inference.gpu.plan import Gather, NestPlan, Pipeline
from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole, pads, reads, writes, written_buffers
from tilecore.ir.clusters import multiplies_in_pairs
from tilecore.ir.expr import Expr, Load, Var, int_value
from tilecore.ir.nodes import Buffer, Copy, For, KernelLaunch, Stmt
from tilecore.ir.visitor import buffers_of, expressions, has_jump, walk, walk_expr

ASYNC_BYTES = (4, 8, 16)  # what cp.async moves (PTX ISA 8.7)
PREFETCHED = 2  # tiles of each kind where the next ones come through registers


def find_pipelines(
    launch: KernelLaunch, nests: Mapping[Stmt, NestPlan], target: GpuTarget
) -> dict[Stmt, Pipeline]:
    """Return the pipelines of a launch: of loops with ``num_stages`` of at least 2.

    Or of 1 where the tensor memory accelerator may fill a tile as soon as its use is over, while
    threads compute with others. Not of loops with products of two blocks: the one that begins them
    must know that the other one's tiles are there, which the program tells it.
    """
    found: dict[Stmt, Pipeline] = {}
    in_registers = isinstance(target, AmdTarget)
    if not in_registers and not target.has_cp_async:
        return found
    for stmt in walk(launch.body):
        if isinstance(stmt, For) and stmt.kind == "pipelined" and not multiplies_in_pairs(stmt):
            stages = int_value(stmt.annotations.get("num_stages", 0)) or 0
            ahead = _Ahead(stmt, launch, nests)
            copies = ahead.copies()
            gathers = () if in_registers or stages < 2 else ahead.gathers()
            is_any = bool(copies or gathers)
            if stages >= (1 if target.has_tma else 2) and is_any and int_value(stmt.step) == 1:
                kept = PREFETCHED if in_registers else stages
                found[stmt] = Pipeline(
                    stmt, copies, kept, in_registers=in_registers, gathers=gathers,
                    lookups=ahead.lookups((*copies, *gathers)),
                )  # fmt: skip
    if target.has_tma and any(p.copies for p in found.values()):  # it brings those, no gathers
        return without_gathers(found)
    return found


def unawaited_copies(
    launch: KernelLaunch,
    nests: Mapping[Stmt, NestPlan],
    pipelines: Iterable[Pipeline],
    elsewhere: Container[Stmt],
    target: GpuTarget,
) -> frozenset[Stmt]:
    """Return the copies to shared tiles that threads wait for only when they meet next.

    Not beside pipelines of threads' own copies, which count what is under way.

    Args:
        launch: the launch.
        nests: how its statements run.
        pipelines: its pipelines, whose copies are left out.
        elsewhere: copies that the tensor memory accelerator does.
        target: has such copies, or not.
    """
    known = tuple(pipelines)
    if isinstance(target, AmdTarget) or not target.has_cp_async or any(not p.boxes for p in known):
        return frozenset()
    ahead = {s for p in known for s in p.ahead}
    padded = pads(launch)
    return frozenset(
        s
        for s in walk(launch.body)
        if isinstance(s, Copy)
        and s not in ahead
        and s not in elsewhere
        and s.src.buffer not in padded
        and _is_async(s, nests)
    )


def leads_to(stmt: Stmt, loop: Stmt) -> bool:
    """Return whether a statement decides if threads come to ``loop``: around it, or by a jump.

    Args:
        stmt: of the launch, or of the body of a loop around ``loop``.
        loop: the loop.
    """
    return has_jump(stmt) or any(s is loop for s in walk(stmt))


def without_single_tiles(pipelines: Mapping[Stmt, Pipeline]) -> dict[Stmt, Pipeline]:
    """Return the pipelines without those of one tile of each kind, which threads cannot run."""
    return {s: p for s, p in pipelines.items() if p.stages > 1 or p.boxes or p.in_registers}


def without_gathers(pipelines: Mapping[Stmt, Pipeline]) -> dict[Stmt, Pipeline]:
    """Return the pipelines of copies alone."""
    return {s: replace(p, gathers=()) for s, p in pipelines.items() if p.copies}


def with_one_tile(pipelines: Mapping[Stmt, Pipeline]) -> dict[Stmt, Pipeline]:
    """Return the pipelines with one tile of each kind, where the next ones wait in registers."""
    return {s: replace(p, stages=1) if p.in_registers else p for s, p in pipelines.items()}


class _Ahead:
    """What of a loop may run ahead of its iterations."""

    def __init__(self, loop: For, launch: KernelLaunch, nests: Mapping[Stmt, NestPlan]) -> None:
        self.loop, self.nests = loop, nests
        self.body = loop.body.stmts if isinstance(loop.body, nodes.Seq) else (loop.body,)
        self.written = _written(launch)
        self.padded = pads(launch)  # what lies outside becomes 0
        self.names = _names(loop.body, self.written)
        inside = list(walk(loop.body))
        self.filled = [b for s in inside for b in writes(s)]
        self.bound: set[Var | Buffer] = {s.var for s in inside if isinstance(s, nodes.Let)}
        self.bound -= self.names.keys()
        self.bound |= {s.buffer for s in inside if isinstance(s, nodes.Alloc)}
        self.touched = _touched_outside(launch.body, loop)

    def copies(self) -> tuple[Copy, ...]:
        """Return the copies that may."""
        found: list[Copy] = []
        for stmt, seen in self._with_before():
            if isinstance(stmt, Copy) and _is_async(stmt, self.nests) and covers_whole(stmt.dst):
                source, tile = stmt.src.buffer, stmt.dst.buffer
                if self._is_free(tile, source, seen, 1) and self._are_known(expressions(stmt)):
                    found.append(stmt)
        return tuple(found)

    def gathers(self) -> tuple[Gather, ...]:
        """Return the gathers that may."""
        found: list[Gather] = []
        for stmt, seen in self._with_before():
            gather = gather_of(stmt, self.nests.get(stmt), ASYNC_BYTES)
            if gather is not None:
                tile, source = gather.tile, gather.source.buffer
                count = sum(tile in writes(s) for s in walk(stmt))
                is_free = self._is_free(tile, source, seen, count)
                if is_free and self._are_known(expressions_of(gather)):
                    found.append(gather)
        return tuple(found)

    def lookups(self, found: Iterable[Copy | Gather]) -> tuple[nodes.Let, ...]:
        """Return the names that some need, and those that these need, in order."""
        exprs = [
            e for one in found
            for e in (expressions_of(one) if isinstance(one, Gather) else expressions(one))
        ]  # fmt: skip
        needed: set[Var] = set()
        while exprs:
            more = {n for e in exprs for n in walk_expr(e) if isinstance(n, Var)}
            more &= self.names.keys()
            exprs = [self.names[var].value for var in more - needed]
            needed |= more
        return tuple(let for var, let in self.names.items() if var in needed)

    def _with_before(self) -> Iterator[tuple[Stmt, set[Buffer]]]:
        """Yield each statement of the loop, with what those before it and others touch."""
        seen = set(self.touched)
        for stmt in self.body:
            yield stmt, seen
            seen |= {b.root for b in _touched(stmt)}

    def _is_free(self, tile: Buffer, source: Buffer, seen: Container[Buffer], count: int) -> bool:
        """Return whether nobody else fills a tile, or uses it before, or writes what comes there.

        ``count``: by how many statements it is filled.
        """
        is_alone = self.filled.count(tile) == count
        is_read_alone = source not in self.bound and source.root not in self.written
        return is_alone and is_read_alone and source not in self.padded and tile not in seen

    def _are_known(self, exprs: Iterable[Expr]) -> bool:
        return all(_is_known(e, self.bound, self.written) for e in exprs)


def _written(launch: KernelLaunch) -> set[Buffer]:
    return {b.root for b in written_buffers(launch.body)}


def _is_known(expr: Expr, bound: Container[object], written: Container[Buffer]) -> bool:
    """Return whether an iteration need not have begun for a value: tables of tensors hold it."""
    for node in walk_expr(expr):
        if isinstance(node, Var) and node in bound:
            return False
        if isinstance(node, Load):
            buffer = node.buffer
            if buffer.scope != "global" or buffer in bound or buffer.root in written:
                return False
    return True


def _names(body: Stmt, written: Container[Buffer]) -> dict[Var, nodes.Let]:
    """Return the names in the body of a loop whose values are known before the iteration."""
    inside = list(walk(body))
    bound: set[object] = {s.var for s in inside if isinstance(s, nodes.Let)}
    bound |= {s.buffer for s in inside if isinstance(s, nodes.Alloc)}
    found: dict[Var, nodes.Let] = {}
    for stmt in body.stmts if isinstance(body, nodes.Seq) else (body,):
        if isinstance(stmt, nodes.Let) and _is_known(stmt.value, bound, written):
            found[stmt.var] = stmt
            bound.discard(stmt.var)
    return found


def _is_async(copy: Copy, nests: Mapping[Stmt, NestPlan]) -> bool:
    """Return whether instructions bring the elements of a tensor to a shared tile as they are."""
    plan, tile = nests.get(copy), copy.dst.buffer
    if plan is None or copy.src.buffer.scope != "global" or tile.scope != "shared":
        return False
    if copy.src.buffer.dtype != tile.dtype or tile.base is not None or tile.dtype.is_packed:
        return False
    if plan.lanes * tile.dtype.itemsize not in ASYNC_BYTES:
        return False
    if plan.lanes == 1:
        return True
    return plan.moves_whole_chunks  # else one side is not aligned


def _touched(stmt: Stmt) -> set[Buffer]:
    return {b.root for b in buffers_of(stmt)} | set(reads(stmt))


def _touched_outside(stmt: Stmt, loop: For) -> set[Buffer]:
    """Return the buffers that statements outside of a loop read or write."""
    if stmt is loop:
        return set()
    match stmt:
        case nodes.Seq(stmts=stmts):
            return {b for s in stmts for b in _touched_outside(s, loop)}
        case nodes.For(body=body) | nodes.While(body=body):
            return _touched_outside(body, loop)
        case nodes.If(then_body=then, else_body=other):
            found = _touched_outside(then, loop)
            return found if other is None else found | _touched_outside(other, loop)
        case nodes.Alloc():
            return set()
        case _:
            return _touched(stmt)
