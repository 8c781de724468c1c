"""GEMM with few blocks of C and long sums: the blocks of a grid share the sums, too.

Each of ``splits`` blocks adds up a part of K into a workspace; a second launch adds the parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import Knob, Problem, extent
from tilecore.kernels.gemm import FLOAT_FIELDS, GEMM
from tilecore.kernels.gpu.split_k_gemm import SPLIT_K_GEMM_ON_GPU

ROWS = 16  # of C that a block of the second launch adds up


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, K = (extent(problem, name) for name in "mnk")
    dtype, accum_dtype, out_dtype = problem["dtype"], problem["accum_dtype"], problem["out_dtype"]
    trans_a, trans_b = bool(problem["transpose_a"]), bool(problem["transpose_b"])
    block_M, block_N, block_K = knobs["block_M"], knobs["block_N"], knobs["block_K"]
    splits, threads = knobs["splits"], knobs["threads"]

    @T.prim_func
    def split_k_gemm(
        A: T.Tensor((K, M) if trans_a else (M, K), dtype),
        B: T.Tensor((N, K) if trans_b else (K, N), dtype),
        C: T.Tensor((M, N), out_dtype),
    ) -> None:
        parts = T.alloc_global((splits, M, N), accum_dtype)
        steps = T.ceildiv(K, splits * block_K)
        grid = (T.ceildiv(N, block_N), T.ceildiv(M, block_M), splits)
        with T.Kernel(*grid, threads=threads) as (bx, by, bz):
            a = T.alloc_shared((block_K, block_M) if trans_a else (block_M, block_K), dtype)
            b = T.alloc_shared((block_N, block_K) if trans_b else (block_K, block_N), dtype)
            c = T.alloc_fragment((block_M, block_N), accum_dtype)
            T.clear(c)
            for ko in T.Pipelined(steps, num_stages=knobs["num_stages"]):
                first = (bz * steps + ko) * block_K
                if trans_a:
                    T.copy(A[first, by * block_M], a)
                else:
                    T.copy(A[by * block_M, first], a)
                if trans_b:
                    T.copy(B[bx * block_N, first], b)
                else:
                    T.copy(B[first, bx * block_N], b)
                T.gemm(a, b, c, transpose_A=trans_a, transpose_B=trans_b)
            T.copy(c, parts[bz, by * block_M, bx * block_N])
        with T.Kernel(T.ceildiv(M, ROWS), threads=threads) as rows:
            part = T.alloc_fragment((ROWS, N), accum_dtype)
            total = T.alloc_fragment((ROWS, N), accum_dtype)
            T.clear(total)
            for split in T.serial(splits):
                T.copy(parts[split, rows * ROWS, 0], part)
                for i, j in T.Parallel(ROWS, N):
                    total[i, j] += part[i, j]
            T.copy(total, C[rows * ROWS, 0])

    return split_k_gemm


SPLIT_K_GEMM = replace(
    GEMM,
    name="split_k_gemm",
    doc="C[m, n] = op(A) @ op(B), the sums along k shared by blocks",
    fields=FLOAT_FIELDS,
    knobs=(*GEMM.knobs, Knob("splits", 2, {"cpu": (2, 4, 8, 16)}, doc="blocks that share a sum")),
    program=_program,
    gpu=SPLIT_K_GEMM_ON_GPU,
)
