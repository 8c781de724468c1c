"""How the products of a GPU program run, as arrays over configs.

Mirrors ``tilecore.inference.gpu`` in closed form: which instruction a product gets, and how warps
divide it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from recommender.gpu.columns import Columns, Floats, Mask, block_threads, distinct_rows, numbers
from recommender.straight_line import called
from tilecore.amd_target import AmdTarget
from tilecore.gpu_target import GpuTarget
from tilecore.graph import gemm_extents
from tilecore.graph.graph import Launch
from tilecore.graph.nodes import TileOp
from tilecore.inference.gpu.products import quads
from tilecore.inference.gpu.products.choice import WARP, WARPGROUP, WGMMA_COLUMNS, divide_warps
from tilecore.inference.gpu.products.matrix_units import (
    WGMMA_BYTES,
    has_wgmma_types,
    mma_shapes,
    operand_kind,
    sums_dtype,
)
from tilecore.inference.gpu.products.mfma import mfma_step, mfma_types
from tilecore.inference.gpu.shared import panel_of
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Gemm

# Vector instructions that bring an 8-bit float to bfloat16. Source: tests/tilecore/rocm/
# test_assembly.py counts those of gfx90a and gfx942; 5.4 to 7.5 on 2026-11-24.
CONVERSION_OPERATIONS = 7
REGISTER_BYTES = 4
MOST_THREADS = 4096  # more than a block has


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """How a T.gemm runs, per config.

    Attributes:
        flop: of one execution by a block, padded to whole instructions.
        is_tensor: by tensor cores; otherwise by multiply-adds.
        is_grouped: by warpgroups (wgmma), operands in shared memory.
        read_bytes: of shared memory, of one execution.
        operand_registers: of a thread.
        is_busy: every warp has a part of C, and rows of A that it computed stay with it.
        shares_rows: several warps have parts of one row of C.
        division: the same number where the same threads have the same rows of as many of C.
        dtype: of the operands, as the unit reads them.
        conversions: operations by which threads bring operands to that type, of one execution.
    """

    op: TileOp
    flop: Floats
    is_tensor: Mask
    is_grouped: Mask
    read_bytes: Floats
    operand_registers: Floats
    is_busy: Mask
    shares_rows: Mask
    division: Floats
    dtype: str
    conversions: Floats


def products(launch: Launch, columns: Columns, target: GpuTarget) -> list[Product]:
    """Return the products of a launch."""
    return [
        _product(op, op.stmt, launch, columns, target)
        for op in launch.ops
        if isinstance(op.stmt, Gemm)
    ]


def _product(
    op: TileOp, stmt: Gemm, launch: Launch, columns: Columns, target: GpuTarget
) -> Product:
    m, n, k = (numbers(e, columns) for e in gemm_extents(stmt))
    threads = block_threads(launch, columns)
    size = stmt.a.dtype.itemsize
    is_read = [region.buffer.scope == "shared" for region in (stmt.a, stmt.b)]
    grouped = np.zeros(len(m), bool)
    kinds, lanes = _kinds(stmt, target), target.threads_per_warp
    if target.kind == "cuda" and target.has_wgmma and has_wgmma_types(*kinds):
        grouped = (threads % WARPGROUP == 0) & (m % 64 == 0) & (n % 8 == 0)
        grouped &= (k * size % WGMMA_BYTES == 0) & is_read[1]
    shapes, step = _shapes(stmt, target), 1
    warped = np.zeros(len(m), bool)
    for rows_of, columns_of, depth_of in shapes:
        fits = (m % rows_of == 0) & (n % columns_of == 0) & (k % depth_of == 0)
        warped |= (threads % lanes == 0) & fits
        step = max(step, depth_of)
    atom = shapes[0][:2] if shapes else (16, 8)
    rows, cols = _divided(m, n, threads // lanes, stmt, grouped, atom)
    per_instruction = np.ceil(n / cols / WGMMA_COLUMNS)
    by_groups = is_read[0] * m * cols * per_instruction + n * m / 64
    by_warps = is_read[0] * m * cols + is_read[1] * n * rows
    by_threads = np.sqrt(m * n * threads) / 2  # a word that lanes share is read once
    read = k * size * np.where(grouped, by_groups, np.where(warped, by_warps, by_threads))
    is_chained = stmt.a.buffer.scope == "fragment"
    depth = 2 * step * size  # the next step's operands come while this one multiplies
    held = (m / rows + n / cols) * depth / lanes / REGISTER_BYTES
    is_converted = isinstance(target, AmdTarget) and kinds[0] != str(stmt.a.dtype)
    converted = is_converted * warped * k * (m * cols + n * rows)
    has_part = rows * cols * np.where(grouped, WARPGROUP, lanes) >= threads
    return Product(
        op=op, dtype=kinds[0], flop=2 * m * n * k, read_bytes=read,
        is_tensor=grouped | warped, is_grouped=grouped,
        operand_registers=np.where(grouped | ~warped, 8.0, held),
        is_busy=has_part & ((cols == 1) | (not is_chained)),
        shares_rows=(grouped | warped) & (cols > 1),
        division=np.where(
            grouped | warped, -(rows * MOST_THREADS + cols), _of_threads(m, n, threads)
        ),
        conversions=CONVERSION_OPERATIONS * converted,
    )  # fmt: skip


def _of_threads(m: Floats, n: Floats, threads: Floats) -> Floats:
    """Return the threads along rows and columns of a product of multiply-adds, as one number.

    As ``tilecore.inference.gpu.products.choice.multiply_adds`` divides them.
    """
    m, n, threads = (x.astype(np.int64) for x in (m, n, threads))  # type: ignore[assignment]
    along = np.gcd(n // np.gcd(n, 4), np.where(threads >= WARPGROUP, 16, 8))
    along = np.gcd(along, threads)
    found: Floats = np.gcd(m, threads // along) * MOST_THREADS + along
    return found


def _kinds(stmt: Gemm, target: GpuTarget) -> tuple[str, str, str]:
    """Return what a unit reads A and B as, and the type of the sums."""
    a, b = str(stmt.a.dtype), str(stmt.b.dtype)
    if isinstance(target, AmdTarget):
        return *mfma_types(a, b, target), str(accumulator_dtype(stmt))
    return operand_kind(a), operand_kind(b), _sums(stmt)


def _shapes(stmt: Gemm, target: GpuTarget) -> list[tuple[int, int, int]]:
    """Return the instructions that whole warps have for a product, the preferred one first."""
    if isinstance(target, AmdTarget):
        step = mfma_step(*_kinds(stmt, target), target)
        return [] if step is None else [(16, 16, step)]
    if target.multiplies_by_quads:
        halves = stmt.a.dtype == stmt.b.dtype == "float16"
        return [(quads.ATOM, quads.ATOM, quads.STEP)] if halves else []
    return list(mma_shapes(*_kinds(stmt, target), target))


def _sums(stmt: Gemm) -> str:
    return sums_dtype(stmt, stmt.c.buffer.scope == "fragment")


def _divided(
    m: Floats, n: Floats, warps: Floats, stmt: Gemm, grouped: Mask, warped: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Return how warps, or warpgroups, are divided over the rows and columns of C."""

    def of_one(rows: float, columns: float, warps: float, is_grouped: bool) -> tuple[int, int]:
        height, width, size, atom, widest = int(rows), int(columns), 1, warped, 8
        if is_grouped:
            # Tiles whose rows run along N are cut between panels only.
            unit = 8 if stmt.transpose_b else panel_of((width,), stmt.b.dtype.itemsize)
            unit = unit if unit and width % unit == 0 else width
            size, atom, widest = WARPGROUP // WARP, (64, unit), WGMMA_COLUMNS
        count = max(1, int(warps) // size)
        return _division(height, width, count, stmt.policy, atom, widest)

    noted: Any = called(of_one, 2, m, n, warps, grouped)
    if noted is not None:
        return noted[0], noted[1]
    distinct, where = distinct_rows(m, n, warps, grouped)
    made = [of_one(*map(int, row)) for row in distinct]  # type: ignore[arg-type]
    found = np.array(made, dtype=np.float64).reshape(-1, 2)[where]
    return found[:, 0], found[:, 1]


@lru_cache(maxsize=1 << 16)
def _division(
    rows: int, columns: int, warps: int, policy: str, atom: tuple[int, int], widest: int
) -> tuple[int, int]:
    try:
        return divide_warps(rows, columns, warps, policy, atom, widest)
    except ValueError:  # no division: the product is none of warps
        return 1, 1
