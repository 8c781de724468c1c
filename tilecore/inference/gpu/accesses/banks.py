"""Bank conflicts of shared memory, predicted access by access.

32 banks hold consecutive 4-byte words. A warp's request of more than 4 bytes a lane is served in
parts of 128 bytes (8 lanes of 16 bytes, 16 lanes of 8); within a part, different words of one bank
are served one after the other. Source: CUDA C++ Programming Guide, "Shared Memory"; the parts of
wide accesses as measured in Jia et al., "Dissecting the NVIDIA Volta GPU Architecture" (2018).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilecore.errors import ScopeError
from tilecore.inference.gpu.distribution import Table
from tilecore.inference.gpu.places import points
from tilecore.inference.gpu.plan import CHUNK_BYTES, GpuLaunchPlan, NestPlan, SharedLayout
from tilecore.inference.gpu.products.scaled import rows_of_lanes
from tilecore.inference.gpu.shared import layout_in, swizzle_of
from tilecore.ir.expr import Expr, Var, const
from tilecore.ir.nodes import Buffer, Gemm, Stmt
from tilecore.ir.plain.scaled_gemm import word_at
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.values.evaluate import Evaluator
from tilecore.ir.visitor import has_loads, walk_expr

BANKS, WORD, PART, WARP = 32, 4, 128, 32
MATRIX_ROWS = 8  # of 16 bytes
RELIEF = 1.25  # how much sooner accesses are over for which a tile is swizzled
HASHED = np.int64(1_000_003)  # powers of which tell lists of steps apart


@dataclass(frozen=True, slots=True)
class BankUse:
    """One access of shared memory: ``ways`` 1 is free of conflicts, n takes n times as long."""

    stmt: Stmt
    buffer: Buffer
    is_store: bool
    bytes_per_lane: int
    ways: float


def bank_uses(plan: GpuLaunchPlan) -> list[BankUse]:
    """Return the accesses of shared tiles that threads make, with their mean conflicts.

    What is read through descriptors and written by the tensor memory accelerator is left out: the
    swizzles are those of the hardware. So is what depends on values that only a run knows.
    """
    boxed = {id(c) for p in plan.pipelines.values() if p.boxes for c in p.copies}
    boxed |= {id(copy) for copy in (*plan.loads, *plan.stores, *plan.updates)}
    found = [
        use
        for stmt, nest in plan.nests.items()
        if id(stmt) not in boxed
        for use in _of_nest(stmt, nest, plan.shared)
    ]
    for gemm in plan.gemms.values():
        for region, operand in ((gemm.stmt.a, gemm.a), (gemm.stmt.b, gemm.b)):
            layout = layout_in(plan.shared, region.buffer)
            if operand.source == "ldmatrix" and layout is not None:
                ways = _of_matrices(layout)
                found.append(BankUse(gemm.stmt, region.buffer, False, CHUNK_BYTES, ways))
        found += _of_factors(gemm.stmt, plan.shared)
    return found


def crossed(nests: Mapping[Stmt, NestPlan], tiles: Iterable[Buffer]) -> set[Buffer]:
    """Return those of ``tiles`` whose accesses take longer row by row than swizzled.

    By the swizzle that they would have (``shared.swizzle_of``), and by a fourth at least.
    """
    plain = {
        tile: SharedLayout(shape, tile.dtype.itemsize, 0, shape[-1])
        for tile in tiles
        if (shape := tile.static_shape) is not None and len(shape) > 1
    }
    found = _passes_of(nests, plain)
    met = {tile for tile, (taken, ideal) in found.items() if taken > ideal}
    swizzled = {
        tile: replace(plain[tile], swizzle_bytes=width)
        for tile in met
        if (width := swizzle_of(plain[tile].shape[-1] * plain[tile].itemsize))
    }
    turned = _passes_of(nests, swizzled)
    return {tile for tile in swizzled if turned[tile][0] * RELIEF <= found[tile][0]}


def _passes_of(
    nests: Mapping[Stmt, NestPlan], layouts: Mapping[Buffer, SharedLayout]
) -> dict[Buffer, tuple[float, float]]:
    """Return (how long the accesses of each tile take, how long without conflicts)."""
    found: dict[Buffer, tuple[float, float]] = {}
    for stmt, nest in nests.items():
        if not any(access.buffer.root in layouts for access in nest.points.accesses):
            continue
        for use in _of_nest(stmt, nest, layouts):
            lanes = use.bytes_per_lane // use.buffer.dtype.itemsize
            moved = math.prod(nest.points.shape) // lanes * max(use.bytes_per_lane, WORD)
            tile = use.buffer.root
            taken, ideal = found.get(tile, (0.0, 0.0))
            found[tile] = (taken + use.ways * moved, ideal + moved)
    return found


def explain_conflicts(uses: Sequence[BankUse]) -> list[str]:
    """Return a line for each access that banks slow down, with its place in the program."""
    found = []
    for use in uses:
        if use.ways > 1:
            how = "written" if use.is_store else "read"
            what = f"{use.buffer.name}: {how} with bank conflicts, {use.ways:.1f} passes for 1"
            found.append(f"{what} ({use.bytes_per_lane} B a lane; {use.stmt.span})")
    return found


def offsets(layout: SharedLayout, indices: Sequence[Table]) -> Table:
    """Return where elements lie within one copy of a tile (see ``SharedLayout``)."""
    row: Table = np.zeros_like(np.asarray(indices[-1]))
    for extent, index in zip((layout.seen_as or layout.shape)[:-1], indices[:-1], strict=True):
        row = row * extent + index
    column = np.asarray(indices[-1])
    if layout.seen_as is not None:
        row, column = np.divmod(row * layout.seen_as[-1] + column, layout.shape[-1])
    if not layout.swizzle_bytes:
        return row * layout.leading + column
    width, chunk = layout.swizzle_bytes // layout.itemsize, CHUNK_BYTES // layout.itemsize
    rows, chunks = layout.elements // layout.shape[-1], width // chunk
    within = column % width
    moved = (within // chunk) ^ (row // (8 // chunks) % chunks)
    return column // width * (rows * width) + row * width + moved * chunk + within % chunk


_points = functools.lru_cache(maxsize=64)(points)  # nests that move tiles are much alike


def _of_nest(
    stmt: Stmt, nest: NestPlan, shared: Mapping[Buffer, SharedLayout]
) -> Iterator[BankUse]:
    names = nest.points.names
    for number, access in enumerate(nest.points.accesses):
        layout = layout_in(shared, access.buffer)
        if layout is None or not access.indices:
            continue
        if nest.matrices is not None and number == nest.matrices.access:
            ways = _of_matrices(layout)
            yield BankUse(stmt, access.buffer, access.is_store, CHUNK_BYTES, ways)
            continue
        wide = next((w for w in nest.wide if number in dict(w.parts)), None)
        if wide is not None and number != wide.parts[0][0]:
            continue  # moves with the first of them
        lanes = wide.per_move if wide is not None else 1
        place = wide.place if wide is not None else access.indices
        indices = [_without_outer(i, set(names)) for i in place]
        if any(map(has_loads, indices)):
            continue
        step = lanes if nest.lanes > 1 else 1
        values, exists = _points(nest.distribution, step)
        evaluator = Evaluator(dict(zip(names, values, strict=True)))
        try:
            found = [np.broadcast_to(evaluator(i), exists.shape) for i in indices]
        except ScopeError:
            continue
        address = offsets(layout, [np.asarray(f, np.int64) for f in found]) * layout.itemsize
        ways = conflict_ways(address, exists, lanes * layout.itemsize)
        yield BankUse(stmt, access.buffer, access.is_store, lanes * layout.itemsize, ways)


def _without_outer(index: Expr, names: set[Var]) -> Expr:
    """Return an index with all other variables 0: they move all lanes alike."""
    outer = {n: const(0, str(n.dtype)) for n in walk_expr(index) if isinstance(n, Var)}
    return substitute_expr(index, {n: v for n, v in outer.items() if n not in names})


def conflict_ways(address: Table, exists: Table, width: int) -> float:
    """Return how often longer accesses take than without conflicts, on average.

    Args:
        address: in bytes, by thread and turn.
        exists: which of them happen.
        width: bytes of one access.
    """
    together = max(1, min(WARP, PART // max(width, WORD)))  # lanes that are served at once
    threads, turns = address.shape
    parts = -(-threads // together)
    first = address if exists.all() else np.where(exists, address, -1)
    if parts * together > threads:
        missing = np.full((parts * together - threads, turns), -1)
        first = np.concatenate([first, missing])
    first = first.reshape(parts, together, turns).transpose(0, 2, 1).reshape(-1, together)
    groups, counts = _kinds(first)
    passes = _passes(groups, width)
    ideal = int(counts[passes > 0].sum())
    return int((passes * counts).sum()) / ideal if ideal else 1.0


def _kinds(groups: Table) -> tuple[Table, Table]:
    """Return one group of accesses of each kind, and how many there are of it.

    Whole words further on, all lanes alike, is the same to the banks.
    """
    each = np.ones(len(groups), np.int64)
    if len(groups) < 2 or (groups < 0).any():
        return groups, each
    steps = groups - groups[:, :1]
    steps[:, 0] = groups[:, 0] % WORD
    marks = steps @ (HASHED ** np.arange(groups.shape[1]))
    _, first, kind, count = np.unique(
        marks, return_index=True, return_inverse=True, return_counts=True
    )
    if (steps != steps[first][kind]).any():  # two kinds of one mark
        return groups, each
    return groups[first], count


def _passes(groups: Table, width: int) -> Table:
    """Return how many passes each group of accesses takes; 0: of lanes that do nothing."""
    count = len(groups)
    words = (groups[:, :, None] + np.arange(0, max(width, 1), WORD)) // WORD
    words = np.where(groups[:, :, None] < 0, -1, words).reshape(count, -1)
    words.sort(axis=1)
    is_new = words >= 0
    is_new[:, 1:] &= words[:, 1:] != words[:, :-1]
    group, _ = np.nonzero(is_new)
    met = np.bincount(group * BANKS + words[is_new] % BANKS, minlength=count * BANKS)
    return np.asarray(met.reshape(-1, BANKS).max(axis=1))


def _of_factors(gemm: Gemm, shared: Mapping[Buffer, SharedLayout]) -> Iterator[BankUse]:
    """Yield how a warp reads words of factors, each lane that of a row of its own."""
    for side, factors in enumerate(gemm.factors):
        layout = shared.get(factors.buffer)
        if layout is None:
            continue
        row, word = Var("row"), Var("word")
        at = word_at(factors, row, word, in_chunks=gemm.in_chunks)
        rows = rows_of_lanes(side, np.arange(WARP)[:, None])
        evaluator = Evaluator({row: rows, word: np.zeros_like(rows)})
        indices = [evaluator(_without_outer(i, {row, word})) for i in at]
        found = [np.broadcast_to(np.asarray(i, np.int64), rows.shape) for i in indices]
        address = offsets(layout, found) * layout.itemsize
        ways = conflict_ways(address, np.ones_like(address, bool), WORD)
        yield BankUse(gemm, factors.buffer, False, WORD, ways)


def _of_matrices(layout: SharedLayout) -> float:
    if len(layout.seen_as or layout.shape) < 2:  # a row that all rows of a matrix are
        return 1.0
    return _of_rows(replace(layout, stages=1, offset_bytes=0))


@functools.lru_cache(maxsize=256)
def _of_rows(layout: SharedLayout) -> float:
    """Return the conflicts of the 8 rows of 16 bytes that make up one matrix.

    Those below it lie the same way, and so do panels side by side: swizzles repeat after 8 rows,
    and a step of whole words turns all banks alike.
    """
    shape = layout.seen_as or layout.shape
    rows, columns = shape[-2], shape[-1]
    chunk = CHUNK_BYTES // layout.itemsize
    if rows % MATRIX_ROWS == 0 and columns % chunk == 0:
        rows = MATRIX_ROWS
        columns = min(columns, layout.swizzle_bytes // layout.itemsize or chunk)
    row, column = np.meshgrid(np.arange(rows), np.arange(0, columns, chunk), indexing="ij")
    leading = [np.zeros_like(row)] * (len(shape) - 2)
    address = offsets(layout, [*leading, row, column]) * layout.itemsize
    return conflict_ways(address, np.ones_like(address, bool), CHUNK_BYTES)
