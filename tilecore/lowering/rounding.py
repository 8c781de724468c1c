"""Arithmetic rounded to zero, up or down, in LLVM IR: for CPUs (vectors) and AMD GPUs.

The hardware rounds to nearest; which side of the exact value that lies on is found without error,
and where it is the wrong side the neighbour is taken. Of float32 the value is computed in float64,
where products are exact, the error of a sum is known (Dekker's Fast2Sum) and quotients and roots
are never as close to a float32 as their own rounding. Of float64 the remainder of a product,
quotient or root is one multiply-add of operands scaled to about 1, so that none is lost to
underflow; the error of a multiply-add is Boldo and Muller's ErrFma ("Exact and approximated error
of the FMA"), which needs of the smaller operand no more than its sign once it is far below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tilecore.ir.expr import ROUNDED
from tilecore.lowering.llvm_text import LANES, LlvmFunction

ELEMENTS = {"float32": "float", "float64": "double"}
SIGN, FRACTION, ONE = -(2**63), 2**52 - 1, 1023 << 52
FAR = -220  # of exponents: below the last bit of a product and of any sum with it
Sides = tuple[str, str]  # whether the exact value lies above, below what was rounded


def function_name(name: str, dtype: str, lanes: int) -> str:
    """Return the name of the function of vectors on a CPU."""
    return f"tilecore_{name}_{dtype}_x{lanes}"


def definitions(calls: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the functions that calls (name, type of the elements) need, text by name."""
    found: dict[str, str] = {}
    for name, dtype in calls:
        if name in ROUNDED:
            for lanes in LANES:
                found |= _vector_function(name, dtype, lanes)
    return found


def body(name: str, dtype: str) -> str:
    """Return the text of a function of one element, whose arguments are %a0, %a1, ..."""
    f, result = _written(name, dtype, 1)
    element = ELEMENTS[dtype]
    # The function is inlined: empty instructions keep LLVM from contracting it with products that
    # are its arguments, or its result with a sum.
    opaque = [f'  %x{i} = call {element} asm "", "=v,0"({element} %a{i})'
              for i in range(ROUNDED[name])]  # fmt: skip
    lines = [re.sub(r"%a(\d)", r"%x\1", line) for line in f.lines]
    shown = f'  %shown = call {element} asm "", "=v,0"({element} {result})'
    return "\n".join([*opaque, *lines, shown, f"  ret {element} %shown"])


def _vector_function(name: str, dtype: str, lanes: int) -> Mapping[str, str]:
    f, result = _written(name, dtype, lanes)
    symbol, element = function_name(name, dtype, lanes), ELEMENTS[dtype]
    arguments = tuple(f"%a{i}" for i in range(ROUNDED[name]))
    text = f.text(symbol, element, element, result, arguments)
    # What surrounds a call must not be contracted with what is in it.
    text = text if name == "fma_rn" else text.replace(" alwaysinline {", " noinline {")
    return {**f.declared, symbol: text}


def _written(name: str, dtype: str, lanes: int) -> tuple[_Text, str]:
    f = _Text(lanes)
    op, mode = name.split("_")
    given = [f"%a{i}" for i in range(ROUNDED[name])]
    if mode == "rn":
        nearest = f.intrinsic if op == "fma" else f.plain
        return f, nearest(op, ELEMENTS[dtype], *given)
    rounded = _of_float32 if dtype == "float32" else _of_float64
    return f, rounded(f, op, mode, given)


class _Text(LlvmFunction):
    """A function of doubles and their bits, with the intrinsics it calls."""

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes)
        self.declared: dict[str, str] = {}

    def intrinsic(self, name: str, element: str, *given: str) -> str:
        kind = self.kind(element)
        suffix = ("" if self.lanes == 1 else f"v{self.lanes}") + f"f{_width(element)}"
        symbol = f"llvm.{name}.{suffix}"
        self.declared[symbol] = f"declare {kind} @{symbol}({', '.join([kind] * len(given))})"
        return self.line(f"call {kind} @{symbol}({', '.join(f'{kind} {v}' for v in given)})")

    def plain(self, op: str, element: str, a: str, b: str) -> str:
        return self.do(f"f{op}", a, b, element)

    def do(self, op: str, a: str, b: str, element: str = "double") -> str:
        return self.line(f"{op} {self.kind(element)} {a}, {b}")

    def on_words(self, op: str, a: str, b: str | int) -> str:
        return self.do(op, a, b if isinstance(b, str) else self.word(b), "i64")

    def word(self, value: int) -> str:
        return self.constant("i64", str(value))

    def double(self, value: float) -> str:
        return self.constant("double", f"{value:.17e}")

    def bits(self, value: str) -> str:
        return self.change("bitcast", value, "double", "i64")

    def of_bits(self, value: str) -> str:
        return self.change("bitcast", value, "i64", "double")

    def size(self, value: str) -> str:
        return self.of_bits(self.on_words("and", self.bits(value), 2**63 - 1))

    def negative(self, value: str) -> str:
        return self.line(f"fneg {self.kind('double')} {value}")

    def is_zero(self, value: str) -> str:
        return self.do("fcmp oeq", value, self.double(0.0))

    def is_infinite(self, value: str) -> str:
        return self.do("fcmp oeq", self.size(value), self.constant("double", INFINITE))

    def is_ordinary(self, value: str) -> str:
        """Return whether a number is neither 0 nor an infinity nor NaN."""
        finite = self.is_finite(value)
        return self.both(finite, self.do("fcmp one", value, self.double(0.0)))

    def is_finite(self, value: str) -> str:
        return self.do("fcmp olt", self.size(value), self.constant("double", INFINITE))

    def opposite(self, cond: str) -> str:
        return self.do("xor", cond, self.constant("i1", "true"), "i1")

    def has_sign(self, bits: str) -> str:
        return self.do("icmp slt", bits, self.word(0), "i64")

    def bounded(self, value: str, least: int, most: int | None = None) -> str:
        low = self.on_words("icmp slt", value, least)
        value = self.select(low, self.word(least), value, "i64")
        if most is None:
            return value
        high = self.on_words("icmp sgt", value, most)
        return self.select(high, self.word(most), value, "i64")

    def scaled(self, value: str, exponent: str) -> str:
        """Return ``value * 2 ** exponent`` of a normal number that stays one."""
        power = self.on_words("shl", self.on_words("add", exponent, 1023), 52)
        return self.do("fmul", value, self.of_bits(power))


INFINITE = "0x7FF0000000000000"


def _width(element: str) -> int:
    return 32 if element == "float" else 64


# --- float32 ------------------------------------------------------------------------------------


def _of_float32(f: _Text, op: str, mode: str, given: list[str]) -> str:
    wide = [f.change("fpext", v, "float", "double") for v in given]
    error, signs = f.double(0.0), None
    if op in ("add", "fma"):
        x = wide[0] if op == "add" else f.do("fmul", wide[0], wide[1])
        signs = f.on_words("or", f.bits(x), f.bits(wide[-1]))
        near = f.do("fadd", x, wide[-1])
        error = _error_of_sum(f, near, x, wide[-1])
    elif op == "sqrt":
        near = f.intrinsic("sqrt", "double", wide[0])
    else:
        near = f.do(f"f{op}", *wide)
    r = f.change("fptrunc", near, "double", "float")
    back = f.change("fpext", r, "float", "double")
    same, zero = f.do("fcmp oeq", near, back), f.double(0.0)
    sides = [
        f.either(f.do(f"fcmp {how}", near, back), f.both(same, f.do(f"fcmp {how}", error, zero)))
        for how in ("ogt", "olt")
    ]
    return _neighbour(f, mode, r, "float", (sides[0], sides[1]), signs)


def _error_of_sum(f: _Text, s: str, x: str, y: str) -> str:
    """Return x + y - s of the rounded sum s."""
    is_first = f.do("fcmp oge", f.size(x), f.size(y))
    large, small = f.select(is_first, x, y, "double"), f.select(is_first, y, x, "double")
    return f.do("fsub", small, f.do("fsub", s, large))


def _neighbour(f: _Text, mode: str, r: str, element: str, sides: Sides, signs: str | None) -> str:
    """Return r, or the next number where the exact value lies on the other side of it.

    ``signs``: of a sum, bits whose sign an exact 0 has where it is rounded down.
    """
    code = f"i{_width(element)}"
    above, below = sides
    bits = f.change("bitcast", r, element, code)
    minus = f.do("icmp slt", bits, f.constant(code, "0"), code)
    outward, inward = f.constant(code, "1"), f.constant(code, "-1")
    if mode == "rz":
        is_wrong, step = f.select(minus, above, below, "i1"), inward
    elif mode == "ru":
        is_wrong, step = above, f.select(minus, inward, outward, code)
    else:
        is_wrong, step = below, f.select(minus, outward, inward, code)
    moved = f.select(is_wrong, f.do("add", bits, step, code), bits, code)
    result = f.change("bitcast", moved, code, element)
    if mode != "rd" or signs is None:
        return result
    zero, less = f.constant(element, "0.0"), f.constant(element, "-0.0")
    is_exact = f.both(f.do("fcmp oeq", r, zero, element), f.opposite(f.either(above, below)))
    return f.select(is_exact, f.select(f.has_sign(signs), less, zero, element), result, element)


# --- float64 ------------------------------------------------------------------------------------


def _of_float64(f: _Text, op: str, mode: str, given: list[str]) -> str:
    signs = None
    if op == "add":
        r, sides, signs = _add(f, *given)
    elif op == "fma":
        r, sides, signs = _multiply_add(f, *given)
    elif op == "sqrt":
        r, sides = _root(f, *given)
    else:
        r, sides = _product_or_quotient(f, op, *given)
    return _neighbour(f, mode, r, "double", sides, signs)


def _sides(f: _Text, error: str) -> Sides:
    return tuple(f.do(f"fcmp {how}", error, f.double(0.0)) for how in ("ogt", "olt"))  # type: ignore[return-value]


def _overflowing(f: _Text, r: str, sides: Sides, finite: str) -> Sides:
    """Return the sides, where an infinity that finite numbers gave lies beyond the exact value."""
    beyond, minus = f.both(f.is_infinite(r), finite), f.has_sign(f.bits(r))
    above, below = (f.both(side, f.is_finite(r)) for side in sides)
    above = f.either(above, f.both(beyond, minus))
    return above, f.either(below, f.both(beyond, f.opposite(minus)))


def _add(f: _Text, x: str, y: str) -> tuple[str, Sides, str]:
    r = f.do("fadd", x, y)
    sides = _sides(f, _error_of_sum(f, r, x, y))
    finite = f.both(f.is_finite(x), f.is_finite(y))
    return r, _overflowing(f, r, sides, finite), f.on_words("or", f.bits(x), f.bits(y))


def _parts(f: _Text, value: str) -> tuple[str, str]:
    """Return (a number of size 1 to 2, exponent) of an ordinary number."""
    is_small = f.do("fcmp olt", f.size(value), f.double(2.0**-1022))
    raised = f.do("fmul", value, f.double(2.0**54))
    bits = f.bits(f.select(is_small, raised, value, "double"))
    exponent = f.on_words("and", f.on_words("lshr", bits, 52), 2047)
    bias = f.select(is_small, f.word(1023 + 54), f.word(1023), "i64")
    fraction = f.on_words("or", f.on_words("and", bits, SIGN | FRACTION), ONE)
    return f.of_bits(fraction), f.on_words("sub", exponent, bias)


def _product_or_quotient(f: _Text, op: str, x: str, y: str) -> tuple[str, Sides]:
    r = f.do(f"f{op}", x, y)
    (mx, ex), (my, ey), (mr, er) = (_parts(f, f.size(v)) for v in (x, y, r))
    exponent = f.on_words("add" if op == "mul" else "sub", ex, ey)
    scaled = f.scaled(mr, f.bounded(f.on_words("sub", er, exponent), -8, 8))
    less = f.negative(scaled)
    error = f.intrinsic("fma", "double", *((mx, my, less) if op == "mul" else (less, my, mx)))
    outside, inside = _sides(f, error)
    ordinary, zero = f.both(f.is_ordinary(x), f.is_ordinary(y)), f.is_zero(r)
    infinite = f.is_infinite(r)
    outside = f.either(zero, f.both(outside, f.opposite(infinite)))
    inside = f.either(infinite, f.both(inside, f.opposite(zero)))
    minus = f.has_sign(f.bits(r))
    above, below = f.select(minus, inside, outside, "i1"), f.select(minus, outside, inside, "i1")
    return r, (f.both(above, ordinary), f.both(below, ordinary))


def _root(f: _Text, x: str) -> tuple[str, Sides]:
    r = f.intrinsic("sqrt", "double", x)
    is_small = f.do("fcmp olt", x, f.double(2.0**-500))
    by, root = (
        f.select(is_small, f.double(2.0**power), f.double(1.0), "double") for power in (600, 300)
    )
    scaled = f.do("fmul", r, root)
    error = f.intrinsic("fma", "double", f.negative(scaled), scaled, f.do("fmul", x, by))
    return r, _sides(f, error)


def _multiply_add(f: _Text, x: str, y: str, z: str) -> tuple[str, Sides, str]:
    r = f.intrinsic("fma", "double", x, y, z)
    ordinary = f.both(f.both(f.is_ordinary(x), f.is_ordinary(y)), f.is_finite(z))
    sides = _overflowing(f, r, _sides(f, _error_of_fma(f, r, x, y, z, ordinary)), ordinary)
    above, below = (f.both(side, ordinary) for side in sides)
    sign = f.on_words("xor", f.bits(x), f.bits(y))
    return r, (above, below), f.on_words("or", sign, f.bits(z))


def _error_of_fma(f: _Text, r: str, x: str, y: str, z: str, ordinary: str) -> str:
    """Return a number with the sign of x * y + z - r."""
    (mx, ex), (my, ey), (mz, ez), (mr, er) = (_parts(f, v) for v in (x, y, z, r))
    nothing = f.double(0.0)
    product = f.on_words("add", ex, ey)
    ez = f.select(f.is_zero(z), f.word(-5000), ez, "i64")
    is_product = f.do("icmp sgt", product, ez, "i64")
    top = f.select(is_product, product, ez, "i64")
    a = f.scaled(mx, f.bounded(f.on_words("sub", product, top), FAR, 0))
    c = f.scaled(mz, f.bounded(f.on_words("sub", ez, top), FAR, 0))
    c = f.select(f.is_zero(z), nothing, c, "double")
    near = f.scaled(mr, f.bounded(f.on_words("sub", er, top), -900, 8))
    near = f.select(f.is_zero(r), nothing, near, "double")
    # The choice keeps the product, rounded here, from being contracted with a sum of it.
    high = f.select(ordinary, f.do("fmul", a, my), nothing, "double")
    low = f.intrinsic("fma", "double", a, my, f.negative(high))
    middle = f.do("fadd", c, low)
    rest = _error_of_sum(f, middle, c, low)
    total = f.do("fadd", high, middle)
    more = _error_of_sum(f, total, high, middle)
    return f.do("fadd", f.do("fadd", f.do("fsub", total, near), more), rest)
