"""T.gemm of few rows whose vector operand a nest computes (inference/cpu/computed.py says when).

Each vector of pairs is computed into a register of its own right before all rows multiply it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.plan import GemmPlan
from tilecore.ir.nodes import Stmt
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.gemm.dot import DotLowering
from tilecore.lowering.cpu.gemm.strided import RowGroup
from tilecore.lowering.cpu.nests.group_nest import GROUP, GroupVectors
from tilecore.lowering.tir import add, index, mul, quotient
from tilecore.target import Target


class ComputedLowering(DotLowering):
    """Emits one gemm and the nest that computes its vector operand."""

    def __init__(
        self,
        accessor: Accessor,
        plan: GemmPlan,
        target: Target,
        statement: Callable[[Stmt], None],
    ) -> None:
        super().__init__(accessor, plan, target)
        assert plan.nest is not None
        self.vectors = GroupVectors(accessor, target, statement, plan.nest)

    def emit(self) -> None:
        """Emit all panels."""
        with self.vectors.ready():
            super().emit()

    def _products(
        self, accumulators: list[Any], row: Any, rows: RowGroup,
        panel: Any, column: Any, count: int, depth: Any,
    ) -> None:  # fmt: skip
        builder, length = self.builder, self.vectors.groups_at_once
        whole = builder.bind(quotient(self.groups, length))
        columns = [add(column, j * self.lanes) for j in range(count)]

        def run(number: Any, part: int) -> None:
            first = builder.bind(mul(number, length * GROUP))
            vectors = [builder.bind(self.vectors.words(first, part * GROUP, c)) for c in columns]
            q = add(mul(number, length), part)
            self._add_products(accumulators, rows, q, vectors, None)

        with builder.loop(whole) as number:
            for part in range(length):
                run(number, part)
        if isinstance(self.groups, int) and self.groups % length == 0:
            return
        for part in range(length - 1):
            with builder.when(tir.LT(index(add(mul(whole, length), part)), index(self.groups))):
                run(whole, part)
