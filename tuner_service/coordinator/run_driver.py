"""RunDriver: takes one tuning run from its stored state to its result.

All it knows is in SQL or can be built again from it: killed at any point, a new driver of the same
run tells its session what was measured and goes on. A ``Station`` decides when it may submit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from db.records import NewTrial, RunControl, RunRecord, TrialRecord
from db.store import SqlStore
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.nearest import fastest
from recommender.ports import Measurer, MeasureRequest
from recommender.program_answers import program_session
from recommender.space import SearchSpace
from recommender.tuning import Budget, Proposal, TuningSession, kernel_session
from recommender.workload import ProgramSource, digest_of
from tilecore import kernels
from tilecore.tile_config import TileConfig
from tuner_service.report import result_document
from tuner_service.sent_programs import sent_program

log = structlog.get_logger()
TIME_UPDATE_S = 1.0
MAX_DELAY_S = 30.0
RENEWED_BELOW = 0.75  # of a lease, while the trial waits for a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How a coordinator treats trials.

    Attributes:
        queue_depth: trials handed to the workers of one kind of device at once.
        lease_s: how long one of them may work on a trial (of a confirmation: for each of them).
        max_attempts: workers that may get lost under a trial before it fails.
        retry_base_s: how long the first retry waits; each further one twice as long.
        poll_s: how long one step waits for results.
        batch: trials of one run in a row, where several runs share a device.
        max_active_runs: runs that share a device at once; others wait.
    """

    queue_depth: int = 16
    lease_s: float = 2100.0
    max_attempts: int = 6
    retry_base_s: float = 0.5
    poll_s: float = 0.2
    batch: int = 8
    max_active_runs: int = 8

    def delay_s(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row before the next attempt."""
        return min(MAX_DELAY_S, self.retry_base_s * 2.0 ** min(failures, 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A trial that is with the workers.

    Attributes:
        trial: which.
        lasts_s: how long they may work on it.
        expires_at: when they had it for so long, by the station's clock.
    """

    trial: TrialRecord
    lasts_s: float
    expires_at: float

    def is_due(self, now: float) -> bool:
        """Return whether it is to be renewed, if the trial still waits for a worker."""
        return self.expires_at - now < self.lasts_s * RENEWED_BELOW


class RunDriver:
    """Drives one run: ask, persist, lease, submit; is told results; ends it."""

    def __init__(
        self,
        store: SqlStore,
        run: RunRecord,
        measurer: Measurer,
        epoch: int,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._measurer = measurer
        self._epoch = epoch
        self._limits = limits
        self._clock = clock
        self.leased: dict[str, Lease] = {}  # by token
        self._uncounted = [0.0, 0.0]  # active, device: seconds that the database does not have yet
        self.reload(run)

    def reload(self, run: RunRecord) -> None:
        """Start again from what the database says; what is with the workers stays there."""
        self.run, self._workload = run, run.workload
        self.priority, self.is_pausing = run.priority, run.pause_requested
        self._active_s = run.active_s + self._uncounted[0]
        self._device_s = run.device_s + self._uncounted[1]
        self._open: set[tuple[str, str, int]] = set()  # not measured yet
        trials = self._store.trials.of_run(run.id)
        given = [TileConfig.of(config) for config in run.spec.get("incumbents", ())]
        self._session = self._build_session([*given, *_incumbents(trials, run.round)])
        unfinished = []
        for trial in trials:
            if trial.measurement is None:
                self._open.add(_key(trial))
                if self._counts(trial):
                    unfinished.append(_proposal(trial))
            elif self._counts(trial):
                self._session.tell(_proposal(trial), trial.measurement)
        self._session.restore(unfinished)
        known = {(t.id, t.attempt) for t in trials if t.state == "leased"}
        kept = {k: v for k, v in self.leased.items() if (v.trial.id, v.trial.attempt) in known}
        if len(kept) < len(self.leased):
            self._measurer.withdraw(self.leased.keys() - kept.keys())
        self.leased = kept

    # --- what people want ---------------------------------------------------------------------

    def apply(self, control: RunControl) -> bool:
        """Follow what people changed; return whether the run is no longer to be worked on."""
        self.priority, self.is_pausing = control.priority, control.pause_requested
        if control.state != "RUNNING":
            self._store.trials.release(self._epoch, runs=[self.run.id])
            return True
        if control.cancel_requested:
            self._close("CANCELLED")
            return True
        if control.round != self.run.round:
            self.reload(self._store.runs.get(self.run.public_id))
        if control.ceiling_s is not None and self._active_s >= control.ceiling_s:
            return self._finish("its ceiling")
        if self.is_pausing and not self.leased:
            self._save_time()
            return self._store.runs.settle_pause(self.run.id, self._epoch)
        return False

    # --- the steps ----------------------------------------------------------------------------

    def submit(self, limit: int) -> int:
        """Hand up to ``limit`` trials to the workers (a confirmation whole); return how many."""
        if self.is_pausing or any(_is_confirm(lease.trial) for lease in self.leased.values()):
            return 0
        self._propose(limit - (len(self._open) - len(self.leased)))
        if len(self.leased) >= len(self._open):
            return 0
        confirms = sum(protocol == Protocol.CONFIRM.value for _, protocol, _ in self._open)
        lasts_s = self._limits.lease_s * max(1, confirms)  # one lane has all of a confirmation
        claimed = self._store.trials.claim(
            self.run.id, self._epoch, max(limit, len(self._open) if confirms else 0), lasts_s
        )
        expires_at = self._clock() + lasts_s
        requests = []
        for trial in claimed:
            token = f"{trial.id}:{trial.attempt}"
            self.leased[token] = Lease(trial=trial, lasts_s=lasts_s, expires_at=expires_at)
            requests.append(
                MeasureRequest(
                    token=token,
                    workload=self._workload,
                    config=trial.config,
                    protocol=trial.protocol,
                )
            )
        if requests:
            self._measurer.submit(requests)
        return len(requests)

    def retry(self, trial: TrialRecord, measurement: Measurement) -> bool:
        """Put back a trial whose worker got lost, later each time; False: it was the last one."""
        if trial.losses + 1 >= self._limits.max_attempts:
            return False
        log.warning("worker lost", trial=trial.id, attempt=trial.attempt, why=measurement.detail)
        delay_s = self._limits.delay_s(trial.losses)
        self._store.trials.retry_later(trial, self._epoch, measurement.detail, delay_s)
        return True

    def tell(self, trial: TrialRecord, measurement: Measurement) -> None:
        """Take in an outcome that the database has."""
        self._open.discard(_key(trial))
        if self._counts(trial):
            self._session.tell(_proposal(trial), measurement)

    def expired(self) -> Sequence[tuple[str, Measurement]]:
        """Take from the workers what they kept for too long; return it, by token, as lost.

        The time of what waits for a worker has not begun: behind many slow candidates it waits for
        long, and would be put back and measured again and again.
        """
        now = self._clock()
        due = {t for t, lease in self.leased.items() if lease.is_due(now)}
        waiting = due.intersection(self._measurer.waiting()) if due else set()
        longer = {token: self.leased[token] for token in waiting}
        if longer:
            trials = [lease.trial for lease in longer.values()]
            longest_s = max(lease.lasts_s for lease in longer.values())
            self._store.trials.renew(trials, self._epoch, longest_s)
        for token, lease in longer.items():
            self.leased[token] = replace(lease, expires_at=now + lease.lasts_s)
        late = {token: lease for token, lease in self.leased.items() if lease.expires_at < now}
        if late:
            self._measurer.withdraw(set(late))
        return [(token, self._lost(lease)) for token, lease in late.items()]

    def withdraw(self) -> None:
        """Let the workers forget what they have of the run: it is worked on no more."""
        if self.leased:
            self._measurer.withdraw(set(self.leased))

    def count_time(self, active_s: float, device_s: float) -> None:
        """Count time spent on the run and its share of the device."""
        self._active_s += active_s
        self._device_s += device_s
        self._uncounted = [self._uncounted[0] + active_s, self._uncounted[1] + device_s]
        if self._uncounted[0] >= TIME_UPDATE_S:
            self._save_time()

    def end(self) -> bool:
        """Close the run if nothing is left to do; return whether that is so."""
        if not self._session.done or self._open:
            return False
        return self._finish("its budget")

    def leave(self) -> None:
        """Save what is not in the database yet; the run stays open."""
        self._save_time()

    # --- details ------------------------------------------------------------------------------

    def _build_session(self, incumbents: Sequence[TileConfig]) -> TuningSession:
        run = self.run
        left_s = float(run.spec["time_limit_s"]) - run.device_s  # a resumed run is not given more
        budget = Budget(max_trials=int(run.spec["max_trials"]), time_limit_s=max(0.0, left_s))
        common: dict[str, Any] = {
            "store": self._store, "budget": budget, "seed": run.seed, "incumbents": incumbents,
            "program_digest": run.program_digest, "toolchain_key": run.toolchain.key,
            "clock": lambda: self._device_s,
        }  # fmt: skip
        if digest_of(run.workload.kernel) is not None:
            sent = sent_program(self._store, run)
            source = ProgramSource(sent.record.document, sent.table.default)
            self._workload = replace(run.workload, source=source)
            look = partial(sent.look_around, run.workload, run.hardware)
            return program_session(run.workload, sent.table, run.hardware, look=look, **common)
        definition = kernels.get(run.workload.kernel).on(run.hardware.kind)
        space = SearchSpace.build(definition, dict(run.workload.problem), run.hardware)
        return kernel_session(run.workload, definition, run.hardware, space, **common)

    def _propose(self, count: int) -> None:
        if count <= 0 or self._session.done:
            return
        proposals = [_new_trial(p, self.run.round) for p in self._session.ask(count)]
        if not proposals:
            return
        known = self._store.trials.add(self.run.id, proposals, self._epoch)
        self._open |= {_key(p) for p in proposals}
        if known:
            self._tell_again({_key(trial) for trial in known})

    def _tell_again(self, repeated: set[tuple[str, str, int]]) -> None:
        """Answer proposals that were measured before in this run from the database."""
        for trial in self._store.trials.of_run(self.run.id):
            if _key(trial) in repeated and trial.measurement is not None:
                self.tell(trial, trial.measurement)

    def _counts(self, trial: TrialRecord) -> bool:
        """Whether the session is to know: confirmations before an extension are repeated."""
        return trial.protocol is Protocol.SCREEN or trial.round == self.run.round

    def _lost(self, lease: Lease) -> Measurement:
        """Return the outcome of a trial of which nothing was heard."""
        trial, hardware, workload = lease.trial, self._measurer.hardware, self.run.workload
        is_one_thread = hardware.kind == "cpu" and not _is_confirm(trial)
        return Measurement(
            workload=workload,
            config=trial.config,
            hardware=hardware,
            toolchain=self.run.toolchain,
            program_digest=self.run.program_digest,
            protocol=trial.protocol,
            threads=1 if is_one_thread else workload.threads or hardware.cores,
            status=MeasureStatus.WORKER_LOST,
            detail=f"no answer within {lease.lasts_s:g} s",
            measured_at=datetime.now(UTC),
        )

    def _finish(self, ended_by: str) -> bool:
        """Close the run with what it has; False: it was extended meanwhile (``apply`` sees it)."""
        self._save_time()
        trials = self._store.trials.of_run(self.run.id)
        if not any(t.measurement and t.measurement.status is MeasureStatus.OK for t in trials):
            return self._close("FAILED", error=_why_nothing_ran(trials))
        document = result_document(self._session.result(), self.run, self._active_s)
        return self._close("SUCCEEDED", result=document | {"ended_by": ended_by})

    def _close(
        self, state: str, *, result: Mapping[str, Any] | None = None, error: str | None = None
    ) -> bool:
        as_of = None if state == "CANCELLED" else self.run.round
        is_closed = self._store.runs.finish(
            self.run.id, self._epoch, state, result=result, error=error, as_of=as_of
        )
        if is_closed:
            log.info("run finished", run=self.run.public_id, state=state, error=error)
        return is_closed

    def _save_time(self) -> None:
        active_s, device_s = self._uncounted
        self._store.runs.add_time(self.run.id, active_s, device_s, self._epoch)
        self._uncounted = [0.0, 0.0]


def _is_confirm(trial: TrialRecord) -> bool:
    return trial.protocol is Protocol.CONFIRM


def _key(item: TrialRecord | NewTrial) -> tuple[str, str, int]:
    number = item.round if item.protocol is Protocol.CONFIRM else 0
    return item.config.key, item.protocol.value, number


def _new_trial(proposal: Proposal, number: int) -> NewTrial:
    return NewTrial(
        config=proposal.config,
        protocol=proposal.protocol,
        purpose=proposal.purpose,
        predicted_s=proposal.predicted_s,
        round=number,
    )


def _proposal(trial: TrialRecord) -> Proposal:
    return Proposal(
        config=trial.config,
        protocol=trial.protocol,
        purpose=trial.purpose,
        predicted_s=trial.predicted_s,
    )


def _incumbents(trials: Sequence[TrialRecord], number: int) -> Sequence[TileConfig]:
    """Return what was best when the run ended before it was extended."""
    before = [t.measurement for t in trials if t.protocol is Protocol.CONFIRM and t.round < number]
    best = fastest([m for m in before if m is not None])
    return () if best is None else (best.config,)


def _why_nothing_ran(trials: Sequence[TrialRecord]) -> str:
    measured = [t.measurement for t in trials if t.measurement is not None]
    counts: dict[str, int] = {}
    for m in measured:
        counts[m.status.value] = counts.get(m.status.value, 0) + 1
    causes = ", ".join(f"{status} x{count}" for status, count in sorted(counts.items()))
    detail = next((m.detail for m in measured if m.detail), "")
    return f"none of {len(measured)} trials ran ({causes or 'no trial was proposed'}): {detail}"
