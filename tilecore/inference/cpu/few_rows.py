"""Gemms of few rows: the vector operand is read where it lies, since packing it costs more.

Packing pays where every element of b is used by many rows. Where few use it, and no other block
does, b streams from memory once. If it is transposed, lanes run along K: each sum is a dot
product of two rows in memory ("dots"). If not, lanes run along N and some rows of b are summed up
at a time, each a stream of its own ("sums"). A transposed b that a nest computes, neighbours along
K together, is read as it is stored, too: its panels would have to be transposed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tilecore.inference.cpu import dots
from tilecore.inference.cpu.options import CpuOptions
from tilecore.inference.cpu.plan import DOTS, SUMS, TileSource
from tilecore.inference.cpu.regions import gemm_extents, is_contiguous
from tilecore.inference.uses import Use
from tilecore.ir.analysis import covers_whole
from tilecore.ir.arithmetic.bounds import variables
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Buffer, Gemm, KernelLaunch, Store
from tilecore.ir.visitor import has_loads
from tilecore.target import Target

MOST_ROWS_AT_ONCE, MOST_ROWS_OF_SUMS = 5, 16  # in a register tile of dots, of sums
FEW, DEPTH_PER_ROW = 4, 16
MOST_STREAMS = 8  # rows of b read at once
ROWS_AT_ONCE = 8  # of b in one step of sums
MOST_ROWS_BESIDE_TILES = 7  # instructions on tiles take whole groups of more rows
ELEMENTS = ("float32", "bfloat16", "float16")


def choose(
    gemms: Sequence[Gemm],
    uses: Mapping[Buffer, Sequence[Use]],
    sources: Mapping[Buffer, TileSource],
    launch: KernelLaunch,
    target: Target,
    options: CpuOptions,
) -> dict[Gemm, str]:
    """Return the form of the gemms whose vector operand is best read in place."""
    if options.pack_b not in ("auto", "none"):
        return {}
    found: dict[Gemm, str] = {}
    for gemm in gemms:
        form = DOTS if gemm.transpose_b else SUMS
        most = most_in_place(form, target.vector_registers)
        if form == DOTS:  # adding up lanes takes as long as some products
            most = min(most, max(FEW, gemm_extents(gemm.b)[1] // DEPTH_PER_ROW))
        if gemm.b.buffer.dtype == "bfloat16" and "amx_bf16" in target.features:
            most = min(most, MOST_ROWS_BESIDE_TILES)
        is_stored = form == DOTS and _is_stored_by_rows(gemm, uses, sources)
        most = min(most, FEW) if is_stored else most
        if most_rows(gemm, sources) > most:
            continue
        if not is_stored and not _fits(gemm, uses, sources, launch):
            continue
        if options.pack_b == "none" or not is_used_again(gemm, uses, sources):
            found[gemm] = form
    while shared := [g for g in found if not _agrees(g, found, uses)]:
        for gemm in shared:
            del found[gemm]
    return found


def most_in_place(form: str, registers: int) -> int:
    """Return up to how many rows a product is faster with b in place than with b packed for it.

    Dots pay up to twice as many rows as there are vector ``registers``, of which a tile needs one
    per sum: 16 allow 3 x 4 of them, 32 allow 5 x 5. The sums of one vector of columns may take
    half of them.
    """
    return 2 * registers if form == DOTS else registers // 2


def most_rows(gemm: Gemm, sources: Mapping[Buffer, TileSource]) -> int:
    """Return how many rows of a product can lie inside its tensors."""
    rows, _ = gemm_extents(gemm.c)
    source = sources.get(gemm.a.buffer)
    if source is None or not covers_whole(gemm.a) or len(source.limits) < 2:
        return rows
    limit = source.limits[-1 if gemm.transpose_a else -2]
    bounds = None if limit is None else source.context.bounds(limit)
    return rows if bounds is None else max(1, min(rows, bounds[1]))


def register_tile(
    gemm: Gemm, form: str, rows: int, target: Target, options: CpuOptions
) -> tuple[int, int]:
    """Return rows of a, and rows of b ("dots") or vectors ("sums"), in flight."""
    columns = gemm_extents(gemm.c)[1]
    if form == DOTS:
        at_once = math.ceil(rows / math.ceil(rows / MOST_ROWS_AT_ONCE))
        return at_once, min(streams_of_dots(at_once, target.vector_registers), columns)
    most = options.micro_m or MOST_ROWS_OF_SUMS
    if most + 2 > target.vector_registers:
        most = (target.vector_registers - 3) // 2  # two vectors of b and their sums
    micro_m = math.ceil(rows / math.ceil(rows / most))
    width = (target.vector_registers - 1) // (micro_m + 1)
    vectors = math.ceil(columns / target.lanes(accumulator_dtype(gemm)))
    return micro_m, max(1, min(options.micro_n or 4, width, vectors))


def streams_of_dots(rows_at_once: int, registers: int) -> int:
    """Return how many rows of b are read at once beside so many rows of a."""
    return max(1, min(MOST_STREAMS, (registers - 1) // rows_at_once - 1))


def instructions(
    forms: Mapping[Gemm, str], uses: Mapping[Buffer, Sequence[Use]], target: Target
) -> dict[Gemm, dots.Dot]:
    """Return the gemms whose neighbours along K the target multiplies in pairs, and by what.

    Their a stays as it is, in pairs: only where no other gemm wants it in another form.
    """
    found: dict[Gemm, dots.Dot] = {}
    for gemm in forms:
        if (dot := _pairs(gemm, target)) is not None:
            found[gemm] = dot
    is_shared = {g: any(_reads_else(u, found) for u in uses[g.a.buffer]) for g in found}
    return {g: dot for g, dot in found.items() if not is_shared[g]}


def _pairs(gemm: Gemm, target: Target) -> dots.Dot | None:
    types = {str(gemm.a.buffer.dtype), str(gemm.b.buffer.dtype)}
    for dot in dots.DOTS:
        fits = types == set(dot.operands) == {"bfloat16"} and not dot.is_tiled
        if fits and not dot.obstacle(target.features, target.vector_bytes):
            return dot
    return None


def _reads_else(use: Use, found: Mapping[Gemm, dots.Dot]) -> bool:
    return isinstance(use.stmt, Gemm) and use.stmt not in found


def is_read_once(source: TileSource, launch: KernelLaunch) -> bool:
    """Return whether no two blocks read the same box of the tensor."""
    used = set().union(*(variables(o) for o in source.copy.src.offsets))
    ranges = source.context.ranges
    return all(v in used or ranges.get(v) == (0, 0) for v in launch.block_vars)


def _fits(
    gemm: Gemm,
    uses: Mapping[Buffer, Sequence[Use]],
    sources: Mapping[Buffer, TileSource],
    launch: KernelLaunch,
) -> bool:
    a, b = gemm.a.buffer, gemm.b.buffer
    source = sources.get(b)
    if source is None or a is b or gemm.transpose_a or accumulator_dtype(gemm) != "float32":
        return False
    if not all(str(x.dtype) in ELEMENTS for x in (a, b, source.copy.src.buffer)):
        return False
    in_order = len(source.axes) == 2 and all(axis is not None for axis in source.axes)
    if not in_order or source.copy.src.buffer.dtype != b.dtype:
        return False
    if not is_contiguous(source.copy.src) or not is_read_once(source, launch):
        return False
    if a.scope == "global" or not _lies_in_rows(a, uses, sources):
        return False
    return _is_whole(u for u in uses[b] if u.role != "copy-dst")


def _is_whole(readers: Iterable[Use]) -> bool:
    return all(u.role == "gemm-b" and u.region and covers_whole(u.region) for u in readers)


def _is_stored_by_rows(
    gemm: Gemm, uses: Mapping[Buffer, Sequence[Use]], sources: Mapping[Buffer, TileSource]
) -> bool:
    """Return whether a nest stores a tile of floats, neighbours along K together, for products."""
    a, b = gemm.a.buffer, gemm.b.buffer
    stores = [u for u in uses[b] if u.role != "gemm-b"]
    is_plain = a is not b and not gemm.transpose_a and a.scope != "global" and b.scope != "global"
    if not is_plain or a.dtype != b.dtype or str(b.dtype) not in ELEMENTS or len(stores) != 1:
        return False
    store, nest = stores[0].stmt, stores[0].context.nest
    if nest is None or not isinstance(store, Store) or store.indices[-1] is not nest.loop_vars[-1]:
        return False
    is_float = accumulator_dtype(gemm) == "float32" and len(b.shape) == 2
    return (
        is_float
        and _lies_in_rows(a, uses, sources)
        and _is_whole(u for u in uses[b] if u.role == "gemm-b")
    )


def is_used_again(
    gemm: Gemm,
    uses: Mapping[Buffer, Sequence[Use]],
    sources: Mapping[Buffer, TileSource],
) -> bool:
    """Return whether as many products as data tells use one tile of b."""
    b = gemm.b.buffer
    if b not in sources:
        return False
    outside = len(sources[b].context.loops)
    contexts = [u.context for u in uses[b] if u.stmt is gemm]
    return any(has_loads(x.stop, c.lets) for c in contexts for x in c.loops[outside:])


def _lies_in_rows(
    a: Buffer, uses: Mapping[Buffer, Sequence[Use]], sources: Mapping[Buffer, TileSource]
) -> bool:
    """Return whether neighbours along K lie side by side, wherever the tile is placed."""
    if any(u.role == "gemm-b" for u in uses[a]):
        return False
    source = sources.get(a)
    return source is None or is_contiguous(source.copy.src)


def _agrees(gemm: Gemm, found: Mapping[Gemm, str], uses: Mapping[Buffer, Sequence[Use]]) -> bool:
    """Return whether all gemms that read b, or a in another type, have this form."""
    readers = [u.stmt for u in uses[gemm.b.buffer] if isinstance(u.stmt, Gemm)]
    return all(found.get(r) == found[gemm] for r in readers)


def describe(gemm: Gemm, form: str, rows: int, size: tuple[int, int], dot: dots.Dot | None) -> str:
    """Return how such a gemm is computed, in words."""
    _, columns = gemm_extents(gemm.c)
    what, lanes = f"{size[1]} vectors", "N"
    if form == DOTS:
        what = f"{size[1]} rows of b (micro_m and micro_n have no effect)"
        lanes = "K, summed across at the end"
    by = f"; {dot.name}" if dot is not None else ""
    return (
        f"{gemm.span}: gemm {rows}x{columns}: register tile {size[0]} rows x {what}; "
        f"lanes run along {lanes}; few rows: b is read in place{by}"
    )
