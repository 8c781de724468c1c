"""Which of its tiles a pipelined loop uses: the stage that buffers mean, and how it moves on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvm import tirx as tir

from tilecore.ir.nodes import Buffer
from tilecore.lowering.cuda.builder import CudaBuilder
from tilecore.lowering.cuda.memory import SharedPlace
from tilecore.lowering.tir import add, index, quotient, remainder

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering


def use_stage(owner: LaunchLowering, tiles: Sequence[Buffer], stage: Any) -> None:
    """Let tiles, and views of them, mean their ``stage``."""
    places = owner.accessor.places
    for buffer in [b for b in places if b.root in tiles]:
        place = places[buffer]
        assert isinstance(place, SharedPlace)
        places[buffer] = replace(place, stage=stage)


class Ring:
    """Where a loop is in the tiles that it uses in turn.

    The parity is that of how often the loop has been through all tiles. Both are bits of the number
    of the iteration where there are 2^n tiles; else they are kept: counting is not dividing.
    """

    def __init__(self, builder: CudaBuilder, stages: int) -> None:
        self.builder, self.stages = builder, stages
        self.is_binary = stages & (stages - 1) == 0
        self.kept = builder.local(1 if self.is_binary else 2, "int32", "ring")
        for part in range(1 if self.is_binary else 2):
            builder.store(self.kept, index(0), part)

    def place(self) -> tuple[Any, Any]:
        """Return (stage, parity)."""
        builder = self.builder
        first = builder.bind(builder.load(self.kept, 0))
        if not self.is_binary:
            return first, builder.bind(builder.load(self.kept, 1))
        stage = builder.bind(remainder(first, self.stages)) if self.stages > 1 else 0
        return stage, builder.bind(remainder(quotient(first, self.stages), 2))

    def advance(self) -> None:
        """Emit the step to the next stage."""
        builder = self.builder
        following = builder.bind(add(builder.load(self.kept, 0), 1))
        if self.is_binary:
            builder.store(self.kept, following, 0)
            return
        is_round = builder.bind(tir.EQ(following, index(self.stages)))
        builder.store(self.kept, tir.if_then_else(is_round, index(0), following), 0)
        turned = tir.Cast("int32", is_round)
        builder.store(self.kept, tir.bitwise_xor(builder.load(self.kept, 1), turned), 1)

    def before(self, stage: Any, parity: Any) -> tuple[Any, Any]:
        """Return (stage, parity) one step before."""
        if self.stages == 1:
            return 0, self.builder.bind(index(1) - parity)
        is_first = self.builder.bind(tir.EQ(stage, index(0)))
        previous = tir.if_then_else(is_first, index(self.stages - 1), stage - index(1))
        turned = tir.bitwise_xor(parity, tir.Cast("int32", is_first))
        return self.builder.bind(previous), self.builder.bind(turned)
