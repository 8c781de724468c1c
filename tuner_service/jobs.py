"""Tuning runs as REST and the command line queue them."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from db.records import DEFAULT_PRIORITY, OPEN_STATES, NewRun, RunRecord
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import Toolchain
from recommender.nearest import fastest
from recommender.workload import digest_of
from tilecore import kernels
from tilecore.errors import InvalidProblem
from tilecore.tile_config import TileConfig, digest
from tuner_service.errors import HardwareNotOffered, TooLargeToEmulate
from tuner_service.questions import Question
from tuner_service.room import check_room
from tuner_service.wiring import detected_host
from workers.devices import gpu_devices

EMULATED_FLOP = 1e9  # some 20 s of the emulator


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a tuning run may take.

    Attributes:
        max_trials: SCREEN trials at most.
        time_limit_s: no new SCREEN trial after so many seconds of its share of the device.
        ceiling_s: it ends with what it has after so many seconds of work; None: never.
        priority: its weight where runs share a device.
        seed: of the search.
        waits: whether a run may be queued for a device that nobody has offered yet.
        on_this_host: whether this machine alone measures (``Settings.measures_here``).
    """

    max_trials: int
    time_limit_s: float
    ceiling_s: float | None = None
    priority: int = DEFAULT_PRIORITY
    seed: int = 0
    waits: bool = False
    on_this_host: bool = False


def known_run(
    store: SqlStore, question: Question, effort: Effort, *, force: bool = False
) -> RunRecord | None:
    """Return a run that answers the question (none, with ``force``), or one under way.

    One under way may be of other code: it becomes one of the coordinator's (``current``).
    """
    about = partial(store.runs.latest, question.workload, hardware_key=question.hardware.key)
    if not force:
        done = about(
            states=("SUCCEEDED",), program_digest=question.program_digest,
            toolchain_key=question.toolchain.key,
        )  # fmt: skip
        if done is not None and done.spec["max_trials"] >= effort.max_trials:
            return done
    return about(states=OPEN_STATES)


def submit(
    store: SqlStore,
    question: Question,
    effort: Effort,
    *,
    idempotency_key: str | None = None,
    created_by: str | None = None,
    cause: str | None = None,
    incumbents: Sequence[TileConfig] = (),
) -> tuple[RunRecord, bool]:
    """Queue a tuning run; return it and whether it is new.

    Args:
        store: where to queue it.
        question: what to tune.
        effort: what it may take.
        idempotency_key: of the request; it gives the same run again.
        created_by: the name of the API key that asks for it.
        cause: why the system queues it by itself (one of ``db.records.CAUSES``).
        incumbents: configs that were best before; they are measured first, and confirmed.

    Raises:
        TileError: what ``check_offered`` raises.
        IdempotencyConflict: the key came before with another request (DB807).
    """
    new = _new_run(store, question, effort, incumbents)
    new = replace(new, idempotency_key=idempotency_key, created_by=created_by, cause=cause)
    return store.runs.create(new)


def submit_group(
    store: SqlStore,
    questions: Sequence[tuple[Question, Effort]],
    *,
    idempotency_key: str | None = None,
    created_by: str | None = None,
    incumbents: Mapping[str, Sequence[TileConfig]] | None = None,
) -> tuple[Sequence[RunRecord], bool]:
    """Queue tuning runs that belong together, all or none; return them and whether they are new.

    ``incumbents``: by the workload's key, configs that are measured first, and confirmed.

    Raises:
        TileError: what ``check_offered`` raises of one of them.
        IdempotencyConflict: the key came before with another request (DB807).
    """
    group = f"g-{uuid.uuid4().hex}"
    runs = [
        replace(
            _new_run(store, q, effort, (incumbents or {}).get(q.workload.key, ())),
            group=group,
            created_by=created_by,
        )
        for q, effort in questions
    ]
    whole = digest([run.body_hash for run in runs])
    first = replace(runs[0], idempotency_key=idempotency_key, body_hash=whole)
    return store.runs.create_all([first, *runs[1:]])


def is_current(run: RunRecord, toolchain: Toolchain) -> bool:
    """Return whether a run is of the program and the toolchain that there are now."""
    is_same = run.toolchain.key == toolchain.on(run.hardware.kind).key
    return is_same and run.program_digest == _program_digest(run)


def current(store: SqlStore, run: RunRecord, toolchain: Toolchain, epoch: int) -> RunRecord:
    """Return an open run as one of the code that there is now: one of other code becomes that.

    What both measure is not compared: one that has begun begins again, with what was fastest.
    """
    if is_current(run, toolchain):
        return run
    best = fastest([t.measurement for t in store.trials.of_run(run.id) if t.measurement])
    return store.runs.renew(
        run, epoch, program_digest=_program_digest(run),
        toolchain=toolchain.on(run.hardware.kind),
        incumbents=[] if best is None else [best.config],
    )  # fmt: skip


def _program_digest(run: RunRecord) -> str:
    """Return the version of a run's program that there is now; what was sent is what it was."""
    kernel, problem = run.workload.kernel, dict(run.workload.problem)
    sent = digest_of(kernel)
    return sent or kernels.get(kernel).on(run.hardware.kind).program_digest(problem)


def check_offered(store: SqlStore, question: Question, effort: Effort) -> None:
    """Complain where nobody can measure what is asked for.

    Raises:
        HardwareNotOffered: no worker has the device, and the run is not to wait for one (SV906).
        TooLargeToEmulate: the emulator would take minutes per candidate (SV930).
        TooLargeToMeasure: no candidate's process has room for the tensors (SV932).
    """
    check_emulated(question)
    check_room(store, question, on_this_host=effort.on_this_host)
    if question.asked_for or not (effort.waits or is_offered(store, question.hardware)):
        found = question.asked_for or question.hardware.name
        raise HardwareNotOffered(offered=detected_host().name, found=found)


def check_emulated(question: Question) -> None:
    """Complain of a problem that is too large for the emulator, if that is to run it (SV930)."""
    work_flop = question.work_flop
    if question.hardware.is_emulated and work_flop > EMULATED_FLOP:
        raise TooLargeToEmulate(
            limit=EMULATED_FLOP, hardware=question.hardware.name, found=work_flop
        )


def _new_run(
    store: SqlStore, question: Question, effort: Effort, incumbents: Sequence[TileConfig] = ()
) -> NewRun:
    check_offered(store, question, effort)
    sent = question.sent
    if sent is not None and sent.unfit:
        raise InvalidProblem(
            field=sent.unfit[0], expected="tensors and integers as parameters of what is measured",
            found="an address or a fraction",
        )  # fmt: skip
    spec: dict[str, Any] = {
        "kernel": question.workload.kernel,
        "problem": dict(question.workload.problem),
        "threads": question.workload.threads,
        "hardware": question.hardware.key,
        "max_trials": effort.max_trials,
        "time_limit_s": effort.time_limit_s,
        "seed": effort.seed,
    }
    if incumbents:
        spec["incumbents"] = [dict(config.items_) for config in incumbents]
    if sent is not None:
        spec |= {
            "program": question.program_digest,
            "fixed": dict(sent.fixed),
            "default": dict(sent.table.default),
            "work_flop": sent.table.work_flop,
            "space_size": len(sent.table),
        }
    return NewRun(
        workload=question.workload,
        hardware=question.hardware,
        program_digest=question.program_digest,
        toolchain=question.toolchain,
        spec=spec,
        body_hash=digest(
            spec
            | {"ceiling_s": effort.ceiling_s, "priority": effort.priority}
            | ({"waits": True} if effort.waits else {})  # as it was before there was such a field
        ),
        seed=effort.seed,
        planned_trials=effort.max_trials,
        priority=effort.priority,
        ceiling_s=effort.ceiling_s,
    )


def is_offered(store: SqlStore, hardware: HardwareProfile) -> bool:
    """Whether this machine or a node that was once in the cluster has the device.

    The emulator stands in for GPUs on any machine.
    """
    is_here = hardware.key == detected_host().key or hardware.is_emulated
    return is_here or hardware.key in _local_gpus() or store.nodes.has_offered(hardware.key)


@functools.cache
def _local_gpus() -> frozenset[str]:
    """Return the keys of this machine's GPUs."""
    return frozenset(device.hardware.key for device in gpu_devices())
