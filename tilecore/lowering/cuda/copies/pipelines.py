"""Pipelined loops: copies that run ahead of their use.

On sm_80 every thread copies its part (cp.async) and all threads meet once an iteration. From sm_90
on one thread of a warpgroup of its own asks the tensor memory accelerator for boxes; each tile has
two barriers per stage: ``full`` ends a phase when its bytes have arrived, ``empty`` when all warps
that read it are done.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.plan import Box, Group, Pipeline
from tilecore.inference.gpu.products.registers import traded
from tilecore.inference.gpu.products.tensor_products import only_product
from tilecore.ir import nodes
from tilecore.ir.nodes import Copy, For, Gemm, Stmt
from tilecore.ir.visitor import buffers_of, has_jump, walk
from tilecore.lowering.cuda.copies.boxes import boxes_of, prefetch_maps
from tilecore.lowering.cuda.copies.stages import Ring, use_stage
from tilecore.lowering.cuda.memory import only
from tilecore.lowering.cuda.nests.nest import AsyncCopyLowering
from tilecore.lowering.cuda.products.overlap import OverlappedLoop
from tilecore.lowering.cuda.products.tensor_pipelines import TensorPipeline, frees_by_commit
from tilecore.lowering.cuda.products.wgmma import WgmmaLowering
from tilecore.lowering.tir import add, index, mul, remainder

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering

WARP = 32


def statements_of(pipeline: Pipeline) -> tuple[Stmt, ...]:
    """Return the statements of an iteration but the copies that run ahead."""
    body = pipeline.loop.body
    stmts = body.stmts if isinstance(body, nodes.Seq) else (body,)
    return tuple(s for s in stmts if s not in pipeline.ahead)


def _names_tensor(stmt: Stmt) -> bool:
    """Return whether a statement brings a view of a tensor, or a tensor by its address, into being.

    What the copies look up may stand there.
    """
    return isinstance(stmt, nodes.Alloc) and stmt.buffer.root.scope == "global"


class AsyncPipeline:
    """A loop whose tiles all threads copy, ``stages - 1`` iterations ahead."""

    def __init__(self, owner: LaunchLowering, pipeline: Pipeline) -> None:
        self.owner, self.pipeline = owner, pipeline
        self.accessor, self.builder = owner.accessor, owner.builder
        self.start, self.trips, _ = owner.loops.trips(pipeline.loop)

    def emit(self) -> None:
        """Emit the loop."""
        builder, stages = self.builder, self.pipeline.stages
        ahead = stages - 1
        for number in range(ahead):
            self._issue(number, number)
        with builder.loop(self.trips) as turn:
            builder.evaluate(ptx.cp_async_wait(max(0, ahead - 1)).call())
            self.owner.meetings.sync_arrived(self.pipeline)
            later = add(turn, ahead)
            self._issue(later, builder.bind(remainder(later, stages)))
            use_stage(self.owner, self.pipeline.tiles, builder.bind(remainder(turn, stages)))
            self.owner.loops.iteration(self.pipeline.loop, add(self.start, turn))
            self.owner.running.drain()
        use_stage(self.owner, self.pipeline.tiles, 0)
        if has_jump(self.pipeline.loop.body):  # who left it has copies under way
            builder.evaluate(ptx.cp_async_wait(0).call())

    def _issue(self, turn: Any, stage: Any) -> None:
        """Emit the copies of an iteration, if there is such a one, as one group."""
        use_stage(self.owner, self.pipeline.tiles, stage)
        if not isinstance(turn, int) or not isinstance(self.trips, int):
            with self.builder.when(tir.LT(index(turn), index(self.trips))):
                self._copies(turn)
        elif turn < self.trips:
            self._copies(turn)
        self.builder.evaluate(ptx.cp_async_commit().call())

    def _copies(self, turn: Any) -> None:
        with self.owner.loops.named(self.pipeline.loop, add(self.start, turn)):
            for lookup in self.pipeline.lookups:
                self.owner.inner(lookup)
            for copy in self.pipeline.copies:
                with self.builder.at(copy.span):
                    AsyncCopyLowering(self.accessor, self.owner.plan.nests[copy]).emit()
            for gather in self.pipeline.gathers:
                with self.builder.at(gather.nest.span):
                    plan = self.owner.plan.nests[gather.nest]
                    AsyncCopyLowering(self.accessor, plan).emit(gather)


class BoxPipelines:
    """All pipelines of a launch whose tiles come in boxes, and their barriers.

    ``end``: of the shared memory of the block, where the barriers lie (in their size).
    """

    def __init__(self, owner: LaunchLowering, end: int) -> None:
        self.owner = owner
        self.accessor, self.builder = owner.accessor, owner.builder
        self.threads = owner.plan.thread_count
        self.barriers: dict[tuple[int, str], int] = {}
        pipelines = owner.plan.pipelines.values()
        place = end - sum(2 * p.stages * len(p.copies) for p in pipelines)
        for pipeline in pipelines:
            for copy in pipeline.copies:
                for kind in ("full", "empty"):
                    self.barriers[id(copy), kind] = place
                    place += pipeline.stages
        self.together = {
            id(copy): tuple(copies)
            for pipeline in pipelines for copies in self._sets(pipeline) for copy in copies
        }  # fmt: skip
        self.sizes = {
            id(copy): math.prod(box.extents) * box.panels * copy.dst.dtype.itemsize
            for p in pipelines for copy, box in zip(p.copies, p.boxes, strict=True)
        }  # fmt: skip
        self.rings: dict[int, Ring] = {}
        self.met = -1  # statements emitted when the lanes of a warp met last

    def barrier(self, copy: Copy, kind: str, stage: Any) -> Any:
        """Return a pointer to a barrier."""
        view, first = self.owner.view("uint64"), self.together[id(copy)][0]
        return self.builder.address(view, add(self.barriers[id(first), kind], stage))

    def is_first(self, copy: Copy) -> bool:
        """Return whether a tile is the first of those that share its barriers."""
        return self.together[id(copy)][0] is copy

    def _sets(self, pipeline: Pipeline) -> list[list[Copy]]:
        """Return the copies of tiles that are first read and freed together.

        They have the barriers of the first of them: what is waited for and told once instead of
        tile by tile is most of what a short iteration does beside its work.
        """
        owner, stmts = self.owner, statements_of(pipeline)
        used = [{b.root for b in buffers_of(s)} for s in stmts]
        found: dict[Any, list[Copy]] = {}
        for copy in pipeline.copies:
            at = [n for n, tiles in enumerate(used) if copy.dst.buffer in tiles]
            is_alone = (
                not at or pipeline.overlap is not None or pipeline.group(copy) is not None
                or only_product(pipeline, owner.plan.gemms) is not None
                or frees_by_commit(owner, pipeline, copy)
            )  # fmt: skip
            found.setdefault(id(copy) if is_alone else (at[0], at[-1]), []).append(copy)
        return list(found.values())

    def init(self) -> None:
        """Emit what makes memory barriers: by one thread, seen by all."""
        builder = self.builder
        with builder.when(tir.EQ(index(self.accessor.thread), index(0))):
            pipelines = self.owner.plan.pipelines.values()
            prefetch_maps(
                self.owner, (c for p in pipelines for c in zip(p.copies, p.boxes, strict=True))
            )
            for pipeline in pipelines:
                for copy in filter(self.is_first, pipeline.copies):
                    for stage in range(pipeline.stages):
                        readers = 1 if frees_by_commit(self.owner, pipeline, copy) else None
                        readers = readers or self.threads // WARP
                        group = pipeline.group(copy)
                        readers *= 1 if group is None else len(group.offsets)
                        for kind, count in (("full", 1), ("empty", readers)):
                            there = self.barrier(copy, kind, stage)
                            builder.evaluate(ptx.barrier_init().call(there, index(count)))
        builder.evaluate(ptx.fence_barrier_init().call())
        builder.evaluate(ptx.sync_threads().call())

    def emit_roles(self, body: Stmt) -> None:
        """Emit the producer's branch and that of all others."""
        builder = self.builder
        warp = builder.bind(ptx.warp_index().call())
        registers = traded(self.threads, self.owner.plan.fragments)
        producer = self.threads // WARP
        with builder.when(tir.GE(warp, index(producer))):
            if registers is not None:
                builder.evaluate(ptx.set_registers(registers[1], grows=False).call())
            with builder.when(tir.EQ(warp, index(producer))):
                chosen = builder.bind(ptx.elect().call())
                with builder.when(tir.NE(chosen, index(0))):
                    self._begin()
                    self._produce(body)
                    self._await_others()
        with builder.otherwise():
            if registers is not None:
                builder.evaluate(ptx.set_registers(registers[0], grows=True).call())
            self._begin()
            self.owner.declare_fragments()
            self.owner.statement(body)
            self.owner.meetings.end()

    def _begin(self) -> None:
        """Declare where in its tiles each loop is; one that runs again goes on from there."""
        pipelines = self.owner.plan.pipelines
        self.rings = {id(loop): Ring(self.builder, p.stages) for loop, p in pipelines.items()}

    # --- the producer -------------------------------------------------------------------------

    def _produce(self, stmt: Stmt) -> None:
        """Emit the copies of all pipelines inside, under the loops and conditions around them.

        And the jumps by which the loops around them are left.
        """
        owner, builder = self.owner, self.builder
        if not has_jump(stmt) and not any(s in owner.plan.pipelines for s in walk(stmt)):
            return
        match stmt:
            case nodes.Seq(stmts=stmts):
                for child in stmts:
                    if isinstance(child, nodes.Let) or _names_tensor(child):
                        owner.inner(child)
                    self._produce(child)
            case For() if stmt in owner.plan.pipelines:
                self._issue(owner.plan.pipelines[stmt])
            case For():
                start, trips, step = owner.loops.trips(stmt)
                with (
                    builder.loop(trips) as turn,
                    owner.loops.named(stmt, add(start, mul(turn, step))),
                ):
                    self._produce(stmt.body)
            case nodes.If(cond=cond, then_body=then, else_body=other):
                with builder.when(self.accessor.scalar(cond)):
                    self._produce(then)
                if other is not None:
                    with builder.otherwise():
                        self._produce(other)
            case nodes.Jump(word=word):
                builder.jump(word)
            case _:
                raise AssertionError("inference lets no pipeline stand here")

    def _issue(self, pipeline: Pipeline) -> None:
        builder = self.builder
        start, trips, _ = self.owner.loops.trips(pipeline.loop)
        with builder.kept_loop(trips) as turn:
            stage, parity = self.turn_of(pipeline)
            with self.owner.loops.named(pipeline.loop, add(start, turn)):
                for lookup in pipeline.lookups:
                    self.owner.inner(lookup)
                for copy, box in zip(pipeline.copies, pipeline.boxes, strict=True):
                    group = pipeline.group(copy)
                    empty = self.barrier(copy, "empty", stage)
                    with builder.at(copy.span):
                        if self.is_first(copy):
                            builder.evaluate(ptx.barrier_wait().call(empty, index(1) - parity))
                        self._load(copy, box, self.barrier(copy, "full", stage), group)
                self._produce(pipeline.loop.body)
            self.next_turn(pipeline)
        use_stage(self.owner, pipeline.tiles, 0)

    def _load(self, copy: Copy, box: Box, full: Any, group: Group | None) -> None:
        """Emit the boxes of one tile, by the first block of those that get the same."""
        if self.is_first(copy):
            size = sum(self.sizes[id(c)] for c in self.together[id(copy)])
            self.builder.evaluate(ptx.barrier_expect().call(full, index(size)))
        load = ptx.tma_load(
            len(box.extents), multicast=group is not None,
            stays=not self.owner.target.tma_reaches_cluster,
        )  # fmt: skip
        clusters, more, is_first = self.owner.clusters, [], None
        if group is not None:
            more = [clusters.mask_of(group)]
            is_first = tir.EQ(index(clusters.rank), clusters.first_of(group))
        with only(self.builder, is_first):
            for target, tensor_map, at in boxes_of(self.owner, box, copy.src, copy.dst):
                self.builder.evaluate(load.call(target, tensor_map, full, *at, *more))

    def _await_others(self) -> None:
        """Emit the wait until products of other blocks have told this one of all its tiles.

        They tell by themselves, which the barrier of the cluster does not wait for: a block that
        had exited would be told in memory that is another one's.
        """
        for pipeline in self.owner.plan.pipelines.values():
            told = [
                c for c in pipeline.copies
                if pipeline.group(c) is not None and frees_by_commit(self.owner, pipeline, c)
            ]  # fmt: skip
            if not told:
                continue
            wait = ptx.barrier_wait(of_cluster=True)
            with self.builder.kept_loop(pipeline.stages):
                stage, parity = self.turn_of(pipeline)
                for copy in told:
                    empty = self.barrier(copy, "empty", stage)
                    self.builder.evaluate(wait.call(empty, index(1) - parity))
                self.next_turn(pipeline)
            use_stage(self.owner, pipeline.tiles, 0)

    # --- the consumers ------------------------------------------------------------------------

    def consume(self, pipeline: Pipeline) -> None:
        """Emit the loop as the threads run it that use its tiles."""
        owner, builder = self.owner, self.builder
        start, trips, _ = owner.loops.trips(pipeline.loop)
        alone = only_product(pipeline, owner.plan.gemms)
        if alone is not None:
            TensorPipeline(self, pipeline, *alone).emit()
            return
        if pipeline.overlap is not None:
            OverlappedLoop(self, pipeline, pipeline.overlap).emit()
            return
        product = self._only_product(pipeline)
        with builder.kept_loop(trips) as turn:
            stage, parity = self.turn_of(pipeline)
            with owner.loops.named(pipeline.loop, add(start, turn)):
                if product is not None:
                    self._multiply(pipeline, product, turn, stage, parity)
                else:
                    self._iteration(pipeline, stage, parity)
            self.next_turn(pipeline)
        if product is not None:
            self._finish(pipeline, product, trips)
        use_stage(owner, pipeline.tiles, 0)

    def turn_of(self, pipeline: Pipeline) -> tuple[Any, Any]:
        """Return (stage, parity) of an iteration, whose tiles are meant from now on."""
        stage, parity = self.rings[id(pipeline.loop)].place()
        use_stage(self.owner, pipeline.tiles, stage)
        return stage, parity

    def next_turn(self, pipeline: Pipeline) -> None:
        """Emit the step to the next iteration's tiles."""
        self.rings[id(pipeline.loop)].advance()

    def _iteration(self, pipeline: Pipeline, stage: Any, parity: Any) -> None:
        """Emit an iteration: each tile is waited for before its first use, freed after its last."""
        stmts = statements_of(pipeline)
        used = [{b.root for b in buffers_of(s)} for s in stmts]
        for position, stmt in enumerate(stmts):
            for copy in pipeline.copies:
                tile = copy.dst.buffer
                if tile in used[position] and not any(tile in u for u in used[:position]):
                    self.wait_full(copy, stage, parity)
            self.owner.statement(stmt)
            for copy in pipeline.copies:
                tile = copy.dst.buffer
                if tile in used[position] and not any(tile in u for u in used[position + 1 :]):
                    self.free_after(pipeline, copy, stage)
        self.owner.running.drain()
        for copy in pipeline.copies:
            if not any(copy.dst.buffer in u for u in used):
                self.wait_full(copy, stage, parity)
                self._free(pipeline, copy, stage)

    def wait_full(self, copy: Copy, stage: Any, parity: Any) -> None:
        """Emit the wait for a tile's bytes."""
        if self.is_first(copy):
            full = self.barrier(copy, "full", stage)
            self.builder.evaluate(ptx.barrier_wait().call(full, index(parity)))

    def free_after(self, pipeline: Pipeline, copy: Copy, stage: Any) -> None:
        """Emit what frees a tile after its last use in an iteration; products complete first."""
        if frees_by_commit(self.owner, pipeline, copy):
            assert self.owner.tensor is not None
            with self.owner.tensor.issuer():
                self.commit(pipeline, copy, stage)
        elif self.is_first(copy):
            free = functools.partial(self._free, pipeline, copy, stage)
            tiles = [c.dst.buffer for c in self.together[id(copy)]]
            self.owner.running.when_read(tiles, free)

    def commit(self, pipeline: Pipeline, copy: Copy, stage: Any) -> None:
        """Emit what frees a tile when the products so far of this thread are complete."""
        group, empty = pipeline.group(copy), self.barrier(copy, "empty", stage)
        if group is None:
            self.builder.evaluate(ptx.tensor_commit().call(empty))
        else:
            mask = self.owner.clusters.mask_of(group)
            self.builder.evaluate(ptx.tensor_commit(multicast=True).call(empty, mask))

    def _free(self, pipeline: Pipeline, copy: Copy, stage: Any) -> None:
        """Emit the arrival of a warp that is done with a tile.

        Lanes that read it themselves must be done, which a unit that fills it again does not know
        without a fence: their loads may still be on their way. For products the whole warp has
        waited. Tiles that are freed together need that once.
        """
        builder, group = self.builder, pipeline.group(copy)
        is_met, copies = self.met == builder.count, self.together[id(copy)]
        if not is_met and not all(self._is_for_products(pipeline, c) for c in copies):
            if pipeline.boxes:
                builder.evaluate(ptx.fence_async(self.owner.clusters.is_used).call())
            builder.evaluate(ptx.sync_warp().call())
            is_met = True
        lane, empty = remainder(self.accessor.thread, WARP), self.barrier(copy, "empty", stage)
        with builder.when(tir.EQ(index(lane), index(0))):
            if group is None:
                builder.evaluate(ptx.barrier_arrive().call(empty))
            else:
                self.owner.clusters.free_in_all(group, empty)
        self.met = builder.count if is_met else -1

    def _is_for_products(self, pipeline: Pipeline, copy: Copy) -> bool:
        """Return whether nothing but products of warpgroups reads a tile, where it lies."""
        tile, gemms = copy.dst.buffer, self.owner.plan.gemms

        def is_in_place(stmt: Stmt) -> bool:
            if not isinstance(stmt, Gemm) or gemms[stmt].kind != "wgmma":
                return False
            operands = (gemms[stmt].a, stmt.a), (gemms[stmt].b, stmt.b)
            return stmt.c.buffer.root is not tile and all(
                how.source == "descriptor" for how, read in operands if read.buffer.root is tile
            )

        body = pipeline.loop.body
        stmts = body.stmts if isinstance(body, nodes.Seq) else (body,)
        users = [s for s in stmts if s is not copy and tile in {b.root for b in buffers_of(s)}]
        return all(is_in_place(s) for s in users)

    def _only_product(self, pipeline: Pipeline) -> Gemm | None:
        """Return the product that is all that a loop does with its tiles, if warpgroups do it."""
        body = pipeline.loop.body
        stmts = body.stmts if isinstance(body, nodes.Seq) else (body,)
        rest = [s for s in stmts if s not in pipeline.copies and not isinstance(s, nodes.Annotate)]
        if len(rest) != 1 or not isinstance(rest[0], Gemm) or rest[0] in self.owner.plan.barriers:
            return None
        plan = self.owner.plan.gemms[rest[0]]
        in_place = WgmmaLowering(self.accessor, plan).in_place
        tiles = {c.dst.buffer for c in pipeline.copies}
        read = {rest[0].a.buffer.root, rest[0].b.buffer.root}
        is_async = plan.kind == "wgmma" and in_place and plan.a.source == "descriptor"
        is_async &= pipeline.stages > 1  # a tile is freed by the next product
        return rest[0] if is_async and read == tiles else None

    def _multiply(
        self, pipeline: Pipeline, product: Gemm, turn: Any, stage: Any, parity: Any
    ) -> None:
        """Emit an iteration that leaves its product running and frees the tiles before its own."""
        for copy in pipeline.copies:
            self.wait_full(copy, stage, parity)
        WgmmaLowering(self.accessor, self.owner.plan.gemms[product]).start()
        self.builder.evaluate(ptx.wgmma_wait(1).call())
        last, _ = self.rings[id(pipeline.loop)].before(stage, parity)
        with self.builder.when(tir.GT(index(turn), index(0))):
            for copy in filter(self.is_first, pipeline.copies):
                self._free(pipeline, copy, last)

    def _finish(self, pipeline: Pipeline, product: Gemm, trips: Any) -> None:
        """Emit the wait for the last product, and free its tiles where the loop runs again."""
        builder, plan = self.builder, self.owner.plan.gemms[product]
        lowering = WgmmaLowering(self.accessor, plan)
        builder.evaluate(ptx.wgmma_wait(0).call())
        lowering.keep_sums()
        if pipeline.is_nested:
            ring = self.rings[id(pipeline.loop)]
            stage, _ = ring.before(*ring.place())
            with builder.when(tir.GT(index(trips), index(0))):
                for copy in filter(self.is_first, pipeline.copies):
                    self._free(pipeline, copy, stage)
