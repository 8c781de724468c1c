"""Functions in LLVM IR, written line by line: what TIR cannot say, or only at great length."""

from __future__ import annotations

import struct
from collections.abc import Sequence

LLVM_TYPES = {
    "float64": "double", "float32": "float", "float16": "half", "bool": "i8",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
LANES = (1, 2, 4, 8, 16, 32, 64)
FMA_NAMES = {n: "llvm.fma.f32" if n == 1 else f"llvm.fma.v{n}f32" for n in LANES}


def kind_of(element: str, lanes: int) -> str:
    """Return the type of ``lanes`` elements."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


FMA_DECLARATIONS = {
    name: f"declare {(kind := kind_of('float', n))} @{name}({', '.join([kind] * 3)})"
    for n, name in FMA_NAMES.items()
}


class LlvmFunction:
    """Text of one LLVM function from ``lanes`` values to as many, line by line."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.lines: list[str] = []

    def kind(self, element: str) -> str:
        """Return the type of ``lanes`` elements."""
        return kind_of(element, self.lanes)

    def constant(self, element: str, literal: str) -> str:
        """Return a literal in every lane."""
        each = ", ".join(f"{element} {literal}" for _ in range(self.lanes))
        return literal if self.lanes == 1 else f"<{each}>"

    def number(self, value: int) -> str:
        """Return an i32."""
        return self.constant("i32", str(value))

    def real(self, value: float) -> str:
        """Return the nearest float in every lane."""
        return self.constant("float", _literal(value))

    def reals(self, values: Sequence[float]) -> str:
        """Return the nearest floats, one per lane."""
        assert len(values) == self.lanes
        return f"<{', '.join(f'float {_literal(value)}' for value in values)}>"

    def line(self, text: str) -> str:
        """Add an instruction and return the name of its result."""
        self.lines.append(f"  %t{len(self.lines)} = {text}")
        return f"%t{len(self.lines) - 1}"

    def on_ints(self, op: str, a: str, b: str) -> str:
        """Add an instruction on two i32."""
        return self.line(f"{op} {self.kind('i32')} {a}, {b}")

    def on_floats(self, op: str, a: str, b: str) -> str:
        """Add an instruction on two floats."""
        return self.line(f"{op} {self.kind('float')} {a}, {b}")

    def select(self, cond: str, a: str, b: str, element: str = "i32") -> str:
        """Return ``a`` where ``cond`` holds, else ``b``."""
        kind = self.kind(element)
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
        """Compare i32 with a number."""
        return self.on_ints(f"icmp {how}", value, self.number(other))

    def fma(self, a: str, b: str, c: str) -> str:
        """Return ``a * b + c`` of floats, rounded once."""
        kind = self.kind("float")
        name = FMA_NAMES[self.lanes]
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
        return self.line(f"fcmp {how} {self.kind('float')} {a}, {b}")

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
        if lanes == 1:
            kind = f"<{wanted} x float>"
            return self.line(f"insertelement {kind} zeroinitializer, float {value}, i32 0")
        if wanted == 1:
            return self.line(f"extractelement <{lanes} x float> {value}, i32 0")
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
        kind = f"<{lanes} x float>"
        places = ", ".join(f"i32 {i}" for i in order)
        return self.line(f"shufflevector {kind} {a}, {kind} {b}, <{len(order)} x i32> <{places}>")

    def as_float(self, value: str) -> str:
        """Return the float of these bits."""
        return self.change("bitcast", value, "i32", "float")

    def of_float(self, value: str) -> str:
        """Return the bits of a float."""
        return self.change("bitcast", value, "float", "i32")

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


def _literal(value: float) -> str:
    """Return the nearest float as LLVM writes it: as the bits of the same double."""
    (single,) = struct.unpack(">f", struct.pack(">f", value))
    return wide_literal(single)


def wide_literal(value: float) -> str:
    """Return a double as LLVM writes its bits."""
    return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"
