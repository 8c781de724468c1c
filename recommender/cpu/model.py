"""Analytic time of a blocked matrix product on a CPU: work and bytes divided by rates.

The time of one core is the sum of what cannot overlap (packing, starting micro-kernels, moving C)
and of the micro-kernel itself, which is as slow as its slowest resource: FMA ports, load ports, FMA
latency, or the cache that its operands stream from.

The unit of the micro-kernel's resources is the *slot*: the time one core needs for one vector FMA
at peak rate; a core that starts p FMAs per cycle has slots of 1/p cycle and, on the machines this
was built for (Intel AVX-512 and AVX2, AMD Zen), starts one load per slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from recommender.cpu.choices import Tiling
from recommender.cpu.few_rows import (
    DEFAULT_FEW_ROWS_CONSTANTS,
    FewRowsConstants,
    read_s,
    with_few_rows,
)
from recommender.cpu.terms import CoreTerms, fma_slot_s
from recommender.factored import may_hold
from recommender.hardware import HardwareProfile
from recommender.tile_model import DEFAULT_TILE_CONSTANTS, TileConstants, tile_terms
from tilecore.graph import Contraction

LINE_BYTES = 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuConstants:
    """Properties of the generated code and of caches that no profile holds.

    Source: first measured on AMD Zen 4, then checked against measurements by
    ``benchmarks/calibrate_cpu_model.py`` (AVX-512 Xeon, 2 cores, 2026-11-20), where
    FMAs on registers reach 208 GFLOP/s per core and the best library GEMM 165.
    """

    efficiency: float = 0.76  # of FMA peak that a micro-kernel reaches in cache
    fetched_efficiency: float = 0.9  # where b is fetched ahead, to L1
    latency_slots: float = 10.0  # independent FMAs in flight needed for full rate
    call_slots: float = 50.0  # starting and ending one run of the micro-kernel
    c_vector_slots: float = 3.75  # load and store of one vector of C
    l2_bytes_per_slot: float = 12.8  # sustained L2 to L1
    l3_factor: float = 1.5  # L3 rate per core relative to core_bandwidth_bytes_per_s
    a_copy_bytes_per_slot: float = 4.8  # rows to padded rows
    a_stage_bytes_per_slot: float = 6.4  # the same by groups of rows, fetched ahead
    b_pack_bytes_per_slot: float = 4.0  # rows to panels
    b_pack_once_factor: float = 1.0  # time of packing B once relative to packing it in blocks
    overlap_power: float = 4.0  # p of the p-norm that joins resources used at the same time
    in_place_start_bytes: float = 1024.0  # lost per row segment read in place from beyond L2
    l1_ways: float = 8.0  # rows with a stride of 4096 B that L1 holds at once
    few_rows: FewRowsConstants = DEFAULT_FEW_ROWS_CONSTANTS
    tiles: TileConstants = DEFAULT_TILE_CONSTANTS


DEFAULT_CONSTANTS = CpuConstants()


def core_terms(
    t: Tiling,
    site: Contraction,
    hardware: HardwareProfile,
    constants: CpuConstants,
    side_by_side: np.ndarray | None = None,
) -> CoreTerms:
    """Return where the time of one core goes for every candidate of ``t``.

    ``side_by_side``: how many blocks of few rows run as one (``few_rows_model.joined_blocks``).
    """
    if t.dot is not None and t.dot.is_tiled:
        return tile_terms(t, site, hardware, constants.tiles)
    c, group = constants, 1 if t.dot is None else t.dot.group
    size = float(t.packed_bytes)
    slot_s = fma_slot_s(site, hardware)
    far = hardware.core_bandwidth_bytes_per_s * c.l3_factor
    rows, first = t.rows_per_tile, t.takes_rows_first
    near, distant = _stream_bytes_per_k(t, hardware, constants, size, first)
    # Products of what few knobs decide come first: arrays stay small until they meet the rest.
    steps_s = t.row_tiles * t.panels * (t.k * slot_s / group)  # of a vector product per step of k
    l2_rate, l3_rate = group / c.l2_bytes_per_slot, group / (slot_s * far)
    efficiency = np.where(first, c.fetched_efficiency, c.efficiency)
    by_core = rows * t.micro_n, rows + t.micro_n, c.latency_slots

    def resources() -> dict[str, np.ndarray]:
        core_s = steps_s / efficiency
        fma, loads, latency = (core_s * slots for slots in by_core)
        l2, l3 = near * (steps_s * l2_rate), distant * (steps_s * l3_rate)
        return {"fma": fma, "loads": loads, "latency": latency, "l2": l2, "l3": l3}

    p = c.overlap_power
    in_core = _power(by_core[0], p) + _power(by_core[1], p) + _power(by_core[2], p)
    joined = in_core * np.where(first, c.fetched_efficiency**-p, c.efficiency**-p)
    joined = joined + _power(near * l2_rate, p) + _power(distant * l3_rate, p)
    a_bytes, b_bytes = t.m * t.k * size, t.k * t.n * size
    copies = np.where(t.is_a_packed, t.a_reuse / c.a_copy_bytes_per_slot, 0.0)
    copies = copies + np.where(t.is_a_staged, t.a_reuse / c.a_stage_bytes_per_slot, 0.0)
    own = np.where(t.is_b_hoisted | t.is_b_in_place, 0, t.b_reuse)
    once = np.where(t.is_b_hoisted, 1.0, 0.0)
    pack_b_s = b_bytes * (slot_s / c.b_pack_bytes_per_slot)
    own_s = pack_b_s * own
    if may_hold(t.has_few_rows):  # B comes from memory for packing as well, not in place alone
        reads = t.has_few_rows & (own > 0)
        own_s = own_s + np.where(reads, read_s(b_bytes, hardware, c.few_rows), 0.0)
    sum_size = float(site.accum_dtype.itemsize)
    c_tile = t.block_m * t.block_n * sum_size
    c_far = np.where(c_tile > hardware.l2_bytes / 2, 2 * t.steps, 2.0)
    found = CoreTerms(
        resources=resources, kernel=steps_s * _root(joined, p),
        calls=t.panels * (t.row_tiles * t.steps * (c.call_slots * slot_s)),
        update_c=t.panels * t.micro_n * t.steps * (t.m * c.c_vector_slots * slot_s)
        + t.m * t.n * sum_size * c_far / far,
        pack_a=a_bytes * slot_s * copies,
        pack_b=own_s,
        pack_b_once=once * (pack_b_s * c.b_pack_once_factor + b_bytes / far),
    )  # fmt: skip
    if not may_hold(t.is_b_in_place):
        return found
    return with_few_rows(found, t, site, hardware, c.few_rows, side_by_side)


def _stream_bytes_per_k(
    t: Tiling, hardware: HardwareProfile, constants: CpuConstants, size: float, first: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes per step of k of one micro-kernel run that come from L2 and from beyond.

    ``first``: where each group of rows meets all panels.
    """
    s = _Streams(
        panel=t.panel * size, a_rows=t.rows_per_tile * size,
        b_tile=t.columns_of_block * t.depth * size, clash=_clashes(t, constants),
    )  # fmt: skip
    near, far = _bytes_panels_first(s, t, hardware, constants, size)
    near_rows, far_rows = _bytes_rows_first(s, t, hardware)
    return np.where(first, near_rows, near), np.where(first, far_rows, far)


@dataclass(frozen=True, slots=True)
class _Streams:
    """What both orders of the micro-kernel's runs read.

    Attributes:
        panel, a_rows: bytes per step of k of a panel of B, and of a register tile's rows of A.
        b_tile: bytes of a tile of B.
        clash: where rows of A push each other out of L1; None: nowhere.
    """

    panel: np.ndarray
    a_rows: np.ndarray
    b_tile: np.ndarray
    clash: np.ndarray | None


def _clashes(t: Tiling, constants: CpuConstants) -> np.ndarray | None:
    """Return where rows of a read in place push each other out of L1; None: nowhere."""
    sets = 4096.0 / np.gcd(t.row_stride_bytes, 4096)
    crowded = t.micro_m > constants.l1_ways * sets
    if not may_hold(crowded):
        return None
    clash: np.ndarray = ~t.is_a_packed & ~t.is_a_staged & crowded
    return clash


def _bytes_rows_first(
    s: _Streams, t: Tiling, hardware: HardwareProfile
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same where a group of rows meets all panels: b streams, the group stays."""
    stays = s.a_rows * t.depth <= 0.8 * hardware.l1d_bytes
    a_once = s.a_rows / t.panels_per_block
    from_l2 = np.where(stays, a_once, s.a_rows)
    if s.clash is not None:
        from_l2 = np.where(s.clash, t.rows_per_tile * LINE_BYTES, from_l2)
    once = np.where(t.is_b_hoisted, 1.0 / t.row_runs, 0.0)
    b_far = np.where(s.b_tile <= 0.75 * hardware.l2_bytes, once, 1.0) * s.panel
    return from_l2 + s.panel, a_once + b_far


def _bytes_panels_first(
    s: _Streams, t: Tiling, hardware: HardwareProfile, constants: CpuConstants, size: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same where a panel meets all rows."""
    l1, l2 = hardware.l1d_bytes, hardware.l2_bytes
    b_once = s.panel / t.row_runs
    in_l1 = (s.panel + s.a_rows) * t.depth <= 0.8 * l1
    from_l2 = np.where(in_l1, b_once + s.a_rows, s.panel + s.a_rows)
    if s.clash is not None:  # of rows in place whole cache lines are read
        from_l2 = from_l2 + np.where(s.clash, t.rows_per_tile * LINE_BYTES - s.a_rows, 0)
    a_tile = t.rows_of_block * t.depth * size
    # B from beyond L2: each panel once per block, spread over the row tiles that share it
    b_stays = ~t.is_b_hoisted & (a_tile + s.b_tile <= 0.75 * l2)
    b_far = np.where(b_stays, 0.0, b_once)
    # A from beyond L2: once per block if the tile stays there, else once per panel
    a_stays = a_tile + s.panel * t.depth <= 0.75 * l2
    # rows read in place come in short segments far apart, which no prefetcher keeps up with
    restart = 1.0 + constants.in_place_start_bytes / (t.depth * size)
    first = np.where(t.is_a_packed, 0.0, restart / t.panels_per_block)
    a_far = np.where(a_stays, first, 1.0) * s.a_rows
    return from_l2, a_far + b_far


def _power(x: Any, power: float) -> Any:
    """Return a power; squares take a tenth of the time of the power function."""
    if power != 4.0:
        return x**power
    square = x * x
    return square * square


def _root(x: Any, power: float) -> Any:
    return np.sqrt(np.sqrt(x)) if power == 4.0 else x ** (1.0 / power)
