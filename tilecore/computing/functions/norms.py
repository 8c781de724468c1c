"""Norms of vectors, rows and channels, and averages: functions made of sums.

Sums that several kernels need are stored in float32, whatever the element type is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from tilecore.computing import calls
from tilecore.computing.extents import varies
from tilecore.computing.functions.reductions import reduced
from tilecore.computing.functions.views import axes_of, axes_reduced
from tilecore.computing.graph import (
    Node,
    OfTorch,
    cast,
    computed_in,
    need_floats,
    pointwise,
    reshaped,
)
from tilecore.errors import ShapeMismatch, SourceSpan, UnsupportedSyntax

EUCLID = (None, "fro", 2)  # names of the root of a sum of squares
KNOWN = (*EUCLID, 1, math.inf)
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}


def _by_torch(name: str, span: SourceSpan, *args: Any, **options: Any) -> Any:
    """Return what torch's function of a name makes: of arguments that kernels do not know."""
    import torch

    return calls.called(name.rpartition(".")[2], attrgetter(name)(torch), args, options, span)


# --- vectors ----------------------------------------------------------------------------------


def vector_norm(
    span: SourceSpan, x: Node, ord: Any = 2, dim: Any = None, keepdim: bool = False, *,
    dtype: Any = None,
) -> Any:  # fmt: skip
    """Return the root of the sum of squares, the sum of magnitudes or the largest of them."""
    if dtype is not None or ord not in KNOWN:
        return _by_torch(
            "linalg.vector_norm", span, x, ord=ord, dim=dim, keepdim=keepdim, dtype=dtype
        )
    axes = axes_reduced(x, dim)
    length = cast(_length(x, ord, axes, span), x.dtype, span)
    return length if keepdim else _without(length, axes, span)


def linalg_norm(
    span: SourceSpan, x: Node, ord: Any = None, dim: Any = None, keepdim: bool = False, *,
    dtype: Any = None,
) -> Any:  # fmt: skip
    """Return the norm of vectors; of matrices torch does."""
    if ord is None or isinstance(dim, int):
        return vector_norm(span, x, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
    return _by_torch("linalg.norm", span, x, ord=ord, dim=dim, keepdim=keepdim, dtype=dtype)


def norm(
    span: SourceSpan, input: Node, p: Any = "fro", dim: Any = None, keepdim: bool = False,
    dtype: Any = None,
) -> Any:  # fmt: skip
    """Return what ``vector_norm`` does."""
    if dtype is not None or p not in KNOWN:
        return _by_torch("norm", span, input, p=p, dim=dim, keepdim=keepdim, dtype=dtype)
    return vector_norm(span, input, p, dim, keepdim)


def normalize(span: SourceSpan, input: Node, p: Any = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    """Return a tensor divided by its norm along an axis, which is ``eps`` at least."""
    if p not in KNOWN:
        return _by_torch("nn.functional.normalize", span, input, p=p, dim=dim, eps=eps)
    length = _at_least(eps, _length(input, p, axes_reduced(input, dim), span), span)
    scale = pointwise("div", 1.0, length, span=span)  # once per vector
    return pointwise("mul", input, scale, span=span, dtype=input.dtype)


def cosine_similarity(
    span: SourceSpan, x1: Node, x2: Node, dim: int = 1, eps: float = 1e-8
) -> Any:  # fmt: skip
    """Return the product of vectors divided by their norms, which are ``eps`` at least."""
    if len(x1.shape) != len(x2.shape) or x1.shape[dim] != x2.shape[dim]:
        return _by_torch("cosine_similarity", span, x1, x2, dim=dim, eps=eps)
    axes, dtype = axes_of(x1, dim), pointwise("mul", x1, x2, span=span).dtype
    products = pointwise("mul", x1, x2, span=span, dtype=computed_in(x1.dtype, x2.dtype))
    found = reduced("sum", products, axes, True, span)
    for x in (x1, x2):
        length = _at_least(eps, _length(x, 2, axes, span), span)
        found = pointwise("div", found, length, span=span)
    return _without(cast(found, dtype, span), axes, span)


# --- rows and channels ------------------------------------------------------------------------


def layer_norm(
    span: SourceSpan, x: Node, normalized_shape: Sequence[int], weight: Node | None = None,
    bias: Node | None = None, eps: float = 1e-5, *_: Any,
) -> Node:  # fmt: skip
    """Return rows with mean 0 and variance 1, scaled by column; several axes are one row."""
    rows, *scales = _rows(x, normalized_shape, (weight, bias), span)
    found = _affine(_standardized(rows, eps, span), span, *scales)
    return reshaped(cast(found, x.dtype, span), x.shape, span)


def rms_norm(
    span: SourceSpan, x: Node, normalized_shape: Sequence[int], weight: Node | None = None,
    eps: float | None = None,
) -> Node:  # fmt: skip
    """Return rows divided by the root of their mean square, scaled by column."""
    need_floats("rms_norm", x, span=span)
    rows, scale = _rows(x, normalized_shape, (weight,), span)
    found = _scaled(rows, EPSILON[x.dtype] if eps is None else eps, span)
    return reshaped(cast(_affine(found, span, scale), x.dtype, span), x.shape, span)


def instance_norm(
    span: SourceSpan, input: Node, running_mean: Node | None = None,
    running_var: Node | None = None, weight: Node | None = None, bias: Node | None = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Return each channel of each example with mean 0 and variance 1, scaled by channel."""
    count = math.prod(input.shape[2:])
    keeps = not use_input_stats or running_mean is not None or running_var is not None
    if keeps or (not varies(count) and count == 1):
        given = (input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        return _by_torch("nn.functional.instance_norm", span, *given)
    rows = reshaped(input, (*input.shape[:2], count), span)
    scales = (x and reshaped(x, (input.shape[1], 1), span) for x in (weight, bias))
    found = _affine(_standardized(rows, eps, span), span, *scales)
    return reshaped(cast(found, input.dtype, span), input.shape, span)


def group_norm(
    span: SourceSpan, input: Node, num_groups: int, weight: Node | None = None,
    bias: Node | None = None, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Return groups of channels of each example with mean 0 and variance 1, scaled by channel."""
    need_floats("group_norm", input, span=span)
    examples, channels, *rest = input.shape
    if channels % num_groups:
        raise OfTorch(expected=f"channels in {num_groups} groups", found=f"{channels}")
    behind = (math.prod(rest),) if rest else ()
    groups = (num_groups, channels // num_groups)
    x, axes = reshaped(input, (examples, *groups, *behind), span), [2, 3][: 1 + len(behind)]
    count = groups[1] * math.prod(behind)
    mean = reduced("sum", x, axes, True, span, count, computed_in(x.dtype))
    centred = pointwise("sub", x, mean, span=span, dtype=mean.dtype)
    squares = pointwise("mul", centred, centred, span=span)
    scale = pointwise("add", reduced("sum", squares, axes, True, span, count), eps, span=span)
    found = pointwise("mul", centred, pointwise("rsqrt", scale, span=span), span=span)
    scales = (p and reshaped(p, (*groups, *(1 for _ in behind)), span) for p in (weight, bias))
    return reshaped(cast(_affine(found, span, *scales), input.dtype, span), input.shape, span)


def batch_norm(
    span: SourceSpan, x: Node, mean: Node, var: Node, weight: Node | None = None,
    bias: Node | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Node:  # fmt: skip
    """Return it scaled by known statistics of each channel, axis 1."""
    _ = momentum
    if training or mean is None or var is None:
        raise UnsupportedSyntax(
            expected="a batch norm of known statistics", found="one that changes them",
            hint="call the module's eval() before",
        )  # fmt: skip
    channels = (x.shape[1], *(1,) * (len(x.shape) - 2))
    mean, var = (reshaped(part, channels, span) for part in (mean, var))
    scale = pointwise("rsqrt", pointwise("add", var, float(eps), span=span), span=span)
    found = pointwise("mul", pointwise("sub", x, mean, span=span), scale, span=span)
    scales = (part and reshaped(part, channels, span) for part in (weight, bias))
    return _affine(found, span, *scales)


def _rows(
    x: Node, shape: Sequence[int], scales: Sequence[Node | None], span: SourceSpan
) -> list[Any]:
    """Return a tensor, and what scales it, with its last axes, of some shape, as one.

    Raises:
        ShapeMismatch: its last axes are of another shape (TC201).
    """
    wanted = tuple(int(n) for n in shape)
    if not wanted or x.shape[-len(wanted) :] != wanted:
        raise ShapeMismatch(
            what="normalization", expected=f"the last axes of {x.shape}", found=shape
        )
    parts = (x, *scales)
    return [
        part and reshaped(part, (*part.shape[: -len(wanted)], math.prod(wanted)), span)
        for part in parts
    ]


def _standardized(rows: Node, eps: float, span: SourceSpan) -> Node:
    """Return rows with mean 0 and variance 1, in float32."""
    last = len(rows.shape) - 1
    mean = reduced("sum", rows, [last], True, span, rows.shape[-1], computed_in(rows.dtype))
    return _scaled(pointwise("sub", rows, mean, span=span), eps, span)


def _scaled(rows: Node, eps: float, span: SourceSpan) -> Node:
    """Return rows with a mean square of 1, in float32."""
    squares = pointwise("mul", rows, rows, span=span, dtype=computed_in(rows.dtype))
    mean = reduced("sum", squares, [len(rows.shape) - 1], True, span, rows.shape[-1])
    scale = pointwise("rsqrt", pointwise("add", mean, float(eps), span=span), span=span)
    return pointwise("mul", rows, scale, span=span)


def _affine(
    x: Node, span: SourceSpan, weight: Node | None = None, bias: Node | None = None
) -> Node:
    """Return a tensor times a weight, plus a bias, where there are any."""
    for op, part in (("mul", weight), ("add", bias)):
        if part is not None:
            x = pointwise(op, x, part, span=span)
    return x


# --- averages ---------------------------------------------------------------------------------


def _average(name: str, rank: int) -> Callable[..., Any]:
    """Return torch's average of the last ``rank`` axes in parts: of a single part it is a mean."""

    def function(span: SourceSpan, input: Node, output_size: Any) -> Any:
        sizes = output_size if isinstance(output_size, list | tuple) else [output_size] * rank
        if list(sizes) != [1] * rank or len(input.shape) not in (rank + 1, rank + 2):
            return _by_torch(f"nn.functional.{name}", span, input, output_size)
        axes = list(range(len(input.shape) - rank, len(input.shape)))
        count = math.prod(input.shape[axis] for axis in axes)
        return reduced("sum", input, axes, True, span, count)

    return function


def _length(x: Node, p: Any, axes: list[int], span: SourceSpan) -> Node:
    """Return the norm over some axes, which stay with an extent of 1, in float32."""
    if p in EUCLID:
        squares = pointwise("mul", x, x, span=span, dtype=computed_in(x.dtype))
        return pointwise("sqrt", reduced("sum", squares, axes, True, span), span=span)
    size = pointwise("abs", x, span=span, dtype=computed_in(x.dtype))
    return reduced("sum" if p == 1 else "amax", size, axes, True, span)


def _without(x: Node, axes: list[int], span: SourceSpan) -> Node:
    return reshaped(x, [n for axis, n in enumerate(x.shape) if axis not in axes], span)


def _at_least(low: float, x: Node, span: SourceSpan) -> Node:
    return pointwise("maximum", x, float(low), span=span)


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "norm": norm, "vector_norm": vector_norm, "linalg_norm": linalg_norm, "normalize": normalize,
    "cosine_similarity": cosine_similarity, "layer_norm": layer_norm, "rms_norm": rms_norm,
    "instance_norm": instance_norm, "group_norm": group_norm, "batch_norm": batch_norm,
    **{f"adaptive_avg_pool{n}d": _average(f"adaptive_avg_pool{n}d", n) for n in (1, 2, 3)},
})  # fmt: skip
