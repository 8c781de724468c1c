"""Functions that computations make of others: activations, and reductions beside sums and ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tilecore.computing.functions.reductions import reduced
from tilecore.computing.functions.views import axes_of, axes_reduced
from tilecore.computing.graph import Node, computed_in, pointwise, reshaped
from tilecore.errors import SourceSpan, UnsupportedSyntax

# Nearly the largest numbers: a row of infinities has a finite top
LARGEST = {"float32": 3.4e38, "float64": 1.79e308}


def softplus(span: SourceSpan, x: Node, beta: float = 1, threshold: float = 20) -> Node:
    """Return log(1 + exp(beta * x)) / beta, and x from where beta * x is above the threshold."""
    scaled = x if beta == 1 else pointwise("mul", x, float(beta), span=span)
    found = pointwise(
        "add", pointwise("maximum", scaled, 0.0, span=span), _bend(span, scaled), span=span
    )
    if (beta, threshold) == (1, 20) and x.dtype != "float64":
        return found  # there it is x, in float32
    found = pointwise("mul", found, 1.0 / beta, span=span)
    above = pointwise("gt", scaled, float(threshold), span=span, dtype="bool")
    return pointwise("where", above, x, found, span=span, dtype=x.dtype)


def log_sigmoid(span: SourceSpan, x: Node) -> Node:
    """Return log(1 / (1 + exp(-x)))."""
    return pointwise("sub", pointwise("minimum", x, 0.0, span=span), _bend(span, x), span=span)


def _bend(span: SourceSpan, x: Node) -> Node:
    """Return log(1 + exp(-|x|)): the distance of softplus from its two straight lines."""
    below = pointwise("neg", pointwise("abs", x, span=span), span=span)
    return pointwise("log1p", pointwise("exp", below, span=span), span=span)


def mish(span: SourceSpan, x: Node) -> Node:
    """Return x * tanh(softplus(x))."""
    return pointwise("mul", x, pointwise("tanh", softplus(span, x), span=span), span=span)


def elu(span: SourceSpan, x: Node, alpha: float = 1.0) -> Node:
    """Return x, below 0 alpha * (exp(x) - 1), by the tangent of x / 2: exact near 0, too."""
    half = pointwise("mul", pointwise("minimum", x, 0.0, span=span), 0.5, span=span)
    tangent = pointwise("tanh", half, span=span)
    rest = pointwise("sub", 1.0, tangent, span=span)
    low = pointwise("div", pointwise("mul", tangent, 2.0 * alpha, span=span), rest, span=span)
    return _positive_or(span, x, low)


def leaky_relu(span: SourceSpan, x: Node, negative_slope: float = 0.01) -> Node:
    """Return x, below 0 a part of it."""
    return _positive_or(span, x, pointwise("mul", x, float(negative_slope), span=span))


def _positive_or(span: SourceSpan, x: Node, low: Node) -> Node:
    above = pointwise("gt", x, 0.0, span=span, dtype="bool")
    return pointwise("where", above, x, low, span=span, dtype=x.dtype)


def relu6(span: SourceSpan, x: Node) -> Node:
    """Return x between 0 and 6."""
    return pointwise("minimum", pointwise("maximum", x, 0.0, span=span), 6.0, span=span)


def hardsigmoid(span: SourceSpan, x: Node) -> Node:
    """Return (x + 3) / 6 between 0 and 1."""
    share = relu6(span, pointwise("add", x, 3.0, span=span))
    return pointwise("mul", share, 1 / 6, span=span)


def hardswish(span: SourceSpan, x: Node) -> Node:
    """Return x times its hardsigmoid."""
    return pointwise("mul", x, hardsigmoid(span, x), span=span)


def logsumexp(span: SourceSpan, x: Node, dim: Any = None, keepdim: bool = False) -> Node:
    """Return log(sum(exp(x)))."""
    axes = axes_of(x, dim)
    most = LARGEST[computed_in(x.dtype)]
    top = pointwise("maximum", reduced("amax", x, axes, True, span), -most, span=span)
    top = pointwise("minimum", top, most, span=span)
    powers = pointwise("exp", pointwise("sub", x, top, span=span), span=span)
    logarithm = pointwise("log", reduced("sum", powers, axes, True, span), span=span)
    found = pointwise("add", logarithm, top, span=span)
    if keepdim:
        return found
    return reshaped(found, [n for axis, n in enumerate(x.shape) if axis not in axes], span)


def var(
    span: SourceSpan, x: Node, dim: Any = None, unbiased: bool | None = None,
    keepdim: bool = False, *, correction: float | None = None,
) -> Node:  # fmt: skip
    """Return the mean of the squares of what is left of x without its mean.

    Raises:
        UnsupportedSyntax: what the sum is divided by is not said: torch and NumPy differ (TC101).
    """
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None and unbiased is None:
        raise UnsupportedSyntax(
            expected="a variance with correction= or unbiased=", found="neither",
            hint="torch takes correction=1 where none is given, NumPy 0",
        )  # fmt: skip
    axes = axes_reduced(x, dim)
    count = math.prod(x.shape[a] for a in axes)
    less = correction if correction is not None else int(bool(unbiased))
    mean = reduced("sum", x, axes, True, span, count, computed_in(x.dtype))
    centred = pointwise("sub", x, mean, span=span)
    squares = pointwise("mul", centred, centred, span=span)
    return reduced("sum", squares, axes, keepdim, span, count - less, x.dtype)


def std(span: SourceSpan, x: Node, *given: Any, **named: Any) -> Node:
    """Return the root of the variance."""
    return pointwise("sqrt", var(span, x, *given, **named), span=span)


def var_mean(span: SourceSpan, x: Node, *given: Any, **named: Any) -> list[Node]:
    """Return the variance, and the mean."""
    return [var(span, x, *given, **named), _mean(span, x, *given, **named)]


def std_mean(span: SourceSpan, x: Node, *given: Any, **named: Any) -> list[Node]:
    """Return the root of the variance, and the mean."""
    return [std(span, x, *given, **named), _mean(span, x, *given, **named)]


def _mean(
    span: SourceSpan, x: Node, dim: Any = None, unbiased: bool | None = None,
    keepdim: bool = False, *, correction: float | None = None,
) -> Node:  # fmt: skip
    _ = unbiased, correction
    axes = axes_reduced(x, None if isinstance(dim, bool) else dim)
    return reduced("sum", x, axes, keepdim, span, math.prod(x.shape[a] for a in axes))


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "softplus": softplus, "log_sigmoid": log_sigmoid, "logsigmoid": log_sigmoid, "mish": mish,
    "elu": elu, "leaky_relu": leaky_relu, "relu6": relu6, "hardsigmoid": hardsigmoid,
    "hardswish": hardswish, "logsumexp": logsumexp, "var": var, "std": std,
    "var_mean": var_mean, "std_mean": std_mean,
})  # fmt: skip
