"""Copies and fills as parallel nests: what they mean element by element."""

from __future__ import annotations

from tilecore.ir.analysis import kept_axes
from tilecore.ir.expr import Expr, Load, Var
from tilecore.ir.nodes import Copy, Fill, Parallel, Region, Store


def copy_nest(copy: Copy) -> Parallel:
    """Return a copy as a nest over the axes of its regions (those of size 1 left out)."""
    names = _names(copy.dst)
    load = Load(copy.src.buffer, shifted(copy.src, names), copy.src.buffer.dtype)
    return _nest(copy.dst, names, load, copy)


def fill_nest(fill: Fill) -> Parallel:
    """Return a fill as a nest over the axes of its region (those of size 1 left out)."""
    return _nest(fill.dst, _names(fill.dst), fill.value, fill)


def shifted(region: Region, names: tuple[Var, ...]) -> tuple[Expr, ...]:
    """Return the indices of the element at ``names``, one per axis that is not of size 1."""
    indices = list(region.offsets)
    for axis, name in zip(kept_axes(region), names, strict=True):
        indices[axis] = indices[axis] + name
    return tuple(indices)


def _names(region: Region) -> tuple[Var, ...]:
    return tuple(Var(f"i{axis}") for axis in range(len(kept_axes(region))))


def _nest(dst: Region, names: tuple[Var, ...], value: Expr, stmt: Copy | Fill) -> Parallel:
    extents = tuple(dst.extents[a] for a in kept_axes(dst))
    return Parallel(
        names, extents, Store(dst.buffer, shifted(dst, names), value, stmt.span), span=stmt.span
    )
