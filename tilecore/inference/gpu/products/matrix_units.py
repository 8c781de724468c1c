"""What the matrix units of NVIDIA's GPUs multiply: element types, sums and shapes by architecture.

Source: PTX ISA 9.0, tables "Matrix shapes" and target notes of mma (9.7.14.5) and wgmma (9.7.15.5).
"""

from __future__ import annotations

from collections.abc import Iterator

from tilecore.gpu_target import GpuTarget
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Gemm

Shape = tuple[int, int, int]
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int8", "uint8")
# (Operand types that mix, types of sums, (first architecture, M N K), the widest last).
_MMA: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[int, Shape], ...]], ...] = (
    (("float16",), ("float32", "float16"), ((75, (16, 8, 8)), (80, (16, 8, 16)))),
    (("bfloat16",), ("float32",), ((80, (16, 8, 8)), (80, (16, 8, 16)))),
    (("tfloat32",), ("float32",), ((80, (16, 8, 4)), (80, (16, 8, 8)))),
    # m16n8k16 of float64 too: its operands take twice the registers and spill.
    (("float64",), ("float64",), ((80, (8, 8, 4)), (90, (16, 8, 4)), (90, (16, 8, 8)))),
    (INTEGERS, ("int32",), ((75, (8, 8, 16)), (80, (16, 8, 16)), (80, (16, 8, 32)))),
    (FLOAT8, ("float32", "float16"), ((89, (16, 8, 32)),)),
)  # fmt: skip
# Operand types that mix, types of sums; one instruction sums up 32 bytes of each operand.
_WGMMA: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("float16",), ("float32", "float16")),
    (("bfloat16",), ("float32",)),
    (("tfloat32",), ("float32",)),
    (FLOAT8, ("float32", "float16")),
    (INTEGERS, ("int32",)),
)
WGMMA_BYTES = 32  # of a row of an operand that one instruction reads
# Relative error of one operand: rounded to 11 significant bits by threads, cut off by wgmma.
TF32_ROUNDED, TF32_CUT = 2.0**-11, 2.0**-10


def operand_kind(dtype: str) -> str:
    """Return what a matrix unit reads an element type as: 4 bits lie in a byte each."""
    return {"float32": "tfloat32", "int4": "int8", "uint4": "uint8"}.get(dtype, dtype)


def sums_dtype(gemm: Gemm, keeps_c: bool) -> str:
    """Return the type of the sums.

    A fragment of float16 is summed up in float16 where the units can, as the program says; on its
    way elsewhere a sum is rounded once, at the end.
    """
    narrow = gemm.a.dtype.itemsize < 4 and gemm.a.dtype != "bfloat16"
    if keeps_c and gemm.c.buffer.dtype == "float16" and narrow:
        return "float16"
    return str(accumulator_dtype(gemm))


def mma_shapes(a: str, b: str, c: str, target: GpuTarget) -> Iterator[Shape]:
    """Yield M, N, K of the instructions of a warp, the widest first."""
    for operands, sums, shapes in _MMA:
        if a in operands and b in operands and c in sums:
            for first, shape in reversed(shapes):
                if target.capability >= first:
                    yield shape


def has_wgmma_types(a: str, b: str, c: str) -> bool:
    """Return whether warpgroups multiply these types."""
    return any(a in operands and b in operands and c in sums for operands, sums in _WGMMA)
