"""Attention forward: O = softmax(Q K^T / sqrt(dim)) V by blocks, without the matrix of scores."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import tilecore.language as T
from tilecore.errors import InvalidProblem
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import (
    NUM_STAGES,
    THREADS,
    GpuVariant,
    KernelDefinition,
    Knob,
    Problem,
    ProblemField,
    extent,
)
from tilecore.kernels.on_device import ATTENTION_ON_DEVICE
from tilecore.kernels.softmax_steps import LOG2_E, alloc_rows, raise_top, start_softmax, weigh

FLOATS = ("float32", "float16", "bfloat16")
FIELDS = (
    ProblemField("batch", "dimension", aliases=("b", "batch_count")),
    ProblemField("heads", "dimension", aliases=("h", "num_heads"), doc="of Q and O"),
    ProblemField("kv_heads", "dimension", aliases=("num_kv_heads",), doc="of K and V"),
    ProblemField("seq_q", "dimension", aliases=("seq_len", "q_len"), doc="queries"),
    ProblemField("seq_kv", "dimension", aliases=("kv_len",), doc="keys and values"),
    ProblemField("dim", "dimension", aliases=("d", "head_dim"), doc="of a head"),
    ProblemField("causal", "flag", False, aliases=("is_causal",), doc="later keys are hidden"),
    ProblemField("dtype", "dtype", "float32", FLOATS, doc="of all tensors"),
    ProblemField("accum_dtype", "dtype", "float32", ("float32",), doc="of sums"),
)


def sizes(problem: Problem) -> tuple[int, int, int, int, int, int]:
    """Return batch, heads, heads of K and V, queries, keys and dim."""
    names = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "dim")
    batch, heads, kv_heads, seq_q, seq_kv, dim = (extent(problem, name) for name in names)
    return batch, heads, kv_heads, seq_q, seq_kv, dim


def check(problem: Problem) -> None:
    """Check that heads share those of K and V evenly, and that every query sees a key.

    Raises:
        InvalidProblem: it is not so (TC502).
    """
    _, heads, kv_heads, seq_q, seq_kv, _ = sizes(problem)
    if heads % kv_heads:
        raise InvalidProblem(
            field="kv_heads", expected=f"a divisor of heads = {heads}", found=kv_heads
        )
    if problem["causal"] and seq_q > seq_kv:
        raise InvalidProblem(
            field="seq_q", expected=f"at most seq_kv = {seq_kv} if causal: every query sees a key",
            found=seq_q,
        )  # fmt: skip


def numbers(problem: Problem) -> tuple[str, ...]:
    """Return the dimensions that the program's Python computes with: a model has few of them."""
    return ("heads", "kv_heads", "dim")


def _program(problem: Problem, knobs: Mapping[str, Any], on_gpu: bool = False) -> PrimFunc:
    B, H, HK, SQ, SK, D = sizes(problem)
    dtype, causal = problem["dtype"], bool(problem["causal"])
    block_M, block_N = knobs["block_M"], knobs["block_N"]
    threads, num_stages = knobs["threads"], knobs["num_stages"]
    is_narrow = dtype != "float32"
    scale, groups = LOG2_E / math.sqrt(D), H // HK

    @T.prim_func
    def attention(
        Q: T.Tensor((B, H, SQ, D), dtype),
        K: T.Tensor((B, HK, SK, D), dtype),
        V: T.Tensor((B, HK, SK, D), dtype),
        O: T.Tensor((B, H, SQ, D), dtype),
    ) -> None:
        T.annotate_pass_configs({"tc.skip_masked": True})
        with T.Kernel(T.ceildiv(SQ, block_M), H, B, threads=threads) as (bx, by, bz):
            q = T.alloc_shared((block_M, D), dtype)
            k = T.alloc_shared((block_N, D), dtype)
            v = T.alloc_shared((block_N, D), dtype)
            scores = T.alloc_fragment((block_M, block_N), "float32")
            weights = T.alloc_fragment((block_M, block_N), dtype) if is_narrow else scores
            out = T.alloc_fragment((block_M, D), "float32")
            largest, top, shrink, part, total = alloc_rows(block_M, 5)
            T.copy(Q[bz, by, bx * block_M, 0], q)
            T.clear(out)
            start_softmax(largest, top, total, scale)
            # a causal row i sees the keys up to i + SK - SQ
            last = T.min(SK, (bx + 1) * block_M + SK - SQ) if causal else SK
            seen = T.min(SK, bx * block_M + SK - SQ + 1) if causal else SK  # by the first row
            for step in T.Pipelined(T.ceildiv(last, block_N), num_stages=num_stages):
                T.copy(K[bz, by // groups, step * block_N, 0], k)
                T.copy(V[bz, by // groups, step * block_N, 0], v)
                T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                if (step + 1) * block_N > seen:
                    for i, j in T.Parallel(block_M, block_N):
                        row, column = bx * block_M + i, step * block_N + j
                        hidden = column >= SK
                        if causal:
                            hidden = T.Or(hidden, column > row + SK - SQ)
                        scores[i, j] = T.if_then_else(hidden, -T.infinity("float32"), scores[i, j])
                raise_top(scores, largest, top, shrink, scale)
                for i, j in T.Parallel(block_M, D):  # long before the product reads it
                    out[i, j] *= shrink[i]
                weigh(scores, top, shrink, part, total, scale)
                if is_narrow:
                    T.copy(scores, weights)
                T.gemm(weights, v, out, policy=T.GemmWarpPolicy.FullRow)
            if on_gpu:  # where a division takes ten instructions
                for i in T.Parallel(block_M):
                    total[i] = 1 / total[i]
                for i, j in T.Parallel(block_M, D):
                    out[i, j] *= total[i]
            else:
                for i, j in T.Parallel(block_M, D):
                    out[i, j] /= total[i]
            T.copy(out, O[bz, by, bx * block_M, 0])

    return attention


def inputs(problem: Problem, rng: np.random.Generator) -> Sequence[np.ndarray]:
    """Return Q, K and V."""
    B, H, HK, SQ, SK, D = sizes(problem)
    dtype = DType(problem["dtype"]).numpy
    shapes = ((B, H, SQ, D), (B, HK, SK, D), (B, HK, SK, D))
    return [rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in shapes]


def reference(problem: Problem, tensors: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Return O in float64."""
    _, H, HK, SQ, SK, D = sizes(problem)
    q, k, v = (x.astype(np.float64) for x in tensors)
    k, v = (np.repeat(x, H // HK, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(D)
    if problem["causal"]:
        scores = np.where(np.tri(SQ, SK, SK - SQ, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return [weights @ v / weights.sum(-1, keepdims=True)]


def torch_attention(problem: Problem, q: Any, k: Any, v: Any) -> Any:
    """Return torch's attention of tensors of its own."""
    import torch

    options: dict[str, Any] = {"enable_gqa": q.shape[1] != k.shape[1]}
    if problem["causal"]:
        shape = (q.shape[2], k.shape[2])
        mask = torch.ones(shape, dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        options |= {"is_causal": True} if shape[0] == shape[1] else {"attn_mask": mask}
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def rival(problem: Problem, tensors: Sequence[np.ndarray]) -> Callable[[], Any]:
    """Return torch's attention of the same tensors."""
    import torch

    dtype = getattr(torch, str(problem["dtype"]))
    q, k, v = (torch.from_numpy(x.astype(np.float32)).to(dtype) for x in tensors)
    return lambda: torch_attention(problem, q, k, v)


def _pairs(problem: Problem) -> float:
    """Return the number of (query, key) pairs that count."""
    B, H, _, SQ, SK, _ = sizes(problem)
    hidden = SQ * (SQ - 1) / 2 if problem["causal"] else 0
    return B * H * (SQ * SK - hidden)


def work_flop(problem: Problem) -> float:
    """Return the FLOP of both products."""
    return 4.0 * _pairs(problem) * int(problem["dim"])


def traffic_bytes(problem: Problem) -> float:
    """Return the bytes of Q, K, V and O."""
    B, H, HK, SQ, SK, D = sizes(problem)
    return float(B * D * (2 * H * SQ + 2 * HK * SK) * DType(problem["dtype"]).itemsize)


KNOBS = (
    Knob(
        "block_M",
        64,
        {"cpu": (16, 32, 48, 64, 96, 128, 192, 256), "cuda": (64, 128, 192)},
        doc="queries per block",
    ),
    Knob(
        "block_N",
        128,
        {
            "cpu": (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024),
            "cuda": (32, 64, 96, 128, 160),
        },
        doc="keys per step",
    ),
    replace(NUM_STAGES, default=1, values={"cpu": (1,), "cuda": (1, 2, 3)}),
    THREADS,
)
KNOBS_ON_GPU = (
    Knob("block_M", 128, {"cuda": (64, 128, 192)}, doc=KNOBS[0].doc),
    Knob("block_N", 128, {"cuda": (32, 64, 96, 128, 160)}, doc=KNOBS[1].doc),
    replace(NUM_STAGES, default=2, values={"cuda": (1, 2, 3)}),
    replace(THREADS, default=256),
)
ATTENTION = KernelDefinition(
    name="attention",
    doc="O[b, h, q, d] = softmax(Q K^T / sqrt(d)) V",
    fields=FIELDS,
    knobs=KNOBS,
    program=_program,
    inputs=inputs,
    reference=reference,
    rival=rival,
    work_flop=work_flop,
    traffic_bytes=traffic_bytes,
    reduction_length=lambda problem: 16,  # weights sum to 1: an average
    rounded_dtype=lambda problem: str(problem["dtype"]),  # weights
    numbers=numbers,
    check=check,
    on_device=ATTENTION_ON_DEVICE,
    gpu=GpuVariant(KNOBS_ON_GPU, functools.partial(_program, on_gpu=True), numbers=numbers),
)
