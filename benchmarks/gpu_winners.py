"""The analytic model of AMD's GPUs beside winners that others measured: rocBLAS, hipBLASLt, aiter.

    python benchmarks/gpu_winners.py ../shared/data [--each 300] [--seed 0] [--json FILE]

Tensile's logic files name the fastest kernel of a library for a shape, types and transposes, and
its speed; aiter's tables a kernel for 8-bit products with scales and its time. Of up to ``--each``
shapes drawn from each library, device and type:

- known: the tile of the winner is one of our space; the next columns are of these, and of the tiles
  that win for any shape of the table: a library has kernels for some. Kernels that split K, and
  batches, are left out: our programs have neither.
- in 1, in 8: it is our first of these tiles, one of our first eight.
- 8 most frequent: it is among the eight tiles that win most often in the whole table, which a list
  made with that knowledge, the same for all shapes, reaches.
- place: the median place of the winner's tile among ours, of how many.
- slower: the median of the time that we expect of the winner's tile over that of our first.
- rank correlation: Spearman's of the speed that we expect of our first and the speed of the winner,
  over the shapes of one file (a unit each), weighed by their number.

Kernels of other people, tuned by hand in assembly, are not ours: that they agree says that shapes
want such tiles, no more. Nothing is fitted to these files.
"""

from __future__ import annotations

import argparse
import csv
import functools
import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from recommender.analytic import estimate
from recommender.hardware import HardwareProfile, load_profile
from recommender.space import SearchSpace
from tilecore import kernels

# Tensile's names of devices and of types (in, out, sums); columns lie side by side there.
DEVICES = {"aldebaran": "mi250", "aldebaran_104cu": "mi250", "aquavanjaram": "mi300x",
           "aquavanjaram942": "mi300x", "aquavanjaram942X": "mi300x"}  # fmt: skip
TYPES = {"HHS": ("float16", "float16"), "HSS": ("float16", "float32"),
         "BBS": ("bfloat16", "bfloat16"), "BSS": ("bfloat16", "float32"),
         "SB": ("float32", "float32"), "S": ("float32", "float32"),
         "DB": ("float64", "float64"), "I8II": ("int8", "int32"),
         "4xi8II": ("int8", "int32")}  # fmt: skip
PRODUCT = re.compile(r"Cijk_(Ailk|Alik)_(Bljk|Bjlk)_([A-Za-z0-9]+)")
AITER = re.compile(r"a8w8_blockscale\w*?_\d+x\d+x\d+_\d+x(\d+)x(\d+)x\d+_")  # threads, M, N, K
AITER_UNITS = "304"  # compute units of an MI300X
FEWEST = 8  # shapes of a file that a rank correlation is taken of
FEWEST_OF_GROUP = 100
SMALLEST, LARGEST = 16, 1 << 16  # extents: hipBLASLt has one table entry for all that is smaller


@dataclass(frozen=True, slots=True)
class Winner:
    """What was fastest for a shape.

    Attributes:
        group: library, device and types.
        file: where speeds have one unit.
        problem: of our gemm.
        tile: rows and columns of C in our order.
        speed: in the file's unit.
    """

    group: tuple[str, str, str]
    file: str
    problem: Mapping[str, Any]
    tile: tuple[int, int]
    speed: float


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        yield from csv.DictReader(file)


def of_tensile(folder: Path, library: str) -> Iterator[Winner]:
    """Yield the winners of rocBLAS or hipBLASLt that our programs could be."""
    tiles = {
        (r["file"], r["sol"]): (int(r["MacroTile1"]), int(r["MacroTile0"]))
        for r in _rows(folder / f"{library}_solutions.csv.gz")
        if r["arch"] in DEVICES and int(r["GlobalSplitU"] or 1) == 1 and r["MacroTile0"]
    }
    for r in _rows(folder / f"{library}_sizes.csv.gz"):
        found = PRODUCT.search(r["file"])
        types = TYPES.get(found.group(3)) if found else None
        tile = tiles.get((r["file"], r["sol"]))
        sizes = [int(r[name]) for name in ("N", "M", "K")]
        is_one = r["batch"] == "1" and min(sizes) >= SMALLEST and max(sizes) <= LARGEST
        is_timed = float(r["value"]) > 0
        if found is None or types is None or tile is None or not (is_one and is_timed):
            continue
        a, b, name = found.groups()
        problem = dict(zip(("m", "n", "k"), sizes, strict=True)) | {
            "dtype": types[0], "out_dtype": types[1],
            "accum_dtype": {"float64": "float64", "int8": "int32"}.get(types[0], "float32"),
            "transpose_a": b == "Bjlk", "transpose_b": a == "Alik",
        }  # fmt: skip
        group = (library, DEVICES[r["arch"]], name)
        yield Winner(group, r["file"], problem, tile, float(r["value"]))


def of_aiter(folder: Path) -> Iterator[Winner]:
    """Yield the winners for 8-bit products with scales per block on an MI300X."""
    for path in sorted((folder / "csv").glob("*a8w8_blockscale_tuned_gemm*.csv")):
        with path.open(newline="") as file:
            for r in csv.DictReader(file):
                found = AITER.search(r["kernelName"])
                is_here = r["gfx"] == "gfx942" and r["cu_num"] == AITER_UNITS
                if not is_here or found is None or int(r["splitK"] or 0) > 1:
                    continue
                sizes = [int(r[name]) for name in ("M", "N", "K")]
                problem = dict(zip(("m", "n", "k"), sizes, strict=True)) | {
                    "dtype": "int8", "accum_dtype": "int32", "transpose_b": True,
                }  # fmt: skip
                tile = (int(found.group(1)), int(found.group(2)))
                yield Winner(
                    ("aiter", "mi300x", "8 bits"), "aiter", problem, tile, float(r["tflops"])
                )


@functools.cache
def hardware_of(name: str) -> HardwareProfile:
    """Return the profile of a device."""
    return load_profile(name)


def tiles_in_order(
    winner: Winner, wins: Collection[tuple[int, int]]
) -> tuple[list[tuple[int, int]], list[float], float]:
    """Return our tiles among ``wins``, the fastest first, their times, and our best FLOP/s."""
    definition = kernels.get("gemm").on("rocm")
    problem = definition.parse_problem(winner.problem)
    space = SearchSpace.build(definition, problem, hardware_of(winner.group[1]))
    times = estimate(space).time_s
    best: dict[tuple[int, int], float] = {}
    for m, n, t in zip(space.columns["block_M"], space.columns["block_N"], times, strict=True):
        tile = (int(m), int(n))
        best[tile] = min(float(t), best.get(tile, np.inf))
    order = sorted((tile for tile in best if tile in wins), key=lambda tile: best[tile])
    flop = 2.0 * np.prod([float(winner.problem[name]) for name in "mnk"])
    return order, [best[tile] for tile in order], float(flop / min(best.values()))


def report(winners: Sequence[Winner], chosen: Iterable[int]) -> dict[str, Any]:
    """Return the figures of one group."""
    wins = Counter(w.tile for w in winners)
    frequent = {tile for tile, _ in wins.most_common(8)}
    places, slower, counts = [], [], []
    speeds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    asked = [winners[i] for i in chosen]
    known = []
    for winner in asked:
        order, times, expected = tiles_in_order(winner, wins)
        counts.append(len(order))
        speeds[winner.file].append((winner.speed, expected))
        if winner.tile in order:
            place = order.index(winner.tile)
            known.append(winner)
            places.append(place)
            slower.append(times[place] / times[0])
    ranks = [
        (len(pairs), float(spearmanr(*zip(*pairs, strict=True)).statistic))
        for pairs in speeds.values()
        if len(pairs) >= FEWEST
    ]
    found = np.array(places)
    return {
        "winners": len(winners), "asked": len(asked), "known": len(known) / max(1, len(asked)),
        "in_1": float(np.mean(found == 0)), "in_8": float(np.mean(found < 8)),
        "frequent_8": float(np.mean([w.tile in frequent for w in known])),
        "place": float(np.median(found)) + 1, "tiles": float(np.median(counts)),
        "slower": float(np.median(slower)),
        "rank_correlation": sum(n * r for n, r in ranks) / max(1, sum(n for n, _ in ranks)),
        "of_shapes": sum(n for n, _ in ranks),
    }  # fmt: skip


def main() -> None:
    """Read, ask and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    groups: dict[tuple[str, str, str], list[Winner]] = defaultdict(list)
    for library in ("rocblas", "hipblaslt"):
        for winner in of_tensile(given.folder / "tensile_logic", library):
            groups[winner.group].append(winner)
    for winner in of_aiter(given.folder / "aiter_tuned"):
        groups[winner.group].append(winner)
    rng = np.random.default_rng(given.seed)
    print("| winners of | shapes, asked | known | in 1 | in 8 | 8 most frequent | place | slower |"
          " rank correlation |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    results = {}
    for group, winners in sorted(groups.items()):
        if len(winners) < FEWEST_OF_GROUP:
            continue
        r = report(winners, rng.permutation(len(winners))[: given.each].tolist())
        results[" ".join(group)] = r
        print(
            f"| {' '.join(group)} | {r['winners']:,}, {r['asked']} | {r['known']:.2f} |"
            f" {r['in_1']:.2f} | {r['in_8']:.2f} | {r['frequent_8']:.2f} | {r['place']:.0f} of"
            f" {r['tiles']:.0f} | {r['slower']:.2f} | {r['rank_correlation']:.2f}"
            f" ({r['of_shapes']}) |"
        )
        sys.stdout.flush()
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
