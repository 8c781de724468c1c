"""``T.ptx_mma``: products of matrices that the lanes of a warp hold in pieces."""

from __future__ import annotations

import re
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.ir.expr import ExprLike, as_expr, const
from tilecore.ir.lane_matrix import counts, fault_of
from tilecore.ir.nodes import Buffer, LaneGemm, Region
from tilecore.language.thread import thread_kernel

__all__ = ["ptx_mma"]
# What TileLang calls element types of the instruction.
KINDS = {
    "fp16": "float16", "bf16": "bfloat16", "tf32": "float32", "fp32": "float32", "fp64": "float64",
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
}  # fmt: skip


def ptx_mma(
    dtype: Any,
    shape: str,
    A_layout: str,
    B_layout: str,
    A_dtype: str,
    B_dtype: str,
    C_dtype: str,
    multiplicand_a: Buffer,
    a_index: ExprLike,
    multiplicand_b: Buffer,
    b_index: ExprLike,
    accumulator: Buffer,
    c_index: ExprLike,
    saturate: Any = False,
    operator: Any = None,
) -> None:
    """Add the product of two matrices that the lanes of each warp hold to a third: ``mma.sync``.

    All lanes come by together. Float32 is multiplied as TF32 by GPUs, as float32 by CPUs.

    Args:
        dtype: of C, as ``C_dtype`` says it too.
        shape: "m16n8k16", ... (tilecore.ir.lane_matrix has which lane holds which element).
        A_layout: "row".
        B_layout: "col".
        A_dtype: "fp16", "bf16", "tf32", "fp64", "int8", "uint8", "e4m3", "e5m2"; or a type's name.
        B_dtype: the same.
        C_dtype: "fp16", "fp32", "fp64" or "int32".
        multiplicand_a: a thread's elements of A, an array of T.alloc_local (or its ``data``).
        a_index: the first of them.
        multiplicand_b: those of B.
        b_index: the first of them.
        accumulator: those of C.
        c_index: the first of them.
        saturate: must be False.
        operator: must be None.

    Raises:
        ScopeError: outside T.Kernel (TC104).
        TypeMismatch: no such instruction, or arrays of other types (TC202).
    """
    _ = dtype
    builder, launch = thread_kernel("ptx_mma")
    launch.thread_var(0)
    found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", str(shape))
    if found is None:
        raise TypeMismatch(expected='a shape like "m16n8k16" for T.ptx_mma', found=repr(shape))
    m, n, k = (int(size) for size in found.groups())
    if (A_layout, B_layout) != ("row", "col") or operator is not None or _is_set(saturate):
        raise TypeMismatch(
            expected='layouts "row" and "col", no saturation and no operator for T.ptx_mma',
            found=f"{A_layout}, {B_layout}, {saturate}, {operator}",
        )
    parts = []
    for name, buffer, index, kind, count in zip(
        "ABC", (multiplicand_a, multiplicand_b, accumulator), (a_index, b_index, c_index),
        (A_dtype, B_dtype, C_dtype), counts((m, n, k)), strict=True,
    ):  # fmt: skip
        if not isinstance(buffer, Buffer) or buffer.scope != "local" or buffer.ndim != 1:
            raise TypeMismatch(
                expected=f"an array of T.alloc_local for {name} of T.ptx_mma", found=f"{buffer}"
            )
        wanted = KINDS.get(str(kind), str(kind))
        if str(buffer.dtype) != wanted:
            raise TypeMismatch(expected=f"{wanted} in `{buffer.name}`", found=buffer.dtype)
        parts.append(Region(buffer, (as_expr(index),), (const(count),)))
    a, b, c = parts
    product = LaneGemm(a, b, c, (m, n, k), builder.span)
    fault = fault_of(product)
    if fault is not None:
        raise TypeMismatch(expected=fault[0], found=fault[1])
    builder.emit(product)


def _is_set(flag: Any) -> bool:
    return bool(getattr(flag, "value", flag))
