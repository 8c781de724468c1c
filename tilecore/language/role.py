"""Roles of thread groups: T.ws (warp specialisation)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.expr import Expr, binary, int_value
from tilecore.ir.nodes import If
from tilecore.language.thread import WARPGROUP, get_warp_group_idx


@contextmanager
def ws(*warp_group_idx: int) -> Iterator[None]:
    """Let only these warpgroups (128 threads each) run the block: ``with T.ws(0): ...``.

    ``T.ws(-1)`` is for all threads.

    Raises:
        ScopeError: outside ``with T.Kernel(...)`` (TC104).
        TypeMismatch: not a list of warpgroup numbers (TC202).
    """
    groups = [int_value(g) for g in warp_group_idx]
    if groups == [-1]:
        yield
        return
    if not groups or any(g is None or g < 0 for g in groups):
        raise TypeMismatch(
            expected=f"numbers of warpgroups ({WARPGROUP} threads each) for T.ws",
            found=f"{warp_group_idx}",
        )
    builder = current()
    mine = get_warp_group_idx()
    cond: Expr = functools.reduce(
        lambda a, b: binary("or", a, b), [binary("eq", mine, g) for g in groups if g is not None]
    )
    span = builder.span
    with builder.open("then") as frame:
        yield
    builder.emit(If(cond, frame.body(), None, span))


WarpSpecialize = ws
