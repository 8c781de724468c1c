"""Winners that ship with the package: what was fastest on recorded shapes of a kernel.

Chosen by ``benchmarks/ship_winners.py`` from the recordings in ``benchmarks/data``, for the kernels
where this evidence helped on shapes left out. They stand in for neighbours of a machine whose
database has none. Other kernels have a model that ships (``prior``), or formulas that do better.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from recommender.hardware import HardwareProfile
from recommender.nearest import workload_distance
from recommender.workload import Workload
from tilecore.tile_config import TileConfig

FORMAT = 1
FOLDER = Path(__file__).parent / "winners"
KEPT = 8  # configs of a shape: some cannot run, or do not suit the number of threads
SHAPES, OF_EACH = 3, 3  # recorded shapes that are looked at, and configs of each
LEADS_WITHIN = 4.0  # distance (a factor of 16 in one dimension) up to which a winner goes first
RULES = ("nearest", "agreed")


@dataclass(frozen=True, slots=True)
class RecordedShape:
    """One shape of a kernel and its fastest configs, the best first.

    Attributes:
        times_s: per config.
        distance: from the workload that was asked for.
    """

    workload: Workload
    configs: tuple[TileConfig, ...]
    times_s: tuple[float, ...]
    distance: float = 0.0

    def only(self, chosen: Sequence[bool]) -> RecordedShape:
        """Return the shape with some of its configs."""
        return replace(
            self, configs=tuple(compress(self.configs, chosen)),
            times_s=tuple(compress(self.times_s, chosen)),
        )  # fmt: skip

    def time_s(self, config: TileConfig) -> float:
        """Return the recorded time of one of its configs."""
        return self.times_s[self.configs.index(config)]


@dataclass(frozen=True, slots=True)
class Winners:
    """What ships for a kernel.

    Attributes:
        rule: "nearest": the winner of the nearest shape goes first; "agreed": of the winners of
            some near shapes the one that the analytic model likes best.
        device, features: of what they were recorded on.
        shapes: all recorded ones.
    """

    rule: str
    device: str
    features: frozenset[str]
    shapes: tuple[RecordedShape, ...]

    def near(self, workload: Workload, hardware: HardwareProfile) -> list[RecordedShape]:
        """Return the shapes nearest to a workload, nearest first; none that run other code.

        Narrow types use the instructions that a device has (AMX), float32 those of the arch.
        """
        is_same_code = self.features <= set(hardware.features)
        found = [
            (workload_distance(shape.workload, workload), shape)
            for shape in self.shapes
            if is_same_code or (_is_plain(shape.workload) and _is_plain(workload))
        ]
        nearest = sorted(found, key=lambda f: (f[0], f[1].workload.key))[:SHAPES]
        return [replace(shape, distance=distance) for distance, shape in nearest]


def _is_plain(workload: Workload) -> bool:
    return dict(workload.problem).get("dtype") == "float32"


def winners(kernel: str, hardware: HardwareProfile) -> Winners | None:
    """Return what ships for a kernel on devices of this kind, None if nothing does."""
    return _load(FOLDER / file_name(hardware.arch)).get(kernel)


def file_name(arch: str) -> str:
    """Return the file that holds the winners for an instruction set."""
    return f"{arch}.json.gz"


def candidates(near: Sequence[RecordedShape], rule: str) -> list[tuple[TileConfig, RecordedShape]]:
    """Return configs to choose from, each once, with the nearest shape that it was fast for."""
    of_each = 1 if rule == "nearest" else OF_EACH
    found: dict[TileConfig, RecordedShape] = {}
    for shape in near:
        for config in shape.configs[:of_each]:
            found.setdefault(config, shape)
    return list(found.items())


def order(rule: str, analytic_s: np.ndarray) -> np.ndarray:
    """Return the positions of candidates, the one to use first."""
    if rule == "nearest":
        return np.arange(len(analytic_s))
    return np.argsort(analytic_s, kind="stable")


def to_bytes(hardware: HardwareProfile, kernels: Mapping[str, Winners]) -> bytes:
    """Return the content of the file of what was recorded on a device."""
    document = {
        "format": FORMAT,
        "device": hardware.name,
        "features": sorted(hardware.features),
        "kernels": {
            name: {
                "rule": found.rule,
                "shapes": [
                    {"problem": dict(s.workload.problem), "threads": s.workload.threads,
                     "configs": [dict(c.items_) for c in s.configs],
                     "times_us": [float(f"{t * 1e6:.4g}") for t in s.times_s]}
                    for s in found.shapes
                ],
            }
            for name, found in sorted(kernels.items())
        },
    }  # fmt: skip
    return gzip.compress(json.dumps(document, sort_keys=True).encode(), mtime=0)


@lru_cache(maxsize=32)
def _load(path: Path) -> dict[str, Winners]:
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if document["format"] != FORMAT:
            return {}
        return {name: _parse(name, document) for name in document["kernels"]}
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError):
        return {}  # none, or a damaged installation


def _parse(kernel: str, document: Mapping[str, Any]) -> Winners:
    found = document["kernels"][kernel]
    if found["rule"] not in RULES:
        raise ValueError(found["rule"])
    shapes = tuple(
        RecordedShape(
            Workload.of(kernel, s["problem"], s["threads"]),
            tuple(TileConfig.of(c) for c in s["configs"]),
            tuple(t * 1e-6 for t in s["times_us"]),
        )
        for s in found["shapes"]
    )
    return Winners(found["rule"], document["device"], frozenset(document["features"]), shapes)
