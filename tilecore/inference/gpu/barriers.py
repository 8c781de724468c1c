"""Where the threads of a block must meet: proven by what statements read and write.

Two accesses of one memory, one of them a write, by different statements need a barrier between
them. The walk keeps what was touched since the last barrier and puts one before a statement only
if it conflicts; the body of a loop is walked again with what its end leaves, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilecore.inference.gpu.plan import Pipeline
from tilecore.ir import nodes
from tilecore.ir.analysis import reads, writes
from tilecore.ir.expr import Expr, Load
from tilecore.ir.nodes import Buffer, Stmt
from tilecore.ir.visitor import walk, walk_expr

TILE_STATEMENTS = (
    nodes.Copy, nodes.Fill, nodes.Gemm, nodes.Reduce, nodes.Scan, nodes.Parallel,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Touched:
    """Memory touched since the last barrier, by tile statements and by single threads."""

    read: frozenset[tuple[Buffer, bool]] = frozenset()
    written: frozenset[tuple[Buffer, bool]] = frozenset()

    def union(self, other: Touched) -> Touched:
        """Return what either touched."""
        return Touched(self.read | other.read, self.written | other.written)


class Barriers:
    """Finds the barriers of one launch.

    Args:
        memory: for each tile in shared memory those that share its place.
        pipelines: loops at whose head all threads meet, with the copies that run ahead.
        by_thread: whether statements outside tile operations run once per thread: among
            themselves the program places their barriers.
    """

    def __init__(
        self,
        memory: Mapping[Buffer, set[Buffer]],
        pipelines: Mapping[Stmt, Pipeline],
        by_thread: bool,
    ) -> None:
        self.memory, self.pipelines, self.by_thread = memory, pipelines, by_thread
        self.before: set[Stmt] = set()

    def find(self, body: Stmt) -> frozenset[Stmt]:
        """Return the statements before which the threads must meet."""
        self._walk(body, Touched())
        return frozenset(self.before)

    def _walk(self, stmt: Stmt, touched: Touched) -> Touched:
        match stmt:
            case nodes.Seq(stmts=stmts):
                for child in stmts:
                    touched = self._walk(child, touched)
                return touched
            case nodes.Sync(scope="block" | "grid"):
                return Touched()
            case nodes.If(cond=cond, then_body=then, else_body=other):
                touched = self._touch(stmt, self._of_expr(cond), touched)
                after = self._walk(then, touched)
                return after.union(self._walk(other, touched) if other is not None else touched)
            case nodes.For() | nodes.While():
                return self._loop(stmt, touched)
            case _:
                return self._touch(stmt, self._of(stmt), touched)

    def _loop(self, stmt: nodes.For | nodes.While, touched: Touched) -> Touched:
        exprs = [stmt.start, stmt.stop, stmt.step] if isinstance(stmt, nodes.For) else [stmt.cond]
        own = Touched()
        for expr in exprs:
            own = own.union(self._of_expr(expr))
        pipeline = self.pipelines.get(stmt)
        if pipeline is not None:
            filled = frozenset((b, True) for c in pipeline.copies for b in writes(c))
            own = own.union(Touched(written=filled))
        touched = self._touch(stmt, own, touched)
        entry = touched
        while True:
            count = len(self.before)
            after = self._walk(stmt.body, Touched() if pipeline is not None else entry)
            entry = entry.union(after)
            if isinstance(stmt, nodes.While) and self._conflict(own, after):
                self.before.add(stmt.body)
            if len(self.before) == count and pipeline is None:
                again = self._walk(stmt.body, entry)
                if len(self.before) == count:
                    return touched.union(again)
            elif pipeline is not None:
                return touched.union(after)

    def _touch(self, stmt: Stmt, own: Touched, touched: Touched) -> Touched:
        if stmt in self.before or self._conflict(own, touched):
            self.before.add(stmt)
            return own
        return touched.union(own)

    def _conflict(self, own: Touched, touched: Touched) -> bool:
        def meet(
            a: frozenset[tuple[Buffer, bool]], b: frozenset[tuple[Buffer, bool]], both: bool
        ) -> bool:
            for buffer, is_tile in a:
                others = self.memory.get(buffer.root, {buffer.root})
                for other, was_tile in b:
                    if self.by_thread and not (is_tile or was_tile):
                        continue
                    is_global = other.root.scope == "global"
                    if other.root in others and not (both and is_global):
                        return True
            return False

        return (
            meet(own.written, touched.read, False)
            or meet(own.read, touched.written, False)
            or meet(own.written, touched.written, True)
        )

    def _of(self, stmt: Stmt) -> Touched:
        """Return what a statement and those inside it touch."""
        is_tile = isinstance(stmt, TILE_STATEMENTS)
        skipped = {id(c) for p in self.pipelines.values() for c in p.copies}
        if id(stmt) in skipped:
            return Touched()
        read: set[tuple[Buffer, bool]] = set()
        written: set[tuple[Buffer, bool]] = set()
        for node in walk(stmt):
            read |= {(b, is_tile) for b in reads(node) if self._matters(b)}
            written |= {(b, is_tile) for b in writes(node) if self._matters(b)}
        return Touched(frozenset(read), frozenset(written))

    def _of_expr(self, expr: Expr) -> Touched:
        found = {
            (n.buffer, False)
            for n in walk_expr(expr)
            if isinstance(n, Load) and self._matters(n.buffer)
        }
        return Touched(read=frozenset(found))

    def _matters(self, buffer: Buffer) -> bool:
        return buffer.root in self.memory or buffer.root.scope == "global"
