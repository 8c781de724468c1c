"""Fit the constants of recommender/cpu/model.py and tile_model.py to recorded products.

    python benchmarks/calibrate_cpu_model.py FOLDER [--dtype float32 ...] [--fit 2500]

FOLDER holds what benchmarks/record_cpu_spaces.py recorded. Per shape: rank correlation, median
error, and the speed of the model's first choice among the configs relative to the best of them.
Types on tiles (bfloat16, int8) have constants of their own. ``--fit`` draws constants at random
around the best ones so far; what counts is the error of the logarithm and the time lost by what the
model takes for fast.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from own_kernels import recordings

from recommender.analytic import estimate
from recommender.cpu.model import DEFAULT_CONSTANTS, CpuConstants
from recommender.measurement import Measurement
from recommender.space import SearchSpace
from recommender.training import make_groups
from tilecore import kernels

PRODUCTS = ("gemm", "gemm_epilogue")


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


def recorded(measured: Sequence[Measurement], dtypes: Sequence[str]) -> Iterator[Sample]:
    """Yield the recorded products of some types."""
    for kernel in PRODUCTS:
        definition = kernels.get(kernel)
        for group in make_groups(measured, definition):
            problem = dict(group.workload.problem)
            if problem["dtype"] not in dtypes:
                continue
            space = SearchSpace.build(definition, problem, group.hardware)
            sizes = "x".join(str(problem[axis]) for axis in "mnk")
            label = f"{kernel} {problem['dtype']} {sizes}"
            yield Sample(label, space, space.table(list(group.configs)), group.time_s)


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
    parser.add_argument("--dtype", nargs="+", default=["float32"])
    parser.add_argument("--fit", type=int, default=0, metavar="TRIALS")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    measured = recordings(args.folder)
    samples = list(recorded(measured, args.dtype))
    report(samples, DEFAULT_CONSTANTS)
    if args.fit:
        on_tiles = "float32" not in args.dtype
        best = fit(samples, args.fit, args.seed, tiles=on_tiles)
        report(samples, best)
        print(best.tiles if on_tiles else best)


if __name__ == "__main__":
    main()
