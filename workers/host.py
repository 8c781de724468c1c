"""Describe this machine as a HardwareProfile: identity and capacities, no rates yet."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

from recommender.hardware import HardwareProfile
from tilecore.target import cpu_target, host_features
from workers.driver import driver

CPU_DIRECTORY = Path("/sys/devices/system/cpu")
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")
CPU_INFO = Path("/proc/cpuinfo")
MEASURED_BYTES = 32 << 30  # of a candidate that is measured, at most, wherever that is
CANDIDATE_SHARE = 0.5  # of the memory, for one candidate: the rest keeps the machine alive

# Flags that decide which code runs and how fast; the rest of /proc/cpuinfo is noise in a key.
RELEVANT = frozenset(
    {"avx", "avx2", "fma", "f16c", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"}
)


def detect() -> HardwareProfile:
    """Return the profile of this machine as seen by this process.

    Rates are the profile's defaults until :func:`workers.peaks.measure` fills them in.

    Raises:
        UnknownTarget: no code can be generated for this processor (TC304).
    """
    flags = host_features()
    target = cpu_target(flags)
    usable = sorted(os.sched_getaffinity(0))
    caches = cache_sizes(CPU_DIRECTORY / f"cpu{usable[0]}" / "cache")
    return HardwareProfile(
        name=processor_name(_read(CPU_INFO)),
        kind="cpu",
        arch=f"x86-64-{target.isa}",
        cores=own_cores(),
        vector_bytes=target.vector_bytes,
        vector_registers=target.vector_registers,
        l1d_bytes=caches.get(1, 32 * 1024),
        l2_bytes=caches.get(2, 1024 * 1024),
        l3_bytes=caches.get(3, 0),
        features=tuple(sorted(f for f in flags if f in RELEVANT or f.startswith("avx512"))),
        source="detected",
        aliases=("cpu", "host", "local"),
        driver=driver("cpu"),
    )


def own_cores() -> int:
    """Return how many physical cores of this machine this process may use."""
    return usable_cores(os.sched_getaffinity(0), CPU_DIRECTORY, _read(CGROUP_QUOTA))


def memory_bytes() -> int:
    """Return the memory that this process may use: the machine's, or its control group's."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(CGROUP_MEMORY)
    return min(physical, int(limit)) if limit.isdigit() else physical


def candidate_memory_bytes(most: int) -> int:
    """Return what a candidate may take at most: ``most``, or what this machine can bear."""
    return min(most, int(CANDIDATE_SHARE * memory_bytes()))


def processor_name(cpuinfo: str) -> str:
    """Return the processor's name from the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        if line.startswith("model name"):
            return " ".join(line.split(":", 1)[1].split())
    return "unknown processor"


def usable_cores(usable: Iterable[int], directory: Path, quota: str) -> int:
    """Return the physical cores among the usable CPUs, at most the control group's quota.

    Args:
        usable: logical CPUs that this process may run on.
        directory: /sys/devices/system/cpu.
        quota: content of the cgroup's cpu.max: "max 100000" or "150000 100000" (µs per period).
    """
    cores = len(one_per_core(usable, directory))
    fields = quota.split()
    if len(fields) == 2 and fields[0] != "max":
        cores = min(cores, max(1, math.floor(int(fields[0]) / int(fields[1]))))
    return max(1, cores)


def one_per_core(usable: Iterable[int], directory: Path = CPU_DIRECTORY) -> list[int]:
    """Return the first of the usable logical CPUs of each physical core."""
    first: dict[str, int] = {}
    for cpu in sorted(usable):
        siblings = _read(directory / f"cpu{cpu}/topology/thread_siblings_list")
        first.setdefault(siblings or str(cpu), cpu)
    return list(first.values())


def cache_sizes(directory: Path) -> dict[int, int]:
    """Return bytes of data cache by level (1, 2, 3) from a cpuN/cache directory."""
    sizes: dict[int, int] = {}
    for index in sorted(directory.glob("index*")):
        if _read(index / "type") in ("Data", "Unified"):
            sizes[int(_read(index / "level"))] = parse_size(_read(index / "size"))
    return sizes


def parse_size(text: str) -> int:
    """Return the bytes of a size as /sys spells it: "48K", "2048K", "480M"."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG") or 0) * unit


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
