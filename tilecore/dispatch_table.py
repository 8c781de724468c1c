"""DispatchTable: which config of a kernel serves which sizes, as a file that people keep.

The JSON (format "tilecore-dispatch-table", version 1) is written whole or not at all;
``dispatch_reader`` reads it. ``docs/dispatch.md`` lists the fields.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tilecore.errors import InvalidDispatchTable
from tilecore.tile_config import KnobValue, TileConfig
from tilecore.whole_file import written_whole

FORMAT, VERSION = "tilecore-dispatch-table", 1
RULES = ("ranges", "nearest")
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A shape that the table was made from.

    Attributes:
        shape: a size per dimension.
        weight: its share of the calls.
        config: position of the config that serves it.
        time_s: of a call with that config.
        best_s: of a call with the fastest config known for the shape.
        source: where ``time_s`` is from: "measured", "screened" (one thread, scaled), or the model
            that predicts it: "predicted", "prior", "analytic".
        best_source: the same of ``best_s``.
        interval_s: ends of the interval that holds 80 % of outcomes of ``time_s``.
    """

    shape: Shape
    weight: float
    config: int
    time_s: float
    best_s: float
    source: str
    best_source: str
    interval_s: tuple[float, float]

    @property
    def loss(self) -> float:
        """By how much a call takes longer than the best known: 0.05 for 5 %."""
        return self.time_s / self.best_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Sizes of the one dimension, both ends included, that a config serves."""

    first: int
    last: int
    config: int


@dataclass(frozen=True, kw_only=True)
class DispatchTable:
    """What to run for which sizes.

    Attributes:
        kernel: name of the kernel.
        program_digest: of its program for the last of ``shapes``: tells another version.
        problem: the fields of the problem that do not change.
        dims: those that do.
        threads: cores that the times hold for; 0: all of the device.
        hardware, hardware_key, target: the device, and what tilecore compiles for.
        toolchain: its key, and the versions behind it.
        tolerance: by how much a shape may be slower than its best.
        created_at: ISO 8601.
        rule: "ranges" (one dimension) or "nearest" (the shape that is nearest by logarithms).
        method: how the configs were chosen, and what is proved of it.
        reason: why this rule.
        configs: those that serve.
        ranges: ascending and without gaps; of the rule "ranges" alone.
        shapes: ascending.
    """

    kernel: str
    program_digest: str
    problem: Mapping[str, KnobValue]
    dims: tuple[str, ...]
    threads: int
    hardware: str
    hardware_key: str
    target: str
    toolchain: Mapping[str, str]
    tolerance: float
    created_at: str
    rule: str
    method: str
    reason: str
    configs: tuple[TileConfig, ...]
    shapes: tuple[Served, ...]
    ranges: tuple[Range, ...] = field(default=())

    def choose(self, sizes: Sequence[int]) -> int:
        """Return the position of the config for some sizes; beyond the table, of the nearest."""
        if self.rule == "ranges":
            at = bisect.bisect_left(self._lasts, sizes[0])
            return self.ranges[min(at, len(self.ranges) - 1)].config
        return nearest(self.shapes, sizes).config

    def covers(self, sizes: Sequence[int]) -> bool:
        """Whether every size is between the smallest and the largest that the table knows."""
        return all(low <= size <= high for size, (low, high) in zip(sizes, self.span, strict=True))

    @cached_property
    def span(self) -> tuple[tuple[int, int], ...]:
        """The smallest and the largest size of each dimension."""
        if self.rule == "ranges":
            return ((self.ranges[0].first, self.ranges[-1].last),)
        axes = zip(*(served.shape for served in self.shapes), strict=True)
        return tuple((min(axis), max(axis)) for axis in axes)

    @cached_property
    def _lasts(self) -> list[int]:
        return [r.last for r in self.ranges]

    @property
    def worst_loss(self) -> float:
        """The largest loss of a shape."""
        return max(served.loss for served in self.shapes)

    @property
    def mean_loss(self) -> float:
        """The loss of the mean call."""
        return math.fsum(s.weight * s.loss for s in self.shapes)

    def measured_share(self) -> float:
        """Return the share of calls whose time and whose best time were measured."""
        known = (s for s in self.shapes if s.source == s.best_source == "measured")
        return math.fsum(s.weight for s in known)

    # --- JSON ---------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "kernel": self.kernel,
            "program_digest": self.program_digest,
            "problem": dict(self.problem),
            "dims": list(self.dims),
            "threads": self.threads,
            "hardware": self.hardware,
            "hardware_key": self.hardware_key,
            "target": self.target,
            "toolchain": dict(self.toolchain),
            "tolerance": self.tolerance,
            "created_at": self.created_at,
            "rule": self.rule,
            "method": self.method,
            "reason": self.reason,
            "configs": [dict(config.items_) for config in self.configs],
            "ranges": [{"first": r.first, "last": r.last, "config": r.config} for r in self.ranges],
            "shapes": [_shape_json(served) for served in self.shapes],
        }

    def as_vllm(self) -> dict[str, dict[str, KnobValue]]:
        """Return config files as vLLM keeps them by batch size: ``{"1": {...}, "16": {...}}``.

        vLLM takes the entry whose number is nearest to the size, so every sampled size has one.

        Raises:
            InvalidDispatchTable: several dimensions have no such form (TC506).
        """
        check_for_vllm(self.dims)
        return {str(s.shape[0]): dict(self.configs[s.config].items_) for s in self.shapes}

    def write(self, path: Path | str) -> None:
        """Write the table, whole or not at all; raises OSError where that fails."""
        write_json(Path(path), self.to_json())


def check_for_vllm(dims: Sequence[str]) -> None:
    """Check that tables of these dimensions can be written as vLLM keeps them.

    Raises:
        InvalidDispatchTable: there are several (TC506).
    """
    if len(dims) != 1:
        raise InvalidDispatchTable(
            path="vllm", expected="a table of one dimension", found=", ".join(dims),
            hint="make a table per value of the other dimensions",
        )  # fmt: skip


def nearest(shapes: Sequence[Served], sizes: Sequence[int]) -> Served:
    """Return the shape nearest in the logarithms of its sizes; of several the first."""
    return min(
        shapes,
        key=lambda s: (
            round(sum(math.log2(a / b) ** 2 for a, b in zip(s.shape, sizes, strict=True)), 12),
            s.shape,
        ),
    )


def write_json(path: Path, document: Any) -> None:
    """Write JSON into a file that is there whole or not at all."""
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _shape_json(served: Served) -> dict[str, Any]:
    low_s, high_s = served.interval_s
    return {
        "shape": list(served.shape),
        "weight": served.weight,
        "config": served.config,
        "time_us": served.time_s * 1e6,
        "interval_us": [low_s * 1e6, high_s * 1e6],
        "best_us": served.best_s * 1e6,
        "loss": round(served.loss, 6),
        "source": served.source,
        "best_source": served.best_source,
    }
