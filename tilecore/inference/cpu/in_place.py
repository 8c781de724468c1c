"""Copies that need not be made: what elements and reductions read of them lies in the tensor.

A tile costs a store for each element, and takes the room of caches twice. Products and scans
have forms of their own for what they read; tables stay tiles, as registers may hold them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilecore.inference.cpu.plan import TileSource
from tilecore.inference.cpu.regions import is_contiguous
from tilecore.inference.uses import Use
from tilecore.ir.analysis import kept_axes
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.expr import Expr, Var
from tilecore.ir.nodes import Buffer, Copy, Let, Reduce, Store
from tilecore.ir.visitor import loads, walk


def is_read_in_place(
    source: TileSource, readers: Sequence[Use], operands: Collection[Buffer]
) -> bool:
    """Return whether all ``readers`` of a tile may as well read its source, as fast.

    ``operands``: what products read; nests that compute these read their own tiles.
    """
    if not readers or not is_as_cheap(source.copy):
        return False
    if source.axes[-1] is None or source.limits[-1] is not None:
        return False
    return all(_is_as_near(use, source) and _reads_along_rows(use, operands) for use in readers)


def _is_as_near(use: Use, source: TileSource) -> bool:
    """Return whether a tile is read as often as it is copied, or lies in one piece in its tensor.

    What loops read again and again need not be far apart, nor converted each time.
    """
    copy, outer = source.copy, source.context.loops
    if use.context.loops == outer:
        return True
    is_piece = len(kept_axes(copy.dst)) == 1 and copy.src.buffer.dtype == copy.dst.buffer.dtype
    return is_piece and use.context.loops[: len(outer)] == outer


def is_as_cheap(copy: Copy) -> bool:
    """Return whether elements are as quickly read from a tensor as from a copy of it."""
    return is_float_copy(copy) and is_contiguous(copy.src)


def is_float_copy(copy: Copy) -> bool:
    """Return whether a copy moves floats as they are, or widens those of 16 bits."""
    source, tile = copy.src.buffer.dtype, copy.dst.buffer.dtype
    is_widened = source in ("float16", "bfloat16") and tile == "float32"
    return source.is_float and source.bits >= 16 and (source == tile or is_widened)


def _reads_along_rows(use: Use, operands: Collection[Buffer]) -> bool:
    stmt = use.stmt
    if isinstance(stmt, Reduce) and use.region is not None:  # columns are folded in a tile
        return use.role == "fold-src" and use.region.buffer.ndim - 1 in stmt.axes
    nest = use.context.nest
    if not isinstance(stmt, (Let, Store)) or use.role != "load" or nest is None:
        return False
    stores = [stmt] if isinstance(stmt, Store) else [s for s in walk(nest) if isinstance(s, Store)]
    if any(store.buffer in operands for store in stores):
        return False
    found = [load.indices for load in loads(stmt) if load.buffer is use.buffer]
    return all(_is_along(indices, nest.loop_vars[-1]) for indices in found)


def _is_along(indices: Sequence[Expr], var: Var) -> bool:
    """Return whether lanes of the variable read neighbours, or all of them one element."""
    forms = [linear(index) for index in indices]
    *outer, last = (None if form is None else form.coefficient(var) for form in forms)
    return all(factor == 0 for factor in outer) and last in (0, 1)
