"""What integers put somewhere: few elements into rows (``scatter``), and rows that are added up.

Few elements of a row stand where positions are those named, which is a function of elements: the
gradient of the loss of a class needs no row of zeros. Rows that go to others (``index_add``, the
gradient of an embedding) are sorted by torch, and added up by a kernel (``added``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilecore.computing import calls, operands
from tilecore.computing.extents import varies
from tilecore.computing.functions.numbers import named
from tilecore.computing.functions.picked import are_few
from tilecore.computing.functions.reductions import THERE
from tilecore.computing.functions.views import axes_of
from tilecore.computing.graph import (
    FLOATS,
    MOST_EXACT,
    Node,
    OfTorch,
    pointwise,
    reshaped,
    sliced,
    viewed,
)
from tilecore.errors import SourceSpan

MOST_PUT = 8  # elements of a row: each is a comparison of all of it
HALF = 1 << 16  # numbers of 16 bits
LEAST_WIDTH = 16  # of rows that are added up: narrower ones fill no vector


def scatter(
    span: SourceSpan, input: Node, dim: int, index: Node, src: Any = None, *, value: Any = None
) -> Node:
    """Return a tensor with numbers, or a tensor's elements, where integers name places of an axis.

    Raises:
        OfTorch: these are many, or all else lies in memory by now: torch copies that (TC202).
    """
    put = value if src is None else src
    found = input
    for place, one in _places(input, dim, index, put, span):
        found = pointwise("where", place, one, found, span=span, dtype=input.dtype)
    return found


def scatter_add(span: SourceSpan, input: Node, dim: int, index: Node, src: Any) -> Node:
    """Return a tensor to which elements are added where integers name places of an axis.

    Raises:
        OfTorch: as of ``scatter``, where integers name no whole rows (TC202).
    """
    rows = _named_rows(input, dim, index, src)
    if rows is not None:
        with contextlib.suppress(OfTorch):
            return index_add(span, input, 0, reshaped(rows, (index.shape[0],), span), src)
    found = input
    for place, one in _places(input, dim, index, src, span):
        added = pointwise("where", place, one, 0.0, span=span, dtype=input.dtype)
        found = pointwise("add", found, added, span=span)
    return found


def _named_rows(x: Node, dim: int, index: Any, src: Any) -> Node | None:
    """Return the integers, one for each row of a tensor, that name a row for all of its elements.

    They are repeated along the other axes; None: they are others.
    """
    if not isinstance(index, Node) or (index.kind, index.op) != ("call", "expand"):
        return None
    (rows,) = index.producers
    count, *rest = index.shape
    is_whole = isinstance(src, Node) and src.shape == index.shape and rest == [*x.shape[1:]]
    are_repeated = rows.shape == (count, *[1] * len(rest)) and dim in (0, -len(x.shape))
    return rows if is_whole and are_repeated else None


def _places(
    x: Node, dim: int, index: Node, put: Any, span: SourceSpan
) -> list[tuple[Node, Any]]:  # fmt: skip
    """Return where each element of a row is put, as truth of all places, and what it is."""
    is_tensor = isinstance(put, Node)
    is_known = isinstance(index, Node) and x.dtype in FLOATS and len(x.shape) > 0
    if is_known and is_tensor:
        is_known = put.shape == index.shape and put.dtype == x.dtype
    elif is_known:
        is_known = isinstance(put, int | float) and not isinstance(put, bool)
    if not is_known or not is_made(x):
        raise _of_torch("few elements that are put among many computed ones")
    (axis,) = axes_of(x, dim)
    count, extent = index.shape[axis], x.shape[axis]
    if not are_few(x, axis, index) or count > MOST_PUT or varies(extent) or extent > MOST_EXACT:
        raise _of_torch("few elements that are put among many computed ones")
    named = calls.called("places", _checked, (index, axis, extent), {}, span)
    behind = (1,) * (len(x.shape) - axis - 1)
    positions = reshaped(_positions(extent, span), (extent, *behind), span)
    found = []
    for at, place in enumerate(named):
        is_there = pointwise("eq", place, positions, span=span, dtype="bool")
        found.append((is_there, _part(put, axis, at, span) if is_tensor else float(put)))
    return found


def is_made(x: Node) -> bool:
    """Return whether a kernel computes a tensor, or numbers stand for it, rather than memory."""
    return viewed(x).kind not in THERE or calls.is_constant(x)


def _part(x: Node, axis: int, at: int, span: SourceSpan) -> Node:
    """Return one of the elements of a tensor along an axis, which stays."""
    if x.shape[axis] == 1:
        return x
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    return sliced(x, (*[slice(None)] * axis, slice(at, at + 1)), shape, span)


def _positions(extent: int, span: SourceSpan) -> Node:
    """Return the positions along an axis."""
    from tilecore.computing.reading import creation  # which needs torch

    found = creation.created("arange", (extent,), {}, span)
    if found is None:  # of NumPy's arrays
        raise OfTorch(expected="tensors of torch", found="`scatter`", span=span)
    return found


def _checked(index: Any, axis: int, extent: int) -> tuple[Any, ...]:
    """Return places of an axis, one tensor for each that is put there; those that are not fail."""
    import torch

    if not index.is_meta:
        index = named(index, extent, axis)
    return tuple(part.contiguous() for part in index.to(torch.int32).split(1, axis))


# --- rows that are added up -----------------------------------------------------------------------


def index_put(
    span: SourceSpan, input: Node, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Node:
    """Return a tensor to whose parts others were added: those that integers name.

    Raises:
        OfTorch: they take the places of what is there; it lies in memory by now, which torch
            copies; integers name no leading axes; or not on a CPU (TC202).
    """
    found: list[Any] = list(indices) if isinstance(indices, list | tuple) else [indices]
    is_of_integers = all(isinstance(i, Node) and i.dtype in ("int32", "int64") for i in found)
    if not accumulate or not is_of_integers or len({i.shape for i in found}) != 1:
        raise _of_torch("parts that are added up")
    return _added(input, found, values, span, wraps=True)


def index_add(
    span: SourceSpan, input: Node, dim: int, index: Node, source: Node, *, alpha: float = 1
) -> Node:
    """Return a tensor to whose rows others were added: those that integers name.

    Raises:
        OfTorch: as of ``index_put``; or the axis is not the first one (TC202).
    """
    is_plain = isinstance(source, Node) and isinstance(index, Node) and len(index.shape) == 1
    if not is_plain or index.dtype not in ("int32", "int64") or dim not in (0, -len(input.shape)):
        raise _of_torch("rows that are added up")
    scaled = source if alpha == 1 else pointwise("mul", source, float(alpha), span=span)
    return _added(input, [index], scaled, span, wraps=False)


def _added(x: Node, indices: Sequence[Node], values: Any, span: SourceSpan, *, wraps: bool) -> Node:
    """Return a tensor to whose rows others were added; ``wraps``: -1 is the last row."""
    extents, rest = x.shape[: len(indices)], x.shape[len(indices) :]
    width, lead = math.prod(rest), indices[0].shape
    is_known = isinstance(values, Node) and x.dtype in FLOATS and values.dtype == x.dtype
    if not is_known or any(map(varies, x.shape)) or values.shape != (*lead, *rest):
        raise _of_torch("rows of one element type and known extents")
    now = operands.device()
    is_elsewhere = now is not None and now.type != "cpu"
    if width < LEAST_WIDTH or not is_made(x) or is_elsewhere:
        raise _of_torch("wide rows of what is computed, on a CPU")
    order, starts = calls.called("sorted_rows", _sorted, (extents, wraps, *indices), {}, span)
    rows = reshaped(values, (math.prod(lead), width), span)
    shape = (math.prod(extents), width)
    found = Node("added", "index_add", (rows, order, starts), shape, x.dtype, span=span)
    whole = reshaped(found, x.shape, span)
    return whole if _is_nothing(x) else pointwise("add", x, whole, span=span)


def _is_nothing(x: Node) -> bool:
    """Return whether a tensor is full of zeros."""
    from tilecore.computing.reading import creation  # which needs torch

    return creation.number_of(x) == 0


def _sorted(extents: Sequence[int], wraps: bool, *indices: Any) -> tuple[Any, Any]:
    """Return the numbers of rows by the row that they go to, and where those of each begin."""
    import torch

    count, like = math.prod(extents), indices[0]
    if like.is_meta:
        sizes = (like.numel(), count + 1)
        return tuple(torch.empty(n, dtype=torch.int32, device="meta") for n in sizes)
    flat: Any = 0
    for axis, (index, extent) in enumerate(zip(indices, extents, strict=True)):
        flat = flat * extent + named(index, extent, axis, wraps, is_index=wraps)
    flat = flat.flatten().long()
    starts = torch.zeros(count + 1, dtype=torch.int32)
    torch.cumsum(torch.bincount(flat, minlength=count), 0, dtype=torch.int32, out=starts[1:])
    return torch.from_numpy(_order_of(flat.numpy(), count)), starts


def _order_of(numbers: Any, count: int) -> Any:
    """Return in which order numbers below ``count`` are sorted, equal ones as they come (int32).

    NumPy counts numbers of 16 bits, and compares others.
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    if count > HALF:
        order = order[np.argsort((numbers[order] // HALF).astype(np.uint16), kind="stable")]
    return order.astype(np.int32)


def _of_torch(expected: str) -> OfTorch:
    return OfTorch(expected=expected, found="others")
