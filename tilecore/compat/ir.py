"""``tvm.ir`` for programs written for TileLang: expressions are tilecore's, the rest is TVM's."""

from __future__ import annotations

import importlib
from typing import Any

from tilecore.ir.expr import Expr as PrimExpr

__all__ = ["PrimExpr"]


def __getattr__(name: str) -> Any:
    """Return what is TVM's alone."""
    return getattr(importlib.import_module("tvm.ir"), name)
