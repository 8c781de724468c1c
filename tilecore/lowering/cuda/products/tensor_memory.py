"""Tensor memory of a block (sm_100): its allocation, fences, and copies to and from registers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.loops import Access
from tilecore.inference.gpu.plan import TensorTransfer
from tilecore.inference.gpu.products.tensor_memory import tensor_words
from tilecore.ir.clusters import multiplies_in_pairs
from tilecore.ir.expr import Load, Var, int_value
from tilecore.ir.nodes import Arrive, Fill, Region, Stmt
from tilecore.lowering.cuda.memory import FragmentPlace, is_first_copy, only
from tilecore.lowering.cuda.nests.nest import PointLoops
from tilecore.lowering.cuda.products.mma import matrix_indices
from tilecore.lowering.cuda.products.pairs import BlockPairs
from tilecore.lowering.cuda.scalar import convert, from_memory, memory_type, to_memory
from tilecore.lowering.tir import add, index, mul, quotient, remainder

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering

WARP, WARPGROUP, LANES = 32, 128, 128
WIDEST = 64  # registers of one move
UNIT = 8  # columns of the smallest move where there are 64 rows
BARRIER_WORDS = 2  # of 32 bits


class TensorMemory:
    """The columns of a block, and the barriers at which products tell that they are complete.

    Their address, the barriers and what ``BlockPairs`` counts are the last words (of 64 bits) of
    shared memory before ``end``, from ``begin`` on.
    """

    def __init__(self, owner: LaunchLowering, end: int) -> None:
        self.owner, self.builder = owner, owner.builder
        self.accessor, self.plan = owner.accessor, owner.plan
        products = [s for s, p in self.plan.gemms.items() if p.kind == "tcgen05"]
        self.place = end - tensor_words(self.plan.gemms.values())  # of the address
        waited = [s for s in products if not self.plan.gemms[s].is_async]
        self.done = {id(s): self.place + 1 + n for n, s in enumerate(waited)}
        self.turns: dict[int, Any] = {}
        self.pairs = BlockPairs(owner, self.place) if multiplies_in_pairs(owner.launch) else None
        self.begin = self.place if self.pairs is None else self.pairs.place

    def allocate(self) -> None:
        """Emit the allocation, and what makes memory barriers; all threads see both."""
        builder = self.builder
        self.warp = builder.bind(ptx.warp_index(self._thread_text()).call())
        words = self.owner.view("uint32")
        address = builder.address(words, self.place * BARRIER_WORDS)
        with builder.when(tir.EQ(self.warp, index(0))):
            allocate = ptx.tensor_allocate(self.plan.tensor_columns, self.pairs is not None)
            builder.evaluate(allocate.call(address))
        with builder.when(tir.EQ(index(self.owner.number), index(0))):
            for place in self.done.values():
                there = builder.address(self.owner.view("uint64"), place)
                builder.evaluate(ptx.barrier_init().call(there, index(1)))
            if self.pairs is not None:
                self.pairs.init()
        builder.evaluate(ptx.fence_barrier_init().call())
        self.fence(before=True)
        builder.evaluate(ptx.sync_threads().call())
        self.fence(before=False)
        self.address = builder.bind(builder.load(words, self.place * BARRIER_WORDS))
        for number in self.done:
            self.turns[number] = builder.local(1, "int32", "products")
            builder.store(self.turns[number], index(0), 0)

    def _thread_text(self) -> str:
        x, y, z = self.plan.threads
        if y * z == 1:
            return "threadIdx.x"
        return f"(threadIdx.x + {x} * (threadIdx.y + {y} * threadIdx.z))"

    def free(self) -> None:
        """Emit the end: nobody uses the columns any more."""
        builder = self.builder
        self.fence(before=True)
        if self.pairs is None:
            builder.evaluate(ptx.sync_threads().call())
        else:  # nor does the other block
            self.owner.clusters.sync()
            self.pairs.await_arrivals()
        self.fence(before=False)
        with builder.when(tir.EQ(self.warp, index(0))):
            free = ptx.tensor_free(self.plan.tensor_columns, self.pairs is not None)
            builder.evaluate(free.call(self.address))

    def fence(self, *, before: bool) -> None:
        """Emit what orders tensor memory with a barrier that follows (or came before)."""
        self.builder.evaluate(ptx.tensor_fence(before).call())

    # --- the thread that issues products ------------------------------------------------------

    @contextlib.contextmanager
    def issuer(self) -> Iterator[None]:
        """Open the branch of the thread that issues all products of its team.

        Its warp meets behind it: what comes next may be for whole warps (.aligned). Where two
        blocks multiply together, it is one of the first.
        """
        builder, first = self.builder, self.owner.team.first // WARP
        chosen_warp = tir.EQ(self.warp, index(first))
        if self.pairs is not None:
            chosen_warp = tir.And(self.pairs.is_first(), chosen_warp)
        with builder.when(chosen_warp):
            chosen = builder.bind(ptx.elect().call())
            with builder.when(tir.NE(chosen, index(0))):
                yield
            builder.evaluate(ptx.converge_warp().call())

    def commit_to(self, stmt: Arrive) -> None:
        """Emit the arrival of a statement when the products so far are complete."""
        with self.issuer():
            place = self.accessor.locate(stmt.buffer, (stmt.index,))
            there = self.builder.address(*place)
            if stmt.in_pair and self.pairs is not None:
                self.pairs.commit(stmt, there)
            else:
                commit = ptx.tensor_commit(pair=self.pairs is not None)
                self.builder.evaluate(commit.call(there))

    def done_barrier(self, product: Stmt) -> Any:
        """Return a pointer to the barrier of a product that is waited for at its end."""
        return self.builder.address(self.owner.view("uint64"), self.done[id(product)])

    def wait(self, product: Stmt) -> None:
        """Emit the wait of all threads for a product."""
        builder, turns = self.builder, self.turns[id(product)]
        parity = builder.bind(remainder(builder.load(turns, 0), 2))
        builder.evaluate(ptx.barrier_wait().call(self.done_barrier(product), parity))
        builder.store(turns, add(builder.load(turns, 0), 1), 0)
        self.fence(before=False)

    def start(self, region: Region, column: Any = 0) -> Any:
        """Return the address of a region of a tile, in lane 0."""
        tile = self.plan.tensor_tiles[region.buffer]
        matrix: Any = 0
        for offset, extent in zip(region.offsets[:-2], tile.shape[:-2], strict=True):
            matrix = add(mul(matrix, extent), self.accessor.integer(offset))
        first = add(tile.column, mul(matrix, tile.parts * tile.row_columns))
        begin = quotient(self.accessor.integer(region.offsets[-1]), tile.packed)
        first = add(add(first, begin), column)
        return self.address + tir.Cast("uint32", index(first))

    # --- transfers ----------------------------------------------------------------------------

    def transfer(self, stmt: Stmt, plan: TensorTransfer) -> None:
        """Emit a copy between tensor memory and registers, or a fill."""
        Transfer(self, stmt, plan).emit()


class Transfer:
    """One copy between tensor memory and what threads hold."""

    def __init__(self, memory: TensorMemory, stmt: Stmt, plan: TensorTransfer) -> None:
        self.memory, self.stmt, self.plan = memory, stmt, plan
        self.accessor, self.builder = memory.accessor, memory.builder
        self.tile = memory.plan.tensor_tiles[plan.tile.buffer]
        self.dtype = self.tile.dtype
        self.spread = plan.spread
        self.registers, self.first, self.row = self._registers()

    def _registers(self) -> tuple[Any, int, int]:
        """Return (array, its first element that is moved, elements from part to part)."""
        plan = self.plan
        each = self.spread.slots // self.tile.parts
        place = None if plan.other is None else self.accessor.places.get(plan.other.buffer)
        is_held = (
            isinstance(place, FragmentPlace)
            and place.distribution == plan.held
            and place.dtype == self.dtype
        )
        if is_held and isinstance(place, FragmentPlace) and plan.held is not None:
            return place.memory, plan.start, plan.held.slots // self.tile.parts
        kind = memory_type(self.dtype)
        return self.builder.local(self.spread.slots, kind, "moved"), 0, each

    @property
    def is_direct(self) -> bool:
        """Whether the registers are those of the other side."""
        place = (
            None if self.plan.other is None else self.accessor.places.get(self.plan.other.buffer)
        )
        return isinstance(place, FragmentPlace) and place.memory is self.registers

    def emit(self) -> None:
        """Emit the copy or fill."""
        if self.plan.stores:
            if isinstance(self.stmt, Fill):
                self._fill(self.stmt)
            elif not self.is_direct:
                self._exchange(stores=False)
            self._move()
            self.builder.evaluate(ptx.tensor_wait_stores().call())
            return
        self._move()
        self.builder.evaluate(ptx.tensor_wait_loads().call())
        each = self.spread.slots // self.tile.parts
        for part in range(self.tile.parts):
            there = self.builder.address(self.registers, self.first + part * self.row)
            kind = self.dtype if self.tile.packed == 1 else "uint32"
            self.builder.evaluate(ptx.tensor_keep(each // self.tile.packed, kind).call(there))
        if not self.is_direct:
            self._exchange(stores=True)

    def _fill(self, stmt: Fill) -> None:
        value = convert(self.accessor.scalar(stmt.value), str(stmt.value.dtype), self.dtype)
        value = self.builder.bind(to_memory(value, self.dtype))
        with self.builder.turns(self.spread.slots) as slot:
            self.builder.store(self.registers, value, slot)

    def _move(self) -> None:
        """Emit the instructions: wide moves of a thread's columns, part by part."""
        builder, tile = self.builder, self.tile
        is_half = tile.shape[-2] < LANES and not tile.is_folded
        columns = (int_value(self.plan.tile.extents[-1]) or 0) // tile.packed
        columns //= 2 if tile.is_folded else 1
        each = self.spread.slots // tile.parts // tile.packed  # registers of a thread
        unit = 4 if is_half else 1  # registers of the smallest move
        mine = each // unit * (UNIT if is_half else 1)  # columns of a thread
        groups = columns // mine
        number = quotient(self.accessor.thread, WARP)
        quarter = mul(remainder(number, 4), WARP << 16)
        group = remainder(quotient(number, 4), groups) if groups > 1 else 0
        start = self.memory.start(self.plan.tile, mul(group, mine))
        start = builder.bind(start + tir.Cast("uint32", index(quarter)))
        # Of warpgroups that hold the same one stores it: two writes of a place race.
        writer = is_first_copy(self.spread, self.accessor.thread) if self.plan.stores else None
        width = _width(each // unit, WIDEST // unit)
        shape = "16x256b" if is_half else "32x32b"
        step = width * (UNIT if is_half else 1)
        for part in range(tile.parts):
            with only(builder, writer), builder.turns(each // unit // width) as turn:
                column = add(part * tile.row_columns, mul(turn, step))
                there = start + tir.Cast("uint32", index(column))
                place = add(self.first + part * self.row, mul(turn, width * unit * tile.packed))
                held = builder.address(self.registers, place)
                if self.plan.stores:
                    call = ptx.tensor_store(width, shape).call(there, held)
                else:
                    call = ptx.tensor_load(width, shape).call(held, there)
                builder.evaluate(call)

    def _exchange(self, *, stores: bool) -> None:
        """Store the registers to the other side, or load them from it."""
        region = self.plan.other
        assert region is not None
        accessor, builder, spread = self.accessor, self.builder, self.spread
        names = (Var("row"), Var("column"))
        indices = matrix_indices(region, names)
        loops = PointLoops(accessor, spread, names)
        loops.find_slots((Access(region.buffer, indices, stores, True),))
        leader = is_first_copy(spread, accessor.thread) if stores else None
        place = accessor.places.get(region.buffer)
        leader = None if isinstance(place, FragmentPlace) else leader
        with only(builder, leader), loops.open(unrolled=True) as digits, loops.at(digits):
            slot: Any = 0
            for stride, value in digits.items():
                slot = add(slot, mul(value, stride))
            if stores:
                value = from_memory(builder.load(self.registers, slot), self.dtype)
                accessor.store(region.buffer, indices, builder.bind(value), self.dtype)
            else:
                load = Load(region.buffer, indices, region.dtype)
                value = convert(accessor.load(load), str(region.dtype), self.dtype)
                builder.store(self.registers, to_memory(value, self.dtype), slot)


def _width(count: int, most: int) -> int:
    """Return the largest power of two up to ``most`` that divides ``count``."""
    width = 1
    while width * 2 <= most and count % (width * 2) == 0:
        width *= 2
    return width
