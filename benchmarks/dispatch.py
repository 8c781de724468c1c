"""Dispatch tables on recorded spaces: how few configs, at what loss, also where nothing was known.

    python benchmarks/dispatch.py [--data benchmarks/data/dispatch_2026-11-22] [--out FILE.json]

Families of shapes at which the same configs were recorded (``record_dispatch.py``; attention and
softmax of ``benchmarks/data/cpu_2026-11-22``). Repeats of a time are split: what chooses sees the
odd ones, what judges the even ones. A loss is judged against the shape's own winner, chosen by the
same odd repeats: tuning every shape by itself has a loss of 0, and noise makes some losses
negative. Weights are even.

Printed are tables of Markdown: configs needed at a tolerance (minimum set cover, greedy cover, a
config per shape); rules that people use beside it; every other shape left out; times that were
predicted only; N configs measured per shape, with and without a cross-measurement.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from db.exchange.t4 import t4_measurements
from recommender.cover import fewest_runs, greedy_cover, minimum_cover, within
from recommender.dispatch.table import to_cross_measure
from recommender.dispatch.times import Times
from recommender.hardware import HardwareProfile
from recommender.measurement import MeasureStatus
from recommender.predict import forecast_configs, shipped
from recommender.space import SearchSpace
from tilecore import kernels
from tilecore.tile_config import TileConfig

HERE = Path(__file__).parent / "data"
TOLERANCES = (0.02, 0.05, 0.10)
MEASURED = (4, 8, 16, 32)
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """Shapes (rows) and configs (columns): seconds by odd and by even repeats."""

    name: str
    problems: list[dict[str, Any]]
    configs: list[TileConfig]
    odd: Matrix
    even: Matrix
    hardware: HardwareProfile
    dims: tuple[str, ...]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The sizes that differ."""
        return [tuple(int(p[d]) for d in self.dims) for p in self.problems]

    @property
    def weights(self) -> Matrix:
        """Even ones."""
        return np.full(len(self.problems), 1.0 / len(self.problems))

    def predicted(self) -> Matrix:
        """Return the times that the models expect."""
        definition = kernels.get(str(self.name.split()[0]))
        found = []
        for problem in self.problems:
            learned = shipped(definition.name, self.hardware, str(problem["dtype"]))
            space = SearchSpace.build(definition, problem, self.hardware)
            time_s, _, _ = forecast_configs(space, self.configs, 1, learned)
            found.append(np.where(space.can_run(self.configs), time_s, np.inf))
        return np.array(found)

    def losses(self, serves: Sequence[int], rows: Sequence[int] | None = None) -> Matrix:
        """Return what shapes lose, by the even repeats, with the configs that serve them."""
        asked = np.arange(len(self.odd)) if rows is None else np.array(rows)
        own = np.argmin(self.odd[asked], axis=1)
        lost: Matrix = self.even[asked, list(serves)] / self.even[asked, own] - 1.0
        return lost


def load(name: str, files: Sequence[Path], dims: Sequence[str]) -> Family:
    """Return the family in T4 files that have the same configs."""
    of_shape: dict[tuple[int, ...], tuple[dict[str, Any], dict[TileConfig, Any]]] = {}
    hardware = None
    for path in files:
        found = t4_measurements(gzip.decompress(path.read_bytes()).decode(), path.name)
        good = {m.config: m.times_s for m in found if m.status is MeasureStatus.OK}
        problem = dict(found[0].workload.problem)
        hardware = found[0].hardware
        of_shape[tuple(int(problem[d]) for d in dims)] = (problem, good)
    assert hardware is not None
    order = sorted(of_shape)
    configs = sorted({c for _, good in of_shape.values() for c in good}, key=str)

    def half(start: int) -> Matrix:
        return np.array([
            [statistics.median(t[start::2]) if (t := of_shape[s][1].get(c)) else np.inf
             for c in configs]
            for s in order
        ])  # fmt: skip

    return Family(
        name, [of_shape[s][0] for s in order], configs, half(0), half(1), hardware, tuple(dims)
    )


def families(data: Path) -> list[Family]:
    """Return all families there are files of."""
    found = []
    for name, pattern, dims in (
        ("gemm float32 Mx1024x1024", "m_*.json.gz", ["m"]),
        ("gemm float32 MxNx1024", "mn_*.json.gz", ["m", "n"]),
    ):
        files = sorted(data.glob(pattern))
        if files:
            found.append(load(name, files, dims))
    older = HERE / "cpu_2026-11-22"
    for dtype in ("float32", "bfloat16"):
        for causal in ("", "_causal"):
            files = [
                p for p in sorted(older.glob(f"attention_{dtype}_*.json.gz"))
                if p.name.endswith("_causal.json.gz") == bool(causal)
            ]  # fmt: skip
            label = f"attention {dtype}{causal.replace('_', ' ')}"
            found.append(load(label, files, ["seq_q", "seq_kv", "dim"]))
    found.append(
        load("softmax float32", sorted(older.glob("softmax_float32_*.json.gz")), ["m", "n"])
    )
    return found


# --- choosing ---------------------------------------------------------------------------------


def loss_of(times: Matrix) -> Matrix:
    """Return losses against the best of each row."""
    best: Matrix = times.min(axis=1, keepdims=True)
    return times / best - 1.0


def cover_serves(times: Matrix, tolerance: float, is_line: bool) -> list[int]:
    """Return what a dispatch table of these times has serve each row."""
    weights = np.full(len(times), 1.0 / len(times))
    loss = loss_of(times)
    cover = minimum_cover(loss, weights, tolerance)
    if not is_line:
        return list(cover.serves)
    chosen = np.zeros(times.shape[1], bool)
    chosen[list(cover.configs)] = True
    runs = fewest_runs(loss, weights, within(loss, tolerance))
    if len({r.config for r in runs}) > len(cover.configs):
        runs = fewest_runs(loss, weights, within(loss, tolerance) & chosen)
    return [r.config for r in runs for _ in range(r.first, r.last + 1)]


def one_for_all(times: Matrix) -> list[int]:
    """Return the config with the least mean loss, for every row."""
    best = int(np.argmin(loss_of(times).mean(axis=0)))
    return [best] * len(times)


def by_powers(family: Family, times: Matrix) -> list[int]:
    """Return the winner at the next recorded power of two: the buckets that people write."""
    sizes = [s[0] for s in family.shapes]
    powers = [i for i, s in enumerate(sizes) if s & (s - 1) == 0]
    winners = {sizes[i]: int(np.argmin(times[i])) for i in powers}
    return [winners[min((p for p in winners if p >= s), default=max(winners))] for s in sizes]


# --- tables -----------------------------------------------------------------------------------


def numbers(lost: Matrix) -> dict[str, float]:
    """Return the same for JSON."""
    return {
        "mean": round(float(lost.mean()), 5), "p90": round(float(np.quantile(lost, 0.9)), 5),
        "worst": round(float(lost.max()), 5),
    }  # fmt: skip


def count_configs(family: Family) -> dict[str, Any]:
    """Return how many configs each tolerance takes, and what they lose by the other repeats."""
    found: dict[str, Any] = {
        "per_shape": len(set(np.argmin(family.odd, axis=1).tolist())),
        "one_for_all": numbers(family.losses(one_for_all(family.odd))),
    }
    loss, is_line = loss_of(family.odd), len(family.dims) == 1
    for tolerance in TOLERANCES:
        begin = time.perf_counter()
        cover = minimum_cover(loss, family.weights, tolerance)
        spent = time.perf_counter() - begin
        serves = cover_serves(family.odd, tolerance, is_line)
        found[f"{tolerance:.0%}"] = {
            "exact": len(cover.configs), "is_exact": cover.is_exact,
            "greedy": len(greedy_cover(loss, family.weights, tolerance)),
            "ranges": 1 + sum(a != b for a, b in itertools.pairwise(serves)),
            "loss": numbers(family.losses(serves)), "solver_s": round(spent, 3),
        }  # fmt: skip
    if is_line:
        serves = by_powers(family, family.odd)
        found["powers_of_two"] = {"configs": len(set(serves))} | numbers(family.losses(serves))
    return found


def left_out(family: Family) -> dict[str, Any]:
    """Make tables of every other shape (the ends among them) and judge them at the others."""
    places = list(range(len(family.shapes)))
    found: dict[str, list[tuple[int, int]]] = {}
    for known in (places[::2], sorted({0, *places[1::2], places[-1]})):
        asked = [i for i in places if i not in known]
        for name, serves in choices(family, known, asked).items():
            found.setdefault(name, []).extend(zip(asked, serves, strict=True))
    return {
        name: numbers(family.losses([c for _, c in pairs], [r for r, _ in pairs]))
        for name, pairs in found.items()
    }


def choices(family: Family, known: Sequence[int], asked: Sequence[int]) -> dict[str, list[int]]:
    """Return, by rule, what serves shapes that were left out."""
    times, shapes = family.odd[list(known)], family.shapes
    winners = np.argmin(times, axis=1).tolist()
    is_line = len(family.dims) == 1
    serves = cover_serves(times, 0.05, is_line)

    def nearest(i: int) -> int:
        return min(
            range(len(known)),
            key=lambda j: sum(
                math.log2(a / b) ** 2 for a, b in zip(shapes[known[j]], shapes[i], strict=True)
            ),
        )

    def above(i: int) -> int:
        larger = [
            j for j in range(len(known))
            if all(a >= b for a, b in zip(shapes[known[j]], shapes[i], strict=True))
        ]  # fmt: skip
        if not larger:
            return nearest(i)
        return min(larger, key=lambda j: math.prod(shapes[known[j]]))

    found = {
        "table, nearest that is not smaller": [serves[above(i)] for i in asked],
        "table, nearest by logarithms": [serves[nearest(i)] for i in asked],
        "nearest tuned shape's winner": [winners[nearest(i)] for i in asked],
        "one config for all": [one_for_all(times)[0]] * len(asked),
        "table, decision tree": [tree(shapes, known, serves, i) for i in asked],
    }
    if is_line:
        sizes = [shapes[j][0] for j in known]
        for name, cut in (
            ("table, ranges cut at the mean of logarithms", lambda a, b: math.isqrt(a * b)),
            ("table, ranges cut below the next sample", lambda a, b: b - 1),
            ("table, ranges cut above the last sample", lambda a, b: a),
        ):
            found[name] = [serves[in_range(sizes, shapes[i][0], cut)] for i in asked]
        found["vLLM's rule: nearest by difference"] = [
            winners[min(range(len(sizes)), key=lambda j: abs(sizes[j] - shapes[i][0]))]
            for i in asked
        ]
    return found


def in_range(sizes: Sequence[int], size: int, cut: Callable[[int, int], int]) -> int:
    """Return the sample whose range a size falls into."""
    for place, (a, b) in enumerate(itertools.pairwise(sizes)):
        if size <= cut(a, b):
            return place
    return len(sizes) - 1


def tree(
    shapes: Sequence[tuple[int, ...]], known: Sequence[int], serves: Sequence[int], asked: int
) -> int:
    """Return the leaf of a decision tree that tells the known shapes apart exactly.

    Cuts lie between logarithms and leave the least Gini impurity.
    """
    rows = list(range(len(known)))
    point = [math.log2(x) for x in shapes[asked]]
    logs = [[math.log2(x) for x in shapes[j]] for j in known]
    while len({serves[r] for r in rows}) > 1:
        best: tuple[float, int, float] | None = None
        for axis in range(len(point)):
            values = sorted({logs[r][axis] for r in rows})
            for a, b in itertools.pairwise(values):
                cut = (a + b) / 2
                sides = [
                    [serves[r] for r in rows if (logs[r][axis] <= cut) is low]
                    for low in (True, False)
                ]
                impurity = sum(
                    len(s) - sum(s.count(c) ** 2 for c in set(s)) / len(s) for s in sides
                )
                if best is None or (impurity, axis, cut) < best:
                    best = (impurity, axis, cut)
        assert best is not None
        _, axis, cut = best
        rows = [r for r in rows if (logs[r][axis] <= cut) is (point[axis] <= cut)]
    return serves[rows[0]]


def predicted_only(family: Family) -> dict[str, Any]:
    """Make a table of predictions, and judge it by measurements."""
    expected = family.predicted()
    serves = cover_serves(expected, 0.05, len(family.dims) == 1)
    found = {
        "configs": len(set(serves)), "loss": numbers(family.losses(serves)),
        "first choice per shape": numbers(family.losses(np.argmin(expected, axis=1).tolist())),
    }  # fmt: skip
    error = np.log((family.odd / expected)[np.isfinite(expected) & np.isfinite(family.odd)])
    found["error of a prediction, 80 %"] = [
        round(math.exp(q) - 1, 3) for q in np.quantile(error, [0.1, 0.9])
    ]
    return found


def measured_some(family: Family) -> list[dict[str, Any]]:
    """Measure N configs per shape, the model's favourites first; then what may serve several."""
    expected, rows = family.predicted(), np.arange(len(family.odd))
    is_line, found = len(family.dims) == 1, []
    for count in MEASURED:
        if count >= family.odd.shape[1]:
            break
        mask = np.zeros(family.odd.shape, bool)
        np.put_along_axis(mask, np.argsort(expected, axis=1)[:, :count], True, axis=1)
        alone = np.where(mask, family.odd, np.inf)
        serves = cover_serves(alone, 0.05, is_line)
        entry = {
            "measured": count,
            "configs": len(set(serves)),
            "loss": numbers(family.losses(serves)),
        }
        factor = np.array([np.median(family.odd[r, mask[r]] / expected[r, mask[r]]) for r in rows])
        best = alone.min(axis=1)
        trusted = np.maximum(np.where(mask, family.odd, expected * factor[:, None]), best[:, None])
        times = Times(
            configs=tuple(family.configs), time_s=trusted, low_s=trusted, high_s=trusted,
            source=np.where(mask, "measured", "prior"), best_s=best,
            best_source=("measured",) * len(rows),
        )  # fmt: skip
        crossed = np.zeros(mask.shape, bool)
        for row, columns in enumerate(to_cross_measure(times, family.weights)):
            crossed[row, columns] = True
        serves = cover_serves(np.where(crossed, family.odd, np.inf), 0.05, is_line)
        entry |= {
            "crossed": round(float((crossed & ~mask).sum(axis=1).mean()), 1),
            "configs_after": len(set(serves)), "loss_after": numbers(family.losses(serves)),
        }  # fmt: skip
        found.append(entry)
    return found


def report(family: Family) -> dict[str, Any]:
    """Return all figures of a family."""
    return {
        "shapes": len(family.shapes), "configs": len(family.configs),
        "counts": count_configs(family), "left_out": left_out(family),
        "predicted": predicted_only(family), "measured": measured_some(family),
    }  # fmt: skip


def show(found: Mapping[str, Any]) -> None:
    """Print the figures as Markdown."""

    def text(lost: Mapping[str, float]) -> str:
        return f"{lost['mean']:.1%} / {lost['p90']:.1%} / {lost['worst']:.1%}"

    print("| family | shapes | own configs | 2 % | 5 % (greedy) | 10 % | ranges at 5 % |"
          " loss at 5 % | one for all | powers of two |\n|" + "---|" * 10)  # fmt: skip
    for name, f in found.items():
        c = f["counts"]
        powers = c.get("powers_of_two")
        print(f"| {name} | {f['shapes']} | {c['per_shape']} | {c['2%']['exact']} | "
              f"{c['5%']['exact']} ({c['5%']['greedy']}) | {c['10%']['exact']} | "
              f"{c['5%']['ranges']} | {text(c['5%']['loss'])} | {text(c['one_for_all'])} | "
              f"{'' if powers is None else text(powers)} |")  # fmt: skip
    print("\nShapes left out: mean / p90 / worst loss\n")
    for name, f in found.items():
        print(f"{name}:", *(f"  {rule}: {text(lost)}" for rule, lost in f["left_out"].items()),
              sep="\n")  # fmt: skip
    print("\nPredictions only, and N measured per shape\n")
    for name, f in found.items():
        p = f["predicted"]
        print(f"{name}: {p['configs']} configs {text(p['loss'])}; first choice per shape "
              f"{text(p['first choice per shape'])}; 80 % of predictions err by "
              f"{p['error of a prediction, 80 %']}")  # fmt: skip
        for m in f["measured"]:
            print(f"  {m['measured']} measured: {m['configs']} configs {text(m['loss'])}; "
                  f"{m['crossed']} more crossed: {m['configs_after']} configs "
                  f"{text(m['loss_after'])}")  # fmt: skip


def main() -> None:
    """Print and store the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=HERE / "dispatch_2026-11-22")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {family.name: report(family) for family in families(args.data)}
    show(found)
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
