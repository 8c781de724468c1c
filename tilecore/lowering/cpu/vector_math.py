"""exp and exp2 of float32 vectors: range reduction and a polynomial (coefficients of Cephes).

LLVM has no vector code for these: TVM's would call libm once per lane. Errors stay within 2 units
in the last place of the exact value; subnormal results, overflow to infinity and NaN are those of
libm. Tails computed lane by lane use the same code: a value does not depend on its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx as tir

from tilecore.lowering.cpu.llvm_text import LANES, LlvmFunction
from tilecore.lowering.cpu.tir import vector_type

FUNCTIONS = ("exp", "exp2")
USERS = ("exp", "exp2", "exp10", "sigmoid")  # calls of the tile IR that are computed by these
LOG2_E = 1.44269504088896341
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # the first has 10 bits: multiples are exact
ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
ROUND_BITS = 0x4B400000
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 0.16666665459, 0.5)
EXP2 = (
    1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2,
    0.2402264791363012, 0.6931472028550421,
)  # fmt: skip


def definitions() -> dict[str, str]:
    """Return all functions, text by name."""
    return {
        _name(function, lanes): _text(function, lanes) for function in FUNCTIONS for lanes in LANES
    }


def call(function: str, value: Any, lanes: int) -> Any:
    """Return ``function`` of float32 values; the function must be defined in the module."""
    assert lanes in LANES
    return tir.call_pure_extern(vector_type("float32", lanes), _name(function, lanes), value)


def _name(function: str, lanes: int) -> str:
    return f"tilecore_{function}_float32_x{lanes}"


def _text(function: str, lanes: int) -> str:
    f = LlvmFunction(lanes)
    is_exp = function == "exp"
    x = _clamp(f, *((-104.0, 89.0) if is_exp else (-151.0, 129.0)))
    scaled = f.on_floats("fmul", x, f.real(LOG2_E)) if is_exp else x
    rounded = f.on_floats("fadd", scaled, f.real(ROUND))
    whole = f.on_floats("fsub", rounded, f.real(ROUND))
    if is_exp:
        high = f.on_floats("fmul", whole, f.real(LN2_HIGH))
        low = f.on_floats("fmul", whole, f.real(LN2_LOW))
        rest = f.on_floats("fsub", f.on_floats("fsub", x, high), low)
        value = _horner(f, EXP, rest)
        squared = f.on_floats("fmul", rest, rest)
        tail = f.on_floats("fadd", f.on_floats("fmul", value, squared), rest)
    else:
        rest = f.on_floats("fsub", x, whole)
        tail = f.on_floats("fmul", _horner(f, EXP2, rest), rest)
    value = f.on_floats("fadd", tail, f.real(1.0))
    power = f.plus(f.of_float(rounded), -ROUND_BITS)
    return f.text(_name(function, lanes), "float", "float", _times_power(f, value, power))


def _clamp(f: LlvmFunction, low: float, high: float) -> str:
    """Return the argument between two bounds; NaN stays."""
    kind = f.kind("float")
    below = f.line(f"fcmp olt {kind} %x, {f.real(low)}")
    raised = f.select(below, f.real(low), "%x", "float")
    above = f.line(f"fcmp ogt {kind} {raised}, {f.real(high)}")
    return f.select(above, f.real(high), raised, "float")


def _horner(f: LlvmFunction, coefficients: Sequence[float], x: str) -> str:
    value = f.real(coefficients[0])
    for coefficient in coefficients[1:]:
        value = f.on_floats("fadd", f.on_floats("fmul", value, x), f.real(coefficient))
    return value


def _times_power(f: LlvmFunction, value: str, power: str) -> str:
    """Return ``value * 2**power`` in two steps, so that neither factor leaves the range."""
    first = f.on_ints("ashr", power, f.number(1))
    for part in (first, f.on_ints("sub", power, first)):
        factor = f.as_float(f.left(f.plus(part, 127), 23))
        value = f.on_floats("fmul", value, factor)
    return value
