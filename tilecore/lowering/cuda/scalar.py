"""Scalar expressions of the tile IR as TIR for CUDA.

``bfloat16`` lies in memory as its bits, narrower floats as bytes; both are computed in float32 and
rounded by instructions. Functions are CUDA's own, with the accuracy of its documentation (table 14
of the programming guide), not the fast intrinsics.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi
from tvm import tirx as tir

from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    PAIRED,
    ROUNDED,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    Var,
)
from tilecore.ir.plain.halves import element_of
from tilecore.ir.values.conversion import nearest
from tilecore.lowering.cpu.functions import float8
from tilecore.lowering.cuda.instructions.base import C_TYPES, Instruction
from tilecore.lowering.cuda.instructions.math import fma_halves, rounded
from tilecore.lowering.cuda.integers import converted, hidden, literal, wrapped
from tilecore.lowering.cuda.narrow import narrow, widen
from tilecore.lowering.tir import index

if TYPE_CHECKING:
    from tilecore.lowering.cuda.builder import CudaBuilder

BITS = {"bfloat16": "uint16", **dict.fromkeys(float8.NAMES, "uint8")}
NIBBLES = {"int4": "int8", "uint4": "uint8"}  # computed in 8 bits, each in a byte but in tensors
LARGEST = {t: float(np.finfo(t).max) for t in ("float16", "float32")}  # of TVM's literals
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
WRAPPING = ("add", "sub", "mul", "shl")  # results may need more bits than integers have
FUNCTIONS = {
    "exp": "exp", "exp2": "exp2", "exp10": "exp10", "log": "log", "log2": "log2",
    "log10": "log10", "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh", "erf": "erf", "sin": "sin",
    "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "atan2": "atan2",
    "sinh": "sinh", "cosh": "cosh", "log1p": "log1p", "fmod": "fmod", "abs": "fabs",
    "floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc",
}  # fmt: skip


def memory_type(dtype: str) -> str:
    """Return the type an element has in memory."""
    return "uint8" if dtype in NIBBLES else BITS.get(dtype, dtype)


def value_type(dtype: str) -> str:
    """Return the type a loaded element is computed in."""
    return "float32" if dtype in BITS else NIBBLES.get(dtype, dtype)


def exchanged_type(dtype: str) -> str:
    """Return the type that lanes tell each other: integers of 32 bits and more, floats."""
    kind = DType(dtype)
    return "int32" if not kind.is_float and kind.bits < 32 else dtype


def from_memory(value: Any, dtype: str) -> Any:
    """Return a loaded value as it is computed with."""
    if dtype in NIBBLES:
        return _nibble(value, dtype)
    return widen(dtype).call(tir.Cast("uint32", value)) if dtype in BITS else value


def to_memory(value: Any, dtype: str) -> Any:
    """Return a computed value as it is stored; floats round to nearest even."""
    if dtype in NIBBLES:
        return tir.bitwise_and(convert(value, NIBBLES[dtype], "uint8"), tir.IntImm("uint8", 15))
    if dtype not in BITS:
        return value
    rounded_already = _bits_of(value, dtype)
    if rounded_already is not None:
        return rounded_already
    return tir.Cast(BITS[dtype], narrow(dtype).call(value))


def _bits_of(value: Any, dtype: str) -> Any:
    """Return the bits in memory that a value was widened from, None where it is another one."""
    args: Any = getattr(value, "args", ())
    if len(args) < 2 or getattr(args[0], "value", None) != widen(dtype).name:
        return None
    return args[1].value if isinstance(args[1], tir.Cast) else None


def bound(builder: CudaBuilder, value: Any, dtype: str) -> Any:
    """Return a computed value by name; of one that was rounded the bits, which are stored again."""
    bits = _bits_of(value, dtype) if dtype in BITS else None
    return builder.bind(value) if bits is None else from_memory(builder.bind(bits), dtype)


def _nibble(value: Any, dtype: str) -> Any:
    """Return the low 4 bits of a byte as a number."""
    kind = NIBBLES[dtype]
    low = tir.bitwise_and(tir.Cast(kind, value), tir.IntImm(kind, 15))
    if dtype == "uint4":
        return low
    eight = tir.IntImm(kind, 8)  # C shifts in 32 bits: a sign is not extended by shifting
    return tir.Cast(kind, tir.bitwise_xor(low, eight) - eight)


def convert(value: Any, source: str, target: str) -> Any:
    """Return a computed value of ``source`` as a computed value of ``target``."""
    if source == target:
        return value
    if target in BITS:
        return from_memory(to_memory(convert(value, source, "float32"), target), target)
    if target in NIBBLES:
        return _nibble(convert(value, source, NIBBLES[target]), target)
    if value_type(source) == target:
        return value
    if target == "bool":
        return differs(value, constant(0, source), source)
    kind = value_type(target)
    given = value_type(source)
    if given != "bool" and DType(given).is_integer and DType(kind).is_integer:
        return converted(value, given, kind)
    if kind == "float16" and DType(given).is_integer and DType(given).ends[1] > LARGEST[kind]:
        value = hidden(value, given)  # TVM stops where it finds that it may be too large
    return tir.Cast(kind, value)


def differs(a: Any, b: Any, dtype: str) -> Any:
    """Return ``a != b``, which holds for NaN."""
    if not DType(dtype).is_float:
        return tir.NE(a, b)
    return _compared("ne", a, b, value_type(dtype))


def _compared(op: str, a: Any, b: Any, kind: str) -> Any:
    """Return a comparison of floats that TVM does not see through.

    Its simplifier takes numbers for ordered: it makes x == x true and not a < b into b <= a.
    """
    return tir.NE(_comparison(op, kind).call(a, b), tir.IntImm("int32", 0))


@functools.cache
def _comparison(op: str, kind: str) -> Instruction:
    ctype = C_TYPES[kind]
    headers = ("cuda_fp16.h",) if kind == "float16" else ()
    return Instruction(
        f"tc_compare_{op}_{kind}", f"{ctype} a, {ctype} b", f"return a {COMPARISONS[op]} b;",
        returns="int32", headers=headers,
    )  # fmt: skip


def constant(value: float | bool, dtype: str) -> Any:
    """Return a literal, as it is computed with."""
    kind = value_type(dtype)
    if kind == "bool":
        return tir.IntImm(kind, int(value))
    if not DType(dtype).is_float:
        return literal(int(value), kind)
    if kind == "float64" and math.isfinite(value) and float(f"{value:.15f}") != value:
        return _precise(float(value))
    value = nearest(value, dtype)  # TVM computes what comes of literals in float64
    if math.isfinite(value):
        return tir.FloatImm(kind, value)
    return _of_bits(kind, _special_bits(value))


def _precise(value: float) -> Any:
    """Return a literal of float64 by its bits: TVM writes 15 digits behind the point."""
    code = int(np.float64(abs(value)).view(np.uint64))
    positive = tir.reinterpret("float64", tir.IntImm("uint64", code))
    return positive if value > 0 else positive * tir.FloatImm("float64", -1.0)


def _of_bits(kind: str, bits: int) -> Any:
    """Return a literal by its bits as a float32."""
    return tir.Cast(kind, tir.reinterpret("float32", tir.IntImm("uint32", bits)))


def _special_bits(value: float) -> int:
    """Return the bits of an infinite float32, or of NaN (CUDA's names need headers)."""
    return 0x7FC00000 if math.isnan(value) else 0x7F800000 if value > 0 else 0xFF800000


def _could_cancel(a: Any, b: Any) -> bool:
    """Return whether TVM may take a - b apart: to it x - x is 0 and (x + y) - y is x."""
    is_sum = isinstance(a, (tir.Add, tir.Sub)) or isinstance(b, (tir.Add, tir.Sub))
    return is_sum or bool(tvm_ffi.structural_equal(a, b))


def _kept_zero(value: Any, kind: str) -> Any:
    """Return an operand; a 0 as TVM does not know it: x * 0 and 0 / x are NaN for some x."""
    if not isinstance(value, tir.FloatImm) or value.value != 0:
        return value
    return _of_bits(kind, 0x80000000 if math.copysign(1, value.value) < 0 else 0)


@dataclass(frozen=True, slots=True)
class Scope:
    """What names mean where an expression stands: values of variables, and how to load."""

    values: Mapping[Var, Any]
    load: Callable[[Load], Any]


def lower(expr: Expr, scope: Scope) -> Any:
    """Return ``expr`` as TIR."""
    match expr:
        case Const(value=value, dtype=dtype):
            return constant(value, dtype)
        case Var():
            return index(scope.values[expr])
        case Cast(a=a, dtype=dtype):
            return convert(lower(a, scope), a.dtype, dtype)
        case Unary():
            return _unary(expr, lower(expr.a, scope))
        case Binary():
            return _binary(expr, lower(expr.a, scope), lower(expr.b, scope))
        case Select(cond=cond, a=a, b=b):
            return tir.if_then_else(*(lower(e, scope) for e in (cond, a, b)))
        case Load():
            return scope.load(expr)
        case Call():
            return _call(expr, [lower(a, scope) for a in expr.args])
        case _:
            raise AssertionError(f"no lowering for {type(expr).__name__}")


def _unary(expr: Unary, value: Any) -> Any:
    if expr.op == "neg":
        is_float = expr.dtype.is_float
        if is_float:
            return value * constant(-1, expr.dtype)
        return operate("sub", constant(0, expr.dtype), value, expr.dtype)
    if expr.op == "not":
        return tir.Not(value)
    return wrapped(tir.bitwise_not, (value,), value_type(expr.dtype))


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": tir.Add, "sub": tir.Sub, "mul": tir.Mul, "min": tir.Min, "max": tir.Max,
    "eq": tir.EQ, "lt": tir.LT, "le": tir.LE, "gt": tir.GT, "ge": tir.GE,
    "and": tir.And, "or": tir.Or, "bitand": tir.bitwise_and, "bitor": tir.bitwise_or,
    "bitxor": tir.bitwise_xor, "shl": tir.shift_left, "shr": tir.shift_right,
}  # fmt: skip


def _binary(expr: Binary, a: Any, b: Any) -> Any:
    return operate(expr.op, a, b, expr.a.dtype)


def operate(op: str, a: Any, b: Any, dtype: str) -> Any:
    """Return ``a op b`` of two computed values of ``dtype``."""
    if not DType(dtype).is_float:
        if op == "ne":
            return tir.NE(a, b)
        if op in ("div", "pow"):
            return tir.truncdiv(a, b) if op == "div" else tir.pow(a, b)
        integral = {"floordiv": tir.FloorDiv, "mod": tir.FloorMod}
        if op in WRAPPING:
            return wrapped(_OPERATORS[op], (a, b), value_type(dtype))
        return integral[op](a, b) if op in integral else _OPERATORS[op](a, b)
    kind = value_type(dtype)
    a, b = _kept_zero(a, kind), _kept_zero(b, kind)
    match op:
        case "div":
            return tir.Div(a, b)
        case "floordiv":
            return function("floor", [tir.Div(a, b)], kind)
        case "mod":
            return a - function("floor", [tir.Div(a, b)], kind) * b
        case "pow":
            return function("pow", [a, b], kind)
        case "max" | "min":
            return function(f"f{op}", [a, b], kind)  # drops NaN on either side
        case "sub" if _could_cancel(a, b):
            return a + b * constant(-1, kind)  # a compiler of CUDA subtracts again
        case _ if op in COMPARISONS:
            return _compared(op, a, b, kind)
        case _:
            return _OPERATORS[op](a, b)


def _call(expr: Call, args: list[Any]) -> Any:
    kind = value_type(expr.dtype)
    if expr.name == "reinterpret":
        return from_memory(_reinterpreted(expr, args[0]), expr.dtype)
    if expr.name in ROUNDED:
        return rounded(expr.name, kind).call(*args)
    if expr.name in PAIRED:
        return fma_halves(str(element_of(expr.name))).call(*args)
    if expr.name == "sigmoid":
        one = constant(1, kind)
        return one / (one + function("exp", [constant(0, kind) - args[0]], kind))
    if expr.name == "abs" and not expr.dtype.is_float:
        negated = operate("sub", constant(0, kind), args[0], kind)
        return tir.if_then_else(tir.LT(args[0], constant(0, kind)), negated, args[0])
    return function(FUNCTIONS[expr.name], args, kind)


def _reinterpreted(expr: Call, value: Any) -> Any:
    """Return the bits of a computed value as they lie in memory in the type of ``expr``.

    Signed integers go through unsigned ones: TVM narrows those of 64 bits to what they hold, and
    writes the address of a literal.
    """
    (given,) = expr.args
    bits = to_memory(value, given.dtype)
    source, target = memory_type(given.dtype), memory_type(expr.dtype)
    if source == target:
        return bits
    unsigned = f"uint{DType(source).bits}"
    if isinstance(given, Const):
        code = np.array(given.value).astype(DType(given.dtype).numpy)
        if not DType(target).is_float:
            return tir.IntImm(target, int(code.view(target)))
        bits = tir.IntImm(unsigned, int(code.view(unsigned)))
    elif DType(source).is_float:
        return tir.reinterpret(target, bits)
    else:
        bits = tir.Cast(unsigned, bits)
    return tir.reinterpret(target, bits) if DType(target).is_float else tir.Cast(target, bits)


def function(name: str, args: list[Any], kind: str) -> Any:
    """Return a function of CUDA's library; halves are computed in float32."""
    if kind == "float16":
        wide = [tir.Cast("float32", a) for a in args]
        return tir.Cast("float16", function(name, wide, "float32"))
    return tir.call_pure_extern(kind, name if kind == "float64" else f"{name}f", *args)
