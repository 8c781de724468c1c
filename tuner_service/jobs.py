"""What REST and the command line both do: understand a question, answer it, queue a tuning run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from db.records import NewRun, RunRecord
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import Toolchain
from recommender.workload import Workload
from tilecore import kernels
from tilecore.errors import InvalidProblem
from tilecore.kernels.definition import KernelDefinition
from tilecore.tile_config import digest
from tuner_service.errors import HardwareNotOffered, TooManyThreads
from tuner_service.hardware import find_hardware_or_like
from tuner_service.wiring import detected_host, host_toolchain

if TYPE_CHECKING:
    from recommender.recommend import Recommendation

OPEN_STATES = ("QUEUED", "RUNNING")
STAND_IN_CONFIDENCE = 0.4  # of what is recommended for another device


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A workload on a device, with the versions that an answer must match."""

    definition: KernelDefinition
    workload: Workload
    hardware: HardwareProfile
    program_digest: str
    toolchain: Toolchain
    asked_for: str = ""  # a device that nobody knows, whose place ``hardware`` takes

    @property
    def is_for_host(self) -> bool:
        """Whether the device is this machine."""
        return self.hardware.key == detected_host().key


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


def near_workload(kernel: str | None, text: str) -> Workload:
    """Return the workload that ``near`` names: ``m=1000,n=1024,k=512``.

    Raises:
        InvalidProblem: no kernel is named, or a field is unknown, missing or wrong (TC502).
        UnknownKernel: no such kernel (TC501).
    """
    if kernel is None:
        raise InvalidProblem(field="near", expected="a kernel beside it", found="none")
    definition = kernels.get(kernel)
    problem = definition.parse_problem(assigned("near", text.split(",")))
    return Workload.of(definition.name, problem)


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
    from recommender.recommend import recommend  # loads XGBoost, which queueing a run needs not

    found = recommend(
        question.workload,
        question.definition,
        question.hardware,
        store,
        top_k=top_k,
        program_digest=question.program_digest,
        toolchain_key=question.toolchain.key,
    )
    if not question.asked_for:
        return found
    why = f"nobody knows {question.asked_for}; for {question.hardware.name}, the most like it: "
    return [
        replace(r, confidence=r.confidence * STAND_IN_CONFIDENCE, rationale=why + r.rationale)
        for r in found
    ]


def latest_run(store: SqlStore, question: Question, states: Sequence[str]) -> RunRecord | None:
    """Return the newest run of exactly this question in one of the states."""
    return store.runs.latest(
        question.workload,
        hardware_key=question.hardware.key,
        program_digest=question.program_digest,
        toolchain_key=question.toolchain.key,
        states=states,
    )


def submit(
    store: SqlStore,
    question: Question,
    *,
    max_trials: int,
    time_limit_s: float,
    seed: int = 0,
    idempotency_key: str | None = None,
) -> tuple[RunRecord, bool]:
    """Queue a tuning run; return it and whether it is new.

    Raises:
        HardwareNotOffered: no worker here has the device (SV906).
        IdempotencyConflict: the key came before with another request (DB807).
    """
    if question.asked_for or not question.is_for_host:
        raise HardwareNotOffered(offered=detected_host().name, found=question.hardware.name)
    spec = {
        "kernel": question.workload.kernel,
        "problem": dict(question.workload.problem),
        "threads": question.workload.threads,
        "hardware": question.hardware.key,
        "max_trials": max_trials,
        "time_limit_s": time_limit_s,
        "seed": seed,
    }
    new = NewRun(
        workload=question.workload,
        hardware=question.hardware,
        program_digest=question.program_digest,
        toolchain=question.toolchain,
        spec=spec,
        body_hash=digest(spec),
        seed=seed,
        planned_trials=max_trials,
        idempotency_key=idempotency_key,
    )
    return store.runs.create(new)
