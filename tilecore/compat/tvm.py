"""``tvm`` for programs written for TileLang: expressions are tilecore's, the rest is TVM's own."""

from __future__ import annotations

import importlib
from typing import Any

from tilecore.compat import ir, tirx
from tilecore.ir.dtype import DType as DataType

__all__ = ["DataType", "ir", "tir", "tirx"]

tir = tirx


def __getattr__(name: str) -> Any:
    package = importlib.import_module("tvm")
    if hasattr(package, name):
        return getattr(package, name)
    try:
        return importlib.import_module(f"tvm.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module 'tvm' has no attribute {name!r}") from error
