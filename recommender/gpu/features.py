"""Features of a config on a GPU for the cost model: where the time goes, sizes and knobs."""

from __future__ import annotations

import math

import numpy as np

from recommender.analytic import Estimates
from recommender.cpu.choices import Columns
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
from tilecore.tile_config import digest

RESOURCES = ("tensor", "fma", "work", "shared", "l2", "waiting", "memory")
TERMS = ("tail", "launch")
NAMES = (
    *(f"needs_{name}" for name in RESOURCES), *(f"share_{name}" for name in TERMS),
    "log_time", "log_intensity", "log_blocks", "log_blocks_per_core", "waves", "itemsize",
    *(f"size_{i}" for i in range(SIZES)), *(f"flag_{i}" for i in range(FLAGS)),
    *(f"knob_{i}" for i in range(KNOBS)),
)  # fmt: skip
DIGEST = digest(list(NAMES), 8)


def gpu_features(space: SearchSpace, columns: Columns, estimates: Estimates) -> np.ndarray:
    """Return one row of NAMES per config, float32 (see ``features``)."""
    count = len(estimates.time_s)
    rows: dict[str, np.ndarray] = {}
    for prefix, names, seconds in (
        ("needs", RESOURCES, estimates.resources_s), ("share", TERMS, estimates.terms_s),
    ):  # fmt: skip
        for name in names:
            rows[f"{prefix}_{name}"] = seconds.get(name, np.zeros(count)) / estimates.time_s
    blocks, known = np.ones(count), space.known(columns)
    for launch in space.graph.launches:
        blocks = np.maximum(blocks, evaluate(launch.blocks, known))
    cores = space.hardware.cores
    rows["log_time"] = np.log(estimates.time_s)
    rows["log_blocks"] = np.log(blocks)
    rows["log_blocks_per_core"] = np.log(blocks) - math.log(cores)
    rows["waves"] = np.ceil(blocks / cores) * cores / blocks
    rows |= problem_features(space, estimates.work_flop, count)
    kind = space.hardware.kind
    rows |= knob_features(space.definition.knobs_of(kind), kind, columns)
    return matrix(NAMES, rows, count)
