"""Look-ups in tables so small that vector registers hold them: each lane picks an entry."""

from __future__ import annotations

from typing import Any

from tilecore.lowering.llvm_text import shuffle_order, splat
from tilecore.lowering.tir import TirBuilder, vector_type

SIZES = (2, 4, 8, 16)  # entries


def pick(builder: TirBuilder, table: Any, size: int, index: Any, lanes: int, register: int) -> Any:
    """Return for each of ``lanes`` the entry of ``table`` that its index names.

    ``table``: a vector of ``size`` floats (float32); ``index``: int32, less than ``size``;
    ``register``: floats in a vector register (8 or 16).
    """
    permute, part = PERMUTE[register], f"<{register} x float>"
    builder.define_llvm(permute, f"declare {part} @{permute}({part}, <{register} x i32>)")
    name = f"tilecore_pick_{size}x{lanes}"
    text = _text(name, size, lanes, register)
    return builder.call_llvm(vector_type("float32", lanes), name, text, table, index)


def _text(name: str, size: int, lanes: int, register: int) -> str:
    """Return the function that looks up as many lanes at a time as a register has."""
    given, kind = f"<{size} x float>", f"<{lanes} x float>"
    indices, part, words = f"<{lanes} x i32>", f"<{register} x float>", f"<{register} x i32>"
    halves = (range(register), range(register, 2 * register))
    low, high = (shuffle_order([i % size for i in half]) for half in halves)
    lines = [
        f"%low = shufflevector {given} %t, {given} poison, {low}",
        f"%high = shufflevector {given} %t, {given} poison, {high}",
    ]
    parts = range(-(-lanes // register))
    for p in parts:
        taken = shuffle_order([min(p * register + i, lanes - 1) for i in range(register)])
        lines.append(f"%i{p} = shufflevector {indices} %i, {indices} poison, {taken}")
        permute = f"call {part} @{PERMUTE[register]}({part}"
        lines.append(f"%a{p} = {permute} %low, {words} %i{p})")
        if size <= register:
            continue
        lines += [
            f"%b{p} = {permute} %high, {words} %i{p})",
            f"%s{p} = and {words} %i{p}, {splat('i32', register, register)}",
            f"%c{p} = icmp ne {words} %s{p}, zeroinitializer",
            f"%r{p} = select <{register} x i1> %c{p}, {part} %b{p}, {part} %a{p}",
        ]
    found = [f"%{'a' if size <= register else 'r'}{p}" for p in parts]
    lines += _joined(found, lanes, register)
    body = "\n  ".join(lines)
    return f"""define linkonce_odr hidden {kind} @{name}({given} %t, {indices} %i) alwaysinline {{
  {body}
}}"""


def _joined(parts: list[str], lanes: int, register: int) -> list[str]:
    """Return the lines that put the first ``lanes`` of the parts into one vector."""
    lines, size = [], register
    while len(parts) > 1:
        kind, order, joined = f"<{size} x float>", shuffle_order(range(2 * size)), []
        for low, high in zip(parts[::2], parts[1::2], strict=True):
            joined.append(f"{low}_{size}")
            lines.append(f"{joined[-1]} = shufflevector {kind} {low}, {kind} {high}, {order}")
        parts, size = joined, 2 * size
    if size == lanes:
        return [*lines, f"ret <{lanes} x float> {parts[0]}"]
    kind = f"<{size} x float>"
    return [
        *lines,
        f"%first = shufflevector {kind} {parts[0]}, {kind} poison, {shuffle_order(range(lanes))}",
        f"ret <{lanes} x float> %first",
    ]


PERMUTE = {8: "llvm.x86.avx2.permps", 16: "llvm.x86.avx512.permvar.sf.512"}
