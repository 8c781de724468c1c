"""Elements of 4 bits in memory: loads and stores of nibbles, as functions in LLVM IR.

A store of whole bytes is a plain store. A byte of which only one half is written is updated by
compare-and-swap, so that blocks that write neighbouring elements at once do not lose either.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.lowering.llvm_text import shuffle_order, splat
from tilecore.lowering.tir import TirBuilder, add, index, mul, vector_type

_HEAD = "define linkonce_odr hidden"


def load_codes(builder: TirBuilder, memory: Any, offset: Any, lanes: int, stride: int) -> Any:
    """Return the codes of ``lanes`` elements from ``offset`` on, ``stride`` apart, as bytes."""
    if lanes > 1 and stride != 1:
        each = [
            load_codes(builder, memory, add(offset, mul(i, stride)), 1, 1) for i in range(lanes)
        ]
        return tir.Shuffle(each, [tir.IntImm("int32", i) for i in range(lanes)])
    name = f"tilecore_load_nibbles_x{lanes}"
    builder.define_llvm(name, _load_text(name, lanes))
    kind = vector_type("uint8", lanes)
    return tir.call_extern(kind, name, tir.buffer_data(memory), _wide(offset))


def store_codes(
    builder: TirBuilder, memory: Any, codes: Any, offset: Any, lanes: int, stride: int
) -> None:
    """Store the codes of neighbouring elements."""
    assert lanes == 1 or stride == 1  # checked by stride_of before vector code is chosen
    one = _store_name(1)
    builder.define_llvm(one, _STORE_ONE)
    if lanes > 1:
        builder.define_llvm(_store_name(lanes), _store_text(lanes))
    call = tir.call_extern(
        "int32", _store_name(lanes), tir.buffer_data(memory), _wide(offset), codes
    )
    builder.evaluate(call)


def _wide(offset: Any) -> Any:
    return tir.Cast("int64", index(offset))


def _store_name(lanes: int) -> str:
    return f"tilecore_store_nibbles_x{lanes}"


def _load_text(name: str, lanes: int) -> str:
    if lanes == 1:
        return f"""{_HEAD} i8 @{name}(ptr %p, i64 %o) alwaysinline {{
  %at = ashr i64 %o, 1
  %q = getelementptr i8, ptr %p, i64 %at
  %byte = load i8, ptr %q
  %bit = trunc i64 %o to i8
  %odd = and i8 %bit, 1
  %shift = shl i8 %odd, 2
  %moved = lshr i8 %byte, %shift
  %code = and i8 %moved, 15
  ret i8 %code
}}"""
    half, whole = lanes // 2, f"i{4 * lanes}"
    fours, together = splat("i8", half, 4), shuffle_order(_interleaved(half))
    # From an odd element on, its bytes and one more, which is that of the last element.
    return f"""{_HEAD} <{lanes} x i8> @{name}(ptr %p, i64 %o) alwaysinline {{
  %at = ashr i64 %o, 1
  %q = getelementptr i8, ptr %p, i64 %at
  %even = load {whole}, ptr %q, align 1
  %end = add i64 %o, {lanes - 1}
  %endat = ashr i64 %end, 1
  %r = getelementptr i8, ptr %p, i64 %endat
  %last = load i8, ptr %r
  %wide = zext i8 %last to {whole}
  %top = shl {whole} %wide, {4 * lanes - 4}
  %down = lshr {whole} %even, 4
  %moved = or {whole} %top, %down
  %bit = and i64 %o, 1
  %isodd = icmp ne i64 %bit, 0
  %bits = select i1 %isodd, {whole} %moved, {whole} %even
  %bytes = bitcast {whole} %bits to <{half} x i8>
  %low = and <{half} x i8> %bytes, {splat("i8", half, 15)}
  %high = lshr <{half} x i8> %bytes, {fours}
  %codes = shufflevector <{half} x i8> %low, <{half} x i8> %high, {together}
  ret <{lanes} x i8> %codes
}}"""


def _store_text(lanes: int) -> str:
    half, kind = lanes // 2, f"<{lanes} x i8>"
    one, name = _store_name(1), _store_name(lanes)
    return f"""{_HEAD} i32 @{name}(ptr %p, i64 %o, {kind} %c) {{
entry:
  %at = ashr i64 %o, 1
  %q = getelementptr i8, ptr %p, i64 %at
  %bit = and i64 %o, 1
  %isodd = icmp ne i64 %bit, 0
  br i1 %isodd, label %odd, label %even
even:
{_pairs("e", kind, 0, half)}
  store <{half} x i8> %e, ptr %q, align 1
  ret i32 0
odd:
  %first = extractelement {kind} %c, i32 0
  call i32 @{one}(ptr %p, i64 %o, i8 %first)
{_inner(kind, half)}  %end = add i64 %o, {lanes - 1}
  %last = extractelement {kind} %c, i32 {lanes - 1}
  call i32 @{one}(ptr %p, i64 %end, i8 %last)
  ret i32 0
}}"""


def _inner(kind: str, half: int) -> str:
    """Return the stores of the whole bytes after a first element that is the end of its byte."""
    if half == 1:
        return ""
    return f"""  %next = getelementptr i8, ptr %q, i64 1
{_pairs("m", kind, 1, half - 1)}
  store <{half - 1} x i8> %m, ptr %next, align 1
"""


def _pairs(name: str, kind: str, first: int, count: int) -> str:
    """Return code that makes ``count`` bytes of elements from ``first`` on."""
    low, high = (shuffle_order([first + side + 2 * i for i in range(count)]) for side in (0, 1))
    narrow = f"<{count} x i8>"
    return f"""  %{name}low = shufflevector {kind} %c, {kind} poison, {low}
  %{name}high = shufflevector {kind} %c, {kind} poison, {high}
  %{name}up = shl {narrow} %{name}high, {splat("i8", count, 4)}
  %{name} = or {narrow} %{name}low, %{name}up"""


def _interleaved(half: int) -> list[int]:
    return [lane for i in range(half) for lane in (i, half + i)]


_STORE_ONE = f"""{_HEAD} i32 @{_store_name(1)}(ptr %p, i64 %o, i8 %c) {{
entry:
  %at = ashr i64 %o, 1
  %q = getelementptr i8, ptr %p, i64 %at
  %bit = trunc i64 %o to i8
  %odd = and i8 %bit, 1
  %shift = shl i8 %odd, 2
  %put = shl i8 %c, %shift
  %mask = shl i8 15, %shift
  %keep = xor i8 %mask, -1
  %first = load atomic i8, ptr %q monotonic, align 1
  br label %again
again:
  %old = phi i8 [ %first, %entry ], [ %seen, %again ]
  %rest = and i8 %old, %keep
  %new = or i8 %rest, %put
  %pair = cmpxchg ptr %q, i8 %old, i8 %new monotonic monotonic
  %seen = extractvalue {{ i8, i1 }} %pair, 0
  %done = extractvalue {{ i8, i1 }} %pair, 1
  br i1 %done, label %end, label %again
end:
  ret i32 0
}}"""

__all__ = ["load_codes", "store_codes"]
