"""``tilelang.transform``: the names that programs import from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilecore.ir.nodes import PrimFunc
from tilecore.pass_config import PassConfigKey

__all__ = ["PassConfigKey", "apply_simplify", "simplify_prim_func"]


def simplify_prim_func(func: Callable[..., PrimFunc]) -> Callable[..., PrimFunc]:
    """Return ``func``: programs are simplified whenever they are compiled."""
    return func


def apply_simplify(func: PrimFunc, *_: Any, **__: Any) -> PrimFunc:
    """Return ``func``: programs are simplified whenever they are compiled."""
    return func


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"tilecore has no pass `{name}`: TileLang's passes work on its own IR; "
        f"tilecore.compiler.lower shows every stage here"
    )
