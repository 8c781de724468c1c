"""Stores past the caches (non-temporal), where the address allows: of whole, aligned vectors."""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.ir.dtype import DType
from tilecore.lowering.llvm_text import LLVM_TYPES
from tilecore.lowering.tir import TirBuilder, index

FENCE = "tilecore_fence"
HINT = "!tilecore_stream"


def store(builder: TirBuilder, memory: Any, value: Any, offset: Any, lanes: int) -> None:
    """Store ``lanes`` elements; past the caches if the address is a multiple of their size."""
    dtype = str(memory.dtype)
    name = f"tilecore_stream_{dtype}_x{lanes}"
    builder.define_llvm(HINT, f"{HINT} = !{{!0}}\n!0 = !{{i32 1}}")
    size = lanes * DType(dtype).itemsize
    builder.define_llvm(name, _text(name, f"<{lanes} x {LLVM_TYPES[dtype]}>", size))
    pointer = tir.address_of(tir.BufferLoad(memory, [index(offset)]))
    builder.evaluate(tir.call_extern("int32", name, pointer, value))


def fence(builder: TirBuilder) -> None:
    """Let all stores take effect before what follows."""
    builder.define_llvm(FENCE, _FENCE_TEXT)
    builder.evaluate(tir.call_extern("int32", FENCE))


def _text(name: str, kind: str, size: int) -> str:
    return f"""define linkonce_odr hidden i32 @{name}(ptr %to, {kind} %value) alwaysinline {{
  %address = ptrtoint ptr %to to i64
  %low = and i64 %address, {size - 1}
  %fits = icmp eq i64 %low, 0
  br i1 %fits, label %past, label %through
past:
  store {kind} %value, ptr %to, align {size}, !nontemporal !0
  ret i32 0
through:
  store {kind} %value, ptr %to, align 1
  ret i32 0
}}"""


_FENCE_TEXT = f"""declare void @llvm.x86.sse.sfence()
define linkonce_odr hidden i32 @{FENCE}() alwaysinline {{
  call void @llvm.x86.sse.sfence()
  ret i32 0
}}"""
