"""Nests that move matrices between registers and shared memory: ldmatrix and stmatrix."""

from __future__ import annotations

import contextlib
from typing import Any

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.accesses.matrix_moves import ROW_ELEMENTS
from tilecore.inference.gpu.distribution import Distribution
from tilecore.inference.gpu.loops import Access
from tilecore.inference.gpu.plan import MatrixMove
from tilecore.ir.expr import const
from tilecore.lowering.cuda.access import access_key
from tilecore.lowering.cuda.memory import slot_index, thread_index
from tilecore.lowering.cuda.nests.nest import NestLowering
from tilecore.lowering.cuda.scalar import memory_type
from tilecore.lowering.tir import add, mul, quotient, remainder

WARP = 32


def digits_at(distribution: Distribution, each: int, turn: Any, number: Any) -> dict[int, Any]:
    """Return the digits of slot ``each * turn + number`` by stride, ``number`` below ``each``."""
    found: dict[int, Any] = {}
    for digit in distribution.digits(in_thread=False):
        stride, extent = digit.stride, digit.extent
        if stride * extent <= each:
            found[stride] = remainder(quotient(number, stride), extent)
        elif stride >= each:
            found[stride] = remainder(quotient(turn, stride // each), extent)
        else:
            turns = remainder(turn, stride * extent // each)
            found[stride] = add(mul(turns, each // stride), quotient(number, stride))
    return found


class MatrixMoveLowering(NestLowering):
    """Emits a nest of whose accesses one moves 8x8 matrices of a warp."""

    def _points(self, leader: Any | None) -> None:
        """Emit the points: those of one instruction after the other, and the instruction."""
        plan = self.plan.matrices
        assert plan is not None
        if self.has_table:  # slots are looked up by number: element by element
            super()._points(leader)
            return
        accessor, builder, spread = self.accessor, self.builder, self.plan.distribution
        nest, access = self.points.nest, self.points.accesses[plan.access]
        assert nest is not None
        each, key = 2 * plan.count, access_key(access)
        lane = builder.bind(remainder(accessor.thread, WARP))
        with builder.turns(spread.slots // each) as turn:
            dtype = memory_type(str(access.buffer.dtype))
            array = builder.local(each, dtype, access.buffer.name)
            if not access.is_store:
                self._move_matrices(access, array, lane, turn)
            for number in range(each):
                accessor.staged[key] = array, number
                with self.loops.at(digits_at(spread, each, turn, number)):
                    self.statement(nest.body)
            del accessor.staged[key]
            if access.is_store:
                self._move_matrices(access, array, lane, turn)

    def _move_matrices(self, access: Access, array: Any, lane: Any, turn: Any) -> None:
        """Emit the instruction for the matrices of a turn, which the array holds."""
        plan, builder = self.plan.matrices, self.builder
        assert plan is not None
        with self._at_row(plan, lane, turn):
            memory, offset = self.accessor.locate(access.buffer, access.indices)
        there, here = builder.address(memory, offset), builder.address(array)
        if access.is_store:
            store = ptx.stmatrix(plan.count, plan.is_transposed)
            builder.evaluate(store.call(there, here))
        else:
            load = ptx.ldmatrix(plan.count, plan.is_transposed)
            builder.evaluate(load.call(here, there))

    def _at_row(self, plan: MatrixMove, lane: Any, turn: Any) -> contextlib.ExitStack:
        """Name the point where the row begins whose address a lane gives."""
        accessor, spread = self.accessor, self.plan.distribution
        matrix = remainder(quotient(lane, ROW_ELEMENTS), plan.count)
        digits = digits_at(spread, 2 * plan.count, turn, mul(matrix, 2))
        warp = mul(quotient(accessor.thread, WARP), WARP)
        stack = contextlib.ExitStack()
        for axis, name in enumerate(self.points.names):
            value = add(thread_index(spread, axis, warp), slot_index(spread, axis, digits))
            if axis == (plan.columns if plan.is_transposed else plan.rows):
                value = add(value, remainder(lane, ROW_ELEMENTS))
            extent = spread.shape[axis]
            stack.enter_context(accessor.bound(name, value, (0, extent - 1), const(extent)))
        return stack
