"""Functions in LLVM IR, written line by line: what TIR cannot say, or only at great length."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

LLVM_TYPES = {
    "float64": "double", "float32": "float", "float16": "half", "bool": "i8",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
LANES = (1, 2, 4, 8, 16, 32, 64)
REALS = {"float32": ("float", "i32"), "float64": ("double", "i64")}  # and their bits


def kind_of(element: str, lanes: int) -> str:
    """Return the type of ``lanes`` elements."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def intrinsic(name: str, dtype: str, lanes: int) -> str:
    """Return the name of an intrinsic function of floats: ``llvm.fma.v8f64``."""
    element = f"f{dtype.removeprefix('float')}"
    return f"llvm.{name}.{element if lanes == 1 else f'v{lanes}{element}'}"


def declarations(name: str, dtype: str, arguments: int) -> dict[str, str]:
    """Return the declarations of an intrinsic function of floats for all lanes, text by name."""
    found = {}
    for lanes in LANES:
        symbol, kind = intrinsic(name, dtype, lanes), kind_of(LLVM_TYPES[dtype], lanes)
        found[symbol] = f"declare {kind} @{symbol}({', '.join([kind] * arguments)})"
    return found


class LlvmFunction:
    """Text of one LLVM function from ``lanes`` values to as many, line by line.

    "Floats" below are of ``dtype``, and integers have as many bits.
    """

    def __init__(self, lanes: int, dtype: str = "float32") -> None:
        self.lanes, self.dtype = lanes, dtype
        self.element, self.integer = REALS[dtype]
        self.lines: list[str] = []

    def kind(self, element: str) -> str:
        """Return the type of ``lanes`` elements."""
        return kind_of(element, self.lanes)

    def constant(self, element: str, literal: str) -> str:
        """Return a literal in every lane."""
        return literal if self.lanes == 1 else literals(element, [literal] * self.lanes)

    def number(self, value: int) -> str:
        """Return an integer in every lane."""
        return self.constant(self.integer, str(value))

    def real(self, value: float) -> str:
        """Return the nearest float in every lane."""
        return self.constant(self.element, self._literal(value))

    def reals(self, values: Sequence[float]) -> str:
        """Return the nearest floats, one per lane."""
        assert len(values) == self.lanes
        return f"<{', '.join(f'{self.element} {self._literal(value)}' for value in values)}>"

    def line(self, text: str) -> str:
        """Add an instruction and return the name of its result."""
        self.lines.append(f"  %t{len(self.lines)} = {text}")
        return f"%t{len(self.lines) - 1}"

    def on_ints(self, op: str, a: str, b: str) -> str:
        """Add an instruction on two integers."""
        return self.line(f"{op} {self.kind(self.integer)} {a}, {b}")

    def on_floats(self, op: str, a: str, b: str) -> str:
        """Add an instruction on two floats."""
        return self.line(f"{op} {self.kind(self.element)} {a}, {b}")

    def select(self, cond: str, a: str, b: str, element: str = "") -> str:
        """Return ``a`` where ``cond`` holds, else ``b``; both integers, or of another type."""
        kind = self.kind(element or self.integer)
        return self.line(f"select {self.kind('i1')} {cond}, {kind} {a}, {kind} {b}")

    def change(self, op: str, value: str, source: str, target: str) -> str:
        """Convert a value."""
        return self.line(f"{op} {self.kind(source)} {value} to {self.kind(target)}")

    def masked(self, value: str, mask: int) -> str:
        """Return ``value & mask``."""
        return self.on_ints("and", value, self.number(mask))

    def left(self, value: str, count: int) -> str:
        """Return ``value << count``."""
        return self.on_ints("shl", value, self.number(count))

    def right(self, value: str, count: int) -> str:
        """Return ``value >> count``, zeros coming in."""
        return self.on_ints("lshr", value, self.number(count))

    def plus(self, value: str, other: int) -> str:
        """Return ``value + other``."""
        return self.on_ints("add", value, self.number(other))

    def compare(self, how: str, value: str, other: int) -> str:
        """Compare integers with a number."""
        return self.on_ints(f"icmp {how}", value, self.number(other))

    def fma(self, a: str, b: str, c: str) -> str:
        """Return ``a * b + c`` of floats, rounded once."""
        kind, name = self.kind(self.element), intrinsic("fma", self.dtype, self.lanes)
        return self.line(f"call {kind} @{name}({kind} {a}, {kind} {b}, {kind} {c})")

    def polynomial(self, coefficients: Sequence[float], x: str) -> str:
        """Return a polynomial of floats by Horner's rule, the highest coefficient first."""
        value = self.real(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.fma(value, x, self.real(coefficient))
        return value

    def short_polynomial(self, coefficients: Sequence[float], x: str) -> str:
        """Return the same by Estrin's scheme: some products more, waiting for half as many.

        For code whose loops have too few values under way to hide the latency of a chain. The last
        three terms take Horner's rule, which waits no longer for them.
        """
        values = [self.real(c) for c in reversed(coefficients)]
        while len(values) > 1:
            if len(values) == 3:
                return self.fma(self.fma(values[2], x, values[1]), x, values[0])
            pairs = zip(values[::2], values[1::2], strict=False)
            joined = [self.fma(high, x, low) for low, high in pairs]
            values = joined + values[2 * len(joined) :]
            x = self.on_floats("fmul", x, x) if len(values) > 1 else x
        return values[0]

    def compare_floats(self, how: str, a: str, b: str) -> str:
        """Compare two floats."""
        return self.line(f"fcmp {how} {self.kind(self.element)} {a}, {b}")

    def both(self, a: str, b: str) -> str:
        """Return ``a and b`` of truth values."""
        return self.line(f"and {self.kind('i1')} {a}, {b}")

    def either(self, a: str, b: str) -> str:
        """Return ``a or b`` of truth values."""
        return self.line(f"or {self.kind('i1')} {a}, {b}")

    def all_of(self, conditions: str) -> str:
        """Return whether all lanes hold, as one i1."""
        bits = self.line(f"bitcast {self.kind('i1')} {conditions} to i{self.lanes}")
        return self.line(f"icmp eq i{self.lanes} {bits}, -1")

    def resized(self, value: str, lanes: int, wanted: int) -> str:
        """Return the first floats of ``value``; those beyond its end are undefined."""
        element = self.element
        if lanes == 1:
            kind = f"<{wanted} x {element}>"
            return self.line(f"insertelement {kind} zeroinitializer, {element} {value}, i32 0")
        if wanted == 1:
            return self.line(f"extractelement <{lanes} x {element}> {value}, i32 0")
        order = [str(i) if i < lanes else "poison" for i in range(wanted)]
        return self._shuffle(value, "poison", lanes, order)

    def part(self, value: str, number: int, lanes: int) -> str:
        """Return the ``number``-th ``lanes`` floats of ``value``, which has twice as many."""
        order = [str(number * lanes + i) for i in range(lanes)]
        return self._shuffle(value, "poison", 2 * lanes, order)

    def joined(self, a: str, b: str, lanes: int) -> str:
        """Return the ``lanes`` floats of ``a``, then those of ``b``."""
        return self._shuffle(a, b, lanes, [str(i) for i in range(2 * lanes)])

    def _shuffle(self, a: str, b: str, lanes: int, order: list[str]) -> str:
        kind = f"<{lanes} x {self.element}>"
        places = ", ".join(f"i32 {i}" for i in order)
        return self.line(f"shufflevector {kind} {a}, {kind} {b}, <{len(order)} x i32> <{places}>")

    def as_float(self, value: str) -> str:
        """Return the float of these bits."""
        return self.change("bitcast", value, self.integer, self.element)

    def of_float(self, value: str) -> str:
        """Return the bits of a float."""
        return self.change("bitcast", value, self.element, self.integer)

    def _literal(self, value: float) -> str:
        """Return the nearest float as LLVM writes it: as the bits of the same double."""
        if self.dtype == "float32":
            (value,) = struct.unpack(">f", struct.pack(">f", value))
        return wide_literal(value)

    def label(self, name: str) -> None:
        """Start a block."""
        self.lines.append(f"{name}:")

    def go(self, target: str) -> None:
        """End a block by a jump."""
        self.lines.append(f"  br label %{target}")

    def branch(self, cond: str, true: str, false: str) -> None:
        """End a block by a branch on an i1."""
        self.lines.append(f"  br i1 {cond}, label %{true}, label %{false}")

    def text(
        self, name: str, source: str, target: str, result: str, arguments: tuple[str, ...] = ("%x",)
    ) -> str:
        """Return the definition; its arguments are of one type."""
        given = ", ".join(f"{self.kind(source)} {a}" for a in arguments)
        head = f"define linkonce_odr hidden {self.kind(target)} @{name}({given})"
        body = "\n".join(self.lines)
        return f"{head} alwaysinline {{\n{body}\n  ret {self.kind(target)} {result}\n}}"


def wide_literal(value: float) -> str:
    """Return a double as LLVM writes its bits."""
    return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"


def literals(element: str, values: Iterable[object]) -> str:
    """Return a vector of known values: ``<i32 0, i32 1>``."""
    return "<" + ", ".join(f"{element} {value}" for value in values) + ">"


def splat(element: str, lanes: int, value: int) -> str:
    """Return a vector of a known value in every lane."""
    return literals(element, [value] * lanes)


def shuffle_order(order: Sequence[object]) -> str:
    """Return the last operand of a ``shufflevector``: which lane each of the result comes from."""
    return f"<{len(order)} x i32> {literals('i32', order)}"
