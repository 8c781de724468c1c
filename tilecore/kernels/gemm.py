"""GEMM: C[M, N] = op(A) @ op(B), written as an ordinary tile program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import tilecore.language as T
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import (
    NUM_STAGES,
    THREADS,
    KernelDefinition,
    Knob,
    Problem,
    ProblemField,
    extent,
)
from tilecore.kernels.on_device import GEMM_ON_DEVICE

FLOATS = ("float32", "float16", "bfloat16", "float64")
BYTES = ("int8", "uint8")  # summed up in int32
ACCUMULATORS = dict.fromkeys(FLOATS, ("float32", "float64")) | dict.fromkeys(BYTES, ("int32",))


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, K = (extent(problem, name) for name in "mnk")
    dtype, accum_dtype, out_dtype = problem["dtype"], problem["accum_dtype"], problem["out_dtype"]
    trans_a, trans_b = bool(problem["transpose_a"]), bool(problem["transpose_b"])
    block_M, block_N, block_K = knobs["block_M"], knobs["block_N"], knobs["block_K"]
    threads, num_stages = knobs["threads"], knobs["num_stages"]
    a_shape = (K, M) if trans_a else (M, K)
    b_shape = (N, K) if trans_b else (K, N)
    a_tile = (block_K, block_M) if trans_a else (block_M, block_K)
    b_tile = (block_N, block_K) if trans_b else (block_K, block_N)

    @T.prim_func
    def gemm(
        A: T.Tensor(a_shape, dtype),
        B: T.Tensor(b_shape, dtype),
        C: T.Tensor((M, N), out_dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared(a_tile, dtype)
            B_shared = T.alloc_shared(b_tile, dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                if trans_a:
                    T.copy(A[ko * block_K, by * block_M], A_shared)
                else:
                    T.copy(A[by * block_M, ko * block_K], A_shared)
                if trans_b:
                    T.copy(B[bx * block_N, ko * block_K], B_shared)
                else:
                    T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_A=trans_a, transpose_B=trans_b)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return gemm


def _shapes(problem: Problem) -> tuple[tuple[int, int], tuple[int, int]]:
    m, n, k = int(problem["m"]), int(problem["n"]), int(problem["k"])
    return ((k, m) if problem["transpose_a"] else (m, k)), (
        (n, k) if problem["transpose_b"] else (k, n)
    )


def _inputs(problem: Problem, rng: np.random.Generator) -> Sequence[np.ndarray]:
    dtype = DType(problem["dtype"]).numpy
    if problem["dtype"] in BYTES:
        ends = np.iinfo(dtype)
        return [rng.integers(ends.min, ends.max + 1, s).astype(dtype) for s in _shapes(problem)]
    return [rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in _shapes(problem)]


def _operands(problem: Problem, a: Any, b: Any) -> tuple[Any, Any]:
    return (a.T if problem["transpose_a"] else a), (b.T if problem["transpose_b"] else b)


def _reference(problem: Problem, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    a, b = _operands(problem, *(x.astype(np.float64) for x in inputs))
    return [a @ b]


def _rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any] | None:
    import torch

    is_exact = (problem["dtype"], problem["out_dtype"]) == ("int8", "int32")
    if problem["out_dtype"] != problem["dtype"] and not is_exact:
        return None
    dtype = getattr(torch, str(problem["dtype"]))
    tensors = [torch.from_numpy(x.astype(np.float64)).to(dtype) for x in inputs]
    a, b = _operands(problem, *tensors)
    if is_exact:
        return lambda: torch._int_mm(a, b)
    out = torch.empty((int(problem["m"]), int(problem["n"])), dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def _work_flop(problem: Problem) -> float:
    return 2.0 * int(problem["m"]) * int(problem["n"]) * int(problem["k"])


def _traffic_bytes(problem: Problem) -> float:
    m, n, k = int(problem["m"]), int(problem["n"]), int(problem["k"])
    return float(
        (m * k + k * n) * DType(problem["dtype"]).itemsize
        + m * n * DType(problem["out_dtype"]).itemsize
    )


# MFMA takes any multiple of 16 or 32 rows as readily; AMD's own libraries have all of these
# (benchmarks/gpu_winners.py).
AMD_TILES = (16, 32, 64, 96, 128, 160, 192, 224, 256)

GEMM = KernelDefinition(
    name="gemm",
    doc="C[m, n] = op(A) @ op(B)",
    fields=(
        ProblemField("m", "dimension", aliases=("M",), doc="rows of C"),
        ProblemField("n", "dimension", aliases=("N",), doc="columns of C"),
        ProblemField("k", "dimension", aliases=("K",), doc="length of the sums"),
        ProblemField(
            "dtype", "dtype", "float32", (*FLOATS, *BYTES), ("dtype_a", "dtype_b", "in_dtype")
        ),
        ProblemField(
            "accum_dtype",
            "dtype",
            "float32",
            ("float32", "float64", "int32"),
            ("dtype_acc",),
            of_dtype=ACCUMULATORS,
        ),
        ProblemField("out_dtype", "dtype", "float32", (*FLOATS, "int32"), ("dtype_c", "dtype_d")),
        ProblemField("transpose_a", "flag", False, aliases=("trans_a",)),
        ProblemField("transpose_b", "flag", False, aliases=("trans_b",)),
    ),
    knobs=(
        Knob(
            "block_M",
            128,
            {
                "cpu": (16, 32, 64, 96, 112, 128, 192, 224, 256, 448, 512, 1024, 2048),
                "cuda": (16, 32, 64, 128, 192, 256),
                "rocm": AMD_TILES,
            },
            doc="rows of C per block",
        ),
        Knob(
            "block_N",
            128,
            {
                "cpu": (32, 64, 128, 192, 256, 384, 512, 1024, 2048),
                "cuda": (16, 32, 64, 96, 128, 192, 256),
                "rocm": AMD_TILES,
            },
            doc="columns of C per block",
        ),
        Knob(
            "block_K",
            32,
            {"cpu": (64, 128, 256, 384, 512, 1024, 2048), "cuda": (32, 64, 128)},
            doc="depth of one step",
        ),
        NUM_STAGES,
        THREADS,
        Knob(
            "micro_m", 0, {"cpu": (4, 6, 8, 10, 12, 14)}, False, "register tile rows; 0: inferred"
        ),
        Knob("micro_n", 0, {"cpu": (2, 3, 4)}, False, "register tile vectors; 0: inferred"),
        Knob(
            "pack_a",
            "auto",
            {"cpu": ("none", "rows", "block")},
            False,
            "copy A per block, or by groups of rows as they are used, or read it in place",
        ),
        Knob(
            "pack_b",
            "auto",
            {"cpu": ("block", "grid", "none")},
            False,
            "pack B per block, or once per call; none: read in place by few rows",
        ),
    ),
    program=_program,
    inputs=_inputs,
    reference=_reference,
    rival=_rival,
    work_flop=_work_flop,
    traffic_bytes=_traffic_bytes,
    reduction_length=lambda problem: int(problem["k"]),
    on_device=GEMM_ON_DEVICE,
)

_FLOATS = dict.fromkeys(("dtype", "out_dtype"), FLOATS[:3]) | {"accum_dtype": ("float32",)}
# The fields of products that are summed up in float32.
FLOAT_FIELDS = tuple(
    replace(f, choices=_FLOATS[f.name], of_dtype={}) if f.name in _FLOATS else f
    for f in GEMM.fields
)
