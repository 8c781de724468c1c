"""Where the parts are put together: store, host profile, toolchain, measurer.

Nothing here imports TVM, torch or Ray until a measurer is made.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from db.migrate import open_database
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import Toolchain
from recommender.ports import Measurer
from tuner_service.settings import Settings
from tuner_service.workplaces import HostWorkplace, Workplace
from workers.errors import ClusterUnavailable
from workers.host import detect
from workers.toolchain import current_toolchain

if TYPE_CHECKING:
    from workers.ray_pool import RayPool

LOG = logging.getLogger(__name__)


def open_store(settings: Settings) -> SqlStore:
    """Return the store; an embedded database is created or upgraded first."""
    return SqlStore(open_database(settings.url, busy_timeout_s=settings.database_timeout_s))


@functools.cache
def detected_host() -> HardwareProfile:
    """Return this machine as detected (no rates measured); constant while a process lives."""
    return detect()


@functools.cache
def host_toolchain() -> Toolchain:
    """Return the toolchain of this installation; constant while a process lives."""
    return current_toolchain()


def host_profile(store: SqlStore) -> HardwareProfile:
    """Return this machine with the rates that `tilecore profile` measured, if it was run."""
    host = detected_host()
    stored = store.hardware(host.key)
    return host if stored is None else replace(stored, driver=host.driver)


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
    if settings.ray_address is not None and settings.executor != "local":
        from tuner_service.cluster_workplace import ClusterWorkplace

        return ClusterWorkplace(
            settings.ray_address,
            host_toolchain(),
            lambda hardware, epoch: _ray_pool(settings, hardware, epoch, store.installation),
        )
    hardware = profiled_host(store)
    return HostWorkplace(
        hardware, lambda epoch: make_measurer(settings, hardware, epoch, store.installation)
    )


def make_measurer(
    settings: Settings, hardware: HardwareProfile, epoch: int, installation: str = ""
) -> Measurer:
    """Return the workers that the settings ask for.

    ``auto`` is Ray, or worker processes of this machine where no local Ray can be started (a busy
    machine may be too slow for Ray's start-up limits): a run must not fail for that.
    """
    if settings.executor == "local":
        return _local_pool(settings, hardware)
    try:
        return _ray_pool(settings, hardware, epoch, installation)
    except ClusterUnavailable as error:
        if settings.executor == "ray":
            raise
        LOG.warning("measuring without Ray: %s", error.message)
        return _local_pool(settings, hardware)


def _local_pool(settings: Settings, hardware: HardwareProfile) -> Measurer:
    from workers.pool import LocalPool

    return LocalPool(
        hardware,
        artifact_dir=settings.artifact_dir,
        compile_workers=settings.compile_workers,
        compile_timeout_s=settings.compile_timeout_s,
        run_timeout_s=settings.run_timeout_s,
    )


def _ray_pool(
    settings: Settings, hardware: HardwareProfile, epoch: int, installation: str
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
    )
