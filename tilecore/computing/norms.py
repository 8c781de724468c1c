"""Norms of vectors and of channels, and averages: functions made of sums, where torch has its own.

They are computed in float32 whatever the element type is, as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tilecore.computing import calls
from tilecore.computing.extents import varies
from tilecore.computing.graph import Node, pointwise, reshaped
from tilecore.computing.reductions import reduced
from tilecore.computing.views import axes_of
from tilecore.errors import SourceSpan

EUCLID = (None, "fro", 2)  # names of the root of a sum of squares
KNOWN = (*EUCLID, 1, math.inf)


def vector_norm(
    span: SourceSpan, x: Node, ord: Any = 2, dim: Any = None, keepdim: bool = False, *,
    dtype: Any = None,
) -> Any:  # fmt: skip
    """Return the root of the sum of squares, the sum of magnitudes or the largest of them."""
    if dtype is not None or ord not in KNOWN:
        import torch

        options = {"ord": ord, "dim": dim, "keepdim": keepdim, "dtype": dtype}
        return calls.called("vector_norm", torch.linalg.vector_norm, (x,), options, span)
    axes = _axes(x, dim)
    length = _rounded(_length(_exact(x, span), ord, axes, span), x.dtype, span)
    return length if keepdim else _without(length, axes, span)


def linalg_norm(
    span: SourceSpan, x: Node, ord: Any = None, dim: Any = None, keepdim: bool = False, *,
    dtype: Any = None,
) -> Any:  # fmt: skip
    """Return the norm of vectors; of matrices torch does."""
    if ord is None or isinstance(dim, int):
        return vector_norm(span, x, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
    import torch

    options = {"ord": ord, "dim": dim, "keepdim": keepdim, "dtype": dtype}
    return calls.called("linalg_norm", torch.linalg.norm, (x,), options, span)


def norm(
    span: SourceSpan, input: Node, p: Any = "fro", dim: Any = None, keepdim: bool = False,
    dtype: Any = None,
) -> Any:  # fmt: skip
    """Return what ``vector_norm`` does."""
    if dtype is not None or p not in KNOWN:
        import torch

        options = {"p": p, "dim": dim, "keepdim": keepdim, "dtype": dtype}
        return calls.called("norm", torch.norm, (input,), options, span)
    return vector_norm(span, input, p, dim, keepdim)


def normalize(
    span: SourceSpan, input: Node, p: Any = 2.0, dim: Any = 1, eps: float = 1e-12
) -> Any:  # fmt: skip
    """Return a tensor divided by its norm along an axis, which is ``eps`` at least."""
    if p not in KNOWN:
        import torch

        options = {"p": p, "dim": dim, "eps": eps}
        return calls.called("normalize", torch.nn.functional.normalize, (input,), options, span)
    exact = _exact(input, span)
    length = _at_least(eps, _length(exact, p, _axes(input, dim), span), span)
    scale = pointwise("div", 1.0, length, span=span)  # once per vector
    return _rounded(pointwise("mul", exact, scale, span=span), input.dtype, span)


def cosine_similarity(
    span: SourceSpan, x1: Node, x2: Node, dim: int = 1, eps: float = 1e-8
) -> Any:  # fmt: skip
    """Return the product of vectors divided by their norms, which are ``eps`` at least."""
    if len(x1.shape) != len(x2.shape) or x1.shape[dim] != x2.shape[dim]:
        import torch

        options = {"dim": dim, "eps": eps}
        return calls.called("cosine_similarity", torch.cosine_similarity, (x1, x2), options, span)
    one, two = _exact(x1, span), _exact(x2, span)
    axes = axes_of(x1, dim)
    found = reduced("sum", pointwise("mul", one, two, span=span), axes, True, span)
    for x in (one, two):
        length = _at_least(eps, _length(x, 2, axes, span), span)
        found = pointwise("div", found, length, span=span)
    found = _rounded(found, pointwise("mul", x1, x2, span=span).dtype, span)
    return _without(found, axes, span)


def instance_norm(
    span: SourceSpan, input: Node, running_mean: Node | None = None,
    running_var: Node | None = None, weight: Node | None = None, bias: Node | None = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Return each channel of each example with mean 0 and variance 1, scaled by channel."""
    count = math.prod(input.shape[2:])
    keeps = not use_input_stats or running_mean is not None or running_var is not None
    if keeps or (not varies(count) and count == 1):
        import torch

        given = (input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        return calls.called("instance_norm", torch.nn.functional.instance_norm, given, {}, span)
    exact = _exact(reshaped(input, (*input.shape[:2], count), span), span)
    centred = pointwise("sub", exact, reduced("sum", exact, [2], True, span, count), span=span)
    var = reduced("sum", pointwise("mul", centred, centred, span=span), [2], True, span, count)
    scale = pointwise("rsqrt", pointwise("add", var, float(eps), span=span), span=span)
    found = pointwise("mul", centred, scale, span=span)
    for op, part in (("mul", weight), ("add", bias)):
        if part is not None:
            found = pointwise(op, found, reshaped(part, (input.shape[1], 1), span), span=span)
    return reshaped(_rounded(found, input.dtype, span), input.shape, span)


def _average(name: str, rank: int) -> Callable[..., Any]:
    """Return torch's average of the last ``rank`` axes in parts: of a single part it is a mean."""

    def function(span: SourceSpan, input: Node, output_size: Any) -> Any:
        sizes = output_size if isinstance(output_size, list | tuple) else [output_size] * rank
        if list(sizes) != [1] * rank or len(input.shape) not in (rank + 1, rank + 2):
            import torch

            pool = getattr(torch.nn.functional, name)
            return calls.called(name, pool, (input, output_size), {}, span)
        axes = list(range(len(input.shape) - rank, len(input.shape)))
        return reduced(
            "sum", input, axes, True, span, math.prod(input.shape[axis] for axis in axes)
        )

    return function


def _axes(x: Node, dim: Any) -> list[int]:
    return axes_of(x, None if dim in ((), []) else dim)


def _length(x: Node, p: Any, axes: list[int], span: SourceSpan) -> Node:
    """Return the norm over some axes, which stay with an extent of 1."""
    if p in EUCLID:
        squares = pointwise("mul", x, x, span=span)
        return pointwise("sqrt", reduced("sum", squares, axes, True, span), span=span)
    op = "sum" if p == 1 else "amax"
    return reduced(op, pointwise("abs", x, span=span), axes, True, span)


def _without(x: Node, axes: list[int], span: SourceSpan) -> Node:
    return reshaped(x, [n for axis, n in enumerate(x.shape) if axis not in axes], span)


def _at_least(low: float, x: Node, span: SourceSpan) -> Node:
    return pointwise("maximum", x, float(low), span=span)


def _exact(x: Node, span: SourceSpan) -> Node:
    return _rounded(x, "float32", span)


def _rounded(x: Node, dtype: str, span: SourceSpan) -> Node:
    return x if x.dtype == dtype else pointwise("cast", x, span=span, dtype=dtype)


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "norm": norm, "vector_norm": vector_norm, "linalg_norm": linalg_norm, "normalize": normalize,
    "cosine_similarity": cosine_similarity, "instance_norm": instance_norm,
    **{f"adaptive_avg_pool{n}d": _average(f"adaptive_avg_pool{n}d", n) for n in (1, 2, 3)},
})  # fmt: skip
