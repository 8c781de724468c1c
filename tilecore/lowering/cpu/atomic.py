"""Atomic updates on CPUs, as functions in LLVM IR that TVM links into the kernel.

TIR has no atomic operations. Integers, float32 and float64 use LLVM's atomicrmw; 16-bit floats
are widened to float32 and written back by compare-and-swap until no other core was faster. The
order is sequentially consistent, whatever weaker one a program asks for.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tvm import tirx as tir

from tilecore.errors import UnsupportedOnTarget
from tilecore.ir.dtype import DType
from tilecore.ir.expr import cast, const
from tilecore.ir.nodes import Atomic, Buffer
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.scalar import convert, zero
from tilecore.target import Target

_TYPES = {8: "i8", 16: "i16", 32: "i32", 64: "i64"}
_INTEGER = {"add": "add", "max": "max", "min": "min", "or": "or", "store": "xchg"}
_FLOAT = {"add": "fadd", "max": "fmax", "min": "fmin", "store": "xchg"}


def emit_atomic(accessor: Accessor, stmt: Atomic, target: Target) -> None:
    """Emit one update, guarded where it may leave its tensor.

    Raises:
        UnsupportedOnTarget: the element type has no atomic updates (TC302).
    """
    builder, buffer, dtype = accessor.builder, stmt.buffer, stmt.buffer.dtype
    if dtype == "bool":
        raise UnsupportedOnTarget(
            what=f"atomic {stmt.op} on `{buffer.name}` ({dtype})", target=target,
            reason="no such update", span=stmt.span,
        )  # fmt: skip
    place = accessor.places[buffer]
    at = place.indices(stmt.indices)
    cond = accessor.guard(accessor.open_ends(place, at), accessor.scope())
    if stmt.prev is not None and cond is not None:
        _keep(accessor, stmt.prev, zero(dtype), dtype)
    with nullcontext() if cond is None else builder.when(cond):
        value = builder.bind(accessor.value(cast(stmt.value, dtype)))
        offset, _ = accessor.offset(place, at)
        pointer = tir.address_of(tir.BufferLoad(place.memory, [offset]))
        old = builder.bind(_update(accessor, stmt.op, dtype, pointer, value))
        if stmt.prev is not None:
            _keep(accessor, stmt.prev, old, dtype)


def _keep(accessor: Accessor, prev: Buffer, value: Any, dtype: str) -> None:
    accessor.store(prev, (const(0),), value, dtype, accessor.scope())


def _update(accessor: Accessor, op: str, dtype: DType, pointer: Any, value: Any) -> Any:
    name = f"tilecore_atomic_{op}_{dtype}"
    if dtype.is_float and dtype.bits == 16:
        wide = convert(value, dtype, "float32", 1)
        text = _half_text(name, op, dtype)
        old = accessor.builder.call_llvm("float32", name, text, pointer, wide)
        return convert(old, "float32", dtype, 1)
    return accessor.builder.call_llvm(str(dtype), name, _text(name, op, dtype), pointer, value)


def _text(name: str, op: str, dtype: DType) -> str:
    """Return a function of (pointer, value) that updates an element and returns its old value."""
    kind = {"float32": "float", "float64": "double"}.get(dtype, _TYPES[dtype.bits])
    step = (_FLOAT if dtype.is_float else _INTEGER).get(op, op)
    if step in ("max", "min") and not dtype.is_signed:
        step = f"u{step}"
    if op == "load":
        line = f"%old = load atomic {kind}, ptr %p seq_cst, align {dtype.itemsize}"
    else:
        line = f"%old = atomicrmw {step} ptr %p, {kind} %v seq_cst"
    return f"""define linkonce_odr hidden {kind} @{name}(ptr %p, {kind} %v) alwaysinline {{
  {line}
  ret {kind} %old
}}"""


_WIDEN = {
    "float16": """  %half = bitcast i16 %old to half
  %a = fpext half %half to float""",
    "bfloat16": """  %upper = zext i16 %old to i32
  %bits = shl i32 %upper, 16
  %a = bitcast i32 %bits to float""",
}
_NARROW = {
    "float16": """  %rounded = fptrunc float %r to half
  %new = bitcast half %rounded to i16""",
    "bfloat16": """  %b = bitcast float %r to i32
  %high = lshr i32 %b, 16
  %odd = and i32 %high, 1
  %bias = add i32 %odd, 32767
  %sum = add i32 %b, %bias
  %even = lshr i32 %sum, 16
  %quiet = or i32 %high, 64
  %nan = fcmp uno float %r, %r
  %chosen = select i1 %nan, i32 %quiet, i32 %even
  %new = trunc i32 %chosen to i16""",
}


def _replace(compare: str) -> str:
    return f"""%better = fcmp {compare} float %v, %a
  %lost = fcmp uno float %a, %a
  %takes = or i1 %better, %lost
  %r = select i1 %takes, float %v, float %a"""


_RESULT = {
    "add": "%r = fadd float %a, %v",
    "max": _replace("ogt"),
    "min": _replace("olt"),
    "store": "%r = select i1 true, float %v, float %a",
}


def _half_text(name: str, op: str, dtype: DType) -> str:
    """Return the same for an element of 16 bits, with values and results in float32."""
    head = f"define linkonce_odr hidden float @{name}(ptr %p, float %v) alwaysinline {{"
    if op == "load":
        return f"""{head}
  %old = load atomic i16, ptr %p seq_cst, align 2
{_WIDEN[dtype]}
  ret float %a
}}"""
    return f"""{head}
entry:
  %first = load atomic i16, ptr %p monotonic, align 2
  br label %again
again:
  %old = phi i16 [ %first, %entry ], [ %seen, %again ]
{_WIDEN[dtype]}
  {_RESULT[op]}
{_NARROW[dtype]}
  %pair = cmpxchg ptr %p, i16 %old, i16 %new seq_cst seq_cst
  %seen = extractvalue {{ i16, i1 }} %pair, 0
  %done = extractvalue {{ i16, i1 }} %pair, 1
  br i1 %done, label %end, label %again
end:
  ret float %a
}}"""
