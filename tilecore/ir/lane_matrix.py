"""Matrices that the lanes of a warp hold in pieces, as the mma instructions of NVIDIA's GPUs do.

With ``group = lane // 4``, ``place = lane % 4`` and ``e`` elements in a register of 32 bits (one of
64 bits), register ``r`` of A holds row ``group + 8 * (r % 2)``, columns ``e * place + 4 * e * (r //
2)`` on (of 8 rows: row ``group``, columns ``e * place + 4 * e * r`` on); register ``r`` of B column
``group``, rows ``e * place + 4 * e * r`` on; element ``i`` of C is in row ``group + 8 * (i // 2)``,
column ``2 * place + i % 2``.
Source: PTX ISA 9.0, section 9.7.14.5 (fragments of mma.m8n8k4 of float64, .m8n8k16, .m16n8k*).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilecore.ir.dtype import DType
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import LaneGemm

LANES = 32
Shape = tuple[int, int, int]
_FLOATS, _INTEGERS = ("float16", "float32"), ("int32",)
# Type of A and B -> (types of C, shapes M, N, K); 8-bit types of one kind may be mixed.
PRODUCTS: Mapping[str, tuple[tuple[str, ...], tuple[Shape, ...]]] = {
    "float16": (_FLOATS, ((16, 8, 8), (16, 8, 16))),
    "bfloat16": (("float32",), ((16, 8, 8), (16, 8, 16))),
    "float32": (("float32",), ((16, 8, 4), (16, 8, 8))),
    "float64": (("float64",), ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16))),
    "int8": (_INTEGERS, ((8, 8, 16), (16, 8, 16), (16, 8, 32))),
    "uint8": (_INTEGERS, ((8, 8, 16), (16, 8, 16), (16, 8, 32))),
    "float8_e4m3fn": (_FLOATS, ((16, 8, 32),)),
    "float8_e5m2": (_FLOATS, ((16, 8, 32),)),
}


def fault_of(product: LaneGemm) -> tuple[str, str] | None:
    """Return (what is expected of a product, what it is instead), None where there is one."""
    a, b, c = (str(region.dtype) for region in (product.a, product.b, product.c))
    sums, shapes = PRODUCTS.get(a, ((), ()))
    size = "x".join(map(str, product.shape))
    if not shapes:
        return f"A of {', '.join(PRODUCTS)}", a
    if c not in sums or PRODUCTS.get(b) != (sums, shapes):
        return f"B of a type like A's and C of {' or '.join(sums)} for A of {a}", f"{b} and {c}"
    if product.shape not in shapes:
        return f"a product of {a} of {', '.join('x'.join(map(str, s)) for s in shapes)}", size
    held = tuple(int_value(region.extents[0]) for region in (product.a, product.b, product.c))
    if held != counts(product.shape):
        return f"{counts(product.shape)} elements a lane of A, B and C for {size}", str(held)
    return None


def counts(shape: Shape) -> tuple[int, int, int]:
    """Return how many elements of A, B and C a lane holds."""
    m, n, k = shape
    return m * k // LANES, n * k // LANES, m * n // LANES


def place_in_a(lane: Any, element: int, shape: Shape, dtype: DType) -> tuple[Any, Any]:
    """Return row and column of an element of A that a lane (a number or an expression) holds."""
    each = per_register(dtype)
    register, rest = divmod(element, each)
    down, along = (register % 2, register // 2) if shape[0] == 16 else (0, register)
    return lane // 4 + 8 * down, lane % 4 * each + (rest + 4 * each * along)


def place_in_b(lane: Any, element: int, dtype: DType) -> tuple[Any, Any]:
    """Return row (along K) and column of an element of B that a lane holds."""
    each = per_register(dtype)
    register, rest = divmod(element, each)
    return lane % 4 * each + (rest + 4 * each * register), lane // 4


def place_in_c(lane: Any, element: int) -> tuple[Any, Any]:
    """Return row and column of an element of C that a lane holds."""
    return lane // 4 + 8 * (element // 2), lane % 4 * 2 + element % 2


def per_register(dtype: DType) -> int:
    """Return how many elements a register of 32 bits holds (of a wider type: one, in several)."""
    return max(1, 32 // dtype.bits)
