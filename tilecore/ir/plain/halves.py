"""Arithmetic on two numbers of 16 bits that share a word (PAIRED), by operations on each."""

from __future__ import annotations

from tilecore.ir.dtype import DType
from tilecore.ir.expr import Call, Expr, binary, cast, reinterpret

HALF = 16  # bits
WORD, PART, WIDE = DType("uint32"), DType("uint16"), DType("float32")


def element_of(name: str) -> DType:
    """Return the type of the numbers that a function of PAIRED computes with."""
    return DType(name.split("2_")[1])


def spelled_out(call: Call) -> Expr:
    """Return a call of PAIRED as float32 arithmetic on the halves, rounded to them at the end."""
    kind, found = element_of(call.name), None
    for shift in (0, HALF):
        a, b, c = (_half(x, shift, kind) for x in call.args)
        total = cast(binary("add", binary("mul", a, b), c), kind)
        bits = binary("shl", cast(reinterpret(total, PART), WORD), shift)
        found = bits if found is None else binary("bitor", found, bits)
    assert found is not None
    return found


def _half(word: Expr, shift: int, kind: DType) -> Expr:
    bits = binary("bitand", binary("shr", word, shift), 2**HALF - 1)
    return cast(reinterpret(cast(bits, PART), kind), WIDE)
