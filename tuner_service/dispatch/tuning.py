"""Tuning the shapes of a dispatch table, in two steps that anybody can take again.

Every shape gets a run of its own; then the configs that might serve several shapes are measured at
all of them, interleaved with each shape's best (a *cross-measurement*: a run without a search). The
table rests on the second step alone: its times were taken side by side.

Nothing is kept but the runs. Their groups are found by keys that are made of the tuning's own, so
whoever asks again, of a restarted service too, goes on where it stood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from db.errors import IdempotencyConflict
from db.records import RunRecord
from db.store import SqlStore
from recommender.dispatch.question import DispatchQuestion
from recommender.dispatch.table import to_cross_measure
from recommender.dispatch.times import Evidence, Times, known_times
from recommender.measurement import Measurement
from tilecore.tile_config import TileConfig
from tuner_service import jobs, questions
from tuner_service.dispatch.evidence import LoggedSessions
from tuner_service.dispatch.shapes import AskedTable, understand_table
from tuner_service.errors import RunFailed
from tuner_service.questions import Question

Stage = Literal["tuning", "cross-measuring"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A table's runs are under way.

    Attributes:
        stage: which step.
        runs: one per shape.
        queued: how many of them this call queued.
    """

    stage: Stage
    runs: Sequence[RunRecord]
    queued: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """A table's shapes were measured; its times."""

    question: DispatchQuestion
    times: Times


class TableTuning:
    """The tuning of one table.

    Args:
        store: where its runs are queued.
        asked: the table.
        effort: what the run of a shape may take.
        key: that its groups of runs are found by, 64 characters at most.
        created_by: the name of the API key that asks for it.
    """

    def __init__(
        self, store: SqlStore, asked: AskedTable, effort: jobs.Effort, key: str,
        created_by: str | None = None,
    ) -> None:  # fmt: skip
        self._store, self._asked, self._effort = store, asked, effort
        self._key, self._created_by = key, created_by

    @cached_property
    def question(self) -> DispatchQuestion:
        """The table's question in canonical form; raises what ``understand_table`` does."""
        return understand_table(self._store, self._asked)

    @cached_property
    def parts(self) -> Sequence[Question]:
        """The questions of its shapes."""
        store, found, hardware = self._store, self.question, self._asked.hardware
        problems = [found.problem(shape) for shape in found.shapes.shapes]
        if found.program is not None:
            digest = found.program.digest
            return [
                questions.understand_sent(
                    store, digest, p, threads=found.threads, hardware=hardware
                )
                for p in problems
            ]  # fmt: skip
        return [
            questions.understand(store, found.name, p, threads=found.threads, hardware=hardware)
            for p in problems
        ]

    def advance(
        self, check: Callable[[DispatchQuestion], None] = lambda question: None
    ) -> Waiting | Measured:
        """Queue what is to be measured next if nothing is under way, and return how it stands.

        ``check`` may refuse the question before anything is queued.

        Raises:
            HardwareNotOffered: no worker has the device (SV906).
            RunFailed: a run failed or was cancelled (SV911).
            TileError: what ``question`` and ``parts`` raise.
        """
        crossed, queued = self._group("crossed"), 0
        if not crossed:
            tuned = self._group("tuned")
            if not _is_open(tuned):
                _check(tuned)
                check(self.question)
                tuned, queued = self._tune()
            if _is_open(tuned):
                return Waiting("tuning", tuned, queued)
            crossed, queued = self._cross(), len(self.parts)
        if _is_open(crossed):
            return Waiting("cross-measuring", crossed, queued)
        _check(crossed)
        times = known_times(self.question, self._store, evidence=_of_runs(self._store, crossed))
        return Measured(self.question, times)

    def _tune(self) -> tuple[Sequence[RunRecord], int]:
        """Return a run for each shape, and how many are new: what is known is not tuned again."""
        known = [jobs.known_run(self._store, p, self._effort) for p in self.parts]
        new = [(p, self._effort) for p, run in zip(self.parts, known, strict=True) if run is None]
        queued = list(self._queue("tuned", new)) if new else []
        return [run or queued.pop(0) for run in known], len(new)

    def _cross(self) -> Sequence[RunRecord]:
        """Queue the cross-measurement: each run has room for default, advice and its configs."""
        shared, crossing = self._candidates(), replace(self._effort, time_limit_s=0.0)
        new = []
        for part in self.parts:
            trials = max(crossing.max_trials, len(shared[part.workload.key]) + 2)
            new.append((part, replace(crossing, max_trials=trials)))
        return self._queue("crossed", new, shared)

    def _candidates(self) -> dict[str, Sequence[TileConfig]]:
        """Return, by the workload's key, which configs are to be measured at it."""
        times = known_times(
            self.question, self._store, evidence=LoggedSessions(self._store, self.question),
            trust_predictions=True,
        )  # fmt: skip
        shapes = self.question.shapes
        chosen = to_cross_measure(times, np.array(shapes.weights))
        return {
            self.question.workload(shape).key: [times.configs[column] for column in columns]
            for shape, columns in zip(shapes.shapes, chosen, strict=True)
        }

    # --- groups of runs -----------------------------------------------------------------------

    def _queue(
        self, step: str, new: Sequence[tuple[Question, jobs.Effort]],
        incumbents: Mapping[str, Sequence[TileConfig]] | None = None,
    ) -> Sequence[RunRecord]:  # fmt: skip
        """Return the runs of a step, queued now unless somebody else was faster."""
        try:
            return jobs.submit_group(
                self._store, new, idempotency_key=self._name(step), created_by=self._created_by,
                incumbents=incumbents,
            )[0]  # fmt: skip
        except IdempotencyConflict:  # with other candidates, by what was known a moment before
            return self._group(step)

    def _group(self, step: str) -> Sequence[RunRecord]:
        """Return the runs that a step has queued; [] if it has not begun."""
        first = self._store.runs.with_key(self._name(step))
        return [] if first is None else self._store.runs.of_group(str(first.group))

    def _name(self, step: str) -> str:
        return f"dispatch-table:{self._key}:{step}"


def _is_open(runs: Sequence[RunRecord]) -> bool:
    return not all(run.is_finished for run in runs)


def _check(runs: Sequence[RunRecord]) -> None:
    failed = [run for run in runs if run.state != "SUCCEEDED"]
    if failed:
        states = ", ".join(f"{run.public_id} {run.state}" for run in failed)
        raise RunFailed(run=states, state=failed[0].state, error=failed[0].error or "")


def _of_runs(store: SqlStore, runs: Sequence[RunRecord]) -> Evidence:
    """Return what certain runs measured, and nothing else, as evidence."""
    found: Mapping[str, Sequence[Measurement]] = {
        run.workload.key: [
            t.measurement for t in store.trials.of_run(run.id) if t.measurement is not None
        ]
        for run in runs
    }
    return lambda workload: found.get(workload.key, ())
