"""Memory that is no tile of its own: views, tensors at addresses, workspaces; and let bindings."""

from __future__ import annotations

from tvm import tirx as tir

from tilecore.ir.arithmetic.length import is_kept
from tilecore.ir.nodes import Buffer, Let
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.params import (
    flat_view,
    is_small,
    small_storage,
    tensor_storage,
    total_elements,
)
from tilecore.lowering.cpu.place import Place
from tilecore.lowering.cpu.scalar import memory_type


def declare(accessor: Accessor, buffer: Buffer) -> None:
    """Give a view, a tensor at an address or a workspace its place."""
    storage = small_storage(buffer) if is_small(buffer) else tensor_storage(accessor, buffer)
    builder = accessor.builder
    if buffer.base is not None:
        base = accessor.places[buffer.base]
        memory = flat_view(accessor, base.memory, buffer)  # inference keeps the base unpadded
        accessor.places[buffer] = Place(memory, storage, guarded=base.guarded)
        return
    if buffer.address is not None:
        address = tir.reinterpret("handle", accessor.scalar(buffer.address))
        memory = flat_view(accessor, address, buffer)
    else:
        size = total_elements(accessor, buffer)
        memory = builder.alloc(size, memory_type(buffer.dtype), buffer.name)
    accessor.places[buffer] = Place(memory, storage, guarded=True)


def bind_let(accessor: Accessor, stmt: Let) -> None:
    """Compute the value of a let binding once."""
    is_place = stmt.var in accessor.of_index
    value = accessor.scalar(stmt.value) if is_place else accessor.value(stmt.value)
    if is_kept(stmt.var, stmt.value, accessor.lengths):
        accessor.values[stmt.var] = accessor.builder.kept(value, str(stmt.var.dtype))
    else:
        accessor.values[stmt.var] = accessor.builder.bind(value)
        accessor.lets[stmt.var] = stmt.value
