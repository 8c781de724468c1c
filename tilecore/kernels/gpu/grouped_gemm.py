"""Products of groups of rows on GPUs: a block finds its expert, then its rows, then multiplies.

Tiles of rows are numbered through all experts; how many an expert has is known at run time only, so
the grid has as many as there can be and the last blocks may find nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import NUM_STAGES, THREADS, GpuVariant, Knob, Problem, extent

STRAIGHT = 64  # experts; more are walked through by a loop, where warps of their own load nothing


def _tile_of(offset: Any, tile: Any, rows: Any, most: int) -> tuple[Any, Any, Any]:
    """Return the expert of a tile of rows (their number: none), its first row and their end.

    Straight code of constants: the warps that load find their tile as the others do.
    """
    experts = offset.shape[0] - 1
    begin, expert, end = (_bound(0) for _ in range(3))
    for e in range(int(experts)):
        count = T.max(T.ceildiv(offset[e + 1] - offset[e], rows), 0)
        end = _bound(end + count)
        is_later = tile >= end
        expert = _bound(T.if_then_else(is_later, e + 1, expert))
        begin = _bound(T.if_then_else(is_later, end, begin))
    return expert, *_rows_of(offset, tile, rows, most, expert, begin)


def _rows_of(
    offset: Any, tile: Any, rows: Any, most: int, expert: Any, begin: Any
) -> tuple[Any, Any]:
    """Return a tile's first row and the end of its expert's, whose tiles start at ``begin``."""
    row = _bound(T.max(offset[expert], 0) + (tile - begin) * rows)
    return row, _bound(T.min(offset[T.min(expert + 1, offset.shape[0] - 1)], most))


def _bound(value: Any) -> Any:
    """Return a variable of this value."""
    var = T.int32()
    T.let(var, value)
    return var


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    E, M, N, K = (extent(problem, f) for f in ("experts", "m", "n", "k"))
    dtype, out_dtype, trans_b = problem["dtype"], problem["out_dtype"], bool(problem["transpose_b"])
    block_M, block_N, block_K = knobs["block_M"], knobs["block_N"], knobs["block_K"]

    @T.prim_func
    def grouped_gemm(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((E, N, K) if trans_b else (E, K, N), dtype),
        Offset: T.Tensor((E + 1,), "int32"),
        C: T.Tensor((M, N), out_dtype),
    ) -> None:
        tiles = T.ceildiv(M, block_M) + E  # at most: each expert's last tile may be ragged
        with T.Kernel(T.ceildiv(N, block_N), tiles, threads=knobs["threads"]) as (bx, by):
            a = T.alloc_shared((block_M, block_K), dtype)
            b = T.alloc_shared((block_N, block_K) if trans_b else (block_K, block_N), dtype)
            c = T.alloc_fragment((block_M, block_N), "float32")
            if E <= STRAIGHT:
                expert, row, last = _tile_of(Offset, by, block_M, M)
            else:
                at = T.alloc_var("int32", init=0)
                begin = T.alloc_var("int32", init=0)
                end = T.alloc_var("int32", init=0)
                for e in T.serial(E):
                    if by >= end:
                        at = e
                        begin = end
                        end = end + T.max(T.ceildiv(Offset[e + 1] - Offset[e], block_M), 0)
                expert = _bound(T.if_then_else(by < end, at, E))
                row, last = _rows_of(Offset, by, block_M, M, expert, begin)
            if expert < E:
                T.clear(c)
                for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=knobs["num_stages"]):
                    T.copy(A[row, ko * block_K], a)
                    if trans_b:
                        T.copy(B[expert, bx * block_N, ko * block_K], b)
                    else:
                        T.copy(B[expert, ko * block_K, bx * block_N], b)
                    T.gemm(a, b, c, transpose_B=trans_b)
                for i, j in T.Parallel(block_M, block_N):
                    if row + i < last:
                        C[row + i, bx * block_N + j] = c[i, j]

    return grouped_gemm


GROUPED_GEMM_ON_GPU = GpuVariant(
    knobs=(
        Knob("block_M", 64, {"cuda": (16, 32, 64, 128, 256)}, doc="rows of C per block"),
        Knob("block_N", 128, {"cuda": (32, 64, 128, 192, 256)}, doc="columns of C per block"),
        Knob("block_K", 64, {"cuda": (32, 64, 128)}, doc="depth of one step"),
        replace(NUM_STAGES, values={"cuda": (1, 2, 3, 4, 5, 6)}),
        THREADS,
    ),
    program=_program,
    numbers=lambda problem: ("experts",),  # up to ``STRAIGHT`` they are unrolled
)
