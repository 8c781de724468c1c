"""HardwareProfile: what a device can do, as numbers with units."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, lru_cache
from pathlib import Path

from recommender.gpu_names import FAMILY, plain, steps_between
from tilecore.amd_target import find_amd_target
from tilecore.errors import did_you_mean
from tilecore.gpu_target import find_gpu_target
from tilecore.tile_config import digest

EMULATED = "emulated"  # the feature, and the first word of the name, of a device that is none
DETECTED = "detected"  # the source of a profile without rates
ASSUMED = "assumed"  # how the source of rates begins that nobody measured
LIKENESS = 0.6  # of names (difflib's ratio), below which devices have nothing to do with each other


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """A device: identity, capacities, rates (of the whole device unless named per core).

    ``key`` identifies the kind of device from performance-relevant identity facts (not from the
    measured rates, which vary a little from run to run).
    """

    name: str  # "Intel(R) Xeon(R) Processor" or "NVIDIA H200"
    kind: str  # "cpu" | "cuda" | "rocm"
    arch: str  # "x86-64-avx512", "x86-64-avx2", "sm_90a", "gfx942"
    cores: int  # physical cores usable by this process, SMs, CUs
    vector_bytes: int = 64  # widest vector register
    vector_registers: int = 32
    l1d_bytes: int = 32 * 1024  # per core
    l2_bytes: int = 1024 * 1024  # per core (CPU) or whole device (GPU)
    l3_bytes: int = 0  # shared
    peak_flop_per_s: Mapping[str, float] = field(default_factory=dict)  # by dtype: per core (CPU)
    bandwidth_bytes_per_s: float = 10e9  # memory, all cores
    core_bandwidth_bytes_per_s: float = 10e9  # memory, one core
    turns_gain: float = 1.0  # CPU: a core's rate of reading four rows in turn, over that of one
    launch_s: float = 5e-6  # one call including the parallel fork and join
    target: str = ""  # GPU: the name that tilecore compiles for; its limits are the target's
    clock_hz: float = 0.0  # GPU: at which the peaks hold
    l2_bandwidth_bytes_per_s: float = 0.0  # GPU: from L2 to all multiprocessors
    features: tuple[str, ...] = ()  # "avx512f", "avx512_bf16", ...
    source: str = DETECTED  # or "measured <date>", "assumed: ..", or the document
    aliases: tuple[str, ...] = ()
    driver: str = ""  # as last seen: of the GPU; of a CPU its kernel and microcode; "": unknown

    @property
    def is_emulated(self) -> bool:
        """Whether the emulator stands in for the device: times of it say nothing about a device."""
        return EMULATED in self.features

    @property
    def family(self) -> str:
        """The family of devices that one cost model learns from (``families``)."""
        if self.kind == "cpu":
            return "cpu"
        return f"{EMULATED}-{self.arch}" if self.is_emulated else self.arch

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {**asdict(self), "peak_flop_per_s": dict(self.peak_flop_per_s)}

    @property
    def key(self) -> str:
        """A stable digest (32 hex digits) of the identity facts."""
        facts = (self.name, self.kind, self.arch, self.cores, self.l1d_bytes, self.l2_bytes)
        return _key(*facts, tuple(self.features))


@lru_cache(maxsize=256, typed=True)  # it is asked of every measurement
def _key(
    name: str, kind: str, arch: str, cores: int, l1d_bytes: int, l2_bytes: int,
    features: tuple[str, ...],
) -> str:  # fmt: skip
    facts = {
        "schema": 1, "name": name, "kind": kind, "arch": arch, "cores": cores,
        "l1d_bytes": l1d_bytes, "l2_bytes": l2_bytes, "features": sorted(features),
    }  # fmt: skip
    return digest(facts)


PROFILE_FOLDER = Path(__file__).parent / "profiles"


@cache
def profile_names() -> tuple[str, ...]:
    """Return the names of the shipped profiles."""
    return tuple(sorted(path.stem for path in PROFILE_FOLDER.glob("*.toml")))


def emulated(profile: HardwareProfile) -> HardwareProfile:
    """Return the profile of the emulator in the place of a GPU: a device of its own.

    It has the device's search space and code; its key is another one, so that what is recorded of
    it is never taken for a measurement of the device.

    Raises:
        UnknownHardware: the emulator runs no code for the device (RC601).
    """
    from recommender.errors import UnknownHardware

    if profile.kind == "cpu":
        raise UnknownHardware(known="GPUs, to emulate", found=profile.name)
    if profile.is_emulated:
        return profile
    return replace(
        profile,
        name=f"{EMULATED} {profile.name}",
        features=(*profile.features, EMULATED),
        aliases=tuple(f"{EMULATED} {alias}" for alias in profile.aliases),
        source=f"the emulator on a CPU: times are its own, rates those of {profile.name}",
    )


def load_profile(name: str) -> HardwareProfile:
    """Return the shipped profile with that file name, device name or alias (case-insensitive).

    "emulated NAME" is the emulator in the place of that device.

    Raises:
        UnknownHardware: no profile has the name (RC601).
        InvalidProfile: the file does not parse or lacks a field (RC603).
    """
    from recommender.errors import UnknownHardware

    wanted = name.strip().lower()
    first, _, device = wanted.partition(" ")
    if first == EMULATED and device:
        return emulated(load_profile(device))
    found = _profiles().get(wanted)
    if found is None:
        hint = did_you_mean(name, _profiles())
        raise UnknownHardware(known=", ".join(profile_names()), found=name, hint=hint)
    return found


def with_assumed_rates(profile: HardwareProfile) -> HardwareProfile:
    """Return a CPU that nobody measured with the rates of the generic one of its instructions."""
    stem = profile.arch.lower()
    if profile.kind != "cpu" or profile.source != DETECTED or stem not in profile_names():
        return profile
    generic = load_profile(stem)
    per_core = generic.core_bandwidth_bytes_per_s
    return replace(
        profile,
        peak_flop_per_s=generic.peak_flop_per_s,
        bandwidth_bytes_per_s=min(generic.bandwidth_bytes_per_s, profile.cores * per_core),
        core_bandwidth_bytes_per_s=per_core,
        launch_s=generic.launch_s,
        source=f"{ASSUMED}: rates of {generic.name}",
    )


def assumption(profile: HardwareProfile) -> str:
    """Return what to know of times of a device whose rates were assumed, "" of others."""
    if not profile.source.startswith(ASSUMED):
        return ""
    of = profile.source.partition("rates of ")[2]
    return f"times rest on the rates of {of}: `tilecore profile` measures this machine's (seconds)"


def nearest_profile(name: str) -> HardwareProfile | None:
    """Return the shipped profile of the GPU most like one that no profile has, or None.

    That is the one of its architecture and number of multiprocessors, where the compiler knows the
    device, else of those of its architecture or family the one whose name is most like it, else of
    all. "emulated NAME" is the emulator in the place of that.
    """
    if name.lower().startswith(f"{EMULATED} "):
        found = nearest_profile(name[len(EMULATED) :].strip())
        return None if found is None else emulated(found)
    gpus = [p for p in map(load_profile, profile_names()) if p.kind != "cpu"]
    target = find_gpu_target(name) or find_amd_target(name)
    alike = [] if target is None else [p for p in gpus if p.arch == target.arch]
    if target is not None and alike:
        own = next((p for p in alike if target.device in (p.target, *p.aliases)), None)
        return own or min(alike, key=lambda p: abs(p.cores - target.multiprocessors))
    steps = {p.name: steps_between(name, p.name) for p in gpus}
    nearest = min(steps.values())
    is_kin = nearest <= FAMILY
    wanted = plain(name)
    spellings = {
        plain(n): p
        for p in gpus
        if not is_kin or steps[p.name] == nearest
        for n in (p.name, p.target, *p.aliases)
    }
    cutoff = 0.0 if is_kin else LIKENESS
    closest = difflib.get_close_matches(wanted, list(spellings), n=1, cutoff=cutoff)
    return spellings[closest[0]] if closest else None


@cache
def _profiles() -> dict[str, HardwareProfile]:
    """Return the shipped profiles by their names and aliases in small letters."""
    found: dict[str, HardwareProfile] = {}
    for stem in profile_names():
        profile = _read_profile(PROFILE_FOLDER / f"{stem}.toml")
        for name in (stem, profile.name, *profile.aliases):
            found.setdefault(name.lower(), profile)
    return found


def _read_profile(path: Path) -> HardwareProfile:
    from recommender.errors import InvalidProfile

    known = {f.name for f in fields(HardwareProfile)}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InvalidProfile(path=path.name, reason=str(error)) from error
    sources = values.pop("sources", {})
    unknown = sorted(set(values) - known)
    if unknown:
        raise InvalidProfile(path=path.name, reason=f"unknown fields {', '.join(unknown)}")
    for key, value in values.items():
        if isinstance(value, list):
            values[key] = tuple(value)
    values.setdefault("source", "; ".join(sources.values()))
    try:
        return HardwareProfile(**values)
    except TypeError as error:
        raise InvalidProfile(path=path.name, reason=str(error)) from error
