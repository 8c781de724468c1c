"""Shared memory: how tiles lie in it, and where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilecore.inference.gpu.plan import CHUNK_BYTES, GemmPlan, Pipeline, SharedLayout
from tilecore.ir.nodes import Alloc, Buffer, Seq, Stmt
from tilecore.ir.visitor import buffers_of

SWIZZLES = (128, 64, 32)


def swizzle_of(row_bytes: int) -> int:
    """Return the widest swizzle that rows are cut into, or 0."""
    return next((s for s in SWIZZLES if row_bytes % s == 0), 0)


def panel_of(shape: Sequence[int], itemsize: int) -> int:
    """Return the columns of a panel of a swizzled tile."""
    return swizzle_of(shape[-1] * itemsize) // itemsize


def keeps_rows(view: Buffer) -> bool:
    """Return whether a view of a shared tile has its rows, counted along other axes.

    It lies as the tile does then, whatever is done to the columns of a row by its number.
    """
    base, shape = view.base, view.static_shape
    if base is None or base.base is not None or view.scope != "shared" or not shape:
        return False
    whole = base.static_shape
    return base.dtype == view.dtype and whole is not None and whole[-1:] == shape[-1:]


def layout_of_view(view: Buffer, memory: SharedLayout) -> SharedLayout:
    """Return the layout of a view of a tile that lies as ``memory`` says.

    Whatever moves 16 bytes of a swizzled row moves them whole, so that elements of any type and
    shape are found there by the row and the column that they have in memory.
    """
    shape, itemsize = view.static_shape or (1,), view.dtype.itemsize
    if keeps_rows(view):
        return replace(memory, shape=shape)
    if not memory.swizzle_bytes:
        return replace(memory, shape=shape, itemsize=itemsize, leading=shape[-1])
    row = memory.shape[-1] * memory.itemsize // itemsize
    rows = memory.elements // memory.shape[-1]
    return replace(memory, shape=(rows, row), itemsize=itemsize, leading=row, seen_as=shape)


def layout_in(layouts: Mapping[Buffer, SharedLayout], buffer: Buffer) -> SharedLayout | None:
    """Return the layout of a tile, or of a view of one, or None of what is no shared tile."""
    memory = layouts.get(buffer.root)
    return memory if memory is None or buffer.base is None else layout_of_view(buffer, memory)


def lay_out(
    tiles: Iterable[Buffer],
    gemms: Iterable[GemmPlan],
    stages: Mapping[Buffer, int],
    viewed: set[Buffer],
    staging: set[Buffer],
    plain: set[Buffer],
) -> dict[Buffer, SharedLayout]:
    """Return the layout of each shared tile, still without a place.

    Operands that are read in rows are swizzled, so that the 8 rows of a matrix lie in different
    banks, and so are those (``staging``) that sums or fragments move to in 8 rows at a time, but
    for ``plain`` tiles. Rows of memory that a view counts in another shape follow each other.
    """
    matrices = {
        region.buffer.root
        for plan in gemms
        for region, operand in ((plan.stmt.a, plan.a), (plan.stmt.b, plan.b))
        if operand.source in ("ldmatrix", "chunks", "descriptor")
        or (plan.kind == "mma" and operand.source == "elements" and region.dtype.itemsize >= 4)
    }
    matrices = (matrices | staging) - plain
    found = {}
    for tile in tiles:
        shape = tile.static_shape
        assert shape is not None
        itemsize = 8 if tile.arrive_counts is not None else tile.dtype.itemsize  # an mbarrier
        row = (shape[-1] if shape else 1) * itemsize
        swizzle = swizzle_of(row) if tile in matrices and len(shape) > 1 else 0
        leading = shape[-1] if shape else 1
        if tile in matrices - viewed and not swizzle:
            chunk = max(1, CHUNK_BYTES // itemsize)
            leading = -(-leading // chunk) * chunk + chunk  # 16 bytes further each row
        found[tile] = SharedLayout(shape or (1,), itemsize, swizzle, leading, stages.get(tile, 1))
    return found


def assign_places(
    body: Stmt,
    layouts: Mapping[Buffer, SharedLayout],
    pipelines: Iterable[Pipeline],
    beside: Iterable[tuple[int, int]] = (),
) -> tuple[dict[Buffer, SharedLayout], int]:
    """Return the layouts with their places, and the bytes that a block needs.

    Tiles that are never alive together share memory; a tile is alive from the first to the last
    statement of the launch that uses it, and while roles run beside each other that it stands
    among. Tiles that come in boxes are filled as early as they can be: from the start, and to the
    end where their loop runs again. Barriers are made when the kernel begins, and their memory is
    nothing else until it ends (PTX ISA 9.0, mbarrier.inval).

    Args:
        body: of the launch.
        layouts: of its tiles.
        pipelines: its loops whose copies run ahead.
        beside: (first, last) of its statements that may run beside each other (``side_by_side``).
    """
    stmts = body.stmts if isinstance(body, Seq) else (body,)
    spans = _spans(stmts, layouts)
    for first, last in beside:
        spans |= {
            tile: (min(start, first), max(end, last))
            for tile, (start, end) in spans.items()
            if start <= last and first <= end
        }
    spans |= {t: (0, len(stmts)) for t in layouts if t.arrive_counts is not None}
    for pipeline in pipelines:
        for copy in pipeline.copies if pipeline.boxes else ():
            tile = copy.dst.buffer
            spans[tile] = (0, len(stmts) if pipeline.is_nested else spans[tile][1])
    placed: dict[Buffer, SharedLayout] = {}
    for tile in sorted(layouts, key=lambda t: (-layouts[t].alignment, -layouts[t].bytes)):
        layout = layouts[tile]
        busy = sorted(
            (other.offset_bytes, other.offset_bytes + other.bytes)
            for name, other in placed.items()
            if _overlap(spans.get(tile), spans.get(name))
        )
        offset = 0
        for start, end in busy:
            if offset + layout.bytes <= start:
                break
            offset = max(offset, -(-end // layout.alignment) * layout.alignment)
        placed[tile] = replace(layout, offset_bytes=offset)
    total = max((p.offset_bytes + p.bytes for p in placed.values()), default=0)
    return {tile: placed[tile] for tile in layouts}, total


def sharing_memory(layouts: Mapping[Buffer, SharedLayout]) -> dict[Buffer, set[Buffer]]:
    """Return for each tile those whose memory overlaps its own, itself included."""
    return {
        tile: {
            other
            for other, b in layouts.items()
            if a.offset_bytes < b.offset_bytes + b.bytes
            and b.offset_bytes < a.offset_bytes + a.bytes
        }
        | {tile}
        for tile, a in layouts.items()
    }


def _spans(
    stmts: Sequence[Stmt], layouts: Mapping[Buffer, SharedLayout]
) -> dict[Buffer, tuple[int, int]]:
    found: dict[Buffer, tuple[int, int]] = {}
    for number, stmt in enumerate(stmts):
        if isinstance(stmt, Alloc):
            continue
        for buffer in {b.root for b in buffers_of(stmt)} & layouts.keys():
            first, _ = found.get(buffer, (number, number))
            found[buffer] = (first, number)
    return found


def _overlap(a: tuple[int, int] | None, b: tuple[int, int] | None) -> bool:
    return a is not None and b is not None and a[0] <= b[1] and b[0] <= a[1]
