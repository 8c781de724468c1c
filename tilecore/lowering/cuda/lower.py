"""LaunchLowering: one kernel launch and its plan as TIR; each statement has a lowering."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.errors import UnsupportedOnTarget
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.loops import is_barrier_setup
from tilecore.inference.gpu.plan import GpuLaunchPlan, NestPlan
from tilecore.inference.gpu.products.registers import PRODUCER_THREADS, fill_multiprocessor, traded
from tilecore.inference.gpu.scratch import BARRIER_BYTES
from tilecore.ir import nodes
from tilecore.ir.analysis import pads, waits_for_launches
from tilecore.ir.arithmetic.alike import alike_stores
from tilecore.ir.arithmetic.bounds import NON_NEGATIVE
from tilecore.ir.arithmetic.length import is_kept
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Var, cast, const, int_value
from tilecore.ir.fold import reducer_update
from tilecore.ir.nodes import Buffer, For, Stmt
from tilecore.ir.visitor import loads
from tilecore.lowering.cuda.access import Accessor
from tilecore.lowering.cuda.builder import INT32_MAX, CudaBuilder
from tilecore.lowering.cuda.copies.boxes import (
    TensorMap,
    fill_own_rows,
    load_boxes,
    store_box,
    update_boxes,
)
from tilecore.lowering.cuda.copies.clusters import Clusters
from tilecore.lowering.cuda.copies.pipelines import AsyncPipeline, BoxPipelines
from tilecore.lowering.cuda.copies.prefetch import RegisterPipeline
from tilecore.lowering.cuda.instruction_set import instruction_set
from tilecore.lowering.cuda.loops import Loops
from tilecore.lowering.cuda.meetings import Meetings
from tilecore.lowering.cuda.memory import FragmentPlace, SharedPlace, TensorPlace
from tilecore.lowering.cuda.nests.folds import FoldLowering
from tilecore.lowering.cuda.nests.matrix_moves import MatrixMoveLowering
from tilecore.lowering.cuda.nests.narrow_pairs import PairNarrowing, narrows_in_pairs
from tilecore.lowering.cuda.nests.nest import AsyncCopyLowering, NestLowering
from tilecore.lowering.cuda.output import emit_assert, emit_print
from tilecore.lowering.cuda.products.mfma import MfmaLowering
from tilecore.lowering.cuda.products.mma import FmaLowering, MmaLowering, ProductLowering
from tilecore.lowering.cuda.products.quads import QuadLowering
from tilecore.lowering.cuda.products.running import RunningProducts
from tilecore.lowering.cuda.products.scaled import ScaledLowering
from tilecore.lowering.cuda.products.tensor_memory import TensorMemory
from tilecore.lowering.cuda.products.tensor_scaled import copy_chunks, product_of
from tilecore.lowering.cuda.products.wgmma import WARPGROUP
from tilecore.lowering.cuda.raster import rasterized
from tilecore.lowering.cuda.scalar import bound, memory_type
from tilecore.lowering.cuda.tensors import placing, unsupported
from tilecore.lowering.cuda.threads import (
    broadcast,
    emit_atomic,
    emit_exchange,
    emit_update,
    emit_wait,
    exchange_widely,
    init_barriers,
    is_barrier,
)
from tilecore.lowering.cuda.views import declare
from tilecore.lowering.tir import add, index, mul, quotient, typed

PRODUCTS: dict[str, type[ProductLowering]] = {
    "mma": MmaLowering, "fma": FmaLowering, "mfma": MfmaLowering, "quads": QuadLowering,
    "scaled": ScaledLowering,
}  # fmt: skip
MIN_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"
SHARED_ALIGNMENT = 1024  # of what swizzles of 128 bytes repeat after


class LaunchLowering:
    """Emits one kernel launch."""

    def __init__(
        self,
        builder: CudaBuilder,
        plan: GpuLaunchPlan,
        target: GpuTarget,
        tensors: dict[Buffer, TensorPlace],
        scalars: dict[Var, Any],
        maps: list[tuple[TensorMap, Any]],
        min_blocks: int | None = None,
    ) -> None:
        self.builder, self.plan, self.target = builder, plan, target
        self.min_blocks = min_blocks
        self.launch, self.maps = plan.launch, maps
        self.boxes: BoxPipelines | None = None
        self.tensor: TensorMemory | None = None
        self.team = plan.teams.whole
        self.number: Any = 0  # of the thread in the block
        self.warp: Any = 0  # of the thread, the same value in its lanes
        self.warpgroup: Any = 0  # of the thread
        self.isa = instruction_set(target)
        self.accessor = Accessor(builder, self.isa)
        self.running = RunningProducts(self)
        self.meetings, self.loops = Meetings(self), Loops(self)
        self.accessor.places.update(tensors)
        self.accessor.values.update(scalars)
        self.scratch_start = self.shared_bytes = 0
        self.views: dict[str, Any] = {}
        self.alike = alike_stores(plan.launch) if plan.launch.thread_vars else set()
        self.ahead = {id(s) for p in plan.pipelines.values() for s in p.ahead}

    def emit(self, prelude: Sequence[Stmt]) -> None:
        """Emit the kernel, which begins with the statements of ``prelude``."""
        accessor, launch = self.accessor, self.launch
        accessor.pads = pads(launch)
        grid = [self._extent(e) for e in launch.grid]
        x, y, z = self.plan.threads
        extra = PRODUCER_THREADS if self.plan.has_producer else 0
        attributes = self._bounds((x + extra) * y * z)
        cluster = launch.cluster if self.target.has_clusters else ()
        shape = (x + extra, y, z)
        with self.builder.launch(grid, shape, attributes, cluster) as (blocks, threads):
            places = rasterized(self.builder, launch, blocks, grid)
            for var, value, extent in zip(launch.block_vars, places, launch.grid, strict=True):
                size = int_value(extent)
                accessor.values[var] = typed(value, str(var.dtype))
                accessor.ranges[var] = NON_NEGATIVE if size is None else (0, max(0, size - 1))
                accessor.tops[var] = extent
            for var, value, count in zip(
                launch.thread_vars, threads, self.plan.threads, strict=False
            ):
                accessor.values[var] = value
                accessor.ranges[var] = (0, count - 1)
                accessor.tops[var] = const(count)
            self._assume(blocks, threads, (x + extra, y, z))
            number = threads[0]
            if y * z > 1:
                number = add(number, mul(add(threads[1], mul(threads[2], y)), x))
            accessor.thread = self.number = self.builder.bind(number)
            accessor.thread_count = self.plan.thread_count
            self._number_warpgroup()
            if self.target.chains_launches and waits_for_launches(launch):
                self.builder.evaluate(ptx.await_launches().call())
            for stmt in prelude:
                self.inner(stmt)
            self._memory()
            self.clusters.init()
            if self.tensor is not None:
                self.tensor.allocate()
            if self.plan.loads:
                self.warp = self.builder.bind(ptx.warp_index().call())
            if self.plan.registers:
                attributes[MIN_BLOCKS] = 1  # setmaxnreg: the count at the start must be known
            if self.boxes is None:
                self.clusters.start()
                self.declare_fragments()
                self.statement(launch.body)
                self.meetings.end()
            else:
                if traded(self.plan.thread_count, self.plan.fragments) is not None:
                    attributes[MIN_BLOCKS] = 1  # setmaxnreg: the count at the start must be known
                self.boxes.init()
                self.clusters.start()
                self.boxes.emit_roles(launch.body)
            if self.tensor is not None:
                self.tensor.free()
            self.clusters.finish()

    def _bounds(self, threads: int) -> dict[str, int]:
        """Return how many blocks a multiprocessor has to have registers for, if that is known.

        Where a second one cannot have any, NVIDIA's assembler may leave registers for it still.
        """
        if self.target.kind != "cuda":
            return {}
        if self.min_blocks is not None:
            return {MIN_BLOCKS: self.min_blocks}
        return (
            {MIN_BLOCKS: 1}
            if fill_multiprocessor(self.plan.fragments, threads, self.target)
            else {}
        )

    def _assume(self, blocks: Sequence[Any], threads: Sequence[Any], counts: Sequence[int]) -> None:
        """Tell NVIDIA's compiler the ranges of the indices, which it does not know."""
        if self.target.kind != "cuda":
            return
        known = [*zip(threads, counts, strict=True), *((b, INT32_MAX) for b in blocks)]
        for value, count in known:
            if count > 1:
                self.builder.evaluate(ptx.assume_below().call(value, index(count)))

    def _number_warpgroup(self) -> None:
        """Bind the number of the warpgroup where products by several of them describe operands.

        It comes from one lane: descriptors must be alike in all, and lie in uniform registers.
        """
        gemms = self.plan.gemms.values()
        if any(g.kind == "wgmma" and g.warps != (1, 1) for g in gemms):
            number = quotient(self.accessor.thread, WARPGROUP)
            shuffle = self.isa.shuffle("idx", "int32", self.isa.warp)
            self.warpgroup = self.builder.bind(shuffle.call(number, index(0)))
            self.accessor.warpgroup = self.warpgroup

    def _extent(self, expr: Expr) -> Any:
        value = int_value(expr)
        return value if value is not None else self.accessor.scalar(cast(expr, "int32"))

    def _memory(self) -> None:
        """Declare shared memory."""
        self.scratch_start, self.shared_bytes = self.plan.tile_bytes, self.plan.shared_bytes
        end = self.shared_bytes // BARRIER_BYTES
        if self.plan.tensor_tiles:
            self.tensor = TensorMemory(self, end)
            end = self.tensor.begin
        self.clusters = Clusters(self, end)
        end = self.clusters.place
        if self.plan.has_producer:
            self.boxes = BoxPipelines(self, end)
        if self.shared_bytes:
            self.shared = self.builder.shared(self.shared_bytes, SHARED_ALIGNMENT)
        for buffer, layout in self.plan.shared.items():
            kind = "uint64" if is_barrier(buffer) else memory_type(str(buffer.dtype))
            self.accessor.places[buffer] = SharedPlace(self.view(kind), str(buffer.dtype), layout)
        barriers = [b for b in self.plan.shared if is_barrier(b)]
        if barriers:
            init_barriers(self.accessor, barriers, self.target)

    def declare_fragments(self) -> None:
        """Declare the fragments."""
        memories: dict[Buffer, Any] = {}
        for buffer, held in self.plan.fragments.items():
            root, kind = buffer.root, memory_type(str(buffer.dtype))
            if root not in memories:
                memories[root] = self.builder.local(held.slots, kind, root.name)
            place = FragmentPlace(memories[root], str(buffer.dtype), held)
            self.accessor.places[buffer] = place

    def view(self, dtype: str) -> Any:
        """Return all shared memory as elements of a type."""
        if dtype not in self.views:
            size = self.shared_bytes // DType(dtype).itemsize
            self.views[dtype] = self.builder.shared_view(self.shared, size, dtype)
        return self.views[dtype]

    # --- statements ---------------------------------------------------------------------------

    def statement(self, stmt: Stmt) -> None:
        """Emit one statement, after the barrier that it needs."""
        with placing(stmt, self.target), self.builder.at(stmt.span):
            self.running.before(stmt)
            if stmt in self.plan.barriers:
                self.meetings.sync()
            with self.meetings.noting(stmt):
                self._statement(stmt)

    @contextlib.contextmanager
    def _as_team(self, body: Stmt) -> Iterator[None]:
        """Number the threads anew in a branch that some warps take."""
        team, accessor = self.plan.teams.bodies.get(id(body)), self.accessor
        if team is None:
            yield
            return
        before = self.team, accessor.thread, accessor.thread_count, accessor.warpgroup
        self.team, accessor.thread_count = team, max(1, team.count)
        accessor.thread = self.builder.bind(add(index(self.number), -team.first))
        accessor.warpgroup = add(self.warpgroup, -(team.first // WARPGROUP))
        yield
        self.team, accessor.thread, accessor.thread_count, accessor.warpgroup = before

    def _statement(self, stmt: Stmt) -> None:  # noqa: C901 - one case per node
        match stmt:
            case nodes.Seq(stmts=stmts):
                for child in stmts:
                    self.statement(child)
            case nodes.Alloc(buffer=buffer):
                declare(self, buffer, stmt)
            case nodes.Copy() | nodes.Parallel() if id(stmt) in self.ahead:
                pass  # the loop around has issued it
            case nodes.Fill() if is_barrier_setup(stmt):
                pass  # the kernel begins with it
            case nodes.Copy() | nodes.Fill() if self._moves_alone(stmt):
                pass
            case nodes.Annotate(key="registers", value=(count, grows)) if self.plan.registers:
                self.builder.evaluate(ptx.set_registers(count, grows=grows).call())
            case nodes.Copy() if stmt in self.plan.unawaited:
                AsyncCopyLowering(self.accessor, self.plan.nests[stmt]).emit()
                self.meetings.has_copied = True
            case nodes.Parallel() if stmt in self.plan.updates:
                update_boxes(self, stmt)
            case nodes.Copy() | nodes.Fill() | nodes.Parallel() if stmt in self.plan.nests:
                self._nest(stmt)
            case nodes.Reduce() | nodes.Scan():
                FoldLowering(
                    self.accessor, self.plan.nests[stmt], self._scratch, self.meetings.sync
                ).emit()
            case nodes.Gemm() | nodes.ChunkCopy():
                self._product(stmt)
            case nodes.Annotate(key="wait_stores", value=(pending, reads)) if self.plan.running:
                self.meetings.await_stores(pending, only_reads=reads)
            case nodes.Annotate(key="wait_products", value=pending):
                self.running.wait(pending)
            case For() if stmt in self.plan.pipelines:
                if self.boxes is not None:
                    self.boxes.consume(self.plan.pipelines[stmt])
                else:
                    pipeline = self.plan.pipelines[stmt]
                    ahead = RegisterPipeline if pipeline.in_registers else AsyncPipeline
                    ahead(self, pipeline).emit()
            case nodes.Store() | nodes.Atomic() if self._is_alone(stmt):
                with self.builder.when(self._alone(stmt)):
                    self.inner(stmt)
                if isinstance(stmt, nodes.Atomic) and stmt.prev is not None:
                    broadcast(self.accessor, stmt.prev, self._scratch, self.meetings.sync)
            case nodes.Exchange(width=width) if not self.isa.reaches(width):
                exchange_widely(self.accessor, stmt, self._scratch, self.meetings.sync)
            case nodes.ClusterCopy():
                self.clusters.copy(stmt)
            case nodes.Sync(scope=scope):
                self.meetings.sync_of(scope, stmt)
            case _:
                self.inner(stmt)

    def _nest(self, stmt: Stmt) -> None:
        """Emit points that threads share out."""
        nest, own = self.plan.nests[stmt], self.plan.own_rows
        emit = self._kind_of(nest)(self.accessor, nest, self.inner).emit
        if own is not None and own.filled is stmt:
            fill_own_rows(self, own, emit)
        else:
            emit()

    def _kind_of(self, nest: NestPlan) -> type[NestLowering]:
        """Return what emits a nest."""
        if nest.matrices is not None:
            return MatrixMoveLowering
        has_pairs = self.target.kind == "cuda" and self.target.has_cp_async  # both of sm_80
        if has_pairs and narrows_in_pairs(self.accessor, nest):
            return PairNarrowing
        return NestLowering

    def _product(self, stmt: nodes.Gemm | nodes.ChunkCopy) -> None:
        """Emit a product, or a copy of factors for one."""
        if isinstance(stmt, nodes.ChunkCopy):
            assert self.tensor is not None
            copy_chunks(self.tensor, stmt)
            return
        plan = self.plan.gemms[stmt]
        if plan.kind == "tcgen05":
            product_of(self, plan).emit()
        elif plan.kind == "wgmma":
            self.running.issue(plan)
        else:
            PRODUCTS[plan.kind](self.accessor, plan).emit()

    def _moves_alone(self, stmt: nodes.Copy | nodes.Fill) -> bool:
        """Emit a copy or fill that instructions of their own move, and return whether it is one."""
        if stmt in self.plan.transfers:
            assert self.tensor is not None
            self.tensor.transfer(stmt, self.plan.transfers[stmt])
        elif isinstance(stmt, nodes.Copy) and stmt in self.plan.stores:
            store_box(self, stmt, self.plan.stores[stmt])
        elif isinstance(stmt, nodes.Copy) and stmt in self.plan.loads:
            load_boxes(self, stmt, self.plan.loads[stmt])
        else:
            return False
        return True

    def _is_alone(self, stmt: nodes.Store | nodes.Atomic) -> bool:
        """Return whether one thread stores for all: all would do the same."""
        if not isinstance(self.accessor.places.get(stmt.buffer), (TensorPlace, SharedPlace)):
            return False
        if not self.launch.thread_vars:
            return True
        if id(stmt) not in self.alike:
            return False
        teams = self.plan.teams
        if id(stmt) in teams.of or id(stmt) in teams.first:
            return True
        if id(stmt) in teams.single:
            return False
        if any(load.buffer.root is stmt.buffer.root for load in loads(stmt)):
            raise UnsupportedOnTarget(
                what=f"an update of `{stmt.buffer.name}` by one of some threads",
                target=self.target.name, span=stmt.span,
                reason="which of them come by is not known here",
                hint="let one thread do it, as with `if tx == 0:`, or use T.atomic_add",
            )  # fmt: skip
        return False  # each of them stores the same

    def _alone(self, stmt: Stmt) -> Any:
        """Return whether a thread is the one that stores for all that come by."""
        teams = self.plan.teams
        if id(stmt) in teams.of or id(stmt) not in teams.first:
            return tir.EQ(index(self.accessor.thread), index(0))
        return tir.EQ(index(self.number), index(teams.first[id(stmt)]))

    def _scratch(self, dtype: str) -> tuple[Any, int]:
        """Return (shared memory as elements of a type, the first that folds may use)."""
        view = self.view(dtype)
        start = self.scratch_start + self.plan.scratch[self.team]
        return view, start // DType(dtype).itemsize

    def inner(self, stmt: Stmt) -> None:
        """Emit a statement that each thread runs by itself."""
        with placing(stmt, self.target):
            self._inner(stmt)

    def _inner(self, stmt: Stmt) -> None:  # noqa: C901 - one case per node
        accessor, builder = self.accessor, self.builder
        match stmt:
            case nodes.Seq(stmts=stmts):
                for child in stmts:
                    self.child(child)
            case For():
                self.loops.emit(stmt)
            case nodes.While(cond=cond, body=body):
                with builder.loop_while(accessor.scalar(cond)), self.running.turns(body):
                    self.child(body)
                    if stmt in self.plan.ends:
                        self.meetings.sync()
            case nodes.If(cond=cond, then_body=then, else_body=other):
                with builder.when(accessor.decided_or(cond, cond)), self._as_team(then):
                    self._branch(then)
                if other is not None:
                    with builder.otherwise(), self._as_team(other):
                        self._branch(other)
            case nodes.Jump(word=word):
                builder.jump(word)
            case nodes.Store() if reducer_update(stmt) is not None:
                emit_update(accessor, stmt)
            case nodes.Store(buffer=buffer, indices=indices, value=value):
                made = bound(builder, accessor.scalar(value), str(value.dtype))
                accessor.store(buffer, indices, made, value.dtype)
            case nodes.Let():
                self._bind(stmt)
            case nodes.Atomic():
                emit_atomic(accessor, stmt)
            case nodes.Exchange() | nodes.LaneGemm():
                emit_exchange(accessor, stmt, self.target)
            case nodes.Arrive():
                self.meetings.arrive(stmt)
            case nodes.Wait():
                emit_wait(accessor, stmt, self.target, self.clusters.is_used)
                if self.tensor is not None:
                    self.tensor.fence(before=False)
            case nodes.Alloc(buffer=buffer):
                declare(self, buffer, stmt)
            case nodes.Assert():
                emit_assert(accessor, stmt)
            case nodes.Print() if accessor.turn is None and not self.launch.thread_vars:
                with builder.when(tir.EQ(index(accessor.thread), index(0))):
                    emit_print(accessor, stmt)
            case nodes.Print():
                emit_print(accessor, stmt)
            case nodes.Annotate() | nodes.Pad():
                self._hint(stmt)
            case _:
                raise unsupported(stmt, self.target, "no code for it yet")

    def _bind(self, let: nodes.Let) -> None:
        accessor, var = self.accessor, let.var
        value = accessor.decided_or(var, let.value)
        if is_kept(var, let.value, accessor.lengths):
            accessor.values[var] = self.builder.kept(value, str(var.dtype))
        else:
            accessor.values[var] = self.builder.bind(value)
            accessor.lets[var] = let.value

    def _hint(self, stmt: Stmt) -> None:
        match stmt:
            case nodes.Annotate(key=nodes.LAUNCHES, value="trigger"):
                if self.target.chains_launches:
                    self.builder.evaluate(ptx.launch_dependents().call())

    def _branch(self, body: Stmt) -> None:
        with self.meetings.perhaps(), self.running.branch(body):
            self.child(body)

    def child(self, stmt: Stmt) -> None:
        """Emit a nested statement: of the block outside of nests, of the thread inside."""
        if self.accessor.turn is None:
            self.statement(stmt)
        else:
            self.inner(stmt)
