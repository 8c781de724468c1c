"""Shared memory beyond tiles: what threads tell each other, and the barriers of pipelines."""

from __future__ import annotations

from collections.abc import Iterable

from tilecore.inference.gpu.distribution import Digit, by_thread
from tilecore.inference.gpu.plan import NestPlan, Pipeline
from tilecore.inference.gpu.teams import Teams
from tilecore.ir import nodes
from tilecore.ir.fold import accumulator_dtype
from tilecore.ir.nodes import KernelLaunch, Reduce
from tilecore.ir.visitor import walk

SCRATCH_BYTES = 8  # of what a thread tells others through shared memory
BARRIER_BYTES = 8


def beyond_tiles(
    launch: KernelLaunch,
    nests: Iterable[NestPlan],
    pipelines: Iterable[Pipeline],
    teams: Teams,
    warp: int,
) -> int:
    """Return the bytes of a block behind its tiles, which end at a multiple of 16."""
    size = 0
    for plan in nests:
        own, team = _of_nest(plan, warp), teams.team(plan.points.stmt)
        if own and teams.all:
            own = SCRATCH_BYTES * (team.first + team.count)  # each team has a part of its own
        size = max(size, own)
    for stmt in walk(launch.body):
        if _tells_the_block(stmt, warp):
            team = teams.team(stmt)
            size = max(size, SCRATCH_BYTES * (team.first + team.count))
    barriers = sum(2 * p.stages * len(p.copies) for p in pipelines if p.boxes)
    return -(-size // BARRIER_BYTES) * BARRIER_BYTES + barriers * BARRIER_BYTES


def reaches(width: int, warp: int) -> bool:
    """Return whether groups of ``width`` lanes can shuffle."""
    return 2 <= width <= warp and width & (width - 1) == 0


def _tells_the_block(stmt: nodes.Stmt, warp: int) -> bool:
    """Return whether what one thread knows goes to others by way of memory."""
    if isinstance(stmt, nodes.Exchange):
        return not reaches(stmt.width, warp)
    return isinstance(stmt, nodes.Atomic) and stmt.prev is not None


def folded_digits(plan: NestPlan, warp: int) -> list[Digit]:
    """Return the digits of threads along folded loops, those across warps cut off from the rest."""
    found: list[Digit] = []
    for position in plan.points.folded:
        for digit in plan.distribution.axes[position]:
            if not digit.in_thread:
                continue
            inside = warp // digit.stride if digit.stride < warp else 1
            if inside < digit.extent and digit.extent % inside == 0 and warp % digit.stride == 0:
                found.append(by_thread(inside, digit.stride))
                found.append(by_thread(digit.extent // inside, digit.stride * inside))
            else:
                found.append(digit)
    return sorted((d for d in found if d.extent > 1), key=lambda d: d.stride)


def folds_in_warp(digit: Digit, warp: int) -> bool:
    """Return whether the threads of a digit are lanes of one warp that shuffles reach."""
    is_power = digit.extent & (digit.extent - 1) == 0 and digit.stride & (digit.stride - 1) == 0
    return is_power and digit.stride * digit.extent <= warp


def folds_across_warps(plan: NestPlan, warp: int) -> bool:
    """Return whether a nest is a reduction whose threads meet after it reads, before it writes."""
    is_fold = isinstance(plan.points.stmt, Reduce)
    return is_fold and not all(folds_in_warp(d, warp) for d in folded_digits(plan, warp))


def _of_nest(plan: NestPlan, warp: int) -> int:
    """Return the shared memory that a reduction needs."""
    stmt = plan.points.stmt
    if not isinstance(stmt, Reduce) or not folds_across_warps(plan, warp):
        return 0
    kind = accumulator_dtype(stmt.op, stmt.src.buffer.dtype, stmt.dst.buffer.dtype)
    return plan.distribution.threads * max(4, kind.itemsize)
