"""Products of groups of rows, each with a matrix of its own (mixture of experts).

Rows of A are sorted by expert: those of expert e are rows Offset[e] to Offset[e + 1] of A and C.
A block keeps some columns of one expert's matrix, in whole length, and takes all its rows in turn,
the last ones in tiles of fewer rows; up to ``FEW`` rows read the matrix where it lies.
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
from tilecore.kernels.gemm import GEMM
from tilecore.kernels.gpu.grouped_gemm import GROUPED_GEMM_ON_GPU

# Rows of an expert that read its matrix in place, in as many forms: of B[e, n, k] lanes add up
# products of two rows in memory, which pays for more rows (inference/cpu/few_rows.py).
FEW, FEW_TRANSPOSED = (8, 4, 1), (64, 32, 24, 16, 8, 4, 1)
LAST = (8, 4)  # rows of the last tile of many rows; more are a tile like the others
FLOATS = ("float32", "float16", "bfloat16")


def _parts(problem: Problem, block_N: int) -> tuple[Any, Any]:
    """Return what copies columns of an expert's matrix, and what multiplies some of its rows."""
    K, dtype, trans_b = extent(problem, "k"), problem["dtype"], bool(problem["transpose_b"])

    @T.macro
    def matrix(B: Any, e: Any, bx: Any, b: Any) -> None:
        if trans_b:
            T.copy(B[e, bx * block_N, 0], b)
        else:
            T.copy(B[e, 0, bx * block_N], b)

    @T.macro
    def tile(A: Any, C: Any, b: Any, bx: Any, row: Any, rows: int, count: Any) -> None:
        a = T.alloc_shared((rows, K), dtype)
        c = T.alloc_fragment((rows, block_N), "float32")
        T.copy(A[row, 0], a)
        T.gemm(a, b, c, transpose_B=trans_b, clear_accum=True)
        for i in T.serial(count):
            T.copy(c[i, 0:block_N], C[row + i, bx * block_N])

    return matrix, tile


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    E, M, N, K = (extent(problem, f) for f in ("experts", "m", "n", "k"))
    dtype, out_dtype, trans_b = problem["dtype"], problem["out_dtype"], bool(problem["transpose_b"])
    block_M, block_N = knobs["block_M"], knobs["block_N"]
    few = FEW_TRANSPOSED if trans_b else FEW
    matrix, tile = _parts(problem, block_N)

    @T.prim_func
    def grouped_gemm(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((E, N, K) if trans_b else (E, K, N), dtype),
        Offset: T.Tensor((E + 1,), "int32"),
        C: T.Tensor((M, N), out_dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(N, block_N), E, threads=knobs["threads"]) as (bx, e):
            first = T.max(Offset[e], 0)
            last = T.min(Offset[e + 1], M)
            if last - first > few[0]:
                b = T.alloc_shared((block_N, K) if trans_b else (K, block_N), dtype)
                matrix(B, e, bx, b)
                full = (last - first) // block_M
                for t in T.serial(full):
                    tile(A, C, b, bx, first + t * block_M, block_M, block_M)
                row = first + full * block_M
                if last - row > LAST[0]:
                    tile(A, C, b, bx, row, block_M, last - row)
                for rows, fewer in zip(LAST, (*LAST[1:], 0), strict=True):
                    if T.And(last - row > fewer, last - row <= rows):
                        tile(A, C, b, bx, row, rows, last - row)
            for rows, fewer in zip(few, (*few[1:], 0), strict=True):
                if T.And(last - first > fewer, last - first <= rows):
                    few_b = T.alloc_shared((block_N, K) if trans_b else (K, block_N), dtype)
                    matrix(B, e, bx, few_b)
                    tile(A, C, few_b, bx, first, rows, last - first)

    return grouped_gemm


def _inputs(problem: Problem, rng: np.random.Generator) -> Sequence[np.ndarray]:
    e, m, n, k = (int(problem[f]) for f in ("experts", "m", "n", "k"))
    dtype = DType(problem["dtype"]).numpy
    shape = (e, n, k) if problem["transpose_b"] else (e, k, n)
    sizes = rng.multinomial(m, rng.dirichlet(np.full(e, 2.0)))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    a, b = (rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in ((m, k), shape))
    return [a, b, offsets]


def _reference(problem: Problem, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    a, b, offsets = inputs
    b = b.swapaxes(1, 2) if problem["transpose_b"] else b
    parts = zip(offsets[:-1], offsets[1:], b, strict=True)
    products = [a[i:j].astype(np.float64) @ w.astype(np.float64) for i, j, w in parts]
    return [np.concatenate(products)]


def _rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any] | None:
    import torch

    if problem["out_dtype"] != problem["dtype"]:
        return None
    dtype = getattr(torch, str(problem["dtype"]))
    a, b = (torch.from_numpy(x.astype(np.float32)).to(dtype) for x in inputs[:2])
    b = b.transpose(1, 2) if problem["transpose_b"] else b
    out = torch.empty(a.shape[0], b.shape[2], dtype=dtype)
    ends = [int(i) for i in inputs[2]]
    parts = [(a[i:j], w, out[i:j]) for i, j, w in zip(ends[:-1], ends[1:], b, strict=True)]

    def call() -> Any:
        for rows, weights, result in parts:
            torch.mm(rows, weights, out=result)
        return out

    return call


def _traffic_bytes(problem: Problem) -> float:
    e, m, n, k = (int(problem[f]) for f in ("experts", "m", "n", "k"))
    size, out = (DType(problem[f]).itemsize for f in ("dtype", "out_dtype"))
    return float((m * k + e * k * n) * size + m * n * out + 4 * (e + 1))


GROUPED_GEMM = KernelDefinition(
    name="grouped_gemm",
    doc="C[rows of e] = A[rows of e] @ op(B[e]) for rows sorted by expert e",
    fields=(
        ProblemField("experts", "dimension", aliases=("E", "groups"), doc="matrices of B"),
        *(f for f in GEMM.fields if f.name in ("m", "n", "k")),
        ProblemField("dtype", "dtype", "float32", FLOATS, ("in_dtype",)),
        ProblemField("out_dtype", "dtype", "float32", FLOATS, ("dtype_c",)),
        ProblemField("accum_dtype", "dtype", "float32", ("float32",), doc="of sums"),
        ProblemField("transpose_b", "flag", False, aliases=("trans_b",), doc="B is B[e, n, k]"),
    ),
    knobs=(
        Knob(
            "block_M",
            16,
            {"cpu": (4, 8, 14, 16, 28, 32, 64, 112), "cuda": (16, 32, 64, 128)},
            doc="rows of C per step",
        ),
        Knob(
            "block_N",
            128,
            {"cpu": (32, 64, 128, 256), "cuda": (64, 128, 256)},
            doc="columns of C per block",
        ),
        THREADS,
        Knob(
            "pack_b",
            "auto",
            {"cpu": ("auto", "none")},
            symbolic=False,
            doc="auto: tiles of B are packed for all rows; none: few rows read them where they lie",
        ),
    ),
    program=_program,
    inputs=_inputs,
    reference=_reference,
    rival=_rival,
    work_flop=GEMM.work_flop,
    traffic_bytes=_traffic_bytes,
    reduction_length=GEMM.reduction_length,
    gpu=GROUPED_GEMM_ON_GPU,
)
