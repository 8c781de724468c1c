"""Moving tiles into another shape: T.transpose, T.im2col."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tilecore.errors import ShapeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.arithmetic.polynomial import is_equal
from tilecore.ir.expr import (
    Expr,
    ExprLike,
    Load,
    Var,
    as_expr,
    binary,
    cast,
    const,
    int_value,
    select,
)
from tilecore.ir.indexing import element, format_shape, varying_axes
from tilecore.ir.nodes import For, Parallel, Region, Stmt, Store
from tilecore.language.copy import region

LEAST_CHUNK = 8  # channels side by side that are worth a loop of their own


def _matrix(box: Region, what: str) -> tuple[int, ...]:
    """Return the two axes of a region used as a matrix: those that vary, or the last two."""
    axes = varying_axes(box)
    if len(axes) < 2:
        axes = tuple(range(len(box.extents)))[-2:]
    if len(axes) != 2:
        raise ShapeMismatch(what=what, expected="two axes", found=format_shape(box.extents))
    return axes


def _emit(names: tuple[Var, ...], extents: tuple[Expr, ...], place: Load, value: Expr) -> None:
    builder = current()
    store = Store(place.buffer, place.indices, cast(value, place.dtype), builder.span)
    builder.emit(Parallel(names, extents, store, span=builder.span))


def transpose(src: Any, dst: Any, annotations: dict[str, Any] | None = None) -> None:
    """Set ``dst[.., j, i] = src[.., i, j]``; outside of a tensor, as T.copy, read 0, store nothing.

    Args:
        src: tile [.., M, N], whole or a slice.
        dst: tile [.., N, M]; the leading axes are those of ``src``.
        annotations: hint, changes speed only.

    Raises:
        ShapeMismatch: fewer than two axes, or other extents (TC201).
        TypeMismatch: not a tile (TC202).
    """
    _ = annotations
    source, target = region(src, "the source of T.transpose"), region(dst, "its destination")
    order = _swapped(source, target)
    names = tuple(Var(f"i{axis}") for axis in range(len(order)))
    extents = tuple(target.extents[axis] for axis, _ in order)
    to = element(target, {axis: name for (axis, _), name in zip(order, names, strict=True)})
    value = element(source, {axis: name for (_, axis), name in zip(order, names, strict=True)})
    if not _is_outside(target):
        _emit(names, extents, to, const(0, value.dtype) if _is_outside(source) else value)


def _is_outside(box: Region) -> bool:
    """Return whether a box of a tensor begins behind its end."""
    if box.buffer.scope != "global":
        return False
    ends = zip(map(int_value, box.offsets), map(int_value, box.buffer.shape), strict=True)
    return any(at is not None and size is not None and at >= size for at, size in ends)


def _swapped(source: Region, target: Region) -> list[tuple[int, int]]:
    """Return the axes of the target, each with the axis of the source that it is.

    The last two are swapped; where that does not fit, those of a size other than 1 are.
    """
    rank = len(source.extents)
    if rank == len(target.extents) >= 2:
        order = [*range(rank - 2), rank - 1, rank - 2]
        pairs = [(source.extents[axis], e) for axis, e in zip(order, target.extents, strict=True)]
        if all(is_equal(a, b) for a, b in pairs):
            return list(enumerate(order))
    rows, columns = _matrix(source, f"T.transpose of `{source.buffer.name}`")
    first, second = _matrix(target, f"T.transpose into `{target.buffer.name}`")
    m, n = source.extents[rows], source.extents[columns]
    if not (is_equal(target.extents[first], n) and is_equal(target.extents[second], m)):
        raise ShapeMismatch(
            what=f"T.transpose of `{source.buffer.name}` to `{target.buffer.name}`",
            expected=format_shape((n, m)),
            found=format_shape(target.extents),
        )
    return [(first, columns), (second, rows)]


def im2col(
    img: Any,
    col: Any,
    nhw_step: ExprLike,
    c_step: ExprLike,
    kernel: int,
    stride: int,
    dilation: int,
    pad: int,
    eviction_policy: str | None = None,
    annotations: dict[str, Any] | None = None,
) -> None:
    """Gather one tile of the matrix whose product with the weights is a convolution.

    Row m of the matrix is a pixel (n, oh, ow) of the output, column k an element (kh, kw, c) of
    its window; the tile is number ``nhw_step`` along the rows and ``c_step`` along the columns.
    What lies outside the image is 0.

    Args:
        img: tensor [N, H, W, C].
        col: tile [rows, columns].
        nhw_step: number of the tile along the rows.
        c_step: number of the tile along the columns.
        kernel: height and width of the window.
        stride: distance between windows.
        dilation: distance between elements of a window.
        pad: zeros around the image.
        eviction_policy: hint, changes speed only; so is annotations.
        annotations: see eviction_policy.

    Raises:
        ShapeMismatch: ``img`` has not four axes, or ``col`` not two (TC201).
        TypeMismatch: not a tensor or tile (TC202).
    """
    _ = (eviction_policy, annotations)
    image, tile = region(img, "img of T.im2col"), region(col, "col of T.im2col")
    if len(image.extents) != 4:
        found = format_shape(image.extents)
        raise ShapeMismatch(what="img of T.im2col", expected="axes N, H, W, C", found=found)
    row_axis, column_axis = _matrix(tile, "col of T.im2col")
    columns = tile.extents[column_axis]
    _, height, width, channels = image.extents
    reach = dilation * (kernel - 1) + 1
    out_h, out_w = ((size + (2 * pad - reach)) // stride + 1 for size in (height, width))
    gathered = _Gathered(image, tile, (row_axis, column_axis), kernel, dilation)
    sizes = int_value(channels), int_value(columns)
    chunk = math.gcd(*(size or 1 for size in sizes))
    builder, i, j = current(), Var("i"), Var("j")
    with builder.open("loop") as row:
        m = builder.let("m", as_expr(nhw_step) * tile.extents[row_axis] + i)
        y = builder.let("y", m % (out_h * out_w) // out_w * stride - pad)
        x = builder.let("x", m % out_w * stride - pad)
        corner = (m // (out_h * out_w), y, x)
        if chunk < LEAST_CHUNK:
            k = as_expr(c_step) * columns + j
            gathered.emit(corner, k // channels, k % channels, (i, j), (j, columns))
        else:
            piece = Var("piece")
            of_window, pieces = ((size or 1) // chunk for size in sizes)
            with builder.open("loop") as run:
                part = builder.let("part", as_expr(c_step) * pieces + piece)
                window = builder.let("window", part // of_window)
                channel = builder.let("channel", part % of_window * chunk) + j
                at = (i, piece * chunk + j)
                gathered.emit(corner, window, channel, at, (j, const(chunk)))
            _serial(piece, const(pieces), run.body())
    _serial(i, tile.extents[row_axis], row.body())


def _serial(name: Var, extent: Expr, body: Stmt) -> None:
    builder = current()
    builder.emit(For(name, const(0), extent, const(1), "serial", body, span=builder.span))


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Elements of the tile of T.im2col."""

    image: Region
    tile: Region
    axes: tuple[int, int]
    kernel: int
    dilation: int

    def emit(
        self,
        corner: tuple[Expr, Expr, Expr],
        window: Expr,
        channel: Expr,
        at: tuple[Expr, Expr],
        lanes: tuple[Var, Expr],
    ) -> None:
        """Emit a parallel loop that sets some columns of a row.

        Args:
            corner: image, y and x of the first element of the row's window.
            window: number of the place in the window, the same in all lanes or not.
            channel: channel of each lane.
            at: row and column of each lane in the tile.
            lanes: variable and extent of the parallel loop.
        """
        image, (number, y, x) = self.image, corner
        dy, dx = window // self.kernel * self.dilation, window % self.kernel * self.dilation
        place = (number, y + dy, x + dx, channel)
        indices = tuple(binary("add", o, p) for o, p in zip(image.offsets, place, strict=True))
        kind = image.buffer.dtype
        is_real = window < self.kernel * self.kernel
        value = select(is_real, Load(image.buffer, indices, kind), const(0, kind))
        target = element(self.tile, dict(zip(self.axes, at, strict=True)))
        _emit((lanes[0],), (lanes[1],), target, value)


c2d_im2col = im2col
