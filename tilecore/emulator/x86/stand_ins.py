"""Which function stands in for which intrinsic of LLVM, and the LLVM IR that calls it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Of instructions that every CPU has that runs the result.
NATIVE = re.compile(r"llvm\.x86\.(?:sse\d*|ssse3|sse4[12]|avx|avx2|fma|vcvtph2ps|vcvtps2ph)\.")
NAME = "tilecore_stand_in."  # takes the place of "llvm.x86."
CURRENT_ROUNDING = 4
# Name of the intrinsic without the bits of its vectors: the function of vectors.cpp, how many
# arguments it takes.
_VECTORS = {
    "avx512.mask.scalef.ps": ("scalef", 5),
    "avx512.mask.getexp.ps": ("getexp", 4),
    "avx512.mask.getmant.ps": ("getmant", 5),
    "avx512.mask.reduce.ps": ("reduce", 5),
    "avx512.mask.vcvtph2ps": ("widen_halves", 4),
    "avx512.rcp14.ps": ("rcp14", 3),
    "avx512.rsqrt14.ps": ("rsqrt14", 3),
    "avx512.permvar.sf": ("permute_words", 2),
    "avx512.permvar.hi": ("permute_halves", 2),
    "avx512.vpermi2var.ps": ("permute_two", 3),
    "avx512bf16.cvtneps2bf16": ("round_bfloat16", 1),
    "avx512bf16.cvtne2ps2bf16": ("round_two_bfloat16", 2),
    "avx512bf16.dpbf16ps": ("dpbf16ps", 3),
    "avx512.vpdpbusd": ("vpdpbusd", 3),
    "avx512.pmaddw.d": ("pmaddwd", 2),
}
# The same of tiles.cpp, by whole names.
_TILES = {
    "ldtilecfg": ("ldtilecfg", 1), "tilerelease": ("tilerelease", 0), "tilezero": ("tilezero", 1),
    "tileloadd64": ("tileloadd", 3), "tileloaddt164": ("tileloaddt1", 3),
    "tilestored64": ("tilestored", 3), "tdpbf16ps": ("tdpbf16ps", 3), "tdpbssd": ("tdpbssd", 3),
    "tdpbuud": ("tdpbuud", 3),
}  # fmt: skip
_SIZE = re.compile(r"\.(?:128|256|512)$")
_TYPE = re.compile(r"<(?P<lanes>\d+) x \w+>|\b(?:ptr|void|i\d+)\b")


@dataclass(frozen=True, slots=True)
class StandIn:
    """A function of ``vectors.cpp`` or ``tiles.cpp``.

    It takes how many elements the result has and where it goes (where there is one), then
    ``count`` arguments: vectors by address, integers as 64 bits. The last one is the rounding
    where intrinsics of 512 bits have one more than others.
    """

    symbol: str
    count: int


def find_stand_in(intrinsic: str) -> StandIn | None:
    """Return what stands in for an intrinsic ("llvm.x86.tilezero"), None if nothing does."""
    name = intrinsic.removeprefix("llvm.x86.")
    found = _TILES.get(name) or (_VECTORS.get(_SIZE.sub("", name)) if _SIZE.search(name) else None)
    return None if found is None else StandIn(f"x86_{found[0]}", found[1])


def calling_text(name: str, found: StandIn, result: str, given: Sequence[str]) -> tuple[str, str]:
    """Return a function that calls a stand-in, and the declaration of the latter.

    Args:
        name: of the function.
        found: the stand-in.
        result: the type that the function returns.
        given: the types that it takes.
    """
    parameters = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(given))
    lines = [f"define internal {result} @{name}({parameters}) {{"]
    passed = []
    if result != "void":
        lines.append(f"  %to = alloca {result}, align 64")
        passed = [f"i64 {_lanes(result)}", "ptr %to"]
    for i, kind in enumerate(given):
        if _lanes(kind):
            lines += [f"  %p{i} = alloca {kind}, align 64",
                      f"  store {kind} %a{i}, ptr %p{i}, align 64"]  # fmt: skip
            passed.append(f"ptr %p{i}")
        elif kind in ("ptr", "i64"):
            passed.append(f"{kind} %a{i}")
        else:
            lines.append(f"  %p{i} = zext {kind} %a{i} to i64")
            passed.append(f"i64 %p{i}")
    passed += [f"i64 {CURRENT_ROUNDING}"] * (found.count - len(given))
    lines.append(f"  call void @{found.symbol}({', '.join(passed)})")
    if result == "void":
        lines.append("  ret void")
    else:
        lines += [f"  %found = load {result}, ptr %to, align 64", f"  ret {result} %found"]
    kinds = ", ".join(argument.split()[0] for argument in passed)
    return "\n".join([*lines, "}"]), f"declare void @{found.symbol}({kinds})"


def types_of(text: str) -> list[str]:
    """Return the types in the parameters of a declaration, without what else is said of them."""
    return [found.group() for found in _TYPE.finditer(text)]


def _lanes(kind: str) -> int:
    """Return how many elements a type has, 0 of one that is no vector."""
    found = _TYPE.fullmatch(kind)
    return int(found["lanes"] or 0) if found else 0
