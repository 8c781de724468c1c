"""Roles: branches that split the threads of a block by their index, and run concurrently on a GPU.

Roles without waits run one after the other. Where they wait for each other at barriers they become
coroutines: each role runs until it meets a wait that is not over, then the next one gets its turn
(passes/threads/coroutine.py). The order in which a GPU would run them may differ, their results may
not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilecore.errors import ScopeError
from tilecore.ir import nodes
from tilecore.ir.expr import Binary, Expr, Load, Var
from tilecore.ir.lane_matrix import LANES
from tilecore.ir.nodes import Buffer, Seq, Stmt
from tilecore.ir.values.evaluate import Evaluator
from tilecore.ir.visitor import buffers_of, flat, walk, walk_expr
from tilecore.passes.threads.coroutine import interleave
from tilecore.passes.threads.schedule import fuse

if TYPE_CHECKING:
    from tilecore.passes.threads.serialize_threads import Serializer

Part = tuple[range, Stmt]  # neighbouring threads, and what they run


def thread_parts(owner: Serializer, stmt: Stmt) -> list[Part] | None:
    """Return which threads run which body of a branch (``if``, ``elif`` .. ``else``).

    None if more than the thread's index decides, or the threads of a body are no neighbours or not
    all of a group that exchanges values.
    """
    if not isinstance(stmt, nodes.If):
        return None
    stmt = _thread_first(owner, stmt)
    if _taken(owner, stmt.cond, list(owner.active)) is None:
        return None
    found: list[Part] = []
    for members, body in _leaves(owner, stmt, list(owner.active)):
        threads = range(members[0], members[-1] + 1)
        if len(threads) != len(members) or _splits_groups(owner, threads, body):
            return None
        found.append((threads, body))
    return found


def _leaves(owner: Serializer, stmt: Stmt, members: list[int]) -> Iterator[tuple[list[int], Stmt]]:
    # What is said of all of them (T.set_max_nreg) is a hint: roles below one are roles beside it.
    own = [s for s in flat([stmt]) if not isinstance(s, nodes.Annotate)]
    inner = own[0] if len(own) == 1 else stmt
    inner = _thread_first(owner, inner) if isinstance(inner, nodes.If) else inner
    taken = _taken(owner, inner.cond, members) if isinstance(inner, nodes.If) else None
    if taken is None or not isinstance(inner, nodes.If):
        yield members, stmt
        return
    for body, wanted in ((inner.then_body, True), (inner.else_body, False)):
        chosen = [m for m, t in zip(members, taken, strict=True) if t == wanted]
        if body is not None and chosen:
            yield from _leaves(owner, body, chosen)


def _splits_groups(owner: Serializer, threads: range, body: Stmt) -> bool:
    """Return whether a group that exchanges values has threads outside of ``threads``."""
    widths = [s.width or owner.count for s in walk(body) if isinstance(s, nodes.Exchange)]
    widths += [LANES for s in walk(body) if isinstance(s, nodes.LaneGemm)]
    return any(threads.start % w or len(threads) % w for w in widths)


def _thread_first(owner: Serializer, stmt: nodes.If) -> nodes.If:
    """Return ``if thread and other`` as ``if thread: if other``.

    Not if what else there is is done by all of its threads together: it would be in two parts.
    """
    cond, threads, otherwise = stmt.cond, list(owner.active), stmt.else_body
    waits = any(isinstance(s, nodes.Wait) for s in walk(stmt))
    if otherwise is not None and not waits and owner.splits(otherwise):
        return stmt
    if not isinstance(cond, Binary) or cond.op != "and" or _taken(owner, cond, threads) is not None:
        return stmt
    for own, other in ((cond.a, cond.b), (cond.b, cond.a)):
        if _taken(owner, own, threads) is not None:
            inner = dataclasses.replace(stmt, cond=other)
            return dataclasses.replace(stmt, cond=own, then_body=inner)
    return stmt


def _taken(owner: Serializer, cond: Expr, members: list[int]) -> list[bool] | None:
    """Return which of the threads meet ``cond``, if their index alone decides."""
    made = owner.each.expr(cond)
    leaves = [e for e in walk_expr(made) if isinstance(e, (Var, Load))]
    if not leaves or any(e is not owner.thread for e in leaves):
        return None
    values = Evaluator({owner.thread: np.asarray(members)})(made)
    return [bool(v) for v in np.broadcast_to(values, len(members))]


class Roles:
    """The roles met one after the other in a sequence, until something else follows them."""

    def __init__(self, owner: Serializer) -> None:
        self.owner = owner
        self.bodies: dict[range, list[Stmt]] = {}

    def add(self, parts: Sequence[Part]) -> list[Stmt]:
        """Take the parts of one more branch; return what has to run before it."""
        before: list[Stmt] = []
        if any(_overlap(p, known) for p, _ in parts for known in self.bodies if p != known):
            before = self.end()
        for threads, body in parts:
            self.bodies.setdefault(threads, []).append(body)
        return before

    def end(self) -> list[Stmt]:
        """Return the statements by which one thread runs all roles, and forget them."""
        owner, bodies = self.owner, self.bodies
        if not bodies:
            return []
        self.bodies = {}
        outside = owner.active
        made: list[list[Stmt]] = []
        for threads, body in bodies.items():
            owner.active = threads
            made.append(owner.sequence(body, ()))
        owner.active = outside
        _check_registers(dict(zip(bodies, made, strict=True)))
        waits = any(isinstance(s, nodes.Wait) for body in made for stmt in body for s in walk(stmt))
        # Roles within a role have only one turn together: it is the outer role that waits.
        if waits and len(made) > 1 and len(outside) == owner.count:
            busy = [body for body in made if body]
            fused = fuse(busy) if owner.fuses else None
            return fused or interleave([Seq(tuple(body), body[0].span) for body in busy])
        return [stmt for body in made for stmt in body]


def _check_registers(bodies: Mapping[range, Sequence[Stmt]]) -> None:
    """Refuse fragments of several roles: each role has registers of its own."""
    owners: dict[Buffer, range] = {}
    for threads, body in bodies.items():
        for stmt in body:
            for buffer in buffers_of(stmt):
                if buffer.scope != "fragment" or owners.setdefault(buffer.root, threads) == threads:
                    continue
                other = owners[buffer.root]
                raise ScopeError(
                    message=f"fragment `{buffer.name}` is used by threads {other.start} to "
                    f"{other.stop - 1} and by threads {threads.start} to {threads.stop - 1}",
                    hint="registers belong to threads: give each role a fragment of its own, or "
                    "share a tile of T.alloc_shared",
                ).at(stmt.span)


def _overlap(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop
