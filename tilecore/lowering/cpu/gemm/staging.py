"""Groups of rows of a gemm's broadcast operand, copied to scratch memory before they are used.

Rows of a tensor lie far apart: read where they are, those of a group push each other out of L1 or
miss the TLB in every panel. While the panels use one group, the rows of the next one are fetched.
"""

from __future__ import annotations

from typing import Any

from tilecore.inference.cpu.plan import GemmPlan
from tilecore.inference.cpu.storage import rows
from tilecore.ir.dtype import DType
from tilecore.lowering.cpu import prefetch
from tilecore.lowering.cpu.gemm.strided import Strided
from tilecore.lowering.cpu.place import Place, vector_load, vector_store
from tilecore.lowering.cpu.scalar import memory_type, zero
from tilecore.lowering.tir import TirBuilder, add, index, minimum, mul, quotient
from tilecore.target import Target


class RowStage:
    """Scratch memory for one group of rows of ``source``, whose columns lie side by side."""

    def __init__(
        self, builder: TirBuilder, source: Strided, plan: GemmPlan, accum: str, target: Target
    ) -> None:
        self.builder, self.source = builder, source
        self.fills = plan.k if plan.dot is not None else 0  # whole groups of products read so many
        given = source.place.storage.dtype
        self.dtype = accum if plan.dot is None else plan.dot.stored or given
        self.is_raw = self.dtype == given and not DType(given).is_packed
        self.lanes = target.lanes(self.dtype)
        size = DType(self.dtype).itemsize
        storage = rows((plan.micro_m, plan.k), self.dtype, size, self.lanes)
        self.leading = storage.leading
        memory = builder.alloc(storage.size, memory_type(self.dtype), "rows")
        self.place = Place(memory, storage)
        self.panels = -(-plan.n // (target.lanes(accum) * plan.micro_n))

    def fill(self, row: Any, count: Any, depth: Any) -> Strided:
        """Copy ``count`` rows from ``row`` on; return them as an operand with a's numbers of rows.

        ``depth``: how many columns exist.
        """
        builder, lanes = self.builder, self.lanes
        whole = quotient(depth, lanes)
        with builder.loop(count) as i:
            start = builder.bind(self.source.at(add(row, i), 0))
            to = builder.bind(mul(i, self.leading))
            with builder.loop(whole) as q:
                self._move(start, to, mul(q, lanes), lanes)
            if not isinstance(depth, int) or depth % lanes:
                done = mul(whole, lanes)
                with builder.loop(index(depth) - index(done), start=done) as k:
                    self._move(start, to, k, 1)
            if self.fills and depth is not self.fills:
                with builder.loop(index(self.fills) - index(depth), start=depth) as k:
                    vector_store(builder, self.place, zero(self.dtype), add(to, k), 1)
        return Strided(self.place, builder.bind(mul(row, -self.leading)), self.leading, 1)

    def _move(self, start: Any, to: Any, at: Any, lanes: int) -> None:
        builder, given = self.builder, self.source.place
        if self.is_raw:  # bit by bit: rounding a bfloat16 takes long
            value = builder.load(given.memory, add(start, at), lanes)
            builder.store(self.place.memory, value, add(to, at), lanes)
            return
        value = vector_load(builder, given, add(start, at), lanes, self.dtype)
        vector_store(builder, self.place, value, add(to, at), lanes)

    def coming(self, panel: Any, row: Any, size: int) -> tuple[Any, int]:
        """Return where the rows of the next group begin that a panel fetches, and how many."""
        share = -(-size // self.panels)
        first = minimum(mul(panel, share), size - share)
        return self.builder.bind(self.source.at(add(add(row, size), first), 0)), share

    def fetch(self, coming: tuple[Any, int], column: Any) -> None:
        """Fetch the cache line of a column of each of the rows ``coming``."""
        start, share = coming
        for i in range(share):
            at = add(add(start, mul(i, self.source.row)), column)
            prefetch.fetch(self.builder, self.source.place.memory, at)
