"""Analytic time of products of few rows whose vector operand is read where it lies.

Every element of B comes from memory once, row by row: in pieces as long as a block is wide, or
deep where B is transposed. Blocks side by side are joined as far as threads have work. Few rows of
A leave few products per element, by vector instructions whose operands come from memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recommender.cpu.choices import Tiling
from recommender.cpu.terms import CoreTerms, fma_slot_s
from recommender.factored import may_hold
from recommender.hardware import HardwareProfile
from recommender.straight_line import from_table
from tilecore.graph import Contraction
from tilecore.inference.cpu.few_rows import MOST_ROWS_AT_ONCE, ROWS_AT_ONCE, streams_of_dots
from tilecore.ir.nodes import Atomic, Reduce, Scan
from tilecore.ir.visitor import walk
from tilecore.passes import wide_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class FewRowsConstants:
    """Properties of the generated code and of memory; slots as in ``CpuConstants``.

    Source: set by hand to times of 1 to 16 rows by 4096 x 4096 weights, one thread. Sums: float32
    on an AMD Zen 3 (benchmarks/results/cpu_zen3_2026-11-22.md). Dots: float32 and bfloat16 on an
    AMD Zen 4 (benchmarks/results/cpu_zen4_2026-11-23.md).
    """

    efficiency: float = 0.45  # of FMA peak, of sums
    dots_efficiency: float = 0.95
    load_slots: float = 2.0  # a vector of A or B from the L2 cache
    load_power: float = 4.0  # p of the p-norm of products and these loads
    bandwidth_factor: float = 1.4  # reading alone, relative to core_bandwidth_bytes_per_s
    start_bytes: float = 1400.0  # lost per piece of a row, of sums
    dots_start_bytes: float = 2500.0  # lost per pieces of rows that are read side by side
    sum_slots: float = 4.0  # adding up the lanes of a sum (B transposed)
    c_vector_slots: float = 2.0  # load and store of one vector of C, per ROWS_AT_ONCE rows of B
    overlap_power: float = 4.0  # p of the p-norm of products and memory


DEFAULT_FEW_ROWS_CONSTANTS = FewRowsConstants()


def read_s(size: float, hardware: HardwareProfile, constants: FewRowsConstants) -> float:
    """Return the seconds in which one core reads ``size`` bytes from memory, side by side."""
    return size / (hardware.core_bandwidth_bytes_per_s * constants.bandwidth_factor)


def joined_blocks(t: Tiling, site: Contraction, grids: np.ndarray, cores: int) -> np.ndarray | None:
    """Return how many blocks along N of every config run as one on so many cores; None: all alone.

    Mirrors ``tilecore.passes.wide_blocks``, where columns that a program adds up, compares or
    updates atomically count as joined with each other.
    """
    size = float(site.dtype.itemsize)
    if site.b.is_transposed or t.k * t.n * size < wide_blocks.LEAST_BYTES:
        return None
    if not may_hold(t.is_b_in_place) or not _are_columns_apart(site):
        return None
    few, most = (piece // (t.block_n * size) for piece in wide_blocks.PIECES_BYTES)
    wanted = np.maximum(few, t.grid_n // wide_blocks.FEW_BLOCKS)
    joined = np.maximum(1.0, np.minimum(most, wanted))
    joined = np.ceil(t.grid_n / np.ceil(t.grid_n / joined))
    blocks = np.ceil(t.grid_n / joined) * grids
    idle, fair = wide_blocks.IDLE
    are_busy = np.ceil(blocks / cores) * cores * fair <= blocks * idle
    are_busy |= blocks >= wide_blocks.MANY_BLOCKS
    return np.where(t.is_b_in_place & are_busy, joined, 1.0)


def _are_columns_apart(site: Contraction) -> bool:
    stmts = (stmt for op in site.launch.ops for stmt in walk(op.stmt))
    return not any(isinstance(stmt, (Reduce, Scan, Atomic)) for stmt in stmts)


def with_few_rows(
    terms: CoreTerms,
    t: Tiling,
    site: Contraction,
    hardware: HardwareProfile,
    constants: FewRowsConstants,
    side_by_side: np.ndarray | None = None,
) -> CoreTerms:
    """Return ``terms`` with the times of those configs that read B in place.

    ``side_by_side``: how many blocks along N run as one (``joined_blocks``).
    """
    c, in_place, slot_s = constants, t.is_b_in_place, fma_slot_s(site, hardware)
    is_deep, size = site.b.is_transposed, float(site.dtype.itemsize)
    fma = t.rows * (t.n * t.k * slot_s / (t.lanes * (1 if t.dot is None else t.dot.group)))
    if is_deep:
        at_once, streams = _register_tile(t, hardware)
        loads = c.load_slots * (1 / at_once + 1 / streams)
        fma = fma * (1.0 + loads**c.load_power) ** (1 / c.load_power) / c.dots_efficiency
        lost = c.dots_start_bytes / (np.minimum(t.block_k, t.k) * size * streams)
    else:
        fma = fma / c.efficiency
        width = t.block_n if side_by_side is None else t.block_n * side_by_side
        lost = c.start_bytes / (np.minimum(width, t.n) * size)
    memory = read_s(t.k * t.n * size, hardware, c) * (1.0 + lost)
    joined = (memory**c.overlap_power + fma**c.overlap_power) ** (1 / c.overlap_power)
    if is_deep:
        sums = t.rows * t.n * t.steps * (c.sum_slots * slot_s)
    else:  # C is loaded and stored once per pass over some rows of B
        vectors = t.rows * (t.n / t.lanes) * np.ceil(t.depth / ROWS_AT_ONCE) * t.steps
        sums = vectors * (c.c_vector_slots * slot_s)
    usual = terms.resources

    def resources() -> dict[str, np.ndarray]:
        own: dict[str, Any] = {"fma": fma, "l3": memory}
        return {n: np.where(in_place, own.get(n, 0.0), value) for n, value in usual().items()}

    return replace(
        terms,
        resources=resources,
        kernel=np.where(in_place, joined, terms.kernel),
        calls=np.where(in_place, 0.0, terms.calls),
        update_c=np.where(in_place, sums, terms.update_c),
    )


def _register_tile(t: Tiling, hardware: HardwareProfile) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of A and of B that dots take at a time."""
    rows = np.minimum(t.block_m, t.rows)
    at_once = np.ceil(rows / np.ceil(rows / MOST_ROWS_AT_ONCE))
    by_rows = [streams_of_dots(i + 1, hardware.vector_registers) for i in range(MOST_ROWS_AT_ONCE)]
    return at_once, from_table(by_rows, at_once.astype(int) - 1)
