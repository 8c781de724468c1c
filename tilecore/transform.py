"""``tilelang.transform``: the names that programs import from it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.ir.nodes import Buffer, PrimFunc
from tilecore.ir.visitor import buffers_of
from tilecore.pass_config import PassConfigKey

__all__ = ["PassConfigKey", "apply_simplify", "simplify_prim_func"]


def simplify_prim_func(func: Callable[..., PrimFunc]) -> Callable[..., PrimFunc]:
    """Return ``func`` with its programs as apply_simplify leaves them."""

    @functools.wraps(func)
    def simplified(*args: Any, **kwargs: Any) -> PrimFunc:
        return apply_simplify(func(*args, **kwargs))

    return simplified


def apply_simplify(func: PrimFunc, *_: Any, **__: Any) -> PrimFunc:
    """Return a program without the tensor parameters of known shape that it never touches.

    It is simplified otherwise whenever it is compiled.
    """
    if not isinstance(func, PrimFunc):
        raise TypeMismatch(expected="a program made by @T.prim_func", found=type(func).__name__)
    if "out_idx" in func.attrs:  # positions that would no longer hold
        return func
    used = {id(b.root) for b in buffers_of(func.body)}
    left = tuple(
        p
        for p in func.params
        if not isinstance(p, Buffer) or id(p) in used or p.is_output or p.static_shape is None
    )
    return replace(func, params=left)


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"tilecore has no pass `{name}`: TileLang's passes work on its own IR; "
        f"tilecore.compiler.lower shows every stage here"
    )
