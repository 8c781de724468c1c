"""Which tiles a fused nest need not store: what it writes to them is read in the nest alone.

Storing them takes long where they do not stay in L1: a core writes to L2 at a third of the rate it
reads from there.
"""

from __future__ import annotations

from tilecore.inference.cpu.plan import FusedNest
from tilecore.ir.analysis import covers_whole, overwrites, reads
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.expr import Const, Expr, Var, int_value
from tilecore.ir.nodes import (
    Alloc,
    Buffer,
    Copy,
    Fill,
    Gemm,
    KernelLaunch,
    Parallel,
    Reduce,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.visitor import buffers_of, children, flat, loads, walk


def handed_on(launch: KernelLaunch, seq: Seq, nest: FusedNest) -> frozenset[Buffer]:
    """Return the tiles whose elements each iteration of ``nest`` may keep to itself.

    ``seq``: what the members of the nest stand in. The nest itself or a statement before it has to
    set the whole tile before anything in ``seq`` reads it (``seq`` may be what a loop repeats), and
    nothing after it, and nothing outside ``seq``, may read it.
    """
    stored = {step.buffer for step in nest.steps if isinstance(step, Store)}
    return frozenset(
        buffer
        for buffer in stored
        if _has_own_memory(buffer, launch)
        and _is_element_of(buffer, nest)
        and _is_set_first(buffer, seq, nest)
        and _readers(buffer, launch) == _readers(buffer, seq)
    )


def _has_own_memory(buffer: Buffer, launch: KernelLaunch) -> bool:
    if buffer.scope == "global" or buffer.base is not None or buffer.reducer is not None:
        return False
    return all(b is buffer or b.root is not buffer for b in buffers_of(launch))


def _is_element_of(buffer: Buffer, nest: FusedNest) -> bool:
    """Return whether each iteration touches one element, which no other iteration touches."""
    for step in nest.steps:
        if isinstance(step, Reduce):
            if step.dst.buffer is buffer:
                return False
            if step.src.buffer is buffer and not covers_whole(step.src):
                return False
            continue
        places = [load.indices for load in loads(step) if load.buffer is buffer]
        places += [step.indices] if step.buffer is buffer else []
        if any(not _runs_along(place, buffer, nest.loop_vars) for place in places):
            return False
    return True


def _runs_along(indices: tuple[Expr, ...], buffer: Buffer, names: tuple[Var, ...]) -> bool:
    """Return whether the axes longer than 1 are indexed by ``names``, in their order."""
    along = [i for i, size in zip(indices, buffer.shape, strict=True) if int_value(size) != 1]
    if len(along) != len(names):
        return False
    for index, name in zip(along, names, strict=True):
        form = linear(index)
        if form is None or form.constant or form.coefficients != {name: 1}:
            return False
    return True


def _is_set_first(buffer: Buffer, seq: Seq, nest: FusedNest) -> bool:
    """Return whether ``seq`` sets the tile before or in the nest, and does not touch it after."""
    touching = [s for s in seq.stmts if not isinstance(s, Alloc) and buffer in buffers_of(s)]
    first = next(i for i, s in enumerate(touching) if s in nest.members)
    if any(s not in nest.members for s in touching[first:]):
        return False
    if first > 0 and sets_whole(touching[0], buffer):
        return True
    return _nest_sets(buffer, nest) and not any(_readers(buffer, s) for s in touching[:first])


def _nest_sets(buffer: Buffer, nest: FusedNest) -> bool:
    """Return whether each iteration stores the element before it reads it."""
    for step in nest.steps:
        if buffer in reads(step):
            return False
        if isinstance(step, Store) and step.buffer is buffer:
            return True
    return False


def sets_whole(stmt: Stmt, buffer: Buffer) -> bool:
    """Return whether a statement sets all of a tile, and reads nothing of it before."""
    match stmt:
        case Fill(dst=dst):
            return covers_whole(dst)
        case Copy(src=src, dst=dst):
            return src.buffer is not buffer and dst.buffer is buffer and covers_whole(dst)
        case Reduce(src=src, dst=dst, clear=True):
            return src.buffer is not buffer and dst.buffer is buffer and covers_whole(dst)
        case Gemm(a=a, b=b, c=c, clear_accum=Const(value=True)):
            return buffer not in (a.buffer, b.buffer) and covers_whole(c)
        case Parallel(body=body):
            place = overwrites(stmt, buffer)
            before = flat([body])[: 0 if place is None else place + 1]
            return place is not None and not any(buffer in reads(s) for s in before)
        case _:
            return False


def _readers(buffer: Buffer, stmt: Stmt) -> int:
    """Return how many statements below ``stmt`` read a tile, or might."""
    return sum(_reads(s, buffer) for s in walk(stmt))


def _reads(stmt: Stmt, buffer: Buffer) -> bool:
    if children(stmt) or isinstance(stmt, (Alloc, Copy, Fill, Reduce, Store)):
        return buffer in reads(stmt)
    return buffer in buffers_of(stmt)
