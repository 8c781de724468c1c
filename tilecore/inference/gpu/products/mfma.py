"""Matrix products of wavefronts (AMD's MFMA): which instruction, who holds what of A, B and C.

Source: "AMD Instinct MI200 / MI300 Instruction Set Architecture", chapter on matrix arithmetic.
Of the shapes, 16 x 16 multiplies at the full rate and has the fewest sums to keep. With r = lane %
16, q = lane / 16 and p = K / 4, lanes hold X[r, p q + e], Y[p q + e, r] and D[4 q + e, r]. X is our
B and Y our A, so that a lane has four neighbours of a row of C: stores are wide, and C is held as
the A of a further product wants it. Of float64 a lane holds D[4 e + q, r], every fourth element of
a row of C, which is what the A of a further product wants, too. The order of K is free: where both
operands come from shared memory, a lane takes ``u`` instructions' worth of neighbours at once.
"""

from __future__ import annotations

import math

from tilecore.amd_target import AmdTarget
from tilecore.inference.gpu.distribution import Digit, Distribution, by_slot, by_thread
from tilecore.inference.gpu.plan import CHUNK_BYTES, GemmPlan, Operand
from tilecore.inference.gpu.products.choice import divide_warps, has_chunks, multiply_adds, size_of
from tilecore.inference.gpu.threads.teams import Team
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Gemm, Region

WAVE = 64
ATOM = 16
# (A and B, accumulator) -> K of the 16 x 16 instruction; int8 of CDNA 3 takes twice as many.
MFMA_STEPS = {
    ("float16", "float32"): 16,
    ("bfloat16", "float32"): 16,
    ("float32", "float32"): 4,
    ("float64", "float64"): 4,
    ("int8", "int32"): 16,
}
FLOAT8_STEP = 32
# Types of which gfx950 has instructions that sum up twice as many.
WIDE = ("float16", "bfloat16", "int8")
# 8-bit floats of which bfloat16 holds every number, none of them subnormal.
FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def mfma_types(a: str, b: str, target: AmdTarget) -> tuple[str, str]:
    """Return what the instruction reads A and B as.

    8-bit floats that it does not multiply are bfloat16 by then: formats of OCP on CDNA 3, which
    reads those of other biases, the others on CDNA 4, and all of them on CDNA 2.
    """
    is_converted = a in FLOAT8 and b in FLOAT8 and not {a, b} <= set(target.float8_products)
    return ("bfloat16", "bfloat16") if is_converted else (a, b)


def mfma_step(a: str, b: str, c: str, target: AmdTarget) -> int | None:
    """Return the K of the 16 x 16 instruction for these types, or None."""
    a, b = mfma_types(a, b, target)
    if a in target.float8_products and b in target.float8_products:
        return FLOAT8_STEP if c == "float32" else None
    step = MFMA_STEPS.get((a, c)) if a == b else None
    return 2 * step if step and a == "int8" and target.has_wide_int8 else step


def plan_mfma(
    gemm: Gemm,
    team: Team,
    target: AmdTarget,
    in_registers: tuple[bool, bool, bool],
    *,
    deals: bool = True,
) -> GemmPlan:
    """Return how a product runs.

    Args:
        gemm: the product; its extents are known.
        team: the threads that run it.
        target: decides which instructions there are.
        in_registers: whether A, B and C are fragments.
        deals: whether lanes may have neighbouring rows of A or B, each in a tile of its own.
    """
    size, threads = size_of(gemm), team.count
    kinds = (str(gemm.a.dtype), str(gemm.b.dtype), str(accumulator_dtype(gemm)))
    step = mfma_step(*kinds, target)
    reason = ""
    if step is None:
        reason = f"no mfma for {kinds[0]} x {kinds[1]} on {target.arch}"
    elif threads % WAVE:
        reason = f"{threads} threads are no whole wavefronts"
    elif size[0] % ATOM or size[1] % ATOM or size[2] % step:
        reason = f"not a multiple of 16x16x{step}"
    if reason or step is None:
        return multiply_adds(gemm, size, threads, in_registers[2], reason)
    # Fragments that are sums of other products fit the narrow ones.
    is_wide = target.has_wide_products and not (in_registers[0] or in_registers[1])
    if is_wide and kinds[0] in WIDE and size[2] % (2 * step) == 0:
        step *= 2
    at_once = 1
    if not (in_registers[0] or in_registers[1]):
        widest = CHUNK_BYTES // gemm.a.dtype.itemsize
        while step // 4 * at_once * 2 <= widest and size[2] % (step * at_once * 2) == 0:
            at_once *= 2
    m, n, k = size
    waves = divide_warps(m, n, threads // WAVE, gemm.policy, (ATOM, ATOM))
    wide = [
        _side_by_side(*side) if deals else 1
        for side in (
            (gemm.a, m // (ATOM * waves[0]), gemm.transpose_a, in_registers[0]),
            (gemm.b, n // (ATOM * waves[1]), not gemm.transpose_b, in_registers[1]),
        )
    ]
    a = _operand(gemm.a, (m, k), (step, at_once), (waves[0], WAVE * waves[1]), threads,
                 gemm.transpose_a, in_registers[0], wide[0])  # fmt: skip
    b = _operand(gemm.b, (n, k), (step, at_once), (waves[1], WAVE), threads,
                 not gemm.transpose_b, in_registers[1], wide[1])  # fmt: skip
    tiles = n // (ATOM * waves[1])
    four = (by_thread(4, ATOM), by_slot(4, 1))
    rows = (
        by_thread(waves[0], WAVE * waves[1]),
        by_slot(m // (ATOM * waves[0] * wide[0]), 4 * tiles * wide[0]),
        by_thread(ATOM, 1),
        by_slot(wide[0], 4 * tiles),
    )
    columns = (
        by_thread(waves[1], WAVE),
        by_slot(tiles // wide[1], 4 * wide[1]),
        *(four[::-1] if kinds[2] == "float64" else four),
        by_slot(wide[1], 4),
    )
    c = Distribution((m, n), (rows, columns), threads)
    read = mfma_types(kinds[0], kinds[1], target)
    return GemmPlan(
        gemm, "mfma", (ATOM, ATOM, step), size, waves, a, b, c, in_registers[2], kinds[2],
        converts_to=read[0] if read != kinds[:2] else "",
    )  # fmt: skip


def _side_by_side(tile: Region, tiles: int, is_transposed: bool, in_registers: bool) -> int:
    """Return how many neighbouring rows of an operand a lane has, each in a tile of its own.

    Where K is the first axis, that is how much one access brings.
    """
    if in_registers or not is_transposed or not has_chunks(tile):
        return 1
    return math.gcd(tiles, CHUNK_BYTES // tile.dtype.itemsize)


def _operand(
    tile: Region,
    size: tuple[int, int],
    steps: tuple[int, int],
    waves: tuple[int, int],
    threads: int,
    is_transposed: bool,
    in_registers: bool,
    wide: int,
) -> Operand:
    """Return how an operand of (rows, K) is spread.

    Args:
        tile: the operand.
        size: rows (M or N) and K.
        steps: K of an instruction, and how many instructions' worth are loaded at once.
        waves: how many share out the rows, and their stride.
        threads: of the block.
        is_transposed: whether K is the first axis of the tile.
        in_registers: whether the tile is a fragment.
        wide: neighbouring rows of a lane.
    """
    (rows, depth), (step, at_once) = size, steps
    unit = step // 4 * at_once
    tiles = rows // (ATOM * waves[0])
    turns = depth // step if in_registers else 1
    across: tuple[Digit, ...] = (
        by_thread(*waves),
        by_slot(tiles // wide, unit * wide),
        by_thread(ATOM, 1),
        by_slot(wide, unit),
    )
    along: tuple[Digit, ...] = (by_slot(turns, unit * tiles), by_thread(4, ATOM), by_slot(unit, 1))
    shape = (rows, depth if in_registers else step * at_once)
    axes = (across, along)
    if is_transposed and in_registers:  # fragments have the axes of their tile
        shape, axes = (shape[1], shape[0]), (along, across)
    source = "registers"
    if not in_registers:
        source = "chunks" if has_chunks(tile) and not is_transposed else "elements"
        source = "rows" if wide > 1 else source
    return Operand(Distribution(shape, axes, threads), source, is_transposed)
