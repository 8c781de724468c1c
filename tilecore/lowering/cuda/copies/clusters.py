"""Clusters (sm_90): barriers of all their blocks, copies into other blocks, boxes for several."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.plan import Box, Group
from tilecore.ir import nodes
from tilecore.ir.arithmetic.bounds import variables
from tilecore.ir.clusters import uses_clusters
from tilecore.ir.expr import Load, Var
from tilecore.ir.nodes import Arrive, ClusterCopy
from tilecore.ir.visitor import walk
from tilecore.lowering.cuda.copies.boxes import boxes_of
from tilecore.lowering.cuda.memory import is_first_copy, only
from tilecore.lowering.cuda.nests.nest import NestLowering, PointLoops
from tilecore.lowering.cuda.nests.vector import copy_bytes
from tilecore.lowering.cuda.scalar import convert, memory_type, to_memory
from tilecore.lowering.cuda.tensors import unsupported
from tilecore.lowering.tir import add, index, mul, remainder

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering

WARP = 32


class Clusters:
    """What a block does with the others of its cluster.

    The barriers of boxes for several blocks that are waited for at once are the last words (of 64
    bits) of shared memory before ``end``.
    """

    def __init__(self, owner: LaunchLowering, end: int) -> None:
        self.owner, self.builder, self.accessor = owner, owner.builder, owner.accessor
        waited = [s for s in owner.plan.multicasts if _barrier(s) is None]
        self.place = end - len(waited)
        self.barriers = {id(s): self.place + n for n, s in enumerate(waited)}
        self.turns: dict[int, Any] = {}
        shares = any(p.groups for p in owner.plan.pipelines.values())
        self.is_used = shares or uses_clusters(owner.launch)

    def init(self) -> None:
        """Emit what makes memory barriers, and the place of the block."""
        if not self.is_used:
            return
        builder = self.builder
        self.rank = builder.bind(ptx.cluster_rank().call())
        if any(isinstance(s, ClusterCopy) for s in walk(self.owner.launch.body)):
            self.warp = builder.bind(ptx.warp_index().call())
        for place in self.barriers.values():
            there = builder.address(self.owner.view("uint64"), place)
            with builder.when(tir.EQ(index(self.owner.number), index(0))):
                builder.evaluate(ptx.barrier_init().call(there, index(1)))
        builder.evaluate(ptx.fence_barrier_init().call())
        for number in self.barriers:
            self.turns[number] = builder.local(1, "int32", "copies")
            builder.store(self.turns[number], index(0), 0)

    def start(self) -> None:
        """Emit the wait until all blocks have made their barriers."""
        if self.is_used:
            self.sync()

    def first_of(self, group: Group) -> Any:
        """Return the rank of the block that loads for a group."""
        launch, total, stride = self.owner.launch, 0, 1
        for var, size, is_shared in zip(
            launch.block_vars, launch.cluster, group.axes, strict=False
        ):
            if not is_shared and size > 1:
                place = remainder(index(self.accessor.values[var]), size)
                total = add(total, mul(place, stride))
            stride *= size
        return self.builder.bind(index(total))

    def free_in_all(self, group: Group, barrier: Any) -> None:
        """Emit an arrival at a barrier of each block of a group, by who has read a tile."""
        first = self.first_of(group)
        for offset in group.offsets:
            call = ptx.barrier_free_remote().call(barrier, index(add(first, offset)))
            self.builder.evaluate(call)

    def mask_of(self, group: Group) -> Any:
        """Return the blocks of a group, a bit each."""
        mask = sum(1 << offset for offset in group.offsets)
        return tir.shift_left(index(mask), self.first_of(group))

    def finish(self) -> None:
        """Emit the end: no block leaves while others may reach its shared memory."""
        if self.is_used:
            self.sync()

    def sync(self, scope: str = "cluster") -> None:
        """Emit the barrier of the cluster, or one half of it.

        Its instructions are for whole warps, whose lanes may have gone different ways before.
        """
        self.builder.evaluate(ptx.converge_warp().call())
        if scope != "cluster_wait":
            self.builder.evaluate(ptx.fence_async(of_cluster=True).call())
            self.builder.evaluate(ptx.cluster_arrive().call())
        if scope != "cluster_arrive":
            self.builder.evaluate(ptx.cluster_wait().call())

    def arrive(self, stmt: Arrive) -> None:
        """Emit an arrival at a barrier of another block."""
        assert stmt.rank is not None
        place = self.accessor.locate(stmt.buffer, (stmt.index,))
        rank = self.accessor.integer(stmt.rank)
        call = ptx.barrier_arrive_remote().call(self.builder.address(*place), index(rank))
        self.builder.evaluate(call)

    def copy(self, stmt: ClusterCopy) -> None:
        """Emit a copy into other blocks."""
        if stmt.block is not None:
            self._to_block(stmt)
        elif stmt in self.owner.plan.multicasts:
            self._multicast(stmt, self.owner.plan.multicasts[stmt])
        else:
            self._each_alone(stmt)

    # --- to the tile of another block ---------------------------------------------------------

    def _to_block(self, stmt: ClusterCopy) -> None:
        """Emit stores by all threads, and one arrival behind them."""
        assert stmt.block is not None
        accessor, builder, plan = self.accessor, self.builder, self.owner.plan.nests[stmt.copy]
        rank = builder.bind(index(accessor.integer(stmt.block)))
        source, target = plan.points.accesses
        is_wide = plan.moves_whole_chunks and source.buffer.dtype == target.buffer.dtype
        loops = PointLoops(accessor, plan.distribution, plan.points.names, plan.lanes)
        loops.find_slots(plan.points.accesses)
        leader = is_first_copy(plan.distribution, accessor.thread)
        dtype = str(target.buffer.dtype)
        with (
            only(builder, leader),
            loops.open(unrolled=True) as digits,
            contextlib.ExitStack() as s,
        ):
            lane = 0 if is_wide else s.enter_context(builder.turns(plan.lanes))
            s.enter_context(loops.at(digits, lane))
            there = builder.address(*accessor.locate(target.buffer, target.indices))
            if is_wide:
                here = builder.address(*accessor.locate(source.buffer, source.indices))
            else:
                load = Load(source.buffer, source.indices, source.buffer.dtype)
                value = convert(accessor.load(load), str(source.buffer.dtype), dtype)
                element = builder.local(1, memory_type(dtype), "element")
                builder.store(element, to_memory(value, dtype), 0)
                here = builder.address(element)
            size = (plan.lanes if is_wide else 1) * target.buffer.dtype.itemsize
            remote = ptx.cluster_address().call(there, rank)
            builder.evaluate(copy_bytes(size).call(remote, here))
        if stmt.barrier is not None:
            self.owner.meetings.sync()
            with builder.when(tir.EQ(index(accessor.thread), index(0))):
                place = accessor.locate(stmt.barrier.buffer, stmt.barrier.indices)
                arrive = ptx.barrier_arrive_remote()
                builder.evaluate(arrive.call(builder.address(*place), rank))

    # --- from a tensor to several blocks ------------------------------------------------------

    def _multicast(self, stmt: ClusterCopy, box: Box) -> None:
        """Emit one load for all blocks of the mask; each block's barrier is told its bytes."""
        builder, copy = self.builder, stmt.copy
        if stmt.barrier is None:
            self._meet(stmt)
            full = builder.address(self.owner.view("uint64"), self.barriers[id(stmt)])
            expect = ptx.barrier_expect()
        else:
            place = self.accessor.locate(stmt.barrier.buffer, stmt.barrier.indices)
            full, expect = builder.address(*place), ptx.barrier_expect_only()
        size = math.prod(box.extents) * box.panels * copy.dst.dtype.itemsize
        rank, first = len(box.extents), (stmt.mask & -stmt.mask).bit_length() - 1
        with builder.when(tir.EQ(self.warp, index(self.owner.team.first // WARP))):
            chosen = builder.bind(ptx.elect().call())
            with builder.when(tir.NE(chosen, index(0))):
                builder.evaluate(expect.call(full, index(size)))
                with builder.when(tir.EQ(self.rank, index(first))):
                    for target, tensor_map, at in boxes_of(self.owner, box, copy.src, copy.dst):
                        load = ptx.tma_load(rank, multicast=True)
                        call = load.call(target, tensor_map, full, *at, index(stmt.mask))
                        builder.evaluate(call)
                own = ptx.tma_load(rank, stays=not self.owner.target.tma_reaches_cluster)
                bit = tir.bitwise_and(tir.shift_right(index(stmt.mask), self.rank), index(1))
                with builder.when(tir.EQ(bit, index(0))):
                    for target, tensor_map, at in boxes_of(self.owner, box, copy.src, copy.dst):
                        builder.evaluate(own.call(target, tensor_map, full, *at))
            builder.evaluate(ptx.converge_warp().call())
        if stmt.barrier is None:
            turns = self.turns[id(stmt)]
            parity = builder.bind(remainder(builder.load(turns, 0), 2))
            builder.evaluate(ptx.barrier_wait().call(full, parity))
            builder.store(turns, add(builder.load(turns, 0), 1), 0)

    def _meet(self, stmt: ClusterCopy) -> None:
        """Emit the wait until no block of the cluster uses its tile any more."""
        if self.owner.team != self.owner.plan.teams.whole:
            raise unsupported(
                stmt, self.owner.target,
                "a copy to several blocks without a barrier is for all threads of a block",
            )  # fmt: skip
        self.sync()

    def _each_alone(self, stmt: ClusterCopy) -> None:
        """Emit a copy by the threads of each block, of what the first of the mask would read."""
        own = self.owner.launch.block_vars
        if any(v in self.accessor.lets for e in stmt.copy.src.offsets for v in variables(e)):
            raise unsupported(
                stmt, self.owner.target,
                "the tensor memory accelerator cannot copy this tile, and what it is copied from "
                "depends on names of values; write the block indices themselves",
            )  # fmt: skip
        with self._as_first(own, stmt.mask):
            NestLowering(self.accessor, self.owner.plan.nests[stmt.copy], self.owner.inner).emit()

    @contextlib.contextmanager
    def _as_first(self, own: tuple[Var, ...], mask: int) -> Iterator[None]:
        """Let the block indices mean those of the first block of a mask, in its blocks."""
        accessor, builder = self.accessor, self.builder
        first = (mask & -mask).bit_length() - 1
        bit = tir.bitwise_and(tir.shift_right(index(mask), self.rank), index(1))
        before = {v: accessor.values[v] for v in own}
        for var, size in zip(own, self.owner.launch.cluster, strict=False):
            value = index(before[var])
            moved = add(add(value, mul(remainder(value, size), -1)), first % size)
            accessor.values[var] = builder.bind(
                tir.if_then_else(tir.NE(bit, index(0)), index(moved), value)
            )
            first //= size
        yield
        accessor.values.update(before)


def _barrier(stmt: nodes.Stmt) -> Load | None:
    assert isinstance(stmt, ClusterCopy)
    return stmt.barrier
