"""``tvm`` for programs written for TileLang: expressions are tilecore's, the rest is TVM's own.

TileLang carries a TVM of its own: what programs use of it that the released one lacks is here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tilecore.compat import ir, tirx
from tilecore.ir.dtype import DType as DataType
from tilecore.pass_config import check_pass_configs, pass_configs, surrounding_configs

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


class PassContext:
    """``tvm.transform.PassContext``, whose configs may be TileLang's; unknown ones warn.

    Within it they are the pass configs of compilations, which may set others themselves.
    """

    def __init__(self, *, config: Mapping[Any, Any] | None = None, **keywords: Any) -> None:
        theirs = importlib.import_module("tvm.ir.transform").PassContext
        self.config = {str(key): value for key, value in (config or {}).items()}
        known = self.config.keys() & set(theirs.list_configs())
        check_pass_configs({k: v for k, v in self.config.items() if k not in known})
        self._theirs = theirs(config={k: self.config[k] for k in known}, **keywords)
        self._entered = ExitStack()

    def __enter__(self) -> PassContext:
        """Set the configs."""
        self._entered.enter_context(self._theirs)
        self._entered.enter_context(pass_configs(self.config))
        return self

    def __exit__(self, *failure: Any) -> None:
        """Set those from before again."""
        self._entered.__exit__(*failure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    @staticmethod
    def current() -> Any:
        """Return the innermost context: its configs, and what else TVM's has."""
        theirs = importlib.import_module("tvm.ir.transform").PassContext.current()
        return _Current({**theirs.config, **surrounding_configs()}, theirs)

    @staticmethod
    def list_configs() -> Any:
        """Return the configs that TVM knows."""
        return importlib.import_module("tvm.ir.transform").PassContext.list_configs()


@dataclass(frozen=True)
class _Current:
    """The context that a question is answered with: TVM's, and TileLang's configs."""

    config: Mapping[str, Any]
    theirs: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.theirs, name)


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
    if name == "transform":
        return _Joined("ir.transform", {"PassContext": PassContext})
    if name == "testing":
        return _Joined("testing", {}, "tilecore.testing")
    package = importlib.import_module("tvm")
    if hasattr(package, name):
        return getattr(package, name)
    try:
        return importlib.import_module(f"tvm.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module 'tvm' has no attribute {name!r}") from error
