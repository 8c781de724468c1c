"""Where the parts are put together: store, host profile, toolchain, measurer.

Nothing here imports TVM, torch or Ray until a measurer is made, nor NumPy until somebody asks for
a device.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from db.errors import DatabaseAway, DatabaseError
from db.migrate import open_database, open_to_read, opened_for_now
from db.store import SqlStore
from recommender.hardware import HardwareProfile, with_assumed_rates
from recommender.hashed import Hashed
from recommender.measurement import Toolchain
from recommender.ports import Measurer
from tuner_service.coordinator.workplaces import HostWorkplace, Workplace
from tuner_service.settings import Settings
from workers.devices import devices_of, gpu_devices
from workers.errors import ClusterUnavailable
from workers.gate import Gate

if TYPE_CHECKING:
    from workers.program_desk import ProgramDesk
    from workers.ray_pool import RayPool

LOG = logging.getLogger(__name__)


class Devices(Protocol):
    """Devices whose profiles somebody stored: an ``SqlStore`` is one."""

    def hardware(self, key: str) -> HardwareProfile | None:
        """Return the stored profile of a device kind."""
        ...

    def all_hardware(self) -> Sequence[HardwareProfile]:
        """Return all stored profiles by name."""
        ...


def open_store(settings: Settings) -> SqlStore:
    """Return the store; an embedded database is created or upgraded first."""
    return SqlStore(open_database(settings.url, busy_timeout_s=settings.database_timeout_s))


def open_store_to_read(settings: Settings) -> SqlStore:
    """Return the store for questions: with a warning also where nothing can be written."""
    return SqlStore(open_to_read(settings.url, busy_timeout_s=settings.database_timeout_s))


@contextmanager
def store_to_answer(settings: Settings) -> Iterator[SqlStore]:
    """Yield the store for questions that what ships can answer, too.

    Where there is no embedded database and none can be made, it is an empty one that is not kept;
    that is warned of.

    Raises:
        DatabaseError: as ``open_store_to_read``, where there is a database.
    """
    with ExitStack() as stack:
        try:
            store = open_store_to_read(settings)
            stack.callback(store.database.close)
        except DatabaseAway as error:
            if settings.database_url is not None or os.path.exists(settings.database_file):
                raise
            try:
                store = SqlStore(stack.enter_context(opened_for_now()))
            except DatabaseError:
                raise error from None
            why = f"{error.message} [{error.code}]"
            LOG.warning("answering without a database, from what ships: %s", why)
        yield store


@functools.cache
def detected_host() -> HardwareProfile:
    """Return this machine as detected (no rates measured); constant while a process lives."""
    from workers.host import detect

    return detect()


@functools.cache
def host_toolchain() -> Toolchain:
    """Return the toolchain of this installation; constant while a process lives."""
    from workers.toolchain import current_toolchain

    return current_toolchain()


def host_profile(store: Devices) -> HardwareProfile:
    """Return this machine with the rates that `tilecore profile` measured, else assumed ones."""
    host = detected_host()
    return _with_rates(Hashed(host, host.key), Hashed(store.hardware(host.key), host.key))


@functools.lru_cache(maxsize=4)  # every answer asks for it
def _with_rates(host: Hashed, stored: Hashed) -> HardwareProfile:
    known = host.value if stored.value is None else replace(stored.value, driver=host.value.driver)
    return with_assumed_rates(known)


def compile_target(hardware: HardwareProfile) -> str:
    """Return the name that tilecore compiles for a device by."""
    if hardware.kind != "cpu":
        return hardware.target or hardware.arch
    if hardware.key == detected_host().key:
        return "llvm"
    return hardware.target or hardware.arch.rsplit("-", 1)[-1]


@functools.cache
def program_desk() -> ProgramDesk:
    """Return where this process has programs looked at that somebody sent; children start late."""
    from workers.program_desk import ProgramDesk

    return ProgramDesk()


def is_measured(profile: HardwareProfile) -> bool:
    """Whether the rates of a profile were measured on the device."""
    return profile.source.startswith("measured")


def measure_profile(store: SqlStore) -> HardwareProfile:
    """Measure this machine's rates, store and return the profile (takes some seconds)."""
    from workers.peaks import measure

    profile = measure(detected_host())
    store.save_hardware(profile)
    return profile


def profiled_host(store: SqlStore) -> HardwareProfile:
    """Return this machine with measured rates, measuring them if that was never done."""
    profile = host_profile(store)
    return profile if is_measured(profile) else measure_profile(store)


def make_workplace(settings: Settings, store: SqlStore) -> Workplace:
    """Return where trials are measured: on nodes of a cluster, or on this host."""
    if settings.ray_address is not None and not settings.measures_here:
        from tuner_service.coordinator.cluster_workplace import ClusterWorkplace

        return ClusterWorkplace(
            settings.ray_address,
            host_toolchain(),
            lambda hardware, epoch, **shared: _ray_pool(
                settings, hardware, epoch, store.installation, **shared
            ),
        )
    host, gate, others = profiled_host(store), Gate(), other_devices()
    for device in others:
        note_driver(store, device)
    return HostWorkplace(
        host,
        lambda epoch: make_measurer(settings, host, epoch, store.installation, gate),
        others,
        lambda hardware, _: _local_pool(settings, hardware, gate),
    )


def note_driver(store: SqlStore, device: HardwareProfile) -> None:
    """Let lookups know the driver that a device has now (``hardware.find_hardware``)."""
    stored = store.hardware(device.key)
    if device.driver and (stored is None or stored.driver != device.driver):
        store.save_hardware(device)


def other_devices() -> Sequence[HardwareProfile]:
    """Return the GPUs of this machine, and those that the emulator stands in for."""
    from workers.offer import emulated_devices

    own = {d.hardware.key: d.hardware for d in gpu_devices()}
    return [*own.values(), *emulated_devices()]


def make_measurer(
    settings: Settings, hardware: HardwareProfile, epoch: int, installation: str = "",
    gate: Gate | None = None,
) -> Measurer:  # fmt: skip
    """Return the workers of this machine that the settings ask for.

    ``auto`` is Ray, or worker processes of this machine where no local Ray can be started (a busy
    machine may be too slow for Ray's start-up limits): a run must not fail for that. GPUs of this
    machine have worker processes: the local Ray offers the host. Pools share the ``gate``.
    """
    gate = gate or Gate()
    if settings.executor == "local":
        return _local_pool(settings, hardware, gate)
    try:
        return _ray_pool(settings, hardware, epoch, installation, gate_of=lambda _: gate)
    except ClusterUnavailable as error:
        if settings.executor == "ray":
            raise
        LOG.warning("measuring without Ray: %s", error.message)
        return _local_pool(settings, hardware, gate)


def _local_pool(settings: Settings, hardware: HardwareProfile, gate: Gate) -> Measurer:
    from workers.pool import LocalPool

    is_gpu = hardware.kind != "cpu" and not hardware.is_emulated

    return LocalPool(
        hardware,
        artifact_dir=settings.artifact_dir,
        compile_workers=settings.compile_workers,
        compile_timeout_s=settings.compile_timeout_s,
        run_timeout_s=settings.run_timeout_s,
        devices=len(devices_of(hardware)) if is_gpu else 1,
        gate=gate,
    )


def _ray_pool(
    settings: Settings, hardware: HardwareProfile, epoch: int, installation: str, **shared: Any
) -> RayPool:
    from workers.ray_pool import RayPool

    return RayPool(
        hardware,
        artifact_dir=settings.artifact_dir,
        epoch=epoch,
        installation=installation,
        compile_workers=settings.compile_workers,
        compile_timeout_s=settings.compile_timeout_s,
        run_timeout_s=settings.run_timeout_s,
        **shared,
    )
