"""The recommender behind ``kernel.recommend``: any program, this machine or any known device.

Registered as the entry point ``tilecore.recommender``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from db.errors import DatabaseAway
from db.store import SqlStore
from recommender.hardware import HardwareProfile, assumption, nearest_profile
from recommender.open_programs import advise
from recommender.ports import MeasurementStore
from recommender.remembered import Known
from tilecore import kernels
from tilecore.errors import TypeMismatch, UnknownTarget
from tilecore.gpu_target import GpuTarget
from tilecore.recommending import OpenProgram, ProgramAdvice
from tilecore.target import CPU_NAMES, Target, names_emulator, parse_target
from tuner_service.errors import TooManyThreads
from tuner_service.hardware import find_hardware, find_hardware_or_like
from tuner_service.kept_advice import KeptAdvice
from tuner_service.nothing_kept import NothingKept
from tuner_service.settings import Settings, load_settings
from tuner_service.wiring import (
    Devices,
    compile_target,
    host_profile,
    host_toolchain,
    open_store_to_read,
)

LOG = logging.getLogger(__name__)
ASKED_AGAIN_S = 60.0  # after the database was away


def recommend(question: OpenProgram) -> ProgramAdvice:
    """Return ranked configs of a program for its target.

    Where the database is away, or has no room, models answer: a program must not fail for that.

    Raises:
        UnknownHardware: nobody knows the target, nor a device like it (RC601).
        TooManyThreads: more cores than the device has (SV907).
        Refused, ServiceUnreachable: what the service says that is to answer (SV918, SV917).
        TileError: as ``recommender.open_programs.advise`` raises it.
    """
    settings = load_settings()
    if question.service is not None:
        from tuner_service.client import ServiceClient  # most questions do without HTTP

        with ServiceClient(question.service, settings.key) as client:
            return client.recommend(question)
    if question.problem:
        raise TypeMismatch(
            expected="`problem` beside `service`", found="`problem` alone",
            hint="this installation takes sizes as arguments of the function",
        )  # fmt: skip
    if not OUTAGE.lasts():
        try:
            return _by_what_is_known(question, settings)
        except DatabaseAway as error:
            OUTAGE.begin(error)
    nothing = NothingKept()
    hardware, asked_for = device_of(nothing, question.target)
    found = advise_for(question, hardware, asked_for, _known(nothing, hardware))
    return replace(found, notes=(*found.notes, f"no measurement counts: {OUTAGE.reason}"))


def _by_what_is_known(question: OpenProgram, settings: Settings) -> ProgramAdvice:
    store = open_store_to_read(settings)
    with closing(store.database):
        hardware, asked_for = device_of(store, question.target)
        kept: KeptAdvice | None = None
        if question.text:
            kept = KeptAdvice(settings.data_dir / "advice", question, hardware, store)
            found = kept.read()
            if found is not None:
                return found
        found = advise_for(question, hardware, asked_for, known_to(store, hardware))
        if kept is not None:
            kept.keep(found)
        return found


class Outage:
    """Whether this process met a database that is away: who asks again waits for it again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._until = clock, 0.0
        self.reason = ""

    def lasts(self) -> bool:
        """Return whether it was away just now."""
        return self._clock() < self._until

    def begin(self, error: DatabaseAway) -> None:
        """Warn, and ask it no more for a while."""
        self._until = self._clock() + ASKED_AGAIN_S
        self.reason = f"{error.message} [{error.code}]"
        LOG.warning("recommending without what was measured: %s", self.reason)


OUTAGE = Outage()


def known_to(store: SqlStore, hardware: HardwareProfile) -> Known:
    """Return what was measured on a device, by this installation's toolchain and others."""
    return replace(_known(store, hardware), is_sent=store.programs.has_name)


def _known(store: MeasurementStore, hardware: HardwareProfile) -> Known:
    return Known(store, host_toolchain().on(hardware.kind).key, kernels.get("gemm"))


def advise_for(
    question: OpenProgram, hardware: HardwareProfile, asked_for: str = "",
    known: Known | None = None,
) -> ProgramAdvice:  # fmt: skip
    """Return ranked configs for a device.

    Args:
        question: the program and what is open.
        hardware: the device.
        asked_for: the device whose place it takes; "": none.
        known: what was measured; None: the analytic model answers alone.
    """
    from tilecore.compiler import check

    if not 0 <= question.cores <= hardware.cores:
        raise TooManyThreads(cores=hardware.cores, hardware=hardware.name, found=question.cores)
    target = compile_target(hardware)
    found = advise(question, hardware, lambda func, knobs: check(func, target, knobs), known)
    if not asked_for:
        note = assumption(hardware)
        return replace(found, notes=(*found.notes, note)) if note else found
    note = f"nobody knows {asked_for}; these are for {hardware.name}, the device most like it"
    return replace(found, notes=(note, *found.notes))


def _cpu_of(target: str) -> Target | None:
    """Return the CPU that a target names by its instructions, or an emulated one; None: neither.

    An emulated one runs everywhere, but choices for it are those for its own kind.
    """
    is_named = names_emulator(target) or target.lower().split("+")[0] in ("avx2", "avx512")
    found = parse_target(target) if is_named else None
    return found if isinstance(found, Target) else None


def device_of(store: Devices, target: str | None) -> tuple[HardwareProfile, str]:
    """Return the device of a target as compilers name it, and what it stands in for ("": itself).

    Raises:
        UnknownHardware: nobody knows it, nor a device like it (RC601).
    """
    if target is None or target.lower() in CPU_NAMES:
        return host_profile(store), ""
    if (cpu := _cpu_of(target)) is not None:
        generic = find_hardware(store, cpu.isa)
        features = (*generic.features, *sorted(cpu.features))
        return replace(generic, features=features, target=replace(cpu, is_emulated=False).name), ""
    if target.split()[0].lower() in ("cuda", "hip", "rocm"):
        chosen = parse_target(target)
        assert isinstance(chosen, GpuTarget)
        known = nearest_profile(chosen.device) or nearest_profile(chosen.arch)
        if known is None:
            raise UnknownTarget(known="a GPU with a profile", found=target)
        return known, ""
    return find_hardware_or_like(store, target)
