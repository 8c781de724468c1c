"""Reductions over the threads of an axis, by TVM's names: T.tvm_thread_allreduce."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import Builder
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, ExprLike, Load, Var, as_expr, binary, cast, const, int_value
from tilecore.ir.nodes import Alloc, Buffer, Exchange, For, Store, Sync
from tilecore.language.kernel import KernelFrame
from tilecore.language.math import index_to_coordinates
from tilecore.language.thread import thread_kernel

__all__ = ["CommReducer", "attr", "comm_reducer", "tvm_thread_allreduce"]
_STEPS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


@dataclass(frozen=True)
class CommReducer:
    """An associative operation of T.comm_reducer: one of sum, prod, max, min."""

    op: str


def comm_reducer(combine: Callable[[Expr, Expr], Expr], identity: Any = None) -> CommReducer:
    """Return the reducer that a function of two values stands for.

    Raises:
        TypeMismatch: it is no sum, product, maximum or minimum (TC202).
    """
    _ = identity
    found = combine(Var("x", DType("float32")), Var("y", DType("float32")))
    op = {step: op for op, step in _STEPS.items()}.get(getattr(found, "op", ""))
    if op is None:
        known = "lambda x, y: x + y, x * y, T.max or T.min"
        raise TypeMismatch(expected=known, found=str(found))
    return CommReducer(op)


@contextmanager
def attr(node: Any, key: str, value: Any = None) -> Iterator[None]:
    """Set the reducer of T.tvm_thread_allreduce inside the block; other attributes are hints."""
    _ = value
    builder, launch = thread_kernel("attr")
    _ = builder
    before = launch.reducer
    if key == "reduce_scope":
        launch.reducer = node
    yield
    launch.reducer = before


def tvm_thread_allreduce(
    size: Any, value: ExprLike, cond: Any, result: Load, *threads: Any, dtype: Any = None
) -> None:
    """Combine ``value`` over the threads of axes into ``result``, in every thread.

    The operation is that of the enclosing ``T.attr(T.comm_reducer(...), "reduce_scope", ...)``.

    Raises:
        TypeMismatch: no reducer is set, or ``threads`` are not thread indices (TC202).
    """
    _ = size, cond, dtype
    builder, launch = thread_kernel("tvm_thread_allreduce")
    if not isinstance(launch.reducer, CommReducer):
        raise TypeMismatch(expected="T.attr(T.comm_reducer(...), ...) around it", found="none")
    own = [launch.thread_var(d) for d in range(len(launch.threads))]
    axes = sorted(d for d, var in enumerate(own) if any(t is var for t in threads))
    if not axes or len(axes) != len(threads):
        raise TypeMismatch(
            expected=f"thread indices of the block ({', '.join(v.name for v in own)})",
            found=", ".join(str(t) for t in threads) or "none",
        )
    given = as_expr(value)
    if axes == list(range(len(axes))):
        width = math.prod(int_value(launch.threads[d]) or 0 for d in axes)
        builder.emit(Exchange(launch.reducer.op, result.buffer, (given,), width, builder.span))
        return
    _through_memory(builder, launch, launch.reducer.op, given, result, axes)


def _through_memory(
    builder: Builder, launch: KernelFrame, op: str, value: Expr, result: Load, axes: list[int]
) -> None:
    """Combine over axes whose threads are no neighbours: each reads what the others have put."""
    extents, span = launch.threads, builder.span
    total = math.prod(int_value(e) or 0 for e in extents)
    board = Buffer("told", (const(total),), value.dtype, "shared", span=span)

    def place(index: dict[int, Any]) -> Expr:
        found: Expr = const(0)
        for d in reversed(range(len(extents))):
            step = index.get(d, launch.thread_var(d))
            found = binary("add", binary("mul", found, extents[d]), step)
        return found

    def told(number: ExprLike) -> Expr:
        indices = index_to_coordinates(number, [extents[d] for d in axes])
        return Load(board, (place(dict(zip(axes, indices, strict=True))),), value.dtype)

    other = Var("other")
    so_far = cast(Load(result.buffer, result.indices, result.dtype), value.dtype)
    both = cast(binary(_STEPS[op], so_far, told(other)), result.dtype)
    count = math.prod(int_value(extents[d]) or 0 for d in axes)
    builder.emit(Alloc(board, span))
    builder.emit(Store(board, (place({}),), value, span))
    builder.emit(Sync("block", span))
    builder.emit(Store(result.buffer, result.indices, cast(told(0), result.dtype), span))
    step = Store(result.buffer, result.indices, both, span)
    builder.emit(For(other, const(1), const(count), const(1), "serial", step, span=span))
    builder.emit(Sync("block", span))
