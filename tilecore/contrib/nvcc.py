"""``tilelang.contrib.nvcc``: the compute capability that programs choose their code by."""

from __future__ import annotations

import importlib
from typing import Any

from tilecore.errors import ToolchainMissing

__all__ = ["get_target_compute_version", "parse_compute_version"]


def get_target_compute_version(target: Any = None) -> str:
    """Return the compute capability of the device that programs see, such as "9.0".

    Args:
        target: accepted for compatibility; there is one device.

    Raises:
        ToolchainMissing: programs see no CUDA device: this is no program run by
            ``python -m tilecore.compat``.
    """
    _ = target
    cuda = importlib.import_module("torch").cuda
    if not cuda.is_available():
        raise ToolchainMissing(tool="a CUDA device", purpose="its compute capability")
    major, minor = cuda.get_device_capability()
    return f"{major}.{minor}"


def parse_compute_version(compute_version: str) -> tuple[int, int]:
    """Return "9.0" as two numbers."""
    major, minor = compute_version.split(".")
    return int(major), int(minor)
