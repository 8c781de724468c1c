"""Whether the turns of a loop write different elements of a tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilecore.ir import nodes
from tilecore.ir.analysis import writes
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.expr import Expr, Var, int_value
from tilecore.ir.nodes import Buffer, For, Stmt
from tilecore.ir.visitor import walk


def write_apart(stmt: Stmt, buffer: Buffer, loop: For) -> bool:
    """Return whether a statement inside a loop writes other elements of a tile in each turn.

    So it is where along one axis the loop's variable moves what is written by more than the span
    of all else that varies inside the loop.
    """
    if buffer.dtype.bits < 8:
        return False  # elements share bytes
    spans = _spans(loop)
    parts = [p for node in walk(stmt) if buffer in writes(node) for p in _parts(node, buffer)]
    return len(parts) == 1 and any(
        _moves(offset, extent, loop, spans) for offset, extent in zip(*parts[0], strict=True)
    )


def _spans(loop: For) -> Mapping[Var, int | None]:
    """Return how far each variable that the body of a loop binds may move; None: not known."""
    found: dict[Var, int | None] = {}
    for node in walk(loop.body):
        match node:
            case For(loop_var=var, step=step):
                trips, by = int_value(trip_count(node)), int_value(step)
                found[var] = None if trips is None or by is None else max(0, trips - 1) * abs(by)
            case nodes.Parallel(loop_vars=names, extents=extents):
                sizes = [int_value(e) for e in extents]
                found |= {
                    v: None if s is None else max(0, s - 1)
                    for v, s in zip(names, sizes, strict=True)
                }
            case nodes.Let(var=var):
                found[var] = None
            case _:
                pass
    return found


def _parts(node: Stmt, buffer: Buffer) -> Iterator[tuple[tuple[Expr, ...], tuple[int | None, ...]]]:
    """Yield (offset, extent by axis) of what a statement itself writes of a tile."""
    match node:
        case nodes.Store(indices=indices):
            yield indices, (1,) * len(indices)
        case nodes.Copy(dst=dst) | nodes.Fill(dst=dst) if dst.buffer is buffer:
            yield dst.offsets, tuple(int_value(e) for e in dst.extents)
        case _:
            yield (), ()


def _moves(offset: Expr, extent: int | None, loop: For, spans: Mapping[Var, int | None]) -> bool:
    """Return whether what is written along an axis is elsewhere in each turn."""
    form, step = linear(offset), int_value(loop.step)
    if form is None or extent is None or step is None:
        return False
    span = extent - 1
    for var, factor in form.coefficients.items():
        if var in spans:
            far = spans[var]
            if far is None:
                return False
            span += abs(factor) * far
    return abs(form.coefficient(loop.loop_var) * step) > span
