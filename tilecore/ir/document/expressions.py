"""Expressions and statements made of checked parts: the node, or (expected, found)."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilecore.ir import nodes
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    ARITHMETIC,
    BINARY_OPS,
    BITWISE,
    CALLS,
    COMPARISONS,
    INT32,
    LOGICAL,
    PAIRED,
    ROUNDED,
    UNARY_OPS,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    holds,
)
from tilecore.ir.layout import Layout
from tilecore.ir.visitor import walk_expr

Fault = tuple[str, str]
ARITY: Mapping[str, int] = {
    **dict.fromkeys(BINARY_OPS, 2), **dict.fromkeys(UNARY_OPS, 1), "select": 3,
}  # fmt: skip
HINTS = ("swizzle", "layout", "registers", "wait_stores", "wait_products", nodes.LAUNCHES)
WORDS = ("var", "const", "load", "cast", "reinterpret", "call", *ARITY)
ARGUMENTS: Mapping[str, int] = {
    **dict.fromkeys(CALLS, 1),
    "atan2": 2,
    "fmod": 2,
    **ROUNDED,
    **PAIRED,
}
BOOL, FLOAT32 = DType("bool"), DType("float32")


def literal(value: Any) -> Const | None:
    """Return a literal that stands for itself; None: it is something else."""
    if isinstance(value, bool):
        return Const(value, BOOL)
    if isinstance(value, int) and holds("int32", value):
        return Const(value, INT32)
    if isinstance(value, float) and math.isfinite(value):
        return Const(value, FLOAT32)
    return None


def operation(word: str, operands: Sequence[Expr]) -> Expr | Fault:
    """Return the operation of its operands."""
    if word == "select":
        cond, a, b = operands
        if cond.dtype != BOOL or a.dtype != b.dtype:
            return "a bool and two values of one type", _types(operands)
        return Select(cond, a, b, a.dtype)
    a = operands[0]
    if word in UNARY_OPS:
        if (word == "not") != (a.dtype == BOOL) and not (word == "bitnot" and a.dtype == BOOL):
            return f"{'a bool' if word == 'not' else 'a number'} for `{word}`", str(a.dtype)
        if word == "bitnot" and a.dtype.is_float:
            return "an integer for `bitnot`", str(a.dtype)
        return Unary(word, a, a.dtype)
    return _binary(word, a, operands[1])


def _binary(word: str, a: Expr, b: Expr) -> Expr | Fault:
    if a.dtype != b.dtype:
        return f"two values of one type for `{word}`", _types((a, b))
    is_logical = word in LOGICAL
    if is_logical and a.dtype != BOOL:
        return f"two bools for `{word}`", _types((a, b))
    if word in ARITHMETIC and a.dtype == BOOL:
        return f"two numbers for `{word}`", _types((a, b))
    if word == "div" and not a.dtype.is_float:
        return "two floats for `div`", _types((a, b))
    if word in BITWISE and a.dtype.is_float:
        return f"two integers for `{word}`", _types((a, b))
    is_zero = isinstance(b, Const) and b.value == 0 and not b.dtype.is_float
    if word in ("floordiv", "mod") and is_zero:
        return "a divisor other than 0", "0"
    return Binary(word, a, b, BOOL if is_logical or word in COMPARISONS else a.dtype)


def converted(word: str, value: Expr, dtype: DType) -> Expr | Fault:
    """Return a value, or its bits, in another type."""
    if word == "cast":
        return Cast(value, dtype)
    if value.dtype.bits != dtype.bits or BOOL in (value.dtype, dtype):
        return f"a value of {dtype.bits} bits for {dtype}", str(value.dtype)
    return Call("reinterpret", (value,), dtype)


def called(name: Any, args: Sequence[Expr]) -> Expr | Fault:
    """Return a math function of its arguments."""
    if not isinstance(name, str) or name not in ARGUMENTS:
        return f"one of {', '.join(ARGUMENTS)}", repr(name)[:40]
    if len(args) != ARGUMENTS[name]:
        return f"{ARGUMENTS[name]} argument(s) of {name}", str(len(args))
    dtype = args[0].dtype
    if name in PAIRED:
        fits = all(a.dtype == "uint32" for a in args)
        return Call(name, tuple(args), dtype) if fits else (f"uint32 for {name}", _types(args))
    fits = dtype.is_float or (name == "abs" and dtype != BOOL)
    if not fits or any(a.dtype != dtype for a in args):
        return f"floats of one type for {name}", _types(args)
    return Call(name, tuple(args), dtype)


def leaves(expr: Expr) -> Iterator[Expr]:
    """Yield what an expression reads: vars and loads."""
    return (e for e in walk_expr(expr) if isinstance(e, Var | Load))


def form_faults(kind: type[nodes.Stmt], fields: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield what does not fit together among the fields of a statement."""
    if kind is nodes.KernelLaunch:
        yield from _launch_faults(fields)
    elif kind is nodes.Parallel:
        if len(fields["loop_vars"]) != len(fields["extents"]) or not fields["loop_vars"]:
            yield "as many extents as loop_vars", f"{len(fields['extents'])}"
    elif kind is nodes.Gemm:
        yield from _factor_faults(fields)
    elif kind is nodes.Exchange:
        least = 2 if fields["op"] in nodes.SHUFFLES else 1
        if not least <= len(fields["args"]) <= least + 1:
            yield f"{least} or {least + 1} args of {fields['op']}", f"{len(fields['args'])}"
        if not 0 <= fields.get("width", 32) <= 1024:
            yield "a width from 0 to 1024", f"{fields['width']}"
    elif kind in (nodes.Reduce, nodes.Scan):
        axes = fields["axes"] if kind is nodes.Reduce else (fields["axis"],)
        count = fields["src"].buffer.ndim
        if not all(0 <= axis < count for axis in axes) or len(set(axes)) != len(axes):
            yield f"different axes below {count}", f"{axes}"
    elif kind is nodes.Print and not _takes(fields["text"], len(fields.get("args", ()))):
        yield "as many {} in the text as args", f"{len(fields.get('args', ()))}"
    elif kind is nodes.Annotate and not _is_hint(fields["key"], fields["value"]):
        yield f"one of the hints {', '.join(HINTS)} with its value", f"`{fields['key'][:40]}`"
    yield from _target_faults(kind, fields)


def _factor_faults(fields: Mapping[str, Any]) -> Iterator[Fault]:
    factors, sharing = fields.get("factors", ()), fields.get("sharing", ())
    if len(factors) not in (0, 2) or len(sharing) != len(factors):
        yield "no factors, or those of a and of b", f"{len(factors)}, shared by {sharing}"
    for layout in ("in_chunks", "in_lanes"):
        if not factors and fields.get(layout, False):
            yield f"factors {layout.replace('_', ' ')}", "none"


def _is_hint(key: str, value: Any) -> bool:
    """Return whether a hint has the form that the language gives it."""
    match key, value:
        case "swizzle", {"panel_size": int() | Expr(), "order": "row" | "column" | "mlx",
                         "enable": bool()}:  # fmt: skip
            return len(value) == 3
        case "layout", Mapping():
            return all(
                isinstance(tile, nodes.Buffer)
                and isinstance(layout, Layout)
                and layout.shape == tile.static_shape
                for tile, layout in value.items()
            )
        case "registers" | "wait_stores", (int(), bool()):
            return int(value[0]) >= 0
        case nodes.LAUNCHES, "trigger" | "wait":
            return True
        case "wait_products", int():
            return value >= 0
        case _:
            return False


def _takes(text: str, count: int) -> bool:
    """Return whether a text holds just so many plain ``{}``."""
    try:
        fields = [rest for _, *rest in string.Formatter().parse(text) if rest[0] is not None]
    except ValueError:
        return False
    return len(fields) == count and all(tuple(f) == ("", "", None) for f in fields)


def _launch_faults(fields: Mapping[str, Any]) -> Iterator[Fault]:
    blocks, threads = len(fields["block_vars"]), fields.get("thread_vars", ())
    if blocks != len(fields["grid"]) or not 1 <= blocks <= 16:
        yield "as many block_vars as axes of the grid", f"{blocks}"
    if threads and len(threads) != len(fields["threads"]):
        yield "a thread_var per axis of threads, or none", f"{len(threads)}"
    if not all(1 <= size <= 64 for size in fields.get("cluster", ())):
        yield "a cluster of 1 to 64 blocks along each axis", f"{fields['cluster']}"


def _target_faults(kind: type[nodes.Stmt], fields: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a place that the statement writes and that does not hold what it writes."""
    if kind is nodes.Exchange and fields["dst"].ndim != 1:
        yield "a variable as dst", f"`{fields['dst'].name}`"
    if kind is nodes.Atomic and fields.get("prev") is not None and fields["prev"].ndim != 1:
        yield "a variable as prev", f"`{fields['prev'].name}`"
    for name in ("loop_var", "var"):
        if name in fields and kind is nodes.For and not fields[name].dtype.is_integer:
            yield "an integer loop_var", f"{fields[name].dtype}"


def _types(values: Sequence[Expr]) -> str:
    return ", ".join(str(v.dtype) for v in values)
