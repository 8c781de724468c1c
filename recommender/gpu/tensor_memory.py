"""Which products are summed up in tensor memory (sm_100), as an array over configs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recommender.gpu.columns import Columns, Floats, Mask, block_threads, numbers
from recommender.gpu.products import Product
from tilecore.gpu_target import GpuTarget
from tilecore.graph import gemm_extents
from tilecore.graph.graph import Launch
from tilecore.inference.gpu.products.choice import WARPGROUP
from tilecore.inference.gpu.products.tensor_products import COLUMNS, HALF_LANES, LANES, SUMS, UNIT
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Buffer, Gemm, Region

STEP = 16  # columns of C, of which there is a multiple
ROW_BYTES = 32  # of the rows of operands, of which there is a multiple
WORD_BYTES = 8  # one has the address of the columns, one per product is a barrier


def in_tensor_memory(
    launch: Launch, columns: Columns, target: GpuTarget, found: Sequence[Product]
) -> Mask:
    """Return where all products of a launch are; ``tensor_products.refusal`` in closed form."""
    threads = block_threads(launch, columns)
    gemms = [p.op.stmt for p in found if isinstance(p.op.stmt, Gemm)]
    suits = target.kind == "cuda" and target.has_tcgen05 and all(map(_suits, gemms))
    if not gemms or not suits:
        return threads < 0
    kept: Mask = threads % WARPGROUP == 0
    needed: dict[Buffer, Floats] = {}
    for gemm in gemms:
        m, n, k = (numbers(e, columns) for e in gemm_extents(gemm))
        size = gemm.a.dtype.itemsize
        needed[gemm.c.buffer] = np.maximum(1, m // LANES) * n
        is_moved = gemm.a.buffer.scope == "fragment"
        if is_moved:
            needed[gemm.a.buffer] = np.maximum(1, m // LANES) * k * size / 4
        kept = kept & ((m % LANES == 0) | ((m == HALF_LANES) & (not is_moved)))
        kept = kept & (n % STEP == 0) & (k * size % ROW_BYTES == 0)
        for tile in (gemm.b,) if is_moved else (gemm.a, gemm.b):
            kept = kept & (numbers(tile.buffer.shape[-1], columns) * size % ROW_BYTES == 0)
    total = sum(needed.values(), 0 * threads)
    return kept & (total <= COLUMNS)


def _suits(gemm: Gemm) -> bool:
    a, b, sums = str(gemm.a.dtype), str(gemm.b.dtype), str(accumulator_dtype(gemm))
    if gemm.factors or a != b or SUMS.get(a) != sums or gemm.c.buffer.scope != "fragment":
        return False
    is_moved = _is(gemm.a, "fragment") and gemm.a.dtype.itemsize <= 2 and not gemm.transpose_a
    return _is(gemm.b, "shared") and (is_moved or _is(gemm.a, "shared"))


def _is(region: Region, scope: str) -> bool:
    return region.buffer.scope == scope and region.buffer.ndim == 2


def groups_of(product: Product, columns: Columns, threads: Floats) -> Floats:
    """Return the warpgroups that have parts of one row of sums in tensor memory."""
    assert isinstance(product.op.stmt, Gemm)
    groups = threads // WARPGROUP
    wide = numbers(gemm_extents(product.op.stmt)[1], columns)
    return np.where(wide % (np.maximum(groups, 1) * UNIT) == 0, groups, 1.0)


def is_split_apart(product: Product, columns: Columns, threads: Floats) -> Mask:
    """Return where warpgroups share out columns of sums, but not those of A in tensor memory."""
    assert isinstance(product.op.stmt, Gemm)
    deep = numbers(gemm_extents(product.op.stmt)[2], columns)
    groups = np.maximum(threads // WARPGROUP, 1)
    packed = max(1, WORD_BYTES // 2 // product.op.stmt.a.dtype.itemsize)
    is_shared_out = (groups > 1) & (deep % (groups * UNIT) == 0)
    found: Mask = is_shared_out & (deep % (groups * UNIT * packed) != 0)
    return found
