"""Causal linear attention by chunks: O[i] = sum over j <= i of (Q[i] . K[j]) V[j].

Within a chunk by the masked scores, across chunks by the state: the sum of K^T V of all earlier
keys, a matrix that stays with the head's block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tilecore.language as T
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import (
    THREADS,
    KernelDefinition,
    Knob,
    Problem,
    ProblemField,
    extent,
)
from tilecore.kernels.gpu.linear_attention import LINEAR_ATTENTION_ON_GPU

CHUNK = 64  # of torch's program


def _sizes(problem: Problem) -> tuple[int, int, int, int, int]:
    batch, heads, length, dim, dim_v = (
        extent(problem, name) for name in ("batch", "heads", "seq_len", "dim", "dim_v")
    )
    return batch, heads, length, dim, dim_v


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    B, H, S, D, DV = _sizes(problem)
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
            k_rows = T.alloc_shared((chunk, D), dtype)
            v = T.alloc_shared((chunk, block_DV), dtype)
            scores = T.alloc_fragment((chunk, chunk), "float32")
            weights = T.alloc_fragment((chunk, chunk), dtype)
            state = T.alloc_fragment((D, block_DV), "float32")
            earlier = T.alloc_shared((D, block_DV), dtype)
            out = T.alloc_fragment((chunk, block_DV), "float32")
            T.clear(state)
            for step in T.serial(T.ceildiv(S, chunk)):
                T.copy(Q[bz, by, step * chunk, 0], q)
                T.copy(K[bz, by, step * chunk, 0], k)
                T.copy(K[bz, by, step * chunk, 0], k_rows)
                T.copy(V[bz, by, step * chunk, bx * block_DV], v)
                T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True)
                for i, j in T.Parallel(chunk, chunk):
                    weights[i, j] = T.if_then_else(j <= i, scores[i, j], 0.0)
                T.copy(state, earlier)
                T.clear(out)
                T.gemm(weights, v, out)
                T.gemm(q, earlier, out)
                T.gemm(k_rows, v, state, transpose_A=True)
                T.copy(out, O[bz, by, step * chunk, bx * block_DV])

    return linear_attention


def _inputs(problem: Problem, rng: np.random.Generator) -> Sequence[np.ndarray]:
    B, H, S, D, DV = _sizes(problem)
    dtype = DType(problem["dtype"]).numpy
    shapes = ((B, H, S, D), (B, H, S, D), (B, H, S, DV))
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    q *= np.float32(1 / np.sqrt(S * D))  # results of at most unit variance
    return [x.astype(dtype) for x in (q, k, v)]


def _reference(problem: Problem, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    q, k, v = (x.astype(np.float64) for x in inputs)
    return [np.tril(q @ k.swapaxes(-1, -2)) @ v]


def _rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any] | None:
    import torch

    B, H, S, _, DV = _sizes(problem)
    if S % CHUNK:
        return None
    dtype = getattr(torch, str(problem["dtype"]))
    q, k, v = (
        torch.from_numpy(x.astype(np.float32)).to(dtype).view(B, H, S // CHUNK, CHUNK, -1)
        for x in inputs
    )
    mask = torch.ones(CHUNK, CHUNK, dtype=dtype).tril()

    def run() -> Any:
        products = k.transpose(-1, -2) @ v
        state = torch.cumsum(products, 2) - products
        scores = (q @ k.transpose(-1, -2)) * mask
        return (scores @ v + q @ state).view(B, H, S, DV)

    return run


def _work_flop(problem: Problem) -> float:
    """Return the FLOP of chunks of ``CHUNK``; the work depends on how long they are."""
    B, H, S, D, DV = _sizes(problem)
    chunk = min(CHUNK, S)
    return 2.0 * B * H * S * (chunk * (D + DV) + 2 * D * DV)


def _traffic_bytes(problem: Problem) -> float:
    B, H, S, D, DV = _sizes(problem)
    return float(2 * B * H * S * (D + DV) * DType(problem["dtype"]).itemsize)


LINEAR_ATTENTION = KernelDefinition(
    name="linear_attention",
    doc="O[i] = sum over j <= i of (Q[i] . K[j]) V[j] in each head",
    fields=(
        ProblemField("batch", "dimension", aliases=("b", "batch_count")),
        ProblemField("heads", "dimension", aliases=("h", "num_heads")),
        ProblemField("seq_len", "dimension", aliases=("s", "length")),
        ProblemField("dim", "dimension", aliases=("d", "head_dim"), doc="of a head of Q and K"),
        ProblemField("dim_v", "dimension", aliases=("dv",), doc="of a head of V and O"),
        ProblemField("dtype", "dtype", "float32", ("float32", "bfloat16"), doc="of all tensors"),
        ProblemField("accum_dtype", "dtype", "float32", ("float32",), doc="of sums"),
    ),
    knobs=(
        Knob(
            "chunk",
            64,
            {"cpu": (16, 32, 64, 128), "cuda": (32, 64, 128)},
            doc="queries and keys per step",
        ),
        Knob(
            "block_DV",
            64,
            {"cpu": (32, 64, 128), "cuda": (32, 64, 128)},
            doc="columns of V per block",
        ),
        THREADS,
    ),
    program=_program,
    inputs=_inputs,
    reference=_reference,
    rival=_rival,
    work_flop=_work_flop,
    traffic_bytes=_traffic_bytes,
    reduction_length=lambda problem: int(problem["seq_len"]),
    rounded_dtype=lambda problem: str(problem["dtype"]),  # scores and the state
    gpu=LINEAR_ATTENTION_ON_GPU,
)
