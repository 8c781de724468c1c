"""Causal linear attention on GPUs: chunks come in pipelines, the state stays in registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import NUM_STAGES, THREADS, GpuVariant, Knob, Problem, extent

ROWS = T.GemmWarpPolicy.FullRow  # warps own rows: sums are operands of the next product


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    B, H, S, D, DV = (extent(problem, f) for f in ("batch", "heads", "seq_len", "dim", "dim_v"))
    dtype, chunk, block_DV = str(problem["dtype"]), knobs["chunk"], knobs["block_DV"]

    @T.prim_func
    def linear_attention(
        Q: T.Tensor((B, H, S, D), dtype),
        K: T.Tensor((B, H, S, D), dtype),
        V: T.Tensor((B, H, S, DV), dtype),
        O: T.Tensor((B, H, S, DV), dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(DV, block_DV), H, B, threads=knobs["threads"]) as (bx, by, bz):
            q = T.alloc_shared((chunk, D), dtype)
            k = T.alloc_shared((chunk, D), dtype)
            v = T.alloc_shared((chunk, block_DV), dtype)
            scores = T.alloc_fragment((chunk, chunk), "float32")
            weights = T.alloc_fragment((chunk, chunk), dtype)
            state = T.alloc_fragment((D, block_DV), "float32")
            earlier = T.alloc_shared((D, block_DV), dtype)
            out = T.alloc_fragment((chunk, block_DV), "float32")
            T.clear(state)
            for step in T.Pipelined(T.ceildiv(S, chunk), num_stages=knobs["num_stages"]):
                T.copy(state, earlier)  # while no product is under way
                T.copy(Q[bz, by, step * chunk, 0], q)
                T.copy(K[bz, by, step * chunk, 0], k)
                T.copy(V[bz, by, step * chunk, bx * block_DV], v)
                T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True, policy=ROWS)
                T.gemm(k, v, state, transpose_A=True, policy=ROWS)
                for i, j in T.Parallel(chunk, chunk):
                    weights[i, j] = T.if_then_else(j <= i, scores[i, j], 0.0)
                T.clear(out)
                T.gemm(weights, v, out, policy=ROWS)
                T.gemm(q, earlier, out, policy=ROWS)
                T.copy(out, O[bz, by, step * chunk, bx * block_DV])

    return linear_attention


LINEAR_ATTENTION_ON_GPU = GpuVariant(
    knobs=(
        Knob("chunk", 64, {"cuda": (32, 64, 128)}, doc="queries and keys per step"),
        Knob("block_DV", 64, {"cuda": (16, 32, 64, 128)}, doc="columns of V per block"),
        Knob("num_stages", 2, {"cuda": (1, 2, 3)}, doc=NUM_STAGES.doc),
        THREADS,
    ),
    program=_program,
)
