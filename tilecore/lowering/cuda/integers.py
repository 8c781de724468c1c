"""Integers that wrap, as TIR for CUDA.

C computes with integers of less than 32 bits as with such of 32. NVIDIA's assembler takes negative
numbers and sizes of 16 bits (``neg.s16``, ``abs.s16``) for ones of which none was -32768, so the
compiler before it is not to find any: signs of 16 bits are extended by an instruction that it does
not look into. TVM works out between what numbers a value lies: it takes sums and products for
numbers that no type limits, and stops where a number is not one of the type. What an "and" or "or"
of bits gives, a call, or memory holds, is anything to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx as tir

from tilecore.ir.dtype import DType
from tilecore.lowering.cuda.instructions.convert import extend_int16

LITERAL = 2**63  # TVM's literals are less than this
UNKNOWN = (tvm.ir.TensorLoad, tir.BitwiseAnd, tir.BitwiseOr)


def literal(value: int, dtype: str) -> Any:
    """Return the literal of a type that has the same low bits."""
    kind = DType(dtype)
    value = kind.wrapped(value)
    if value >= LITERAL:
        return tir.bitwise_not(tir.IntImm(dtype, kind.ends[1] - value))
    return tir.IntImm(dtype, value)


def converted(value: Any, source: str, target: str) -> Any:
    """Return an integer of one type as one of another: its low bits."""
    if isinstance(value, tir.IntImm):
        return literal(int(value.value), target)
    kind, given = DType(target), DType(source)
    (low, high), (least, most) = kind.ends, given.ends
    if low <= least and most <= high:
        return tir.Cast(target, value)
    if target == "int16":
        low = value if given.bits <= 32 else tir.bitwise_and(value, tir.IntImm(source, 2**16 - 1))
        return tir.Cast(target, extend_int16().call(tir.Cast("int32", hidden(low, source))))
    # To TVM a number that is one of both types stays what it is, and others there are none.
    if given.bits <= kind.bits or (kind.is_signed and not given.is_signed):
        return hidden(tir.Cast(target, hidden(value, source)), target)
    if isinstance(value, UNKNOWN) or (kind.is_signed and kind.bits >= 32):
        return tir.Cast(target, value)
    wide = "int32" if given.bits < 32 else source
    bits = tir.bitwise_and(tir.Cast(wide, value), tir.IntImm(wide, 2**kind.bits - 1))
    if kind.is_signed:  # C shifts in 32 bits: a sign is not extended by shifting
        sign = tir.IntImm(wide, 2 ** (kind.bits - 1))
        bits = tir.bitwise_xor(bits, sign) - sign
    return tir.Cast(target, bits)


def wrapped(operator: Callable[..., Any], args: tuple[Any, ...], dtype: str) -> Any:
    """Return the result of an operation: as many bits of it as the type has."""
    kind = DType(dtype)
    if dtype == "bool":
        return operator(*args)
    if kind.is_signed and kind.bits >= 32:
        made = operator(*args)
        fits = _most_literal(made) <= kind.ends[1]
        return made if fits else operator(*(hidden(a, dtype) for a in args))
    if kind.bits >= 32:
        return hidden(operator(*(hidden(a, dtype) for a in args)), dtype)
    wide = "int32" if kind.is_signed else "uint32"
    return converted(operator(*(hidden(tir.Cast(wide, a), wide) for a in args)), wide, dtype)


def _most_literal(value: Any) -> int:
    """Return what no literal is larger than that TVM may make of an expression's literals."""
    if isinstance(value, tir.IntImm):
        return abs(int(value.value))
    if isinstance(value, (tir.Add, tir.Sub)):
        return _most_literal(value.a) + _most_literal(value.b)
    if isinstance(value, tir.Mul):
        return _most_literal(value.a) * _most_literal(value.b)
    return 1


def hidden(value: Any, dtype: str) -> Any:
    """Return an integer of which TVM knows nothing.

    To it (x * 6) // 3 is x * 2, and x + 5 is more than x.
    """
    if isinstance(value, (tir.IntImm, *UNKNOWN)):
        return value
    return tir.bitwise_or(value, tir.IntImm(dtype, 0))
