"""``tilelang.carver.arch``: the device as programs see it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tilecore.target import Target, cpu_target


@dataclass(frozen=True)
class TileDevice:
    """A device with its number of processors (here: cores)."""

    name: str = "cpu"
    compute_max_core: int = field(default_factory=lambda: os.cpu_count() or 1)
    target: Target = field(default_factory=cpu_target)


class CPU(TileDevice):
    """A CPU."""


class CUDA(TileDevice):
    """An NVIDIA GPU; no device of this process is one."""


class CDNA(TileDevice):
    """An AMD GPU; no device of this process is one."""


def get_arch(target: Any = "auto") -> TileDevice:
    """Return the device of this process."""
    _ = target
    return CPU()


auto_infer_current_arch = get_arch


def is_cuda_arch(arch: TileDevice) -> bool:
    """Return whether a device is an NVIDIA GPU."""
    return isinstance(arch, CUDA)


def is_cdna_arch(arch: TileDevice) -> bool:
    """Return whether a device is an AMD GPU."""
    return isinstance(arch, CDNA)


def get_num_sms() -> int:
    """Return how many blocks run at once: the cores. Persistent kernels launch that many."""
    return os.cpu_count() or 1


driver = SimpleNamespace(get_num_sms=get_num_sms)
