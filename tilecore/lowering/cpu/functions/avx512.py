"""Instructions of AVX-512 that LLVM IR has no words for, on vectors of 4, 8 and 16 floats."""

from __future__ import annotations

from collections.abc import Sequence

from tilecore.lowering.llvm_text import LlvmFunction

BITS = {4: 128, 8: 256, 16: 512}
CURRENT_ROUNDING = 4
ROUNDED_DOWN = 0b1001  # reduce: the distance to the next lower integer, no exceptions
# getmant: 3/4 <= mantissa < 3/2; NaN for negative arguments, and no sign for -0
MANTISSA_INTERVAL = 0b1111
LOOK_UP = "llvm.x86.avx512.vpermi2var.ps.512"
TABLE = 32  # entries that fit two registers


def declarations() -> dict[str, str]:
    """Return the declarations of all instructions here, text by name."""
    found: dict[str, str] = {}
    for lanes, bits in BITS.items():
        v, mask, rounding = f"<{lanes} x float>", _mask_type(lanes), ", i32" if bits == 512 else ""
        parameters = {
            f"llvm.x86.avx512.mask.scalef.ps.{bits}": f"{v}, {v}, {v}, {mask}{rounding}",
            f"llvm.x86.avx512.mask.getexp.ps.{bits}": f"{v}, {v}, {mask}{rounding}",
            f"llvm.x86.avx512.mask.getmant.ps.{bits}": f"{v}, i32, {v}, {mask}{rounding}",
            f"llvm.x86.avx512.mask.reduce.ps.{bits}": f"{v}, i32, {v}, {mask}{rounding}",
            f"llvm.x86.avx512.rcp14.ps.{bits}": f"{v}, {v}, {mask}",
            f"llvm.x86.avx512.rsqrt14.ps.{bits}": f"{v}, {v}, {mask}",
        }
        found |= {name: f"declare {v} @{name}({args})" for name, args in parameters.items()}
    v = "<16 x float>"
    found[LOOK_UP] = f"declare {v} @{LOOK_UP}({v}, <16 x i32>, {v})"
    return found


def scale(f: LlvmFunction, value: str, power: str) -> str:
    """Return ``value * 2**floor(power)``, rounded once."""
    kind = f.kind("float")
    return _masked(f, "mask.scalef.ps", f"{kind} {value}, {kind} {power}")


def fraction(f: LlvmFunction, value: str) -> str:
    """Return ``value - floor(value)``, 0 of infinities; it may round to 1."""
    return _masked(f, "mask.reduce.ps", f"{f.kind('float')} {value}, i32 {ROUNDED_DOWN}")


def mantissa_power(f: LlvmFunction) -> tuple[str, str]:
    """Return m and n (as a float) with x = m * 2**n.

    Of 0 and infinity m is 1 and n infinite; of negative numbers m is NaN.
    """
    kind = f.kind("float")
    mantissa = _masked(f, "mask.getmant.ps", f"{kind} %x, i32 {MANTISSA_INTERVAL}")
    exponent = _masked(f, "mask.getexp.ps", f"{kind} %x")
    is_below = f.compare_floats("olt", mantissa, f.real(1.0))  # of 3/2 <= m < 2 it took a half
    raised = f.on_floats("fadd", exponent, f.real(1.0))
    return mantissa, f.select(is_below, raised, exponent, "float")


def reciprocal(f: LlvmFunction, value: str) -> str:
    """Return ``1 / value`` within a unit in the last place, for normal results.

    One step of Newton's method on an estimate of 14 bits.
    """
    first = estimate(f, "rcp14", value)
    negated = f.on_floats("fsub", f.real(0.0), first)
    return f.fma(f.fma(negated, value, f.real(1.0)), first, first)


def look_up(f: LlvmFunction, index: str, table: Sequence[float]) -> str:
    """Return for each of 16 lanes the entry of ``table`` that the low 5 bits of its index name."""
    assert f.lanes == 16
    assert len(table) == TABLE
    low, high = f.reals(table[:16]), f.reals(table[16:])
    kind = f.kind("float")
    return f.line(f"call {kind} @{LOOK_UP}({kind} {low}, <16 x i32> {index}, {kind} {high})")


def estimate(f: LlvmFunction, instruction: str, value: str) -> str:
    """Return an approximation of 14 bits (``rcp14``, ``rsqrt14``)."""
    kind = f.kind("float")
    name = f"llvm.x86.avx512.{instruction}.ps.{BITS[f.lanes]}"
    mask = f"{_mask_type(f.lanes)} -1"
    return f.line(f"call {kind} @{name}({kind} {value}, {kind} zeroinitializer, {mask})")


def _masked(f: LlvmFunction, instruction: str, arguments: str) -> str:
    """Call an instruction of all lanes."""
    kind, bits = f.kind("float"), BITS[f.lanes]
    rest = f"{kind} zeroinitializer, {_mask_type(f.lanes)} -1"
    rounding = f", i32 {CURRENT_ROUNDING}" if bits == 512 else ""
    name = f"llvm.x86.avx512.{instruction}.{bits}"
    return f.line(f"call {kind} @{name}({arguments}, {rest}{rounding})")


def _mask_type(lanes: int) -> str:
    return "i16" if lanes == 16 else "i8"
