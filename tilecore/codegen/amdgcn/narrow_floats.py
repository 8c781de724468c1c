"""Floats of 8 and 4 bits in LLVM IR, as tilecore/lowering/cuda/narrow.py has them in C."""

from __future__ import annotations

from tilecore.codegen.amdgcn.values import floating
from tilecore.lowering.cpu.functions.float8 import E8M0, FORMATS, Format

INFINITY, NAN = 0x7F800000, 0x7FC00000


class _Words:
    """Collects instructions on i32; every method returns the name of its result."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def make(self, text: str) -> str:
        """Append an instruction."""
        name = f"%s{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def op(self, name: str, a: str | int, b: str | int) -> str:
        """Return add, sub, and, or, shl, lshr of two words."""
        return self.make(f"{name} i32 {a}, {b}")

    def choose(self, how: str, a: str, b: str | int, then: str | int, other: str | int) -> str:
        """Return a word by how two words compare."""
        cond = self.make(f"icmp {how} i32 {a}, {b}")
        return self.make(f"select i1 {cond}, i32 {then}, i32 {other}")

    def bits(self, value: str) -> str:
        """Return the bits of a float32."""
        return self.make(f"bitcast float {value} to i32")

    def value(self, bits: str) -> str:
        """Return the float32 of bits."""
        return self.make(f"bitcast i32 {bits} to float")

    def text(self, kind: str, result: str) -> str:
        """Return the body of a function that returns a value."""
        return "\n".join([*self.lines, f"  ret {kind} {result}"])


def _number(value: float) -> str:
    return floating(value, "float32").text


def widen(dtype: str) -> str | None:
    """Return the body of ``float (i32 bits)``: the value of bits of a type, exactly, or None."""
    s = _Words()
    if dtype == E8M0:
        made = s.choose("eq", "%a0", 0, 0x00400000, s.op("shl", "%a0", 23))
        return s.text("float", s.value(s.choose("eq", "%a0", 255, NAN, made)))
    form = FORMATS.get(dtype)
    if form is None:
        return None
    # Sign, exponent and fraction where float32 has the ends of its own: that lacks a power of two.
    # Small numbers are subnormal until then, which kernels multiply as they are (denorm_mode_32 3).
    spread = s.op("ashr", s.op("shl", "%a0", 31 - form.sign), 8 - form.sign + form.mantissa)
    places = ((1 << form.sign) - 1) << (23 - form.mantissa)
    placed = s.op("and", spread, places - (1 << 31))
    value = s.make(f"fmul float {s.value(placed)}, {_number(2.0 ** (127 - form.bias))}")
    made = s.bits(value)
    if form.has_negative_zero and form.has_nan:
        first = form.largest + 1 if form.infinity is None else form.infinity
        one = 1 << form.mantissa
        least = (1 + first % one / one) * 2.0 ** (first // one - form.bias)
        size = s.make(f"call float @llvm.fabs.f32(float {value})")
        is_special = s.make(f"fcmp oge float {size}, {_number(least)}")
        special = s.op("or", made, INFINITY)
        made = s.make(f"select i1 {is_special}, i32 {special}, i32 {made}")
    elif form.has_nan:
        made = s.choose("eq", "%a0", form.nan, NAN, made)
    return s.text("float", s.value(made))


def narrow(dtype: str) -> str | None:
    """Return the body of ``i32 (float x)``: the bits of the nearest value of a type, or None."""
    s = _Words()
    bits = s.bits("%a0")
    if dtype == E8M0:  # ties go to the larger power of two
        e = s.op("and", s.op("lshr", bits, 23), 255)
        least = s.choose("ne", e, 0, 0x400000, 0x400001)
        more = s.choose("uge", s.op("and", bits, 0x7FFFFF), least, s.op("add", e, 1), e)
        return s.text("i32", s.choose("eq", e, 255, e, more))
    form = FORMATS.get(dtype)
    if form is None:
        return None
    m = s.op("and", bits, 0x7FFFFFFF)
    code = _nearest(s, form, m)
    sign = s.op("and", s.op("lshr", bits, 31 - form.sign), 1 << form.sign)
    if not form.has_nan:
        return s.text("i32", s.choose("ugt", m, INFINITY, form.nan, s.op("or", code, sign)))
    code = s.choose("ugt", m, INFINITY, form.nan, code)
    made = s.op("or", code, sign)
    if not form.has_negative_zero:
        made = s.choose("eq", code, 0, 0, made)
    return s.text("i32", made)


def _nearest(s: _Words, form: Format, m: str) -> str:
    """Return the code of the nearest magnitude; small ones are rounded by adding a power of two."""
    shift = 23 - form.mantissa
    anchor = 2.0 ** (24 - form.bias - form.mantissa)
    r = s.op("sub", m, (127 - form.bias) << 23)
    odd = s.op("and", s.op("lshr", r, shift), 1)
    rounded = s.op("add", s.op("add", r, (1 << (shift - 1)) - 1), odd)
    normal = s.op("lshr", rounded, shift)
    aligned = s.make(f"fadd float {s.value(m)}, {_number(anchor)}")
    base = s.bits(_number(anchor))
    small = s.op("sub", s.bits(aligned), base)
    code = s.choose("ult", m, (128 - form.bias) << 23, small, normal)
    return s.choose("ugt", code, form.largest, form.overflow, code)
