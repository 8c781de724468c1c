"""Questions: what REST and the command line ask, in canonical form, and their answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from db.records import DriftRecord
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import Toolchain
from recommender.open_shapes import program_digest
from recommender.workload import Workload, digest_of, kernel_name
from tilecore import kernels
from tilecore.errors import InvalidProblem
from tilecore.kernels.definition import KernelDefinition
from tilecore.lazy import cached_property
from tilecore.portable import parse_sizes
from tilecore.tile_config import KnobValue
from tuner_service.errors import TooManyThreads
from tuner_service.hardware import find_hardware_or_like
from tuner_service.sent_programs import SentProgram, look_at
from tuner_service.wiring import detected_host, host_toolchain, program_desk

if TYPE_CHECKING:
    from recommender.recommendation import Recommendation

STAND_IN_CONFIDENCE = 0.4  # of what is recommended for another device
DRIFTED_CONFIDENCE = 0.6  # of what was measured for times that changed


@dataclass(frozen=True, kw_only=True)
class Question:
    """A workload on a device, with the versions that an answer must match."""

    definition: KernelDefinition | None  # None: a program that came as data
    workload: Workload
    hardware: HardwareProfile
    known_digest: str = ""  # of the program; "": found out when asked for
    toolchain: Toolchain
    asked_for: str = ""  # a device that nobody knows, whose place ``hardware`` takes
    sent: SentProgram | None = None

    @cached_property
    def program_digest(self) -> str:
        """The program's version; of a kernel of the library it takes a trace."""
        if self.known_digest or self.definition is None:
            return self.known_digest
        return program_digest(self.definition, dict(self.workload.problem))

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
    canonical = kernels.get(kernel).parse_problem(problem)
    device, asked_for = find_hardware_or_like(store, hardware)
    definition = kernels.get(kernel).on(device.kind)
    if not 0 <= threads <= device.cores:
        raise TooManyThreads(cores=device.cores, hardware=device.name, found=threads)
    return Question(
        definition=definition,
        workload=Workload.of(kernel, canonical, threads),
        hardware=device,
        toolchain=host_toolchain().on(device.kind),
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
        known_digest=digest,
        toolchain=host_toolchain().on(device.kind),
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
        InvalidProblem: one without a value, or a field that comes twice (TC502).
    """
    found: dict[str, Any] = {}
    flags = {"true": True, "false": False}
    for assignment in texts:
        name, separator, text = (part.strip() for part in assignment.partition("="))
        if not separator or not name:
            raise InvalidProblem(field=field, expected="FIELD=VALUE", found=repr(assignment))
        if name in found:
            raise InvalidProblem(field=name, expected="one value", found="several")
        is_number = re.fullmatch(r"-?[0-9]{1,18}", text) is not None
        found[name] = int(text) if is_number else flags.get(text.lower(), text)
    return found


def together(
    options: Mapping[str, Any], field: str, assignments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what options give, where they are not None, and what ``FIELD=VALUE`` texts do.

    Raises:
        InvalidProblem: a field comes twice (TC502).
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() & assignments.keys():
        both = f"--{name} {given[name]} and {field} {name}={assignments[name]}"
        raise InvalidProblem(field=name, expected="one value", found=both)
    return given | dict(assignments)


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
    if best is None or best.source != "measured" or not store.has_drifted():
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
    from recommender.recommend import MAX_NEIGHBOURS, recommend

    workload, hardware, sent = question.workload, question.hardware, question.sent
    toolchain = question.toolchain.key
    spare = 2 * MAX_NEIGHBOURS  # what is stale comes behind close neighbours
    if sent is not None:
        from recommender.program_answers import recommend_program

        return recommend_program(
            workload, sent.table, hardware, store, top_k=top_k + spare, fixed=sent.fixed,
            program_digest=question.program_digest, toolchain_key=toolchain,
        )  # fmt: skip
    assert question.definition is not None
    return recommend(
        workload, question.definition, hardware, store, top_k=top_k, spare=spare,
        program_digest=lambda: question.program_digest, toolchain_key=toolchain,
    )  # fmt: skip
