"""Fetching ahead: cache lines that are needed soon, brought to the L2 cache."""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.lowering.cpu.tir import TirBuilder, index

FETCH = "tilecore_fetch"
CALL = "call void @llvm.prefetch.p0(ptr {}, i32 0, i32 2, i32 1)"  # to read, to L2, data
_TEXT = f"""define linkonce_odr hidden i32 @{FETCH}(ptr %line) alwaysinline {{
  {CALL.format("%line")}
  ret i32 0
}}"""


def declare(builder: TirBuilder) -> None:
    """Make ``CALL`` known to functions in LLVM IR."""
    builder.define_llvm("prefetch", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")


def fetch(builder: TirBuilder, memory: Any, offset: Any) -> None:
    """Fetch the cache line of an element, which need not exist."""
    declare(builder)
    builder.define_llvm(FETCH, _TEXT)
    address = tir.address_of(tir.BufferLoad(memory, [index(offset)]))
    builder.evaluate(tir.call_extern("int32", FETCH, address))
