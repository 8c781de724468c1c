"""Products and copies that the program waits for: those that may be under way.

Products (``T.wgmma_gemm``) may read their tiles beyond a barrier. A warpgroup completes them in the
order in which they were issued; where ways join by which others were issued or waited for, that
order is not known.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from tilecore.inference.gpu.threads.touches import Touched
from tilecore.ir import nodes
from tilecore.ir.expr import Load
from tilecore.ir.nodes import Buffer, Gemm, Stmt
from tilecore.ir.visitor import buffers_of, expressions, walk, walk_expr

BODIES = (nodes.If, nodes.For, nodes.While)  # what is inside waits by itself


class UnderWay:
    """The products that may be under way where a walk through a launch is.

    Attributes:
        read: what each of them reads.
        in_order: whether all of them are under way, the oldest first.
    """

    def __init__(
        self, read: Mapping[Gemm, Touched] | None = None, *, in_order: bool = True
    ) -> None:
        self.read = dict(read or {})
        self.in_order = in_order

    def copy(self) -> UnderWay:
        """Return the same, to go on from here another way."""
        return UnderWay(self.read, in_order=self.in_order)

    def begin(self, gemm: Gemm, own: Touched) -> None:
        """Add a product, as the youngest."""
        self.read.pop(gemm, None)
        self.read[gemm] = Touched(read=own.read)

    def wait(self, pending: int) -> None:
        """Forget all but the youngest ``pending``."""
        if self.in_order or not pending:
            self._complete(len(self.read) - pending)

    def wait_for(self, stmt: Stmt, written: set[Buffer]) -> None:
        """Forget the products that a statement needs the sums of, or writes a tile of.

        ``written``: tiles that lie where it writes.
        """
        used = {b.root for b in buffers_of(stmt)}
        if isinstance(stmt, BODIES):
            loaded = (n for e in expressions(stmt) for n in walk_expr(e) if isinstance(n, Load))
            used = {n.buffer.root for n in loaded}
        for gemm in [g for g in self.read if _is_awaited(g, stmt, used, written)]:
            if gemm in self.read and self.in_order:
                self._complete(list(self.read).index(gemm) + 1)
            else:
                self.read.pop(gemm, None)
        self.in_order |= not self.read

    def join(self, others: Mapping[Gemm, Touched]) -> None:
        """Add the products that may be under way where threads come by another way."""
        self.in_order &= list(others) == list(self.read)
        self.read = {**others, **self.read}

    def all_read(self) -> Touched:
        """Return what they may read."""
        found = Touched()
        for own in self.read.values():
            found = found.union(own)
        return found

    def _complete(self, count: int) -> None:
        for gemm in list(self.read)[: max(0, count)]:
            del self.read[gemm]
        self.in_order |= not self.read


def _is_awaited(gemm: Gemm, stmt: Stmt, used: set[Buffer], written: set[Buffer]) -> bool:
    is_next = isinstance(stmt, Gemm) and stmt.c.buffer is gemm.c.buffer
    needs_sums = gemm.c.buffer.root in used and not is_next
    return needs_sums or not written.isdisjoint((gemm.a.buffer.root, gemm.b.buffer.root))


def waited_for(body: Stmt, loads: Container[Stmt]) -> Iterator[tuple[int, Buffer]]:
    """Yield the ids of copies that run until threads wait for them, with their barriers."""
    for stmt in walk(body):
        if not isinstance(stmt, nodes.Copy | nodes.ClusterCopy) or stmt not in loads:
            continue
        copy = stmt.copy if isinstance(stmt, nodes.ClusterCopy) else stmt
        if stmt.barrier is not None:
            yield id(copy), stmt.barrier.buffer
