"""Fit the constants of the GPU model to measured candidates, and say how well they rank.

    python benchmarks/calibrate_gpu_model.py benchmarks/data/h200/*.jsonl.gz
        [--fit | --held-out | --learn]

Files are results of packs (``tilecore import`` reads them too). For each workload: the time of the
candidate that the model takes for the fastest, and of the best of its first three, beside the
fastest one; Spearman's rank correlation; the logarithm of predicted over measured time. ``--fit``
looks for constants with less of the squared error of that, workload by workload relative to its own
median, and prints them. ``--held-out`` looks for them without a quarter of the shapes in turn, from
constants set by hand, and says how fast the first choice and the best of eight are on these: mean
and worst of best time over chosen time. ``--learn`` trains cost models as ``tilecore import`` does,
a quarter of the shapes left out in turn, on top of the constants as they are and of those that were
set by hand before anything was measured: the mean of best time over chosen time by who chose.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.optimize import minimize
from scipy.stats import spearmanr

from recommender.errors import NotEnoughMeasurements
from recommender.gpu.model import DEFAULT_GPU_CONSTANTS, GpuConstants, gpu_terms
from recommender.hardware import HardwareProfile, load_profile
from recommender.space import SearchSpace
from recommender.training import train
from tilecore import kernels
from tilecore.tile_config import TileConfig
from workers.pack_results import read_results

FITTED = (
    "tensor_efficiency", "work_efficiency", "special_operations", "box_latency_s", "step_clocks",
    "issue_clocks", "block_clocks", "memory_efficiency", "group_overlap", "own_overlap",
)  # fmt: skip
SHARES = ("tensor_efficiency", "memory_efficiency", "group_overlap", "own_overlap")  # at most 1
BY_HAND = GpuConstants(
    tensor_efficiency=0.92, work_efficiency=0.5, special_operations=6.0, box_latency_s=0.7e-6,
    group_overlap=0.0, own_overlap=0.0, step_clocks=60.0, block_clocks=1500.0,
    memory_efficiency=0.88, issue_clocks=0.0,
    # What nobody had thought of yet.
    block_overlap=1.0, store_latency_s=0.0, exchange_clocks=0.0, fold_operations=0.0,
    join_operations=0.0, fold_clocks=0.0, block_interval_s=0.0,
)  # fmt: skip
START = replace(
    BY_HAND, group_overlap=0.5, own_overlap=0.5, issue_clocks=50.0
)  # a fit leaves zeros as they are
FOLDS, CHOSEN = 4, (1, 3, 8)
FAST_WEIGHT = 3.0  # of the fast half of a workload: they decide what is recommended


@dataclass(frozen=True, slots=True)
class Measured:
    """A workload with its measured candidates."""

    name: str
    space: SearchSpace
    columns: Any
    time_s: np.ndarray[Any, Any]


def lines(paths: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    """Yield the measurements of result files."""
    for path in paths:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for line in file:
                found = json.loads(line)
                if "workload" in found and found["status"] == "OK":
                    yield found


def read(paths: Sequence[Path], hardware: HardwareProfile) -> list[Measured]:
    """Return the workloads of result files."""
    times: dict[tuple[str, str], dict[TileConfig, float]] = defaultdict(dict)
    for row in lines(paths):
        if row["protocol"] != "screen":
            continue
        key = row["workload"]["kernel"], json.dumps(row["workload"]["problem"], sort_keys=True)
        config, time_s = TileConfig.of(row["config"]), statistics.median(row["times_s"])
        times[key][config] = min(time_s, times[key].get(config, time_s))
    found = []
    for (kernel, problem), known in sorted(times.items()):
        definition = kernels.get(kernel).on("cuda")
        space = SearchSpace.build(definition, json.loads(problem), hardware)
        # Of a program that has had a further knob since, nothing is known.
        legal = [c for c in known if dict(c).keys() == space.values.keys()]
        legal = [c for c in legal if space.contains(dict(c))]
        if len(legal) > 3:
            columns = space.known(space.table([dict(c) for c in legal]))
            found.append(
                Measured(f"{kernel} {problem}", space, columns, np.array([known[c] for c in legal]))
            )
    return found


def predicted(one: Measured, hardware: HardwareProfile, k: GpuConstants) -> np.ndarray[Any, Any]:
    """Return the model's times of a workload's candidates."""
    terms = gpu_terms(one.space.graph, one.columns, hardware, k).terms
    total: np.ndarray[Any, Any] = np.add.reduce(list(terms.values()))
    return total


def report(data: Sequence[Measured], hardware: HardwareProfile, k: GpuConstants) -> None:
    """Print how well the model ranks, per kernel."""
    rows: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for one in data:
        times, made = one.time_s, predicted(one, hardware, k)
        order, best = np.argsort(made), one.time_s.min()
        rows[one.name.split()[0]].append((
            best / times[order[0]], best / times[order[:3]].min(),
            float(spearmanr(made, times).statistic), float(np.median(np.log(made / times))),
        ))  # fmt: skip
    for kernel, found in rows.items():
        first, three, rank, scale = np.array(found).T
        print(
            f"{kernel:18} {len(found):3} workloads; first: median {np.median(first):.3f}, "
            f"p10 {np.quantile(first, 0.1):.3f}; best of three: {np.median(three):.3f}, "
            f"{np.quantile(three, 0.1):.3f}; rank correlation {np.median(rank):.2f}; "
            f"log of predicted over measured {np.median(scale):+.2f}"
        )


def loss(data: Sequence[Measured], hardware: HardwareProfile, k: GpuConstants) -> float:
    """Return the mean squared error of logarithms, what is fast counting more."""
    total = []
    for one in data:
        gap = np.log(predicted(one, hardware, k) / one.time_s)
        weight = np.where(one.time_s <= np.median(one.time_s), FAST_WEIGHT, 1.0)
        total.append(float(np.average(np.minimum(gap**2, 4.0), weights=weight)))
    return statistics.fmean(total)


def fit(data: Sequence[Measured], hardware: HardwareProfile, k: GpuConstants) -> GpuConstants:
    """Return constants near ``k`` with less error."""
    start = np.log([getattr(k, name) for name in FITTED])

    def made(x: np.ndarray[Any, Any]) -> GpuConstants:
        values = dict(zip(FITTED, np.exp(x), strict=True))
        return replace(k, **{n: min(v, 1.0) if n in SHARES else v for n, v in values.items()})

    found = minimize(
        lambda x: loss(data, hardware, made(x)), start, method="Powell",
        options={"maxiter": 6, "xtol": 0.02, "ftol": 1e-3},
    )  # fmt: skip
    return made(found.x)


def held_out(data: Sequence[Measured], hardware: HardwareProfile) -> None:
    """Print how fast choices are on shapes that the constants were not fitted to."""
    shapes = sorted({_shape(one) for one in data})
    order = np.random.default_rng(0).permutation(len(shapes))
    fold = {shapes[place]: i % FOLDS for i, place in enumerate(order)}
    found: dict[str, list[list[float]]] = defaultdict(list)
    for number in range(FOLDS):
        known = [one for one in data if fold[_shape(one)] != number]
        constants = fit(known, hardware, START)
        for one in data:
            if fold[_shape(one)] != number:
                continue
            times = one.time_s[np.argsort(predicted(one, hardware, constants))]
            shares = [float(times.min() / times[:n].min()) for n in CHOSEN]
            found[one.name.split()[0]].append(shares)
    for kernel, rows in found.items():
        mean, worst = np.mean(rows, axis=0), np.min(rows, axis=0)
        shown = [f"{n}: {a:.3f}, {b:.3f}" for n, a, b in zip(CHOSEN, mean, worst, strict=True)]
        print(f"{kernel:18} {len(rows):3} workloads; mean, worst of {'; '.join(shown)}")


def _shape(one: Measured) -> tuple[Any, ...]:
    """Return what a workload shares with those of its shape: all but types."""
    kernel, problem = one.name.split(maxsplit=1)
    sizes = json.loads(problem).values()
    return kernel, *(v for v in sizes if isinstance(v, int) and not isinstance(v, bool))


def learn(paths: Sequence[Path], hardware: HardwareProfile) -> None:
    """Print what cost models choose on shapes that were left out."""
    measured = [m for path in paths for m in read_results(path)]
    for title, constants in (("fitted", DEFAULT_GPU_CONSTANTS), ("by hand", BY_HAND)):
        for kernel in sorted({m.workload.kernel for m in measured}):
            with (
                patch("recommender.gpu.model.gpu_terms", partial(gpu_terms, constants=constants)),
                suppress(NotEnoughMeasurements),
            ):
                outcome = train(measured, kernels.get(kernel), family=hardware.family)
                figures = {k: round(v, 3) for k, v in outcome.metrics.items()}
                print(f"constants {title}: {kernel}: {figures}; {outcome.reason}")


def main() -> None:
    """Report, fit and report again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--learn", action="store_true")
    given = parser.parse_args()
    hardware = load_profile(given.device)
    if given.learn:
        learn(given.files, hardware)
        return
    data = read(given.files, hardware)
    if given.held_out:
        held_out(data, hardware)
        return
    report(data, hardware, DEFAULT_GPU_CONSTANTS)
    if given.fit:
        better = fit(data, hardware, DEFAULT_GPU_CONSTANTS)
        for name in FITTED:
            print(
                f"{name}: {getattr(DEFAULT_GPU_CONSTANTS, name):.4g} -> {getattr(better, name):.4g}"
            )
        report(data, hardware, better)


if __name__ == "__main__":
    main()
