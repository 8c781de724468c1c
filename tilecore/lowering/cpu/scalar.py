"""Scalar and vector expressions of the tile IR as TIR.

A vector expression is an expression over one *vector variable* that stands for ``lanes``
consecutive values. ``bfloat16`` lives in memory as uint16, narrower floats as uint8, and all are
computed in float32 (TVM's LLVM code generator has none of them); 4-bit integers are computed in 8
bits, other types as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx as tir

from tilecore.errors import UnsupportedOnTarget
from tilecore.ir.arithmetic.lane_offsets import lane_values
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    NUM_THREADS,
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
    cast,
    int_value,
)
from tilecore.ir.values.conversion import nearest
from tilecore.lowering import rounding
from tilecore.lowering.cpu.functions import float8, quotients, vector_math
from tilecore.lowering.cpu.functions.division import divide
from tilecore.lowering.cpu.functions.wrapping import FLAGGED, PLAIN
from tilecore.lowering.tir import broadcast, index, ramp, vector_type

SUPPORTED = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "int4", "uint4", *float8.NAMES,
)  # fmt: skip
BYTES = dict.fromkeys((*float8.NAMES, "int4", "uint4"), "uint8")
NIBBLES = {"int4": "int8", "uint4": "uint8"}  # computed in 8 bits
PACKED = ("bfloat16", *float8.NAMES)  # computed in float32, rounded when stored


LIBM = ("tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "fmod")  # no vectors


def memory_type(dtype: str) -> str:
    """Return the type an element has in memory."""
    return {"bfloat16": "uint16", **BYTES}.get(dtype, dtype)


def value_type(dtype: str) -> str:
    """Return the type a loaded element is computed in."""
    return "float32" if dtype in PACKED else NIBBLES.get(dtype, dtype)


def from_memory(value: Any, dtype: str, lanes: int) -> Any:
    """Return a loaded value as it is computed with."""
    if dtype in NIBBLES:
        return _nibble(value, dtype, lanes)
    if dtype in BYTES:
        return float8.from_float8(value, dtype, lanes)
    if dtype != "bfloat16":
        return value
    wide = tir.Cast(vector_type("uint32", lanes), value)
    shifted = tir.shift_left(wide, broadcast(tir.IntImm("uint32", 16), lanes))
    return tir.reinterpret(vector_type("float32", lanes), shifted)


def moved_bits(value: Any) -> Any | None:
    """Return the bits of a float32 that only moves bfloat16 numbers, or None.

    Those are numbers as ``from_memory`` gives them, constants, and choices between such.
    """
    if isinstance(value, tir.Select):
        return _chosen_bits(tir.Select, value.condition, value.true_value, value.false_value)
    if isinstance(value, tir.Broadcast):
        bits = moved_bits(value.value)
        return None if bits is None else tir.Broadcast(bits, value.lanes)
    if isinstance(value, tir.FloatImm):
        (word,) = struct.unpack("<I", struct.pack("<f", value.value))
        return None if word & 0xFFFF else tir.IntImm("uint16", word >> 16)
    if not isinstance(value, tvm.ir.Call):
        return None
    name = value.op.name.rpartition(".")[2]
    if name == "if_then_else":
        return _chosen_bits(tir.if_then_else, *value.args)
    return _loaded_bits(value) if name == "reinterpret" else None


def _chosen_bits(choose: Callable[..., Any], cond: Any, a: Any, b: Any) -> Any | None:
    bits = moved_bits(a), moved_bits(b)
    return None if bits[0] is None or bits[1] is None else choose(cond, *bits)


def _loaded_bits(value: Any) -> Any | None:
    shifted = value.args[0]
    wide = shifted.a if isinstance(shifted, tir.LShift) else None
    if isinstance(wide, tir.Cast) and str(wide.value.ty).startswith("uint16"):
        return wide.value
    return None


def _nibble(value: Any, dtype: str, lanes: int) -> Any:
    """Return the low 4 bits of bytes as numbers."""
    kind = NIBBLES[dtype]
    four = broadcast(tir.IntImm(kind, 4), lanes)
    upper = tir.shift_left(tir.Cast(vector_type(kind, lanes), value), four)
    return tir.shift_right(upper, four)


def to_memory(value: Any, dtype: str, lanes: int) -> Any:
    """Return a computed value as it is stored; float32 to narrower rounds to nearest even."""
    if dtype in NIBBLES:
        bits = tir.Cast(vector_type("uint8", lanes), value)
        return tir.bitwise_and(bits, broadcast(tir.IntImm("uint8", 0xF), lanes))
    if dtype in BYTES:
        return float8.to_float8(value, dtype, lanes)
    if dtype != "bfloat16":
        return value
    moved = moved_bits(value)  # a copy, or a value rounded before
    if moved is not None:
        return moved
    bits = tir.reinterpret(vector_type("uint32", lanes), value)

    def constant(number: int) -> Any:
        return broadcast(tir.IntImm("uint32", number), lanes)

    odd = tir.bitwise_and(tir.shift_right(bits, constant(16)), constant(1))
    quiet = tir.bitwise_or(bits, constant(0x400000))
    is_nan = differs(value, value, "float32")
    rounded = tir.Select(is_nan, quiet, bits + constant(0x7FFF) + odd)
    return tir.Cast(vector_type("uint16", lanes), tir.shift_right(rounded, constant(16)))


def convert(value: Any, source: str, target: str, lanes: int) -> Any:
    """Return a computed value of ``source`` as a computed value of ``target``."""
    if value_type(source) == value_type(target):
        if target in PACKED and source != target:
            return from_memory(to_memory(value, target, lanes), target, lanes)
        is_wrapped = target in NIBBLES and source != target
        return _nibble(value, target, lanes) if is_wrapped else value
    if target == "bool":
        return differs(value, zero(source, lanes), source)
    if lanes > 1 and _is_cut_ramp(value, source, target):  # TVM would cut off its step's bits
        mask = (1 << DType(target).bits) - 1
        value = tir.bitwise_and(value, constant_of(mask, source, lanes))
    if _may_turn(source, target):
        bits = tir.Cast(vector_type(f"u{target}", lanes), value)
        return tir.reinterpret(vector_type(target, lanes), bits)
    kind = value_type(target)
    if source == "bool" and lanes > 1:  # a name for a conversion of truths is an error in TVM
        converted = tir.Select(value, constant_of(1, kind, lanes), constant_of(0, kind, lanes))
    else:
        converted = tir.Cast(vector_type(kind, lanes), value)
    if target in NIBBLES:
        return _nibble(converted, target, lanes)
    return convert(converted, "float32", target, lanes) if target in PACKED else converted


def _is_cut_ramp(value: Any, source: str, target: str) -> bool:
    """Return whether a conversion cuts bits off numbers that grow from lane to lane."""
    a, b = DType(value_type(source)), DType(target)
    if not (a.is_integer and b.is_integer) or b.bits >= min(a.bits, 32):
        return False
    while isinstance(value, (tir.Add, tir.Sub, tir.Mul)):
        value = value.b if isinstance(value.a, tir.Broadcast) else value.a
    return isinstance(value, tir.Ramp)


def _may_turn(source: str, target: str) -> bool:
    """Return whether a conversion of integers may change signs, which TVM does not know."""
    a, b = DType(value_type(source)), DType(target)
    if not (a.is_integer and b.is_integer and b.is_signed) or target in NIBBLES:
        return False
    return a.bits >= b.bits if not a.is_signed else b.bits < min(a.bits, 32)


def kept(value: Any, source: str, dtype: str, stored: str, lanes: int) -> Any:
    """Return a computed value of ``source``, rounded to ``dtype``, as one of ``stored``.

    What memory keeps rounded is rounded when it is stored: here it is not rounded a first time.
    """
    if stored in PACKED and dtype in (stored, "float32"):
        dtype = stored = "float32"
    return convert(convert(value, source, dtype, lanes), dtype, stored, lanes)


def differs(a: Any, b: Any, dtype: str) -> Any:
    """Return ``a != b``, which holds for NaN (TVM's NE on floats is false there).

    TVM compares bools as floats, which LLVM rejects.
    """
    if dtype == "bool":
        return tir.Or(tir.And(a, tir.Not(b)), tir.And(tir.Not(a), b))
    return tir.Not(tir.EQ(a, b)) if DType(dtype).is_float else tir.NE(a, b)


def zero(dtype: str, lanes: int = 1) -> Any:
    """Return 0 of a type, as it is computed with."""
    return constant_of(0, dtype, lanes)


def constant_of(value: float | bool, dtype: str, lanes: int = 1) -> Any:
    """Return a literal, as it is computed with."""
    kind = value_type(dtype)
    if DType(dtype).is_float:
        return broadcast(tir.FloatImm(kind, nearest(value, dtype)), lanes)
    return broadcast(tir.IntImm(kind, int(value)), lanes)


LoadFn = Callable[[Load, "Scope"], Any]
IntegerFn = Callable[[str, Expr, Any, Any, int], Any]
ResidueFn = Callable[[Expr, Any], Any]


@dataclass(frozen=True, slots=True)
class Scope:
    """What names mean where an expression stands.

    Attributes:
        values: TIR value of each Var (the first lane's value for the vector variable).
        load: lowers an element access.
        integers: gives the sum, difference or product of two integers of FLAGGED types, in lanes:
            the operation, the expression that it is the value of, and both sides.
        residue: gives, of the value of a remainder, a bit mask or a conversion to a narrow integer,
            what an index is made of.
        vector: the vector variable, or None for scalar code.
        lanes: how many values it stands for.
        lets: let-bound variables that are vectors here.
    """

    values: dict[Var, Any]
    load: LoadFn
    integers: IntegerFn
    residue: ResidueFn | None = None
    vector: Var | None = None
    lanes: int = 1
    vector_lets: frozenset[Var] = frozenset()

    def is_vector(self, expr: Expr) -> bool:
        """Return whether the value differs between lanes."""
        if self.vector is None:
            return False
        match expr:
            case Var():
                return expr is self.vector or expr in self.vector_lets
            case Binary(a=a, b=b):
                return self.is_vector(a) or self.is_vector(b)
            case Unary(a=a) | Cast(a=a):
                return self.is_vector(a)
            case Select(cond=c, a=a, b=b):
                return self.is_vector(c) or self.is_vector(a) or self.is_vector(b)
            case Load(indices=indices):
                return any(self.is_vector(i) for i in indices)
            case Call(args=args):
                return any(self.is_vector(x) for x in args)
            case _:
                return False


def lower(expr: Expr, scope: Scope) -> Any:
    """Return ``expr`` as TIR: a vector of ``scope.lanes`` where it differs between lanes."""
    match expr:
        case Const(value=value, dtype=dtype):
            return constant_of(value, dtype)
        case Var():
            value = scope.values[expr]
            if expr is scope.vector:
                return ramp(value, scope.lanes)
            return index(value)
        case Cast(a=a, dtype=dtype):
            value = convert(lower(a, scope), a.dtype, dtype, _lanes(a, scope))
            return value if scope.residue is None else scope.residue(expr, value)
        case Unary():
            return _unary(expr, scope)
        case Binary():
            value = _binary(expr, scope)
            return value if scope.residue is None else scope.residue(expr, value)
        case Select(cond=cond, a=a, b=b):
            lanes = _lanes(expr, scope)
            parts = [widen(lower(e, scope), e, scope, lanes) for e in (cond, a, b)]
            return tir.Select(*parts) if lanes > 1 else tir.if_then_else(*parts)
        case Load():
            return scope.load(expr, scope)
        case Call():
            return _call(expr, scope)
        case _:
            raise AssertionError(f"no lowering for {type(expr).__name__}")


def widen(value: Any, expr: Expr, scope: Scope, lanes: int) -> Any:
    """Return the lowered ``expr`` in ``lanes`` lanes."""
    return value if lanes == 1 or scope.is_vector(expr) else broadcast(value, lanes)


def _lanes(expr: Expr, scope: Scope) -> int:
    return scope.lanes if scope.is_vector(expr) else 1


def _unary(expr: Unary, scope: Scope) -> Any:
    value, lanes = lower(expr.a, scope), _lanes(expr, scope)
    if expr.op == "neg":
        if expr.dtype in FLAGGED:
            return scope.integers("sub", expr, zero(expr.dtype, lanes), value, lanes)
        return (
            zero(expr.dtype, lanes) - value
            if not expr.dtype.is_float
            else value * constant_of(-1, expr.dtype, lanes)
        )
    return tir.Not(value) if expr.op == "not" else tir.bitwise_not(value)


_TIR_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": tir.Add, "sub": tir.Sub, "mul": tir.Mul, "min": tir.Min, "max": tir.Max,
    "eq": tir.EQ, "lt": tir.LT, "le": tir.LE, "gt": tir.GT, "ge": tir.GE,
    "and": tir.And, "or": tir.Or, "bitand": tir.bitwise_and, "bitor": tir.bitwise_or,
    "bitxor": tir.bitwise_xor, "shl": tir.shift_left, "shr": tir.shift_right,
    "pow": tir.pow,
}  # fmt: skip


def _binary(expr: Binary, scope: Scope) -> Any:
    expr = quotients.simpler(expr)
    divisor = int_value(expr.b) if expr.op in ("floordiv", "mod") else None
    if divisor is not None and divisor < 0:
        return lower(cast(quotients.by_negative(expr, divisor), expr.dtype), scope)
    lanes = _lanes(expr, scope)
    if lanes > 1 and expr.op in ("mod", "bitand") and scope.vector is not None:
        known = lane_values(expr, scope.vector, lanes)
        if known is not None:  # LLVM would compute the remainders of every vector
            each = [tir.IntImm(str(expr.dtype), x) for x in known]
            return tir.Shuffle(each, [tir.IntImm("int32", i) for i in range(lanes)])
    a, b = (widen(lower(e, scope), e, scope, lanes) for e in (expr.a, expr.b))
    is_float = expr.a.dtype.is_float
    if expr.op in PLAIN and expr.dtype in FLAGGED:
        return scope.integers(expr.op, expr, a, b, lanes)
    if expr.op == "div":
        is_shared = lanes > 1 and not scope.is_vector(expr.b)
        is_ours = is_shared and value_type(expr.dtype) == "float32"
        return divide(a, b, lanes) if is_ours else tir.Div(a, b)
    if expr.op in ("floordiv", "mod"):
        return quotients.divided(expr, a, b, lanes)
    if expr.op in ("max", "min") and is_float:
        # As fmax: NaN is dropped on either side (TIR's Max keeps it on the second).
        compare = tir.GT if expr.op == "max" else tir.LT
        return tir.Select(tir.Or(compare(b, a), differs(a, a, expr.a.dtype)), b, a)
    if expr.op == "ne":
        return differs(a, b, expr.a.dtype)
    if expr.op == "eq" and expr.a.dtype == "bool":
        return tir.Not(differs(a, b, "bool"))
    return _TIR_BINARY[expr.op](a, b)


_TIR_CALLS: dict[str, Callable[[Any], Any]] = {
    "sqrt": tir.sqrt, "abs": tir.abs, "floor": tir.floor, "ceil": tir.ceil,
    "round": tir.nearbyint, "trunc": tir.trunc,
}  # fmt: skip


def _call(expr: Call, scope: Scope) -> Any:
    if expr.name == NUM_THREADS:
        return tir.call_pure_extern("int32", "tilecore_threads")
    lanes, kind = _lanes(expr, scope), value_type(expr.dtype)
    args = [widen(lower(a, scope), a, scope, lanes) for a in expr.args]
    if expr.name == "reinterpret":
        return _reinterpret(args[0], expr.args[0].dtype, expr.dtype, lanes)
    if expr.name == "abs" and expr.dtype in FLAGGED:
        (value,) = args  # the least one is its own magnitude
        negative = scope.integers("sub", expr, zero(expr.dtype, lanes), value, lanes)
        return tir.Max(value, negative)
    if expr.name in ROUNDED:
        name = rounding.function_name(expr.name, kind, lanes)
        return tir.call_pure_extern(vector_type(kind, lanes), name, *args)
    narrow = kind == "float16"  # libm has no half functions: compute in float32
    if narrow:
        args = [tir.Cast(vector_type("float32", lanes), a) for a in args]
        kind = "float32"
    if expr.name in LIBM:
        name = expr.name if kind == "float64" else f"{expr.name}f"
        result = tir.call_pure_extern(kind, name, *args)
    else:
        result = _math(expr.name, args[0], kind, lanes)
    return convert(result, kind, expr.dtype, lanes)


def _reinterpret(value: Any, source: str, target: str, lanes: int) -> Any:
    bits = to_memory(value, source, lanes)
    if memory_type(source) != memory_type(target):
        bits = tir.reinterpret(vector_type(memory_type(target), lanes), bits)
    return from_memory(bits, target, lanes)


def _math(name: str, x: Any, kind: str, lanes: int) -> Any:
    if name in vector_math.FUNCTIONS:
        return vector_math.call(name, x, kind, lanes)
    return _TIR_CALLS[name](x)


def check_dtypes(dtypes: set[str], target: object) -> None:
    """Raise UnsupportedOnTarget for element types that this code generator does not have."""
    for dtype in sorted(dtypes):
        if dtype not in SUPPORTED:
            raise UnsupportedOnTarget(
                what=f"element type {dtype}",
                target=target,
                reason=f"supported: {', '.join(SUPPORTED)}",
            )
