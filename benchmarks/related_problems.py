"""What a study knows of a problem that was never measured, from others of the same kernel.

    python benchmarks/related_problems.py [FOLDER_OR_FILE...] [--json FILE]

Recordings of a kernel for several problems (our log as .jsonl.gz, T4 by shape as .json.gz): each
problem is left out in turn, and the first configuration, and the best of the first four, that a
study would try knowing the others is compared with the fastest recorded for it. Columns: eight
other problems at random, the nearest eight alike, the nearest eight weighed by how near they are
(what studies do). Mean over the problems, then the worst.

``--searched 8,16``: also the best after so many trials of a study's search, knowing nothing and
knowing the nearest eight (a search of one seed for each problem).
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from recommender.recorded import RecordedSpace
from recommender.replay import replay
from recommender.search import STRATEGIES
from recommender.transfer import FIRST, Sources, steps_of_problem, weights

DATA = Path(__file__).parent / "data"
RELATED, LEAST = 8, 10
WAYS = ("random", "nearest", "weighed")
SEARCHED = ("from scratch", "searched")


def recordings(path: Path) -> Iterator[tuple[str, dict[str, int], RecordedSpace]]:
    """Yield kernels (and types), problems and what was measured of them."""
    if path.is_dir():
        for file in sorted(path.glob("*.json.gz")):
            found = re.fullmatch(r"(.+?)_(\d+(?:x\d+)*)(_causal)?\.json\.gz", file.name)
            if found is not None:
                sizes = {f"size_{i}": int(n) for i, n in enumerate(found[2].split("x"))}
                yield found[1] + (found[3] or ""), sizes, RecordedSpace.load(file)
        return
    times: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    about = {}
    with gzip.open(path, "rt") as lines:
        for row in map(json.loads, lines):
            if row.get("status") != "OK" or row["protocol"] != "screen":
                continue
            problem, config = row["workload"]["problem"], row["config"]
            sizes = {k: v for k, v in problem.items() if type(v) is int}
            others = [str(v) for k, v in sorted(problem.items()) if k not in sizes]
            knobs = tuple(sorted(config))
            key = json.dumps([row["workload"]["kernel"], others, knobs, sizes], sort_keys=True)
            about[key] = (f"{row['workload']['kernel']} {' '.join(others)}", sizes, knobs)
            values = tuple(str(config[k]) for k in knobs)
            times[key][values] = min(float(np.median(row["times_s"])), times[key].get(values, 1e9))
    for key, known in times.items():
        name, sizes, knobs = about[key]
        space = RecordedSpace(key, knobs, tuple(known), np.array(list(known.values())))
        yield f"{name} {len(knobs)} knobs", sizes, space


def compared(
    problems: Sequence[tuple[dict[str, int], RecordedSpace]], trials: Sequence[int]
) -> dict[str, np.ndarray]:
    """Return speeds of the first, and the best of four, by way; a row per problem left out."""
    found: dict[str, list[Sequence[float]]] = {way: [] for way in (*WAYS, *SEARCHED)}
    for i, (sizes, target) in enumerate(problems):
        others = [p for j, p in enumerate(problems) if j != i and p[1].knobs == target.knobs]
        steps = [steps_of_problem(sizes, other) for other, _ in others]
        near = sorted(range(len(others)), key=lambda k: steps[k])[:RELATED]
        chance = list(np.random.default_rng(i).permutation(len(others))[:RELATED])
        for way, rows in zip(WAYS, (chance, near, near), strict=True):
            apart = [steps[k] if way == "weighed" else 0.0 for k in rows]
            known = Sources.of(target, [others[k][1] for k in rows])
            known = Sources(known.features, known.speeds, weights(apart), known.candidates)
            speeds = np.nan_to_num(target.speed[known.cover(FIRST)])
            found[way].append((float(speeds[0]), float(speeds.max())))
        if trials:
            found["from scratch"].append(searched(target, None, trials))
            found["searched"].append(searched(target, known, trials))
    return {way: np.array(rows) for way, rows in found.items() if rows}


def searched(target: RecordedSpace, known: Sources | None, trials: Sequence[int]) -> list[float]:
    """Return the best speed after so many trials of a study that knows others, or nothing."""
    first = [] if known is None else known.cover(FIRST)
    landscape = None if known is None else known.landscape(target.landscape())
    strategy, most = STRATEGIES["model"], min(max(trials), len(target))
    reached = replay(target, strategy, trials=most, batch=1, landscape=landscape, first=first)
    return [float(reached[min(n, most) - 1]) for n in trials]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    standard = [*sorted((DATA / "h200").glob("*.jsonl.gz")), DATA / "zen4_2026-11-23"]
    parser.add_argument("paths", nargs="*", type=Path, default=standard)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--searched", default="", help="trials, as 8,16")
    asked = parser.parse_args()
    trials = [int(n) for n in asked.searched.split(",") if n]
    ways = (*WAYS, *(SEARCHED if trials else ()))
    counts = dict.fromkeys(WAYS, (1, FIRST)) | dict.fromkeys(SEARCHED, tuple(trials))
    rows: dict[str, dict[str, object]] = {}
    total = defaultdict(list)
    heads = [f"{way}: {', '.join(map(str, counts[way]))}" for way in ways]
    print("| kernel | problems | " + " | ".join(heads) + " |")
    print("|---|---|" + "---|" * len(ways))
    for path in asked.paths:
        kernels = defaultdict(list)
        for name, sizes, space in recordings(path):
            if len(space) >= LEAST:
                kernels[name].append((sizes, space))
        for name, problems in kernels.items():
            if len(problems) < 4:
                continue
            found = compared(problems, trials)
            cells = []
            for way, speeds in found.items():
                mean, worst = speeds.mean(axis=0), speeds.min(axis=0)
                total[way].append(mean)
                pairs = zip(mean, worst, strict=True)
                cells.append(", ".join(f"{m:.3f} ({w:.3f})" for m, w in pairs))
            print(
                f"| {path.stem} {name} | {len(problems)} | " + " | ".join(cells) + " |", flush=True
            )
            rows[f"{path.name} {name}"] = {way: s.tolist() for way, s in found.items()}
    means = [np.mean(total[way], axis=0) for way in ways]
    print("| mean | | " + " | ".join(", ".join(f"{m:.3f}" for m in row) for row in means) + " |")
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
