"""Places of what a kernel brings into being: arrays of a thread, views, tensors at addresses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tvm import tirx as tir

from tilecore.inference.gpu.shared import layout_of_view
from tilecore.ir.nodes import Buffer, Stmt
from tilecore.lowering.cuda.access import INT32_MAX
from tilecore.lowering.cuda.memory import LocalPlace, Place, SharedPlace, TensorPlace
from tilecore.lowering.cuda.scalar import memory_type
from tilecore.lowering.cuda.tensors import tensor_place, unsupported

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering


def declare(owner: LaunchLowering, buffer: Buffer, stmt: Stmt) -> None:
    """Give a buffer that a statement brings into being its place, if it has none yet."""
    placed = (owner.plan.shared, owner.plan.fragments, owner.plan.tensor_tiles)
    if any(buffer in places for places in placed):
        return
    shape = buffer.static_shape
    if buffer.scope == "local" and buffer.base is None and shape is not None:
        memory = owner.builder.local(
            max(1, math.prod(shape)), memory_type(str(buffer.dtype)), buffer.name
        )
        owner.accessor.places[buffer] = LocalPlace(memory, str(buffer.dtype), shape)
        return
    if buffer.address is not None:
        address = tir.reinterpret("handle", owner.accessor.scalar(buffer.address))
        place = tensor_place(buffer, owner.target, buffer.name)
        memory = owner.builder.at_address(address, memory_type(str(buffer.dtype)), buffer.name)
        owner.accessor.places[buffer] = replace(place, memory=memory)
    elif buffer.base is not None:
        owner.accessor.places[buffer] = _view_of(owner, buffer, stmt)
    elif buffer.scope != "fragment":  # a fragment without a place is never used
        raise unsupported(stmt, owner.target, f"no place for `{buffer.name}` yet")


def _view_of(owner: LaunchLowering, buffer: Buffer, stmt: Stmt) -> Place:
    """Return the place of a view: the memory of another buffer in another shape or type."""
    assert buffer.base is not None
    base, shape = owner.accessor.places[buffer.base], buffer.static_shape
    if buffer.dtype.is_packed or buffer.base.dtype.is_packed:
        raise unsupported(stmt, owner.target, "tiles of 4-bit elements have no views")
    kind = memory_type(str(buffer.dtype))
    if isinstance(base, SharedPlace) and shape is not None:
        layout = layout_of_view(buffer, base.layout)
        return SharedPlace(owner.view(kind), str(buffer.dtype), layout, base.stage)
    if isinstance(base, LocalPlace) and shape is not None:
        memory = owner.builder.view(base.memory, math.prod(shape), kind, buffer.name, "local")
        return LocalPlace(memory, str(buffer.dtype), shape)
    if isinstance(base, TensorPlace):
        place = tensor_place(buffer, owner.target, buffer.name)
        memory = owner.builder.view(base.memory, INT32_MAX, kind, buffer.name, "global")
        return replace(place, memory=memory)
    raise unsupported(stmt, owner.target, f"no view of `{buffer.base.name}` yet")
