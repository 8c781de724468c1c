"""Features of a config for the cost model: ratios that carry over between shapes and devices."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from recommender.analytic import Estimates
from recommender.cpu.choices import Columns, Floats, Tiling
from recommender.space import SearchSpace
from recommender.workload_features import (
    FLAGS,
    KNOBS,
    SIZES,
    knob_features,
    matrix,
    problem_features,
)
from tilecore.graph import evaluate
from tilecore.ir.expr import Expr
from tilecore.tile_config import digest

TERMS = (
    "fma", "loads", "latency", "l2", "l3", "calls", "update_c", "pack_a", "pack_b", "pack_b_once",
    "imbalance", "launch", "products", "work", "tiles", "runs", "memory",
)  # fmt: skip
NAMES = (
    *(f"share_{name}" for name in TERMS),
    "log_time", "log_intensity", "threads", "log_m", "log_n", "log_k",
    "log_block_m", "log_block_n", "log_block_k", "steps", "micro_m", "micro_n", "accumulators",
    "register_use", "rows_per_tile", "row_fill", "panel_fill", "is_a_packed", "is_b_hoisted",
    "log_a_tile_per_l2", "log_b_panel_per_l1", "log_b_tile_per_l2", "log_c_tile_per_l2",
    "log_operands_per_l3", "waves", "log_blocks", "log_stride_sets", "is_a_transposed",
    "is_b_transposed", "lanes", "itemsize", "log_live_per_l1", "log_live_per_l2",
    *(f"size_{i}" for i in range(SIZES)), *(f"flag_{i}" for i in range(FLAGS)),
    *(f"knob_{i}" for i in range(KNOBS)),
)  # fmt: skip
SCHEMA = f"cpu-3-{digest(list(NAMES), 8)}"


def features(space: SearchSpace, columns: Columns, estimates: Estimates) -> np.ndarray:
    """Return one row per config, float32: of NAMES, for GPUs of ``gpu_features.NAMES``.

    Args:
        space: program, problem and device.
        columns: knob values per config.
        estimates: of exactly these configs.
    """
    if space.hardware.kind != "cpu":
        from recommender.gpu.features import gpu_features  # CPUs need none of it

        return gpu_features(space, columns, estimates)
    t = estimates.tiling
    count = len(estimates.time_s)
    rows: dict[str, np.ndarray] = {
        f"share_{name}": estimates.resources_s.get(name, estimates.terms_s.get(name, _zero(count)))
        / estimates.time_s
        for name in TERMS
    }
    rows["log_time"] = np.log(estimates.time_s)
    rows["threads"] = np.full(count, float(estimates.threads))
    rows |= problem_features(space, estimates.work_flop, count)
    rows |= knob_features(space.definition.knobs, "cpu", columns)
    if t is not None:
        rows |= _tile_features(space, t, estimates.threads)
    else:
        rows |= _block_features(space, columns, estimates.threads, count)
    return matrix(NAMES, rows, count)


def _block_features(
    space: SearchSpace, columns: Columns, threads: int, count: int
) -> dict[str, np.ndarray]:
    """Return what programs that are not one product have in common: blocks, and what each holds."""

    def most(values: Iterable[Expr]) -> np.ndarray:
        found = [np.broadcast_to(evaluate(value, columns), (count,)) for value in values]
        largest: np.ndarray = np.maximum.reduce(found).astype(np.float64)
        return largest

    launches, columns = space.graph.launches, space.known(columns)
    blocks = np.maximum(1.0, most(launch.blocks for launch in launches))
    live = np.maximum(1.0, most(x for launch in launches for x in launch.live_bytes.values()))
    return {
        "waves": np.ceil(blocks / threads) * threads / blocks,
        "log_blocks": np.log(blocks),
        "log_live_per_l1": np.log(live / space.hardware.l1d_bytes),
        "log_live_per_l2": np.log(live / space.hardware.l2_bytes),
    }


def _tile_features(space: SearchSpace, t: Tiling, threads: int) -> dict[str, np.ndarray]:
    hardware, site = space.hardware, space.site
    assert site is not None
    size = float(site.accum_dtype.itemsize)
    used = t.micro_m * t.micro_n + t.micro_n + 1
    ones = np.ones_like(t.block_m)
    assert site.a.source is not None
    stride = int(float(_last_extent(space)) * size)
    waves = np.ceil(t.blocks / threads) * threads / t.blocks
    operands = (t.m * t.k + t.k * t.n + t.m * t.n) * size
    l3 = hardware.l3_bytes or hardware.l2_bytes * hardware.cores
    return {
        "log_m": ones * math.log(t.m), "log_n": ones * math.log(t.n), "log_k": ones * math.log(t.k),
        "log_block_m": np.log(t.block_m), "log_block_n": np.log(t.block_n),
        "log_block_k": np.log(t.block_k), "steps": t.steps,
        "micro_m": t.micro_m, "micro_n": t.micro_n, "accumulators": t.micro_m * t.micro_n,
        "register_use": used / hardware.vector_registers,
        "rows_per_tile": t.rows_per_tile, "row_fill": t.rows_per_tile / t.micro_m,
        "panel_fill": t.n / (t.panels * t.panel),
        "is_a_packed": t.is_a_packed * ones, "is_b_hoisted": t.is_b_hoisted * ones,
        "log_a_tile_per_l2": np.log(t.block_m * t.depth * size / hardware.l2_bytes),
        "log_b_panel_per_l1": np.log(t.panel * t.depth * size / hardware.l1d_bytes),
        "log_b_tile_per_l2": np.log(t.block_n * t.depth * size / hardware.l2_bytes),
        "log_c_tile_per_l2": np.log(t.block_m * t.block_n * size / hardware.l2_bytes),
        "log_operands_per_l3": ones * math.log(operands / l3),
        "waves": waves, "log_blocks": np.log(t.blocks),
        "log_stride_sets": ones * math.log2(4096 // math.gcd(stride, 4096)),
        "is_a_transposed": ones * 0.0,  # blocks copy it as rows (passes/upright.py)
        "is_b_transposed": ones * site.b.is_transposed,
        "lanes": ones * t.lanes,
    }  # fmt: skip


def _last_extent(space: SearchSpace) -> np.ndarray:
    assert space.site is not None
    assert space.site.a.source is not None
    return evaluate(space.site.a.source.buffer.shape[-1], space.sizes)


def _zero(count: int) -> Floats:
    return np.zeros(count)
