"""Thread indices by TVM's names, and values bound by hand: T.thread_binding, T.let."""

from __future__ import annotations

from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.expr import Expr, ExprLike, Var, as_expr, cast, int_value
from tilecore.ir.nodes import Let
from tilecore.language.thread import get_thread_binding, get_thread_extents

__all__ = ["let", "thread_binding"]
_AXES = {"threadIdx.x": 0, "threadIdx.y": 1, "threadIdx.z": 2}


def thread_binding(
    start: ExprLike, stop: Any = None, thread: str | None = None, **options: Any
) -> Expr:
    """Return threadIdx of an axis: ``tx = T.thread_binding(0, 128, thread="threadIdx.x")``.

    Args:
        start: 0.
        stop: the threads along the axis, as T.Kernel has them.
        thread: "threadIdx.x", ".y" or ".z".
        options: annotations of TVM, without effect here.

    Raises:
        TypeMismatch: another range or axis than those of the block (TC202).
        ScopeError: outside T.Kernel (TC104).
    """
    _ = options
    extents = get_thread_extents()
    if thread not in _AXES or _AXES[thread] >= len(extents):
        known = ", ".join(list(_AXES)[: len(extents)])
        raise TypeMismatch(expected=f"a thread axis of the block ({known})", found=repr(thread))
    extent = extents[_AXES[thread]]
    given = (int_value(as_expr(start)), int_value(as_expr(stop)) if stop is not None else None)
    if given != (0, int_value(as_expr(extent))):
        found = f"{start} to {stop}"
        raise TypeMismatch(expected=f"the range 0 to {extent} of {thread}", found=found)
    return get_thread_binding(_AXES[thread])


def let(var: Any, value: ExprLike) -> None:
    """Bind ``var``, made by an element type without a value (``T.int32()``), to ``value``.

    Raises:
        TypeMismatch: ``var`` is no such variable (TC202).
    """
    if not isinstance(var, Var):
        raise TypeMismatch(expected="a variable such as T.int32() makes", found=f"{var}")
    builder = current()
    builder.emit(Let(var, cast(value, var.dtype), builder.span))
