"""Attributes of a program: T.func_attr, T.annotate_pass_configs, T.annotate_compile_flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current


def func_attr(attrs: Mapping[str, Any]) -> None:
    """Record attributes of the program, which ``func.attrs`` shows; none changes its meaning.

    Raises:
        TypeMismatch: not a mapping of names to values (TC202).
    """
    if not isinstance(attrs, Mapping) or not all(isinstance(k, str) for k in attrs):
        raise TypeMismatch(expected="a mapping of names to values", found=repr(attrs))
    current().attrs.update(attrs)


def annotate_pass_configs(configs: Mapping[str, Any]) -> None:
    """Record pass configs of TileLang in the program; without effect on this target."""
    func_attr({"tilelang_pass_configs": {str(k): v for k, v in configs.items()}})


def annotate_compile_flags(flags: Sequence[str]) -> None:
    """Record flags for a C or CUDA compiler in the program; without effect on this target."""
    func_attr({"tilelang_compile_flags": (flags,) if isinstance(flags, str) else tuple(flags)})


__all__ = ["annotate_compile_flags", "annotate_pass_configs", "func_attr"]
