"""Axes of the grid and the block by TVM's names, and values bound by hand: T.let."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.frontend.loops import LoopSpec
from tilecore.ir.expr import Expr, ExprLike, Var, as_expr, cast, int_value
from tilecore.ir.nodes import Let
from tilecore.language.kernel import bind_axis

__all__ = ["launch_thread", "let", "thread_binding"]


def launch_thread(thread: str, extent: ExprLike) -> Expr:
    """Return the index along an axis: ``tx = T.launch_thread("threadIdx.x", 128)``.

    A program without T.Kernel gives its grid and block this way.

    Args:
        thread: "blockIdx" or "threadIdx" with .x, .y or .z.
        extent: blocks or threads along the axis; inside T.Kernel those that it has.

    Raises:
        TypeMismatch: no such axis, or another extent (TC202).
    """
    return bind_axis(thread, extent)


@dataclass(frozen=True, slots=True, eq=False)
class _Axis(LoopSpec):
    """``for tx in T.thread_binding(128, thread="threadIdx.x")`` in a program without T.Kernel."""

    tag: str = ""

    def open(self, names: Sequence[str] = ()) -> Iterator[Any]:
        yield bind_axis(self.tag, self.stops[0])


def thread_binding(
    start: ExprLike, stop: Any = None, thread: str | None = None, **options: Any
) -> Any:
    """Return threadIdx of an axis: ``tx = T.thread_binding(0, 128, thread="threadIdx.x")``.

    Outside T.Kernel it is a loop: ``for bx in T.thread_binding(8, thread="blockIdx.x")``.

    Args:
        start: 0, or the extent if ``stop`` is not given.
        stop: the threads along the axis, as T.Kernel has them.
        thread: "threadIdx.x", ".y" or ".z"; also "blockIdx".
        options: annotations of TVM, without effect here.

    Raises:
        TypeMismatch: another range or axis than those of the block (TC202).
    """
    _ = options
    first, last = (0, start) if stop is None else (start, stop)
    if int_value(as_expr(first)) != 0:
        raise TypeMismatch(expected=f"a range of {thread} from 0", found=f"{first} to {last}")
    if current().find("kernel") is None:
        zero, extent, one = as_expr(0), as_expr(last), as_expr(1)
        return _Axis("serial", (zero,), (extent,), (one,), tag=str(thread))
    return bind_axis(str(thread), last)


def let(var: Any, value: ExprLike) -> None:
    """Bind ``var``, made by an element type without a value (``T.int32()``), to ``value``.

    Raises:
        TypeMismatch: ``var`` is no such variable (TC202).
    """
    if not isinstance(var, Var):
        raise TypeMismatch(expected="a variable such as T.int32() makes", found=f"{var}")
    builder = current()
    builder.emit(Let(var, cast(value, var.dtype), builder.span))
