"""Shared memory beyond tiles: what threads tell each other, and the barriers of pipelines."""

from __future__ import annotations

from collections.abc import Iterable

from tilecore.inference.gpu.distribution import Digit, by_thread
from tilecore.inference.gpu.plan import NestPlan, Pipeline
from tilecore.inference.gpu.threads.teams import Team, Teams
from tilecore.ir import nodes
from tilecore.ir.fold import fold_dtype
from tilecore.ir.nodes import KernelLaunch, Reduce
from tilecore.ir.visitor import walk

SCRATCH_BYTES = 8  # the most that a thread tells others through shared memory
BARRIER_BYTES = 8


def told(
    launch: KernelLaunch, nests: Iterable[NestPlan], teams: Teams, warp: int
) -> tuple[dict[Team, int], int]:
    """Return where each team's part begins of what threads tell each other, and the bytes of all.

    Teams run side by side, each has a part of its own.
    """
    needs: dict[Team, int] = {}
    for plan in nests:
        team = teams.team(plan.points.stmt)
        needs[team] = max(needs.get(team, 0), _of_nest(plan, warp))
    for stmt in walk(launch.body):
        if _tells_the_block(stmt, warp):
            team = teams.team(stmt)
            needs[team] = max(needs.get(team, 0), SCRATCH_BYTES * team.count)
    places, end = {}, 0
    for team, size in needs.items():
        if size:
            places[team] = end
            end += -(-size // SCRATCH_BYTES) * SCRATCH_BYTES
    return places, end


def barrier_bytes(pipelines: Iterable[Pipeline]) -> int:
    """Return the bytes of the barriers of pipelines."""
    return BARRIER_BYTES * sum(2 * p.stages * len(p.copies) for p in pipelines if p.boxes)


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


def lanes_of_one_value(plan: NestPlan, digit: Digit, warp: int) -> int:
    """Return how many lanes side by side have one value when a digit across warps is folded.

    Those of digits that are folded by then, and those that do what others do as well.
    """
    alike = [d for d in folded_digits(plan, warp) if d.stride < digit.stride]
    lanes = 1
    for one in sorted((*alike, *plan.distribution.copies), key=lambda d: d.stride):
        if one.stride != lanes or not folds_in_warp(one, warp):
            break
        lanes *= one.extent
    return lanes if digit.stride % lanes == 0 else 1


def folds_across_warps(plan: NestPlan, warp: int) -> bool:
    """Return whether a nest is a reduction whose threads meet after it reads, before it writes."""
    is_fold = isinstance(plan.points.stmt, Reduce)
    return is_fold and not all(folds_in_warp(d, warp) for d in folded_digits(plan, warp))


def _of_nest(plan: NestPlan, warp: int) -> int:
    """Return the shared memory that a reduction needs."""
    stmt = plan.points.stmt
    if not isinstance(stmt, Reduce) or not folds_across_warps(plan, warp):
        return 0
    kind = fold_dtype(stmt.src.buffer.dtype, stmt.dst.buffer.dtype)
    across = (d for d in folded_digits(plan, warp) if not folds_in_warp(d, warp))
    lanes = min(lanes_of_one_value(plan, d, warp) for d in across)
    return -(-plan.distribution.threads // lanes) * max(4, kind.itemsize)
