"""What REST and the command line both do: understand a question, answer it, queue a tuning run."""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from db.errors import IllegalTransition
from db.records import DEFAULT_PRIORITY, DriftRecord, NewRun, RunRecord
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import Toolchain
from recommender.space import SearchSpace
from recommender.workload import Workload, digest_of, kernel_name
from tilecore import kernels
from tilecore.errors import InvalidProblem
from tilecore.kernels.definition import KernelDefinition
from tilecore.portable import parse_sizes
from tilecore.tile_config import KnobValue, TileConfig, digest
from tuner_service.errors import HardwareNotOffered, TooLargeToEmulate, TooManyThreads
from tuner_service.hardware import find_hardware_or_like
from tuner_service.report import result_document, result_of
from tuner_service.sent_programs import SentProgram, look_at
from tuner_service.wiring import detected_host, host_toolchain, program_desk
from workers.devices import cuda_devices

if TYPE_CHECKING:
    from recommender.recommend import Recommendation

EMULATED_FLOP = 1e9  # some 20 s of the emulator
STAND_IN_CONFIDENCE = 0.4  # of what is recommended for another device
DRIFTED_CONFIDENCE = 0.6  # of what was measured for times that changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A workload on a device, with the versions that an answer must match."""

    definition: KernelDefinition | None  # None: a program that came as data
    workload: Workload
    hardware: HardwareProfile
    program_digest: str
    toolchain: Toolchain
    asked_for: str = ""  # a device that nobody knows, whose place ``hardware`` takes
    sent: SentProgram | None = None

    @property
    def is_for_host(self) -> bool:
        """Whether the device is this machine."""
        return self.hardware.key == detected_host().key

    @property
    def work_flop(self) -> float:
        """Operations of the computation (1 FMA = 2 FLOP)."""
        if self.sent is not None:
            return self.sent.table.work_flop
        assert self.definition is not None
        return self.definition.work_flop(dict(self.workload.problem))


def understand(
    store: SqlStore,
    kernel: str,
    problem: Mapping[str, Any],
    *,
    threads: int = 0,
    hardware: str | None = None,
) -> Question:
    """Return the question in canonical form.

    Raises:
        UnknownKernel: no such kernel (TC501).
        InvalidProblem: a field is unknown, missing or out of range (TC502).
        UnknownHardware: nobody knows this device, nor one like it (RC601).
        TooManyThreads: more threads than cores (SV907).
    """
    definition = kernels.get(kernel)
    canonical = definition.parse_problem(problem)
    device, asked_for = find_hardware_or_like(store, hardware)
    if not 0 <= threads <= device.cores:
        raise TooManyThreads(cores=device.cores, hardware=device.name, found=threads)
    return Question(
        definition=definition,
        workload=Workload.of(kernel, canonical, threads),
        hardware=device,
        program_digest=definition.program_digest(canonical),
        toolchain=host_toolchain(),
        asked_for=asked_for,
    )


def understand_sent(
    store: SqlStore,
    digest: str,
    problem: Mapping[str, Any],
    *,
    threads: int = 0,
    hardware: str | None = None,
    fixed: Mapping[str, KnobValue] | None = None,
) -> Question:
    """Return the question about a stored program in canonical form.

    Raises:
        UnknownProgram: no program has this digest (DB827).
        InvalidProblem: a size is unknown, missing or out of range (TC502).
        InvalidConfig: a fixed knob is none of the program's (TC303).
        EmptySpace: no config can run on the device, or be compiled for it (RC602).
        ProgramTooCostly: to look at it takes too long (WK710).
        UnknownHardware, TooManyThreads: see ``understand``.
    """
    record = store.programs.get(digest)
    canonical = parse_sizes(program_desk().read(record.document).sizes, problem)
    device, asked_for = find_hardware_or_like(store, hardware)
    if not 0 <= threads <= device.cores:
        raise TooManyThreads(cores=device.cores, hardware=device.name, found=threads)
    return Question(
        definition=None,
        workload=Workload.of(kernel_name(digest), canonical, threads),
        hardware=device,
        program_digest=digest,
        toolchain=host_toolchain(),
        asked_for=asked_for,
        sent=look_at(record, canonical, device, fixed or {}, threads),
    )


def near_workload(kernel: str | None, text: str) -> Workload:
    """Return the workload that ``near`` names: ``m=1000,n=1024,k=512``.

    Raises:
        InvalidProblem: no kernel is named, or a field is unknown, missing or wrong (TC502).
        UnknownKernel: no such kernel (TC501).
    """
    if kernel is None:
        raise InvalidProblem(field="near", expected="a kernel beside it", found="none")
    given = assigned("near", text.split(","))
    if digest_of(kernel) is not None:
        return Workload.of(kernel, given)
    definition = kernels.get(kernel)
    return Workload.of(definition.name, definition.parse_problem(given))


def assigned(field: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``FIELD=VALUE`` texts.

    Raises:
        InvalidProblem: one without a value (TC502).
    """
    found: dict[str, Any] = {}
    flags = {"true": True, "false": False}
    for assignment in texts:
        name, separator, text = (part.strip() for part in assignment.partition("="))
        if not separator:
            raise InvalidProblem(field=field, expected="FIELD=VALUE", found=repr(assignment))
        is_number = re.fullmatch(r"-?[0-9]{1,18}", text) is not None
        found[name] = int(text) if is_number else flags.get(text.lower(), text)
    return found


def answer(store: SqlStore, question: Question, *, top_k: int) -> Sequence[Recommendation]:
    """Return ranked configs: measured, nearest, predicted or analytic.

    Those for a device that stands in for an unknown one say so, with less confidence.
    """
    return ranked_with_evidence(store, question, top_k=top_k)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured for exactly a question, and what speaks against it.

    Attributes:
        best: may be of another program version, toolchain or driver (``doubts``), and need not be
            among the ranked configs of an answer; None: nothing was measured.
        drift: its times changed, and nobody has tuned since.
    """

    best: Recommendation | None
    drift: DriftRecord | None = None


def ranked_with_evidence(
    store: SqlStore, question: Question, *, top_k: int
) -> tuple[Sequence[Recommendation], Evidence]:
    """Return ranked configs, and what was measured for exactly this question."""
    found = _ranked(store, question, top_k)
    exact = (r for r in found if r.source in ("measured", "nearest") and not r.distance)
    best = next(exact, None)
    found = found[:top_k]
    if not question.asked_for:
        return _doubt_drifted(store, question, found, best)
    why = f"nobody knows {question.asked_for}; for {question.hardware.name}, the most like it: "
    return [
        replace(r, confidence=r.confidence * STAND_IN_CONFIDENCE, rationale=why + r.rationale)
        for r in found
    ], Evidence(best=None)


def _doubt_drifted(
    store: SqlStore,
    question: Question,
    found: list[Recommendation],
    best: Recommendation | None,
) -> tuple[Sequence[Recommendation], Evidence]:
    """Let measured times answer with less confidence where they drifted and nobody tuned since."""
    if best is None or best.source != "measured":
        return found, Evidence(best=best)
    drift = store.drifts.open(
        question.workload, question.hardware.key, question.program_digest, question.toolchain.key
    )
    if drift is None:
        return found, Evidence(best=best)
    doubted = replace(
        best,
        confidence=best.confidence * DRIFTED_CONFIDENCE,
        rationale=f"{best.rationale}; {drift.explanation}",
        doubts=(*best.doubts, drift.explanation),
    )
    ranked = [doubted if r is best else r for r in found]
    return ranked, Evidence(best=doubted, drift=drift)


def _ranked(store: SqlStore, question: Question, top_k: int) -> list[Recommendation]:
    # They load XGBoost, which queueing a run needs not.
    from recommender.program_answers import recommend_program
    from recommender.recommend import MAX_NEIGHBOURS, recommend

    workload, hardware, sent = question.workload, question.hardware, question.sent
    program, toolchain = question.program_digest, question.toolchain.key
    count = top_k + 2 * MAX_NEIGHBOURS  # what is stale comes behind close neighbours
    if sent is not None:
        return recommend_program(
            workload, sent.table, hardware, store, top_k=count, fixed=sent.fixed,
            program_digest=program, toolchain_key=toolchain,
        )  # fmt: skip
    assert question.definition is not None
    return recommend(
        workload, question.definition, hardware, store, top_k=count,
        program_digest=program, toolchain_key=toolchain,
    )  # fmt: skip


def latest_run(store: SqlStore, question: Question, states: Sequence[str]) -> RunRecord | None:
    """Return the newest run of exactly this question in one of the states."""
    return store.runs.latest(
        question.workload,
        hardware_key=question.hardware.key,
        program_digest=question.program_digest,
        toolchain_key=question.toolchain.key,
        states=states,
    )


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
    """

    max_trials: int
    time_limit_s: float
    ceiling_s: float | None = None
    priority: int = DEFAULT_PRIORITY
    seed: int = 0
    waits: bool = False


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
        HardwareNotOffered: no worker has the device (SV906).
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
) -> tuple[Sequence[RunRecord], bool]:
    """Queue tuning runs that belong together, all or none; return them and whether they are new.

    Raises:
        HardwareNotOffered: no worker has the device of one of them (SV906).
        IdempotencyConflict: the key came before with another request (DB807).
    """
    group = f"g-{uuid.uuid4().hex}"
    runs = [
        replace(_new_run(store, q, effort), group=group, created_by=created_by)
        for q, effort in questions
    ]
    whole = digest([run.body_hash for run in runs])
    first = replace(runs[0], idempotency_key=idempotency_key, body_hash=whole)
    return store.runs.create_all([first, *runs[1:]])


def change_group(
    store: SqlStore, group: str, change: Callable[[str], RunRecord]
) -> Sequence[RunRecord]:
    """Pause, resume or cancel the runs of a group that can be; return all of them.

    Raises:
        UnknownRun: there is no such group (DB809).
    """
    for run in store.runs.of_group(group):
        with suppress(IllegalTransition):  # a finished one is as it should be
            change(run.public_id)
    return store.runs.of_group(group)


def check_offered(store: SqlStore, question: Question, effort: Effort) -> None:
    """Complain where nobody can measure what is asked for.

    Raises:
        HardwareNotOffered: no worker has the device, and the run is not to wait for one (SV906).
        TooLargeToEmulate: the emulator would take minutes per candidate (SV930).
    """
    check_emulated(question)
    if question.sent is not None and question.hardware.kind != "cpu":
        offered = f"{detected_host().name}, for programs that came as data"
        raise HardwareNotOffered(offered=offered, found=question.hardware.name)
    may_come = effort.waits and question.hardware.kind != "rocm"
    if question.asked_for or not (may_come or is_offered(store, question.hardware)):
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
        body_hash=digest(spec | {"ceiling_s": effort.ceiling_s, "priority": effort.priority}),
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
    return frozenset(device.hardware.key for device in cuda_devices())


def partial_result(store: SqlStore, run: RunRecord) -> Mapping[str, Any]:
    """Return what a run has found so far, in the form of its result."""
    if run.is_finished and run.result is not None:
        return run.result
    trials = [t for t in store.trials.of_run(run.id) if t.measurement is not None]
    if digest_of(run.workload.kernel) is not None:
        default, size = TileConfig.of(run.spec["default"]), int(run.spec["space_size"])
    else:
        definition = kernels.get(run.workload.kernel)
        space = SearchSpace.build(definition, dict(run.workload.problem), run.hardware)
        default, size = definition.default_config(run.hardware.kind), len(space)
    return result_document(result_of(trials, default, size), run, run.active_s)
