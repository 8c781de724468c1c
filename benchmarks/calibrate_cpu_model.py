"""Fits the constants of the CPU model to measurements, and says how good its choices are.

    python benchmarks/measure_gemm_space.py space.csv
    python benchmarks/calibrate_cpu_model.py space.csv [--peak-gflops 166] [--fit]

Per shape: rank correlation, median relative error, and the speed of the model's first choice among
the measured configs relative to the best of them. ``--fit`` prints constants that minimise error
and lost speed, starting from those in the code; shapes are left out in turn to see that they carry
over.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from recommender.analytic import estimate
from recommender.cpu_model import DEFAULT_CONSTANTS, CpuConstants
from recommender.hardware import HardwareProfile
from recommender.space import SearchSpace
from tilecore import kernels
from workers.host import detect

FITTED = (
    "efficiency", "fetched_efficiency", "latency_slots", "call_slots", "c_vector_slots",
    "l2_bytes_per_slot", "l3_factor", "a_copy_bytes_per_slot", "a_stage_bytes_per_slot",
    "b_pack_bytes_per_slot", "b_pack_once_factor", "overlap_power", "in_place_start_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    shape: str
    space: SearchSpace
    columns: Mapping[str, np.ndarray]
    time_s: np.ndarray

    def predict(self, constants: CpuConstants) -> np.ndarray:
        return estimate(self.space, self.columns, threads=1, constants=constants).time_s


def load(path: Path, hardware: HardwareProfile) -> list[Sample]:
    definition = kernels.get("gemm")
    rows: dict[tuple, list[dict]] = {}
    for row in csv.DictReader(path.open()):
        rows.setdefault(tuple(int(row[x]) for x in "mnk"), []).append(row)
    samples = []
    for shape, members in rows.items():
        problem = definition.parse_problem(dict(zip("mnk", shape, strict=True)))
        space = SearchSpace.build(definition, problem, hardware)
        configs = [
            {
                k.name: row[k.name] if isinstance(k.default, str) else int(row[k.name])
                for k in definition.knobs
            }
            for row in members
        ]
        times = np.array([float(row["time_s"]) for row in members])
        samples.append(Sample("x".join(map(str, shape)), space, space.table(configs), times))
    return samples


def kept_speed(sample: Sample, constants: CpuConstants) -> float:
    return float(sample.time_s.min() / sample.time_s[np.argmin(sample.predict(constants))])


def loss(samples: Sequence[Sample], constants: CpuConstants) -> float:
    """Huber error of log time, the faster half weighted double, plus a smooth regret."""
    total = 0.0
    for s in samples:
        predicted = s.predict(constants)
        error = np.abs(np.log(predicted / s.time_s))
        weight = np.where(s.time_s <= np.median(s.time_s), 2.0, 0.7)
        total += float(np.mean(weight * np.where(error < 0.3, error**2 / 0.6, error - 0.15)))
        chance = np.exp(-40 * np.log(predicted / predicted.min()))
        total += float(np.sum(chance * np.log(s.time_s / s.time_s.min())) / np.sum(chance))
    return total / len(samples)


def fit(samples: Sequence[Sample], start: CpuConstants) -> CpuConstants:
    first = np.array([getattr(start, name) for name in FITTED])

    def constants(x: np.ndarray) -> CpuConstants:
        values = dict(zip(FITTED, (first * np.exp(x)).tolist(), strict=True))
        values["efficiency"] = min(values["efficiency"], 1.0)
        values["overlap_power"] = max(values["overlap_power"], 1.0)
        return replace(start, **values)

    def objective(x: np.ndarray) -> float:
        return loss(samples, constants(x)) + 0.01 * float(np.sum(x**2))

    found = minimize(objective, np.zeros(len(FITTED)), method="Powell", options={"maxiter": 12})
    return constants(found.x)


def report(samples: Sequence[Sample], constants: CpuConstants) -> None:
    kept = []
    for s in samples:
        predicted = s.predict(constants)
        ranks = [np.argsort(np.argsort(x)) for x in (predicted, s.time_s)]
        error = np.abs(np.log(predicted / s.time_s))
        kept.append(kept_speed(s, constants))
        print(
            f"{s.shape:>16}  {len(s.time_s):3d} configs  rank correlation "
            f"{np.corrcoef(*ranks)[0, 1]:.2f}  median error {np.median(error):.0%}  "
            f"choice at {kept[-1]:.3f} of the best"
        )
    print(f"mean {np.mean(kept):.3f}  loss {loss(samples, constants):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--peak-gflops", type=float, default=166.0)
    parser.add_argument("--bandwidth", type=float, default=10e9, help="of one core, B/s")
    parser.add_argument("--fit", action="store_true")
    args = parser.parse_args()
    hardware = replace(
        detect(),
        peak_flop_per_s={"float32": args.peak_gflops * 1e9},
        core_bandwidth_bytes_per_s=args.bandwidth,
    )
    samples = load(args.table, hardware)
    report(samples, DEFAULT_CONSTANTS)
    if args.fit:
        for left_out in samples if len(samples) > 1 else []:
            others = [s for s in samples if s is not left_out]
            kept = kept_speed(left_out, fit(others, DEFAULT_CONSTANTS))
            print(f"{left_out.shape:>16}  fitted to the others: {kept:.3f} of the best")
        best = fit(samples, DEFAULT_CONSTANTS)
        report(samples, best)
        print({k: round(v, 3) for k, v in asdict(best).items()})


if __name__ == "__main__":
    main()
