"""Which nests move 8x8 matrices of 16-bit elements between registers and shared memory at once.

Operands are loaded by ldmatrix, accumulators stored by stmatrix. Source: PTX ISA 9.0, sections
9.7.14.5.15 and 9.7.14.5.16: lane l holds elements (l / 4, 2 (l % 4) + e) of a matrix, and names the
address of row l % 8 of matrix l / 8; with .trans rows in memory are columns.
"""

from __future__ import annotations

from collections.abc import Callable

from tilecore.inference.gpu.distribution import Distribution, by_slot, by_thread
from tilecore.inference.gpu.loops import Access, Points, is_contiguous
from tilecore.inference.gpu.plan import MatrixMove
from tilecore.inference.gpu.shared import keeps_rows
from tilecore.ir.nodes import Buffer
from tilecore.ir.visitor import has_loads

ROW, COLUMNS = (by_thread(8, 4),), (by_thread(4, 1), by_slot(2, 1))
ROW_ELEMENTS = 8
WARP = 32


def matrix_move(
    points: Points,
    distribution: Distribution,
    moves: frozenset[str],
    aligned: Callable[[Access, Points, int], int],
) -> MatrixMove | None:
    """Return how a nest loads or stores by matrices, or None.

    Args:
        points: the nest.
        distribution: of its points.
        moves: what there are instructions for: "load", "store".
        aligned: elements that one access along a loop may move.
    """
    number = _only_move(points, moves)
    if number is None or points.nest is None or points.limits:
        return None
    if any(d.stride % WARP for d in distribution.copies):  # lanes of one warp do the same
        return None
    if any(distribution.is_padded(axis) for axis in range(len(points.shape))):
        return None
    rows = [n for n, digits in enumerate(distribution.axes) if digits[-1:] == ROW]
    columns = [n for n, digits in enumerate(distribution.axes) if digits[-2:] == COLUMNS]
    if len(rows) != 1 or len(columns) != 1:
        return None
    access = points.accesses[number]
    if access.under:  # matrices go whole
        return None
    for inner, is_transposed in ((columns[0], False), (rows[0], True)):
        if is_contiguous(access, points.names[inner]):
            if aligned(access, points, inner) < ROW_ELEMENTS:
                return None
            count = next(c for c in (4, 2, 1) if _come_together(distribution, 2 * c))
            return MatrixMove(number, count, rows[0], columns[0], is_transposed)
    return None


def _only_move(points: Points, moves: frozenset[str]) -> int | None:
    """Return the one access (by position) of a shared tile of 16-bit elements, if it can move.

    It stores what registers hold, or loads what a fragment is given.
    """
    shared = [n for n, a in enumerate(points.accesses) if _lies_in_shared(a.buffer, points)]
    stores = [a for a in points.accesses if a.is_store]
    if len(shared) != 1 or len(stores) != 1:
        return None
    access = points.accesses[shared[0]]
    buffer = access.buffer
    is_other = buffer.base is not None and not keeps_rows(buffer)
    if is_other or buffer.dtype.itemsize != 2:
        return None
    if ("store" if access.is_store else "load") not in moves:
        return None
    target = stores[0].buffer
    if not access.is_store and (target.scope != "fragment" or target in points.in_shared):
        return None
    is_plain = not any(map(has_loads, access.indices))
    return shared[0] if is_plain else None


def _lies_in_shared(buffer: Buffer, points: Points) -> bool:
    return buffer.scope == "shared" or buffer in points.in_shared


def _come_together(distribution: Distribution, slots: int) -> bool:
    """Return whether every ``slots`` in a row are the same values of digits, turn by turn."""
    if distribution.slots % slots:
        return False
    return all(
        d.stride * d.extent <= slots or d.stride % slots == 0 or slots % d.stride == 0
        for d in distribution.digits(in_thread=False)
    )
