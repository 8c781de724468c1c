"""The tuner behind ``@tilelang.autotune``: recommender, workers and database for any program.

Registered as the entry point ``tilecore.tuner``. What was measured for exactly these programs, on
these inputs, machine and toolchain, answers; otherwise worker processes of this machine compile,
check and time the programs, the author's default and the recommender's favourite first, and every
outcome goes into the database. With TILECORE_SERVICE_URL a service is asked first
(``tuner_service.service_tuning``).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from db.errors import DatabaseAway
from db.store import SqlStore
from recommender.analytic import Estimate
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.ports import MeasureRequest
from recommender.programs import by_promise, expect, version
from recommender.workload import Workload
from tilecore.errors import TileError
from tilecore.target import parse_target
from tilecore.tile_config import TileConfig
from tilecore.tuning import TuningAnswer, TuningTask
from tuner_service.advice import device_of
from tuner_service.errors import InvalidRequest
from tuner_service.nothing_kept import NothingKept
from tuner_service.service_tuning import tune_there
from tuner_service.settings import Settings, load_settings
from tuner_service.wiring import (
    Devices,
    compile_target,
    host_profile,
    host_toolchain,
    open_store,
)
from workers.device_programs import DeviceProgramToolbox, EmulatedProgramToolbox
from workers.devices import gpu_devices
from workers.pool import LocalPool, gather
from workers.program_toolbox import ProgramToolbox
from workers.spares import Spares
from workers.toolbox import Toolbox

LOG = logging.getLogger(__name__)
CONFIRM_TOP = 8
CONFIRM_LIMIT_S = 600.0
SPARES = Spares(keep_s=60.0)  # between the tunings of a program
ATTEMPTS = 3  # of candidates whose worker was lost
NO_TIME = "not measured: the time limit of a tuning (TILECORE_TIME_LIMIT_S) was reached"


def tune(task: TuningTask) -> TuningAnswer:
    """Return the times of a task's candidates: stored ones, or measured now and then stored.

    Where the database is away, or has no room, they are measured and not kept, with a warning.
    """
    settings = load_settings()
    with ExitStack() as stack:
        store, hardware = None, None
        try:
            store = open_store(settings)
            stack.enter_context(closing(store.database))
            hardware = _device(task, store)
        except DatabaseAway as error:
            LOG.warning(
                "tuning %s without a database: %s [%s]", task.name, error.message, error.code
            )
            store, hardware = None, _device(task, NothingKept())
        tuning = _Tuning(task, settings, hardware)
        answer = None if settings.service_url is None else _answer_of_service(tuning, store)
        return _tuned_here(tuning, store) if answer is None else answer


def _tuned_here(tuning: _Tuning, store: SqlStore | None) -> TuningAnswer:
    """Return what is stored on this machine, or is measured now."""
    known = tuning.stored(store) if store is not None else []
    if tuning.is_complete(known):
        return tuning.answer(known, is_stored=True)
    if not tuning.is_here:
        return tuning.expected()
    found = tuning.measure(known)
    if store is not None:
        _keep(store, [m for m in found if m.status is not MeasureStatus.WORKER_LOST])
    return tuning.answer([*known, *found], is_stored=False)


def _keep(store: SqlStore, found: Sequence[Measurement]) -> None:
    try:
        store.add_all(found)
    except DatabaseAway as error:  # what was measured holds for this process all the same
        LOG.warning("what was measured is not kept: %s [%s]", error.message, error.code)


def _answer_of_service(tuning: _Tuning, store: SqlStore | None) -> TuningAnswer | None:
    """Return what the service of the settings measured, None (and a warning) where it has nothing.

    A service checks programs against the interpreter. Where the author gave a reference, the winner
    is compared with that here, once.
    """
    task = tuning.task
    try:
        if tuning.hardware.kind == "cpu" and own_target(task.target, tuning.hardware):
            reason = f"it compiles for its devices, not for {task.target}"
            raise InvalidRequest(message=reason)
        answer = tune_there(
            task, [tuning.expectation(i) for i in range(len(task.candidates))], tuning.hardware,
            tuning.settings,
        )  # fmt: skip
    except TileError as error:
        LOG.warning(
            "the service at %s does not tune %s: %s [%s]; it is tuned here",
            tuning.settings.service_url, task.name, error.message, error.code,
        )  # fmt: skip
        return None
    if not answer.times_s:
        LOG.warning("none of the programs of %s works at the service; tuned here", task.name)
        return None
    winner = task.candidates[next(iter(answer.times_s))]
    if winner.expected is None or not tuning.is_here:
        return answer
    checked = _tuned_here(replace(tuning, task=replace(task, candidates=[winner])), store)
    if checked.times_s:
        return answer
    LOG.warning(
        "config %s, the service's best for %s, does not compute what its reference does (%s); "
        "tuned here", winner.config, task.name, checked.failures[0],
    )  # fmt: skip
    return None


def own_target(target: str, hardware: HardwareProfile) -> str:
    """Return "" for what code is generated for on a device anyway, else the target's name."""
    is_own = target in ("llvm", parse_target(compile_target(hardware)).name)
    return "" if is_own else target


def _device(task: TuningTask, store: Devices) -> HardwareProfile:
    """Return the device that a task is for.

    Raises:
        UnknownHardware: nobody knows it, nor a device like it (RC601).
    """
    if not task.device:
        return host_profile(store)
    found, asked_for = device_of(store, task.device)
    if asked_for:
        LOG.warning("nobody knows %s: tuned for %s, the device most like it", asked_for, found.name)
    return found


@dataclass(frozen=True)
class _Tuning:
    """One task on this machine."""

    task: TuningTask
    settings: Settings
    hardware: HardwareProfile

    @cached_property
    def workload(self) -> Workload:
        """What the log files the measurements under."""
        return Workload.of(self.task.name, self.task.problem)

    @cached_property
    def versions(self) -> Mapping[TileConfig, str]:
        """The version of each candidate."""
        own = own_target(self.task.target, self.hardware)
        knobs = self.task.knobs
        return {
            c.config: version(c.program, own, {**knobs, **c.lowering}) for c in self.task.candidates
        }

    # --- memory -------------------------------------------------------------------------------

    def stored(self, store: SqlStore) -> list[Measurement]:
        """Return what is stored of exactly these candidates, the newest last."""
        toolchain = host_toolchain().on(self.hardware.kind).key
        found = store.measurements(workload_key=self.workload.key, hardware_key=self.hardware.key)
        return [
            m
            for m in reversed(found)
            if m.program_digest == self.versions.get(m.config) and m.toolchain.key == toolchain
        ]

    def is_complete(self, known: Sequence[Measurement]) -> bool:
        """Return whether every candidate was measured, the fastest of them against each other.

        What was confirmed for more candidates than these may hold few of these.
        """
        measured = {m.config for m in known}
        good = [m for m in known if m.status is MeasureStatus.OK]
        codes = {m.config: m.times_s for m in good if m.protocol is Protocol.SCREEN}
        rivals = {m.config for m in known if m.protocol is Protocol.CONFIRM}
        confirmed = {times for config, times in codes.items() if config in rivals}
        enough = min(CONFIRM_TOP, len(set(codes.values())))
        is_whole = all(c.config in measured for c in self.task.candidates)
        return is_whole and 0 < enough <= len(confirmed)

    # --- measuring ----------------------------------------------------------------------------

    def measure(self, known: Sequence[Measurement]) -> list[Measurement]:
        """Return new outcomes: those not ``known`` are screened, the finalists of all confirmed."""
        order = by_promise([self._expected(i) for i in range(len(self.task.candidates))])
        first = [self.task.candidates[i].config for i in order]
        old = [m for m in known if m.protocol is Protocol.SCREEN]
        configs = [c for c in first if all(m.config != c for m in old)]
        LOG.info("tuning %s: %d configs", self.workload, len(configs))
        with tempfile.TemporaryDirectory(prefix="tilecore-") as folder:
            toolbox = self._toolbox(Path(folder))
            with self._pool(toolbox) as pool:
                limit_s = self.settings.time_limit_s
                screened = self._run(pool, configs, Protocol.SCREEN, limit_s)
                finalists = self._finalists(first[:2], [*old, *screened])
                if len(screened) == len(configs):
                    return [*screened, *self._confirm(pool, finalists)]
            with self._pool(toolbox) as pool:  # the other one still has candidates in its queue
                return [*screened, *self._confirm(pool, finalists)]

    @property
    def is_here(self) -> bool:
        """Whether this machine can measure: the emulator stands in for GPUs anywhere."""
        return not self._is_device or self._devices > 0

    @property
    def _is_device(self) -> bool:
        return self.hardware.kind != "cpu" and not self.hardware.is_emulated

    @property
    def _devices(self) -> int:
        """How many GPUs of this kind this machine has."""
        return sum(d.hardware.key == self.hardware.key for d in gpu_devices())

    def _toolbox(self, folder: Path) -> Toolbox:
        """Return what compiles and runs the candidates, which are put into ``folder``."""
        programs = ProgramToolbox(
            folder, self.versions, self.task.target, tuple(self.task.knobs.items()),
            self.task.tolerance,
        )  # fmt: skip
        programs.write(self.task.candidates)
        if self.hardware.kind == "cpu":
            return programs
        chosen = EmulatedProgramToolbox if self.hardware.is_emulated else DeviceProgramToolbox
        return chosen(self.hardware, programs=programs)

    def _pool(self, toolbox: Toolbox) -> LocalPool:
        return LocalPool(
            self.hardware,
            devices=self._devices if self._is_device else 1,
            artifact_dir=self.settings.artifact_dir,
            compile_workers=self.settings.compile_workers,
            compile_timeout_s=self.settings.compile_timeout_s,
            run_timeout_s=self.task.run_timeout_s or self.settings.run_timeout_s,
            toolbox=toolbox,
            spares=SPARES,
        )

    def _confirm(self, pool: LocalPool, finalists: Sequence[TileConfig]) -> list[Measurement]:
        return self._run(pool, finalists, Protocol.CONFIRM, CONFIRM_LIMIT_S)

    @cached_property
    def _expectations(self) -> dict[tuple[int, int], Estimate | None]:
        return {}

    def expectation(self, position: int) -> Estimate | None:
        """Return the time expected of a candidate with all threads."""
        return self._expected(position)

    def _expected(self, position: int, threads: int = 0) -> Estimate | None:
        """Return the time expected of a candidate; its graph is built once per thread count."""
        known, key = self._expectations, (position, threads)
        if key not in known:
            candidate = self.task.candidates[position]
            lowering = {**self.task.knobs, **candidate.lowering}
            known[key] = expect(candidate.program, self.hardware, threads, lowering)
        return known[key]

    def _run(
        self,
        pool: LocalPool,
        configs: Sequence[TileConfig],
        protocol: Protocol,
        limit_s: float,
    ) -> list[Measurement]:
        """Return what worker processes found; candidates of lost workers are tried again."""
        done: dict[str, Measurement] = {}
        wanted = list(configs)
        for _attempt in range(ATTEMPTS):
            requests = [
                MeasureRequest(token=c.key, workload=self.workload, config=c, protocol=protocol)
                for c in wanted
            ]
            done |= gather(pool, requests, limit_s)
            wanted = [m.config for m in done.values() if m.status is MeasureStatus.WORKER_LOST]
            if not wanted:
                break
        return list(done.values())

    def _finalists(
        self, first: Sequence[TileConfig], screened: Sequence[Measurement]
    ) -> list[TileConfig]:
        """Return default, recommendation and the fastest, one of those with the same code."""
        good = {m.config: m for m in screened if m.status is MeasureStatus.OK}
        ranked = sorted(good, key=lambda c: self._on_all_threads(good[c]))
        chosen: dict[tuple[float, ...], TileConfig] = {}
        for config in [*(c for c in first if c in good), *ranked]:
            if len(chosen) < CONFIRM_TOP + len(first):
                chosen.setdefault(good[config].times_s, config)
        return list(chosen.values())

    def _on_all_threads(self, screened: Measurement) -> float:
        """Return a one-thread time scaled to all threads, as far as the model can tell how."""
        assert screened.time_s is not None
        position = self._positions[screened.config]
        whole, alone = self._expected(position), self._expected(position, threads=1)
        scale = whole.time_s / alone.time_s if whole is not None and alone is not None else 1.0
        return screened.time_s * scale

    @cached_property
    def _positions(self) -> Mapping[TileConfig, int]:
        return {c.config: i for i, c in enumerate(self.task.candidates)}

    # --- the answer ---------------------------------------------------------------------------

    def expected(self) -> TuningAnswer:
        """Return the times that the model expects, where nothing can be measured."""
        found = [self._expected(i) for i in range(len(self.task.candidates))]
        times = {i: float("inf") if e is None else e.time_s for i, e in enumerate(found)}
        order = sorted(times, key=lambda i: times[i])
        return TuningAnswer(
            times_s={i: times[i] for i in order}, failures={}, is_stored=False,
            unmeasured=f"this machine has no {self.hardware.name}",
        )  # fmt: skip

    def answer(self, found: Sequence[Measurement], *, is_stored: bool) -> TuningAnswer:
        """Return times by rank: confirmed ones first, those only screened behind them."""
        confirmed = self._times(found, Protocol.CONFIRM)
        screened = self._times(found, Protocol.SCREEN)
        times_s = {
            i: times[i]
            for times in (confirmed, screened)
            for i in sorted(times, key=lambda i: times[i])
            if times is confirmed or i not in confirmed
        }
        reasons = {self._positions[m.config]: f"{m.status.value}: {m.detail}" for m in found}
        failures = {
            i: reasons.get(i, NO_TIME) for i in range(len(self.task.candidates)) if i not in times_s
        }
        return TuningAnswer(times_s=times_s, failures=failures, is_stored=is_stored)

    def _times(self, found: Sequence[Measurement], protocol: Protocol) -> dict[int, float]:
        return {
            self._positions[m.config]: m.time_s
            for m in found
            if m.protocol is protocol and m.time_s is not None
        }
