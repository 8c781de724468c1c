"""float32 rounded to bfloat16 by the instruction, which takes subnormal numbers for 0."""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.lowering.cpu.tir import TirBuilder, vector_type

LANES = 16
NAME = f"tilecore_bfloat16_x{LANES}"


def rounded(builder: TirBuilder, value: Any) -> Any:
    """Return ``LANES`` values as the bits of bfloat16, rounded to nearest even."""
    builder.define_llvm(NAME, _TEXT)
    return tir.call_pure_extern(vector_type("uint16", LANES), NAME, value)


_INSTRUCTION = "llvm.x86.avx512bf16.cvtneps2bf16.512"
_TEXT = f"""declare <16 x bfloat> @{_INSTRUCTION}(<16 x float>)
define linkonce_odr hidden <16 x i16> @{NAME}(<16 x float> %x) alwaysinline {{
  %y = call <16 x bfloat> @{_INSTRUCTION}(<16 x float> %x)
  %r = bitcast <16 x bfloat> %y to <16 x i16>
  ret <16 x i16> %r
}}"""
