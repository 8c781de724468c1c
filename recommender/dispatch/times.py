"""Times of every config at every shape: measured where the log has them, else predicted."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recommender.dispatch.candidates import ShapeCandidates
from recommender.dispatch.question import DispatchQuestion
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.ports import MeasurementStore
from recommender.predict import Learned, active_model
from recommender.shapes import Shape
from recommender.workload import Workload
from tilecore.tile_config import TileConfig

FORECASTS = 24  # shapes whose whole space is looked at: the others share their favourites
Floats = NDArray[np.float64]
Evidence = Callable[[Workload], Sequence[Measurement]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What is known of configs (columns) at shapes (rows).

    Attributes:
        configs: in the order of their text.
        time_s: infinite where a config is illegal, or nothing is known that counts.
        low_s, high_s: ends of the interval that holds 80 % of outcomes.
        source: see ``tilecore.dispatch_table.Served``; "" where ``time_s`` is infinite.
        best_s, best_source: of the fastest config per shape.
    """

    configs: tuple[TileConfig, ...]
    time_s: Floats
    low_s: Floats
    high_s: Floats
    source: NDArray[np.str_]
    best_s: Floats
    best_source: tuple[str, ...]

    @classmethod
    def of(
        cls, configs: Sequence[TileConfig], time_s: Floats, *, source: str = "measured"
    ) -> Times:
        """Return times that are known already; NaN or infinite where a config cannot run."""
        order = sorted(range(len(configs)), key=lambda i: str(configs[i]))
        times = np.where(np.isfinite(time_s), time_s, np.inf)[:, order]
        return cls(
            configs=tuple(configs[i] for i in order), time_s=times, low_s=times, high_s=times,
            source=np.where(np.isfinite(times), source, ""), best_s=times.min(axis=1),
            best_source=(source,) * len(times),
        )  # fmt: skip

    @property
    def loss(self) -> Floats:
        """By how much each config is slower than the best, per shape."""
        return self.time_s / self.best_s[:, None] - 1.0


@dataclass(slots=True)
class _Row:
    """What is known at one shape."""

    candidates: ShapeCandidates
    measured: dict[TileConfig, tuple[float, float, float]]  # time, ends of the interval
    screened: dict[TileConfig, tuple[float, float, float]]


def logged(store: MeasurementStore, question: DispatchQuestion) -> Evidence:
    """Return what the log has of a workload, newest first, that holds for the code of today."""

    def of(workload: Workload) -> Sequence[Measurement]:
        found = store.measurements(
            workload_key=workload.key, hardware_key=question.hardware.key, only_ok=True
        )
        digest = question.digest(dict(workload.problem)) if found else ""
        return [
            m
            for m in found
            if m.program_digest == digest and m.toolchain.key == question.toolchain.key
        ]

    return of


def known_times(
    question: DispatchQuestion,
    store: MeasurementStore,
    *,
    evidence: Evidence | None = None,
    trust_predictions: bool = False,
) -> Times:
    """Return the times of all configs that are worth a place in a table.

    These are what was measured at any of the shapes, and the models' favourites. Where a shape was
    measured, what was not measured there counts only with ``trust_predictions``: a prediction is
    off by more than any tolerance worth having (benchmarks/results/dispatch_*.md).

    Args:
        question: what is asked.
        store: what was measured, and the model that was promoted.
        evidence: in place of the store's measurements.
        trust_predictions: let predictions stand beside measurements of the same shape, scaled by
            what the measured configs of the shape took over what was predicted for them.

    Raises:
        EmptySpace: no config can run a shape on the device (RC602).
    """
    dtype = str(question.fixed.get("dtype", ""))  # a program has no model
    learned = active_model(store, question.name, question.hardware, dtype)
    find = evidence or logged(store, question)
    rows = [_row(question, shape, find, learned) for shape in question.shapes.shapes]
    pool = _pool(question, rows)
    found = [_times(row, pool, trust_predictions) for row in rows]
    source = np.array([f[3] for f in found])
    time_s = np.array([f[0] for f in found])
    keep = np.isfinite(time_s).any(axis=0)
    return Times(
        configs=tuple(c for c, k in zip(pool, keep.tolist(), strict=True) if k),
        time_s=time_s[:, keep],
        low_s=np.array([f[1] for f in found])[:, keep],
        high_s=np.array([f[2] for f in found])[:, keep],
        source=source[:, keep],
        best_s=np.array([f[4] for f in found]),
        best_source=tuple(f[5] for f in found),
    )


def _row(
    question: DispatchQuestion, shape: Shape, evidence: Evidence, learned: Learned | None
) -> _Row:
    workload = question.workload(shape)
    row = _Row(question.candidates(shape, learned), {}, {})
    for m in evidence(workload):
        if m.status is MeasureStatus.OK:
            kept = row.measured if m.protocol is Protocol.CONFIRM else row.screened
            kept.setdefault(m.config, _taken(row.candidates, m, question.cores))  # the newest
    both = [row.measured[c][0] / row.screened[c][0] for c in row.screened if c in row.measured]
    if both:  # one thread's CPU time to wall clock, at this shape
        factor = statistics.median(both)
        row.screened = {
            c: (t * factor, low * factor, high * factor)
            for c, (t, low, high) in row.screened.items()
        }
    return row


def _taken(candidates: ShapeCandidates, m: Measurement, cores: int) -> tuple[float, float, float]:
    """Return what a measurement says of so many cores."""
    assert m.time_s is not None
    factor = 1.0 if m.threads == cores else candidates.ratio(m.config, m.threads)
    return m.time_s * factor, min(m.times_s) * factor, max(m.times_s) * factor


def _pool(question: DispatchQuestion, rows: Sequence[_Row]) -> list[TileConfig]:
    """Return the configs that may have a place, in the order of their text."""
    found = {question.default_config()}
    for row in rows:
        found |= {*row.measured, *row.screened}
    open_rows = [row for row in rows if not row.measured and not row.screened]
    if open_rows:
        count = min(FORECASTS, len(open_rows))
        for place in np.unique(np.linspace(0, len(open_rows) - 1, count).round().astype(int)):
            found |= set(open_rows[place].candidates.favourites())
    return sorted(found, key=str)


def _times(
    row: _Row, pool: Sequence[TileConfig], trust_predictions: bool
) -> tuple[Floats, Floats, Floats, list[str], float, str]:
    """Return times, ends of their intervals and sources, then the best time and its source."""
    legal = np.array(row.candidates.can_run(pool), bool)
    place_of = {config: i for i, config in enumerate(pool)}
    known = {
        c: (name, taken)
        for name, group in (("screened", row.screened), ("measured", row.measured))
        for c, taken in group.items()
        if legal[place_of[c]]
    }
    time_s, low_s, high_s = (np.full(len(pool), np.inf) for _ in range(3))
    source = [""] * len(pool)
    if not known or trust_predictions:
        places = np.flatnonzero(legal)
        expected = row.candidates.expected_s([pool[i] for i in places.tolist()])
        name = row.candidates.source
        for kept, found in zip((time_s, low_s, high_s), expected, strict=True):
            kept[places] = found
        for place in places.tolist():
            source[place] = name
    if trust_predictions and known:
        factor = statistics.median(t[0] / time_s[place_of[c]] for c, (_, t) in known.items())
        time_s, low_s, high_s = time_s * factor, low_s * factor, high_s * factor
    for config, (name, taken) in known.items():
        place = place_of[config]
        time_s[place], low_s[place], high_s[place] = taken
        source[place] = name
    best_source = next((s for s in ("measured", "screened") if s in source), "")
    of_best = [not best_source or s == best_source for s in source]
    best = int(np.argmin(np.where(of_best, time_s, np.inf)))
    best_s = float(time_s[best])
    time_s = np.maximum(time_s, best_s)  # what is less sure cannot be better than the best
    return time_s, low_s, high_s, source, best_s, source[best]
