"""Cover: the fewest configs such that every shape has one within a tolerance of its best.

Minimum set cover is NP-hard, and small in practice: HiGHS (by ``scipy.optimize.milp``) proves
dozens of shapes and hundreds of configs within a second. Where the time is up first, the answer
says so and is the better one of what it had found and of the greedy cover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TIME_LIMIT_S = 10.0
ROUNDING = 1e-9  # a loss of exactly the tolerance is within it
Losses = NDArray[np.float64]  # shapes x configs: time over the shape's best, minus 1
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """Some configs, and which of them serves each shape.

    Attributes:
        configs: columns of the loss, ascending.
        serves: per shape the column of the fastest of these.
        is_exact: whether no fewer configs do, and of as many none with less weighted loss.
        bound: the loss that no shape exceeds.
        note: how it was found, in words.
    """

    configs: tuple[int, ...]
    serves: tuple[int, ...]
    is_exact: bool
    bound: float
    note: str


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring shapes, first to last, that one config serves."""

    first: int
    last: int
    config: int


def within(loss: Losses, tolerance: float) -> Mask:
    """Return where a config serves a shape; a loss that is not finite is of an illegal config."""
    fits: Mask = np.nan_to_num(loss, nan=np.inf) <= tolerance + ROUNDING
    return fits


def minimum_cover(
    loss: Losses, weights: NDArray[np.float64], tolerance: float,
    *, time_limit_s: float = TIME_LIMIT_S,
) -> Cover:  # fmt: skip
    """Return the fewest configs within ``tolerance`` everywhere, of these the least weighted loss.

    Args:
        loss: of every config (column) at every shape (row); each row has a 0.
        weights: of the shapes.
        tolerance: 0.05 for 5 %.
        time_limit_s: of each of two steps: how few, and which.
    """
    fits = within(loss, tolerance)
    kept = _undominated(loss, fits)
    few, is_fewest = _fewest(fits[:, kept], time_limit_s)
    chosen, is_cheapest = _cheapest(
        loss[:, kept], fits[:, kept], weights, len(few), few, time_limit_s
    )
    cover = _cover(loss, fits, kept[chosen], bound=tolerance)
    count = len(cover.configs)
    note = (
        f"{counted(count, 'config')} {'is' if count == 1 else 'are'} the fewest (minimum set cover)"
    )
    if not is_fewest:
        note = (
            f"{counted(count, 'config')}, the better of a greedy search and of what HiGHS found; "
            f"fewer may do: no proof within {time_limit_s:g} s"
        )
    elif not is_cheapest:
        note += f"; others as few may be faster: no proof within {time_limit_s:g} s"
    return _with_note(cover, note, is_exact=is_fewest and is_cheapest)


def limited_cover(
    loss: Losses, weights: NDArray[np.float64], tolerance: float, count: int,
    *, time_limit_s: float = TIME_LIMIT_S,
) -> Cover:  # fmt: skip
    """Return at most ``count`` configs: a minimum cover, or if that takes more, the best so few.

    These keep the worst loss as small as so few can, and have the least weighted loss then (a
    p-median within the bound of the p-center).
    """
    cover = minimum_cover(loss, weights, tolerance, time_limit_s=time_limit_s)
    if len(cover.configs) <= count:
        return cover
    needed = len(cover.configs)
    levels = np.unique(loss[np.isfinite(loss) & (loss > tolerance)])
    low, high = 0, len(levels) - 1
    found: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None
    is_exact = cover.is_exact
    while low <= high:
        middle = (low + high) // 2
        fits = within(loss, float(levels[middle]))
        kept = _undominated(loss, fits)
        few, is_fewest = _fewest(fits[:, kept], time_limit_s, enough=count)
        if len(few) <= count:
            found, high = (kept, few), middle - 1
        else:
            is_exact, low = is_exact and is_fewest, middle + 1
    if found is None:  # no config runs at every shape, and so few leave some without one
        note = (
            f"{counted(needed, 'config')}, not {count}: fewer leave some shape without a legal one"
        )
        return _with_note(cover, note, is_exact=cover.is_exact)
    bound = float(levels[low])
    fits, (kept, few) = within(loss, bound), found
    chosen, is_cheapest = _cheapest(loss[:, kept], fits[:, kept], weights, count, few, time_limit_s)
    limited = _cover(loss, fits, kept[chosen], bound=bound)
    note = (
        f"{counted(len(limited.configs), 'config')} as asked for; {tolerance:.0%} everywhere "
        f"takes {needed}; the worst shape loses {bound:.1%}"
    )
    return _with_note(limited, note, is_exact=is_exact and is_cheapest)


def counted(count: int, what: str) -> str:
    """Return a count in words: ``1 config``, ``2 configs``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def greedy_cover(
    loss: Losses, weights: NDArray[np.float64], tolerance: float
) -> tuple[int, ...]:  # fmt: skip
    """Return a cover found greedily: always what serves most of the shapes that are left."""
    fits = within(loss, tolerance)
    cost = np.where(fits, loss, 0.0) * weights[:, None]
    return tuple(sorted(_greedy(fits, cost).tolist()))


def fewest_runs(loss: Losses, weights: NDArray[np.float64], fits: Mask) -> list[Run]:
    """Return the fewest runs of neighbouring shapes with one config each, by dynamic programming.

    Of as few runs those with the least weighted loss, then with the first config.

    Args:
        loss: rows are shapes in the order of their size.
        weights: of the shapes.
        fits: which config may serve which shape; every shape has one.
    """
    count = len(loss)
    cost = np.where(fits, np.nan_to_num(loss, nan=np.inf, posinf=np.inf), 0.0) * weights[:, None]
    best: list[tuple[int, float]] = [(0, 0.0)] + [(count + 1, math.inf)] * count
    last: list[Run | None] = [None] * (count + 1)
    for end in range(1, count + 1):
        serves, spent = np.ones(fits.shape[1], bool), np.zeros(fits.shape[1])
        for first in range(end - 1, -1, -1):
            serves &= fits[first]
            if not serves.any():
                break
            spent += cost[first]
            config = int(np.argmin(np.where(serves, spent, np.inf)))
            runs, before = best[first]
            candidate = (runs + 1, before + float(spent[config]))
            if _is_less(candidate, best[end]):
                best[end], last[end] = candidate, Run(first, end - 1, config)
    found: list[Run] = []
    end = count
    while end:
        run = last[end]
        assert run is not None
        found.append(run)
        end = run.first
    return found[::-1]


def _is_less(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """Compare counts, then costs beyond rounding: the longer run stays where they are alike."""
    if one[0] != other[0]:
        return one[0] < other[0]
    return one[1] < other[1] or math.isclose(one[1], other[1], rel_tol=1e-12, abs_tol=1e-15)


def _undominated(loss: Losses, fits: Mask) -> NDArray[np.intp]:
    """Return the columns that no other one makes needless: it serves as much, nowhere slower."""
    bounded = np.where(fits, loss, np.inf)
    order = np.argsort(-fits.sum(axis=0), kind="stable")
    kept: list[int] = []
    for column in order.tolist():
        if not fits[:, column].any():
            continue
        others = bounded[:, kept]
        if not kept or not np.any(np.all(others <= bounded[:, [column]], axis=0)):
            kept.append(column)
    return np.array(sorted(kept), dtype=np.intp)


def _fewest(
    fits: Mask, time_limit_s: float, *, enough: int = 1
) -> tuple[NDArray[np.intp], bool]:  # fmt: skip
    """Return the columns of a minimum cover, and whether that is proved; ``enough`` are few."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    shapes, columns = fits.shape
    greedy = _greedy(fits, np.zeros(fits.shape))
    if len(greedy) <= enough:
        return greedy, True
    found = milp(
        np.ones(columns), integrality=np.ones(columns), bounds=Bounds(0, 1),
        constraints=LinearConstraint(fits.astype(float), np.ones(shapes), np.inf),
        options={"time_limit": time_limit_s},
    )  # fmt: skip
    chosen = greedy if found.x is None else np.flatnonzero(found.x > 0.5)
    is_cover = bool(np.all(fits[:, chosen].any(axis=1)))
    bound = found.mip_dual_bound
    is_proved = found.status == 0 or (
        bound is not None and math.ceil(bound - 1e-6) >= min(len(chosen), len(greedy))
    )
    return (chosen if is_cover and len(chosen) < len(greedy) else greedy), is_proved


def _cheapest(
    loss: Losses, fits: Mask, weights: NDArray[np.float64], count: int,
    known: NDArray[np.intp], time_limit_s: float,
) -> tuple[NDArray[np.intp], bool]:  # fmt: skip
    """Return the ``count`` columns with the least weighted loss, and whether that is proved.

    ``known`` is a cover of so many: the answer where the time is up.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array, vstack

    shapes, columns = fits.shape
    rows, serving = np.nonzero(fits)
    pairs = len(rows)
    numbers = np.arange(pairs)
    # Variables: whether a column is chosen, then how much of a shape each of its columns serves.
    size = columns + pairs
    cost = np.concatenate([np.zeros(columns), _scaled(loss[rows, serving] * weights[rows])])
    ones = np.ones(pairs)
    once = coo_array((ones, (rows, columns + numbers)), shape=(shapes, size))
    opened = coo_array(
        (np.concatenate([ones, -ones]),
         (np.concatenate([numbers, numbers]), np.concatenate([columns + numbers, serving]))),
        shape=(pairs, size),
    )  # fmt: skip
    few = coo_array((np.ones(columns), (np.zeros(columns, int), np.arange(columns))), (1, size))
    found = milp(
        cost, integrality=np.concatenate([np.ones(columns), np.zeros(pairs)]), bounds=Bounds(0, 1),
        constraints=LinearConstraint(
            vstack([once, opened, few]).tocsr(),
            np.concatenate([np.ones(shapes), np.full(pairs, -np.inf), [0]]),
            np.concatenate([np.ones(shapes), np.zeros(pairs), [count]]),
        ),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )  # fmt: skip
    if found.x is None:
        return known, False
    chosen = np.flatnonzero(found.x[:columns] > 0.5)
    is_cover = len(chosen) <= count and bool(np.all(fits[:, chosen].any(axis=1)))
    return (chosen, found.status == 0) if is_cover else (known, False)


def _scaled(cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return costs of about 1: HiGHS takes differences below 1e-6 for none."""
    largest = float(cost.max(initial=0.0))
    return cost / largest * 1e3 if largest > 0 else cost


def _greedy(fits: Mask, cost: Losses) -> NDArray[np.intp]:
    left, chosen = np.ones(len(fits), bool), list[int]()
    while left.any():
        gain = fits[left].sum(axis=0)
        spent = cost[left].sum(axis=0)
        # The most shapes, of these the least loss, of these the first.
        best = int(np.lexsort((np.arange(len(gain)), spent, -gain))[0])
        chosen.append(best)
        left &= ~fits[:, best]
    for column in list(chosen):  # what later ones made needless
        others = [c for c in chosen if c != column]
        if others and bool(np.all(fits[:, others].any(axis=1))):
            chosen = others
    return np.array(chosen, dtype=np.intp)


def _cover(loss: Losses, fits: Mask, columns: Sequence[int] | NDArray[np.intp],
           bound: float) -> Cover:  # fmt: skip
    chosen = np.sort(np.asarray(columns))
    among = np.where(fits[:, chosen], loss[:, chosen], np.inf)
    serves = chosen[np.argmin(among, axis=1)]
    return Cover(
        configs=tuple(sorted(set(serves.tolist()))), serves=tuple(serves.tolist()),
        is_exact=False, bound=bound, note="",
    )  # fmt: skip


def _with_note(cover: Cover, note: str, *, is_exact: bool) -> Cover:
    return Cover(
        configs=cover.configs, serves=cover.serves, is_exact=is_exact, bound=cover.bound, note=note
    )
