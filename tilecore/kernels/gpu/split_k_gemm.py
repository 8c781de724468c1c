"""GEMM whose sums blocks share, on GPUs: parts in a workspace, a second launch adds them up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import GpuVariant, Knob, Problem, extent
from tilecore.kernels.gemm import GEMM

ROWS, COLUMNS = 8, 128  # of C that a block of the second launch adds up
ADDERS = 128  # its threads


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, K = (extent(problem, name) for name in "mnk")
    dtype, out_dtype = problem["dtype"], problem["out_dtype"]
    trans_a, trans_b = bool(problem["transpose_a"]), bool(problem["transpose_b"])
    block_M, block_N, block_K = knobs["block_M"], knobs["block_N"], knobs["block_K"]
    splits, threads = knobs["splits"], knobs["threads"]

    @T.prim_func
    def split_k_gemm(
        A: T.Tensor((K, M) if trans_a else (M, K), dtype),
        B: T.Tensor((N, K) if trans_b else (K, N), dtype),
        C: T.Tensor((M, N), out_dtype),
    ) -> None:
        parts = T.alloc_global((splits, M, N), "float32")
        steps = T.ceildiv(K, splits * block_K)
        grid = (T.ceildiv(N, block_N), T.ceildiv(M, block_M), splits)
        with T.Kernel(*grid, threads=threads) as (bx, by, bz):
            a = T.alloc_shared((block_K, block_M) if trans_a else (block_M, block_K), dtype)
            b = T.alloc_shared((block_N, block_K) if trans_b else (block_K, block_N), dtype)
            c = T.alloc_fragment((block_M, block_N), "float32")
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
            for i, j in T.Parallel(block_M, block_N):  # pairs of float32: whole sectors
                parts[bz, by * block_M + i, bx * block_N + j] = c[i, j]
        with T.Kernel(T.ceildiv(N, COLUMNS), T.ceildiv(M, ROWS), threads=ADDERS) as (bx, by):
            total = T.alloc_fragment((ROWS, COLUMNS), "float32")
            T.clear(total)
            for split in T.serial(splits):
                for i, j in T.Parallel(ROWS, COLUMNS):
                    total[i, j] += parts[split, by * ROWS + i, bx * COLUMNS + j]
            T.copy(total, C[by * ROWS, bx * COLUMNS])

    return split_k_gemm


SPLIT_K_GEMM_ON_GPU = GpuVariant(
    knobs=(
        *(k for k in GEMM.knobs if k.symbolic),
        Knob("splits", 4, {"cuda": (2, 3, 4, 6, 8, 12, 16, 32)}, doc="blocks that share a sum"),
    ),
    program=_program,
)
