"""Parameters of the compiled function: tensors with known or dynamic shapes, and scalars.

A tensor whose shape or strides are not all known is declared with one int64 variable per axis;
TVM's calling convention fills them from the tensor of the call. Dynamic dimensions take their
values from these; that tensors agree is checked by the runtime before the call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.plan import TilePlan
from tilecore.inference.cpu.storage import Storage, TensorStorage
from tilecore.ir.dims import extents_of, solve, value_ranges
from tilecore.ir.expr import Expr, Var, cast, known_or
from tilecore.ir.nodes import Buffer, PrimFunc
from tilecore.lowering.cpu.access import INT32_MAX, Accessor
from tilecore.lowering.cpu.place import Place
from tilecore.lowering.cpu.scalar import BYTES, PACKED, convert, memory_type
from tilecore.lowering.tir import typed

NARROW_FLOATS = ("float16", *PACKED)  # passed as float32


def lower_params(accessor: Accessor, func: PrimFunc) -> list[Any]:
    """Return the TIR parameters of ``func`` after giving its tensors places, its symbols values."""
    accessor.ranges.update(value_ranges(func))
    axes: list[tuple[Expr, Any]] = []
    params = [
        _scalar(accessor, p) if isinstance(p, Var) else _tensor(accessor, p, axes)
        for p in func.params
    ]
    _bind_dimensions(accessor, axes)
    for buffer, param in zip(func.params, params, strict=True):
        if isinstance(buffer, Buffer) and not is_small(buffer):
            memory = flat_view(accessor, param, buffer)
            accessor.places[buffer] = Place(memory, tensor_storage(accessor, buffer), guarded=True)
    return params


def kept_memory(tile: TilePlan, number: int) -> Any:
    """Return the parameter through which a caller passes the packed operand that it keeps."""
    dtype = memory_type(tile.storage.dtype)
    return tir.decl_buffer((tile.packed_size,), dtype, f"kept{number}", data_alignment=64)


def is_small(buffer: Buffer) -> bool:
    """Return whether shape and strides are known and offsets fit int32.

    Strides of empty tensors have no meaning: they are left open, so that TVM does not check them.
    """
    shape = buffer.static_shape
    return shape is not None and buffer.strides is None and 0 < math.prod(shape) <= INT32_MAX


def _scalar(accessor: Accessor, param: Var) -> Any:
    kind = str(param.dtype)
    carrier = "float32" if kind in NARROW_FLOATS else kind
    value = tir.Var(param.name, carrier)
    accessor.values[param] = convert(value, carrier, kind, 1)
    return value


def _tensor(accessor: Accessor, buffer: Buffer, axes: list[tuple[Expr, Any]]) -> Any:
    """Return the TIR buffer of a tensor; add its axes and strides that are found at the call."""
    if is_small(buffer):
        known = list(buffer.static_shape or ())
        if buffer.dtype.is_packed:
            known[-1] //= 2
        shape = [tir.IntImm("int32", e) for e in known]
        handle = _declared(buffer, shape, None)
        place = Place(flat_view(accessor, handle, buffer), small_storage(buffer), guarded=True)
        accessor.places[buffer] = place
        return handle
    shape = [tir.Var(f"{buffer.name}_{i}", "int64") for i in range(buffer.ndim)]
    # Named strides also keep TVM from checking them: those of an empty tensor have no meaning.
    strides = [tir.Var(f"{buffer.name}_s{i}", "int64") for i in range(buffer.ndim)]
    sizes, steps = list(shape), list(strides)
    if buffer.dtype.is_packed:
        sizes[-1] = sizes[-1] * 2
        steps[:-1] = [step * 2 for step in steps[:-1]]
    axes += zip(extents_of(buffer), (*sizes, *steps), strict=False)
    return _declared(buffer, shape, strides)


def _bind_dimensions(accessor: Accessor, axes: Sequence[tuple[Expr, Any]]) -> None:
    """Give dimensions their values: from axes that are a symbol alone, then from linear ones."""
    for is_alone in (True, False):
        for extent, axis in axes:
            solved = solve(extent)
            if solved is None or solved.symbol in accessor.values:
                continue
            if is_alone and not isinstance(extent, Var):
                continue
            value, kind = axis, str(solved.symbol.dtype)
            if solved.rest or solved.factor != 1:
                value = tir.truncdiv(axis - solved.rest, tir.IntImm("int64", solved.factor))
            cast_value = value if kind == "int64" else tir.Cast(kind, value)
            accessor.values[solved.symbol] = accessor.builder.bind(cast_value)


def _declared(buffer: Buffer, shape: list[Any], strides: list[Any] | None) -> Any:
    return tir.decl_buffer(
        shape,
        BYTES.get(buffer.dtype, str(buffer.dtype)),
        buffer.name,
        strides=strides,
        data_alignment=buffer.dtype.itemsize,
    )


def small_storage(buffer: Buffer) -> Storage:
    """Return the row-major storage of a tensor of known shape."""
    shape = buffer.static_shape
    assert shape is not None
    return Storage(shape, str(buffer.dtype), "rows", shape[-1] if shape else 1)


def tensor_storage(accessor: Accessor, buffer: Buffer) -> TensorStorage:
    """Return the storage of a tensor with int64 offsets; unknown strides are computed once."""
    shape: tuple[Expr | int, ...] = tuple(known_or(e) for e in buffer.shape)
    if buffer.strides is not None:
        strides = tuple(known_or(e) for e in buffer.strides)
        return TensorStorage(shape, str(buffer.dtype), strides)
    found: list[Expr | int] = []
    step: Expr | int = 1
    for axis in reversed(range(buffer.ndim)):
        if isinstance(step, Expr):
            step = _named(accessor, step, f"{buffer.name}_step{axis}")
        found.append(step)
        extent = shape[axis]
        step = cast(extent, "int64") * step if isinstance(extent, Expr) else extent * step
    return TensorStorage(shape, str(buffer.dtype), tuple(reversed(found)))


def _named(accessor: Accessor, value: Expr, name: str) -> Var:
    var = Var(name, value.dtype)
    accessor.values[var] = accessor.builder.bind(accessor.scalar(value))
    accessor.ranges[var] = (0, 2**63 - 1)
    return var


def flat_view(accessor: Accessor, owner: Any, buffer: Buffer) -> Any:
    """Return a 1-D view, of the element type of ``buffer``, of a TIR buffer or address."""
    shape = buffer.static_shape
    size = INT32_MAX if shape is None else min(math.prod(shape), INT32_MAX)
    return accessor.builder.flat_view(owner, size, memory_type(buffer.dtype), buffer.dtype.itemsize)


def total_elements(accessor: Accessor, buffer: Buffer) -> Any:
    """Return the number of elements of a row-major tensor, as an int or in TIR (int64)."""
    known = buffer.static_shape
    if known is not None:
        return math.prod(known)
    total: Any = typed(1, "int64")
    for extent in buffer.shape:
        total = total * accessor.scalar(cast(extent, "int64"))
    return accessor.builder.bind(total)
