"""Two blocks of a cluster that multiply together (sm_100): who begins, and what each is told.

The first block of a pair (of even rank) issues the products and commits to barriers of both. What
it tells the other one is on its way for itself: the barrier of the cluster does not wait for it. So
the first block counts what it has told each barrier, and before they exit both wait until that has
come (as CUTLASS's ``producer_tail`` and DeepGEMM's last round of waits do).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.products.pairs import counted_words, told_barriers
from tilecore.ir.expr import const
from tilecore.ir.nodes import Arrive, Buffer
from tilecore.lowering.tir import add, index, mul, quotient, remainder

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering

BOTH = 0b11  # blocks of a pair, from the first one on
COUNT_WORDS = 2  # of 32 bits in a word of 64


class BlockPairs:
    """The pairs of a launch's blocks, and the counts of what products tell barriers.

    The counts are the last words (of 64 bits) of shared memory before ``end``.
    """

    def __init__(self, owner: LaunchLowering, end: int) -> None:
        self.owner, self.builder = owner, owner.builder
        self.place = end - counted_words(owner.launch)
        self.counts: dict[tuple[Buffer, int], int] = {}  # by barrier: its word
        for buffer in told_barriers(owner.launch):
            for number in range(len(buffer.arrive_counts or ())):
                self.counts[buffer, number] = self.place + len(self.counts)

    def first(self) -> Any:
        """Return the rank of the first block of the pair."""
        rank = self.owner.clusters.rank
        return index(add(rank, mul(remainder(rank, 2), -1)))

    def is_first(self) -> Any:
        """Return whether the block is the first of its pair."""
        return tir.EQ(index(remainder(self.owner.clusters.rank, 2)), index(0))

    def init(self) -> None:
        """Emit what one thread does before any product: nothing has been told."""
        for place in self.counts.values():
            self.builder.store(
                self.owner.view("uint32"), tir.Cast("uint32", index(0)), place * COUNT_WORDS
            )

    def commit(self, stmt: Arrive, barrier: Any) -> None:
        """Emit the arrival at a barrier of both blocks, by the thread that issues products."""
        builder = self.builder
        mask = tir.shift_left(index(BOTH), self.first())
        builder.evaluate(ptx.tensor_commit(multicast=True, pair=True).call(barrier, mask))
        start = self.counts[stmt.buffer, 0]
        word = mul(add(start, self.owner.accessor.integer(stmt.index)), COUNT_WORDS)
        count = builder.address(self.owner.view("uint32"), word)
        builder.evaluate(ptx.atomic("add", "uint32").call(count, tir.Cast("uint32", index(1))))

    def await_arrivals(self) -> None:
        """Emit the wait, behind a barrier of the cluster, until all that was told has come."""
        builder, accessor = self.builder, self.owner.accessor
        load = ptx.cluster_load("uint32")
        with builder.when(tir.EQ(index(self.owner.number), index(0))):
            for (buffer, number), place in self.counts.items():
                count = (buffer.arrive_counts or ())[number]
                there = builder.address(self.owner.view("uint32"), place * COUNT_WORDS)
                told = builder.bind(tir.Cast("int32", load.call(there, self.first())))
                phases = builder.bind(index(quotient(told, count)))
                with builder.when(tir.GT(phases, index(0))):
                    barrier = builder.address(*accessor.locate(buffer, (const(number),)))
                    parity = remainder(add(phases, 1), 2)  # of the last phase
                    wait = ptx.barrier_wait(of_cluster=True)
                    builder.evaluate(wait.call(barrier, index(parity)))
        builder.evaluate(ptx.converge_warp().call())
