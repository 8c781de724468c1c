"""tilecore pack and import: candidates to a machine that nothing can reach, results back."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from db.store import SqlStore
from recommender.campaign import Choice, choose
from recommender.errors import NotEnoughMeasurements
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus
from recommender.workload import Workload, digest_of
from tilecore.tile_config import TileConfig
from tuner_service import jobs, questions, wiring
from tuner_service.cli.workload_file import read_workloads
from tuner_service.errors import InvalidRequest
from tuner_service.hardware import find_hardware
from tuner_service.settings import Settings
from workers.compile_worker import CompileWorker, compile_zygote, compilers_of
from workers.host import own_cores
from workers.outcome import Compiled, Failure
from workers.pack_results import read_results
from workers.packs import PackedCandidate, PackWriter
from workers.rig import toolbox_of

STORED_AT_MOST = 100_000  # measurements of a workload and device that are looked at
Outcomes = Sequence[Compiled | Failure]
Compile = Callable[[Workload, Sequence[TileConfig]], Outcomes]

out = Console()


def pack(
    settings: Settings, folder: Path, kernel: str, problem: Mapping[str, Any], file: Path | None,
    *, target: str, configs: int, seed: int, limit_bytes: int,
) -> None:  # fmt: skip
    """Compile candidates of a workload, or of those of a file, into packs; print what was written.

    Raises:
        InvalidRequest: it is no NVIDIA GPU, or there is not one of problem and file (SV901).
        InvalidWorkloads: the file cannot be used (SV915).
        InvalidPack: a workload is too large for a pack, or a folder cannot be written (WK709).
    """
    store = wiring.open_store(settings)
    hardware = find_hardware(store, target)
    toolchain = wiring.host_toolchain().on(hardware.kind)
    if hardware.kind != "cuda":
        expected = 'an NVIDIA GPU (h200, a100, "emulated h200", ...)'
        raise InvalidRequest(message=f"--target: expected {expected}, found {hardware.name}")
    asked = _questions(store, kernel, problem, file, target)
    writer = PackWriter(folder, hardware, toolchain, limit_bytes)
    chosen = []  # complain of any workload before the first is compiled
    for question in asked:
        jobs.check_emulated(question)
        assert question.definition is not None  # packs are of the library's kernels
        choices = choose(
            question.workload, question.definition, hardware, store, configs,
            program_digest=question.program_digest, toolchain_key=toolchain.key, seed=seed,
        )  # fmt: skip
        chosen.append((question, choices))
    with _compilers(settings, hardware) as compile_all:
        for number, (question, choices) in enumerate(chosen, 1):
            outcomes = compile_all(question.workload, [c.config for c in choices])
            candidates = [_packed(c, o) for c, o in zip(choices, outcomes, strict=True)]
            artifacts = {o.digest: Path(o.path) for o in outcomes if isinstance(o, Compiled)}
            size = writer.add(question.workload, question.program_digest, candidates, artifacts)
            failed = sum(not c.digest for c in candidates)
            out.print(
                f"{number}/{len(asked)} {question.workload}: {len(candidates)} configs, "
                f"{len(artifacts)} kernels, {failed} do not compile, {size / 1024:.0f} KiB",
                highlight=False, soft_wrap=True,
            )  # fmt: skip
    writer.close()
    for place, workloads, size in writer.written:
        out.print(
            f"written: {place} ({workloads} workloads, {size / (1 << 20):.1f} MiB); on the device: "
            f"python {place.name}/run.py --results results.jsonl; then `tilecore import`",
            highlight=False, soft_wrap=True,
        )  # fmt: skip


def _questions(
    store: SqlStore, kernel: str, problem: Mapping[str, Any], file: Path | None, target: str
) -> Sequence[questions.Question]:
    if (file is None) == (not problem):
        found = "neither" if file is None else "both"
        raise InvalidRequest(message=f"expected --file or a problem (--set), found {found}")
    if file is None:
        return [questions.understand(store, kernel, problem, hardware=target)]
    entries = read_workloads(
        file, lambda e: questions.understand(store, e.kernel, e.problem, hardware=target)
    )
    return list({q.workload.key: q for q in entries}.values())


def _packed(choice: Choice, outcome: Compiled | Failure) -> PackedCandidate:
    """Return a candidate as a pack holds it: its code by digest, or why there is none."""
    return PackedCandidate(
        config=choice.config,
        purpose=choice.purpose,
        predicted_s=choice.predicted_s,
        compile_s=outcome.compile_s,
        digest=outcome.digest if isinstance(outcome, Compiled) else "",
        metrics=outcome.metrics if isinstance(outcome, Compiled) else {},
        status="OK" if isinstance(outcome, Compiled) else outcome.status.value,
        detail="" if isinstance(outcome, Compiled) else outcome.detail,
    )


@contextmanager
def _compilers(settings: Settings, hardware: HardwareProfile) -> Iterator[Compile]:
    """Give a function that compiles configs of a workload in child processes, several at a time."""
    toolbox = toolbox_of(hardware)
    zygote = compile_zygote(toolbox)
    workers = [
        CompileWorker(zygote, toolbox, settings.artifact_dir, settings.compile_timeout_s)
        for _ in range(settings.compile_workers or compilers_of(own_cores(), 0, hardware.kind))
    ]
    free: queue.SimpleQueue[CompileWorker] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)
    settings.artifact_dir.mkdir(parents=True, exist_ok=True)

    def compile_all(workload: Workload, configs: Sequence[TileConfig]) -> Outcomes:
        def one(config: TileConfig) -> Compiled | Failure:
            worker = free.get()
            try:
                return worker.compile(workload, config)
            finally:
                free.put(worker)

        return list(threads.map(one, configs))

    try:
        with ThreadPoolExecutor(len(workers)) as threads:
            yield compile_all
    finally:
        for worker in workers:
            worker.close()
        zygote.close()


# --- the way back --------------------------------------------------------------------------------


def import_results(settings: Settings, paths: Sequence[Path]) -> None:
    """Store the results of files, all or none, and print what they were; a second time nothing.

    Cost models of their kernels and devices are trained on what is known now.

    Raises:
        InvalidPack: a file cannot be read, or a line of it is none of ours (WK709).
    """
    store = wiring.open_store(settings)
    read = {path: list(read_results(path)) for path in paths}
    for path, of_path in read.items():
        if not of_path:
            out.print(f"{path}: no result in it", highlight=False, soft_wrap=True)
    found = [m for of_path in read.values() for m in of_path]
    usable = [m for m in found if m.status is not MeasureStatus.WORKER_LOST]
    new = store.add_unknown(lambda: list(_unknown(store, usable)))
    counts = Counter((m.hardware.name, m.status.value) for m in new)
    for (device, status), count in sorted(counts.items()):
        out.print(f"{device}: {count} {status}", highlight=False, soft_wrap=True)
    known, lost = len(usable) - len(new), len(found) - len(usable)
    out.print(
        f"{len(new)} measurements stored, {known} known already, {lost} of lost workers left out",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    _learn(store, new)


def _learn(store: SqlStore, new: Sequence[Measurement]) -> None:
    """Train the cost models that new results are about, and print what became of them."""
    from tuner_service.coordinator.learning import train_for

    fine = [m for m in new if m.status is MeasureStatus.OK and not digest_of(m.workload.kernel)]
    for (kernel, family), hardware in {
        (m.workload.kernel, m.hardware.family): m.hardware for m in fine
    }.items():
        with suppress(NotEnoughMeasurements):
            outcome = train_for(store, kernel, hardware)
            about = f"cost model of {kernel} for {family}: {outcome.reason}"
            out.print(about, highlight=False, soft_wrap=True)


def _unknown(store: SqlStore, found: Sequence[Measurement]) -> Iterator[Measurement]:
    """Yield what the database does not have, each once."""
    seen: set[tuple[str, ...]] = set()
    asked: set[tuple[str, str]] = set()
    for m in found:
        place = (m.workload.key, m.hardware.key)
        if place not in asked:
            asked.add(place)
            stored = store.measurements(
                workload_key=m.workload.key, hardware_key=m.hardware.key, limit=STORED_AT_MOST
            )
            seen |= {_identity(other) for other in stored}
        if _identity(m) not in seen:
            seen.add(_identity(m))
            yield m


def _identity(m: Measurement) -> tuple[str, ...]:
    """Return what two records of one measurement have in common."""
    at = f"{m.measured_at.timestamp():.6f}"
    return (m.workload.key, m.hardware.key, m.config.key, m.protocol.value, at)
