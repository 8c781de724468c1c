"""``tilelang.backend.target`` and ``tilelang.utils``: questions about the target."""

from __future__ import annotations

from typing import Any

from tilecore.target import parse_target


def determine_target(target: Any = "auto", return_object: bool = False) -> Any:
    """Return the target's kind, or the Target; raises UnknownTarget (TC304)."""
    found = parse_target(target)
    return found if return_object else found.kind


def target_is_cuda(target: Any) -> bool:
    """Return whether a target is an NVIDIA GPU."""
    return str(getattr(target, "kind", target)).startswith("cuda")


def target_is_hip(target: Any) -> bool:
    """Return whether a target is an AMD GPU."""
    return str(getattr(target, "kind", target)).startswith(("hip", "rocm"))


target_is_cdna = target_is_gfx950 = target_is_hip


def get_current_device() -> str:
    """Return the torch device that kernels of this machine run on."""
    return "cpu"
