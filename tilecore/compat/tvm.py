"""``tvm`` for programs written for TileLang: expressions are tilecore's, the rest is TVM's own.

TileLang carries a TVM of its own: what programs use of it that the released one lacks is here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tilecore.compat import ir, tirx
from tilecore.ir.dtype import DType as DataType

__all__ = ["DataType", "ir", "tir", "tirx"]

tir = tirx
_KINDS = {"hip": "rocm"}  # names of TileLang's TVM and of the released one


class _TargetType(type):
    """Makes Target stand for TVM's class in questions too (isinstance, Target.current)."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, importlib.import_module("tvm.target").Target)

    def __getattr__(cls, name: str) -> Any:
        return getattr(importlib.import_module("tvm.target").Target, name)


class Target(metaclass=_TargetType):
    """``tvm.target.Target``, which takes "kind -key=value" too, as TVM once did."""

    def __new__(cls, target: Any, *args: Any, **options: Any) -> Any:
        """Return TVM's Target."""
        given = _as_mapping(target) if isinstance(target, str) and " -" in target else target
        return importlib.import_module("tvm.target").Target(given, *args, **options)


def _as_mapping(text: str) -> dict[str, str]:
    kind, *options = text.split()
    pairs = (option.lstrip("-").partition("=") for option in options)
    return {"kind": _KINDS.get(kind, kind), **{key: value for key, _, value in pairs}}


class _Joined(ModuleType):
    """A module of TVM with names of ours before its own, and others after."""

    def __init__(self, name: str, ours: Mapping[str, Any], behind: str | None = None) -> None:
        super().__init__(f"tvm.{name}")
        self.__dict__.update(ours)
        self._theirs, self._behind = importlib.import_module(f"tvm.{name}"), behind

    def __getattr__(self, name: str) -> Any:
        if self._behind is None or hasattr(self._theirs, name):
            return getattr(self._theirs, name)
        return getattr(importlib.import_module(self._behind), name)


def __getattr__(name: str) -> Any:
    if name == "target":
        return _Joined("target", {"Target": Target})
    if name == "testing":
        return _Joined("testing", {}, "tilecore.testing")
    package = importlib.import_module("tvm")
    if hasattr(package, name):
        return getattr(package, name)
    try:
        return importlib.import_module(f"tvm.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module 'tvm' has no attribute {name!r}") from error
