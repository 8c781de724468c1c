"""Fit the constants of recommender/cpu_model.py and tile_model.py to recorded products.

    python benchmarks/calibrate_cpu_model.py FOLDER [--dtype bfloat16] [--fit 2500] [--older CSV]

FOLDER holds what benchmarks/record_cpu_spaces.py recorded, CSV products on tiles of an earlier day
(benchmarks/results/gemm_tiles_2026-11-21.csv). Per shape: rank correlation, median error, and the
speed of the model's first choice among the configs relative to the best of them. ``--fit`` draws
constants at random around the best ones so far; what counts is the error of the logarithm and the
time lost by what the model takes for fast.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from own_kernels import recordings

from recommender.analytic import estimate
from recommender.cpu_model import DEFAULT_CONSTANTS, CpuConstants
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement
from recommender.space import SearchSpace
from recommender.training import make_groups
from tilecore import kernels

PRODUCTS = ("gemm", "gemm_epilogue")
OLDER_FIELDS = {
    "bfloat16": {"out_dtype": "bfloat16"},
    "int8": {"accum_dtype": "int32", "out_dtype": "int32"},
}
OLDER_RATES = {"float32": 202e9, "bfloat16": 2.4e12, "int8": 4.8e12}  # measured on its day
OLDER_BANDWIDTH = 11.6e9


@dataclass(frozen=True)
class Sample:
    """Configs of one workload with their measured times."""

    label: str
    space: SearchSpace
    columns: Mapping[str, np.ndarray]
    time_s: np.ndarray

    def predict(self, constants: CpuConstants) -> np.ndarray:
        """Return the predicted times."""
        return estimate(self.space, self.columns, threads=1, constants=constants).time_s

    def kept(self, constants: CpuConstants) -> float:
        """Return the speed of the model's choice, of the best one's."""
        return float(self.time_s.min() / self.time_s[np.argmin(self.predict(constants))])


def recorded(measured: Sequence[Measurement], dtype: str) -> Iterator[Sample]:
    """Yield the recorded products of a type."""
    for kernel in PRODUCTS:
        definition = kernels.get(kernel)
        for group in make_groups(measured, definition):
            problem = dict(group.workload.problem)
            if problem["dtype"] != dtype:
                continue
            space = SearchSpace.build(definition, problem, group.hardware)
            label = f"{kernel} {problem['m']}x{problem['n']}x{problem['k']}"
            yield Sample(label, space, space.table(list(group.configs)), group.time_s)


def older(path: Path, hardware: HardwareProfile) -> Iterator[Sample]:
    """Yield the products on tiles of an earlier day, at the rates of that day."""
    then = replace(
        hardware, peak_flop_per_s=OLDER_RATES, core_bandwidth_bytes_per_s=OLDER_BANDWIDTH
    )
    rows: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in csv.DictReader(path.open()):
        rows.setdefault((row["dtype"], row["m"], row["n"], row["k"]), []).append(row)
    definition = kernels.get("gemm")
    for (dtype, *shape), members in rows.items():
        sizes = {axis: int(extent) for axis, extent in zip("mnk", shape, strict=True)}
        problem = definition.parse_problem({**sizes, "dtype": dtype, **OLDER_FIELDS[dtype]})
        space = SearchSpace.build(definition, problem, then)
        configs = [
            {k: int(v) if v.isdigit() else v for k, v in r.items() if "block" in k or "pack" in k}
            for r in members
        ]
        times = np.array([float(r["time_s"]) for r in members])
        yield Sample(f"older {dtype} {'x'.join(shape)}", space, space.table(configs), times)


def loss(samples: Sequence[Sample], constants: CpuConstants) -> float:
    """Huber error of log time, the faster half weighted more, plus a smooth regret."""
    total = 0.0
    for s in samples:
        predicted = s.predict(constants)
        error = np.abs(np.log(predicted / s.time_s))
        weight = np.where(s.time_s <= np.median(s.time_s), 1.0, 0.35)
        total += float(np.mean(weight * np.where(error < 0.3, error**2 / 0.6, error - 0.15)))
        chance = np.exp(-40 * np.log(predicted / predicted.min()))
        total += float(np.sum(chance * np.log(s.time_s / s.time_s.min())) / np.sum(chance))
    return total / len(samples)


def fit(samples: Sequence[Sample], trials: int, seed: int, *, tiles: bool) -> CpuConstants:
    """Return the best constants of a random walk: those of tiles, or those of vectors."""
    rng, best = random.Random(seed), DEFAULT_CONSTANTS
    reached = loss(samples, best)
    for _ in range(trials):
        part = best.tiles if tiles else best
        known = {k: v for k, v in asdict(part).items() if isinstance(v, float)}
        changed = {
            k: max(1e-3, known[k]) * rng.lognormvariate(0.0, 0.3)
            for k in rng.sample(list(known), rng.choice((1, 2, 3)))
        }
        drawn = (
            replace(best, tiles=replace(best.tiles, **changed)) if tiles
            else replace(best, **changed)
        )  # fmt: skip
        found = loss(samples, drawn)
        if found < reached:
            best, reached = drawn, found
    return best


def report(samples: Sequence[Sample], constants: CpuConstants) -> None:
    """Print how well the constants do."""
    for s in samples:
        predicted = s.predict(constants)
        ranks = [np.argsort(np.argsort(x)) for x in (predicted, s.time_s)]
        error = np.median(np.abs(np.log(predicted / s.time_s)))
        print(
            f"{s.label:>28}  {len(s.time_s):3d} configs  rank correlation "
            f"{np.corrcoef(*ranks)[0, 1]:.2f}  median error {error:.0%}  "
            f"choice at {s.kept(constants):.3f} of the best"
        )
    kept = [s.kept(constants) for s in samples]
    print(f"mean {np.mean(kept):.3f}  loss {loss(samples, constants):.3f}")


def main() -> None:
    """Report on the constants in use, and on fitted ones if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--fit", type=int, default=0, metavar="TRIALS")
    parser.add_argument("--older", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    measured = recordings(args.folder)
    samples = list(recorded(measured, args.dtype))
    if args.older is not None:
        samples += older(args.older, measured[0].hardware)
    report(samples, DEFAULT_CONSTANTS)
    if args.fit:
        best = fit(samples, args.fit, args.seed, tiles=args.dtype != "float32")
        report(samples, best)
        print(best.tiles if args.dtype != "float32" else best)


if __name__ == "__main__":
    main()
