"""Products with factors that a matrix unit multiplies itself: which they are, and how they run.

Source: PTX ISA 9.0, section 9.7.14.5 (mma with .block_scale); CUTLASS, mma_traits_sm120.hpp. A row
of mma is 32 bytes of one element or two each, and fragments are those of m16n8k32 of bytes. A lane
gives a word, four factors along K, of which an instruction takes one, two or all: with g = lane / 4
and q = lane % 4 the lanes of q = 2 t + h give those of row g + 8 h of A, where t (0 or 1) is a
selector of the instruction, and the lanes of q = t (0 to 3) those of column g of B. So a word of
each lane is enough for two tiles of A and for four of B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.distribution import Table
from tilecore.inference.gpu.plan import GemmPlan
from tilecore.inference.gpu.products.choice import WARP, plan_mma
from tilecore.inference.gpu.threads.teams import Team
from tilecore.ir.expr import int_value
from tilecore.ir.gemm_shape import matrix_shape
from tilecore.ir.nodes import Gemm, KernelLaunch
from tilecore.ir.plain.scaled_gemm import PER_WORD

SELECTED = (2, 4)  # tiles of A and of B for which a word of each lane is enough
ROWS = (16, 8)  # of a tile of A, columns of one of B
BYTES = 32  # of a row of a tile


@dataclass(frozen=True, slots=True)
class Unit:
    """What an instruction multiplies.

    Attributes:
        elements: types of A and B, which may be mixed.
        factors: type of the factors.
        sharing: elements along K that share one.
        depth: elements along K.
    """

    elements: tuple[str, ...]
    factors: str
    sharing: int
    depth: int

    @property
    def steps(self) -> int:
        """Instructions along K for which a word has factors: each has a byte, two or all four."""
        return PER_WORD * self.sharing // self.depth


# PTX ISA 9.0, the forms of mma with block scaling (9.7.14.5.14).
UNITS = (
    Unit(("float4_e2m1fn",), "float8_e4m3fn", 16, 64),
    Unit(("float4_e2m1fn",), "float8_e8m0fnu", 32, 64),
    Unit(("float8_e4m3fn", "float8_e5m2"), "float8_e8m0fnu", 32, 32),
)


def unit_of(gemm: Gemm) -> Unit | None:
    """Return what multiplies the elements and factors of a product, if anything does."""
    kinds = {gemm.pairs_of or str(r.buffer.dtype) for r in (gemm.a, gemm.b)}
    for unit in UNITS:
        wanted = (gemm.factor_type, set(gemm.sharing)) == (unit.factors, {unit.sharing})
        if wanted and kinds <= set(unit.elements):
            return unit
    return None


def why_not(gemm: Gemm, launch: KernelLaunch, target: GpuTarget) -> str:
    """Return why no matrix unit multiplies the elements of a product and their factors, or ""."""
    a, b, c = gemm.a.buffer, gemm.b.buffer, gemm.c.buffer
    if gemm.in_lanes:
        return f"no tensor memory on {target.arch}"
    if not target.scales_blocks:
        return f"no mma with factors on {target.arch}"
    unit = unit_of(gemm)
    if unit is None:
        shared = " and ".join(map(str, dict.fromkeys(gemm.sharing)))
        what = f"{gemm.factor_type} for {shared} elements each"
        return f"no mma for {a.dtype} x {b.dtype} with factors of {what}"
    if c.dtype != "float32":
        return f"no mma with factors sums up in {c.dtype}"
    if gemm.transpose_a or not gemm.transpose_b:
        return "K is not the last axis of A and B"
    if any(tile.scope != "shared" for tile in (a, b, *(f.buffer for f in gemm.factors))):
        return "A, B and their factors are not all in shared memory"
    sizes = [int_value(e) for e in (*matrix_shape(gemm.c, "C"), matrix_shape(gemm.a, "A")[1])]
    known = [s for s in sizes if s is not None]
    atom = (*ROWS, unit.depth)
    if len(known) < len(sizes) or any(n % e for n, e in zip(known, atom, strict=True)):
        return f"not a multiple of {'x'.join(map(str, atom))}"
    threads = math.prod(int_value(t) or 0 for t in launch.threads)
    return f"{threads} threads are no whole warps" if threads % WARP or not threads else ""


def rows_of_lanes(side: int, lane: Table) -> Table:
    """Return of which row of A (side 0) or column of B the factors are that a lane gives."""
    quad, lanes = lane % 4, 4 // SELECTED[side]  # that give the factors of one tile
    return quad // lanes * ROWS[side] + quad % lanes * 8 + lane // 4


def plan_scaled(gemm: Gemm, team: Team, in_registers: tuple[bool, bool, bool]) -> GemmPlan:
    """Return a product of bytes, of one element or two each, by warps, with their factors."""
    return plan_mma(gemm, team.count, in_registers, (*ROWS, BYTES), "float32", "scaled")
