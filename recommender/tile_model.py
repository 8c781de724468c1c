"""Analytic time of a blocked matrix product on the tiles of AMX.

One operand of a group of tiles stays in L1 while the other one passes by; tile loads hardly overlap
with products where neither stays: then the time of both comes on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recommender.cpu.choices import Tiling
from recommender.cpu.terms import CoreTerms, fma_slot_s
from recommender.hardware import HardwareProfile
from tilecore.graph import Contraction

L1_SETS, L1_WAYS = 64, 8  # what tiles of A may take of L1
SWEPT_SHARE = 0.6  # of L2: a larger tile of B comes in anew for every group of rows
PIECE_BYTES = 256  # shorter pieces of B's rows come in more slowly,
LONG_PIECE_BYTES = 2048  # and of its columns, if it is transposed


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConstants:
    """Properties of the generated code and of caches; slots as in ``CpuConstants``.

    Source: fitted to 1800 configs of the library's GEMM in bfloat16 on a Xeon with AMX, 2 cores,
    one thread (benchmarks/data/cpu_2026-11-22), where its choices reach 0.94 of the best measured;
    those of B in place and of long pieces set by hand to rows of benchmarks/cpu.py ("gemv").
    """

    peak_factor: float = 12.0  # tiles of 2-byte elements relative to vector FMAs of float32
    efficiency: float = 0.95  # of the peak, operands in L1
    l2_bytes_per_slot: float = 15.0  # of operands that stream from L2 to tiles
    passing_share: float = 0.12  # of what passes by that its way from L2 adds to the time
    l1_share: float = 0.7  # of L1 that what stays may take
    c_bytes_per_slot: float = 6.7  # sums loaded and stored
    run_slots: float = 1.0  # starting and ending a group of tiles
    write_bytes_per_slot: float = 35.0  # rounding and storing the output
    scatter_share: float = 2.6  # more, whenever its rows, met one panel after the other, clash
    l3_factor: float = 3.35  # L3 rate per core relative to core_bandwidth_bytes_per_s
    a_copy_bytes_per_slot: float = 4.6
    b_pack_bytes_per_slot: float = 3.45
    in_place_factor: float = 3.2  # FLOP/s of few rows with B in place relative to float32's peak
    in_place_l3_factor: float = 1.8  # as l3_factor, for them


DEFAULT_TILE_CONSTANTS = TileConstants()


def tile_terms(
    t: Tiling,
    site: Contraction,
    hardware: HardwareProfile,
    constants: TileConstants,
) -> CoreTerms:
    """Return where the time of one core goes for every candidate of ``t``."""
    c, size = constants, float(site.dtype.itemsize)
    slot_s = fma_slot_s(site, hardware)
    far = hardware.core_bandwidth_bytes_per_s * c.l3_factor
    runs, rows = t.row_tiles * t.panels * t.steps, t.rows_per_tile
    peak = hardware.peak_flop_per_s.get(str(site.dtype)) or _guessed_peak(site, hardware, c)
    a_bytes, b_bytes = t.m * t.k * size, t.k * t.n * size
    in_place = t.is_b_in_place  # by vectors, not by tiles
    vector_flop_per_s = hardware.peak_flop_per_s.get("float32", 32e9) * c.in_place_factor
    fma = np.where(
        in_place,
        2.0 * t.m * t.n * t.k / vector_flop_per_s,
        2.0 * runs * t.micro_m * t.panel * t.depth / (peak * c.efficiency),
    )
    near = _near_bytes(t, site, hardware, c) * slot_s / c.l2_bytes_per_slot
    l2 = np.where(in_place, 0.0, runs * near)
    a_far, b_far = _far_bytes(t, site, hardware)
    piece = t.depth / LONG_PIECE_BYTES if site.b.is_transposed else t.block_n / PIECE_BYTES
    pieces = np.minimum(1.0, piece * size)
    in_place_s = (
        b_bytes / np.sqrt(pieces) / (hardware.core_bandwidth_bytes_per_s * c.in_place_l3_factor)
    )
    l3 = np.where(in_place, in_place_s, (a_far + b_far) / far)
    sums = rows * t.panel * 4.0
    spills = t.block_m * t.block_n * 4.0 > hardware.l2_bytes / 2
    c_rate = np.where(spills, far, c.c_bytes_per_slot / slot_s)
    moved = runs * sums * (2.0 - 1.0 / t.steps)
    copies = np.where(t.is_a_packed | t.is_a_staged, t.a_reuse, 0)
    pack_b_s = b_bytes * (slot_s / c.b_pack_bytes_per_slot + 1.0 / far) / np.sqrt(pieces)
    zero = fma * 0.0
    return CoreTerms(
        resources=lambda: {"fma": fma, "loads": zero, "latency": zero, "l2": l2, "l3": l3},
        kernel=fma + l2 + l3,
        calls=runs * c.run_slots * slot_s,
        update_c=moved / c_rate
        + t.m * t.n * 4.0 * slot_s * _scatter(t, site, c) / c.write_bytes_per_slot,
        pack_a=a_bytes * (copies * slot_s / c.a_copy_bytes_per_slot),
        pack_b=pack_b_s * np.where(t.is_b_hoisted | in_place, 0, t.b_reuse),
        pack_b_once=(pack_b_s + b_bytes / far) * t.is_b_hoisted,
    )  # fmt: skip


def _guessed_peak(site: Contraction, hardware: HardwareProfile, c: TileConstants) -> float:
    vector = hardware.peak_flop_per_s.get("float32", 32e9)
    return vector * c.peak_factor * 2 / site.dtype.itemsize


def _near_bytes(
    t: Tiling, site: Contraction, hardware: HardwareProfile, c: TileConstants
) -> np.ndarray:
    """Return the bytes that one run over a step's depth takes from L2."""
    size = float(site.dtype.itemsize)
    panel, a_rows = t.panel * t.depth * size, t.rows_per_tile * t.depth * size
    row_runs = np.maximum(1.0, np.ceil(np.minimum(t.block_m, t.m) / t.micro_m))
    first = t.takes_rows_first
    staying, passing = np.where(first, a_rows, panel), np.where(first, panel, a_rows)
    again = np.where(first, t.panels_per_block, row_runs)  # runs that use what stays
    tile = np.where(first, np.minimum(t.block_n, t.n), np.minimum(t.block_m, t.m)) * t.depth * size
    l1 = hardware.l1d_bytes
    all_stay = tile + staying <= 0.8 * l1
    once = np.where(first, row_runs, t.panels_per_block)  # runs that use what else stays
    near = np.where(all_stay, passing / once, c.passing_share * passing) + staying / again
    return np.where(staying <= c.l1_share * l1, near, staying + passing)


def _scatter(t: Tiling, site: Contraction, c: TileConstants) -> np.ndarray:
    """Return the time of storing the output relative to storing it row by row."""
    stride = np.multiply(t.n, site.dtype.itemsize).astype(int)
    kept = L1_SETS * L1_WAYS / np.maximum(1.0, np.gcd(stride, 1 << 20) / 64)
    crowded = np.maximum(1.0, np.minimum(t.block_m, t.m) / kept)
    rows_first = t.takes_rows_first
    return np.where(rows_first, 1.0, 1.0 + c.scatter_share * np.log2(crowded))


def _rows_kept(t: Tiling, lines: float) -> np.ndarray:
    """Return how many rows of A a cache of ``lines`` holds at once: their stride decides the sets.

    Copied rows lie an odd number of lines apart, which uses all sets.
    """
    line = 64
    stride = t.row_stride_bytes
    apart = np.gcd(stride, 1 << 20) / line
    is_copied = t.is_a_packed | t.is_a_staged
    kept: np.ndarray = np.where(is_copied, lines, lines / np.maximum(1.0, apart))
    return kept


def _far_bytes(
    t: Tiling, site: Contraction, hardware: HardwareProfile
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of a and of b that come from beyond L2 while products run."""
    size, l2 = float(site.dtype.itemsize), 0.5 * hardware.l2_bytes
    block_m, block_n = np.minimum(t.block_m, t.m), np.minimum(t.block_n, t.n)
    a_bytes, b_bytes = t.m * t.k * size, t.k * t.n * size
    sums = np.where(t.steps > 1, block_m * block_n * 4.0, 0.0)
    b_tile, a_step = block_n * t.depth * size, block_m * t.depth * size
    b_lost = np.where(a_step + b_tile + sums > l2, 1.0, 0.0)
    b_again = np.where(t.is_b_hoisted, np.where(b_bytes <= l2, 0.0, t.grid_m), b_lost)
    is_swept = t.takes_rows_first & (b_tile > SWEPT_SHARE * hardware.l2_bytes)
    b_again = np.where(is_swept, t.row_tiles, b_again)  # by every group of rows
    is_apart = block_m <= 0.5 * _rows_kept(t, hardware.l2_bytes / 64)
    a_stays = (block_m * t.k * size + sums + b_tile <= l2) & is_apart
    is_copied, rows_first = t.is_a_packed | t.is_a_staged, t.takes_rows_first
    first = np.where(is_copied, 0.0, np.where(a_stays, 1.0, t.grid_n))
    is_lost = ((a_step + sums > l2) | ~is_apart) & ~rows_first
    a_lost = np.where(is_lost, t.panels / t.grid_n, 0.0)
    return (first + a_lost) * a_bytes, b_again * b_bytes
