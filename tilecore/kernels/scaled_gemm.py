"""GEMM of 8-bit operands with scales: C = (A @ op(B)) * scale_a[m] * scale_b[n] + bias[n].

The products of quantised networks (W8A8): one scale per row of A (a token) and per column of C (an
output channel). Sums of int8 are exact in int32; those of float8 are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tilecore.language as T
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import KernelDefinition, Problem, ProblemField, extent
from tilecore.kernels.gemm import GEMM

OPERANDS = ("int8", "float8_e4m3fn")
FLOATS = ("float32", "float16", "bfloat16")
INT8_DEVIATION = 74.0  # of whole numbers from -128 to 127, all as likely


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, K = (extent(problem, name) for name in "mnk")
    dtype, out_dtype, trans_b = problem["dtype"], problem["out_dtype"], bool(problem["transpose_b"])
    sum_dtype, has_bias = "int32" if dtype == "int8" else "float32", bool(problem["bias"])
    block_M, block_N, block_K = knobs["block_M"], knobs["block_N"], knobs["block_K"]
    threads, num_stages = knobs["threads"], knobs["num_stages"]

    @T.prim_func
    def scaled_gemm(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K) if trans_b else (K, N), dtype),
        ScaleA: T.Tensor((M,), "float32"),
        ScaleB: T.Tensor((N,), "float32"),
        Bias: T.Tensor((N,), "float32"),
        C: T.Tensor((M, N), out_dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_N, block_K) if trans_b else (block_K, block_N), dtype)
            sums = T.alloc_fragment((block_M, block_N), sum_dtype)
            scaled = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(sums)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                if trans_b:
                    T.copy(B[bx * block_N, ko * block_K], B_shared)
                else:
                    T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, sums, transpose_B=trans_b)
            for i, j in T.Parallel(block_M, block_N):
                x = T.cast(sums[i, j], "float32") * ScaleA[by * block_M + i]
                x = x * ScaleB[bx * block_N + j]
                scaled[i, j] = x + Bias[bx * block_N + j] if has_bias else x
            T.copy(scaled, C[by * block_M, bx * block_N])

    return scaled_gemm


def _inputs(problem: Problem, rng: np.random.Generator) -> Sequence[np.ndarray]:
    m, n, k = (int(problem[f]) for f in "mnk")
    dtype, is_int = DType(problem["dtype"]).numpy, problem["dtype"] == "int8"
    shapes = ((m, k), (n, k) if problem["transpose_b"] else (k, n))
    deviation = INT8_DEVIATION if is_int else 1.0

    def operand(shape: tuple[int, int]) -> np.ndarray:
        values = rng.integers(-128, 128, shape) if is_int else rng.standard_normal(shape)
        return np.asarray(values, np.float32).astype(dtype)

    scale_a = rng.uniform(0.5, 1.5, m) / deviation
    scale_b = rng.uniform(0.5, 1.5, n) / (deviation * math.sqrt(k))  # sums of variance 1
    vectors = (scale_a, scale_b, rng.standard_normal(n))
    return [*map(operand, shapes), *(x.astype(np.float32) for x in vectors)]


def _reference(problem: Problem, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    a, b, scale_a, scale_b, bias = (x.astype(np.float64) for x in inputs)
    x = a @ (b.T if problem["transpose_b"] else b) * scale_a[:, None] * scale_b
    return [x + bias if problem["bias"] else x]


def _rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any] | None:
    import torch

    if problem["dtype"] != "int8":
        return None
    a, b, scale_a, scale_b, bias = map(torch.from_numpy, inputs)
    b, rows = b.T if problem["transpose_b"] else b, scale_a[:, None]
    out = torch.empty(a.shape[0], b.shape[1], dtype=getattr(torch, str(problem["out_dtype"])))
    middle = torch.empty(out.shape)

    def call() -> Any:
        torch.mul(torch._int_mm(a, b), rows, out=middle)
        if problem["bias"]:
            middle.mul_(scale_b)
            return torch.add(middle, bias, out=out)
        return torch.mul(middle, scale_b, out=out)

    return call


def _traffic_bytes(problem: Problem) -> float:
    m, n = int(problem["m"]), int(problem["n"])
    vectors = m + n * (1 + bool(problem["bias"]))
    return GEMM.traffic_bytes(problem) + 4.0 * vectors


SCALED_GEMM = KernelDefinition(
    name="scaled_gemm",
    doc="C[m, n] = (A[m, k] @ op(B)) * scale_a[m] * scale_b[n] + bias[n], A and B of 8 bits",
    fields=(
        *(f for f in GEMM.fields if f.name in ("m", "n", "k")),
        ProblemField("dtype", "dtype", "int8", OPERANDS, ("in_dtype",), "of A and B"),
        ProblemField("out_dtype", "dtype", "float32", FLOATS, ("dtype_c",)),
        ProblemField("accum_dtype", "dtype", "float32", ("float32",), doc="of scaled sums"),
        ProblemField("transpose_b", "flag", True, aliases=("trans_b",), doc="B is B[n, k]"),
        ProblemField("bias", "flag", False),
    ),
    knobs=GEMM.knobs,
    program=_program,
    inputs=_inputs,
    reference=_reference,
    rival=_rival,
    work_flop=GEMM.work_flop,
    traffic_bytes=_traffic_bytes,
    # Sums of int8 are exact: what is rounded is their scaling
    reduction_length=lambda problem: 4 if problem["dtype"] == "int8" else int(problem["k"]),
)
