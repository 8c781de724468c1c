"""What trees cannot see from the values of knobs alone."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_SIZES = 12  # knobs whose products trees see, or large spaces would not fit into memory


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
