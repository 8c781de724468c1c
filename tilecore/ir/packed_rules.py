"""What holds for elements of less than a byte: rows of whole bytes, and no atomic updates."""

from __future__ import annotations

from tilecore.errors import ShapeMismatch, TileError, TypeMismatch
from tilecore.ir import nodes
from tilecore.ir.expr import Var, int_value
from tilecore.ir.nodes import Buffer, Stmt

EVEN = "an even number: a byte holds two elements, and a row whole bytes"


def buffer_faults(buffer: Buffer) -> list[TileError]:
    """Return what is wrong with tensors, views and viewed tiles of packed elements."""
    shared = [b for b in (buffer, buffer.base) if b is not None and b.dtype.is_packed]
    return [f for b in shared if b.scope == "global" or buffer.base for f in _row_faults(b)]


def _row_faults(buffer: Buffer) -> list[TileError]:
    what = f"`{buffer.name}` ({buffer.dtype})"
    if not buffer.shape:
        return [ShapeMismatch(what=f"rank of {what}", expected="at least 1", found=0)]
    found: list[TileError] = []
    last = int_value(buffer.shape[-1])
    if last is not None and last % 2:
        found.append(ShapeMismatch(what=f"last axis of {what}", expected=EVEN, found=last))
    for axis, stride in enumerate(buffer.strides or ()):
        step, is_last = int_value(stride), axis == buffer.ndim - 1
        if step is None or (step == 1 if is_last else step % 2 == 0):
            continue
        name = f"stride of axis {axis} of {what}"
        found.append(ShapeMismatch(what=name, expected="1" if is_last else EVEN, found=step))
    return found


def param_faults(param: Buffer | Var) -> list[TileError]:
    """Return what is wrong with a parameter of packed elements."""
    if isinstance(param, Buffer):
        return buffer_faults(param)
    if param.dtype.is_packed:
        what = f"a tensor of {param.dtype}; a scalar has 8 bits or more"
        return [TypeMismatch(expected=what, found=f"`{param.name}`: {param.dtype}")]
    return []


def stmt_faults(stmt: Stmt) -> list[TileError]:
    """Return what a statement must not do with packed elements."""
    match stmt:
        case nodes.Alloc(buffer=buffer):
            return buffer_faults(buffer)
        case nodes.Atomic(buffer=buffer) if buffer.dtype.is_packed:
            what = f"elements of 8 bits or more in an atomic {stmt.op}"
            return [TypeMismatch(expected=what, found=f"`{buffer.name}` ({buffer.dtype})")]
        case nodes.Gemm(c=c) if c.buffer.dtype.is_packed:
            name = c.buffer.name
            what = f"an accumulator `{name}` of 8 bits or more"
            return [TypeMismatch(expected=what, found=c.buffer.dtype)]
        case _:
            return []
