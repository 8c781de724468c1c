"""Loops around kernel launches: every iteration becomes launches of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from tilecore.errors import ScopeError
from tilecore.ir.expr import ExprLike, Var, const, int_value
from tilecore.ir.nodes import Alloc, For, KernelLaunch, Let, Parallel, SourceLaunch, Stmt
from tilecore.ir.substitute import Substitution
from tilecore.ir.visitor import flat, has_jump, walk


def launches_kernels(loop: For) -> bool:
    """Return whether a kernel is launched inside ``loop``."""
    return any(isinstance(s, (KernelLaunch, SourceLaunch)) for s in walk(loop.body))


def iterations(loop: For) -> Iterator[Stmt]:
    """Yield the statements of a loop around launches, for one value of its variable after another.

    Raises:
        ScopeError: how often it runs is not known, or its body leaves it (TC104).
    """
    bounds = [int_value(e) for e in (loop.start, loop.stop, loop.step)]
    if any(b is None for b in bounds) or has_jump(loop.body):
        raise ScopeError(
            message="T.Kernel stands in a loop whose iterations are not known",
            hint="loop over a range of known numbers, without break or continue",
        ).at(loop.span)
    for value in range(*(b for b in bounds if b is not None)):
        symbol = {loop.loop_var: const(value, loop.loop_var.dtype)}
        yield from flat([_Copy(loop.body, symbol).stmt(loop.body)])


class _Copy(Substitution):
    """Rebuilds a body with symbols replaced, and with variables and tiles of its own."""

    def __init__(self, body: Stmt, values: Mapping[Var, ExprLike]) -> None:
        own = {v: Var(v.name, v.dtype) for s in walk(body) for v in _bound(s)}
        super().__init__({**own, **values})
        for stmt in walk(body):
            if isinstance(stmt, Alloc) and stmt.buffer.base is None:
                old = stmt.buffer
                self._buffers[id(old)] = (old, dataclasses.replace(old))


def _bound(stmt: Stmt) -> tuple[Var, ...]:
    match stmt:
        case KernelLaunch(block_vars=blocks, thread_vars=threads):
            return (*blocks, *threads)
        case Parallel(loop_vars=names):
            return names
        case For(loop_var=name) | Let(var=name):
            return (name,)
        case _:
            return ()
