"""Batched GEMM: C[b] = op(A[b]) @ op(B[b]) for every b."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tilecore.language as T
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import KernelDefinition, Problem, ProblemField, extent
from tilecore.kernels.gemm import FLOAT_FIELDS, GEMM


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    batch, M, N, K = (extent(problem, f) for f in ("batch", "m", "n", "k"))
    dtype, accum_dtype, out_dtype = problem["dtype"], problem["accum_dtype"], problem["out_dtype"]
    trans_a, trans_b = bool(problem["transpose_a"]), bool(problem["transpose_b"])
    block_M, block_N, block_K = knobs["block_M"], knobs["block_N"], knobs["block_K"]
    a_shape, b_shape = (s[1:] for s in _shapes(problem))

    @T.prim_func
    def batched_gemm(
        A: T.Tensor((batch, *a_shape), dtype),
        B: T.Tensor((batch, *b_shape), dtype),
        C: T.Tensor((batch, M, N), out_dtype),
    ) -> None:
        grid = (T.ceildiv(N, block_N), T.ceildiv(M, block_M), batch)
        with T.Kernel(*grid, threads=knobs["threads"]) as (bx, by, bz):
            a = T.alloc_shared((block_K, block_M) if trans_a else (block_M, block_K), dtype)
            b = T.alloc_shared((block_N, block_K) if trans_b else (block_K, block_N), dtype)
            c = T.alloc_fragment((block_M, block_N), accum_dtype)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=knobs["num_stages"]):
                if trans_a:
                    T.copy(A[bz, ko * block_K, by * block_M], a)
                else:
                    T.copy(A[bz, by * block_M, ko * block_K], a)
                if trans_b:
                    T.copy(B[bz, bx * block_N, ko * block_K], b)
                else:
                    T.copy(B[bz, ko * block_K, bx * block_N], b)
                T.gemm(a, b, c, transpose_A=trans_a, transpose_B=trans_b)
            T.copy(c, C[bz, by * block_M, bx * block_N])

    return batched_gemm


def _shapes(problem: Problem) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    batch, m, n, k = (extent(problem, f) for f in ("batch", "m", "n", "k"))
    return (
        (batch, k, m) if problem["transpose_a"] else (batch, m, k),
        (batch, n, k) if problem["transpose_b"] else (batch, k, n),
    )


def _inputs(problem: Problem, rng: np.random.Generator) -> Sequence[np.ndarray]:
    dtype = DType(problem["dtype"]).numpy
    return [rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in _shapes(problem)]


def _operands(problem: Problem, a: Any, b: Any) -> tuple[Any, Any]:
    return (
        a.swapaxes(1, 2) if problem["transpose_a"] else a,
        b.swapaxes(1, 2) if problem["transpose_b"] else b,
    )


def _reference(problem: Problem, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    a, b = _operands(problem, *(x.astype(np.float64) for x in inputs))
    return [a @ b]


def _rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any] | None:
    import torch

    if problem["out_dtype"] != problem["dtype"]:
        return None
    dtype = getattr(torch, str(problem["dtype"]))
    a, b = _operands(problem, *(torch.from_numpy(x.astype(np.float64)).to(dtype) for x in inputs))
    out = torch.empty((a.shape[0], a.shape[1], b.shape[2]), dtype=dtype)
    return lambda: torch.bmm(a, b, out=out)


BATCHED_GEMM = KernelDefinition(
    name="batched_gemm",
    doc="C[b, m, n] = op(A[b]) @ op(B[b])",
    fields=(
        ProblemField("batch", "dimension", aliases=("b", "batch_count"), doc="products"),
        *FLOAT_FIELDS,
    ),
    knobs=GEMM.knobs,
    program=_program,
    inputs=_inputs,
    reference=_reference,
    rival=_rival,
    work_flop=lambda problem: int(problem["batch"]) * GEMM.work_flop(problem),
    traffic_bytes=lambda problem: int(problem["batch"]) * GEMM.traffic_bytes(problem),
    reduction_length=GEMM.reduction_length,
)
