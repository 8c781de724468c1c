"""Products of warpgroups that are under way, and the waits for them.

A warpgroup completes its products in the order in which they were issued, so that what waits for
one says how many younger ones may still run (``wgmma.wait_group``). Products are waited for where a
statement needs their sums or writes what they read; where threads meet or tell others that memory
is free; and where a body ends, so that a loop begins every turn with nothing under way. Only
products that the program itself waits for (``T.wgmma_gemm``) run on across all that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.plan import GemmPlan
from tilecore.inference.gpu.scratch import folds_across_warps
from tilecore.inference.gpu.shared import sharing_memory
from tilecore.ir import nodes
from tilecore.ir.analysis import written_buffers
from tilecore.ir.expr import Load
from tilecore.ir.nodes import Buffer, Gemm, Stmt
from tilecore.ir.visitor import buffers_of, children, expressions, walk, walk_expr
from tilecore.lowering.cuda.products.wgmma import WgmmaLowering

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering

MOST = 7  # groups that a wait may leave under way
BODIES = (nodes.For, nodes.While, nodes.If)
TOLD = (nodes.Sync, nodes.Arrive, nodes.ClusterCopy)  # others learn that memory is free
LOUD = (Gemm, nodes.For, nodes.While, nodes.Jump, nodes.Wait, nodes.Annotate, *TOLD)


@dataclass(slots=True)
class Running:
    """A product under way; ``then``: what is emitted when it is complete."""

    lowering: WgmmaLowering
    then: list[Callable[[], None]] = field(default_factory=list)

    @property
    def stmt(self) -> Gemm:
        """Return the product."""
        return self.lowering.stmt

    @property
    def plan(self) -> GemmPlan:
        """Return how it runs."""
        return self.lowering.plan


class RunningProducts:
    """The products under way where the code emitted so far ends.

    ``groups``: those known to be the youngest, in order; ``older``: those that may be under way
    before them, in no known number or order.
    """

    def __init__(self, owner: LaunchLowering) -> None:
        self.owner, self.builder = owner, owner.builder
        self.older: list[Running] = []
        self.groups: list[Running] = []
        self.waits = 0  # emitted so far
        self.memory = sharing_memory(owner.plan.shared)

    def issue(self, plan: GemmPlan) -> None:
        """Emit a product, which is under way from then on."""
        lowering = WgmmaLowering(self.owner.accessor, plan)
        lowering.start()
        if len(self.groups) == MOST:
            self.wait(MOST - 1)
        self.groups.append(Running(lowering))
        if not lowering.in_place:
            self.wait(0)
            lowering.finish()

    def wait(self, pending: int) -> None:
        """Emit the wait for all products but the youngest ``pending``."""
        if pending >= len(self.groups) and not self.older:
            return
        self.waits += 1
        self.builder.evaluate(ptx.wgmma_wait(pending).call())
        if pending > len(self.groups):
            return
        kept = self.groups[len(self.groups) - pending :]
        done = [*self.older, *self.groups[: len(self.groups) - pending]]
        self.older, self.groups = [], kept
        running = {id(r.stmt.c.buffer) for r in kept}
        for product in done:
            if id(product.stmt.c.buffer) not in running:
                product.lowering.keep_sums()
            product.lowering.keep_operand()
            for emit in product.then:
                emit()

    def drain(self, *, all_of_them: bool = True) -> None:
        """Emit the wait for all products, or for all but those the program waits for."""
        if all_of_them or not all(r.stmt.in_group for r in (*self.groups, *self.older)):
            self.wait(0)

    def before(self, stmt: Stmt) -> None:
        """Emit the wait that a statement needs."""
        is_body = isinstance(stmt, BODIES) and not self._is_quiet(stmt)
        if self._meets_others(stmt) or is_body or isinstance(stmt, TOLD):
            self.drain(all_of_them=False)
        if is_body:
            self._settle()
        youngest = [n for n, r in enumerate(self.groups) if self._meets(r, stmt)]
        if youngest:
            self.wait(len(self.groups) - 1 - youngest[-1])
        elif any(self._meets(r, stmt) for r in self.older):
            self.wait(len(self.groups))

    def _settle(self) -> None:
        """Emit the wait for products that something follows: in a body it might not come by."""
        followed = [n for n, r in enumerate(self.groups) if r.then]
        if followed:
            self.wait(len(self.groups) - 1 - followed[-1])
        elif any(r.then for r in self.older):
            self.wait(len(self.groups))

    def when_read(self, tiles: Sequence[Buffer], emit: Callable[[], None]) -> None:
        """Emit something once no product under way reads one of these tiles any more."""
        under_way = [*self.older, *self.groups]
        readers = [
            r for r in under_way if {r.stmt.a.buffer.root, r.stmt.b.buffer.root} & set(tiles)
        ]
        if readers:
            readers[-1].then.append(emit)
        else:
            emit()

    def _meets(self, product: Running, stmt: Stmt) -> bool:
        """Return whether a statement needs a product's sums, or writes memory that it reads."""
        gemm = product.stmt
        if isinstance(stmt, nodes.Seq):
            return False
        if isinstance(stmt, BODIES) and not self._is_quiet(stmt):  # what is inside asks by itself
            loaded = (n for e in expressions(stmt) for n in walk_expr(e) if isinstance(n, Load))
            return gemm.c.buffer.root in {n.buffer.root for n in loaded}
        if isinstance(stmt, Gemm) and self._follows(stmt, product):
            return False
        if gemm.c.buffer.root in {b.root for b in buffers_of(stmt)}:
            return True
        read = {gemm.a.buffer.root, gemm.b.buffer.root}
        written = {b.root for b in written_buffers(stmt)}
        return any(not read.isdisjoint(self.memory.get(b, {b})) for b in written)

    def _is_quiet(self, stmt: Stmt) -> bool:
        """Return whether a branch is waited for like any other statement.

        Threads do not meet in it, nor do products begin: what is under way before it is after it.
        """
        inside = list(walk(stmt))
        return not any(isinstance(s, LOUD) or self._meets_others(s) for s in inside)

    def _meets_others(self, stmt: Stmt) -> bool:
        """Return whether the threads meet before a statement, or within a reduction."""
        plan = self.owner.plan
        nest = plan.nests.get(stmt)
        meets = nest is not None and folds_across_warps(nest, self.owner.isa.warp)
        return meets or stmt in plan.barriers

    def _follows(self, gemm: Gemm, product: Running) -> bool:
        """Return whether a product adds to the sums of another as the same instruction does."""
        own = self.owner.plan.gemms[gemm]
        is_chain = gemm.c.buffer is product.stmt.c.buffer and own.kind == "wgmma"
        return is_chain and (own.shape, own.c) == (product.plan.shape, product.plan.c)

    @contextlib.contextmanager
    def branch(self, body: Stmt) -> Iterator[None]:
        """Emit a body that may not run."""
        before, waits = [*self.older, *self.groups], self.waits
        yield
        if self.owner.accessor.turn is not None:
            return
        if not self._is_quiet(body):
            self.drain(all_of_them=id(body) in self.owner.plan.teams.bodies)
        elif waits == self.waits:
            return
        self.older, self.groups = _union(before, [*self.older, *self.groups]), []

    @contextlib.contextmanager
    def turns(self, body: Stmt, trips: Any = None) -> Iterator[None]:
        """Emit a body that runs ``trips`` times: a number, or something not known."""
        if self.owner.accessor.turn is not None:
            yield
            return
        before, waits = [*self.older, *self.groups], self.waits
        again = [Running(lowering) for lowering in self._in_groups(body)]
        self.older, self.groups = _union(before, again), []
        yield
        self.drain(all_of_them=False)
        times = trips if isinstance(trips, int) else 0
        if times < 1:
            self.older, self.groups = _union(before, [*self.older, *self.groups]), []
        elif waits == self.waits:  # the turns before have left as many
            self.groups = (self.groups * min(times, MOST))[-MOST:]

    def _in_groups(self, body: Stmt) -> Iterator[WgmmaLowering]:
        """Yield the products that the program may leave running where a body ends."""
        plans = self.owner.plan.gemms
        stmts = children(body) if isinstance(body, nodes.Seq) else (body,)
        waits = [n for n, s in enumerate(stmts) if _waits_for_all(s)]
        after = stmts[waits[-1] + 1 :] if waits else stmts
        for stmt in (s for one in after for s in walk(one)):
            if isinstance(stmt, Gemm) and stmt.in_group and plans[stmt].kind == "wgmma":
                lowering = WgmmaLowering(self.owner.accessor, plans[stmt])
                if lowering.in_place:
                    yield lowering


def _union(some: list[Running], others: list[Running]) -> list[Running]:
    return list({id(r.stmt): r for r in (*some, *others)}.values())


def _waits_for_all(stmt: Stmt) -> bool:
    return isinstance(stmt, nodes.Annotate) and (stmt.key, stmt.value) == ("wait_products", 0)
