"""What computations know of torch and NumPy, by name: functions of nodes that return nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tilecore.computing import calls, graph, operands
from tilecore.computing.extents import Extent, present, varies
from tilecore.computing.functions import (
    arithmetic,
    composites,
    counts,
    letters,
    losses,
    norms,
    picked,
    put,
    views,
)
from tilecore.computing.functions.reductions import reduced
from tilecore.computing.functions.views import axes_of, axes_reduced
from tilecore.computing.graph import (
    CUT,
    FLOATS,
    INTEGER,
    MOST_EXACT,
    Node,
    OfTorch,
    computed_in,
    need_floats,
    pointwise,
)
from tilecore.errors import ShapeMismatch, SourceSpan, TypeMismatch, UnsupportedSyntax

Value = Any  # a Node, a number, or a plain argument
Function = Callable[..., Any]
UNARY = (
    "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "abs", "neg", "sin",
    "cos", "log1p", "floor", "ceil", "trunc",
)  # fmt: skip
INTEGERS_OF: Mapping[str, str] = MappingProxyType({  # by torch's methods
    "char": "int8", "byte": "uint8", "short": "int16", "int": "int32", "long": "int64",
})  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
LOGIC = ("and", "or", "xor", "not")
DEVICES = ("cpu", "cuda")
MOST_CACHED = 1 << 21  # elements of a matrix whose rows are summed up fastest
ALIASES: Mapping[str, str] = MappingProxyType({
    "absolute": "abs", "negative": "neg", "subtract": "sub", "multiply": "mul",
    "divide": "div", "true_divide": "div", "truediv": "div", "power": "pow", "less": "lt",
    "less_equal": "le", "greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne",
    "mm": "matmul", "bmm": "matmul", "_grouped_mm": "grouped_mm",
    "clip": "clamp", "concat": "cat", "concatenate": "cat",
    "swapaxes": "transpose", "swapdims": "transpose",
    "moveaxis": "movedim", "view": "reshape", "float_power": "pow",
    "linalg_vector_norm": "vector_norm", "expit": "sigmoid", "rint": "round", "fix": "trunc",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "invert": "bitwise_not",
})  # fmt: skip


# --- elements -----------------------------------------------------------------------------------


def _unary(op: str) -> Function:
    return lambda span, x: pointwise(op, x, span=span)


def _binary(op: str) -> Function:
    def function(span: SourceSpan, input: Value, other: Value) -> Value:
        return pointwise(op, _operand(input), _operand(other), span=span)

    return function


def _sum(op: str) -> Function:
    def function(span: SourceSpan, input: Value, other: Value, *, alpha: float = 1) -> Value:
        if alpha != 1:
            is_node = isinstance(other, Node)
            other = pointwise("mul", other, float(alpha), span=span) if is_node else other * alpha
        return pointwise(op, _operand(input), _operand(other), span=span)

    return function


def _comparison(op: str) -> Function:
    def function(span: SourceSpan, input: Value, other: Value) -> Value:
        return pointwise(op, _operand(input), _operand(other), span=span, dtype="bool")

    return function


def _logic(op: str, *, is_of_bits: bool = False) -> Function:
    """Return a function of truth; of numbers torch knows it, but for the bits of floats."""

    def function(span: SourceSpan, *given: Value) -> Value:
        for x in given:
            if not isinstance(x, Node) or x.dtype != "bool":
                found = x.dtype if isinstance(x, Node) else type(x).__name__
                is_float = found == "float" or found in FLOATS
                refused = TypeMismatch if is_of_bits and is_float else OfTorch
                raise refused(expected="comparisons", found=found)
        return pointwise(op, *given, span=span, dtype="bool")

    return function


def _operand(value: Value) -> Any:
    """Return a tensor or number as it is: whether numbers are integers decides on the result."""
    if isinstance(value, Node):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Extent):
        refused = OfTorch if isinstance(value, bool | complex) else TypeMismatch
        raise refused(expected="a tensor or a number", found=type(value).__name__)
    return value


def _where(span: SourceSpan, condition: Node, input: Value, other: Value) -> Node:
    """Return one of two values; of two integers an integer, as torch does."""
    if condition.dtype != "bool":
        raise TypeMismatch(expected="a comparison as condition", found=condition.dtype)
    given = [_operand(input), _operand(other)]
    floats = [x for x in given if isinstance(x, Node) and x.dtype in FLOATS]
    if floats or any(isinstance(x, float) for x in given):
        dtype = graph.of_arrays("where", (condition, *given)) or graph.common_dtype(floats)
    else:
        dtype = INTEGER
        for x in given:
            is_tensor = isinstance(x, Node)
            if not (x.dtype == INTEGER if is_tensor else -MOST_EXACT <= x <= MOST_EXACT):
                found = x.dtype if is_tensor else x
                raise OfTorch(
                    expected=f"numbers, or integers up to {MOST_EXACT}, to choose from",
                    found=found, hint="write them with a point: 1.0",
                )  # fmt: skip
    return pointwise("where", condition, *given, span=span, dtype=dtype)


def _relu(span: SourceSpan, x: Node) -> Node:
    return pointwise("maximum", x, 0, span=span)


def _silu(span: SourceSpan, x: Node) -> Node:
    return pointwise("mul", x, pointwise("sigmoid", x, span=span), span=span)


def _gelu(span: SourceSpan, x: Node, approximate: str = "none") -> Node:
    half = pointwise("mul", x, 0.5, span=span)
    if approximate == "tanh":
        cube = pointwise("mul", pointwise("mul", x, x, span=span), x, span=span)
        bent = pointwise("add", x, pointwise("mul", cube, 0.044715, span=span), span=span)
        inner = pointwise("mul", bent, math.sqrt(2 / math.pi), span=span)
        part = pointwise("tanh", inner, span=span)
    else:
        inner = pointwise("mul", x, math.sqrt(0.5), span=span)
        part = pointwise("erf", inner, span=span)
    return pointwise("mul", half, pointwise("add", part, 1.0, span=span), span=span)


def _dropout(span: SourceSpan, x: Node, p: float = 0.5, training: bool = True) -> Node:
    _ = span
    if training and p:
        raise UnsupportedSyntax(
            expected="functions that draw no random numbers",
            found="`dropout`",
            hint="training=False",
        )
    return x


def _masked_fill(span: SourceSpan, x: Node, mask: Node, value: Value) -> Node:
    if x.dtype not in FLOATS:
        raise OfTorch(expected=f"`masked_fill` of {', '.join(FLOATS)}", found=x.dtype, span=span)
    return _where(span, mask, float(value) if isinstance(value, int) else value, x)


def _clamp(span: SourceSpan, x: Node, min: Value = None, max: Value = None) -> Node:
    if min is not None:
        x = pointwise("maximum", x, _operand(min), span=span)
    return x if max is None else pointwise("minimum", x, _operand(max), span=span)


def _square(span: SourceSpan, x: Node) -> Node:
    return pointwise("mul", x, x, span=span)


def _round(span: SourceSpan, x: Node, *, decimals: int = 0) -> Node:
    """Return the nearest integers, even ones of two; or so many digits behind the point."""
    if not decimals:
        return pointwise("round", x, span=span)
    power = 10.0 ** abs(decimals)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    whole = pointwise("round", pointwise(there, x, power, span=span), span=span)
    return pointwise(back, whole, power, span=span)


def _frac(span: SourceSpan, x: Node) -> Node:
    return pointwise("sub", x, pointwise("trunc", x, span=span), span=span)


def _sign(span: SourceSpan, x: Node) -> Node:
    above, below = (pointwise(op, x, 0, span=span, dtype="bool") for op in ("gt", "lt"))
    numbers = (graph.cast(truth, x.dtype, span) for truth in (above, below))
    return pointwise("sub", *numbers, span=span)


def _reciprocal(span: SourceSpan, x: Node) -> Node:
    return pointwise("div", 1.0, x, span=span)


def _to(span: SourceSpan, x: Node, *given: Any, dtype: Any = None, **_: Any) -> Node:
    """Return it with another element type; devices and layouts stay as they are."""
    asked = [g for g in (*given, dtype) if g is not None and not isinstance(g, bool)]
    named = [g.dtype if isinstance(g, Node) else _dtype_name(g) for g in asked]
    if named and all(name.partition(":")[0] in DEVICES for name in named):
        return x
    wanted = next((name for name in named if name in (*FLOATS, *CUT)), None)
    if wanted is None:
        expected = f"an element type of {', '.join((*FLOATS, *CUT))}"
        raise OfTorch(expected=expected, found=", ".join(named) or "none")
    if wanted in CUT and x.dtype in CUT and x.kind != "pointwise":
        raise OfTorch(expected="numbers", found=x.dtype)  # float32 has not all of them
    return graph.cast(x, wanted, span)


def _dtype_name(given: Any) -> str:
    """Return the name of an element type of torch or NumPy."""
    if isinstance(given, type):
        return given.__name__
    return str(getattr(given, "name", given)).removeprefix("torch.")


# --- rows ---------------------------------------------------------------------------------------


def _reduction(op: str) -> Function:
    def function(
        span: SourceSpan, x: Node, dim: Any = None, keepdim: bool = False, *, axis: Any = None,
        keepdims: bool = False, dtype: Any = None,
    ) -> Node:  # fmt: skip
        is_count = op == "sum" and x.dtype == "bool" and _is_integer(dtype)
        if dtype is not None and not is_count:
            x = _to(span, x, dtype)
        axes = axes_of(x, axis) if dim is None else axes_reduced(x, dim)
        kept = keepdim or keepdims
        if is_count:
            return counts.counted(span, x, axes, kept)
        if op != "mean":
            return reduced(op, x, axes, kept, span)
        count = math.prod(x.shape[a] for a in axes)
        return reduced("sum", x, axes, kept, span, count)

    return function


def _is_integer(dtype: Any) -> bool:
    """Return whether sums of truth are integers: none is said, or torch's own."""
    return dtype is None or _dtype_name(dtype) == INTEGER


def _extreme(op: str, of_two: str) -> Function:
    """Return ``max`` or ``min``: of all elements, or of two tensors."""

    def function(span: SourceSpan, x: Node, other: Any = None, **named: Any) -> Any:
        if isinstance(other, Node):
            return pointwise(of_two, x, other, span=span)
        if other is not None or "dim" in named:  # of torch: values and places
            return _with_places(op, of_two[:3], span, x, named.pop("dim", other), **named)
        found: Node = _reduction(op)(span, x, **named)
        return found

    return function


def _with_places(
    op: str, name: str, span: SourceSpan, x: Node, dim: int, keepdim: bool = False
) -> Any:
    """Return what torch does of an axis: the ends and their places, by name."""
    import torch

    found = counts.place_of(op, span, x, dim, keepdim)
    return getattr(torch.return_types, name)(found)


def _softmax(
    span: SourceSpan,
    x: Node,
    dim: int | None = None,
    dtype: Any = None,
    *,
    axis: int | None = None,
    _stacklevel: int = 3,
) -> Node:
    if dtype is not None:
        x = _to(span, x, dtype)
    need_floats("softmax", x, span=span)
    if not x.shape:
        return graph.reshaped(_softmax(span, graph.reshaped(x, (1,), span)), (), span)
    (at,), last = axes_of(x, _axis_of_softmax(x, dim if axis is None else axis)), len(x.shape) - 1
    if at == last:
        return Node("softmax", "softmax", (x,), x.shape, x.dtype, span=span)
    found = _softmax(span, views.transpose(span, x, at, last), last)
    return views.transpose(span, found, at, last)


def _axis_of_softmax(x: Node, dim: int | None) -> int:
    """Return along which axis a softmax is; torch's own choice where none is named."""
    return (0 if len(x.shape) in (0, 1, 3) else 1) if dim is None else dim


def _log_softmax(
    span: SourceSpan, x: Node, dim: int | None = None, dtype: Any = None, *, _stacklevel: int = 3
) -> Node:
    if dtype is not None:
        x = _to(span, x, dtype)
    axes = axes_of(x, _axis_of_softmax(x, dim))
    top = reduced("amax", x, axes, True, span)
    low = pointwise("sub", x, top, span=span)
    total = reduced("sum", pointwise("exp", low, span=span), axes, True, span)
    return pointwise("sub", low, pointwise("log", total, span=span), span=span)


# --- products -----------------------------------------------------------------------------------


def _matmul(span: SourceSpan, input: Node, other: Node) -> Node:
    a, b = input, other
    if not isinstance(a, Node) or not isinstance(b, Node) or not a.shape or not b.shape:
        raise TypeMismatch(expected="two tensors with axes", found="a number")
    left = graph.reshaped(a, (1, *a.shape), span) if len(a.shape) == 1 else a
    right = graph.reshaped(b, (*b.shape, 1), span) if len(b.shape) == 1 else b
    found = _times_column(left, right, span) or graph.product(left, right, span)
    shape = list(found.shape)
    if len(b.shape) == 1:
        del shape[-1]
    if len(a.shape) == 1:
        del shape[-2 if len(b.shape) > 1 else -1]
    return graph.reshaped(found, shape, span) if tuple(shape) != found.shape else found


def _times_column(a: Node, b: Node, span: SourceSpan) -> Node | None:
    """Return a matrix times a single column on a CPU, without products of as many columns as lanes.

    Rows that caches hold are summed up by whole vectors; of long ones, and of matrices that lie
    transposed, the column is the row of a product that reads the matrix where it lies.
    """
    *_, rows, depth = a.shape
    is_column = not varies(b.shape[-1]) and b.shape[-1] == 1
    if not is_column or operands.is_on_gpu() or a.dtype != b.dtype or depth != b.shape[-2]:
        return None
    is_single = not varies(rows) and rows == 1
    turned = graph.reshaped(b, (*b.shape[:-2], 1, depth), span)
    is_small = present(rows) * present(depth) <= MOST_CACHED
    is_near = is_single or (is_small and graph.lies_in_rows(a))
    if is_near and a.dtype in ("float32", "float64"):
        terms = pointwise("mul", a, turned, span=span)
        return reduced("sum", terms, (len(terms.shape) - 1,), True, span)
    if is_single:
        return None
    found = graph.product(turned, views.transpose(span, a, -1, -2), span)
    return graph.reshaped(found, (*found.shape[:-2], rows, 1), span)


def _linear(span: SourceSpan, x: Node, weight: Node, bias: Node | None = None) -> Node:
    found = _matmul(span, x, views.transpose(span, weight, -1, -2))
    return found if bias is None else pointwise("add", found, bias, span=span)


def _addmm(
    span: SourceSpan, input: Node, mat1: Node, mat2: Node, *, beta: float = 1, alpha: float = 1
) -> Node:
    found = _matmul(span, mat1, mat2)
    if alpha != 1:
        found = pointwise("mul", found, float(alpha), span=span)
    scaled = input if beta == 1 else pointwise("mul", input, float(beta), span=span)
    return pointwise("add", found, scaled, span=span)


def _grouped_mm(
    span: SourceSpan, mat_a: Node, mat_b: Node, *, offs: Any = None, bias: Any = None,
    out_dtype: Any = None,
) -> Any:  # fmt: skip
    if offs is None and bias is None and len(mat_a.shape) == len(mat_b.shape) == 3:
        found = _matmul(span, mat_a, mat_b)
    elif bias is None and isinstance(offs, Node) and (len(mat_a.shape), len(mat_b.shape)) == (2, 3):
        found = graph.grouped(mat_a, mat_b, offs, span)
    else:
        import torch

        given, options = (mat_a, mat_b), {"offs": offs, "bias": bias, "out_dtype": out_dtype}
        return calls.called("grouped_mm", torch.nn.functional.grouped_mm, given, options, span)
    return found if out_dtype is None else _to(span, found, out_dtype)


def _attention(
    span: SourceSpan, query: Node, key: Node, value: Node, attn_mask: Node | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:  # fmt: skip
    if dropout_p:
        raise UnsupportedSyntax(
            expected="attention without dropout", found=f"dropout_p={dropout_p}"
        )
    if attn_mask is not None and attn_mask.dtype == "bool":
        attn_mask = pointwise("where", attn_mask, 0.0, -math.inf, span=span, dtype=query.dtype)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    return attention(
        query, key, value, factor, span, is_causal=is_causal, mask=attn_mask, is_grouped=enable_gqa
    )


def _attention_and_sums(
    span: SourceSpan, query: Node, key: Node, value: Node, is_causal: bool, scale: float | None
) -> tuple[Node, Node]:
    """Return attention, and the logarithm of the sum of exponentials of each query's scores."""
    found = _attention(span, query, key, value, is_causal=is_causal, scale=scale)
    kind, shape = computed_in(query.dtype), query.shape[:-1]
    sums = Node("beside", "logsumexp", (found,), shape, kind, span=span)
    return found, sums


def attention(
    q: Node, k: Node, v: Node, scale: float, span: SourceSpan, *, is_causal: bool = False,
    mask: Node | None = None, is_grouped: bool = False,
) -> Node:  # fmt: skip
    """Return softmax(q k^T * scale + mask) v.

    Args:
        q: (..., SQ, D).
        k: (..., SK, D).
        v: (..., SK, DV).
        scale: of the scores.
        span: where it is asked for.
        is_causal: query i sees the keys up to i, as in torch.
        mask: what is added to the scores, broadcast to (..., SQ, SK).
        is_grouped: the axis before SK may be a divisor of that of q (grouped queries).

    Raises:
        ShapeMismatch: the shapes do not fit together (TC201).
        TypeMismatch: the element types differ, or are none of numbers (TC202).
    """
    need_floats("attention", q, k, v, *([] if mask is None else [mask]), span=span)
    graph.need_narrow_on_gpu("attention", q, span=span)
    shared = _without_repeats(k), _without_repeats(v)
    if shared[0] is not k and shared[0].shape[:-2] == shared[1].shape[:-2]:
        (k, v), is_grouped = shared, True
    lead, key_lead = q.shape[:-2], k.shape[:-2]
    is_grouped = is_grouped or (len(lead) == len(key_lead) and key_lead[-1:] == (1,))
    if is_grouped and lead and key_lead and key_lead[-1] and lead[-1] % key_lead[-1] == 0:
        key_lead = (*key_lead[:-1], lead[-1])
    fits = lead == key_lead and k.shape[:-1] == v.shape[:-1] and q.shape[-1] == k.shape[-1]
    if not fits:
        raise ShapeMismatch(
            what="attention", expected="q (..., SQ, D), k (..., SK, D) and v (..., SK, DV)",
            found=f"{q.shape}, {k.shape} and {v.shape}", span=span,
        )  # fmt: skip
    if len({q.dtype, k.dtype, v.dtype}) > 1:
        found = f"{q.dtype}, {k.dtype} and {v.dtype}"
        raise TypeMismatch(expected="q, k and v of one element type", found=found, span=span)
    shape = (*lead, q.shape[-2], v.shape[-1])
    args = (q, k, v) if mask is None else (q, k, v, mask)
    attrs = MappingProxyType({"scale": scale, "is_causal": is_causal})
    return Node("attention", "attention", args, shape, q.dtype, attrs, span)


def _without_repeats(x: Node) -> Node:
    """Return the heads of keys that several heads of queries read: (..., KV, SK, D).

    Of ``x[:, :, None].expand(B, KV, N, SK, D).reshape(B, KV * N, SK, D)``, as models write it.
    """
    many = x.producers[0] if (x.kind, x.op) == ("view", "reshape") else x
    if (many.kind, many.op) != ("call", "expand"):
        return x
    once = many.producers[0]
    shape = (*(1,) * (4 - len(once.shape)), *once.shape)
    lead, heads, one, (rows, columns) = shape[:-4], shape[-4], shape[-3], shape[-2:]
    whole = (*lead, heads, many.shape[-3], rows, columns)
    is_repeated = one == 1 and many.shape == whole
    if not is_repeated or x.shape != (*lead, heads * many.shape[-3], rows, columns):
        return x
    return graph.reshaped(once, (*lead, heads, rows, columns), x.span)


def _join(name: str) -> Function:
    def function(
        span: SourceSpan, tensors: Sequence[Node], dim: int = 0, *, axis: int | None = None
    ) -> Node:
        return calls.joined(name, tensors, dim if axis is None else axis, span)

    return function


def _repeat_interleave(
    span: SourceSpan, x: Node, repeats: int, dim: int | None = None, **_: Any
) -> Node:
    """Return each slice along an axis so many times."""
    axis = 0 if dim is None else dim % len(x.shape)
    shape = (x.size,) if dim is None else x.shape
    apart = graph.reshaped(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]), span)
    whole = (*shape[: axis + 1], repeats, *shape[axis + 1 :])
    joined = (*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :])
    return graph.reshaped(calls.expanded(apart, whole, span), joined, span)


def _as(dtype: str) -> Function:
    return lambda span, x: _to(span, x, dtype)


CONVERSIONS = ("to", "type", "type_as", "astype", "float", "half", "bfloat16", *INTEGERS_OF)
# Functions of tensors of any element type, and those of truth.
OF_ALL = (
    "transpose", "t", "permute", "reshape", "unsqueeze", "squeeze", "flatten", "chunk", "split",
    "contiguous", "clone", "detach", "cat", "stack", "grouped_mm", "cross_entropy",
    "nll_loss", "gather", "scatter", "scatter_add", "index_put", "index_add", "getitem", "index",
    "index_select",
    *views.ALWAYS, *views.MAYBE,
)  # fmt: skip
OF_TRUTH = (
    "where", "masked_fill", "scaled_dot_product_attention", *CONVERSIONS, *counts.OF_TRUTH,
    *(f"{kind}_{op}" for kind in ("logical", "bitwise") for op in LOGIC),
)  # fmt: skip
FUNCTIONS: Mapping[str, Function] = MappingProxyType({
    **arithmetic.FUNCTIONS, **composites.FUNCTIONS, **counts.FUNCTIONS, **norms.FUNCTIONS,
    **losses.FUNCTIONS,
    **{op: _unary(op) for op in UNARY},
    **{op: _binary(op) for op in BINARY},
    "add": _sum("add"), "sub": _sum("sub"),
    **{op: _comparison(op) for op in COMPARISONS},
    **{f"logical_{op}": _logic(op) for op in LOGIC},
    **{f"bitwise_{op}": _logic(op, is_of_bits=True) for op in LOGIC},
    **{op: _reduction(op) for op in ("sum", "mean", "amax", "amin")},
    "max": _extreme("amax", "maximum"), "min": _extreme("amin", "minimum"),
    "where": _where, "masked_fill": _masked_fill, "dropout": _dropout,
    "cat": _join("cat"), "stack": _join("stack"),
    "expand": views.expand, "broadcast_to": views.expand, "repeat_interleave": _repeat_interleave,
    "relu": _relu, "silu": _silu, "gelu": _gelu, "clamp": _clamp,
    "square": _square, "reciprocal": _reciprocal, "to": _to, "type": _to, "astype": _to,
    "type_as": _to, "float": _as("float32"), "double": _as("float64"), "half": _as("float16"),
    "bfloat16": _as("bfloat16"),
    **{name: _as(dtype) for name, dtype in INTEGERS_OF.items()},
    "round": _round, "frac": _frac, "sign": _sign,
    "softmax": _softmax, "log_softmax": _log_softmax,
    "matmul": _matmul, "linear": _linear, "addmm": _addmm,
    "baddbmm": _addmm, "gather": picked.gather, "scatter": put.scatter,
    "getitem": picked.indexed, "index": picked.indexed, "index_select": picked.index_select,
    "scatter_add": put.scatter_add, "index_put": put.index_put, "index_add": put.index_add,
    "grouped_mm": _grouped_mm,
    "scaled_dot_product_attention": _attention, "attention_and_sums": _attention_and_sums,
    "einsum": letters.einsum,
    "transpose": views.transpose, "t": views.turned, "permute": views.permute,
    "reshape": views.reshape, "unsqueeze": views.unsqueeze, "squeeze": views.squeeze,
    "flatten": views.flatten,
    "chunk": views.chunk, "split": views.split, "split_with_sizes": views.split,
    "unbind": views.unbind, "select": views.select, "narrow": views.narrow,
    "movedim": views.movedim, "unflatten": views.unflatten, "view_as": views.as_other,
    "reshape_as": views.as_other, "expand_as": views.expand_as,
    "contiguous": views.same, "clone": views.same, "detach": views.same,
})  # fmt: skip
