"""Drift detection on recorded repeats: false alarms, and how soon a shift is found.

    python benchmarks/drift.py SPACE.csv.gz [...] [--sequences 2000] [--runs 12] [--json FILE]

A space is a CSV of an exhaustively measured kernel with its repeats in columns t1, t2, ... (as the
benchmark hub has them). A sequence is a workload that is tuned again and again: each run measures
anchors (the default, and what the first run found fastest: winners are chosen by their noise, too)
by seven repeats drawn from those recorded for each. On top of the recorded scatter, runs differ as
a whole by a factor drawn for each run (`run noise`), and one run in ten is disturbed: everything
takes 10 to 60 % longer. After each run the detector looks at all runs so far, as the coordinator
does.

- recorded: nothing changes, and no run is disturbed or differs beyond the recorded scatter.
- quiet: nothing changes. Every alarm is a false one, here as there.
- shift: from the middle on everything takes longer (or less long) by the shift.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from recommender.drift import MAD_TO_SD, Drift, RunTimes, find_drift

REPEATS = 7
DISTURBED, LOUDEST = 0.1, (1.1, 1.6)
NOISES = (0.0, 0.02, 0.05, 0.1)
SHIFTS = (1.05, 1.1, 1.2, 1.5, 0.8)
ANCHORS = 6
START = datetime(2026, 1, 1, tzinfo=UTC)


def repeats_of(path: Path) -> np.ndarray:
    """Return the repeats of every configuration that ran: a row each."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    names = [n for n in rows[0] if n[:1] == "t" and n[1:].isdigit()]
    found = [[float(row[n]) for n in names] for row in rows if row["status"] in ("ok", "correct")]
    return np.array(found)


def sequence(
    repeats: np.ndarray,
    rng: np.random.Generator,
    runs: int,
    noise: float,
    shift: float = 1.0,
    disturbed: float = DISTURBED,
) -> list[RunTimes]:
    """Return what the runs of one workload measured; ``shift`` holds from the middle on."""
    pool = repeats[rng.choice(len(repeats), size=min(64, len(repeats)), replace=False)]
    first = np.median(pool[:, rng.integers(pool.shape[1], size=(REPEATS,))], axis=1)
    chosen = pool[[0, *np.argsort(first)[: ANCHORS - 1]]]
    found = []
    for number in range(runs):
        factor = math.exp(rng.normal(0.0, noise))
        factor *= rng.uniform(*LOUDEST) if rng.random() < disturbed else 1.0
        factor *= shift if number >= runs // 2 else 1.0
        log_s, scatters = {}, []
        for position, row in enumerate(chosen):
            if position and rng.random() < 0.4:  # not every run meets every former winner again
                continue
            for protocol in ("screen", "confirm"):
                logs = np.log(rng.choice(row, size=REPEATS) * factor)
                log_s[(str(position), protocol, 1)] = float(np.median(logs))
                scatters.append(MAD_TO_SD * float(np.median(np.abs(logs - np.median(logs)))))
        at = START + timedelta(days=number)
        found.append(RunTimes(str(number), at, log_s, float(np.median(scatters))))
    return found


def first_alarm(runs: Sequence[RunTimes], begin: int = 0) -> tuple[int, Drift] | None:
    """Return after which run the detector speaks first, and what it says."""
    for count in range(max(1, begin), len(runs) + 1):
        drift = find_drift(runs[:count])
        if drift is not None:
            return count, drift
    return None


def measure(repeats: np.ndarray, sequences: int, runs: int, seed: int = 0) -> dict[str, Any]:
    """Return false alarms per noise, and detections per shift at 2 % noise."""
    rng = np.random.default_rng(seed)
    alone = sum(
        first_alarm(sequence(repeats, rng, runs, 0.0, disturbed=0.0)) is not None
        for _ in range(sequences)
    )
    quiet = {}
    for noise in NOISES:
        alarms = sum(
            first_alarm(sequence(repeats, rng, runs, noise)) is not None for _ in range(sequences)
        )
        quiet[f"{noise:g}"] = alarms / sequences
    shifted = {}
    for shift in SHIFTS:
        delays = []
        for _ in range(sequences // 4):
            found = first_alarm(sequence(repeats, rng, runs, 0.02, shift), runs // 2 + 1)
            delays.append(found[0] - runs // 2 if found else math.inf)
        within = {n: float(np.mean([d <= n for d in delays])) for n in (2, 3, 6)}
        shifted[f"{shift:g}"] = within
    scatter = np.median(np.std(np.log(repeats), axis=1))
    return {
        "configs": len(repeats), "scatter": float(scatter), "recorded": alone / sequences,
        "quiet": quiet, "shift": shifted,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spaces", nargs="+", type=Path)
    parser.add_argument("--sequences", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = {}
    for path in given.spaces:
        name = path.name.split(".")[0]
        found = results[name] = measure(repeats_of(path), given.sequences, given.runs)
        print(f"{name}: {found['configs']} configs, scatter of repeats {found['scatter']:.2%}")
        print("  false alarms per sequence:", found["recorded"], found["quiet"])
        for shift, within in found["shift"].items():
            print(f"  shift x{shift}: found within 2, 3, 6 runs: {list(within.values())}")
    if given.json:
        document = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(["python", *(Path(a).name for a in sys.argv)]),
            "versions": {"python": platform.python_version(), "numpy": np.__version__},
            "runs": given.runs, "sequences": given.sequences, "results": results,
        }  # fmt: skip
        given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
