"""RunDriver: takes one tuning run from its stored state to its result.

All it knows is in SQL or can be built again from it: killed at any point, a new driver of the same
run tells its session what was measured and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from db.records import NewTrial, RunRecord, TrialRecord
from db.store import SqlStore
from recommender.measurement import Measurement, MeasureStatus
from recommender.ports import Measurer, MeasureRequest
from recommender.space import SearchSpace
from recommender.tuning import Budget, Proposal, TuningSession
from tilecore import kernels
from tuner_service.report import result_document

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How a coordinator treats trials."""

    queue_depth: int = 16
    lease_s: float = 900.0
    max_attempts: int = 6
    retry_base_s: float = 0.5
    poll_s: float = 0.2


class RunDriver:
    """Drives one run: ask, persist, lease, submit, collect, accept, tell."""

    def __init__(
        self, store: SqlStore, run: RunRecord, measurer: Measurer, epoch: int, limits: Limits
    ) -> None:
        self._store = store
        self._run = run
        self._measurer = measurer
        self._epoch = epoch
        self._limits = limits
        self._leased: dict[str, TrialRecord] = {}
        self._open: set[tuple[str, str]] = set()  # (config key, protocol) not measured yet
        self._counted_at = time.monotonic()
        self._session = self._build_session()
        self._restore()

    def step(self) -> bool:
        """Do a little; return whether the run is finished (in the database, too)."""
        self._count_time()
        if self._store.runs.is_cancel_requested(self._run.id):
            self._close("CANCELLED")
            return True
        self._propose()
        self._submit()
        self._collect()
        if not self._session.done or self._open:
            return False
        self._finish()
        return True

    def stop(self) -> None:
        """Give back what is leased; the run stays open for the next coordinator."""
        self._count_time()
        self._store.trials.release(self._epoch)
        self._leased.clear()

    # --- the steps ----------------------------------------------------------------------------

    def _build_session(self) -> TuningSession:
        run, definition = self._run, kernels.get(self._run.workload.kernel)
        space = SearchSpace.build(definition, dict(run.workload.problem), run.hardware)
        left_s = float(run.spec["time_limit_s"]) - run.active_s  # a resumed run is not given more
        budget = Budget(max_trials=int(run.spec["max_trials"]), time_limit_s=max(0.0, left_s))
        return TuningSession(
            run.workload,
            definition,
            run.hardware,
            space,
            store=self._store,
            budget=budget,
            seed=run.seed,
            program_digest=run.program_digest,
            toolchain_key=run.toolchain.key,
        )

    def _restore(self) -> None:
        """Tell the session what an earlier coordinator measured and what is still open."""
        unfinished = []
        for trial in self._store.trials.of_run(self._run.id):
            if trial.measurement is not None:
                self._session.tell(_proposal(trial), trial.measurement)
            else:
                unfinished.append(_proposal(trial))
                self._open.add(_key(trial))
        self._session.restore(unfinished)

    def _propose(self) -> None:
        free = self._limits.queue_depth - len(self._open)
        if free <= 0 or self._session.done:
            return
        proposals = self._session.ask(free)
        if not proposals:
            return
        known = self._store.trials.add(
            self._run.id, [_new_trial(p) for p in proposals], self._epoch
        )
        self._open |= {_key(p) for p in proposals}
        if known:
            self._tell_again({_key(trial) for trial in known})

    def _tell_again(self, repeated: set[tuple[str, str]]) -> None:
        """Answer proposals that were measured before in this run from the database."""
        for trial in self._store.trials.of_run(self._run.id):
            if _key(trial) in repeated and trial.measurement is not None:
                self._open.discard(_key(trial))
                self._session.tell(_proposal(trial), trial.measurement)

    def _submit(self) -> None:
        free = self._limits.queue_depth - len(self._leased)
        if free <= 0 or len(self._leased) >= len(self._open):
            return
        claimed = self._store.trials.claim(self._run.id, self._epoch, free, self._limits.lease_s)
        requests = []
        for trial in claimed:
            token = f"{trial.id}:{trial.attempt}"
            self._leased[token] = trial
            requests.append(
                MeasureRequest(
                    token=token,
                    workload=self._run.workload,
                    config=trial.config,
                    protocol=trial.protocol,
                )
            )
        if requests:
            self._measurer.submit(requests)

    def _collect(self) -> None:
        for request, measurement in self._measurer.collect(self._limits.poll_s):
            trial = self._leased.pop(request.token, None)
            if trial is None:
                continue  # of a run that was cancelled
            if measurement.status is MeasureStatus.WORKER_LOST and self._retry(trial, measurement):
                continue
            if self._store.trials.accept(trial, self._epoch, measurement) is None:
                log.warning("stale result dropped", trial=trial.id, attempt=trial.attempt)
                continue
            self._open.discard(_key(trial))
            self._session.tell(_proposal(trial), measurement)

    def _retry(self, trial: TrialRecord, measurement: Measurement) -> bool:
        """Put back a trial whose worker got lost, later each time; False: it was the last one."""
        if trial.attempt >= self._limits.max_attempts:
            return False
        delay_s = min(30.0, self._limits.retry_base_s * 2.0 ** (trial.attempt - 1))
        log.warning("worker lost", trial=trial.id, attempt=trial.attempt, why=measurement.detail)
        self._store.trials.retry_later(trial, self._epoch, measurement.detail, delay_s)
        return True

    # --- the end ------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._count_time()
        trials = self._store.trials.of_run(self._run.id)
        if not any(t.measurement and t.measurement.status is MeasureStatus.OK for t in trials):
            self._close("FAILED", error=_why_nothing_ran(trials))
            return
        active_s = self._store.runs.get(self._run.public_id).active_s
        document = result_document(self._session.result(), self._run, active_s)
        self._close("SUCCEEDED", result=document)

    def _close(
        self, state: str, *, result: Mapping[str, Any] | None = None, error: str | None = None
    ) -> None:
        self._store.runs.finish(self._run.id, self._epoch, state, result=result, error=error)
        self._leased.clear()
        log.info("run finished", run=self._run.public_id, state=state, error=error)

    def _count_time(self) -> None:
        now = time.monotonic()
        if now - self._counted_at >= 1.0 or self._session.done:
            self._store.runs.add_active_time(self._run.id, now - self._counted_at, self._epoch)
            self._counted_at = now


def _key(item: TrialRecord | Proposal | NewTrial) -> tuple[str, str]:
    return item.config.key, item.protocol.value


def _new_trial(proposal: Proposal) -> NewTrial:
    return NewTrial(
        config=proposal.config,
        protocol=proposal.protocol,
        purpose=proposal.purpose,
        predicted_s=proposal.predicted_s,
    )


def _proposal(trial: TrialRecord) -> Proposal:
    return Proposal(
        config=trial.config,
        protocol=trial.protocol,
        purpose=trial.purpose,
        predicted_s=trial.predicted_s,
    )


def _why_nothing_ran(trials: Sequence[TrialRecord]) -> str:
    measured = [t.measurement for t in trials if t.measurement is not None]
    counts: dict[str, int] = {}
    for m in measured:
        counts[m.status.value] = counts.get(m.status.value, 0) + 1
    causes = ", ".join(f"{status} x{count}" for status, count in sorted(counts.items()))
    detail = next((m.detail for m in measured if m.detail), "")
    return f"none of {len(measured)} trials ran ({causes or 'no trial was proposed'}): {detail}"
