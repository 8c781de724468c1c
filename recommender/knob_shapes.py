"""What surrogates cannot see from the values of knobs alone."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_SIZES = 12  # knobs whose products trees see, or large spaces would not fit into memory
SAME = 1e-3  # of a column's range: two that differ less say the same


def shapes(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return features of configurations: what varies, products of two, how often 2 divides one.

    Args:
        values: a row per configuration, a column per knob (texts by their rank).
    """
    varied = [c for c in values.T if len(np.unique(c)) > 1] or [values[:, 0]]
    sizes = [c for c in varied if len(np.unique(c)) > 2 and c.min() >= 0 and c.max() < 2**53]
    sizes = sizes[:MAX_SIZES]
    logs = [np.log2(c + (c.min() == 0)) for c in sizes]
    products = [a + b for a, b in combinations(logs, 2)]
    whole = [c.astype(np.int64) for c in sizes if np.array_equal(c, np.round(c))]
    twos = [np.log2(np.maximum(c & -c, 1)) for c in whole]
    found: NDArray[np.float32] = np.stack([*varied, *products, *twos], axis=1, dtype=np.float32)
    return found


def places(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return configurations as points of a unit cube, where what is near is alike.

    A size counts by its logarithm and, unless that says the same, by how often 2 divides it:
    beside 64 and 128, 96 may be slow.

    Args:
        values: a row per configuration, a column per knob (texts by their rank).
    """
    columns: list[NDArray[np.float64]] = []
    for column in values.T:
        found = np.unique(column)
        if len(found) == 1:
            continue
        is_size = len(found) > 2 and found[0] >= 0 and found[-1] < 2**53
        columns.append(_unit(np.log2(column + (found[0] == 0)) if is_size else column))
        if is_size and np.array_equal(found, np.round(found)):
            whole = column.astype(np.int64)
            twos = _unit(np.log2(np.maximum(whole & -whole, 1)))
            if twos.any() and np.abs(twos - columns[-1]).max() > SAME:
                columns.append(twos)
    return np.stack(columns or [np.zeros(len(values))], axis=1)


def _unit(column: NDArray[Any]) -> NDArray[np.float64]:
    low, high = float(column.min()), float(column.max())
    scaled: NDArray[np.float64] = (column - low) / ((high - low) or 1.0)
    return scaled
