"""Recommendations for our own kernels on recorded spaces of this CPU, shapes left out in turn.

    python benchmarks/own_kernels.py FOLDER [--json OUT]

FOLDER holds what benchmarks/record_cpu_spaces.py recorded. For every workload the choice among its
recorded configs, as the best recorded time over that of the choice (or of the best of 8 choices):
by the default config, by the config most like the winner of the nearest other shape (a lookup), by
the analytic model alone, by a cost model trained on the other shapes of its kernel. No time of the
workload itself is looked at.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from db.exchange.t4 import t4_measurements
from recommender.measurement import Measurement
from recommender.training import Group, fit_groups, make_groups, nearest_choice
from tilecore import kernels

BEST_OF = 8
COLUMNS = ("default", "nearest", "analytic", "analytic, best of 8", "model", "model, best of 8")


def recordings(folder: Path) -> list[Measurement]:
    """Return every measurement in the recordings of a folder."""
    found = []
    for path in sorted(folder.glob("*.json.gz")):
        found += t4_measurements(gzip.decompress(path.read_bytes()).decode(), path.name)
    return found


def judged(groups: Sequence[Group], seed: int) -> Iterator[tuple[Group, dict[str, float]]]:
    """Yield every group with the part of its best speed that each way of choosing reaches."""
    default = kernels.get(groups[0].workload.kernel).default_config()
    for group in groups:
        others = [g for g in groups if g.workload.key != group.workload.key]
        model = fit_groups(others, seed, with_interval=False)
        speed = group.time_s.min() / group.time_s
        analytic = group.analytic_s
        predicted = analytic * model.predict(group.features).factor
        yield (
            group,
            {
                "default": float(speed[group.configs.index(default)]),
                "nearest": float(speed[nearest_choice(group, others)]),
                "analytic": float(speed[np.argmin(analytic)]),
                "analytic, best of 8": float(speed[np.argsort(analytic)[:BEST_OF]].max()),
                "model": float(speed[np.argmin(predicted)]),
                "model, best of 8": float(speed[np.argsort(predicted)[:BEST_OF]].max()),
            },
        )


def main() -> None:
    """Judge every kernel and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    measured = recordings(args.folder)
    rows: list[dict[str, object]] = []
    for name in sorted({m.workload.kernel for m in measured}):
        groups = list(make_groups(measured, kernels.get(name)))
        for group, reached in judged(groups, args.seed):
            problem = dict(group.workload.problem)
            rows.append(
                {"kernel": f"{name} {problem['dtype']}", "problem": problem,
                 "configs": len(group.configs), **reached}
            )  # fmt: skip
    print("| kernel | shapes | configs | " + " | ".join(COLUMNS) + " |")
    print("|---" * (3 + len(COLUMNS)) + "|")
    for name in [*sorted({str(r["kernel"]) for r in rows}), ""]:
        chosen = [r for r in rows if name in ("", r["kernel"])]
        counts = f"{len(chosen)} | {sum(int(str(r['configs'])) for r in chosen)}"
        values = ([float(str(r[c])) for r in chosen] for c in COLUMNS)
        shown = " | ".join(f"{statistics.fmean(v):.3f}, {min(v):.3f}" for v in values)
        print(f"| {name or 'all'} | {counts} | {shown} |")
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
