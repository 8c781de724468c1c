"""Tile IR to TIR for CPUs: parameters, what stands outside of launches, the functions needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm import tirx as tir

from tilecore.errors import UnsupportedOnTarget
from tilecore.inference.cpu.plan import CpuPlan
from tilecore.ir.arithmetic.bounds import narrowed
from tilecore.ir.expr import Binary, Call, Expr
from tilecore.ir.nodes import (
    Alloc,
    Annotate,
    Assert,
    Buffer,
    If,
    KernelLaunch,
    Let,
    PrimFunc,
    Seq,
    Stmt,
)
from tilecore.ir.visitor import buffers_of, expressions, walk, walk_expr
from tilecore.lowering import rounding
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.functions import division, float8, vector_math
from tilecore.lowering.cpu.launch import LaunchLowering
from tilecore.lowering.cpu.nests.lets import lets_of_places
from tilecore.lowering.cpu.output import emit_assert
from tilecore.lowering.cpu.params import kept_memory, lower_params
from tilecore.lowering.cpu.scalar import check_dtypes
from tilecore.lowering.cpu.views import bind_let, declare
from tilecore.lowering.tir import TirBuilder
from tilecore.target import Target


def lower_function(func: PrimFunc, plan: CpuPlan, target: Target) -> Any:
    """Return ``func`` as one TIR PrimFunc named ``main`` whose parameters are its tensors.

    Raises:
        UnsupportedOnTarget: an element type or statement that this code generator does not have
            (TC302).
    """
    check_dtypes({str(b.dtype) for b in (*func.buffers, *buffers_of(func.body))}, target)
    builder = TirBuilder()
    _define_functions(builder, func, target)
    accessor = Accessor(builder, target)
    accessor.of_index = lets_of_places(func.body)
    params = lower_params(accessor, func)
    kept = {t.buffer: kept_memory(t, i) for i, t in enumerate(plan.kept)}
    is_packing = tir.Var("is_packing", "int32")
    params += [*kept.values(), is_packing] if kept else []
    for buffer in plan.streamed:
        place = accessor.places[buffer]
        accessor.places[buffer] = replace(place, stream_bytes=target.vector_bytes)
    _TopLevel(accessor, plan, target, kept, is_packing).emit(func.body)
    return builder.finish("main", params)


def _define_functions(builder: TirBuilder, func: PrimFunc, target: Target) -> None:
    """Add the functions in LLVM IR that the types and calls of the program need."""
    nodes = [n for s in walk(func.body) for e in expressions(s) for n in walk_expr(e)]
    dtypes = {n.dtype for n in nodes}
    dtypes |= {b.dtype for b in (*func.buffers, *buffers_of(func.body))}
    found = float8.definitions(dtypes)
    calls = {(n.name, n.dtype) for n in nodes if isinstance(n, Call)}
    found |= vector_math.definitions(calls, target.isa)
    found |= rounding.definitions(calls)
    if any(isinstance(n, Binary) and n.op == "div" for n in nodes):
        found |= division.definitions(target.isa)
    for name, text in found.items():
        builder.define_llvm(name, text)


class _TopLevel:
    """What stands outside of launches."""

    def __init__(
        self, accessor: Accessor, plan: CpuPlan, target: Target, kept: Mapping[Buffer, Any],
        is_packing: Any,
    ) -> None:  # fmt: skip
        self.accessor, self.builder = accessor, accessor.builder
        self.plan, self.target = plan, target
        self.kept, self.is_packing = kept, is_packing

    def emit(self, stmt: Stmt) -> None:
        """Emit a statement outside of launches, or a launch."""
        match stmt:
            case Seq(stmts=stmts):
                for child in stmts:
                    self.emit(child)
            case KernelLaunch():
                self._launch(stmt)
            case If(cond=cond, then_body=then, else_body=other) if other is not None:
                self._versions(cond, then, other)
            case Alloc(buffer=buffer):
                declare(self.accessor, buffer)
            case Let():
                bind_let(self.accessor, stmt)
            case Assert():
                emit_assert(self.accessor, stmt)
            case Annotate():
                pass
            case _:
                raise UnsupportedOnTarget(
                    what=f"a {type(stmt).__name__} outside T.Kernel",
                    target=self.target,
                    reason="statements run inside a T.Kernel region",
                    span=stmt.span,
                )

    def _launch(self, stmt: KernelLaunch) -> None:
        launch = LaunchLowering(self.accessor, self.plan.launches[stmt], self.target, self.kept)
        if not self.kept:
            launch.emit()
            return
        with self.builder.when(self.is_packing != 0):
            launch.pack_kept()
        with self.builder.otherwise():
            launch.emit()

    def _versions(self, cond: Expr, one: Stmt, other: Stmt) -> None:
        known = dict(self.accessor.ranges)
        with self.builder.when(self.accessor.scalar(cond)):
            self.accessor.ranges.update(narrowed(cond, known, holds=True))
            self.emit(one)
        with self.builder.otherwise():
            self.accessor.ranges.update(narrowed(cond, known, holds=False))
            self.emit(other)
        self.accessor.ranges.update(known)
