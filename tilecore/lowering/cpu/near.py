"""Gathered lanes that lie near each other: two loads and a permutation, in a fifth of the time.

Where no lane lies before the first one or behind the last one, and these are less than two vectors
apart, all that lies between them is part of the tensor, and two vectors of it have every lane.
Resampled images read so. Other lanes are gathered.
"""

from __future__ import annotations

from tilecore.lowering.cpu.functions.avx512 import LOOK_UP
from tilecore.lowering.cpu.tables import PERMUTE
from tilecore.lowering.llvm_text import literals

TYPES = ("float32", "int32", "uint32")


def declarations(element: str, lanes: int) -> dict[str, str]:
    """Return the declarations of what the function calls, text by name."""
    kind, words, real = f"<{lanes} x {element}>", f"<{lanes} x i32>", f"<{lanes} x float>"
    load = _load(element, lanes)
    found = {load: f"declare {kind} @{load}(ptr, <{lanes} x i1>, {kind})"}
    if lanes == 16:
        return {**found, LOOK_UP: f"declare {real} @{LOOK_UP}({real}, {words}, {real})"}
    permute = PERMUTE[lanes]
    return {**found, permute: f"declare {real} @{permute}({real}, {words})"}


def _load(element: str, lanes: int) -> str:
    return f"llvm.masked.load.v{lanes}{'f32' if element == 'float' else element}.p0"


def text(name: str, gather: str, element: str, lanes: int) -> str:
    """Return the function ``name``, which does what ``gather`` does, in LLVM IR.

    Both take an address, an offset for each lane of a register, and a mask of -1 and 0.
    """
    kind, words, bits = f"<{lanes} x {element}>", f"<{lanes} x i32>", f"<{lanes} x i1>"
    load = _load(element, lanes)
    splat = f"{words} poison, {words} zeroinitializer"
    numbers = [literals("i32", range(first, first + lanes)) for first in (0, lanes)]
    loads = "\n  ".join(
        f"""%inside{i} = icmp ule {words} {numbers[i]}, %reaches
  %w{i} = call {kind} @{load}(ptr align 4 %from{i}, {bits} %inside{i}, {kind} zeroinitializer)"""
        for i in (0, 1)
    )
    pick = "\n  ".join(_picked(kind, words, lanes))
    arguments = f"ptr %p, {words} %i, {words} %m"
    return f"""define linkonce_odr hidden {kind} @{name}({arguments}) alwaysinline {{
  %first = extractelement {words} %i, i32 0
  %last = extractelement {words} %i, i32 {lanes - 1}
  %reach = sub i32 %last, %first
  %f = insertelement {words} poison, i32 %first, i32 0
  %firsts = shufflevector {words} %f, {splat}
  %r = insertelement {words} poison, i32 %reach, i32 0
  %reaches = shufflevector {words} %r, {splat}
  %d = sub {words} %i, %firsts
  %beyond = icmp ugt {words} %d, %reaches
  %absent = icmp sge {words} %m, zeroinitializer
  %apart = or {bits} %beyond, %absent
  %any = bitcast {bits} %apart to i{lanes}
  %together = icmp eq i{lanes} %any, 0
  %short = icmp ult i32 %reach, {2 * lanes}
  %near = and i1 %together, %short
  br i1 %near, label %window, label %far
window:
  %wide = sext i32 %first to i64
  %from0 = getelementptr {element}, ptr %p, i64 %wide
  %from1 = getelementptr {element}, ptr %from0, i64 {lanes}
  {loads}
  {pick}
  ret {kind} %picked
far:
  %gathered = call {kind} @{gather}(ptr %p, {words} %i, {words} %m)
  ret {kind} %gathered
}}"""


def _picked(kind: str, words: str, lanes: int) -> list[str]:
    """Return the lines that pick lanes %d of %w0 and %w1 (%picked)."""
    real = f"<{lanes} x float>"
    lines = [f"%x{i} = bitcast {kind} %w{i} to {real}" for i in (0, 1)]
    if lanes == 16:
        lines.append(f"%found = call {real} @{LOOK_UP}({real} %x0, {words} %d, {real} %x1)")
    else:
        limit = ", ".join([f"i32 {lanes}"] * lanes)
        lines += [
            f"%a = call {real} @{PERMUTE[lanes]}({real} %x0, {words} %d)",
            f"%b = call {real} @{PERMUTE[lanes]}({real} %x1, {words} %d)",
            f"%low = icmp ult {words} %d, <{limit}>",
            f"%found = select <{lanes} x i1> %low, {real} %a, {real} %b",
        ]
    return [*lines, f"%picked = bitcast {real} %found to {kind}"]
