"""Products of elements and factors that are summed up in tensor memory (sm_100): which may be.

The factors lie in tensor memory, too, where copies of chunks bring them (``plain/scaled_gemm.py``
says how they lie). One thread issues the copies and the products, which the unit runs in that
order.
Source: PTX ISA 9.0, sections 9.7.16.10.7 (block scaling) and 9.7.16.6.2 (pipelined instructions).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from tilecore.inference.gpu.loops import divisor
from tilecore.inference.gpu.products.choice import size_of
from tilecore.inference.gpu.products.scaled import UNITS, Unit
from tilecore.inference.gpu.threads.teams import Teams
from tilecore.ir import nodes
from tilecore.ir.analysis import reads, writes
from tilecore.ir.expr import Expr, Var, binary, const, int_value
from tilecore.ir.gemm_shape import matrix_shape
from tilecore.ir.indexing import varying_axes
from tilecore.ir.nodes import Buffer, ChunkCopy, Gemm, KernelLaunch, Region, Stmt
from tilecore.ir.plain.scaled_gemm import CHUNK, COLUMNS, WORD, columns_of_word, words_along_k
from tilecore.ir.visitor import children, walk

ROWS, WIDEST = 128, 256  # of an instruction's sums in a block
PAIR_STEP = 32  # of which the columns of two blocks have a multiple
WORD_CHUNK = 4  # words of 16 bytes, by which a copy reads shared memory


def tensor_unit_of(gemm: Gemm) -> Unit | None:
    """Return what multiplies the elements and factors of a product, if anything does.

    More neighbours than the 32 of MXFP8 may share a factor: further instructions take it again.
    """
    kinds = {gemm.pairs_of or str(r.buffer.dtype) for r in (gemm.a, gemm.b)}
    for unit in UNITS:
        repeats = unit.sharing == unit.depth
        fits = all(s == unit.sharing or (repeats and s % unit.sharing == 0) for s in gemm.sharing)
        if fits and gemm.factor_type == unit.factors and kinds <= set(unit.elements):
            return unit
    return None


def depth_of(gemm: Gemm) -> Expr:
    """Return how many elements there are along K."""
    across = matrix_shape(gemm.a, "A")
    depth = across[0] if gemm.transpose_a else across[1]
    return binary("mul", depth, 2) if gemm.pairs_of else depth


def width_of(n: int) -> int:
    """Return the columns of one instruction: those of several begin with chunks of factors."""
    if n <= WIDEST:
        return n
    return next((w for w in (WIDEST, CHUNK) if n % w == 0), 0)


def form_misfit(gemm: Gemm) -> str:
    """Return why no instruction takes the types of a product with factors, or ""."""
    unit = tensor_unit_of(gemm)
    a, b = (gemm.pairs_of or r.buffer.dtype for r in (gemm.a, gemm.b))
    if unit is None:
        shared = " and ".join(map(str, dict.fromkeys(gemm.sharing)))
        what = f"{gemm.factor_type} for {shared} elements each"
        return f"no tcgen05.mma for {a} x {b} with factors of {what}"
    if gemm.c.buffer.dtype != "float32":
        return f"no tcgen05.mma with factors sums up in {gemm.c.buffer.dtype}"
    is_turned = gemm.transpose_a or not gemm.transpose_b
    if unit.depth != unit.sharing and is_turned:
        return "4-bit elements are not contiguous along K"
    return ""


def scaled_misfit(gemm: Gemm, lets: Mapping[Var, Expr]) -> str:
    """Return why tensor cores cannot multiply elements and factors of a product, or ""."""
    reason, unit = form_misfit(gemm), tensor_unit_of(gemm)
    if reason or unit is None:
        return reason
    m, n, _ = size_of(gemm)
    depth = int_value(depth_of(gemm))
    if m % ROWS:
        return f"{m} rows are no multiple of {ROWS}"
    step = PAIR_STEP if gemm.in_pair else 16 if n <= WIDEST else CHUNK
    if n % step or not width_of(n):
        return f"{n} columns are no multiple of {step}"
    if gemm.in_pair and n > WIDEST:
        return f"{n} columns, of at most {WIDEST} of one instruction"
    if not depth or depth % unit.depth:
        return f"K = {depth} is no multiple of {unit.depth}"
    if gemm.start is not None and divisor(gemm.start, lets) % unit.depth:
        return f"k_start is no multiple of {unit.depth} by its form"
    for factors, rows, sharing in zip(gemm.factors, (m, n), gemm.sharing, strict=True):
        words = words_along_k(const(depth), sharing)
        columns = words * (int_value(columns_of_word(const(rows))) or 0)
        reason = _place_misfit(factors, columns)
        if reason:
            return reason
    return ""


def _place_misfit(factors: Region, columns: int) -> str:
    """Return why a product cannot read its factors from some columns of a tile, or ""."""
    tile, shape = factors.buffer, factors.buffer.static_shape
    if not tile.in_tensor_memory or shape is None or tile.dtype != WORD:
        return f"`{tile.name}` is no tile of T.alloc_tmem with uint32 words"
    first = int_value(factors.offsets[-1])
    if shape[-2] != CHUNK or int_value(factors.offsets[-2]) != 0:
        return f"the factors in `{tile.name}` are not those of all of 128 rows"
    if any(int_value(e) != 1 for e in factors.extents[:-2]):
        return f"several matrices of factors in `{tile.name}` at once"
    if first is None or first % COLUMNS:
        return f"the factors in `{tile.name}` do not begin with a multiple of {COLUMNS} columns"
    if first + columns > shape[-1]:
        return f"`{tile.name}` has {shape[-1]} columns, the factors end with {first + columns}"
    return ""


def is_of_factors(tile: Buffer, launch: KernelLaunch) -> bool:
    """Return whether a tile that asks for tensor memory holds factors."""
    if not tile.in_tensor_memory:
        return False
    return any(
        (isinstance(s, ChunkCopy) and s.dst.buffer is tile)
        or (isinstance(s, Gemm) and any(f.buffer is tile for f in s.factors))
        for s in walk(launch.body)
    )


def lets_of(launch: KernelLaunch) -> dict[Var, Expr]:
    """Return what the names of a launch stand for."""
    return {s.var: s.value for s in walk(launch.body) if isinstance(s, nodes.Let)}


def factors_misfit(tile: Buffer, launch: KernelLaunch, teams: Teams) -> str:
    """Return why the factors in a tile cannot lie in tensor memory, or ""."""
    shape = tile.static_shape
    if shape is None or len(shape) < 2 or tile.dtype != WORD or shape[-2] != CHUNK:
        return f"{tile.dtype} factors in {len(tile.shape)} axes, not uint32 in {CHUNK} rows"
    if shape[-1] % COLUMNS:
        return f"{shape[-1]} columns are no multiple of {COLUMNS}"
    lets = lets_of(launch)
    users = [s for s in walk(launch.body) if tile in (*reads(s), *writes(s))]
    for stmt in users:
        if isinstance(stmt, ChunkCopy):
            reason = _copy_misfit(stmt, lets)
        elif isinstance(stmt, Gemm) and any(f.buffer is tile for f in stmt.factors):
            reason = scaled_misfit(stmt, lets)
        else:
            reason = "elements are accessed one by one"
        if reason:
            return f"line {stmt.span.line}: {reason}"
    if len({s.in_pair for s in users if isinstance(s, (ChunkCopy, Gemm))}) > 1:
        return "two blocks together and each alone use it (all with use_2cta, or none)"
    if len({teams.team_around(s) for s in users}) > 1:
        return "several roles of warps use it; one thread copies and multiplies"
    return _under_way(tile, launch)


def _copy_misfit(copy: ChunkCopy, lets: Mapping[Var, Expr]) -> str:
    """Return why the unit of products cannot copy words, or ""."""
    source = copy.src.buffer
    first = int_value(copy.dst.offsets[-1])
    if source.scope != "shared" or source.in_tensor_memory or source.base is not None:
        return f"`{source.name}` is no tile in shared memory"
    if first is None or first % COLUMNS or int_value(copy.dst.offsets[-2]) != 0:
        return f"words do not go to a multiple of {COLUMNS} columns of all rows"
    shape, axes = source.static_shape, varying_axes(copy.src)
    if shape is None or not axes:
        return f"`{source.name}` has no words next to each other"
    for axis in range(axes[0] + 1, len(shape)):
        if int_value(copy.src.extents[axis]) != shape[axis]:
            return f"words of `{source.name}` are not next to each other"
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    places = zip(copy.src.offsets, steps, strict=True)
    if any(divisor(o, lets) * step % WORD_CHUNK for o, step in places):
        return f"words of `{source.name}` do not begin with a multiple of 16 bytes"
    return ""


def _under_way(tile: Buffer, launch: KernelLaunch) -> str:
    """Return why nobody knows when what is copied to a tile has been read, or "".

    Products that follow at once are waited for with it; else the program waits, by barriers of its
    own, before it writes the words again.
    """
    readers = [s for s in walk(launch.body) if isinstance(s, Gemm) and _reads(s, tile)]
    if not readers:
        return "no product reads it"
    covered = {id(s) for s in _before_products(launch.body)}
    ahead = {
        id(s)
        for loop in walk(launch.body)
        if isinstance(loop, nodes.For) and loop.kind == "pipelined"
        for s in walk(loop)
    }
    for stmt in walk(launch.body):
        if not isinstance(stmt, ChunkCopy) or stmt.dst.buffer is not tile or id(stmt) in covered:
            continue
        if id(stmt) in ahead or not all(g.is_async for g in readers):
            return f"line {stmt.span.line}: no product follows at once, and the program has no "\
                "barrier for when the words have been read"  # fmt: skip
    return ""


def _reads(gemm: Gemm, tile: Buffer) -> bool:
    return any(f.buffer is tile for f in gemm.factors)


def _before_products(stmt: Stmt) -> Iterator[ChunkCopy]:
    """Yield the copies of chunks behind which a product with factors stands in the same list."""
    below = children(stmt)
    pending: list[ChunkCopy] = []
    for child in below:
        if isinstance(child, ChunkCopy):
            pending.append(child)
        elif isinstance(child, Gemm) and child.in_lanes:
            yield from pending
            pending = []
        elif not isinstance(child, (nodes.Alloc, nodes.Let, nodes.Annotate)):
            pending = []
        yield from _before_products(child)
