"""dispatch_table(): the fewest configs for a distribution of shapes, and which serves which."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.cover import (
    TIME_LIMIT_S,
    Cover,
    Losses,
    Run,
    counted,
    fewest_runs,
    limited_cover,
    minimum_cover,
    within,
)
from recommender.dispatch.question import DispatchQuestion
from recommender.dispatch.times import Floats, Times
from recommender.errors import InvalidShapes
from recommender.shapes import ShapeSet, named
from tilecore.dispatch_table import DispatchTable, Range, Served
from tilecore.tile_config import KnobValue, TileConfig

TOLERANCE = 0.05
MAX_TOLERANCE = 10.0
CROSSED = 12  # configs that are measured at all shapes
NEIGHBOURS = 2  # shapes on each side whose winners are measured here, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How configs are chosen.

    Attributes:
        tolerance: 0.05: every shape within 5 % of the best that is known for it.
        max_configs: at most so many, and the loss that this takes: the worst one as small as can
            be, then the weighted one; None: as many as the tolerance takes.
        time_limit_s: of a step of the search for proofs.

    Raises:
        InvalidShapes: a tolerance or number of configs that makes no sense (RC611).
    """

    tolerance: float = TOLERANCE
    max_configs: int | None = None
    time_limit_s: float = TIME_LIMIT_S

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance <= MAX_TOLERANCE:
            expected = f"a number from 0 to {MAX_TOLERANCE:g} (0.05 for 5 %)"
            raise InvalidShapes(where="tolerance", expected=expected, found=self.tolerance)
        if self.max_configs is not None and self.max_configs < 1:
            raise InvalidShapes(where="max_configs", expected="1 or more", found=self.max_configs)


def dispatch_table(
    question: DispatchQuestion,
    times: Times,
    choice: Choice | None = None,
    *,
    now: datetime | None = None,
) -> DispatchTable:
    """Return the table with the fewest configs such that no shape loses more than the tolerance.

    Of a program that came as data the digest is left open: who has its Python says which
    (``tilecore.dispatcher.with_digest``).

    Args:
        question: shapes, kernel and device.
        times: of all configs at these shapes.
        choice: tolerance and limits.
        now: when the table is made.
    """
    last = question.shapes.shapes[-1]
    return _table(
        question.shapes, times, choice or Choice(), now,
        kernel=question.name,
        program_digest="" if question.program else question.digest(question.problem(last)),
        problem=dict(question.told),
        threads=question.threads,
        hardware=question.hardware.name,
        hardware_key=question.hardware.key,
        target=question.target,
        toolchain={**asdict(question.toolchain), "key": question.toolchain.key},
    )  # fmt: skip


def table_of_times(
    kernel: str,
    shapes: ShapeSet,
    configs: Sequence[TileConfig],
    time_s: Floats,
    choice: Choice | None = None,
    *,
    problem: Mapping[str, KnobValue] | None = None,
    hardware: str = "",
    target: str = "llvm",
    threads: int = 0,
) -> DispatchTable:  # fmt: skip
    """Return a table for a kernel of your own, from times that you measured.

    Args:
        kernel: what to call it.
        shapes: with their weights, in ascending order.
        configs: knobs by name.
        time_s: a row per shape, a column per config; NaN where a config cannot run.
        choice: tolerance and limits.
        problem: fields that do not change.
        hardware: name of the device.
        target: what to compile for.
        threads: cores that the times hold for.

    Raises:
        InvalidShapes: times of other shapes or configs, or a shape that nothing runs (RC611).
    """
    expected, found = (len(shapes.shapes), len(configs)), np.shape(time_s)
    if expected != found:
        raise InvalidShapes(where="times", expected=f"{expected} of them", found=found)
    usable = np.isfinite(time_s) & (np.nan_to_num(time_s) > 0)
    for shape, has in zip(shapes.shapes, usable, strict=True):
        if not has.any():
            where = f"times at {named(shapes.dims, shape)}"
            raise InvalidShapes(where=where, expected="a config that runs", found="none")
    times = Times.of(configs, np.where(usable, time_s, np.inf))
    return _table(
        shapes, times, choice or Choice(), None, kernel=kernel, program_digest="",
        problem=dict(problem or {}), threads=threads, hardware=hardware, hardware_key="",
        target=target, toolchain={},
    )  # fmt: skip


def _table(
    shapes: ShapeSet, times: Times, choice: Choice, now: datetime | None, **heading: Any
) -> DispatchTable:
    loss, weights = times.loss, np.array(shapes.weights)
    limit: dict[str, Any] = {"time_limit_s": choice.time_limit_s}
    if choice.max_configs is None:
        cover = minimum_cover(loss, weights, choice.tolerance, **limit)
    else:
        cover = limited_cover(loss, weights, choice.tolerance, choice.max_configs, **limit)
    rule, reason, serves, ranges = _assign(shapes, times, cover, choice.tolerance)
    used = list(dict.fromkeys(serves))
    place = {column: i for i, column in enumerate(used)}
    return DispatchTable(
        **heading,
        dims=shapes.dims,
        tolerance=choice.tolerance,
        created_at=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
        rule=rule,
        method=cover.note,
        reason=reason,
        configs=tuple(times.configs[column] for column in used),
        ranges=tuple(Range(first=a, last=b, config=place[c]) for a, b, c in ranges),
        shapes=tuple(_served(shapes, times, serves, place)),
    )


def to_cross_measure(
    times: Times, weights: NDArray[np.float64], *, limit: int = CROSSED
) -> list[list[int]]:
    """Return per shape the columns worth measuring there, so that a table can rest on it.

    Those that would serve all shapes best if every time were right, the fastest of the shape and of
    its neighbours.

    Args:
        times: measured and, where nothing is, predicted (``trust_predictions``).
        weights: of the shapes.
        limit: how many are measured at all shapes.
    """
    shared = limited_cover(times.loss, weights, TOLERANCE / 2, limit).configs
    surest = np.where(times.source == np.array(times.best_source)[:, None], times.time_s, np.inf)
    winners = np.argmin(surest, axis=1).tolist()
    found = []
    for row, winner in enumerate(winners):
        near = winners[max(0, row - NEIGHBOURS) : row + NEIGHBOURS + 1]
        wanted = dict.fromkeys([winner, *near, *shared])
        found.append([column for column in wanted if np.isfinite(times.time_s[row, column])])
    return found


def _assign(
    shapes: ShapeSet, times: Times, cover: Cover, tolerance: float
) -> tuple[str, str, Sequence[int], list[tuple[int, int, int]]]:
    """Return rule, reason, the column that serves each shape, and ranges as sizes."""
    if len(shapes.dims) > 1:
        reason = "several dimensions: the sampled shape that is nearest by logarithms decides"
        return "nearest", reason, cover.serves, []
    runs, reason = _runs(times.loss, np.array(shapes.weights), cover, tolerance)
    serves = [run.config for run in runs for _ in range(run.first, run.last + 1)]
    return "ranges", reason, serves, _sizes([s for (s,) in shapes.shapes], runs)


def _runs(
    loss: Losses, weights: NDArray[np.float64], cover: Cover, tolerance: float
) -> tuple[list[Run], str]:
    """Return which neighbouring shapes share a config, and why."""
    if cover.bound > tolerance:  # each shape has the fastest of too few
        groups = itertools.groupby(enumerate(cover.serves), key=lambda pair: pair[1])
        parts = [(config, [row for row, _ in group]) for config, group in groups]
        runs = [Run(rows[0], rows[-1], config) for config, rows in parts]
        return runs, f"{counted(len(runs), 'range')}: each shape has the fastest of the configs"
    fits, configs = within(loss, cover.bound), len(cover.configs)
    runs = fewest_runs(loss, weights, fits)
    if len({run.config for run in runs}) <= configs:
        are = "range is" if len(runs) == 1 else "ranges are"
        return runs, f"{len(runs)} {are} the fewest of all, and take the fewest configs"
    fewest = f"{counted(len(runs), 'range')} of {len({run.config for run in runs})} configs"
    chosen = np.zeros(fits.shape[1], bool)
    chosen[list(cover.configs)] = True
    runs = fewest_runs(loss, weights, fits & chosen)
    return runs, (
        f"{counted(len(runs), 'range')} of {counted(configs, 'config')}: the fewest configs go "
        f"before the fewest ranges ({fewest})"
    )


def _sizes(sizes: Sequence[int], runs: Sequence[Run]) -> list[tuple[int, int, int]]:
    """Return runs of samples as ranges of sizes without gaps.

    What lies between two samples goes with the larger one, as blocks round up: with samples left
    out that lost 1.6 % in the mean and 12.8 % at worst; cut at the mean of logarithms, 4.7 % and
    76.6 % (benchmarks/dispatch.py).
    """
    lasts = [sizes[run.last] for run in runs]
    firsts = [sizes[0], *(last + 1 for last in lasts)]
    return [(a, b, run.config) for a, b, run in zip(firsts, lasts, runs, strict=False)]


def _served(
    shapes: ShapeSet, times: Times, serves: Sequence[int], place: dict[int, int]
) -> list[Served]:
    return [
        Served(
            shape=shape,
            weight=weight,
            config=place[column],
            time_s=float(times.time_s[row, column]),
            best_s=float(times.best_s[row]),
            source=str(times.source[row, column]),
            best_source=times.best_source[row],
            interval_s=(float(times.low_s[row, column]), float(times.high_s[row, column])),
        )
        for row, (shape, weight, column) in enumerate(
            zip(shapes.shapes, shapes.weights, serves, strict=True)
        )
    ]
