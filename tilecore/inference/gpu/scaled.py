"""Products with factors that a matrix unit multiplies itself: which they are, and how they run.

Source: PTX ISA 9.0, section 9.7.14.5 (mma with .block_scale); CUTLASS, mma_traits_sm120.hpp. A row
of mma.m16n8k64 is 32 bytes of two elements each, and fragments are those of m16n8k32 of bytes. A
lane gives a word, the four factors of 64 elements: with g = lane / 4 and q = lane % 4 the lanes of
q = 2 t + h give those of row g + 8 h of A, where t (0 or 1) is a selector of the instruction, and
the lanes of q = t (0 to 3) those of column g of B. So a word of each lane is enough for two tiles
of A and for four of B.
"""

from __future__ import annotations

import math

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.distribution import Table
from tilecore.inference.gpu.plan import GemmPlan
from tilecore.inference.gpu.products import WARP, plan_mma
from tilecore.inference.gpu.teams import Team
from tilecore.ir.expr import int_value
from tilecore.ir.gemm_shape import matrix_shape
from tilecore.ir.nodes import Gemm, KernelLaunch

ELEMENTS = "float4_e2m1fn"  # of A and B, two to a byte
SHARING = 16  # elements along K that share a factor
ATOM = (16, 8, 64)  # M, N, K of the instruction
BYTES = (16, 8, 32)  # the same, K in bytes
SELECTED = (2, 4)  # tiles of A and of B for which a word of each lane is enough


def why_not(gemm: Gemm, launch: KernelLaunch, target: GpuTarget) -> str:
    """Return why no matrix unit multiplies the elements of a product and their factors, or ""."""
    a, b, c = gemm.a.buffer, gemm.b.buffer, gemm.c.buffer
    if not target.scales_blocks:
        return f"no mma with factors on {target.arch}"
    if (a.dtype, b.dtype) != (ELEMENTS, ELEMENTS):
        return f"no mma with factors of float8_e4m3fn for {a.dtype} x {b.dtype}"
    if c.dtype != "float32":
        return f"no mma with factors sums up in {c.dtype}"
    if set(gemm.sharing) != {SHARING}:
        return f"{SHARING} elements share a factor of mma, not {max(gemm.sharing)}"
    if gemm.transpose_a or not gemm.transpose_b:
        return "K is not the last axis of A and B"
    if any(tile.scope != "shared" for tile in (a, b, *(f.buffer for f in gemm.factors))):
        return "A, B and their factors are not all in shared memory"
    sizes = [int_value(e) for e in (*matrix_shape(gemm.c, "C"), matrix_shape(gemm.a, "A")[1])]
    known = [s for s in sizes if s is not None]
    if len(known) < len(sizes) or any(n % e for n, e in zip(known, ATOM, strict=True)):
        return f"not a multiple of {'x'.join(map(str, ATOM))}"
    threads = math.prod(int_value(t) or 0 for t in launch.threads)
    return f"{threads} threads are no whole warps" if threads % WARP or not threads else ""


def rows_of_lanes(side: int, lane: Table) -> Table:
    """Return of which row of A (side 0) or column of B the factors are that a lane gives."""
    quad, lanes = lane % 4, 4 // SELECTED[side]  # that give the factors of one tile
    return quad // lanes * ATOM[side] + quad % lanes * 8 + lane // 4


def plan_scaled(gemm: Gemm, team: Team, in_registers: tuple[bool, bool, bool]) -> GemmPlan:
    """Return a product of bytes of two elements each by warps, with their factors."""
    return plan_mma(gemm, team.count, in_registers, BYTES, "float32", "scaled")
