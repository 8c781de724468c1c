"""Groups of rows of a gemm's broadcast operand, copied to scratch memory before they are used.

Rows of a tensor lie far apart: read where they are, those of a group push each other out of L1 or
miss the TLB in every panel. While the panels use one group, the rows of the next one are fetched.
"""

from __future__ import annotations

from typing import Any

from tilecore.inference.plan import GemmPlan
from tilecore.inference.storage import rows
from tilecore.ir.dtype import DType
from tilecore.lowering.cpu import prefetch
from tilecore.lowering.cpu.access import Place, vector_load, vector_store
from tilecore.lowering.cpu.strided import Strided
from tilecore.lowering.cpu.tir import TirBuilder, add, index, minimum, mul, quotient


class RowStage:
    """Scratch memory for one group of rows of ``source``, whose columns lie side by side."""

    def __init__(
        self, builder: TirBuilder, source: Strided, plan: GemmPlan, dtype: str, lanes: int
    ) -> None:
        self.builder, self.source, self.lanes, self.dtype = builder, source, lanes, dtype
        storage = rows((plan.micro_m, plan.k), dtype, DType(dtype).itemsize, lanes)
        self.leading = storage.leading
        self.place = Place(builder.alloc(storage.size, dtype, "rows"), storage)
        self.panels = -(-plan.n // (lanes * plan.micro_n))

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
        return Strided(self.place, builder.bind(mul(row, -self.leading)), self.leading, 1)

    def _move(self, start: Any, to: Any, at: Any, lanes: int) -> None:
        value = vector_load(self.builder, self.source.place, add(start, at), lanes, self.dtype)
        vector_store(self.builder, self.place, value, add(to, at), lanes)

    def coming(self, panel: Any, row: Any, size: int) -> list[Any]:
        """Return where the rows of the next group begin that a panel fetches, its share."""
        share = -(-size // self.panels)
        numbers = [minimum(add(mul(panel, share), i), size - 1) for i in range(share)]
        return [self.builder.bind(self.source.at(add(add(row, size), i), 0)) for i in numbers]

    def fetch(self, coming: list[Any], column: Any) -> None:
        """Fetch the cache line of a column of each of the rows ``coming``."""
        for start in coming:
            prefetch.fetch(self.builder, self.source.place.memory, add(start, column))
