"""Features that configs have on any device: sizes and flags of the problem, values of knobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from recommender.cpu.choices import Columns
from recommender.space import SearchSpace
from tilecore.ir.dtype import DType
from tilecore.kernels.definition import KernelDefinition, Knob

SIZES, FLAGS, KNOBS = 6, 6, 8  # of a problem and of its kernel, in their order; more are not seen


def problem_features(space: SearchSpace, work_flop: float, count: int) -> dict[str, np.ndarray]:
    """Return what all configs of a problem have in common; ``work_flop``: the FLOP it takes."""
    definition, problem = space.definition, space.problem
    assert isinstance(definition, KernelDefinition)  # models are of the library's kernels
    sizes = [math.log(int(problem[f.name])) for f in definition.fields if f.kind == "dimension"]
    flags = [
        float(f.choices.index(str(problem[f.name])) if f.kind == "choice" else problem[f.name])
        for f in definition.fields
        if f.kind in ("flag", "choice")
    ]
    found = {f"size_{i}": value for i, value in enumerate(sizes[:SIZES])}
    found |= {f"flag_{i}": value for i, value in enumerate(flags[:FLAGS])}
    found["log_intensity"] = math.log(work_flop / definition.traffic_bytes(problem))
    found["itemsize"] = float(DType(str(problem["dtype"])).itemsize)
    return {name: np.full(count, value) for name, value in found.items()}


def knob_features(knobs: Sequence[Knob], kind: str, columns: Columns) -> dict[str, np.ndarray]:
    """Return what configs set: numbers by their logarithm, choices by their place.

    Args:
        knobs: of the kernel; their order is that of the features.
        kind: of the device: "cpu", "cuda" or "rocm".
        columns: values per config.
    """
    found = {}
    for i, knob in enumerate(knobs[:KNOBS]):
        if knob.name not in columns:
            continue
        column = columns[knob.name]
        if isinstance(knob.default, str):
            options = knob.values_on(kind)
            found[f"knob_{i}"] = np.select(
                [column == v for v in options], range(len(options)), -1.0
            )
        else:
            found[f"knob_{i}"] = np.log2(1.0 + column)
    return found


def matrix(names: Sequence[str], rows: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """Return features by the order of their names, float32 [count, names]."""
    found = np.zeros((count, len(names)), dtype=np.float32)  # what a program lacks stays 0
    for i, name in enumerate(names):
        if name in rows:
            found[:, i] = rows[name]
    return found
