"""Division of float32 vectors by one number, by its reciprocal and a correction.

A divide instruction takes 16 cycles for 16 lanes. With a correctly rounded reciprocal r of y, one
correction of x * r gives the correctly rounded quotient (Markstein, "Computation of elementary
functions on the IBM RISC System/6000 processor"), as long as nothing leaves the normal range.
Vectors of which a lane might, zero dividends excepted, are divided by the instruction: results are
those of IEEE division throughout. LLVM moves what depends on the divisor alone out of the loop;
where every lane has a divisor of its own, the instruction is faster.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.lowering.cpu.functions import avx512
from tilecore.lowering.llvm_text import LANES, LlvmFunction, declarations
from tilecore.lowering.tir import vector_type

LEAST, MOST = 2.0**-40, 2.0**60  # of quotients and divisors: then dividends are above 2^-80
WHOLE = tuple(avx512.BITS)


def definitions(isa: str) -> dict[str, str]:
    """Return the functions, text by name."""
    found = {_name(lanes): _text(lanes, isa) for lanes in LANES if lanes > 1}
    return (
        {**avx512.declarations(), **declarations("fma", "float32", 3), **found}
        if isa == "avx512"
        else found
    )


def divide(x: Any, y: Any, lanes: int) -> Any:
    """Return ``x / y`` of float32 vectors, y being the same in all lanes.

    The functions must be defined in the module.
    """
    return tir.call_pure_extern(vector_type("float32", lanes), _name(lanes), x, y)


def _name(lanes: int) -> str:
    return f"tilecore_div_float32_x{lanes}"


def _text(lanes: int, isa: str) -> str:
    f = LlvmFunction(lanes)
    if isa != "avx512" or lanes < min(WHOLE):
        result = f.on_floats("fdiv", "%x", "%y")
    elif lanes in WHOLE:
        result = _quotient(f)
    else:
        half = lanes // 2
        result = f.joined(_part(f, 0, half), _part(f, 1, half), half)
    return f.text(_name(lanes), "float", "float", result, ("%x", "%y"))


def _part(f: LlvmFunction, number: int, lanes: int) -> str:
    kind = f"<{lanes} x float>"
    x, y = (f.part(value, number, lanes) for value in ("%x", "%y"))
    return f.line(f"call {kind} @{_name(lanes)}({kind} {x}, {kind} {y})")


def _quotient(f: LlvmFunction) -> str:
    kind, one = f.kind("float"), f.real(1.0)
    negative = f.line(f"fneg {kind} %y")
    r = avx512.reciprocal(f, "%y")
    r = f.fma(f.fma(negative, r, one), r, r)
    estimate = f.on_floats("fmul", "%x", r)
    corrected = f.fma(f.fma(negative, estimate, "%x"), r, estimate)
    is_zero = f.compare_floats("oeq", "%x", f.real(0.0))
    quotient = f.select(is_zero, estimate, corrected, "float")  # keeps the sign of zero
    fits = f.either(is_zero, _is_normal(f, corrected))
    f.branch(f.all_of(f.both(fits, _is_normal(f, "%y"))), "fast", "slow")
    f.label("slow")
    divided = f.on_floats("fdiv", "%x", "%y")
    f.go("done")
    f.label("fast")
    f.go("done")
    f.label("done")
    return f.line(f"phi {kind} [ {quotient}, %fast ], [ {divided}, %slow ]")


def _is_normal(f: LlvmFunction, value: str) -> str:
    size = f.as_float(f.masked(f.of_float(value), 0x7FFFFFFF))
    above = f.compare_floats("ogt", size, f.real(LEAST))
    return f.both(above, f.compare_floats("olt", size, f.real(MOST)))
