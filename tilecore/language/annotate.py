"""Hints and checks: T.use_swizzle, T.annotate_*, T.Layout, T.assume, T.device_assert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.expr import ExprLike, as_bool, cast
from tilecore.ir.fragment import Fragment
from tilecore.ir.layout import Layout
from tilecore.ir.nodes import Annotate, Assert, Buffer, Pad

__all__ = [
    "Fragment", "Layout", "annotate_layout", "annotate_safe_value", "assume", "device_assert",
    "use_swizzle",
]  # fmt: skip


def use_swizzle(panel_size: int = 8, order: str = "row", enable: bool = True) -> None:
    """Ask for blocks to run in panels of ``panel_size`` rows or columns; changes speed only.

    Raises:
        TypeMismatch: an unknown order (TC202).
    """
    if order not in ("row", "column", "mlx"):
        raise TypeMismatch(expected='order "row", "column" or "mlx"', found=repr(order))
    builder = current()
    value = MappingProxyType({"panel_size": panel_size, "order": order, "enable": bool(enable)})
    builder.emit(Annotate("swizzle", value, builder.span))


def annotate_layout(layouts: Mapping[Buffer, Layout | Callable[..., Any]], **options: Any) -> None:
    """Fix how tiles lie in memory: ``{tile: T.Layout(shape, fn)}`` or ``{tile: fn}``.

    Raises:
        TypeMismatch: a key is not a tile, or a value is not a layout (TC202).
        ShapeMismatch: a layout has another shape than its tile (TC201).
    """
    _ = options
    builder = current()
    found: dict[Buffer, Layout] = {}
    for buffer, layout in layouts.items():
        if not isinstance(buffer, Buffer):
            raise TypeMismatch(expected="a tile as key of T.annotate_layout", found=repr(buffer))
        found[buffer] = Layout.of(buffer, layout)
    builder.emit(Annotate("layout", MappingProxyType(found), builder.span))


def annotate_safe_value(safe_value_map: Mapping[Buffer, ExprLike]) -> None:
    """Let loads outside a tensor give another value than 0: ``{tensor: value}``.

    Raises:
        TypeMismatch: a key is not a tensor, or a value not a number (TC202).
    """
    builder = current()
    for buffer, value in safe_value_map.items():
        if not isinstance(buffer, Buffer) or buffer.scope != "global":
            raise TypeMismatch(
                expected="a tensor as key of T.annotate_safe_value",
                found=getattr(buffer, "name", repr(buffer)),
            )
        builder.emit(Pad(buffer, cast(value, buffer.dtype), builder.span))


def assume(cond: ExprLike) -> None:
    """State that ``cond`` always holds, which nothing checks.

    Before the launches of a program, bounds of its dimensions and integer parameters (``T.assume(n
    >= 64)``) save versions of code for other sizes. Elsewhere it is without effect.

    Raises:
        TypeMismatch: not a condition (TC202).
    """
    found, builder = as_bool(cond), current()
    if not builder.block_vars:
        builder.attrs["assumed"] = (*builder.attrs.get("assumed", ()), found)


def device_assert(cond: ExprLike, msg: str = "", no_stack_info: bool = False) -> None:
    """Stop the program with ``msg`` where ``cond`` does not hold.

    Args:
        cond: what must hold.
        msg: what the error says.
        no_stack_info: accepted for compatibility; the error names the source line.

    Raises:
        TypeMismatch: not a condition (TC202).
    """
    _ = no_stack_info
    builder = current()
    builder.emit(Assert(as_bool(cond), msg, builder.span))
