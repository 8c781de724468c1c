"""T.print: look at values while a kernel runs."""

from __future__ import annotations

from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import Builder, current
from tilecore.ir.expr import Expr, Load, Var, as_expr, const
from tilecore.ir.indexing import whole
from tilecore.ir.nodes import Buffer, For, Print, Region, Stmt


def print(obj: Any = None, msg: str = "", warp_group_id: int = 0, warp_id: int = 0) -> None:
    """Write a value, or every element of a tile, to standard output, one line each.

    Args:
        obj: a scalar, a tile, a tensor or a slice; None writes ``msg`` alone.
        msg: what each line starts with.
        warp_group_id: accepted for compatibility; a block has no warps here.
        warp_id: see warp_group_id.

    Raises:
        ScopeError: outside a tile program (TC104).
        TypeMismatch: not a value or tile (TC202).
    """
    _ = (warp_group_id, warp_id)
    builder = current()
    if isinstance(obj, str):
        obj, msg = None, obj
    blocks = ", ".join("{}" for _ in builder.block_vars)
    head = f"msg='{_escape(msg)}' BlockIdx=({blocks})"
    if obj is None:
        builder.emit(Print(head, builder.block_vars, builder.span))
    elif isinstance(obj, (Buffer, Region)):
        _print_tile(builder, head, whole(obj) if isinstance(obj, Buffer) else obj)
    elif isinstance(obj, (Expr, int, float)):
        value = as_expr(obj)
        text = f"{head}: dtype={value.dtype} value={{}}"
        builder.emit(Print(text, (*builder.block_vars, value), builder.span))
    else:
        raise TypeMismatch(expected="a value or tile for T.print", found=type(obj).__name__)


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _print_tile(builder: Builder, head: str, box: Region) -> None:
    buffer = box.buffer
    names = tuple(Var(f"p{axis}") for axis in range(buffer.ndim))
    indices = tuple(o + n for o, n in zip(box.offsets, names, strict=True))
    index = ", ".join("{}" for _ in indices)
    text = f"{head}: buffer={buffer.name}, index=({index}), dtype={buffer.dtype} value={{}}"
    args = (*builder.block_vars, *indices, Load(buffer, indices, buffer.dtype))
    body: Stmt = Print(text, args, builder.span)
    for name, extent in reversed(list(zip(names, box.extents, strict=True))):
        body = For(name, const(0), extent, const(1), "serial", body, span=builder.span)
    builder.emit(body)
