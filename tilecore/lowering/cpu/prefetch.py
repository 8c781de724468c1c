"""Fetching ahead: cache lines that are needed soon, brought to a cache."""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.lowering.tir import TirBuilder, index

L1, L2 = 3, 2  # LLVM's word for it: locality
CALL = "call void @llvm.prefetch.p0(ptr {}, i32 0, i32 {}, i32 1)"  # to read, to which, data


def declare(builder: TirBuilder) -> None:
    """Make ``CALL`` known to functions in LLVM IR."""
    builder.define_llvm("prefetch", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")


def fetch(builder: TirBuilder, memory: Any, offset: Any, cache: int = L2) -> None:
    """Fetch the cache line of an element, which need not exist, to ``cache``."""
    declare(builder)
    name = f"tilecore_fetch_{cache}"
    builder.define_llvm(name, _text(name, cache))
    address = tir.address_of(tir.BufferLoad(memory, [index(offset)]))
    builder.evaluate(tir.call_extern("int32", name, address))


def _text(name: str, cache: int) -> str:
    return f"""define linkonce_odr hidden i32 @{name}(ptr %line) alwaysinline {{
  {CALL.format("%line", cache)}
  ret i32 0
}}"""
