"""``tilelang.carver.arch``: the device as programs see it: what "auto" compiles for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tilecore.gpu_target import GpuTarget
from tilecore.target import Target, cpu_target, parse_target, runs_gpu_programs


@dataclass(frozen=True)
class TileDevice:
    """A device with its number of processors: cores, or multiprocessors."""

    name: str = "cpu"
    compute_max_core: int = field(default_factory=lambda: os.cpu_count() or 1)
    target: Target | GpuTarget = field(default_factory=cpu_target)


class CPU(TileDevice):
    """A CPU."""


class CUDA(TileDevice):
    """An NVIDIA GPU."""


class CDNA(TileDevice):
    """An AMD GPU; no device of this process is one."""


def get_arch(target: Any = "auto") -> TileDevice:
    """Return the device of this process."""
    _ = target
    gpu = _gpu()
    return CPU() if gpu is None else CUDA(gpu.device, gpu.multiprocessors, gpu)


def _gpu() -> GpuTarget | None:
    """Return the GPU that programs run on, None where they run on the CPU or the emulator."""
    found = None if runs_gpu_programs() else parse_target("auto")
    return found if isinstance(found, GpuTarget) else None


auto_infer_current_arch = get_arch


def is_cuda_arch(arch: TileDevice) -> bool:
    """Return whether a device is an NVIDIA GPU."""
    return isinstance(arch, CUDA)


def is_cdna_arch(arch: TileDevice) -> bool:
    """Return whether a device is an AMD GPU."""
    return isinstance(arch, CDNA)


def get_num_sms() -> int:
    """Return how many blocks run at once: multiprocessors, or cores.

    Persistent kernels launch that many.
    """
    gpu = _gpu()
    return (os.cpu_count() or 1) if gpu is None else gpu.multiprocessors


driver = SimpleNamespace(get_num_sms=get_num_sms)
