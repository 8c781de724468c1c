"""Which devices are known: this host, what is stored, and the profiles that come along."""

from __future__ import annotations

from dataclasses import replace

from recommender.errors import UnknownHardware
from recommender.hardware import (
    EMULATED,
    HardwareProfile,
    load_profile,
    nearest_profile,
    profile_names,
)
from tilecore.errors import did_you_mean
from tuner_service.wiring import Devices, host_profile

HOST_NAMES = ("host", "cpu", "auto", "local")


def all_hardware(store: Devices) -> list[HardwareProfile]:
    """Return the host first, then stored devices, then profiles from documents."""
    shipped = [load_profile(name) for name in profile_names()]
    found: dict[str, HardwareProfile] = {}
    for profile in (host_profile(store), *store.all_hardware(), *shipped):
        found.setdefault(profile.key, profile)
    return list(found.values())


def find_hardware(store: Devices, name: str | None) -> HardwareProfile:
    """Return the device called ``name`` (name, alias or key; None: this host).

    Raises:
        UnknownHardware: nobody knows it (RC601).
    """
    if name is None or name.lower() in HOST_NAMES:
        return host_profile(store)
    if name.lower() in profile_names() or name.lower().startswith(f"{EMULATED} "):
        return _as_seen(store, load_profile(name))
    profiles = all_hardware(store)
    for profile in profiles:
        if name.lower() in _names(profile) or (len(name) >= 8 and profile.key.startswith(name)):
            return profile
    known = dict.fromkeys(["host", *profile_names(), *(p.name for p in profiles)])
    hint = did_you_mean(name, [*known, *(n for p in profiles for n in _names(p))])
    raise UnknownHardware(known=", ".join(known), found=name, hint=hint)


def find_hardware_or_like(store: Devices, name: str | None) -> tuple[HardwareProfile, str]:
    """Return the device called ``name`` and "", or the GPU most like it and ``name``.

    Raises:
        UnknownHardware: nobody knows it, and no device is like it (RC601).
    """
    try:
        return find_hardware(store, name), ""
    except UnknownHardware:
        found = nearest_profile(name or "")
        if found is None:
            raise
        return found, str(name)


def _as_seen(store: Devices, shipped: HardwareProfile) -> HardwareProfile:
    """Return a shipped profile with the driver that workers last saw on such a device."""
    stored = store.hardware(shipped.key)
    return shipped if stored is None else replace(shipped, driver=stored.driver)


def _names(profile: HardwareProfile) -> set[str]:
    return {n.lower() for n in (profile.name, profile.name.replace(" ", "_"), *profile.aliases)}
