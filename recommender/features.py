"""Features of a config for the cost model: ratios that carry over between shapes and devices."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from recommender.analytic import Estimates
from recommender.cpu_choices import Columns, Floats, Tiling
from recommender.space import SearchSpace
from tilecore.graph import evaluate
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr
from tilecore.kernels.definition import KernelDefinition, Problem
from tilecore.tile_config import digest

TERMS = (
    "fma", "loads", "latency", "l2", "l3", "calls", "update_c", "pack_a", "pack_b", "pack_b_once",
    "imbalance", "launch", "products", "work", "tiles", "runs", "memory",
)  # fmt: skip
SIZES, FLAGS, KNOBS = 6, 6, 8  # of a problem and of its kernel, in their order; more are not seen
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
    """Return one row of NAMES per config, float32.

    Args:
        space: program, problem and device.
        columns: knob values per config.
        estimates: of exactly these configs.
    """
    t = estimates.tiling
    count = len(estimates.time_s)
    rows: dict[str, np.ndarray] = {
        f"share_{name}": estimates.resources_s.get(name, estimates.terms_s.get(name, _zero(count)))
        / estimates.time_s
        for name in TERMS
    }
    definition = space.definition
    assert isinstance(definition, KernelDefinition)  # models are of the library's kernels
    traffic = definition.traffic_bytes(space.problem)
    rows["log_time"] = np.log(estimates.time_s)
    rows["log_intensity"] = np.full(count, math.log(estimates.work_flop / traffic))
    rows["threads"] = np.full(count, float(estimates.threads))
    rows |= _problem_features(definition, space.problem, count)
    rows |= _knob_features(space, columns)
    if t is not None:
        rows |= _tile_features(space, t, estimates.threads)
    else:
        rows |= _block_features(space, columns, estimates.threads, count)
    matrix = np.zeros((count, len(NAMES)), dtype=np.float32)  # what a program lacks stays 0
    for i, name in enumerate(NAMES):
        if name in rows:
            matrix[:, i] = rows[name]
    return matrix


def _problem_features(
    definition: KernelDefinition, problem: Problem, count: int
) -> dict[str, np.ndarray]:
    sizes = [math.log(int(problem[f.name])) for f in definition.fields if f.kind == "dimension"]
    flags = [
        float(f.choices.index(str(problem[f.name])) if f.kind == "choice" else problem[f.name])
        for f in definition.fields
        if f.kind in ("flag", "choice")
    ]
    found = {f"size_{i}": value for i, value in enumerate(sizes[:SIZES])}
    found |= {f"flag_{i}": value for i, value in enumerate(flags[:FLAGS])}
    found["itemsize"] = float(DType(str(problem["dtype"])).itemsize)
    return {name: np.full(count, value) for name, value in found.items()}


def _knob_features(space: SearchSpace, columns: Columns) -> dict[str, np.ndarray]:
    """Return what configs set: numbers by their logarithm, choices by their place."""
    found = {}
    for i, knob in enumerate(space.definition.knobs[:KNOBS]):
        if knob.name not in columns:
            continue
        column = columns[knob.name]
        if isinstance(knob.default, str):
            options = knob.values_on(space.hardware.kind)
            found[f"knob_{i}"] = np.select(
                [column == v for v in options], range(len(options)), -1.0
            )
        else:
            found[f"knob_{i}"] = np.log2(1.0 + column)
    return found


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
        "is_a_transposed": ones * site.a.is_transposed,
        "is_b_transposed": ones * site.b.is_transposed,
        "lanes": ones * t.lanes,
    }  # fmt: skip


def _last_extent(space: SearchSpace) -> np.ndarray:
    assert space.site is not None
    assert space.site.a.source is not None
    return evaluate(space.site.a.source.buffer.shape[-1], {})


def _zero(count: int) -> Floats:
    return np.zeros(count)
