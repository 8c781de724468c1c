"""Matrix products: which instruction, how warps divide C, who holds what of A, B and C.

Source of the register layouts: PTX ISA 8.7, "Matrix fragments for mma.m16n8k16" and its siblings.
All shapes m16n8 share one pattern: with g = lane / 4, q = lane % 4 and p elements per register,
A[g + 8 h, 4 p kh + p q + e], B[g, 4 p kh + p q + e], C[g + 8 h, 2 q + e].
"""

from __future__ import annotations

import math
from collections.abc import Set

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.distribution import Distribution, by_slot, by_thread
from tilecore.inference.gpu.loops import divisor
from tilecore.inference.gpu.options import GpuOptions
from tilecore.inference.gpu.plan import GemmPlan, Operand
from tilecore.inference.gpu.products.matrix_units import (
    WGMMA_BYTES,
    has_wgmma_types,
    mma_shapes,
    operand_kind,
    sums_dtype,
)
from tilecore.inference.gpu.shared import SWIZZLES, keeps_rows, panel_of
from tilecore.inference.gpu.threads.teams import Team
from tilecore.ir.analysis import kept_axes
from tilecore.ir.dtype import DType
from tilecore.ir.expr import int_value
from tilecore.ir.gemm_shape import accumulator_dtype, matrix_shape
from tilecore.ir.nodes import Buffer, Gemm, Region

WARP = 32
WARPGROUP = 128
WGMMA_COLUMNS = 256
REGISTERS = 64 * 1024  # of a multiprocessor of sm_90
OTHER_REGISTERS = 26  # that NVRTC 13.0 asks for beside the sums of wgmma.m64n256 (154 in all)
IN_SHARED = ("shared", "fragment")  # what lies there if no registers hold it
SWIZZLED_ROWS = 8  # after which every swizzle repeats


def plan_gemm(
    gemm: Gemm,
    team: Team,
    target: GpuTarget,
    in_registers: tuple[bool, bool, bool],
    options: GpuOptions,
    plain: Set[Buffer],
) -> GemmPlan:
    """Return how a product runs.

    Args:
        gemm: the product; its extents are known.
        team: the threads that run it.
        target: decides which instructions there are.
        in_registers: whether A, B and C are fragments.
        options: what the caller insists on.
        plain: shared tiles that must lie row by row.
    """
    size, threads, keeps_c = size_of(gemm), team.count, in_registers[2]
    if gemm.a.dtype == "float32" and options.float32_products == "exact":
        return multiply_adds(gemm, size, threads, keeps_c, "float32_products is exact")
    a, b = (operand_kind(str(region.dtype)) for region in (gemm.a, gemm.b))
    sums = sums_dtype(gemm, keeps_c)
    by_groups = target.has_wgmma and team.first % WARPGROUP == 0 and has_wgmma_types(a, b, sums)
    by_groups = by_groups and gemm.a.dtype != "int4"  # its sign is extended in registers
    if by_groups and _wgmma_fits(gemm, size, threads, in_registers, plain, sums):
        return _wgmma(gemm, size, threads, in_registers, sums)
    shapes = list(mma_shapes(a, b, sums, target))
    fitting = [s for s in shapes if not any(n % e for n, e in zip(size, s, strict=True))]
    reason = ""
    if not shapes:
        reason = f"no mma for {gemm.a.dtype} x {gemm.b.dtype} on {target.arch}"
    elif threads % WARP:
        reason = f"{threads} threads are no whole warps"
    elif not fitting:
        reason = f"not a multiple of {'x'.join(map(str, shapes[-1]))}"
    if reason:
        return multiply_adds(gemm, size, threads, keeps_c, reason)
    return plan_mma(gemm, threads, in_registers, fitting[0], sums)


def plan_mma(
    gemm: Gemm,
    threads: int,
    in_registers: tuple[bool, bool, bool],
    shape: tuple[int, int, int],
    sums: str,
    kind: str = "mma",
) -> GemmPlan:
    """Return a product by warps, each of which multiplies its part of C."""
    size = size_of(gemm)
    m, n, step = shape
    warps = divide_warps(size[0], size[1], threads // WARP, gemm.policy, (m, n))
    per_register = max(1, 4 // gemm.a.dtype.itemsize)
    a = _operand(gemm.a, size[0], size[2], step, per_register, (warps[0], WARP * warps[1]), m,
                 threads, gemm.transpose_a, in_registers[0])  # fmt: skip
    b = _operand(gemm.b, size[1], size[2], step, per_register, (warps[1], WARP), n,
                 threads, not gemm.transpose_b, in_registers[1])  # fmt: skip
    c = accumulators(size[0], size[1], m, warps, threads)
    return GemmPlan(gemm, kind, shape, size, warps, a, b, c, in_registers[2], sums)


def size_of(gemm: Gemm) -> tuple[int, int, int]:
    """Return M, N and K of a product."""
    m, n = (int_value(e) for e in matrix_shape(gemm.c, "C"))
    first, second = matrix_shape(gemm.a, "A")
    k = int_value(first if gemm.transpose_a else second)
    assert m is not None
    assert n is not None
    assert k is not None
    return m, n, k


def divide_warps(
    m: int, n: int, warps: int, policy: str, atom: tuple[int, int], widest: int = 8
) -> tuple[int, int]:
    """Return (rows, columns) of warps over C.

    "full_row" and "full_col" put as many warps as fit along M and N; "square" loads the least of A
    and B: an instruction of ``widest`` columns loads its rows of A and its columns of B anew.
    """
    choices = [
        (rows, columns)
        for rows in range(1, warps + 1)
        if warps % rows == 0 and m % (rows * atom[0]) == 0
        for columns in range(1, warps // rows + 1)
        if warps // rows % columns == 0 and n % (columns * atom[1]) == 0
    ]

    def cost(choice: tuple[int, int]) -> tuple[float, ...]:
        rows, columns = choice
        idle = -rows * columns
        if policy == "full_row":
            return idle, -rows
        if policy == "full_col":
            return idle, -columns
        if widest > atom[1]:
            width = min(n // columns, widest)
            return idle, m / (rows * atom[0]) * (n / (columns * width)) * (atom[0] + width)
        return idle, m / rows + n / columns

    return min(choices, key=cost)


def accumulators(m: int, n: int, atom: int, warps: tuple[int, int], threads: int) -> Distribution:
    """Return who holds C of instructions of ``atom`` (8 or 16) rows and 8 columns."""
    tiles, halves = n // (8 * warps[1]), atom // 8
    rows = (
        by_thread(warps[0], WARP * warps[1]),
        by_slot(m // (atom * warps[0]), 2 * halves * tiles),
        by_slot(halves, 2),
        by_thread(8, 4),
    )
    columns = (
        by_thread(warps[1], WARP),
        by_slot(tiles, 2 * halves),
        by_thread(4, 1),
        by_slot(2, 1),
    )
    return Distribution((m, n), (rows, columns), threads)


def _wgmma_fits(
    gemm: Gemm,
    size: tuple[int, int, int],
    threads: int,
    in_registers: tuple[bool, bool, bool],
    plain: Set[Buffer],
    sums: str,
) -> bool:
    """Return whether warpgroups can multiply: operands in shared memory, 32-byte rows."""
    itemsize = gemm.a.dtype.itemsize
    if threads % WARPGROUP or size[0] % 64 or size[1] % _wgmma_columns(gemm):
        return False
    if size[2] * itemsize % WGMMA_BYTES:
        return False
    for region, in_register, k_first in (
        (gemm.a, in_registers[0], gemm.transpose_a),
        (gemm.b, in_registers[1], not gemm.transpose_b),
    ):
        if in_register and region is gemm.a and not k_first:
            continue
        buffer = region.buffer
        is_other = buffer.base is not None and not keeps_rows(buffer)
        if in_register or buffer.scope not in IN_SHARED or is_other or buffer.root in plain:
            return False
        if not _is_described(region, k_first) or (k_first and itemsize != 2):
            return False
    return _instruction_width(gemm, size, threads, sums) is not None


def _wgmma_columns(gemm: Gemm) -> int:
    """Return what the columns of an instruction are a multiple of."""
    return 8 if gemm.a.dtype.is_float else 16


def _is_described(region: Region, is_transposed: bool) -> bool:
    """Return whether a descriptor can mean a matrix: it begins where the swizzle begins anew.

    That is every 8 rows and, where K is the last axis, every 32 bytes (as the steps along K do),
    else every panel.
    """
    shape = region.buffer.static_shape
    if shape is None or len(shape) < 2 or any(int_value(e) != 1 for e in region.extents[:-2]):
        return False
    itemsize = region.dtype.itemsize
    if shape[-1] * itemsize % WGMMA_BYTES or shape[-2] % SWIZZLED_ROWS:
        return False
    unit = panel_of(shape, itemsize) if is_transposed else WGMMA_BYTES // itemsize
    row, column = (divisor(offset, {}) for offset in region.offsets[-2:])
    return row % SWIZZLED_ROWS == 0 and column % unit == 0


def _columns_of_groups(gemm: Gemm, size: tuple[int, int, int], threads: int) -> tuple[int, int]:
    """Return (rows, columns) of warpgroups over C."""
    n, unit = size[1], _column_unit(gemm, size[1])
    atom = (64, unit if n % unit == 0 else n)
    return divide_warps(size[0], n, threads // WARPGROUP, gemm.policy, atom, WGMMA_COLUMNS)


def _column_unit(gemm: Gemm, n: int) -> int:
    """Return what the first column of an instruction is a multiple of.

    N-major tiles are cut between panels, or within them where no cut leaves an instruction that
    begins within one and ends in the next: an H200 reads half a panel of 128 bytes as it should.
    """
    shape = gemm.b.buffer.static_shape
    if gemm.transpose_b or shape is None:
        return _wgmma_columns(gemm)
    panel = panel_of(shape, gemm.b.dtype.itemsize)
    is_halved = panel * gemm.b.dtype.itemsize == SWIZZLES[0] and n % panel == 0
    return panel // 2 if is_halved and (n // panel).bit_count() == 1 else panel


def _instruction_width(
    gemm: Gemm, size: tuple[int, int, int], threads: int, sums: str
) -> int | None:
    """Return the columns of an instruction, or None where N cannot be cut.

    Its sums must fit the registers that threads have when the kernel begins, those that may issue
    copies among them: the assembler refuses an instruction that needs more (C7602).
    """
    each = size[1] // _columns_of_groups(gemm, size, threads)[1]
    unit = _column_unit(gemm, size[1])
    registers = REGISTERS // (threads + WARPGROUP) // 8 * 8 - OTHER_REGISTERS
    widest = min(WGMMA_COLUMNS, registers * 8 // DType(sums).itemsize)
    if each <= widest:
        return each
    widths = [w for w in range(unit, widest + 1, unit) if each % w == 0]
    return max(widths, default=None)


def _wgmma(
    gemm: Gemm,
    size: tuple[int, int, int],
    threads: int,
    in_registers: tuple[bool, bool, bool],
    sums: str,
) -> GemmPlan:
    """Return a product by warpgroups of 128 threads, operands described in shared memory."""
    m, n, k = size
    itemsize = gemm.a.dtype.itemsize
    step = WGMMA_BYTES // itemsize
    rows, columns = _columns_of_groups(gemm, size, threads)
    tiles = n // (8 * columns)
    across = (
        by_thread(rows, WARPGROUP * columns),
        by_slot(m // (64 * rows), 4 * tiles),
        by_thread(4, WARP),
        by_slot(2, 2),
        by_thread(8, 4),
    )
    along = (by_thread(columns, WARPGROUP), by_slot(tiles, 4), by_thread(4, 1), by_slot(2, 1))
    c = Distribution((m, n), (across, along), threads)
    a = Operand(c, "descriptor", gemm.transpose_a)
    if in_registers[0]:
        per = 4 // itemsize
        unit, parts = 4 * per, m // (64 * rows)
        a_rows = (
            by_thread(rows, WARPGROUP * columns),
            by_slot(parts, unit),
            by_thread(4, WARP),
            by_slot(2, per),
            by_thread(8, 4),
        )
        a_depth = (
            by_slot(k // step, unit * parts),
            by_slot(2, 2 * per),
            by_thread(4, 1),
            by_slot(per, 1),
        )
        a = Operand(Distribution((m, k), (a_rows, a_depth), threads), "registers", False)
    b = Operand(c, "descriptor", not gemm.transpose_b)
    width = _instruction_width(gemm, size, threads, sums)
    assert width is not None
    shape = (64, width, step)
    return GemmPlan(gemm, "wgmma", shape, size, (rows, columns), a, b, c, in_registers[2], sums)


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
    """Return how A or B (``atom`` rows or columns) is spread; ``warps``: how many, their stride."""
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


def has_chunks(tile: Region) -> bool:
    """Return whether a matrix that no registers hold lies in rows of aligned 16-byte chunks."""
    shape = tile.buffer.static_shape
    kept = kept_axes(tile)
    is_matrix = shape is not None and len(kept) == 2 and kept == (len(shape) - 2, len(shape) - 1)
    if tile.buffer.scope not in IN_SHARED or not is_matrix or shape is None:
        return False
    itemsize = tile.dtype.itemsize
    aligned = all(
        (shape[axis] if axis == -1 else int_value(tile.offsets[axis]) or 0) * itemsize % 16 == 0
        for axis in (-1,)
    )
    starts = int_value(tile.offsets[-1])
    return aligned and starts is not None and starts * itemsize % 16 == 0


def _source(tile: Region, is_transposed: bool) -> str:
    """Return whether ldmatrix can load an operand: rows of 16-bit elements, or K inside.

    It gives a lane 4 bytes of a row: no whole float64.
    """
    reads_rows = tile.dtype.itemsize == 2 or (tile.dtype.itemsize < 8 and not is_transposed)
    return "ldmatrix" if has_chunks(tile) and reads_rows else "elements"


def multiply_adds(
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
    sums = str(accumulator_dtype(gemm))
    return GemmPlan(gemm, "fma", (1, 1, 1), size, (1, 1), a, b, c, keeps_c, sums, reason)
