"""GEMM with narrow weights: C = A @ W, W[k, n] = table[code[k, n]] * scale[g, n] + zero[g, n].

The table has the 16 values that a code can mean: whole numbers (int4; on GPUs any progression whose
values and steps bfloat16 has), NF4, or 4-bit floats (fp4).
Groups of ``group`` neighbours along K share a scale and a zero, as in torch's
``_weight_int4pack_mm_for_cpu``. ``pack_codes`` gives the layout of the weights: int32 words
[N / 64, K / 8, 64] (a block of columns reads one stream), in which element k lies at bit
4 * ((k % 8) // 2) + 16 * (k % 2) of word k // 8, so that two neighbours along K are decoded by one
look-up. K is rounded up to 128, N to 64, by codes of 0. Weights of 8-bit floats are no codes: they
are taken as they are, [K, N], and the table is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tilecore.language as T
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import KernelDefinition, Knob, Problem, ProblemField
from tilecore.kernels.gemm import GEMM
from tilecore.kernels.gpu.dequant_gemm import DEQUANT_GEMM_ON_GPU
from tilecore.kernels.packed_weights import (
    DEPTH,
    FP8,
    PANEL,
    PER_WORD,
    TABLES,
    check,
    pack_codes,
    sizes,
    unpack_codes,
)


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, K, G = sizes(problem)
    D = min(G, DEPTH)
    dtype, out_dtype, has_zeros = problem["dtype"], problem["out_dtype"], bool(problem["zeros"])
    block_M, threads = knobs["block_M"], knobs["threads"]
    groups, words, panels = -(-K // G), -(-K // DEPTH) * DEPTH // PER_WORD, -(-N // PANEL)
    steps, form = -(-K // D), str(problem["format"])
    is_wide = form in FP8
    w_shape, w_dtype = ((K, N), form) if is_wide else ((panels, words, PANEL), "int32")

    @T.prim_func
    def dequant_gemm(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor(w_shape, w_dtype),
        Table: T.Tensor((16,), dtype),
        Scale: T.Tensor((groups, N), dtype),
        Zero: T.Tensor((groups, N), dtype),
        C: T.Tensor((M, N), out_dtype),
    ) -> None:
        sums = T.alloc_global((M, steps), "float32")
        if has_zeros:
            with T.Kernel(T.ceildiv(M, block_M), threads=threads) as by:
                x = T.alloc_shared((block_M, D), "float32")
                total = T.alloc_fragment((block_M,), "float32")
                for ko in T.serial(steps):
                    T.copy(A[by * block_M, ko * D], x)
                    T.reduce_sum(x, total, dim=1)
                    for i in T.Parallel(block_M):
                        sums[by * block_M + i, ko] = total[i]
        with T.Kernel(panels, T.ceildiv(M, block_M), threads=threads) as (bx, by):
            a = T.alloc_shared((block_M, D), dtype)
            b = T.alloc_shared((D, PANEL), dtype)
            part = T.alloc_fragment((block_M, PANEL), "float32")
            c = T.alloc_fragment((block_M, PANEL), "float32")
            T.clear(c)
            for ko in T.serial(steps):
                T.copy(A[by * block_M, ko * D], a)
                for k, n in T.Parallel(D, PANEL):
                    if is_wide:
                        b[k, n] = T.cast(W[ko * D + k, bx * PANEL + n], dtype)
                    else:
                        word = W[bx, ko * (D // PER_WORD) + k // PER_WORD, n]
                        bit = 4 * ((k % PER_WORD) // 2) + 16 * (k % 2)
                        b[k, n] = Table[(word >> bit) & 15]
                T.gemm(a, b, part, clear_accum=True)
                for i, n in T.Parallel(block_M, PANEL):
                    scaled = part[i, n] * T.cast(Scale[ko * D // G, bx * PANEL + n], "float32")
                    if has_zeros:
                        zero = T.cast(Zero[ko * D // G, bx * PANEL + n], "float32")
                        scaled = scaled + sums[by * block_M + i, ko] * zero
                    c[i, n] += scaled
            T.copy(c, C[by * block_M, bx * PANEL])

    return dequant_gemm


def _inputs(problem: Problem, rng: np.random.Generator) -> Sequence[np.ndarray]:
    m, n, k, group = sizes(problem)
    dtype, groups = DType(problem["dtype"]).numpy, -(-k // group)
    form = str(problem["format"])
    table = np.array(TABLES.get(form, TABLES["int4"]), np.float32)
    if form in FP8:
        weights = rng.standard_normal((k, n), np.float32).astype(DType(form).numpy)
    else:
        weights = pack_codes(rng.integers(0, 16, (k, n)))
    scale = rng.uniform(0.5, 1.5, (groups, n)) / (np.abs(table).max() * np.sqrt(k))
    zero = rng.standard_normal((groups, n)) * 0.1 / np.sqrt(k)
    return [
        rng.standard_normal((m, k), dtype=np.float32).astype(dtype),
        weights,
        table.astype(dtype),
        scale.astype(dtype),
        zero.astype(dtype),
    ]


def _weights(problem: Problem, inputs: Sequence[np.ndarray]) -> Any:
    _, words, table, scale, zero = inputs
    _, n, k, group = sizes(problem)
    if problem["format"] in FP8:
        values = words.astype(np.float64)
    else:
        values = table.astype(np.float64)[unpack_codes(words, k, n)]
    scales, zeros = (np.repeat(x.astype(np.float64), group, 0)[:k] for x in (scale, zero))
    return values * scales + (zeros if problem["zeros"] else 0.0)


def _reference(problem: Problem, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    return [inputs[0].astype(np.float64) @ _weights(problem, inputs)]


def _rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any] | None:
    import torch

    _, n, k, group = sizes(problem)
    a = torch.from_numpy(inputs[0].astype(np.float32)).to(getattr(torch, str(problem["dtype"])))
    is_packed = (problem["format"], problem["dtype"], problem["out_dtype"]) == (
        "int4", "bfloat16", "bfloat16",
    )  # fmt: skip
    if not is_packed or group not in (32, 64, 128, 256) or k % group or n % 32:
        return None
    codes = torch.from_numpy(unpack_codes(inputs[1], k, n).T.astype(np.int32).copy())
    weights = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
    zeros = inputs[4] if problem["zeros"] else np.zeros_like(inputs[4])
    pairs = np.stack([x.astype(np.float32) for x in (inputs[3], zeros)], -1)
    scales = torch.from_numpy(pairs).to(torch.bfloat16)
    return lambda: torch._weight_int4pack_mm_for_cpu(a, weights, group, scales)


def _traffic_bytes(problem: Problem) -> float:
    m, n, k, group = sizes(problem)
    size = DType(problem["dtype"]).itemsize
    scales = -(-k // group) * n * (1 + bool(problem["zeros"]))
    weight_bytes = 1 if problem["format"] in FP8 else 0.5
    out = m * n * DType(problem["out_dtype"]).itemsize
    return float((m * k + scales) * size + k * n * weight_bytes + out)


DEQUANT_GEMM = KernelDefinition(
    name="dequant_gemm",
    doc="C[m, n] = A[m, k] @ W[k, n], W of 4 or 8 bits with a scale (and zero) per group along k",
    fields=(
        *(f for f in GEMM.fields if f.name in ("m", "n", "k")),
        ProblemField("group", "dimension", 128, aliases=("group_size",), doc="along k"),
        ProblemField("format", "choice", "int4", (*TABLES, *FP8), doc="of weights"),
        ProblemField("zeros", "flag", True, doc="a zero per group is added"),
        ProblemField("dtype", "dtype", "bfloat16", ("float32", "bfloat16"), ("in_dtype",)),
        ProblemField("out_dtype", "dtype", "bfloat16", ("float32", "bfloat16"), ("dtype_c",)),
        ProblemField("accum_dtype", "dtype", "float32", ("float32",), doc="of sums"),
    ),
    knobs=(
        Knob("block_M", 32, {"cpu": (1, 4, 8, 16, 32, 64, 128, 256)}, doc="rows of C per block"),
        Knob("threads", 128, {"cpu": (128,)}, doc="GPU threads per block; no effect on a CPU"),
    ),
    program=_program,
    inputs=_inputs,
    reference=_reference,
    rival=_rival,
    work_flop=GEMM.work_flop,
    traffic_bytes=_traffic_bytes,
    reduction_length=GEMM.reduction_length,
    numbers=lambda problem: ("group",),
    check=check,
    gpu=DEQUANT_GEMM_ON_GPU,
)
