"""Recommendations for our own kernels on recorded spaces of this CPU, shapes left out in turn.

    python benchmarks/own_kernels.py FOLDER [--elsewhere FOLDER] [--json OUT]

FOLDER holds what benchmarks/record_cpu_spaces.py recorded. For every workload the choice among its
recorded configs, as the best recorded time over that of the choice (or of the best of 8 choices):
by the default config, by the config most like the winner of the nearest other shape (a lookup), by
the analytic model alone, by a cost model trained on the other shapes of its kernel. No time of the
workload itself is looked at. ``--elsewhere`` names recordings of another machine: what a lookup of
their winners and a cost model trained on all of them choose on this one, of which nothing is known.
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
from recommender.prior import prior
from recommender.shipped import KEPT, RecordedShape, Winners, candidates, order, winners
from recommender.training import Group, fit_groups, make_groups, nearest_choice
from tilecore import kernels

BEST_OF = 8
COLUMNS = (
    "default", "nearest", "analytic", "analytic, best of 8", "model", "model, best of 8",
    "winners (nearest)", "winners (agreed)", "winners (agreed), best of 8", "together",
    "together, best of 8",
)  # fmt: skip

ELSEWHERE = ("lookup elsewhere", "model from elsewhere", "model from elsewhere, best of 8")


def recordings(folder: Path) -> list[Measurement]:
    """Return every measurement in the recordings of a folder."""
    found = []
    for path in sorted(folder.glob("*.json.gz")):
        found += t4_measurements(gzip.decompress(path.read_bytes()).decode(), path.name)
    return found


def recorded_shape(group: Group) -> RecordedShape:
    """Return the winners of a recorded shape."""
    rows = np.argsort(group.time_s, kind="stable")[:KEPT]
    return RecordedShape(
        group.workload, tuple(group.configs[i] for i in rows), tuple(group.time_s[rows].tolist())
    )


def winner_rows(group: Group, others: Sequence[Group], rule: str) -> list[int]:
    """Return the recorded configs of a shape that winners of other shapes stand for, in turn."""
    shapes = tuple(recorded_shape(g) for g in others)
    hardware = group.hardware
    known = Winners(rule, hardware.name, frozenset(hardware.features), shapes)
    wanted = [config for config, _ in candidates(known.near(group.workload, hardware), rule)]
    rows = [
        int(np.argmax([sum(c.get(k) == v for k, v in want.items()) for c in group.configs]))
        for want in wanted
    ]
    found = [rows[i] for i in order(rule, group.analytic_s[rows])]
    return list(dict.fromkeys(found))


def together(group: Group, predicted: np.ndarray, others: Sequence[Group]) -> list[int]:
    """Return the recorded configs of a shape in the order in which they are recommended."""
    kernel, hardware = group.workload.kernel, group.hardware
    if prior(kernel, hardware) is not None:
        return np.argsort(predicted, kind="stable").tolist()
    analytic = np.argsort(group.analytic_s, kind="stable").tolist()
    shipped = winners(kernel, hardware)
    if shipped is None:
        return analytic
    rows = winner_rows(group, others, shipped.rule)
    return list(dict.fromkeys([*rows[:1], *analytic[:2], *rows[1:], *analytic]))


def judged(groups: Sequence[Group], seed: int) -> Iterator[tuple[Group, dict[str, float]]]:
    """Yield every group with the part of its best speed that each way of choosing reaches."""
    default = kernels.get(groups[0].workload.kernel).default_config()
    for group in groups:
        others = [g for g in groups if g.workload.key != group.workload.key]
        model = fit_groups(others, seed, with_interval=False)
        speed = group.time_s.min() / group.time_s
        predicted = group.analytic_s * model.predict(group.features).factor
        analytic, learned = np.argsort(group.analytic_s), np.argsort(predicted)
        agreed, first = winner_rows(group, others, "agreed"), together(group, predicted, others)
        filled = list(dict.fromkeys([*agreed, *analytic.tolist()]))
        yield (
            group,
            {
                "default": float(speed[group.configs.index(default)]),
                "nearest": float(speed[nearest_choice(group, others)]),
                "analytic": float(speed[analytic[0]]),
                "analytic, best of 8": float(speed[analytic[:BEST_OF]].max()),
                "model": float(speed[learned[0]]),
                "model, best of 8": float(speed[learned[:BEST_OF]].max()),
                "winners (nearest)": float(speed[winner_rows(group, others, "nearest")[0]]),
                "winners (agreed)": float(speed[agreed[0]]),
                "winners (agreed), best of 8": float(speed[filled[:BEST_OF]].max()),
                "together": float(speed[first[0]]),
                "together, best of 8": float(speed[first[:BEST_OF]].max()),
            },
        )


def from_elsewhere(
    groups: Sequence[Group], known: Sequence[Group], seed: int
) -> Iterator[dict[str, float]]:
    """Yield for every group what recordings of another machine choose in it."""
    model = fit_groups(known, seed, with_interval=False)
    for group in groups:
        speed = group.time_s.min() / group.time_s
        predicted = group.analytic_s * model.predict(group.features).factor
        learned = np.argsort(predicted)
        yield {
            "lookup elsewhere": float(speed[nearest_choice(group, known)]),
            "model from elsewhere": float(speed[learned[0]]),
            "model from elsewhere, best of 8": float(speed[learned[:BEST_OF]].max()),
        }


def main() -> None:
    """Judge every kernel and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--elsewhere", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    measured = recordings(args.folder)
    abroad = recordings(args.elsewhere) if args.elsewhere is not None else []
    rows: list[dict[str, object]] = []
    for name in sorted({m.workload.kernel for m in measured}):
        groups = list(make_groups(measured, kernels.get(name)))
        known = list(make_groups(abroad, kernels.get(name)))
        more = from_elsewhere(groups, known, args.seed) if known else iter([{}] * len(groups))
        for (group, reached), found in zip(judged(groups, args.seed), more, strict=True):
            problem = dict(group.workload.problem)
            rows.append(
                {"kernel": f"{name} {problem['dtype']}", "problem": problem,
                 "configs": len(group.configs), **reached, **found}
            )  # fmt: skip
    columns = [c for c in (*COLUMNS, *ELSEWHERE) if any(c in row for row in rows)]
    print("| kernel | shapes | configs | " + " | ".join(columns) + " |")
    print("|---" * (3 + len(columns)) + "|")
    for name in [*sorted({str(r["kernel"]) for r in rows}), ""]:
        chosen = [r for r in rows if name in ("", r["kernel"])]
        counts = f"{len(chosen)} | {sum(int(str(r['configs'])) for r in chosen)}"
        values = ([float(str(r[c])) for r in chosen if c in r] for c in columns)
        shown = " | ".join(f"{statistics.fmean(v):.3f}, {min(v):.3f}" if v else "" for v in values)
        print(f"| {name or 'all'} | {counts} | {shown} |")
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
