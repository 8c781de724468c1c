"""Recommendation and search on recorded spaces: fractions of the best speed, a table.

    python benchmarks/recommendation.py FOLDER [--seeds 5] [--json FILE]

FOLDER holds spaces KERNEL__DEVICE.csv.gz (or .json.gz), each measured whole: every kernel on some
devices. A device is left out in turn and the others' measurements are known (not searched from
scratch: nothing is). Baselines beside ours, in the same run:

- no measurement: the config with the best mean speed on the other devices ("portable lookup").
- best of 5: a greedy cover of the other devices' measured speeds.
- warm: 8 configs of our cover first, then the model-guided search that knows the other devices;
  the baseline searches from the same 8 without them.
- from scratch: the model-guided search; beside it random search, the evolutionary one, and plain
  XGBoost ranking (pairwise, batches of 8, the first one random).

"p10" is the 10 % quantile over seeds, the worst of the spaces'. The search's constants were not
fitted to these spaces.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

from recommender.recorded import RecordedSpace
from recommender.replay import replay
from recommender.search import STRATEGIES, Landscape, Observations, Strategy
from recommender.transfer import Sources

WARM, SCRATCH, SEEDS_FIRST = (8, 16, 64), (50, 100, 200), 8


@dataclass(frozen=True)
class PlainRanking:
    """XGBoost's pairwise ranking of what was measured, its best rows next."""

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
        matrix = xgboost.DMatrix(landscape.features[rows], label=np.argsort(np.argsort(label)))
        matrix.set_group([len(rows)])
        options = {"objective": "rank:pairwise", "max_depth": 6, "eta": 0.2, "nthread": 1,
                   "seed": seed, "verbosity": 0, "lambdarank_pair_method": "mean"}  # fmt: skip
        model = xgboost.train(options, matrix, 60)
        score = model.inplace_predict(landscape.features[free])
        return [free[i] for i in np.argsort(-score)[:count]]


def spaces(folder: Path) -> dict[str, dict[str, RecordedSpace]]:
    """Return the recorded spaces by kernel and device."""
    found: dict[str, dict[str, RecordedSpace]] = defaultdict(dict)
    for path in sorted(folder.glob("*__*")):
        kernel, _, device = path.name.split(".")[0].partition("__")
        found[kernel][device] = RecordedSpace.load(path)
    return found


def speed_of(space: RecordedSpace, config: tuple[str, ...]) -> float:
    """Return a config's share of the best speed; 0: it failed or is not there."""
    rows = {c: r for r, c in enumerate(space.configs)}
    return float(space.speed[rows[config]]) if config in rows else 0.0


def plain_cover(sources: Sources, count: int) -> list[tuple[str, ...]]:
    """Return a greedy cover of measured speeds."""
    best = np.zeros(sources.speeds.shape[1])
    rows: list[int] = []
    for _ in range(count):
        gain = np.maximum(sources.speeds, best).mean(axis=1) + 1e-3 * sources.portable
        rows.append(int(np.argmax(gain)))
        best = np.maximum(best, sources.speeds[rows[-1]])
    return [sources.configs[row] for row in rows]


def curves(
    space: RecordedSpace, strategy: Strategy, trials: int, seeds: int, **options: Any
) -> np.ndarray:
    """Return what a strategy reaches after each trial, a row per seed."""
    made = [replay(space, strategy, trials=trials, seed=s, **options) for s in range(seeds)]
    return np.stack(made)


def of_target(target: RecordedSpace, others: list[RecordedSpace], seeds: int) -> dict[str, Any]:
    """Return what is reached on a device that the others' measurements are known for."""
    sources = Sources.of(others)
    row: dict[str, Any] = {
        "portable": speed_of(target, sources.configs[int(np.argmax(sources.portable))]),
        "zero": speed_of(target, sources.configs[int(np.argmax(sources.expected))]),
        "plain cover 5": max(speed_of(target, c) for c in plain_cover(sources, 5)),
        "cover 5": max(speed_of(target, c) for c in sources.cover(5)),
    }
    number = {c: r for r, c in enumerate(target.configs)}
    first = [number[c] for c in sources.cover(SEEDS_FIRST) if c in number]
    model = STRATEGIES["model"]
    known = sources.landscape(target)
    warm = curves(target, model, max(WARM), seeds, landscape=known, first=first)
    blind = curves(target, model, max(WARM), seeds, first=first)
    for count in WARM:
        row[f"warm {count}"] = float(warm[:, count - 1].mean())
        row[f"blind {count}"] = float(blind[:, count - 1].mean())
    return row


def of_space(space: RecordedSpace, seeds: int) -> dict[str, Any]:
    """Return what searches from scratch reach."""
    rivals: dict[str, Strategy] = {
        "model": STRATEGIES["model"], "evolutionary": STRATEGIES["evolutionary"],
        "random": STRATEGIES["random"], "xgb rank": PlainRanking(),
    }  # fmt: skip
    row: dict[str, Any] = {}
    for name, strategy in rivals.items():
        found = curves(space, strategy, max(SCRATCH), seeds)
        for count in SCRATCH:
            row[f"{name} {count}"] = float(found[:, count - 1].mean())
            row[f"{name} {count} p10"] = float(np.quantile(found[:, count - 1], 0.1))
    return row


def table(transfers: list[dict[str, Any]], scratches: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    lines = ["| situation | baseline: mean, worst | ours: mean, worst |", "|---|---|---|"]

    def pair(rows: list[dict[str, Any]], name: str) -> str:
        values = [r[name] for r in rows]
        return f"{np.mean(values):.3f}, {min(values):.3f}"

    situations = [("no measurement", "portable", "zero"), ("best of 5", "plain cover 5", "cover 5")]
    situations += [(f"warm, {n} measured", f"blind {n}", f"warm {n}") for n in WARM]
    if transfers:
        for title, baseline, ours in situations:
            lines.append(f"| {title} | {pair(transfers, baseline)} | {pair(transfers, ours)} |")
    lines += ["", "| from scratch | random | evolutionary | XGBoost ranking | ours: mean, worst |"
              " ours, p10 |", "|---|---|---|---|---|---|"]  # fmt: skip
    for n in SCRATCH:
        cells = [pair(scratches, f"{s} {n}") for s in ("random", "evolutionary", "xgb rank")]
        p10 = min(r[f"model {n} p10"] for r in scratches)
        lines.append(f"| {n} | {' | '.join(cells)} | {pair(scratches, f'model {n}')} | {p10:.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Replay all spaces and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    given = parser.parse_args()
    transfers, scratches = [], []
    for kernel, devices in spaces(given.folder).items():
        for device, target in devices.items():
            others = [space for name, space in devices.items() if name != device]
            head = {"kernel": kernel, "device": device}
            if others:
                transfers.append({**head, **of_target(target, others, given.seeds)})
                print(transfers[-1], file=sys.stderr, flush=True)
            scratches.append({**head, **of_space(target, given.seeds)})
            print(scratches[-1], file=sys.stderr, flush=True)
    print(table(transfers, scratches))
    if given.json:
        found = {"seeds": given.seeds, "transfer": transfers, "scratch": scratches}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
