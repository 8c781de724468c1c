"""float32 rounded to bfloat16 by the instruction, which takes subnormal numbers for 0.

Two vectors whose places lie side by side are rounded at once, which takes as long as one of them.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.lowering.tir import TirBuilder, vector_type

LANES = 16
NAME = f"tilecore_bfloat16_x{LANES}"
PAIR = f"tilecore_bfloat16_x{2 * LANES}"


def rounded(builder: TirBuilder, value: Any) -> Any:
    """Return ``LANES`` values as the bits of bfloat16, rounded to nearest even."""
    builder.define_llvm(NAME, _TEXT)
    return tir.call_pure_extern(vector_type("uint16", LANES), NAME, value)


class Pairs:
    """Vectors of neighbouring iterations that are kept back to be rounded in pairs.

    Nothing may read them before ``store``.
    """

    def __init__(self, builder: TirBuilder) -> None:
        self.builder = builder
        self.kept: dict[Any, list[tuple[Any, Any]]] = {}

    def keep(self, memory: Any, offset: Any, value: Any) -> None:
        """Keep the floats of one vector, which go to ``offset``."""
        found = self.kept.setdefault(memory, [])
        found.append((self.builder.bind(offset), self.builder.bind(value)))

    def store(self) -> None:
        """Store what was kept: the second of each pair lies after the first."""
        self.builder.define_llvm(PAIR, _PAIR_TEXT)
        for memory, found in self.kept.items():
            for (offset, first), (_, second) in zip(found[::2], found[1::2], strict=True):
                kind = vector_type("uint16", 2 * LANES)
                words = tir.call_pure_extern(kind, PAIR, second, first)
                self.builder.store(memory, words, offset, 2 * LANES)


_INSTRUCTION = "llvm.x86.avx512bf16.cvtneps2bf16.512"
_TEXT = f"""declare <16 x bfloat> @{_INSTRUCTION}(<16 x float>)
define linkonce_odr hidden <16 x i16> @{NAME}(<16 x float> %x) alwaysinline {{
  %y = call <16 x bfloat> @{_INSTRUCTION}(<16 x float> %x)
  %r = bitcast <16 x bfloat> %y to <16 x i16>
  ret <16 x i16> %r
}}"""
_PAIR_INSTRUCTION = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
_PAIR_ARGUMENTS = "<16 x float> %second, <16 x float> %first"
_PAIR_TEXT = f"""declare <32 x bfloat> @{_PAIR_INSTRUCTION}(<16 x float>, <16 x float>)
define linkonce_odr hidden <32 x i16> @{PAIR}({_PAIR_ARGUMENTS}) alwaysinline {{
  %y = call <32 x bfloat> @{_PAIR_INSTRUCTION}({_PAIR_ARGUMENTS})
  %r = bitcast <32 x bfloat> %y to <32 x i16>
  ret <32 x i16> %r
}}"""
