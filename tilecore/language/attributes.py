"""Attributes of a program: T.func_attr, T.annotate_pass_configs, T.annotate_compile_flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.nodes import Buffer


def func_attr(attrs: Mapping[str, Any]) -> None:
    """Record attributes of the program, which ``func.attrs`` shows; none changes its meaning.

    Raises:
        TypeMismatch: not a mapping of names to values (TC202).
    """
    if not isinstance(attrs, Mapping) or not all(isinstance(k, str) for k in attrs):
        raise TypeMismatch(expected="a mapping of names to values", found=repr(attrs))
    current().attrs.update(attrs)


def annotate_pass_configs(configs: Mapping[str, Any]) -> None:
    """Record pass configs in the program: docs/gpus.md says which have an effect."""
    func_attr({"tilelang_pass_configs": {str(k): v for k, v in configs.items()}})


def annotate_compile_flags(flags: Sequence[str]) -> None:
    """Record flags for a C or CUDA compiler in the program; without effect on this target."""
    func_attr({"tilelang_compile_flags": (flags,) if isinstance(flags, str) else tuple(flags)})


def annotate_min_blocks_per_sm(count: int) -> None:
    """Let an NVIDIA GPU have registers for so many blocks on one multiprocessor.

    Without effect elsewhere, and where warps hand registers to each other (``T.set_max_nreg``).

    Raises:
        TypeMismatch: not a positive integer (TC202).
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise TypeMismatch(expected="a number of blocks of at least 1", found=repr(count))
    func_attr({"min_blocks_per_sm": count})


def annotate_l2_hit_ratio(ratios: Mapping[Any, float]) -> None:
    """State which share of a tensor a GPU should keep in its L2 cache; without effect here.

    Raises:
        TypeMismatch: a key is no tensor, or a ratio not from 0 to 1 (TC202).
    """
    for buffer, ratio in ratios.items():
        if not isinstance(buffer, Buffer) or buffer.scope != "global" or not 0 <= ratio <= 1:
            found = f"{getattr(buffer, 'name', buffer)}: {ratio}"
            raise TypeMismatch(expected="tensors with ratios from 0 to 1", found=found)


__all__ = [
    "annotate_compile_flags", "annotate_l2_hit_ratio", "annotate_min_blocks_per_sm",
    "annotate_pass_configs", "func_attr",
]  # fmt: skip
