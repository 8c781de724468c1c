"""Products that are summed up in tensor memory (sm_100): which may be, and how.

Tensor memory has 128 lanes of 512 columns of 32 bits. A tile of 128 rows has row ``m`` in lane
``m``; 128 further rows are further columns; one of 64 rows has 16 rows in each quarter of the
lanes. A warp reaches the quarter that its number within its warpgroup names, so that warpgroups
share out the columns. Source: PTX ISA 9.0, section 9.7.16.10.5 (data path layouts D and F).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.distribution import Distribution, by_slot, by_thread
from tilecore.inference.gpu.options import GpuOptions
from tilecore.inference.gpu.plan import GemmPlan, Operand, Pipeline
from tilecore.inference.gpu.products.choice import WARPGROUP, size_of
from tilecore.inference.gpu.products.matrix_units import FLOAT8, INTEGERS
from tilecore.inference.gpu.products.tensor_scaled import width_of
from tilecore.inference.gpu.shared import keeps_rows
from tilecore.inference.gpu.threads.teams import Team
from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole
from tilecore.ir.clusters import multiplies_in_pairs
from tilecore.ir.expr import int_value
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Buffer, ChunkCopy, Gemm, KernelLaunch, Region, Stmt
from tilecore.ir.visitor import buffers_of, walk

LANES, COLUMNS = 128, 512
HALF_LANES = 64  # rows of the smaller product
WIDEST = 256  # columns of one instruction
PAIR_STEP = 32  # of which those of two blocks have a multiple
UNIT = 8  # columns of a thread that are moved as one where there are 64 rows
# Operand types -> type of the sums; one instruction sums up 32 bytes of each operand.
SUMS = {
    "float16": "float32", "bfloat16": "float32", "float8_e4m3fn": "float32",
    "float8_e5m2": "float32", "int8": "int32", "uint8": "int32", "float32": "float32",
}  # fmt: skip
PANEL_BYTES = 128  # of the widest swizzle


def misfit(gemm: Gemm, options: GpuOptions, target: GpuTarget) -> str:
    """Return why tensor cores cannot sum up a product in tensor memory, or ""."""
    return _scaled_misfit(gemm) if gemm.factors else _plain_misfit(gemm, options, target)


def _plain_misfit(gemm: Gemm, options: GpuOptions, target: GpuTarget) -> str:
    m, n, k = size_of(gemm)
    a, b, c = str(gemm.a.dtype), str(gemm.b.dtype), str(accumulator_dtype(gemm))
    itemsize = gemm.a.dtype.itemsize
    step = PAIR_STEP if gemm.in_pair else 16
    if a == "float32" and options.float32_products == "exact":
        return "float32_products is exact"
    are_mixed = {a, b} in ({*FLOAT8}, {*INTEGERS})
    if (a != b and not are_mixed) or SUMS.get(a) != c:
        return f"no product of {a} x {b} into {c}"
    if a in INTEGERS and not target.has_integer_tcgen05:
        return f"{target.name} has no product of integers"
    if m != HALF_LANES and m % LANES:
        return f"{m} rows are neither 64 nor a multiple of 128"
    if gemm.in_pair and n > WIDEST:
        return f"{n} columns, of at most {WIDEST} of one instruction"
    if n % step or _columns(m, n) > COLUMNS:
        return f"{m} x {n} sums are no multiple of {step} columns within the {COLUMNS} there are"
    if k * itemsize % 32:
        return f"K = {k} is no multiple of {32 // itemsize}"
    for region, name, k_first in (
        (gemm.a, "A", gemm.transpose_a), (gemm.b, "B", not gemm.transpose_b),
    ):  # fmt: skip
        is_there = region.buffer.in_tensor_memory or (_can_move(gemm) and not gemm.in_pair)
        if name == "A" and is_there:
            continue
        reason = _operand_misfit(region, name, k_first, itemsize)
        if reason:
            return reason
    panel = PANEL_BYTES // itemsize
    if not gemm.transpose_b and n > WIDEST and _width(n) % panel:
        return f"{n} columns cannot be cut between panels of {panel}"
    return ""


def _scaled_misfit(gemm: Gemm) -> str:
    """Return why tensor cores cannot reach sums or operands of a product with factors, or "".

    The rest says tilecore.inference.gpu.products.tensor_scaled.
    """
    m, n, _ = size_of(gemm)
    if not gemm.in_lanes:
        return "the factors lie in shared memory"
    if _columns(m, n) > COLUMNS:
        return f"{m} x {n} sums need more than the {COLUMNS} columns there are"
    for region, name, k_first in (
        (gemm.a, "A", gemm.transpose_a), (gemm.b, "B", not gemm.transpose_b),
    ):  # fmt: skip
        reason = _operand_misfit(region, name, k_first, gemm.a.dtype.itemsize)
        if reason:
            return reason
    return ""


def columns_of(factors: Buffer) -> int:
    """Return the columns of a tile of factors, 0 where they are not known."""
    shape = factors.static_shape
    return 0 if shape is None else math.prod(shape) // shape[-2]


def _can_move(gemm: Gemm) -> bool:
    """Return whether A is a fragment that can lie in tensor memory: rows, contiguous along K."""
    a, rows = gemm.a, size_of(gemm)[0]
    is_fragment = a.buffer.scope == "fragment" and covers_whole(a) and a.buffer.ndim == 2
    is_packed = a.dtype.itemsize <= 2
    return is_fragment and is_packed and not gemm.transpose_a and rows % LANES == 0


def _operand_misfit(region: Region, name: str, k_first: bool, itemsize: int) -> str:
    tile, shape = region.buffer, region.buffer.static_shape
    if tile.scope != "shared" or tile.in_tensor_memory or shape is None:
        return f"{name} does not lie in shared memory"
    is_other = tile.base is not None and not keeps_rows(tile)
    if is_other or not _is_whole_matrix(region, shape):
        return f"{name} is a part or a view of a shared tile"
    if shape[-1] * itemsize % 32 or shape[-2] % 8:
        return f"{name} has rows of {shape[-1] * itemsize} bytes, not of a multiple of 32"
    if k_first and itemsize > 2:  # tf32 has layouts of its own there
        return f"{name} has {8 * itemsize}-bit elements that are not contiguous along K"
    return ""


def _is_whole_matrix(region: Region, shape: tuple[int, ...]) -> bool:
    """Return whether a region is all of the last two axes of a tile, at one place of the others."""
    if len(shape) < 2 or any(int_value(e) != 1 for e in region.extents[:-2]):
        return False
    pairs = zip(region.offsets[-2:], region.extents[-2:], shape[-2:], strict=True)
    return all(int_value(o) == 0 and int_value(e) == s for o, e, s in pairs)


def refusal(gemm: Gemm, launch: KernelLaunch, options: GpuOptions, target: GpuTarget) -> str:
    """Return why a product whose sums are a fragment is not summed up in tensor memory, or "".

    The sums would be spread by rows, which instructions of warps cannot read: all products of a
    launch must suit.
    """
    if gemm.c.buffer.in_tensor_memory:
        return "see the tile it sums up in"
    threads = math.prod(int_value(t) or 0 for t in launch.threads)
    if threads % WARPGROUP:
        return f"{threads} threads are no whole warpgroups"
    own = misfit(gemm, options, target)
    if own:
        return own
    if gemm.c.buffer.scope != "fragment" or not covers_whole(gemm.c):
        return "the sums are not a whole fragment"
    if multiplies_in_pairs(launch):
        return "others are of two blocks together; tensor cores sum up one kind in a launch"
    branches = [s for s in walk(launch.body) if isinstance(s, (nodes.If, nodes.While))]
    if launch.thread_vars and any(any(g is gemm for g in walk(s)) for s in branches):
        return "a branch multiplies, which may be a role of warps"
    gemms = [s for s in walk(launch.body) if isinstance(s, Gemm)]
    sizes = {g.c.buffer: _columns(*size_of(g)[:2]) for g in gemms}
    sizes |= {
        g.a.buffer: _columns(size_of(g)[0], size_of(g)[2]) * g.a.dtype.itemsize // 4
        for g in gemms
        if g.a.buffer.scope == "fragment"
    }
    sizes |= {
        f.buffer: columns_of(f.buffer)
        for g in gemms
        for f in g.factors
        if f.buffer.in_tensor_memory
    }
    if sum(sizes.values()) > COLUMNS:
        return f"all sums need {sum(sizes.values())} columns of tensor memory, of {COLUMNS}"
    for other in gemms:
        why = misfit(other, options, target)
        if why:
            return f"the product of line {other.span.line} uses other instructions: {why}"
    return ""


def plan_tensor_product(gemm: Gemm, team: Team) -> GemmPlan:
    """Return a product whose sums lie in tensor memory; one thread issues it."""
    m, n, k = size_of(gemm)
    step = 32 // gemm.a.dtype.itemsize
    c = spread_rows(m, n, max(team.count, WARPGROUP), is_folded=is_folded(gemm))
    source = "tensor memory" if gemm.a.buffer.in_tensor_memory else "descriptor"
    a = Operand(c, source, gemm.transpose_a)
    b = Operand(c, "descriptor", not gemm.transpose_b)
    width = width_of(n) if gemm.factors else _width(n)
    shape = (min(m, LANES) * (2 if gemm.in_pair else 1), width, step)
    sums = "float32" if gemm.factors else SUMS[str(gemm.a.dtype)]
    return GemmPlan(gemm, "tcgen05", shape, (m, n, k), (1, 1), a, b, c, keeps_c=False, sums=sums)


def with_reason(
    plan: GemmPlan, launch: KernelLaunch, options: GpuOptions, target: GpuTarget
) -> GemmPlan:
    """Return a plan that says why it is not one of tensor memory."""
    if plan.kind == "tcgen05" or plan.reason:
        return plan
    why = refusal(plan.stmt, launch, options, target)
    return replace(plan, reason=f"not tcgen05: {why}")


def with_waits(
    gemms: Mapping[Stmt, GemmPlan], pipelines: Mapping[Stmt, Pipeline]
) -> dict[Stmt, GemmPlan]:
    """Return the plans, those marked that nobody has to wait for: the program does.

    In a loop whose copies run ahead only asynchronous products may read the tiles of one that is
    still running: its completion then frees them.
    """
    found = dict(gemms)
    for stmt, plan in gemms.items():
        if plan.kind == "tcgen05" and isinstance(stmt, Gemm) and stmt.is_async:
            is_free = stmt.in_pair or all(_frees_tiles(stmt, p) for p in pipelines.values())
            found[stmt] = replace(plan, is_async=is_free)
    return found


def _frees_tiles(gemm: Gemm, pipeline: Pipeline) -> bool:
    if not any(s is gemm for s in walk(pipeline.loop)):
        return True
    if gemm.factors:  # what its factors are copied from is not freed so
        return False
    body = pipeline.loop.body
    stmts = body.stmts if isinstance(body, nodes.Seq) else (body,)
    tiles = set(pipeline.tiles) & {gemm.a.buffer.root, gemm.b.buffer.root}
    users = [
        s for s in stmts if s not in pipeline.ahead and {b.root for b in buffers_of(s)} & tiles
    ]
    return bool(pipeline.boxes) and all(isinstance(s, Gemm) and s.is_async for s in users)


def only_product(
    pipeline: Pipeline, gemms: Mapping[Stmt, GemmPlan]
) -> tuple[tuple[ChunkCopy, ...], Gemm] | None:
    """Return the product in tensor memory that is all that a loop does with its tiles, or None.

    It comes with the copies of its factors, which stand before it.
    """
    body = pipeline.loop.body
    stmts = body.stmts if isinstance(body, nodes.Seq) else (body,)
    rest = [s for s in stmts if s not in pipeline.ahead and not isinstance(s, nodes.Annotate)]
    copies, last = tuple(s for s in rest if isinstance(s, ChunkCopy)), rest[-1] if rest else None
    if len(rest) != len(copies) + 1 or not isinstance(last, Gemm) or gemms[last].kind != "tcgen05":
        return None
    used = {last.a.buffer.root, last.b.buffer.root, *(c.src.buffer for c in copies)}
    is_all = used == set(pipeline.tiles)
    return (copies, last) if is_all and not gemms[last].is_async else None


def is_folded(gemm: Gemm) -> bool:
    """Return whether half of the columns of 64 rows lie in lanes 64 on: where two blocks multiply.

    Source: PTX ISA 9.0, section 9.7.16.10.5 (layout B); CUTLASS 7107b055, ``tmem_frg_2sm``.
    """
    return gemm.in_pair and size_of(gemm)[0] == HALF_LANES


def spread_rows(
    rows: int, columns: int, threads: int, packed: int = 1, *, is_folded: bool = False
) -> Distribution:
    """Return who moves which elements between tensor memory and registers.

    ``packed``: elements of one register. ``is_folded``: see ``TensorTile``.
    """
    groups = threads // WARPGROUP
    if is_folded:
        if columns % (2 * groups * UNIT):
            groups = 1
        folded = (by_thread(2, HALF_LANES), by_thread(groups, WARPGROUP),
                  by_slot(columns // 2 // groups, 1))  # fmt: skip
        return Distribution((rows, columns), ((by_thread(HALF_LANES, 1),), folded), threads)
    if columns % (groups * UNIT * packed) or threads % (groups * WARPGROUP):
        groups = 1
    each = columns // groups
    if rows == HALF_LANES:  # as mma's accumulators, of four warps below each other
        across = (by_thread(4, 32), by_slot(2, 2), by_thread(8, 4))
        along = (by_thread(groups, WARPGROUP), by_slot(each // UNIT, 4), by_thread(4, 1),
                 by_slot(2, 1))  # fmt: skip
        return Distribution((rows, columns), (across, along), threads)
    axes = (
        (by_slot(rows // LANES, each), by_thread(LANES, 1)),
        (by_thread(groups, WARPGROUP), by_slot(each, 1)),
    )
    return Distribution((rows, columns), axes, threads)


def _columns(m: int, n: int) -> int:
    return max(1, m // LANES) * n


def _width(n: int) -> int:
    """Return the columns of one instruction."""
    return next(w for w in range(min(n, WIDEST) // 16 * 16, 0, -16) if n % w == 0)
