"""sin and cos of float32 vectors: reduction by quarter turns in float64, and a polynomial.

The rest of an argument below FAR is exact to a float32 in any quadrant; libm has the others, lane
by lane. The coefficients are those of Cephes (sinf.c), for |r| <= pi / 4.
"""

from __future__ import annotations

import math

from tilecore.lowering.cpu.llvm_text import LlvmFunction, kind_of, wide_literal

NAMES = ("sin", "cos")
WHOLE = (1, 4, 8, 16)  # lanes that run as they are
SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
FAR = 2.0**30
ROUND = 1.5 * 2.0**52  # adding it leaves the nearest integer in the low bits of a float64
QUARTER = math.pi / 2
QUARTER_REST = 6.123233995736766e-17  # of the exact quarter turn
SIGN = -(1 << 31)


def declarations(lanes: int) -> dict[str, str]:
    """Return what the functions of so many lanes call, text by name."""
    wide, fma = kind_of("double", lanes), _fma(lanes)
    found = {fma: f"declare {wide} @{fma}({wide}, {wide}, {wide})"}
    for name in NAMES:
        found[f"llvm.{name}.f32"] = f"declare float @llvm.{name}.f32(float)"
        found[_far_name(name, lanes)] = _far(name, lanes)
    return found


def of_quadrants(f: LlvmFunction, name: str) -> str:
    """Return sin or cos of ``%x``."""
    f.label("near")
    size = f.as_float(f.masked(f.of_float("%x"), ~SIGN))
    quadrant, rest = _reduced(f, size)
    squared = f.on_floats("fmul", rest, rest)
    sine = f.fma(f.polynomial(SIN, squared), f.on_floats("fmul", squared, rest), rest)
    cosine = f.fma(squared, f.real(-0.5), f.real(1.0))
    cosine = f.fma(f.polynomial(COS, squared), f.on_floats("fmul", squared, squared), cosine)
    if name == "cos":
        quadrant = f.plus(quadrant, 1)
    is_odd = f.compare("ne", f.masked(quadrant, 1), 0)
    found = f.of_float(f.select(is_odd, cosine, sine, "float"))
    found = f.on_ints("xor", found, f.left(f.masked(quadrant, 2), 30))
    if name == "sin":
        found = f.on_ints("xor", found, f.masked(f.of_float("%x"), SIGN))
    near = f.as_float(found)
    is_far = f.both(
        f.compare_floats("oge", size, f.real(FAR)), f.compare_floats("olt", size, f.real(math.inf))
    )
    bits = f.line(f"bitcast {f.kind('i1')} {is_far} to i{f.lanes}")
    f.branch(f.line(f"icmp ne i{f.lanes} {bits}, 0"), "far", "done")
    f.label("far")
    kind = f.kind("float")
    exact = f.line(f"call {kind} @{_far_name(name, f.lanes)}({kind} %x)")
    chosen = f.select(is_far, exact, near, "float")
    f.go("done")
    f.label("done")
    return f.line(f"phi {kind} [ {near}, %near ], [ {chosen}, %far ]")


def _reduced(f: LlvmFunction, size: str) -> tuple[str, str]:
    """Return the quarter turns in ``size``, of which the low bits count, and the rest."""
    kind = f.kind("double")

    def number(value: float) -> str:
        return f.constant("double", wide_literal(value))

    def fma(a: str, b: str, c: str) -> str:
        return f.line(f"call {kind} @{_fma(f.lanes)}({kind} {a}, {kind} {b}, {kind} {c})")

    wide = f.change("fpext", size, "float", "double")
    rounded = fma(wide, number(1 / QUARTER), number(ROUND))
    turns = f.line(f"fsub {kind} {rounded}, {number(ROUND)}")
    rest = fma(turns, number(-QUARTER), wide)
    rest = fma(turns, number(-QUARTER_REST), rest)
    bits = f.change("bitcast", rounded, "double", "i64")
    return f.change("trunc", bits, "i64", "i32"), f.change("fptrunc", rest, "double", "float")


def _fma(lanes: int) -> str:
    return "llvm.fma.f64" if lanes == 1 else f"llvm.fma.v{lanes}f64"


def _far_name(name: str, lanes: int) -> str:
    return f"tilecore_{name}_far_float32_x{lanes}"


def _far(name: str, lanes: int) -> str:
    """Return a function that asks libm for every lane: it is called for few arguments."""
    kind, lines, value = kind_of("float", lanes), [], "zeroinitializer"
    if lanes == 1:
        lines, value = [f"  %y = call float @llvm.{name}.f32(float %x)"], "%y"
    for i in range(lanes if lanes > 1 else 0):
        lines += [
            f"  %x{i} = extractelement {kind} %x, i32 {i}",
            f"  %y{i} = call float @llvm.{name}.f32(float %x{i})",
            f"  %v{i} = insertelement {kind} {value}, float %y{i}, i32 {i}",
        ]
        value = f"%v{i}"
    body = "\n".join(lines)
    return (
        f"define linkonce_odr hidden {kind} @{_far_name(name, lanes)}({kind} %x) noinline cold {{\n"
        f"{body}\n  ret {kind} {value}\n}}"
    )
