"""Products of Volta (sm_70): mma.m8n8k4, of which a warp computes four at once.

Source: PTX ISA 9.0, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type". Lanes 4 p ..
4 p + 3 and those 16 further on are quad pair p; with t = lane % 4 and h = lane / 16 a lane holds
A[t + 4 h, e] or, column-major, A[e + 4 h, t], and B likewise; of C in float32
[t % 2 + (e & 2) + 4 h, (e & 4) + (t & 2) + e % 2], in float16 [t + 4 h, e]. Here the four quad
pairs make up 16 x 16 elements of C: those of odd p are 8 rows, those of p > 1 8 columns further.
"""

from __future__ import annotations

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.distribution import Digit, Distribution, by_slot, by_thread
from tilecore.inference.gpu.plan import GemmPlan, Operand
from tilecore.inference.gpu.products.choice import (
    WARP,
    divide_warps,
    has_chunks,
    multiply_adds,
    size_of,
)
from tilecore.inference.gpu.products.matrix_units import sums_dtype
from tilecore.inference.gpu.threads.teams import Team
from tilecore.ir.nodes import Gemm, Region

ATOM, STEP = 16, 4
EACH = 4  # elements of an operand that a lane holds
SUMS = 8  # elements of C that a lane holds
ROW_PAIR, COLUMN_PAIR = by_thread(2, 4), by_thread(2, 8)  # of a quad pair: 8 rows or columns on
HALF = by_thread(2, 16)


def plan_quads(
    gemm: Gemm, team: Team, target: GpuTarget, in_registers: tuple[bool, bool, bool]
) -> GemmPlan:
    """Return how a product runs: by warps of four quad pairs each, or by multiply-adds.

    Args:
        gemm: the product; its extents are known.
        team: the threads that run it.
        target: a GPU of Volta.
        in_registers: whether A, B and C are fragments.
    """
    size, threads, sums = size_of(gemm), team.count, sums_dtype(gemm, in_registers[2])
    reason = ""
    if gemm.a.dtype != "float16" or gemm.b.dtype != "float16":
        reason = f"no mma for {gemm.a.dtype} x {gemm.b.dtype} on {target.arch}"
    elif threads % WARP:
        reason = f"{threads} threads are no whole warps"
    elif size[0] % ATOM or size[1] % ATOM or size[2] % STEP:
        reason = f"not a multiple of {ATOM}x{ATOM}x{STEP}"
    if reason:
        return multiply_adds(gemm, size, threads, in_registers[2], reason)
    m, n, k = size
    warps = divide_warps(m, n, threads // WARP, gemm.policy, (ATOM, ATOM))
    a = _operand(gemm.a, (m, k), (warps[0], WARP * warps[1]), ROW_PAIR, threads,
                 gemm.transpose_a, in_registers[0])  # fmt: skip
    b = _operand(gemm.b, (n, k), (warps[1], WARP), COLUMN_PAIR, threads,
                 not gemm.transpose_b, in_registers[1])  # fmt: skip
    tiles = n // (ATOM * warps[1])
    rows: tuple[Digit, ...] = (by_thread(4, 1),)
    columns: tuple[Digit, ...] = (by_slot(SUMS, 1),)
    if sums == "float32":
        rows = (by_slot(2, 2), by_thread(2, 1))
        columns = (by_slot(2, 4), by_thread(2, 2), by_slot(2, 1))
    across = (
        by_thread(warps[0], WARP * warps[1]),
        by_slot(m // (ATOM * warps[0]), SUMS * tiles),
        ROW_PAIR,
        HALF,
        *rows,
    )
    along = (by_thread(warps[1], WARP), by_slot(tiles, SUMS), COLUMN_PAIR, *columns)
    c = Distribution((m, n), (across, along), threads)
    return GemmPlan(gemm, "quads", (ATOM, ATOM, STEP), size, warps, a, b, c, in_registers[2], sums)


def _operand(
    tile: Region,
    size: tuple[int, int],
    warps: tuple[int, int],
    pair: Digit,
    threads: int,
    is_transposed: bool,
    in_registers: bool,
) -> Operand:
    """Return how an operand of (rows, K) is spread: four neighbours in memory are a lane's."""
    rows, depth = size
    tiles = rows // (ATOM * warps[0])
    inner, step = (by_thread(4, 1),), (by_slot(EACH, 1),)
    if is_transposed and not in_registers:
        inner, step = step, inner
    turns = depth // STEP if in_registers else 1
    across = (by_thread(*warps), by_slot(tiles, EACH), pair, HALF, *inner)
    along = (by_slot(turns, EACH * tiles), *step)
    shape = (rows, depth if in_registers else STEP)
    axes: tuple[tuple[Digit, ...], ...] = (across, along)
    if is_transposed and in_registers:  # fragments have the axes of their tile
        shape, axes = (shape[1], shape[0]), (along, across)
    source = "registers" if in_registers else "chunks" if has_chunks(tile) else "elements"
    return Operand(Distribution(shape, axes, threads), source, is_transposed)
