"""aligned: launches over dynamic sizes get a version for sizes whose rows lie at 16 bytes.

The accelerator that moves boxes, and accesses of more than an element, need rows that begin at
multiples of 16 bytes. Of a size that is known at the call alone nobody can say that when code is
generated: the launch stands twice, ``If(size % 8 == 0, launch, launch)`` (ir.versions; of size 0
the second one runs, too), and in the first one the size is ``size // 8 * 8`` wherever it stands.
Which of them runs is asked before the grid.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilecore.inference.gpu.plan import CHUNK_BYTES
from tilecore.ir.analysis import free_vars
from tilecore.ir.expr import Expr, Var, binary
from tilecore.ir.nodes import (
    Alloc,
    Buffer,
    Copy,
    For,
    If,
    KernelLaunch,
    Let,
    Parallel,
    PrimFunc,
    Seq,
    Stmt,
)
from tilecore.ir.substitute import Substitution
from tilecore.ir.visitor import buffers_of, walk, walk_expr, with_body


def run(func: PrimFunc) -> PrimFunc:
    """Return ``func`` with a second version of the launches that have such sizes."""
    free = {id(v): v for v in free_vars(func)}
    free |= {id(p): p for p in func.params if isinstance(p, Var) and p.dtype.is_integer}
    stmts = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    made = tuple(_versions(s, free) if isinstance(s, KernelLaunch) else s for s in stmts)
    if all(a is b for a, b in zip(made, stmts, strict=True)):
        return func
    return with_body(func, made[0] if len(made) == 1 else Seq(made, func.body.span))


def _versions(launch: KernelLaunch, free: Mapping[int, Var]) -> Stmt:
    """Return a launch in two versions, or as it is where its sizes leave nothing open."""
    tensors = [b for b in buffers_of(launch.body) if b.scope == "global" and b.ndim]
    factors: dict[Var, int] = {}
    for tensor in tensors:
        for var in _of_rows(tensor):
            if id(var) in free:
                factors[var] = math.lcm(factors.get(var, 1), _per_chunk(tensor))
    order = sorted(factors, key=lambda var: list(free).index(id(var)))
    factors = {var: factors[var] for var in order if factors[var] > 1}
    if (
        not factors
        or any(t.root.address is not None for t in tensors)
        or not _moves(launch, tensors)
    ):
        return launch
    rests = [binary("mod", var, factor) for var, factor in factors.items()]
    rests += [binary("max", 1 - var, 0) for var in factors]  # no tensor map has an extent of 0
    rest = functools.reduce(lambda a, b: binary("bitor", a, b), rests)
    twin = _Twin(launch, factors).launch(launch)
    return If(binary("eq", rest, 0), twin, launch, launch.span)


def _of_rows(tensor: Buffer) -> Iterator[Var]:
    """Yield the symbols that say where rows of a tensor begin, or where its only one ends."""
    for extent in (tensor.shape[-1], *(tensor.strides or ())[:-1]):
        yield from (part for part in walk_expr(extent) if isinstance(part, Var))


def _per_chunk(tensor: Buffer) -> int:
    """Return the elements of 16 bytes."""
    return CHUNK_BYTES * 8 // min(tensor.dtype.bits, CHUNK_BYTES * 8)


def _moves(launch: KernelLaunch, tensors: Sequence[Buffer]) -> bool:
    """Return whether threads together move or compute elements of some tensors."""
    known = {id(t) for t in tensors}
    nests = (s for s in walk(launch.body) if isinstance(s, (Copy, Parallel)))
    return any(id(buffer) in known for nest in nests for buffer in buffers_of(nest))


def _bound(launch: KernelLaunch) -> Iterator[Var]:
    """Yield the variables that a launch gives their values."""
    yield from (*launch.block_vars, *launch.thread_vars)
    for stmt in walk(launch.body):
        match stmt:
            case Parallel(loop_vars=names):
                yield from names
            case For(loop_var=name) | Let(var=name):
                yield name


class _Twin(Substitution):
    """Rebuilds a launch with sizes that are multiples; nothing of it is shared with the other."""

    def __init__(self, launch: KernelLaunch, factors: Mapping[Var, int]) -> None:
        values = {var: binary("floordiv", var, n) * n for var, n in factors.items()}
        super().__init__(values)
        self._own = {id(v): v for v in _bound(launch)}

    def launch(self, launch: KernelLaunch) -> KernelLaunch:
        """Return the launch over views of the tensors."""
        made = self.stmt(launch)
        assert isinstance(made, KernelLaunch)
        pairs = self._buffers.values()
        views = (new for old, new in pairs if old.scope == "global" and new is not old)
        allocs = tuple(Alloc(view, launch.span) for view in views)
        return replace(made, body=Seq((*allocs, made.body), launch.span))

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return a tile of its own, or a view of a tensor that has such sizes."""
        if id(buffer) not in self._buffers:
            new = super().buffer(buffer)
            if buffer.scope == "global":
                if new is not buffer:
                    new = replace(new, base=buffer.root, is_output=False)
            elif new is buffer:
                new = replace(buffer)
            self._buffers[id(buffer)] = (buffer, new)
        return self._buffers[id(buffer)][1]

    def expr(self, expr: Expr) -> Expr:
        """Return an expression with sizes, and variables of the launch, replaced."""
        if isinstance(expr, Var) and id(expr) in self._own and id(expr) not in self.values:
            self.values[id(expr)] = Var(expr.name, expr.dtype)
        return super().expr(expr)

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return a statement that is no other's."""
        made = super().stmt(stmt)
        return dataclasses.replace(made) if made is stmt else made  # type: ignore[type-var]
