"""Tensors as the kernels of a program know them: parameters, and memory of the program's own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from tvm import tirx as tir

from tilecore.errors import TileError, UnsupportedOnTarget
from tilecore.gpu_target import GpuTarget
from tilecore.ir.expr import Expr, cast, const, known_or
from tilecore.ir.nodes import Buffer, Stmt
from tilecore.lowering.cpu.functions import float8
from tilecore.lowering.cuda.access import INT32_MAX
from tilecore.lowering.cuda.memory import TensorPlace
from tilecore.lowering.cuda.scalar import memory_type

SUPPORTED = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "int4", "uint4", *float8.NAMES,
)  # fmt: skip


def is_workspace(buffer: Buffer) -> bool:
    """Return whether an allocation is memory of the program's own, which the caller provides."""
    return buffer.scope == "global" and buffer.base is None and buffer.address is None


def tensor_place(buffer: Buffer, target: GpuTarget, name: str) -> TensorPlace:
    """Return the place of a tensor, a parameter called ``name``."""
    if str(buffer.dtype) not in SUPPORTED:
        raise UnsupportedOnTarget(
            what=f"element type {buffer.dtype}", target=target.name,
            reason=f"supported: {', '.join(SUPPORTED)}", span=buffer.span,
        )  # fmt: skip
    shape = tuple(known_or(e) for e in buffer.shape)
    if buffer.strides is not None:
        strides = tuple(known_or(e) for e in buffer.strides)
    else:
        steps: list[Expr | int] = []
        step: Expr | int = 1
        for extent in reversed(shape):
            steps.append(step)
            if isinstance(step, int) and isinstance(extent, int):
                step = step * extent
            else:
                step = cast(const(step) if isinstance(step, int) else step, "int64") * extent
        strides = tuple(reversed(steps))
    size = math.prod(e for e in shape if isinstance(e, int)) if buffer.static_shape else INT32_MAX
    if buffer.dtype.is_packed:
        size = -(-size // 2)
    memory = tir.decl_buffer(
        (max(1, min(size, INT32_MAX)),), memory_type(str(buffer.dtype)), name,
        data_alignment=buffer.dtype.itemsize,
    )  # fmt: skip
    return TensorPlace(memory, str(buffer.dtype), shape, strides)


def unsupported(stmt: Stmt, target: GpuTarget, reason: str) -> UnsupportedOnTarget:
    """Return the error of a statement that there is no code for."""
    return UnsupportedOnTarget(
        what=f"a {type(stmt).__name__} statement", target=target.name, reason=reason, span=stmt.span
    )


@contextlib.contextmanager
def placing(stmt: Stmt, target: GpuTarget) -> Iterator[None]:
    """Say of errors inside where they happened and on which target; instructions do not know it."""
    try:
        yield
    except UnsupportedOnTarget as error:
        if error.span is not None or not stmt.span.is_known:
            raise
        fields = {**error.fields, "target": target.name}
        raise UnsupportedOnTarget(span=stmt.span, hint=error.hint, **fields) from error
    except TileError as error:
        error.at(stmt.span)
        raise
