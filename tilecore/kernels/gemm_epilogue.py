"""GEMM with what follows it in a network: C = activation(A @ op(B) + bias) + residual."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tilecore.language as T
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.activations import ACTIVATIONS, activation, exact, torch_activation
from tilecore.kernels.definition import KernelDefinition, Problem, ProblemField, extent
from tilecore.kernels.gemm import GEMM

FLOATS = ("float32", "float16", "bfloat16")


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, K = (extent(problem, name) for name in "mnk")
    dtype, out_dtype, trans_b = problem["dtype"], problem["out_dtype"], bool(problem["transpose_b"])
    kind = str(problem["activation"])
    has_bias, has_residual = bool(problem["bias"]), bool(problem["residual"])
    block_M, block_N, block_K = knobs["block_M"], knobs["block_N"], knobs["block_K"]
    threads, num_stages = knobs["threads"], knobs["num_stages"]

    @T.prim_func
    def gemm_epilogue(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K) if trans_b else (K, N), dtype),
        Bias: T.Tensor((N,), dtype),
        Residual: T.Tensor((M, N), dtype),
        C: T.Tensor((M, N), out_dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_N, block_K) if trans_b else (block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                if trans_b:
                    T.copy(B[bx * block_N, ko * block_K], B_shared)
                else:
                    T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=trans_b)
            for i, j in T.Parallel(block_M, block_N):
                x = C_local[i, j]
                if has_bias:
                    x = x + T.cast(Bias[bx * block_N + j], "float32")
                x = activation(kind, x)
                if has_residual:
                    x = x + T.cast(Residual[by * block_M + i, bx * block_N + j], "float32")
                C_local[i, j] = x
            T.copy(C_local, C[by * block_M, bx * block_N])

    return gemm_epilogue


def _inputs(problem: Problem, rng: np.random.Generator) -> Sequence[np.ndarray]:
    m, n, k = (int(problem[f]) for f in "mnk")
    dtype = DType(problem["dtype"]).numpy
    shapes = ((m, k), (n, k) if problem["transpose_b"] else (k, n), (n,), (m, n))
    arrays = [rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in shapes]
    arrays[1] = (arrays[1].astype(np.float32) / math.sqrt(k)).astype(dtype)  # sums of variance 1
    return arrays


def _reference(problem: Problem, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    a, b, bias, residual = (x.astype(np.float64) for x in inputs)
    x = a @ (b.T if problem["transpose_b"] else b)
    if problem["bias"]:
        x = x + bias
    x = exact(str(problem["activation"]), x)
    return [x + residual if problem["residual"] else x]


def _rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any] | None:
    import torch

    if problem["out_dtype"] != problem["dtype"]:
        return None
    dtype = getattr(torch, str(problem["dtype"]))
    a, b, bias, residual = (torch.from_numpy(x.astype(np.float32)).to(dtype) for x in inputs)
    b = b.T if problem["transpose_b"] else b
    total = torch.empty(a.shape[0], b.shape[1], dtype=dtype)
    result = torch.empty_like(total)
    kind = str(problem["activation"])

    def call() -> Any:
        if problem["bias"]:
            torch.addmm(bias, a, b, out=total)
        else:
            torch.mm(a, b, out=total)
        x = torch_activation(kind, total, result)
        return torch.add(x, residual, out=result) if problem["residual"] else x

    return call


def _traffic_bytes(problem: Problem) -> float:
    n = int(problem["n"])
    extra = n * bool(problem["bias"]) + int(problem["m"]) * n * bool(problem["residual"])
    return GEMM.traffic_bytes(problem) + extra * DType(problem["dtype"]).itemsize


GEMM_EPILOGUE = KernelDefinition(
    name="gemm_epilogue",
    doc="C[m, n] = activation(A[m, k] @ op(B) + bias[n]) + residual[m, n]; unused tensors: None",
    fields=(
        *(f for f in GEMM.fields if f.name in ("m", "n", "k")),
        ProblemField("dtype", "dtype", "float32", FLOATS, ("in_dtype",), "of all inputs"),
        ProblemField("out_dtype", "dtype", "float32", FLOATS, ("dtype_c",)),
        ProblemField("accum_dtype", "dtype", "float32", ("float32",), doc="of sums"),
        ProblemField("transpose_b", "flag", False, aliases=("trans_b",), doc="B is B[n, k]"),
        ProblemField("activation", "choice", "gelu", ACTIVATIONS),
        ProblemField("bias", "flag", True),
        ProblemField("residual", "flag", False),
    ),
    knobs=GEMM.knobs,
    program=_program,
    inputs=_inputs,
    reference=_reference,
    rival=_rival,
    work_flop=GEMM.work_flop,
    traffic_bytes=_traffic_bytes,
    reduction_length=GEMM.reduction_length,
)
