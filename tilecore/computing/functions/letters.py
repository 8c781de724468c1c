"""Products of tensors whose axes are named by letters (``einsum``).

Two tensors are multiplied at a time: as matrices where something is summed over, else element by
element. What one tensor alone is summed over is summed first.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilecore.computing import graph
from tilecore.computing.functions import views
from tilecore.computing.functions.reductions import reduced
from tilecore.computing.graph import Node, OfTorch, pointwise
from tilecore.errors import SourceSpan

REST = "..."


def einsum(span: SourceSpan, equation: str, *operands: Any) -> Node:
    """Return the sum of products of elements that an equation names, as torch has it.

    Raises:
        OfTorch: a letter stands twice in one operand, or broadcasts (TC202).
    """
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], list) else operands
    names, out = _names(equation, given)
    extents: dict[str, Any] = {}
    for letters, x in zip(names, given, strict=True):
        if len(set(letters)) != len(letters) or len(letters) != len(x.shape):
            raise OfTorch(expected="one letter per axis, each once", found=equation)
        for letter, extent in zip(letters, x.shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise OfTorch(expected=f"one extent of {letter}", found=equation)
    if not set(out) <= set(extents) or len(set(out)) != len(out):
        raise OfTorch(expected="letters of the operands in the result", found=equation)
    parts = list(zip(names, given, strict=True))
    letters, found = _summed(*parts[0], _needed(out, names[1:]), span)
    for at, (right, other) in enumerate(parts[1:], 1):
        kept = _needed(out, names[at + 1 :])
        right, other = _summed(right, other, kept | set(letters), span)
        letters, found = _summed(letters, found, kept | set(right), span)
        letters, found = _product((letters, found), (right, other), kept, extents, span)
    return graph.permuted(found, [letters.index(c) for c in out], span)


def _names(equation: str, given: Sequence[Any]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result, also of axes that dots stand for."""
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    names = inputs.split(",")
    if len(names) != len(given) or not all(isinstance(x, Node) for x in given):
        raise OfTorch(expected=f"{len(names)} tensors", found=f"{len(given)} operands")
    free = [c for c in string.ascii_letters if c not in equation]
    counts = [len(x.shape) - len(n) + len(REST) for n, x in zip(names, given, strict=True)]
    dots = [n for n, name in zip(counts, names, strict=True) if REST in name]
    rest = free[: max(dots, default=0)]
    if not arrow:
        plain = "".join(name.replace(REST, "") for name in names)
        out = REST * bool(dots) + "".join(sorted(c for c in plain if plain.count(c) == 1))
    filled = [
        name.replace(REST, "".join(rest[len(rest) - n :]))
        for n, name in zip(counts, names, strict=True)
    ]
    return filled, out.replace(REST, "".join(rest))


def _needed(out: str, others: Iterable[str]) -> set[str]:
    return set(out).union(*others)


def _summed(letters: str, x: Node, kept: set[str], span: SourceSpan) -> tuple[str, Node]:
    """Return a tensor summed over the axes of which nothing else has the letter."""
    axes = [axis for axis, c in enumerate(letters) if c not in kept]
    if not axes:
        return letters, x
    return "".join(c for c in letters if c in kept), reduced("sum", x, axes, False, span)


def _product(
    first: tuple[str, Node], second: tuple[str, Node], kept: set[str],
    extents: Mapping[str, Any], span: SourceSpan,
) -> tuple[str, Node]:  # fmt: skip
    """Return the product of two tensors, and its letters: of those in both, only some are kept."""
    (left, a), (right, b) = first, second
    batch = [c for c in left if c in right and c in kept]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    summed = [c for c in left if c in right and c not in kept]
    order = [*batch, *rows, *columns]
    if not summed:
        graph.need_floats("einsum", a, b, span=span)
        given = (_spread(x, letters, order, span) for letters, x in (first, second))
        return "".join(order), pointwise("mul", *given, span=span)
    a = _grouped(span, a, left, (batch, rows, summed), extents)
    b = _grouped(span, b, right, (batch, columns, summed), extents)
    found = graph.product(a, views.transpose(span, b, -1, -2), span)
    return "".join(order), graph.reshaped(found, [extents[c] for c in order], span)


def _spread(x: Node, letters: str, order: Sequence[str], span: SourceSpan) -> Node:
    """Return a tensor with an axis for each letter, of one element for those that it has not."""
    own = [c for c in order if c in letters]
    turned = graph.permuted(x, [letters.index(c) for c in own], span)
    extents = iter(turned.shape)
    return graph.reshaped(turned, [next(extents) if c in own else 1 for c in order], span)


def _grouped(
    span: SourceSpan, x: Node, letters: str, groups: Sequence[Sequence[str]],
    extents: Mapping[str, Any],
) -> Node:  # fmt: skip
    """Return a tensor of (batch..., rows, summed) with the letters of each group together."""
    order = [c for group in groups for c in group]
    turned = graph.permuted(x, [letters.index(c) for c in order], span)
    sizes = [math.prod(extents[c] for c in group) for group in groups[1:]]
    return graph.reshaped(turned, [*(extents[c] for c in groups[0]), *sizes], span)
