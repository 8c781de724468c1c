"""Sums that run along rows, a vector of neighbours at a time.

One element after the other, each addition waits for the one before. Here the lanes of a vector are
added up in as many steps as its lanes have bits; what waits is the sum before the vector alone.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tvm import tirx as tir

from tilecore.ir.expr import Var, int_value
from tilecore.ir.fold import STEPS
from tilecore.ir.nodes import Scan
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.fold import FoldLowering
from tilecore.lowering.llvm_text import LLVM_TYPES, shuffle_order
from tilecore.lowering.tir import add, broadcast, mul, vector_type
from tilecore.target import Target


class RowScanLowering(FoldLowering):
    """Emits one scan along the last axis."""

    @staticmethod
    def suits(accessor: Accessor, stmt: Scan, target: Target) -> bool:
        """Return whether a scan adds up neighbours of rows that lie in whole vectors."""
        made = RowScanLowering(accessor, target, stmt)
        if not made.axes or made.folded != [made.axes[-1]] or made.lanes < 2:
            return False
        extent, var = int_value(made.src.extents[made.axes[-1]]), made.vars[made.axes[-1]]
        is_long = extent is not None and extent >= made.lanes
        if not is_long or STEPS[stmt.op] != (False, "add") or str(made.dtype) not in LLVM_TYPES:
            return False
        return made.has_vector_form(var, is_folded=False) and made._stays_inside(var)

    def _stays_inside(self, var: Var) -> bool:
        scope = self.accessor.scope(var, self.lanes)
        with self._known_ranges():
            ends = [
                end for buffer, indices in self.accesses for end in self._open_ends(buffer, indices)
            ]
        return not any(scope.is_vector(index) for index, _ in ends)

    def emit(self) -> None:
        """Emit loops over the rows, and their vectors."""
        with self._known_ranges(), ExitStack() as loops:
            for axis in self.outer:
                loops.enter_context(self._loop(axis))
            self._row(self.axes[-1])
        for var in self.vars.values():
            self.accessor.values.pop(var, None)

    def _row(self, axis: int) -> None:
        extent, var = int_value(self.src.extents[axis]) or 0, self.vars[axis]
        builder, lanes, is_back = self.builder, self.lanes, self.is_reverse
        whole, rest = divmod(extent, lanes)
        total, before = self.accumulator(1), self.accumulator(lanes)
        if is_back and rest:
            self._rest(var, total, rest, extent)
            kept = builder.bind(broadcast(builder.load(total, 0), lanes))
            builder.store(before, kept, 0, lanes)
        with builder.loop(whole) as q:
            number = tir.Sub(tir.IntImm("int32", whole - 1), q) if is_back else q
            self.accessor.assign(var, mul(number, lanes))
            self._vector(var, before)
        if rest and not is_back:
            builder.store(total, builder.load(before, 0), 0)
            self._rest(var, total, rest, extent)

    def _vector(self, var: Var, before: Any) -> None:
        """Emit a vector of sums; ``before`` holds the sum before it, in all lanes."""
        builder, lanes = self.builder, self.lanes
        scope, kind = self.accessor.scope(var, lanes), str(self.dtype)
        name = f"tilecore_scan_{'back' if self.is_reverse else 'on'}_{lanes}x{kind}"
        text = _text(name, LLVM_TYPES[kind], lanes, is_back=self.is_reverse)
        own = builder.call_llvm(vector_type(kind, lanes), name, text, self._value(scope))
        sums = self.accumulator(lanes)
        found = builder.bind(builder.load(before, 0, lanes) + own)
        builder.store(sums, found, 0, lanes)
        last = tir.IntImm("int32", 0 if self.is_reverse else lanes - 1)
        builder.store(before, tir.Shuffle([found], [last] * lanes), 0, lanes)
        self.store(sums, scope)

    def _rest(self, var: Var, total: Any, rest: int, extent: int) -> None:
        """Emit the elements beyond the last whole vector, one by one."""
        with self.builder.loop(rest, start=extent - rest) as index:
            back = tir.Sub(tir.IntImm("int32", 2 * extent - rest - 1), index)
            self.accessor.assign(var, back if self.is_reverse else add(index, 0))
            scope = self.accessor.scope()
            self.take(total, scope)
            self.store(total, scope)


def _text(name: str, element: str, lanes: int, *, is_back: bool) -> str:
    """Return the function from a vector to the sums up to each of its lanes, or from each on."""
    kind, op = f"<{lanes} x {element}>", "fadd" if element in ("float", "double", "half") else "add"
    lines, value, apart = [], "%x", 1
    while apart < lanes:
        order = [i + apart if is_back else i - apart for i in range(lanes)]
        taken = shuffle_order([i if 0 <= i < lanes else lanes for i in order])
        lines += [
            f"  %s{apart} = shufflevector {kind} {value}, {kind} zeroinitializer, {taken}",
            f"  %x{apart} = {op} {kind} {value}, %s{apart}",
        ]
        value, apart = f"%x{apart}", 2 * apart
    body = "\n".join(lines)
    return (
        f"define linkonce_odr hidden {kind} @{name}({kind} %x) alwaysinline {{\n"
        f"{body}\n  ret {kind} {value}\n}}"
    )
