"""Fit the constants of recommender/op_model.py to measured spaces of the library's kernels.

    python -m benchmarks.calibrate_op_model SPACES.json.. [--measure [--match REGEX]]
        [--trials 400] [--leave-out] [--start NAME=VALUE..]

``--measure`` first measures up to 20 configs of every row of benchmarks/cpu.py that this model is
for on this machine, one thread, interleaved, and writes them with the machine's profile; with
``--match`` those rows alone, in place of what the file (of this machine) has of them. Constants
are then drawn at random around the best ones so far; what counts is how near the model's choice
comes to the fastest config measured, on average over workloads, and over the machines of several
files. ``--leave-out`` also fits to all files but one, and tells what that reaches on this one: what
to expect of a machine that nothing was fitted to, if ``--start`` knows nothing of it either (the
constants in use, which trials start from otherwise, do). Prints choice and constants.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu import Case, interleaved, profile, rows
from recommender.analytic import estimate
from recommender.hardware import HardwareProfile
from recommender.op_model import DEFAULT_OP_CONSTANTS, OpConstants, op_terms
from recommender.space import SearchSpace
from tilecore import kernels
from tilecore.artifact import ArtifactStore
from tilecore.tile_config import TileConfig

MOST_CONFIGS = 20


@dataclass(frozen=True)
class Space:
    """Configs of one workload with their measured times."""

    label: str
    space: SearchSpace
    columns: dict[str, np.ndarray]
    time_s: np.ndarray

    def reached(self, constants: OpConstants) -> float:
        """Return the fastest time divided by that of the model's choice."""
        columns = self.space.known(self.columns)
        terms = op_terms(self.space.graph, columns, self.space.hardware, 1, constants)
        predicted = terms.time_s
        return float(self.time_s.min() / self.time_s[int(np.argmin(predicted))])


def measure(path: Path, match: str) -> None:
    """Measure the spaces of the rows that match and write them, with the others of the file."""
    host = profile("llvm")
    known = json.loads(path.read_text()) if match and path.exists() else {"spaces": []}
    hardware = known.get("hardware", host.as_dict())
    found: dict[str, dict[str, Any]] = {entry["label"]: entry for entry in known["spaces"]}
    for row in rows():
        if not re.search(match, row.label):
            continue
        with tempfile.TemporaryDirectory() as folder:
            case = Case(row, host, "llvm", ArtifactStore(Path(folder)))
            if estimate(case.space).tiling is not None:  # a product, which has a model of its own
                continue
            chosen = random.Random(0).sample(
                range(len(case.space)), min(MOST_CONFIGS, len(case.space))
            )
            configs = [case.space.config(i) for i in chosen]
            times = interleaved({c: case.kernel(c) for c in configs}, 1, 3)
        found[row.label] = {
            "label": row.label, "kernel": row.kernel, "problem": dict(case.problem),
            "configs": [dict(c) for c in configs],
            "time_s": [statistics.median(times[c]) for c in configs],
        }  # fmt: skip
        print(row.label, flush=True)
        document = {"hardware": hardware, "spaces": list(found.values())}
        path.write_text(json.dumps(document, indent=1) + "\n")


def load(path: Path) -> list[Space]:
    """Return the measured spaces of a file."""
    document = json.loads(path.read_text())
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in document["hardware"].items()}
    host = HardwareProfile(**values)
    found = []
    for entry in document["spaces"]:
        definition = kernels.get(entry["kernel"])
        space = SearchSpace.build(definition, entry["problem"], host)
        columns = space.table([TileConfig.of(c) for c in entry["configs"]])
        found.append(Space(entry["label"], space, dict(columns), np.array(entry["time_s"])))
    return found


Machines = Mapping[str, Sequence[Space]]


def score(machines: Machines, constants: OpConstants) -> float:
    """Return the mean over machines and workloads of what the model's choice reaches."""
    return statistics.fmean(
        statistics.fmean(s.reached(constants) for s in spaces) for spaces in machines.values()
    )


def fit(machines: Machines, start: OpConstants, trials: int) -> OpConstants:
    """Return the best constants of so many drawn."""
    rng, best = random.Random(0), start
    reached = score(machines, best)
    for _ in range(trials):
        drawn = {k: v * rng.lognormvariate(0.0, 0.3) for k, v in asdict(best).items()}
        candidate = replace(best, **drawn)
        found = score(machines, candidate)
        if found > reached:
            best, reached = candidate, found
    return best


def describe(machines: Machines, constants: OpConstants) -> str:
    """Return what the choices reach: the mean of each machine, and the worst workload."""
    parts = []
    for name, spaces in machines.items():
        reached = [s.reached(constants) for s in spaces]
        parts.append(f"{name} {statistics.fmean(reached):.3f} (worst {min(reached):.2f})")
    return f"{score(machines, constants):.3f} of the fastest: {', '.join(parts)}"


def main() -> None:
    """Measure if asked to, fit, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("spaces", type=Path, nargs="+")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--match", default="", help="rows to measure (default: all)")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--leave-out", action="store_true")
    parser.add_argument("--start", nargs="+", default=(), metavar="NAME=VALUE")
    args = parser.parse_args()
    if args.measure and len(args.spaces) > 1:
        parser.error("--measure writes one file: expected one path")
    if args.measure:
        measure(args.spaces[0], args.match)
    machines = {path.stem: load(path) for path in args.spaces}
    print("constants in use:", describe(machines, DEFAULT_OP_CONSTANTS))
    given = dict(text.split("=") for text in args.start)
    start = replace(DEFAULT_OP_CONSTANTS, **{name: float(v) for name, v in given.items()})
    best = fit(machines, start, args.trials)
    print("fitted:", describe(machines, best), best, sep="\n")
    rows: dict[str, list[float]] = {}
    for spaces in machines.values():
        for space in spaces:
            rows.setdefault(space.label, []).append(space.reached(best))
    for label, reached in rows.items():
        print(f"{label:36}", *(f"{value:.2f}" for value in reached))
    for name in machines if args.leave_out else ():
        others = {n: spaces for n, spaces in machines.items() if n != name}
        found = score({name: machines[name]}, fit(others, start, args.trials))
        print(f"fitted to the others: {found:.3f} on {name}")


if __name__ == "__main__":
    main()
