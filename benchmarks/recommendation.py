"""Recommendation and search on recorded spaces: fractions of the best speed, tables.

    python benchmarks/recommendation.py FOLDER [--seeds 10] [--first-seed 0]
        [--kernel-tuner PYTHON] [--search NAME ... | --known] [--progress FILE] [--json FILE]

FOLDER holds spaces KERNEL__DEVICE.csv.gz (or .json.gz), each measured whole: every kernel on some
devices. A device is left out in turn and the others' measurements are known (not searched from
scratch: nothing is). Baselines beside ours, in the same run:

- no measurement: the config with the best mean speed on the other devices ("portable lookup").
- best of 5: a greedy cover of the other devices' measured speeds.
- warm: configs of our cover first, then the model-guided search that knows the other devices; the
  baseline searches from the same configs without them.
- from scratch, batches of 8: the model-guided search; beside it random search, the evolutionary
  one, plain XGBoost ranking (pairwise, the first batch random; of knob values, and of the features
  that ours has) and, where PYTHON is an interpreter that has Kernel Tuner, its strategies in its
  simulation mode on the same rows.

"reachable" is no method but a bound on lookups: the best of the other devices' winners (no
measurement), of the 5 fastest on each (best of 5), of the 50 fastest on each (warm). "p10" is the
10 % quantile over seeds. The search's constants were chosen on the kernels in TUNED_ON; the tables
tell the others apart; what the search from scratch was chosen on, results/
recommendation_zen4_2026-11-27c.md says. With --search, these searches from scratch run and nothing
else does; with --known, no search from scratch does. With --progress, what a file has is not run
again: a run that was stopped continues (delete the file when the code has changed).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

from recommender.knob_shapes import shapes
from recommender.recorded import RecordedSpace
from recommender.replay import replay
from recommender.search import STRATEGIES, Landscape, Observations, Strategy
from recommender.transfer import FIRST, Sources

WARM, SCRATCH = (8, 16, 64), (50, 100, 200)
WARM_BATCH = 4
REACHABLE = {"zero": 1, "five": 5, "warm": 50}  # of the fastest on each other device
TUNED_ON = ("convolution_milo", "old_pnpoly")
KERNEL_TUNER = Path(__file__).parent / "kernel_tuner_replay.py"
KERNEL_TUNER_STRATEGIES = (
    "random_sample", "genetic_algorithm", "diff_evo", "greedy_ils", "pso", "simulated_annealing",
    "basinhopping", "bayes_opt", "firefly_algorithm", "hybrid_vndx", "adaptive_tabu_greywolf",
)  # fmt: skip
Row = dict[str, Any]  # kernel, device, situation, method, and mean, worst, p10 by trials
Key = tuple[str, str, str, str]
KEY = ("kernel", "device", "situation", "method")


@dataclass(frozen=True, eq=False)
class PlainRanking:
    """XGBoost's pairwise ranking of what was measured, its best rows next."""

    features: np.ndarray

    def ask(self, count: int, landscape: Landscape, seen: Observations, seed: int) -> list[int]:
        """Return the rows ranked first, random ones while nothing is known."""
        rng = np.random.default_rng([seed, len(seen.times_s)])
        free = [r for r in rng.permutation(len(landscape)).tolist() if not seen.is_taken(r)]
        if len(seen.good) < count:
            return free[:count]
        rows = list(seen.times_s)
        slow = 2.0 * max(t for t in seen.times_s.values() if t is not None)
        times = [seen.times_s[row] for row in rows]
        label = [-(slow if t is None else t) for t in times]
        matrix = xgboost.DMatrix(self.features[rows], label=np.argsort(np.argsort(label)))
        matrix.set_group([len(rows)])
        options = {"objective": "rank:pairwise", "max_depth": 6, "eta": 0.2, "nthread": 1,
                   "seed": seed, "verbosity": 0, "lambdarank_pair_method": "mean"}  # fmt: skip
        model = xgboost.train(options, matrix, 60)
        score = model.inplace_predict(self.features[free])
        return [free[i] for i in np.argsort(-score)[:count]]


class Progress:
    """The rows of a run, kept in a file of JSON lines as they are found."""

    def __init__(self, file: Path | None, seeds: range) -> None:
        self._file, self._seeds = file, {"seeds": len(seeds), "first_seed": seeds.start}
        self._rows: dict[Key, Row] = {}
        if file is not None and file.exists():
            for line in file.read_text().splitlines():
                row = json.loads(line)
                found = {"seeds": row.pop("seeds"), "first_seed": row.pop("first_seed", 0)}
                if found == self._seeds:
                    self._rows[self._key(row)] = row

    @property
    def rows(self) -> list[Row]:
        """All rows found so far."""
        return list(self._rows.values())

    def once(self, head: Key, find: Callable[[], Row]) -> None:
        """Add what ``find`` returns, unless the file has it."""
        if head in self._rows:
            return
        row = {**dict(zip(KEY, head, strict=True)), **find()}
        self._rows[head] = row
        line = json.dumps({**row, **self._seeds})
        print(line, file=sys.stderr, flush=True)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(line + "\n")

    @staticmethod
    def _key(row: Row) -> Key:
        return (row["kernel"], row["device"], row["situation"], row["method"])


def spaces(folder: Path) -> dict[str, dict[str, RecordedSpace]]:
    """Return the recorded spaces by kernel and device."""
    found: dict[str, dict[str, RecordedSpace]] = defaultdict(dict)
    for path in sorted(folder.glob("*__*")):
        kernel, _, device = path.name.split(".")[0].partition("__")
        found[kernel][device] = RecordedSpace.load(path)
    return found


def plain_cover(sources: Sources, count: int) -> list[int]:
    """Return a greedy cover of measured speeds."""
    speeds = np.nan_to_num(sources.speeds[: sources.candidates])
    best = np.zeros(speeds.shape[1])
    rows: list[int] = []
    for _ in range(count):
        gain = np.maximum(speeds, best).mean(axis=1) + 1e-3 * sources.portable
        rows.append(int(np.argmax(gain)))
        best = np.maximum(best, speeds[rows[-1]])
    return rows


def constant(value: float, marks: Sequence[int]) -> Row:
    """Return a row of one figure that no seed changes."""
    figure = {str(n): value for n in marks}
    return {"mean": figure, "worst": figure, "p10": figure}


def summary(curves: Sequence[np.ndarray], marks: Sequence[int]) -> Row:
    """Return what curves reach after some trials; a curve that ran dry stays where it ended."""
    at = {str(n): np.array([curve[min(n, len(curve)) - 1] for curve in curves]) for n in marks}
    return {
        "mean": {n: float(found.mean()) for n, found in at.items()},
        "worst": {n: float(found.min()) for n, found in at.items()},
        "p10": {n: float(np.quantile(found, 0.1)) for n, found in at.items()},
    }


def searched(
    space: RecordedSpace, strategy: Strategy, marks: Sequence[int], seeds: range, **options: Any
) -> Row:
    """Return what a strategy reaches."""
    trials = max(marks)
    start_s = time.process_time()
    curves = [replay(space, strategy, trials=trials, seed=s, **options) for s in seeds]
    trial_s = (time.process_time() - start_s) / (len(seeds) * trials)
    return {**summary(curves, marks), "cpu_s_per_trial": trial_s}


def kernel_tuner(python: str, space: RecordedSpace, strategy: str, seeds: range) -> Row:
    """Return what a strategy of Kernel Tuner reaches, or why it does not work."""
    times = [None if np.isnan(t) else t * 1e3 for t in space.time_s]
    recorded = {"knobs": space.knobs, "configs": space.configs, "times_ms": times}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(recorded, file)
        file.flush()
        command = [python, str(KERNEL_TUNER), file.name, strategy, str(max(SCRATCH))]
        command += map(str, seeds)
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        return {"error": run.stderr.strip().splitlines()[-1]}
    found = json.loads(run.stdout.splitlines()[-1])
    if "error" in found:
        return {"error": found["error"], "version": found["version"]}
    curves = [np.array(curve) for curve in found["curves"]]
    return {**summary(curves, SCRATCH), "version": found["version"]}


def transfer(
    head: tuple[str, str], target: RecordedSpace, others: list[RecordedSpace],
    progress: Progress, seeds: range,
) -> None:  # fmt: skip
    """Add what is reached on a device where the others' measurements are known."""
    sources = Sources.of(target, others)
    there = np.nan_to_num(sources.speeds[: sources.candidates])
    fastest = np.argsort(-there, axis=0, kind="stable")
    top = {
        ("zero", "baseline"): [int(np.argmax(sources.portable))],
        ("zero", "ours"): [int(np.argmax(sources.expected))],
        ("five", "baseline"): plain_cover(sources, 5),
        ("five", "ours"): sources.cover(5),
    }
    for situation, count in REACHABLE.items():
        top[situation, "reachable"] = fastest[:count].ravel().tolist()
    for (situation, method), rows in top.items():
        value = float(target.speed[rows].max())
        marks = WARM if situation == "warm" else (0,)
        progress.once(
            (*head, situation, method), lambda value=value, marks=marks: constant(value, marks)
        )
    first = sources.cover(FIRST)
    known = sources.landscape(target.landscape())
    for method, landscape in (("ours", known), ("baseline", None)):
        progress.once(
            (*head, "warm", method),
            lambda landscape=landscape: searched(
                target, STRATEGIES["model"], WARM, seeds, batch=WARM_BATCH, first=first,
                landscape=landscape,
            ),
        )  # fmt: skip


def scratch(
    head: tuple[str, str], space: RecordedSpace, progress: Progress, seeds: range,
    python: str | None, only: Sequence[str],
) -> None:  # fmt: skip
    """Add what searches from scratch reach: all of them, or only some."""
    rivals: dict[str, Strategy] = {
        "ours": STRATEGIES["model"], "evolutionary": STRATEGIES["evolutionary"],
        "random": STRATEGIES["random"], "XGBoost ranking": PlainRanking(space.features),
        "XGBoost ranking, our features": PlainRanking(shapes(space.features)),
    }  # fmt: skip
    for name, strategy in rivals.items():
        if only and name not in only:
            continue
        progress.once(
            (*head, "scratch", name),
            lambda strategy=strategy: searched(space, strategy, SCRATCH, seeds),
        )
    for name in KERNEL_TUNER_STRATEGIES if python else ():
        if only and f"KT {name}" not in only:
            continue
        progress.once(
            (*head, "scratch", f"KT {name}"),
            lambda name=name: kernel_tuner(str(python), space, name, seeds),
        )


# --- tables -----------------------------------------------------------------------------------


def of(rows: Sequence[Row], situation: str, method: str, kind: str, mark: str) -> np.ndarray:
    """Return a figure of every space."""
    chosen = [r for r in rows if (r["situation"], r["method"]) == (situation, method)]
    return np.array([r[kind][mark] for r in chosen if kind in r])


def figures(values: np.ndarray) -> str:
    """Return mean and worst as text."""
    return f"{values.mean():.3f}, {values.min():.3f}" if len(values) else ""


def transfer_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the situations that know other devices."""
    yield "| situation | baseline: mean, worst | ours: mean, worst | reachable |"
    yield "|---|---|---|---|"
    situations = [("no measurement", "zero", "0"), ("best of 5", "five", "0")]
    situations += [(f"warm, {n} measured", "warm", str(n)) for n in WARM]
    for title, situation, mark in situations:
        cells = [
            figures(of(rows, situation, method, "mean", mark))
            for method in ("baseline", "ours", "reachable")
        ]
        yield f"| {title} | {' | '.join(cells)} |"


def methods_of(rows: Sequence[Row]) -> list[str]:
    """Return the searches from scratch that worked, ours first."""
    names = dict.fromkeys(r["method"] for r in rows if r["situation"] == "scratch" and "mean" in r)
    return sorted(names, key=lambda name: name != "ours")


def scratch_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of searches from scratch: mean and worst of the spaces' means, their p10."""
    titles = [f"{n}: mean, worst | {n}: p10, worst" for n in SCRATCH]
    yield f"| search | {' | '.join(titles)} |"
    yield "|---" * (1 + 2 * len(SCRATCH)) + "|"
    for method in methods_of(rows):
        cells = [
            figures(of(rows, "scratch", method, kind, str(n)))
            for n in SCRATCH
            for kind in ("mean", "p10")
        ]
        yield f"| {method} | {' | '.join(cells)} |"


def space_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line per space: ours beside the best of the others, which is told by name."""
    titles = [f"{n}: ours (p10) | {n}: best other" for n in SCRATCH]
    yield f"| space | {' | '.join(titles)} |"
    yield "|---" * (1 + 2 * len(SCRATCH)) + "|"
    found: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        if row["situation"] == "scratch" and "mean" in row:
            found[row["kernel"], row["device"]][row["method"]] = row
    for (kernel, device), methods in found.items():
        if "ours" not in methods or len(methods) == 1:
            continue
        cells = []
        for mark in map(str, SCRATCH):
            ours = methods["ours"]
            others = {m: r["mean"][mark] for m, r in methods.items() if m != "ours"}
            best = max(others, key=lambda m: others[m])
            cells.append(f"{ours['mean'][mark]:.3f} ({ours['p10'][mark]:.3f})")
            cells.append(f"{others[best]:.3f} {best}")
        yield f"| {kernel} {device} | {' | '.join(cells)} |"


def report(rows: Sequence[Row]) -> str:
    """Return all tables as Markdown."""
    held_out = [r for r in rows if r["kernel"] not in TUNED_ON]
    tuned_on = [r for r in rows if r["kernel"] in TUNED_ON]
    parts: list[str] = []
    for title, chosen in (("all", rows), ("held out", held_out), ("tuned on", tuned_on)):
        if chosen:
            count = len({(r["kernel"], r["device"]) for r in chosen})
            parts += [f"### Spaces: {title} ({count})", ""]
            parts += [*transfer_table(chosen), ""]
            parts += [*scratch_table(chosen), ""] if methods_of(chosen) else []
    if methods_of(rows):
        parts += ["### From scratch, space by space", "", *space_table(rows)]
    costs = [r["cpu_s_per_trial"] for r in rows if r["situation"] == "scratch"
             and r["method"] == "ours"]  # fmt: skip
    if costs:
        mean_ms, most_ms = 1e3 * np.mean(costs), 1e3 * max(costs)
        parts += ["", f"Cost of our search per trial: mean {mean_ms:.0f} ms of one core, "
                  f"{most_ms:.0f} ms on the largest space."]  # fmt: skip
    broken = {f"- {r['method']}: {r['error']}" for r in rows if "error" in r}
    return "\n".join([*parts, "", *sorted(broken)]).rstrip()


def main() -> None:
    """Replay all spaces and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--search", nargs="+", default=[], help="only these, from scratch")
    which.add_argument("--known", action="store_true", help="none from scratch")
    parser.add_argument("--kernel-tuner", metavar="PYTHON", help="an interpreter that has it")
    parser.add_argument("--progress", type=Path, help="JSON lines to continue from and add to")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    progress = Progress(given.progress, seeds)
    for kernel, devices in spaces(given.folder).items():
        for device, target in devices.items():
            others = [space for name, space in devices.items() if name != device]
            if others and not given.search:
                transfer((kernel, device), target, others, progress, seeds)
            if not given.known:
                scratch((kernel, device), target, progress, seeds, given.kernel_tuner, given.search)
    print(report(progress.rows))
    if given.json:
        found = {"seeds": given.seeds, "first_seed": given.first_seed, "rows": progress.rows}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
