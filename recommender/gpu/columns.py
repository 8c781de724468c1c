"""Closed forms of a launch as arrays over configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.factored import constant
from recommender.straight_line import Noted
from tilecore.graph import Bindings, evaluate
from tilecore.graph.graph import Launch
from tilecore.ir.expr import ExprLike

Columns = Mapping[str, NDArray[np.int64]]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
MANY_CONFIGS = 8192  # beyond so many columns are held by combinations of knobs (``factored``)


def numbers(expr: ExprLike, columns: Columns) -> Floats:
    """Return a closed form's value for every config; ``Bindings`` keep it, to be read only."""
    if type(columns) is not Bindings:
        return _column(expr, columns)
    key = id(expr), numbers
    if key not in columns.computed:
        columns.computed[key] = _column(expr, columns)
        columns.held.append(expr)
    found: Floats = columns.computed[key]
    return found


def _column(expr: ExprLike, columns: Columns) -> Floats:
    like: Any = next(iter(columns.values()))
    found: Any = evaluate(expr, columns)
    column: Floats
    if len(like) > MANY_CONFIGS:
        column = (found if found.ndim else constant(found, like)).astype(np.float64)
    elif isinstance(like, Noted):
        noted: Any = found if isinstance(found, Noted) else np.full(1, found)
        column = noted.astype(np.float64)
    else:
        column = np.array(np.broadcast_to(found, (len(like),)), np.float64)
        column.flags.writeable = False
    return column


def block_threads(launch: Launch, columns: Columns) -> Floats:
    """Return the threads of a block, as the program has them."""
    found = numbers(1, columns)
    for extent in launch.threads:
        found = found * numbers(extent, columns)
    return found


def distinct_rows(*columns: NDArray[Any]) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
    """Return (the different rows of whole numbers, which of them each row is)."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        whole = column.astype(np.int64)
        key = key * (int(np.max(whole, initial=0)) + 1) + whole
    _, first, where = np.unique(key, return_index=True, return_inverse=True)
    rows = list(zip(*(column[first].astype(np.int64).tolist() for column in columns), strict=True))
    return rows, where
