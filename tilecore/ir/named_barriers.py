"""Named barriers: threads that meet by number and count (bar.sync, bar.arrive of CUDA).

The barrier of a number is full when ``count`` threads have come to it; it is empty again at once.
Who arrives goes on, who synchronises waits until the barrier is full. Where a program never
arrives without waiting, the threads that take the same branches meet: a Sync of their group.
Where there is no such hardware, an array of barriers in memory says the same: a thread waits for
the phase that runs when it comes, which cannot end before it has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilecore.errors import ScopeError
from tilecore.ir import nodes
from tilecore.ir.barrier import arrive_count
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Load, Var, binary, const
from tilecore.ir.indexing import whole
from tilecore.ir.nodes import Buffer, KernelLaunch, PrimFunc, Seq, Stmt, Sync
from tilecore.ir.visitor import Rewriter, walk

MEETS, ARRIVES = "named", "named_arrive"  # scopes of a Sync
MOST = 15  # PTX ISA 9.1: barriers 0 to 15; 0 is that of all threads of the block


def named(stmts: Iterable[Stmt]) -> dict[int, int]:
    """Return how many threads fill each named barrier.

    Raises:
        ScopeError: two statements expect different numbers of threads (TC104).
    """
    counts: dict[int, int] = {}
    for stmt in stmts:
        if not isinstance(stmt, Sync) or stmt.scope not in (MEETS, ARRIVES):
            continue
        if counts.setdefault(stmt.barrier, stmt.count) != stmt.count:
            raise ScopeError(
                message=f"named barrier {stmt.barrier}: expected {counts[stmt.barrier]} threads as "
                f"elsewhere, found {stmt.count}",
                hint="give all arrivals and waits of one barrier the same number of threads",
                span=stmt.span,
            )
    return counts


def with_groups(body: Stmt, threads: int | None) -> Stmt:
    """Return the body of a launch in which named barriers nobody just arrives at are groups'.

    Args:
        body: the body.
        threads: how many the block has, if that is known.

    Raises:
        ScopeError: a barrier that cannot be filled, or not by one number of threads (TC104).
    """
    used = [s for s in walk(body) if isinstance(s, Sync) and s.scope == ARRIVES]
    for stmt in used:
        if threads is not None and stmt.count > threads:
            raise ScopeError(
                message=f"named barrier {stmt.barrier}: expected at most the {threads} threads of "
                f"the block, found {stmt.count}",
                hint="count the threads that arrive and those that wait",
                span=stmt.span,
            )
    named(s for s in walk(body) if isinstance(s, Sync) and s.barrier in {a.barrier for a in used})
    return _Groups({s.barrier for s in used}).visit(body)


class _Groups(Rewriter):
    def __init__(self, kept: set[int]) -> None:
        self.kept = kept

    def visit_sync(self, stmt: Sync) -> Stmt:
        if stmt.scope != MEETS or stmt.barrier in self.kept:
            return stmt
        return Sync("group", stmt.span)


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with named barriers as barriers in memory."""
    return replace(func, body=_Launches().visit(func.body))


class _Launches(Rewriter):
    def visit_kernellaunch(self, launch: KernelLaunch) -> Stmt:
        return in_memory(launch)


def in_memory(launch: KernelLaunch) -> KernelLaunch:
    """Return a launch with its named barriers as barriers in memory; itself if it has none."""
    counts = named(walk(launch.body))
    if not counts:
        return launch
    numbers = sorted(counts)
    buffer = Buffer(
        "named_barrier", (const(len(numbers)),), DType("int32"), "shared", span=launch.span,
        arrive_counts=tuple(counts[n] for n in numbers),
    )  # fmt: skip
    body = _InMemory(buffer, numbers).visit(launch.body)
    clear = nodes.Fill(whole(buffer), const(0), launch.span)
    return replace(launch, body=Seq((nodes.Alloc(buffer, launch.span), clear, body), launch.span))


class _InMemory(Rewriter):
    def __init__(self, buffer: Buffer, numbers: list[int]) -> None:
        self.buffer, self.numbers = buffer, numbers

    def visit_sync(self, stmt: Sync) -> Stmt:
        if stmt.scope not in (MEETS, ARRIVES):
            return stmt
        place, span = const(self.numbers.index(stmt.barrier)), stmt.span
        arrive = nodes.Arrive(self.buffer, place, False, span)
        if stmt.scope == ARRIVES:
            return arrive
        arrived = Load(self.buffer, (place,), self.buffer.dtype)
        phase = binary("mod", binary("floordiv", arrived, arrive_count(self.buffer, place)), 2)
        parity = Var(f"phase_{stmt.barrier}", self.buffer.dtype)
        wait = nodes.Wait(self.buffer, place, parity, span)
        return Seq((nodes.Let(parity, phase, span), arrive, wait), span)
