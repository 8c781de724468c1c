"""Steps of attention's softmax over blocks of keys, as macros of tile programs."""

from __future__ import annotations

from typing import Any

import tilecore.language as T

LOG2_E = 1.44269504088896341
LOWEST = -1e30  # finite: a row may see nothing yet


def alloc_rows(rows: Any, count: int) -> list[Any]:
    """Return ``count`` fragments of a float32 per row."""
    return [T.alloc_fragment((rows,), "float32") for _ in range(count)]


@T.macro
def start_softmax(largest: Any, top: Any, total: Any, scale: float) -> None:
    """Set what a row has seen to nothing."""
    T.clear(total)
    T.fill(largest, LOWEST)
    T.fill(top, LOWEST * scale)


@T.macro
def take_scores(
    scores: Any, largest: Any, top: Any, shrink: Any, part: Any, total: Any, scale: float
) -> None:
    """Turn scores into weights relative to the largest so far; earlier sums shrink by ``shrink``.

    Args:
        scores: (rows, keys); in place.
        largest: (rows,), the largest score.
        top: (rows,), the same, scaled.
        shrink: (rows,), what earlier sums are multiplied by.
        part: (rows,), scratch.
        total: (rows,), sum of weights.
        scale: factor of scores that makes weights powers of 2.
    """
    raise_top(scores, largest, top, shrink, scale)
    weigh(scores, top, shrink, part, total, scale)


@T.macro
def raise_top(scores: Any, largest: Any, top: Any, shrink: Any, scale: float) -> None:
    """Take scores into the largest so far: the first half of ``take_scores``."""
    (rows, _) = scores.shape
    T.reduce_max(scores, largest, dim=1, clear=False)
    for i in T.Parallel(rows):
        shrink[i] = T.exp2(top[i] - largest[i] * scale)
        top[i] = largest[i] * scale


@T.macro
def weigh(scores: Any, top: Any, shrink: Any, part: Any, total: Any, scale: float) -> None:
    """Turn scores into weights: the second half of ``take_scores``."""
    rows, keys = scores.shape
    for i, j in T.Parallel(rows, keys):
        scores[i, j] = T.exp2(scores[i, j] * scale - top[i])
    T.reduce_sum(scores, part, dim=1)
    for i in T.Parallel(rows):
        total[i] = total[i] * shrink[i] + part[i]
