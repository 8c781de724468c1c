"""write_out: short loops that take parts of a fragment, or of a group, in turn are written out.

Which register holds ``sums[part * 16 + i, j]`` must be known when the kernel is compiled: a loop
over ``part`` of few turns is as many statements, in each of which it is a number. So is a loop in
which a point goes through its elements of a tensor, as over ``k`` of ``boxes[i, k]`` or
``x[i, 2 * j + k]``: what is known to take all elements of a group moves at once. And so is a loop
of very few turns over rows, as over ``k`` of ``x[i + k, j]``: neighbours of each row move at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilecore.inference.gpu.plan import CHUNK_BYTES
from tilecore.ir import nodes
from tilecore.ir.arithmetic.bounds import step_of
from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.expr import Expr, Load, Var, const, int_value
from tilecore.ir.nodes import Buffer, For, Parallel, PrimFunc, Seq, Stmt
from tilecore.ir.substitute import Substitution
from tilecore.ir.visitor import Rewriter, expressions, has_jump, regions, walk, walk_expr, with_body

MOST_TURNS, MOST_STATEMENTS = 8, 128
MOST_ROWS = 4  # all of which a thread has in registers at once


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with such loops written out."""
    return with_body(func, _Written().visit(func.body))


class _Written(Rewriter):
    def __init__(self) -> None:
        self.names: tuple[Var, ...] = ()  # of the nest around

    def visit_parallel(self, nest: Parallel) -> Stmt:
        before, self.names = self.names, (*self.names, *nest.loop_vars)
        made = self.rebuild(nest)
        self.names = before
        return made

    def visit_for(self, loop: For) -> Stmt:
        kept = self.rebuild(loop)
        assert isinstance(kept, For)
        start, step, turns = (int_value(e) for e in (kept.start, kept.step, trip_count(kept)))
        if start is None or step is None or turns is None or not 1 <= turns <= MOST_TURNS:
            return kept
        if kept.kind not in ("serial", "unroll") or kept.annotations or not _may_repeat(kept.body):
            return kept
        if turns * sum(1 for _ in walk(kept.body)) > MOST_STATEMENTS:
            return kept
        takes_parts = any(kept.loop_var in parts for parts in _mixed(kept.body))
        takes_parts = takes_parts or _takes_groups(kept, turns, self.names)
        if not takes_parts and not (turns <= MOST_ROWS and _takes_rows(kept, self.names)):
            return kept
        turns_of = range(start, start + step * turns, step)
        return Seq(tuple(_turn(kept, value) for value in turns_of), kept.span)


def _may_repeat(body: Stmt) -> bool:
    if has_jump(body):
        return False
    return not any(isinstance(s, (nodes.Alloc, nodes.Gemm, nodes.While)) for s in walk(body))


def _mixed(body: Stmt) -> Iterator[set[Expr]]:
    """Yield what stands in indices by which nests and copies move along fragments."""
    for stmt in walk(body):
        for region in regions(stmt):
            if region.buffer.scope == "fragment":
                for offset, extent in zip(region.offsets, region.extents, strict=True):
                    if int_value(extent) != 1:
                        yield set(walk_expr(offset))
        if isinstance(stmt, Parallel):
            names = set(stmt.loop_vars)
            for index in (i for s in walk(stmt.body) for i in _indices(s)):
                parts = set(walk_expr(index))
                if parts & names:
                    yield parts


def _takes_groups(loop: For, turns: int, names: tuple[Var, ...]) -> bool:
    """Return whether a point of a nest takes the elements of a group of a tensor in turn."""
    for buffer, indices in (a for s in walk(loop.body) for a in _accesses(s)):
        if buffer.scope != "global" or not indices or step_of(indices[-1], loop.loop_var) != 1:
            continue
        groups = {step_of(indices[-1], name) or 0 for name in names}
        if set(names) & {part for index in indices[:-1] for part in walk_expr(index)}:
            groups.add(int_value(buffer.shape[-1]) or 0)
        most = CHUNK_BYTES // buffer.dtype.itemsize
        if any(turns <= size <= most for size in groups):
            return True
    return False


def _takes_rows(loop: For, names: tuple[Var, ...]) -> bool:
    """Return whether a point of a nest takes elements of several rows in turn."""
    for buffer, indices in (a for s in walk(loop.body) for a in _accesses(s)):
        rows = {part for index in indices[:-1] for part in walk_expr(index)}
        is_row = any(step_of(indices[-1], name) == 1 for name in names) if indices else False
        if is_row and buffer.scope != "local" and loop.loop_var in rows:
            return True
    return False


def _indices(stmt: Stmt) -> Iterator[Expr]:
    """Yield the indices of fragments in a statement."""
    return (i for b, indices in _accesses(stmt) if b.scope == "fragment" for i in indices)


def _accesses(stmt: Stmt) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    """Yield the elements that a statement stores and loads."""
    if isinstance(stmt, nodes.Store):
        yield stmt.buffer, stmt.indices
    for node in (n for e in expressions(stmt) for n in walk_expr(e)):
        if isinstance(node, Load):
            yield node.buffer, node.indices


def _turn(loop: For, value: int) -> Stmt:
    """Return a turn of a loop, with variables of its own."""
    names: dict[Var, Expr] = {loop.loop_var: const(value, str(loop.loop_var.dtype))}
    for stmt in walk(loop.body):
        found: tuple[Var, ...] = ()
        match stmt:
            case nodes.Let(var=var) | For(loop_var=var):
                found = (var,)
            case Parallel(loop_vars=loop_vars):
                found = loop_vars
        names |= {v: Var(v.name, v.dtype) for v in found}
    return _Copies(names).stmt(loop.body)


class _Copies(Substitution):
    def stmt(self, stmt: Stmt) -> Stmt:
        """Return a statement of its own, also where nothing in it changes."""
        made = super().stmt(stmt)
        return replace(made) if made is stmt else made  # type: ignore[type-var]
