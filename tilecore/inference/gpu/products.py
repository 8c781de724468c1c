"""Matrix products: which instruction, how warps divide C, who holds what of A, B and C.

Source of the register layouts: PTX ISA 8.7, "Matrix fragments for mma.m16n8k16" and its siblings.
All shapes m16n8 share one pattern: with g = lane / 4, q = lane % 4 and p elements per register,
A[g + 8 h, 4 p kh + p q + e], B[g, 4 p kh + p q + e], C[g + 8 h, 2 q + e].
"""

from __future__ import annotations

import math

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.distribution import Distribution, by_slot, by_thread
from tilecore.inference.gpu.plan import GemmPlan, Operand
from tilecore.ir.analysis import kept_axes
from tilecore.ir.dtype import DType
from tilecore.ir.expr import int_value
from tilecore.ir.gemm_shape import accumulator_dtype, matrix_shape
from tilecore.ir.nodes import Gemm, Region

WARP = 32
# (A, B, accumulator) -> (first architecture, K of m16n8)
MMA_STEPS = {
    ("float16", "float16", "float32"): ((75, 8), (80, 16)),
    ("bfloat16", "bfloat16", "float32"): ((80, 16),),
    ("int8", "int8", "int32"): ((80, 32),),
    ("uint8", "uint8", "int32"): ((80, 32),),
    ("float8_e4m3fn", "float8_e4m3fn", "float32"): ((89, 32),),
    ("float8_e5m2", "float8_e5m2", "float32"): ((89, 32),),
}


def mma_step(a: str, b: str, c: str, capability: int) -> int | None:
    """Return the K of the widest ``mma.m16n8`` for these types, or None."""
    steps = MMA_STEPS.get((a, b, c), ())
    return max((k for first, k in steps if capability >= first), default=None)


def plan_gemm(
    gemm: Gemm, threads: int, target: GpuTarget, in_registers: tuple[bool, bool, bool]
) -> GemmPlan:
    """Return how a product runs.

    Args:
        gemm: the product; its extents are known.
        threads: of the block.
        target: decides which instructions there are.
        in_registers: whether A, B and C are fragments.
    """
    size = _size(gemm)
    accumulated = str(accumulator_dtype(gemm))
    kinds = (str(gemm.a.dtype), str(gemm.b.dtype), accumulated)
    step = mma_step(*kinds, target.capability)
    reason = ""
    if step is None:
        reason = f"no mma for {kinds[0]} x {kinds[1]} on {target.arch}"
    elif threads % WARP:
        reason = f"{threads} threads are no whole warps"
    elif size[0] % 16 or size[1] % 8 or size[2] % step:
        reason = f"not a multiple of 16x8x{step}"
    if reason or step is None:
        return _fma(gemm, size, threads, in_registers[2], reason)
    warps = divide_warps(size[0], size[1], threads // WARP, gemm.policy, (16, 8))
    per_register = 4 // DType(kinds[0]).itemsize
    a = _operand(gemm.a, size[0], size[2], step, per_register, (warps[0], WARP * warps[1]), 16,
                 threads, gemm.transpose_a, in_registers[0])  # fmt: skip
    b = _operand(gemm.b, size[1], size[2], step, per_register, (warps[1], WARP), 8,
                 threads, not gemm.transpose_b, in_registers[1])  # fmt: skip
    c = accumulators(size[0], size[1], warps, threads)
    return GemmPlan(gemm, "mma", (16, 8, step), size, warps, a, b, c, in_registers[2])


def _size(gemm: Gemm) -> tuple[int, int, int]:
    m, n = (int_value(e) for e in matrix_shape(gemm.c, "C"))
    first, second = matrix_shape(gemm.a, "A")
    k = int_value(first if gemm.transpose_a else second)
    assert m is not None
    assert n is not None
    assert k is not None
    return m, n, k


def divide_warps(m: int, n: int, warps: int, policy: str, atom: tuple[int, int]) -> tuple[int, int]:
    """Return (rows, columns) of warps over C.

    "full_row" and "full_col" put as many warps as fit along M and N; "square" makes the part of a
    warp as square as it gets, which needs the fewest loads of A and B.
    """
    choices = [
        (rows, columns)
        for rows in range(1, warps + 1)
        for columns in range(1, warps // rows + 1)
        if warps % (rows * columns) == 0
        and m % (rows * atom[0]) == 0
        and n % (columns * atom[1]) == 0
    ]

    def cost(choice: tuple[int, int]) -> tuple[float, ...]:
        rows, columns = choice
        idle = -rows * columns
        if policy == "full_row":
            return idle, -rows
        if policy == "full_col":
            return idle, -columns
        return idle, m / rows + n / columns

    return min(choices, key=cost)


def accumulators(m: int, n: int, warps: tuple[int, int], threads: int) -> Distribution:
    """Return who holds C of m16n8 instructions."""
    tiles = n // (8 * warps[1])
    rows = (
        by_thread(warps[0], WARP * warps[1]),
        by_slot(m // (16 * warps[0]), 4 * tiles),
        by_slot(2, 2),
        by_thread(8, 4),
    )
    columns = (by_thread(warps[1], WARP), by_slot(tiles, 4), by_thread(4, 1), by_slot(2, 1))
    return Distribution((m, n), (rows, columns), threads)


def _operand(
    tile: Region,
    rows: int,
    depth: int,
    step: int,
    per_register: int,
    warps: tuple[int, int],
    atom: int,
    threads: int,
    is_transposed: bool,
    in_registers: bool,
) -> Operand:
    """Return how A (atom 16) or B (atom 8) is spread; ``warps``: how many, and their stride."""
    halves, high = atom // 8, step // (4 * per_register)
    tiles = rows // (atom * warps[0])
    unit = per_register * halves * high  # slots of one instruction
    across = (
        by_thread(*warps),
        by_slot(tiles, unit),
        by_slot(halves, per_register),
        by_thread(8, 4),
    )
    along = (
        by_slot(depth // step if in_registers else 1, unit * tiles),
        by_slot(high, per_register * halves),
        by_thread(4, 1),
        by_slot(per_register, 1),
    )
    shape = (rows, depth if in_registers else step)
    axes = (across, along)
    if is_transposed and in_registers:  # fragments have the axes of their tile
        shape, axes = (shape[1], shape[0]), (along, across)
    source = "registers" if in_registers else _source(tile, is_transposed)
    return Operand(Distribution(shape, axes, threads), source, is_transposed)


def _source(tile: Region, is_transposed: bool) -> str:
    """Return whether ldmatrix can load an operand: 16-byte rows of 16-bit elements, or K inside."""
    shape = tile.buffer.static_shape
    kept = kept_axes(tile)
    is_matrix = shape is not None and len(kept) == 2 and kept == (len(shape) - 2, len(shape) - 1)
    if tile.buffer.scope != "shared" or not is_matrix or shape is None:
        return "elements"
    itemsize = tile.dtype.itemsize
    aligned = all(
        (shape[axis] if axis == -1 else int_value(tile.offsets[axis]) or 0) * itemsize % 16 == 0
        for axis in (-1,)
    )
    starts = int_value(tile.offsets[-1])
    if not aligned or starts is None or starts * itemsize % 16:
        return "elements"
    return "ldmatrix" if itemsize == 2 or not is_transposed else "elements"


def _fma(
    gemm: Gemm, size: tuple[int, int, int], threads: int, keeps_c: bool, reason: str
) -> GemmPlan:
    """Return a product of multiply-adds; each thread has a part of C as square as it gets."""
    m, n, _ = size
    vector = math.gcd(n, 4)
    columns = math.gcd(n // vector, 16 if threads >= 128 else 8)
    columns = math.gcd(columns, threads)
    rows = math.gcd(m, threads // columns)
    c = Distribution(
        (m, n),
        (
            (by_slot(m // rows, n // columns), by_thread(rows, columns)),
            (by_slot(n // (columns * vector), vector), by_thread(columns, 1), by_slot(vector, 1)),
        ),
        threads,
    )
    a = Operand(c, "elements", gemm.transpose_a)
    b = Operand(c, "elements", not gemm.transpose_b)
    return GemmPlan(gemm, "fma", (1, 1, 1), size, (1, 1), a, b, c, keeps_c, reason)
