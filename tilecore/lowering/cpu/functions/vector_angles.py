"""sin and cos of float32 vectors: reduction by quarter turns in float64, and a polynomial.

The rest of an argument below FAR is exact to a float32 in any quadrant; libm has the others, lane
by lane, as it has those of float64 (``vector_math_float64``). The coefficients are those of Cephes
(sinf.c), for |r| <= pi / 4.
"""

from __future__ import annotations

import math

from tilecore.lowering.cpu.functions.vector_parts import FORMATS
from tilecore.lowering.llvm_text import (
    LLVM_TYPES,
    LlvmFunction,
    declarations,
    intrinsic,
    kind_of,
    wide_literal,
)

NAMES = ("sin", "cos")
WHOLE = {"float32": (1, 4, 8, 16), "float64": (1, 2, 4, 8)}  # lanes that run as they are
SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
FAR = 2.0**30
ROUND = 1.5 * 2.0**52  # adding it leaves the nearest integer in the low bits of a float64
QUARTER = math.pi / 2
QUARTER_REST = 6.123233995736766e-17  # of the exact quarter turn


def definitions(dtype: str) -> dict[str, str]:
    """Return what the functions of a type call, text by name."""
    found = declarations("fma", "float64", 3)
    for name in NAMES:
        symbol, element = intrinsic(name, dtype, 1), LLVM_TYPES[dtype]
        found[symbol] = f"declare {element} @{symbol}({element})"
        found |= {_far_name(name, dtype, n): _far(name, dtype, n) for n in WHOLE[dtype]}
    return found


def of_quadrants(f: LlvmFunction, name: str) -> str:
    """Return sin or cos of ``%x``."""
    f.label("near")
    size = f.as_float(f.masked(f.of_float("%x"), ~FORMATS["float32"].sign))
    quadrant, rest = _reduced(f, size)
    squared = f.on_floats("fmul", rest, rest)
    sine = f.fma(f.polynomial(SIN, squared), f.on_floats("fmul", squared, rest), rest)
    cosine = f.fma(squared, f.real(-0.5), f.real(1.0))
    cosine = f.fma(f.polynomial(COS, squared), f.on_floats("fmul", squared, squared), cosine)
    return chosen(f, name, size, quadrant, sine, cosine)


def chosen(
    f: LlvmFunction, name: str, size: str, quadrant: str, sine: str, cosine: str
) -> str:  # fmt: skip
    """Return sin or cos of ``%x``, from both of the rest; libm's where ``size`` is large.

    ``quadrant``: the quarter turns, of which the low bits count. The block is "near".
    """
    if name == "cos":
        quadrant = f.plus(quadrant, 1)
    is_odd = f.compare("ne", f.masked(quadrant, 1), 0)
    found = f.of_float(f.select(is_odd, cosine, sine, f.element))
    form = FORMATS[f.dtype]
    found = f.on_ints("xor", found, f.left(f.masked(quadrant, 2), form.bits - 2))
    if name == "sin":
        found = f.on_ints("xor", found, f.masked(f.of_float("%x"), form.sign))
    near = f.as_float(found)
    is_far = f.both(
        f.compare_floats("oge", size, f.real(FAR)), f.compare_floats("olt", size, f.real(math.inf))
    )
    bits = f.line(f"bitcast {f.kind('i1')} {is_far} to i{f.lanes}")
    f.branch(f.line(f"icmp ne i{f.lanes} {bits}, 0"), "far", "done")
    f.label("far")
    kind = f.kind(f.element)
    exact = f.line(f"call {kind} @{_far_name(name, f.dtype, f.lanes)}({kind} %x)")
    found = f.select(is_far, exact, near, f.element)
    f.go("done")
    f.label("done")
    return f.line(f"phi {kind} [ {near}, %near ], [ {found}, %far ]")


def _reduced(f: LlvmFunction, size: str) -> tuple[str, str]:
    """Return the quarter turns in ``size``, of which the low bits count, and the rest."""
    kind, name = f.kind("double"), intrinsic("fma", "float64", f.lanes)

    def number(value: float) -> str:
        return f.constant("double", wide_literal(value))

    def fma(a: str, b: str, c: str) -> str:
        return f.line(f"call {kind} @{name}({kind} {a}, {kind} {b}, {kind} {c})")

    wide = f.change("fpext", size, "float", "double")
    rounded = fma(wide, number(1 / QUARTER), number(ROUND))
    turns = f.line(f"fsub {kind} {rounded}, {number(ROUND)}")
    rest = fma(turns, number(-QUARTER), wide)
    rest = fma(turns, number(-QUARTER_REST), rest)
    bits = f.change("bitcast", rounded, "double", "i64")
    return f.change("trunc", bits, "i64", "i32"), f.change("fptrunc", rest, "double", "float")


def _far_name(name: str, dtype: str, lanes: int) -> str:
    return f"tilecore_{name}_far_{dtype}_x{lanes}"


def _far(name: str, dtype: str, lanes: int) -> str:
    """Return a function that asks libm for every lane: it is called for few arguments."""
    element, libm = LLVM_TYPES[dtype], intrinsic(name, dtype, 1)
    kind, lines, value = kind_of(element, lanes), [], "zeroinitializer"
    if lanes == 1:
        lines, value = [f"  %y = call {element} @{libm}({element} %x)"], "%y"
    for i in range(lanes if lanes > 1 else 0):
        lines += [
            f"  %x{i} = extractelement {kind} %x, i32 {i}",
            f"  %y{i} = call {element} @{libm}({element} %x{i})",
            f"  %v{i} = insertelement {kind} {value}, {element} %y{i}, i32 {i}",
        ]
        value = f"%v{i}"
    body = "\n".join(lines)
    symbol = _far_name(name, dtype, lanes)
    return (
        f"define linkonce_odr hidden {kind} @{symbol}({kind} %x) noinline cold {{\n"
        f"{body}\n  ret {kind} {value}\n}}"
    )
