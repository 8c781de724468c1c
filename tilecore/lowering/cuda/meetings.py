"""Where threads of a block meet: barriers, and what must be complete or visible before them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.plan import Pipeline
from tilecore.ir import nodes
from tilecore.ir.clusters import SYNCS
from tilecore.ir.nodes import RUNS_ON, Stmt
from tilecore.ir.plain.named_barriers import ARRIVES, MEETS, MOST, named
from tilecore.ir.visitor import has_jump, walk
from tilecore.lowering.cuda.hidden_writes import HiddenWrites
from tilecore.lowering.cuda.tensors import unsupported
from tilecore.lowering.cuda.threads import emit_arrive
from tilecore.lowering.tir import index

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering

COMPUTING = 1  # named barrier of the threads that compute, where others issue copies


class Meetings:
    """Emits the barriers of a launch.

    Attributes:
        has_stored: whether a tile may still be read.
        repeats: whether stores of loops may be, which have no order among each other.
        has_written: whether threads may have written a tile of asynchronous units since they last
            told these of it.
        has_copied: whether copies of threads may be under way that nobody has waited for.
    """

    def __init__(self, owner: LaunchLowering) -> None:
        self.owner = owner
        self.has_stored = self.repeats = False
        self.has_written = self.has_copied = False
        self.hidden = HiddenWrites(owner.plan)

    @contextlib.contextmanager
    def noting(self, stmt: Stmt) -> Iterator[None]:
        """Emit a statement; in a loop a turn may have come before, and none may come at all."""
        before = self.has_written
        if isinstance(stmt, (nodes.For, nodes.While)):
            self.has_written = self.hidden.at_turn(stmt, before)
            inside = list(walk(stmt))
            handed_over = [s for s in inside if self._runs_on(s)]
            self.has_stored |= bool(handed_over)
            self.repeats |= any(isinstance(s, nodes.Copy) for s in handed_over)
            self.has_copied |= any(s in self.owner.plan.unawaited for s in inside)
        elif isinstance(stmt, nodes.ClusterCopy):  # its threads meet when they have written
            self.has_written |= self.hidden.by(stmt)
        begun = self.has_stored, self.has_copied
        yield
        if isinstance(stmt, (nodes.For, nodes.While)):
            self.has_written |= before or (has_jump(stmt.body) and self.hidden.by(stmt))
            self.has_stored |= begun[0]
            self.has_copied |= begun[1]
        elif not isinstance(stmt, (nodes.Seq, nodes.If)):  # folds write after they meet
            self.has_written |= self.hidden.by(stmt)

    @contextlib.contextmanager
    def perhaps(self) -> Iterator[None]:
        """Emit a body that may not run: those who do not come by have waited and told nobody."""
        before = self.has_written, self.has_stored, self.has_copied
        yield
        self.has_written |= before[0]
        self.has_stored |= before[1]
        self.has_copied |= before[2]

    def _runs_on(self, stmt: Stmt) -> bool:
        """Return whether a tile is handed over that is waited for where the threads meet next."""
        is_told = isinstance(stmt, nodes.Copy) and RUNS_ON in stmt.annotations
        own = self.owner.plan.own_rows
        is_of_groups = own is not None and own.stored is stmt
        return stmt in self.owner.plan.running and not is_told and not is_of_groups

    def sync_arrived(self, pipeline: Pipeline) -> None:
        """Let all threads meet when their own copies of a pipeline have written their tiles.

        Units are told here, or where the threads meet again before one reads.
        """
        has_written = self.hidden.by_copies(pipeline.tiles)
        is_later = self.hidden.are_told_later(pipeline.loop)
        self.has_written |= has_written and not is_later
        self.sync()
        self.has_written |= has_written and is_later

    def sync(self) -> None:
        """Let all threads meet; what they wrote to shared memory is seen by wgmma too."""
        self.fence()
        self._meet()
        if self.owner.tensor is not None:
            self.owner.tensor.fence(before=False)

    def sync_of(self, scope: str, stmt: Stmt) -> None:
        """Let the threads of a scope meet."""
        if scope in ("block", "group"):
            self.sync()
        elif scope in (MEETS, ARRIVES):
            self._meet_by_name(stmt)
        elif scope == "warp":
            self.owner.builder.evaluate(ptx.sync_warp().call())
        elif scope in SYNCS:
            self._sync_cluster(scope)
        else:
            raise unsupported(stmt, self.owner.target, f"no barrier of a {scope} yet")

    def _sync_cluster(self, scope: str) -> None:
        """Emit the barrier of the cluster; other blocks may read what threads have copied."""
        if scope != "cluster_wait":
            self.fence()
        self.owner.clusters.sync(scope)
        if self.owner.tensor is not None and scope != "cluster_arrive":
            self.owner.tensor.fence(before=False)

    def _meet_by_name(self, stmt: Stmt) -> None:
        assert isinstance(stmt, nodes.Sync)
        self.fence()
        bar = ptx.bar_sync() if stmt.scope == MEETS else ptx.bar_arrive()
        self.owner.builder.evaluate(bar.call(index(stmt.barrier), index(stmt.count)))
        if self.owner.tensor is not None and stmt.scope == MEETS:
            self.owner.tensor.fence(before=False)

    def _own_barrier(self, position: int) -> int:
        """Return the number of a barrier that the program itself does not use."""
        taken = named(walk(self.owner.launch.body))
        free = [n for n in range(COMPUTING, MOST + 1) if n not in taken]
        return free[position]

    def _meet(self) -> None:
        teams = self.owner.plan.teams
        if self.owner.team != teams.whole:
            number = self._own_barrier(1 + teams.all.index(self.owner.team))
            self.owner.builder.evaluate(
                ptx.bar_sync().call(index(number), index(self.owner.team.count))
            )
        elif self.owner.boxes is None:
            self.owner.builder.evaluate(ptx.sync_threads().call())
        else:
            threads = index(self.owner.plan.thread_count)
            self.owner.builder.evaluate(ptx.bar_sync().call(index(self._own_barrier(0)), threads))

    def await_copies(self) -> None:
        """Wait for the thread's own copies that are under way."""
        if self.has_copied:
            self.owner.builder.evaluate(ptx.cp_async_commit().call())
            self.owner.builder.evaluate(ptx.cp_async_wait(0).call())
            self.has_copied = False

    def end(self) -> None:
        """Wait for what threads have under way that shared memory must live for."""
        self.owner.running.drain()
        self.await_copies()
        if self.owner.plan.running:
            self.owner.builder.evaluate(ptx.bulk_wait(0, only_reads=True).call())

    def await_stores(self, pending: int, *, only_reads: bool) -> None:
        """Let the thread that hands tiles over wait until they have been read, or are there."""
        with self.owner.builder.when(tir.EQ(index(self.owner.accessor.thread), index(0))):
            self.owner.builder.evaluate(ptx.bulk_wait(pending, only_reads=only_reads).call())

    def fence(self) -> None:
        """Make what threads wrote to shared memory visible to instructions that read it."""
        self.await_copies()
        if self.has_stored:
            self.await_stores(0, only_reads=not self.repeats)
            self.has_stored = False
        plan = self.owner.plan
        kinds = {product.kind for product in plan.gemms.values()}
        of_boxes = plan.stores or plan.loads or plan.updates or plan.multicasts
        is_read = kinds & {"wgmma", "tcgen05"} or of_boxes
        if is_read and self.has_written:
            of_cluster = self.owner.clusters.is_used
            self.owner.builder.evaluate(ptx.fence_async(of_cluster).call())
            self.has_written = False
        if self.owner.tensor is not None:
            self.owner.tensor.fence(before=True)

    def arrive(self, stmt: nodes.Arrive) -> None:
        """Emit an arrival; where one thread arrives for its team, all are done before."""
        owner = self.owner
        if stmt.after_products and owner.tensor is not None:
            owner.tensor.commit_to(stmt)
            return
        if stmt.once and (not owner.launch.thread_vars or id(stmt) in owner.plan.teams.of):
            self.sync()
        self.fence()
        if stmt.rank is not None:
            owner.clusters.arrive(stmt)
        else:
            emit_arrive(owner.accessor, stmt)
