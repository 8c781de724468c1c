"""Functions of elements that computations make of comparisons and plain arithmetic.

Signatures are torch's. What is NaN stays so, but for where torch says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tilecore.computing.functions.composites import elu
from tilecore.computing.functions.views import chunk
from tilecore.computing.graph import Node, OfTorch, pointwise, reshaped
from tilecore.errors import SourceSpan

SELU = 1.0507009873554805, 1.6732632423543772  # scale and alpha, as torch has them
FINITE = {"float32": (2 - 2**-23) * 2.0**127, "float16": 65504.0,
          "bfloat16": (2 - 2**-7) * 2.0**127, "float64": (2 - 2**-52) * 2.0**1023}  # fmt: skip


def lerp(span: SourceSpan, input: Node, end: Node, weight: Any) -> Node:
    """Return what lies between two tensors, from the nearer one on, as torch counts it."""
    apart = pointwise("sub", end, input, span=span)
    if isinstance(weight, Node):
        rest: Any = pointwise("sub", 1.0, weight, span=span)
        size = pointwise("abs", weight, span=span)
        is_near: Any = pointwise("lt", size, 0.5, span=span, dtype="bool")
    else:
        rest, is_near = 1.0 - weight, abs(weight) < 0.5
    near = pointwise("add", input, pointwise("mul", apart, weight, span=span), span=span)
    if is_near is True:
        return near
    far = pointwise("sub", end, pointwise("mul", apart, rest, span=span), span=span)
    if is_near is False:
        return far
    return pointwise("where", is_near, near, far, span=span, dtype=near.dtype)


def _added(op: str) -> Callable[..., Node]:
    def function(
        span: SourceSpan, input: Node, tensor1: Node, tensor2: Node, *, value: Any = 1
    ) -> Node:
        """Return a tensor plus a multiple of what two others make."""
        part = pointwise(op, tensor1, tensor2, span=span)
        if isinstance(value, Node) or value != 1:
            part = pointwise("mul", part, _real(value), span=span)
        return pointwise("add", input, part, span=span)

    return function


def clamp_min(span: SourceSpan, input: Node, min: Any) -> Node:
    """Return it, at least some number."""
    return pointwise("maximum", input, min, span=span)


def clamp_max(span: SourceSpan, input: Node, max: Any) -> Node:
    """Return it, at most some number."""
    return pointwise("minimum", input, max, span=span)


def hardtanh(span: SourceSpan, input: Node, min_val: float = -1.0, max_val: float = 1.0) -> Node:
    """Return it between two numbers."""
    return clamp_max(span, clamp_min(span, input, float(min_val)), float(max_val))


def threshold(span: SourceSpan, input: Node, threshold: float, value: float) -> Node:
    """Return it above a threshold, and a value elsewhere."""
    below = pointwise("le", input, float(threshold), span=span, dtype="bool")
    return pointwise("where", below, float(value), input, span=span, dtype=input.dtype)


def celu(span: SourceSpan, input: Node, alpha: float = 1.0) -> Node:
    """Return x, below 0 alpha * (exp(x / alpha) - 1)."""
    bent = elu(span, pointwise("mul", input, 1.0 / alpha, span=span), 1.0)
    return pointwise("mul", bent, float(alpha), span=span)


def selu(span: SourceSpan, input: Node) -> Node:
    """Return a multiple of elu that keeps mean and variance."""
    scale, alpha = SELU
    return pointwise("mul", elu(span, input, alpha), scale, span=span)


def softsign(span: SourceSpan, input: Node) -> Node:
    """Return x / (1 + |x|)."""
    below = pointwise("add", pointwise("abs", input, span=span), 1.0, span=span)
    return pointwise("div", input, below, span=span)


def tanhshrink(span: SourceSpan, input: Node) -> Node:
    """Return x - tanh(x)."""
    return pointwise("sub", input, pointwise("tanh", input, span=span), span=span)


def hardshrink(span: SourceSpan, input: Node, lambd: float = 0.5) -> Node:
    """Return it, and 0 in place of what is small."""
    size = pointwise("abs", input, span=span)
    is_small = pointwise("le", size, float(lambd), span=span, dtype="bool")
    return pointwise("where", is_small, 0.0, input, span=span, dtype=input.dtype)


def softshrink(span: SourceSpan, input: Node, lambd: float = 0.5) -> Node:
    """Return it nearer to 0."""
    return pointwise("sub", input, hardtanh(span, input, -lambd, lambd), span=span)


def glu(span: SourceSpan, input: Node, dim: int = -1) -> Node:
    """Return the first half times the sigmoid of the second."""
    if input.shape[dim] % 2:
        raise OfTorch(expected="an even extent", found=f"{input.shape[dim]}")
    first, second = chunk(span, input, 2, dim)
    return pointwise("mul", first, pointwise("sigmoid", second, span=span), span=span)


def fma(span: SourceSpan, a: Node, b: Any, c: Any) -> Node:
    """Return a * b + c, of which at least one is a tensor of floats."""
    return pointwise("add", pointwise("mul", a, _real(b), span=span), _real(c), span=span)


def outer(span: SourceSpan, input: Node, vec2: Node) -> Node:
    """Return the products of all pairs of elements of two vectors."""
    if len(input.shape) != 1 or len(vec2.shape) != 1:  # NumPy's are made vectors before
        raise OfTorch(expected="two vectors", found=f"{input.shape} and {vec2.shape}")
    return pointwise("mul", reshaped(input, (-1, 1), span), vec2, span=span)


def log10(span: SourceSpan, input: Node) -> Node:
    """Return the logarithm to the base of 10."""
    return pointwise("mul", pointwise("log", input, span=span), math.log10(math.e), span=span)


def _test(op: str, other: Any) -> Callable[..., Node]:
    def function(span: SourceSpan, input: Node) -> Node:
        """Return what a comparison says of the magnitude of a number."""
        size = pointwise("abs", input, span=span)
        return pointwise(op, size, size if other is None else other, span=span, dtype="bool")

    return function


isnan, isinf, isfinite = _test("ne", None), _test("eq", math.inf), _test("lt", math.inf)


def nan_to_num(
    span: SourceSpan, input: Node, nan: float | None = None, posinf: float | None = None,
    neginf: float | None = None,
) -> Node:  # fmt: skip
    """Return numbers in place of NaN and infinities: 0 and the largest of the type, if not said."""
    most = FINITE[input.dtype]
    ends = ((math.inf, most if posinf is None else posinf),
            (-math.inf, -most if neginf is None else neginf))  # fmt: skip
    found = pointwise(
        "where", isnan(span, input), float(nan or 0), input, span=span, dtype=input.dtype
    )
    for end, number in ends:
        is_end = pointwise("eq", input, end, span=span, dtype="bool")
        found = pointwise("where", is_end, float(number), found, span=span, dtype=input.dtype)
    return found


def _real(value: Any) -> Any:
    return float(value) if isinstance(value, int) else value


FUNCTIONS: Mapping[str, Callable[..., Node]] = MappingProxyType({
    "lerp": lerp, "addcmul": _added("mul"), "addcdiv": _added("div"),
    "clamp_min": clamp_min, "clamp_max": clamp_max, "hardtanh": hardtanh, "threshold": threshold,
    "_threshold": threshold,
    "celu": celu, "selu": selu, "softsign": softsign, "tanhshrink": tanhshrink,
    "hardshrink": hardshrink, "softshrink": softshrink, "glu": glu, "fma": fma,
    "log10": log10, "outer": outer,
    "isnan": isnan, "isinf": isinf, "isfinite": isfinite, "nan_to_num": nan_to_num,
})  # fmt: skip
