"""Elements that integers pick out of rows (``gather``), and rows (``x[i]``, ``index_select``).

Of few elements of many only these are computed. The logarithms of a softmax are the case: of each
row one class is asked for, and no row is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilecore.computing import calls
from tilecore.computing.extents import varies
from tilecore.computing.functions.numbers import rows
from tilecore.computing.functions.reductions import THERE
from tilecore.computing.functions.views import axes_of
from tilecore.computing.graph import Node, OfTorch
from tilecore.errors import SourceSpan

FEW = 4  # of so many elements of a row at most one is picked


def gather(
    span: SourceSpan, input: Node, dim: int, index: Node, *, sparse_grad: bool = False
) -> Any:  # fmt: skip
    """Return the elements of a tensor that integers name along an axis."""
    import torch

    if input.shape and isinstance(index, Node) and not sparse_grad:
        (axis,) = axes_of(input, dim)
        if are_few(input, axis, index):
            return _Picking(axis, index, span).of(input)
    return calls.called("gather", torch.gather, (input, dim, index), {}, span)


def indexed(span: SourceSpan, input: Node, index: Any) -> Any:
    """Return the rows of a tensor that integers in the place of one of its axes name.

    Raises:
        OfTorch: something else stands in the index (TC202).
    """
    entries = list(index) if isinstance(index, list | tuple) else [index]
    while entries and entries[-1] in (Ellipsis, slice(None)):
        del entries[-1]
    *before, numbers = entries or [None]
    if not isinstance(numbers, Node) or any(e not in (None, slice(None)) for e in before):
        raise _of_torch(span)
    return _rows(input, len(before), numbers, True, span)


def index_select(span: SourceSpan, input: Node, dim: int, index: Node) -> Any:
    """Return the rows of a tensor that integers name along an axis.

    Raises:
        OfTorch: these are single elements (TC202).
    """
    if not input.shape or not isinstance(index, Node) or len(index.shape) != 1:
        raise _of_torch(span)
    return _rows(input, axes_of(input, dim)[0], index, False, span)


def _rows(x: Node, axis: int, numbers: Node, wraps: bool, span: SourceSpan) -> Any:
    if axis >= len(x.shape) - 1 or numbers.dtype not in ("int32", "int64"):
        raise _of_torch(span)
    return calls.called("rows", rows, (x, axis, numbers, wraps), {}, span)


def _of_torch(span: SourceSpan) -> OfTorch:
    expected = "integers that name rows along one axis"
    return OfTorch(expected=expected, found="others", span=span)


def are_few(x: Node, axis: int, index: Node) -> bool:
    """Return whether few elements of all rows are picked."""
    if len(index.shape) != len(x.shape):
        return False
    count, extent = index.shape[axis], x.shape[axis]
    whole = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return index.shape == whole and not varies(count) and extent >= FEW * count


@dataclass
class _Picking:
    """Picks elements of tensors of one shape along an axis."""

    axis: int
    index: Node
    span: SourceSpan
    _known: dict[Node, Node] = field(default_factory=dict)

    def of(self, x: Node) -> Node:
        """Return those of a tensor: what was made of others is made of those picked from them."""
        found = self._known.get(x)
        if found is None:
            found = self._known[x] = self._made(x) or self._gathered(x)
        return found

    def _made(self, x: Node) -> Node | None:
        """Return what a function of elements makes of picked ones; None: that is no less work."""
        if x.kind != "pointwise" or not (self._has_rows(x) or _is_there(x)):
            return None
        whole = [a.shape == x.shape for a in x.producers]
        if not all(self._is_of_row(a, x) for a, is_same in zip(x.producers, whole, strict=True)
                   if not is_same):  # fmt: skip
            return None
        args = (self.of(a) if isinstance(a, Node) and a.shape == x.shape else a for a in x.args)
        return Node("pointwise", x.op, tuple(args), self.index.shape, x.dtype, x.attrs, x.span)

    def _gathered(self, x: Node) -> Node:
        import torch

        given = (x, self.axis, self.index)
        found: Node = calls.called("gather", torch.gather, given, {}, self.span)
        return found

    def _is_of_row(self, a: Node, x: Node) -> bool:
        """Return whether all elements of a row have the same element of another tensor."""
        behind = len(x.shape) - self.axis
        return len(a.shape) < behind or a.shape[-behind] == 1

    def _has_rows(self, x: Node) -> bool:
        """Return whether something that is computed by row is among what a node is made of."""
        return any(
            self._has_rows(a) if a.shape == x.shape else not _is_there(a) for a in x.producers
        )


def _is_there(x: Node) -> bool:
    """Return whether all that a node is made of is stored."""
    if x.kind in ("pointwise", "view"):
        return all(map(_is_there, x.producers))
    return x.kind in THERE
