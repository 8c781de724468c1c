"""Small integers as floats without the unit that converts them.

Added to the bits of a power of two as a float, an integer is the low bits of its significand; what
is left when the power is subtracted is the integer, exactly. NVIDIA's compiler takes I2F, which
runs on a unit of fewer lanes than additions. What is subtracted from the integer next (the zero
point of a weight) is subtracted with the power. Of what is float32 in the end, halves in between
are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx as tir
from tvm.ir import Call
from tvm.ir.prim.expr import BitwiseOr
from tvm.sym.analyzer import Analyzer, ConstIntBound

from tilecore.ir.dtype import DType
from tilecore.lowering.cuda.instructions.base import Instruction
from tilecore.lowering.cuda.instructions.convert import exact
from tilecore.lowering.cuda.narrow import narrow, widen

INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
SIGNED = ("int8", "int16")
QUICK = 89  # from sm_89 on the compiler has I2FP for float32 of all integers but these


@dataclass(frozen=True, slots=True)
class _Float:
    """A float to which integers are added.

    Attributes:
        bits: of it.
        value: the float.
        first: the least integer that may be added, of float16 after a shift.
        last: the greatest.
    """

    bits: int
    value: int
    first: int
    last: int


FLOATS = {
    "float16": _Float(0x6400, 2**10, 0, 2**10 - 1),
    "float32": _Float(0x4B400000, 3 * 2**22, -(2**16), 2**16),  # room on both sides
}


def convert_exactly(func: Any, capability: int) -> Any:
    """Return a PrimFunc in which additions make floats of small integers.

    Args:
        func: the PrimFunc.
        capability: of the GPU, 80 for sm_80.
    """
    analyzer = Analyzer()

    def note(bind: Any) -> None:
        """Note what a name lies between."""
        bounds = _bounds(bind.value, analyzer)
        if bounds is not None:
            analyzer.update(bind.var, ConstIntBound(*bounds))

    tvm_ffi.structural_walk(func, (tir.Bind, note))

    def direct(value: Any) -> Any:
        return _direct(value, analyzer)

    def less(value: Any) -> Any:
        """Return a converted integer less a number, ``float(x) - number``, or plus one."""
        number = value.b.value if isinstance(value.b, tir.FloatImm) else None
        if number is None or not number.is_integer():
            return value
        sign = 1 if isinstance(value, tir.Sub) else -1
        made = _exact(value.a, sign * int(number), analyzer, capability)
        return value if made is None else made

    def plain(value: Any) -> Any:
        made = _exact(value, None, analyzer, capability)
        return value if made is None else made

    found = tvm_ffi.structural_map(func, ((Call, tir.Cast), direct))
    found = tvm_ffi.structural_map(found, ((tir.Add, tir.Sub), less))
    return tvm_ffi.structural_map(found, (tir.Cast, plain))


def _direct(value: Any, analyzer: Any) -> Any:
    """Return an integer as float32 without the halves that it was, which hold it, too."""
    given: Any
    if isinstance(value, Call):
        bits = _argument(value, widen("bfloat16"))
        while isinstance(bits, tir.Cast):
            bits = bits.value
        given, most = _argument(bits, narrow("bfloat16")), 2**8
    else:
        given, most = value.value, 2**11
        if (str(value.ty), str(given.ty)) != ("float32", "float16"):
            return value
    bounds = _bounds(given.value, analyzer) if isinstance(given, tir.Cast) else None
    if bounds is None or not -most <= bounds[0] <= bounds[1] <= most:
        return value
    return tir.Cast("float32", given.value)


def _argument(value: Any, instruction: Instruction) -> Any | None:
    """Return what an instruction is called with, None: ``value`` is no call of it."""
    args: Sequence[Any] = value.args if isinstance(value, Call) else ()
    is_called = len(args) > 1 and getattr(args[0], "value", None) == instruction.name
    return args[1] if is_called else None


def _bounds(value: Any, analyzer: Any) -> tuple[int, int] | None:
    """Return what an integer lies between, both included, None: it is none, or wraps around."""
    if str(value.ty) not in INTEGERS:
        return None
    dtype = DType(str(value.ty))
    while isinstance(value, BitwiseOr) and isinstance(value.b, tir.IntImm) and not int(value.b):
        value = value.a  # hidden from TVM
    bounds = analyzer.const_int_bound(value)
    low, high = int(bounds.min_value), int(bounds.max_value)
    return None if low < dtype.ends[0] or high > dtype.ends[1] else (low, high)


def _exact(value: Any, less: int | None, analyzer: Any, capability: int) -> Any | None:
    """Return ``value - less``, None where that gains nothing, or ``value`` is no small integer."""
    kind = str(value.ty)
    if not isinstance(value, tir.Cast) or kind not in FLOATS:
        return None
    given, base = value.value, FLOATS[kind]
    bounds = _bounds(given, analyzer)
    if bounds is None or isinstance(given, tir.IntImm):
        return None
    is_quick = capability >= QUICK and str(given.ty) not in SIGNED
    if kind == "float32" and is_quick and less is None:
        return None
    low, high = bounds
    shift = max(0, base.first - low)
    less = less or 0
    power = base.value + shift + less
    if high + shift > base.last or abs(less) > base.last or power > 2 * base.value:
        return None
    number = given if str(given.ty) == "int32" else tir.Cast("int32", given)
    bits = tir.IntImm("int32", base.bits + shift)
    joins = tir.bitwise_or if low >= 0 else tir.Add
    made = exact(kind).call(tir.Cast("uint32", joins(number, bits)))
    return made - tir.FloatImm(kind, float(power))
