"""Functions of float32 that LLVM does not expand, computed in float64.

gfx90a and gfx942 add and multiply float64 at the rate of float32, and 29 further bits hide what
short series and ranges without care leave out: results are the exact value's neighbours (see
tests/tilecore/rocm/test_functions.py). The series are those of Taylor, whose coefficients need no
source.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import partial

TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561  # 2^256 * 2 / pi
HALF_PI = (math.pi / 2, 6.123233995736766e-17)  # the second is what the first leaves out
LARGE = 2.0**30  # from there on the range is reduced with integers
POWER_LIMIT = 300.0  # exponents that are certainly out of range in float32
ROOT_HALF = 0x3FE6A09E667F3BCD  # bits of sqrt(1 / 2)
TAN_PI_8 = math.sqrt(2) - 1
SIN = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(6, -1, -1))  # of x^2, times x
COS = tuple((-1) ** n / math.factorial(2 * n) for n in range(7, -1, -1))
SINH = tuple(1 / math.factorial(2 * n + 1) for n in range(7, -1, -1))
EXP2 = tuple(math.log(2) ** n / math.factorial(n) for n in range(11, -1, -1))
ATANH = tuple(1 / (2 * n + 1) for n in range(9, -1, -1))
ATAN = tuple((-1) ** n / (2 * n + 1) for n in range(15, -1, -1))


def literal(value: float) -> str:
    """Return a float64 as LLVM writes it."""
    return "0x" + struct.pack(">d", value).hex().upper()


class Steps:
    """Collects instructions on float64; every method returns the name of its result."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def make(self, text: str) -> str:
        """Append an instruction."""
        name = f"%s{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")

    def line(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def wide(self, argument: str) -> str:
        """Return a float32 as float64."""
        return self.make(f"fpext float {argument} to double")

    def op(self, name: str, a: str, b: str | float) -> str:
        """Return fadd, fsub, fmul or fdiv of two values."""
        return self.make(f"{name} double {a}, {b if isinstance(b, str) else literal(b)}")

    def from_number(self, name: str, a: float, b: str) -> str:
        """Return an operator whose first operand is known."""
        return self.make(f"{name} double {literal(a)}, {b}")

    def call(self, name: str, *args: str) -> str:
        """Return a function of LLVM."""
        given = ", ".join(f"double {a}" for a in args)
        return self.make(f"call double @llvm.{name}.f64({given})")

    def test(self, how: str, a: str, b: str | float) -> str:
        """Return a comparison."""
        return self.make(f"fcmp {how} double {a}, {b if isinstance(b, str) else literal(b)}")

    def choose(self, cond: str, a: str | float, b: str | float) -> str:
        """Return a where the condition holds, else b."""
        x, y = (v if isinstance(v, str) else literal(v) for v in (a, b))
        return self.make(f"select i1 {cond}, double {x}, double {y}")

    def series(self, coefficients: Sequence[float], at: str) -> str:
        """Return a polynomial; the coefficient of the highest power comes first."""
        last = literal(coefficients[0])
        for value in coefficients[1:]:
            last = self.call("fma", last, at, literal(value))
        return last

    def result(self, value: str) -> str:
        """Return the text of a function that returns a value as float32."""
        rounded = self.make(f"fptrunc double {value} to float")
        self.line(f"ret float {rounded}")
        return "\n".join(self.lines)


# --- trigonometric functions ---------------------------------------------------------------------


def _reduce(s: Steps, x: str) -> tuple[str, str]:
    """Return (remainder in [-pi/4, pi/4], i32 number of quarter turns modulo 4) of an angle."""
    size = s.call("fabs", x)
    is_large = s.test("oge", size, LARGE)
    s.line(f"br i1 {is_large}, label %large, label %small")
    s.label("small")
    turns = s.call("rint", s.op("fmul", x, 2 / math.pi))
    minus = s.make(f"fneg double {turns}")
    first = s.call("fma", minus, literal(HALF_PI[0]), x)
    near = s.call("fma", minus, literal(HALF_PI[1]), first)
    near = s.choose(s.test("oeq", x, 0.0), x, near)  # -0 keeps its sign
    count = s.make(f"fptosi double {s.choose(s.test('olt', size, LARGE), turns, 0.0)} to i32")
    s.line("br label %reduced")
    s.label("large")
    far, steps = _reduce_large(s, size, x)
    s.line("br label %reduced")
    s.label("reduced")
    rest = s.make(f"phi double [ {near}, %small ], [ {far}, %large ]")
    return rest, s.make(f"phi i32 [ {count}, %small ], [ {steps}, %large ]")


def _reduce_large(s: Steps, size: str, x: str) -> tuple[str, str]:
    """Return the same of an angle of 2^30 or more, by the bits of 2 / pi that matter.

    The angle is m 2^e with m of 24 bits. Bits of 2 / pi of a weight of 2^(2 - e) and more give
    whole turns; the 64 bits behind them times m, and 32 more, are the quotient modulo 4.
    """
    words = [TWO_OVER_PI >> 64 * n & 2**64 - 1 for n in range(3, -1, -1)]
    bits = s.make(f"bitcast double {size} to i64")
    exponent = s.make(f"sub i64 {s.make(f'lshr i64 {bits}, 52')}, {1023 + 23}")
    fraction = s.make(f"and i64 {s.make(f'lshr i64 {bits}, 29')}, {2**23 - 1}")
    mantissa = s.make(f"or i64 {fraction}, {2**23}")
    start = s.make(f"sub i64 {exponent}, 2")
    is_second = s.make(f"icmp uge i64 {start}, 64")
    shift = s.make(f"and i64 {start}, 63")
    parts = [
        s.make(f"select i1 {is_second}, i64 {_signed(words[n + 1])}, i64 {_signed(words[n])}")
        for n in range(3)
    ]
    high, low = (
        s.make(f"call i64 @llvm.fshl.i64(i64 {a}, i64 {b}, i64 {shift})")
        for a, b in ((parts[0], parts[1]), (parts[1], parts[2]))
    )
    carried = s.make(f"mul i64 {mantissa}, {s.make(f'lshr i64 {low}, 32')}")
    product = s.make(
        f"add i64 {s.make(f'mul i64 {mantissa}, {high}')}, {s.make(f'lshr i64 {carried}, 32')}"
    )
    rounded = s.make(f"lshr i64 {s.make(f'add i64 {product}, {2**61}')}, 62")
    rest = s.make(f"sub i64 {product}, {s.make(f'shl i64 {rounded}, 62')}")
    angle = s.op("fmul", s.make(f"sitofp i64 {rest} to double"), HALF_PI[0] * 2.0**-62)
    turns = s.make(f"trunc i64 {rounded} to i32")
    is_negative = s.test("olt", x, 0.0)
    signed = s.choose(is_negative, s.make(f"fneg double {angle}"), angle)
    # Infinities and NaN have no angle.
    finite = s.test("olt", size, math.inf)
    kept = s.choose(finite, signed, s.op("fsub", x, x))
    return kept, s.make(
        f"select i1 {is_negative}, i32 {s.make(f'sub i32 0, {turns}')}, i32 {turns}"
    )


def _signed(word: int) -> int:
    return word - 2**64 if word >> 63 else word


def _waves(s: Steps, rest: str) -> tuple[str, str]:
    """Return (sine, cosine) of a reduced angle."""
    square = s.op("fmul", rest, rest)
    return s.op("fmul", rest, s.series(SIN, square)), s.series(COS, square)


def _trigonometric(name: str) -> str:
    s = Steps()
    x = s.wide("%a0")
    rest, turns = _reduce(s, x)
    sine, cosine = _waves(s, rest)
    if name == "cos":
        turns = s.make(f"add i32 {turns}, 1")
    is_odd = s.make(f"trunc i32 {turns} to i1")
    if name == "tan":
        over = s.choose(is_odd, s.make(f"fneg double {cosine}"), sine)
        return s.result(s.op("fdiv", over, s.choose(is_odd, sine, cosine)))
    value = s.choose(is_odd, cosine, sine)
    half = s.make(f"and i32 {turns}, 2")
    is_half = s.make(f"icmp ne i32 {half}, 0")
    return s.result(s.choose(is_half, s.make(f"fneg double {value}"), value))


def _angle(s: Steps, y: str, x: str) -> str:
    """Return the angle of a point, in (-pi, pi], as atan2 has it."""
    height, width = s.call("fabs", y), s.call("fabs", x)
    is_steep = s.test("ogt", height, width)
    less, more = s.choose(is_steep, width, height), s.choose(is_steep, height, width)
    is_diagonal = s.test("oeq", less, more)
    is_middle = s.test("ogt", less, s.op("fmul", more, TAN_PI_8))
    over = s.choose(is_middle, s.op("fsub", less, more), less)
    under = s.choose(is_middle, s.op("fadd", less, more), more)
    part = s.op("fdiv", over, under)
    part = s.choose(is_diagonal, 0.0, part)  # 0 / 0 and infinite sides too
    turn = s.op("fmul", part, s.series(ATAN, s.op("fmul", part, part)))
    is_between = s.make(f"or i1 {is_middle}, {is_diagonal}")
    is_eighth = s.make(f"and i1 {s.test('ogt', more, 0.0)}, {is_between}")
    turn = s.op("fadd", turn, s.choose(is_eighth, math.pi / 4, 0.0))
    turn = s.choose(is_steep, s.from_number("fsub", math.pi / 2, turn), turn)
    sign = s.make(f"bitcast double {x} to i64")
    is_left = s.make(f"icmp slt i64 {sign}, 0")
    turn = s.choose(is_left, s.from_number("fsub", math.pi, turn), turn)
    turn = s.call("copysign", turn, y)
    return s.choose(s.test("uno", y, x), s.op("fadd", y, x), turn)


def _inverse(name: str) -> str:
    s = Steps()
    x = s.wide("%a0")
    if name == "atan2":
        return s.result(_angle(s, x, s.wide("%a1")))
    if name == "atan":
        return s.result(_angle(s, x, literal(1.0)))
    rest = s.op("fmul", s.from_number("fsub", 1.0, x), s.op("fadd", x, 1.0))
    side = s.call("sqrt", rest)  # NaN beyond 1
    return s.result(_angle(s, x, side) if name == "asin" else _angle(s, side, x))


# --- exponentials and logarithms -----------------------------------------------------------------


def _power_of_two(s: Steps, exponent: str) -> str:
    """Return 2 to a power; far out of float32's range it stays at 2^300 or 2^-300."""
    least = s.choose(s.test("olt", exponent, -POWER_LIMIT), -POWER_LIMIT, exponent)
    at = s.choose(s.test("ogt", least, POWER_LIMIT), POWER_LIMIT, least)
    whole = s.call("rint", at)
    value = s.series(EXP2, s.op("fsub", at, whole))
    known = s.choose(s.test("ord", at, at), whole, 0.0)
    count = s.make(f"fptosi double {known} to i32")
    bits = s.make(f"zext i32 {s.make(f'add i32 {count}, 1023')} to i64")
    scale = s.make(f"bitcast i64 {s.make(f'shl i64 {bits}, 52')} to double")
    return s.op("fmul", value, scale)


def _logarithm(s: Steps, value: str, excess: str | None = None) -> str:
    """Return log of a value; ``excess``: the value less 1, where that is known better."""
    bits = s.make(f"bitcast double {value} to i64")
    above = s.make(f"sub i64 {bits}, {ROOT_HALF}")
    power = s.make(f"ashr i64 {above}, 52")
    shift = s.make(f"shl i64 {power}, 52")
    near = s.make(f"bitcast i64 {s.make(f'sub i64 {bits}, {shift}')} to double")
    rest = s.op("fsub", near, 1.0)
    if excess is not None:
        rest = s.choose(s.make(f"icmp eq i64 {power}, 0"), excess, rest)
    part = s.op("fdiv", rest, s.op("fadd", rest, 2.0))
    odd = s.op("fmul", part, s.series(ATANH, s.op("fmul", part, part)))
    count = s.make(f"sitofp i64 {power} to double")
    made = s.call("fma", count, literal(math.log(2)), s.op("fadd", odd, odd))
    made = s.choose(s.test("oeq", value, 0.0), -math.inf, made)
    made = s.choose(s.test("oeq", value, math.inf), math.inf, made)
    return s.choose(s.test("uge", value, 0.0), s.choose(s.test("uno", value, value), value, made),
                    math.nan)  # fmt: skip


def _hyperbolic(name: str) -> str:
    s = Steps()
    x = s.wide("%a0")
    size = s.call("fabs", x)
    grown = _power_of_two(s, s.op("fmul", size, 1 / math.log(2)))
    shrunk = s.from_number("fdiv", 1.0, grown)
    if name == "cosh":
        return s.result(s.op("fmul", s.op("fadd", grown, shrunk), 0.5))
    far = s.call("copysign", s.op("fmul", s.op("fsub", grown, shrunk), 0.5), x)
    near = s.op("fmul", x, s.series(SINH, s.op("fmul", x, x)))
    return s.result(s.choose(s.test("olt", size, 1.0), near, far))


def _log1p() -> str:
    s = Steps()
    x = s.wide("%a0")
    made = _logarithm(s, s.op("fadd", x, 1.0), x)
    return s.result(s.choose(s.test("oeq", x, 0.0), x, made))  # -0 keeps its sign


def _pow() -> str:
    s = Steps()
    x, y = s.wide("%a0"), s.wide("%a1")
    size = s.call("fabs", x)
    made = _power_of_two(s, s.op("fmul", s.op("fmul", _logarithm(s, size), y), 1 / math.log(2)))
    made = s.choose(s.test("oeq", size, 1.0), s.choose(s.test("uno", y, y), y, 1.0), made)
    whole = s.test("oeq", y, s.call("trunc", y))
    half = s.op("fmul", y, 0.5)
    is_even = s.test("oeq", half, s.call("trunc", half))
    is_odd = s.make(f"and i1 {whole}, {s.make(f'xor i1 {is_even}, true')}")
    bits = s.make(f"bitcast double {x} to i64")
    is_negative = s.make(f"icmp slt i64 {bits}, 0")
    turned = s.make(f"and i1 {is_negative}, {is_odd}")
    made = s.choose(turned, s.make(f"fneg double {made}"), made)
    has_root = s.make(f"or i1 {whole}, {s.test('oeq', size, math.inf)}")
    is_real = s.make(f"or i1 {has_root}, {s.test('uge', x, 0.0)}")
    made = s.choose(is_real, made, math.nan)
    is_one = s.make(f"or i1 {s.test('oeq', y, 0.0)}, {s.test('oeq', x, 1.0)}")
    return s.result(s.choose(is_one, 1.0, made))


_MAKERS: dict[str, Callable[[], str]] = {
    **{name: partial(_trigonometric, name) for name in ("sin", "cos", "tan")},
    **{name: partial(_inverse, name) for name in ("asin", "acos", "atan", "atan2")},
    **{name: partial(_hyperbolic, name) for name in ("sinh", "cosh")},
    "log1p": _log1p, "pow": _pow,
}  # fmt: skip


def wide_body(name: str) -> str | None:
    """Return the LLVM text of a function's body ("sin": of float32), or None."""
    make = _MAKERS.get(name)
    return None if make is None else make()
