"""Gradients of attention by blocks: weights are computed again from the forward pass's LSE.

Lanes run along queries: scores and what follows lie transposed, (keys, queries). A block owns a
head of K and V, so that the gradient of Q is summed up without other blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tilecore.language as T
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels import attention
from tilecore.kernels.definition import KernelDefinition, Knob, Problem, extent
from tilecore.kernels.gpu.attention_backward import ATTENTION_BACKWARD_ON_GPU
from tilecore.kernels.softmax_steps import LOG2_E, alloc_rows


@T.macro
def _row_products(O: Any, dO: Any, delta: Any, block_M: Any) -> None:
    """Set delta to the sum of O * dO of each row."""
    B, H, SQ, D = O.shape
    with T.Kernel(T.ceildiv(SQ, block_M), H, B) as (bx, by, bz):
        products = T.alloc_fragment((block_M, D), "float32")
        sums = T.alloc_fragment((block_M,), "float32")
        for i, d in T.Parallel(block_M, D):
            row = bx * block_M + i
            products[i, d] = T.cast(O[bz, by, row, d], "float32") * dO[bz, by, row, d]
        T.reduce_sum(products, sums, dim=1)
        T.copy(sums, delta[bz, by, bx * block_M])


@T.macro
def _weigh(weights: Any, lse: Any, scale: float, column: Any, row: Any, problem: Problem) -> None:
    """Turn scores, (keys from ``column``, queries from ``row``), into weights."""
    SQ, SK, causal = extent(problem, "seq_q"), extent(problem, "seq_kv"), bool(problem["causal"])
    keys, queries = weights.shape
    for i in T.Parallel(queries):
        lse[i] *= LOG2_E
    for j, i in T.Parallel(keys, queries):
        weights[j, i] = T.exp2(weights[j, i] * (scale * LOG2_E) - lse[i])
    seen = T.min(SK, row + SK - SQ + 1) if causal else SK  # by the first query
    if column + keys > seen:
        for j, i in T.Parallel(keys, queries):
            hidden = column + j >= SK
            if causal:
                hidden = T.Or(hidden, column + j > row + i + SK - SQ)
            weights[j, i] = T.if_then_else(hidden, 0.0, weights[j, i])


@T.macro
def _narrowed(tile: Any, dtype: str) -> Any:
    """Return a tile as an operand of ``dtype``."""
    if dtype == "float32":
        return tile
    narrow = T.alloc_fragment(tile.shape, dtype)
    T.copy(tile, narrow)
    return narrow


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    return program_of(problem, knobs, (None,) * 8)


def program_of(
    problem: Problem, knobs: Mapping[str, Any], strides: Sequence[tuple[int, ...] | None]
) -> PrimFunc:
    """Return the program; ``strides``: of Q, K, V, O, dO, dQ, dK and dV, None: row-major."""
    B, H, HK, SQ, SK, D = attention.sizes(problem)
    dtype, causal = str(problem["dtype"]), bool(problem["causal"])
    block_M, block_N = knobs["block_M"], knobs["block_N"]
    queries, keys = (B, H, SQ, D), (B, HK, SK, D)
    G, scale = H // HK, 1 / math.sqrt(D)
    rows = (queries, keys, keys, queries, queries, queries, keys, keys)

    def laid(at: int) -> Any:
        shape, steps = rows[at], strides[at]
        return T.Tensor(shape, dtype) if steps is None else T.StridedTensor(shape, steps, dtype)

    @T.prim_func
    def attention_backward(
        Q: laid(0),
        K: laid(1),
        V: laid(2),
        O: laid(3),
        LSE: T.Tensor((B, H, SQ), "float32"),
        dO: laid(4),
        dQ: laid(5),
        dK: laid(6),
        dV: laid(7),
    ) -> None:
        delta = T.alloc_global((B, H, SQ), "float32")
        _row_products(O, dO, delta, block_M)
        with T.Kernel(HK, B) as (by, bz):
            q, q_rows, do, do_rows = (T.alloc_shared((block_M, D), dtype) for _ in range(4))
            k, k_rows, v = (T.alloc_shared((block_N, D), dtype) for _ in range(3))
            weights, slopes = (T.alloc_fragment((block_N, block_M), "float32") for _ in range(2))
            dk, dv = (T.alloc_fragment((block_N, D), "float32") for _ in range(2))
            lse, sums = alloc_rows(block_M, 2)
            blocks = T.ceildiv(SQ, block_M)
            dq = T.alloc_fragment((G * blocks * block_M, D), "float32")
            T.clear(dq)
            for y in T.serial(T.ceildiv(SK, block_N)):
                column = y * block_N
                T.copy(K[bz, by, column, 0], k)
                T.copy(K[bz, by, column, 0], k_rows)
                T.copy(V[bz, by, column, 0], v)
                T.clear(dk)
                T.clear(dv)
                first = T.max(column - SK + SQ, 0) // block_M if causal else 0
                for g, x in T.grid(G, blocks - first):
                    head, row = by * G + g, (first + x) * block_M
                    T.copy(Q[bz, head, row, 0], q)
                    T.copy(Q[bz, head, row, 0], q_rows)
                    T.copy(dO[bz, head, row, 0], do)
                    T.copy(dO[bz, head, row, 0], do_rows)
                    T.copy(LSE[bz, head, row], lse)
                    T.copy(delta[bz, head, row], sums)
                    T.clear(weights)
                    T.gemm(k, q, weights, transpose_B=True)
                    _weigh(weights, lse, scale, column, row, problem)
                    T.gemm(_narrowed(weights, dtype), do_rows, dv)
                    T.clear(slopes)
                    T.gemm(v, do, slopes, transpose_B=True)
                    for j, i in T.Parallel(block_N, block_M):
                        slopes[j, i] = weights[j, i] * (slopes[j, i] - sums[i])
                    ds = _narrowed(slopes, dtype)
                    T.gemm(ds, q_rows, dk)
                    place = g * blocks * block_M + row
                    T.gemm(ds, k_rows, dq[place : place + block_M, 0:D], transpose_A=True)
                for j, d in T.Parallel(block_N, D):
                    dk[j, d] *= scale
                T.copy(dk, dK[bz, by, column, 0])
                T.copy(dv, dV[bz, by, column, 0])
            for g, i, d in T.Parallel(G, SQ, D):
                dQ[bz, by * G + g, i, d] = dq[g * blocks * block_M + i, d] * scale

    return attention_backward


def _softmax(problem: Problem, tensors: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return weights, O and LSE in float64, and K and V of all heads."""
    _, H, HK, SQ, SK, D = attention.sizes(problem)
    q, k, v = (x.astype(np.float64) for x in tensors[:3])
    k, v = (np.repeat(x, H // HK, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(D)
    if problem["causal"]:
        scores = np.where(np.tri(SQ, SK, SK - SQ, dtype=bool), scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    weights /= total
    return weights, weights @ v, (largest + np.log(total))[..., 0], k, v


def _inputs(problem: Problem, rng: np.random.Generator) -> Sequence[np.ndarray]:
    q, k, v = attention.inputs(problem, rng)
    _, out, lse, _, _ = _softmax(problem, (q, k, v))
    gradient = rng.standard_normal(q.shape, dtype=np.float32).astype(q.dtype)
    return [q, k, v, out.astype(q.dtype), lse.astype(np.float32), gradient]


def _reference(problem: Problem, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    B, H, HK, _, SK, D = attention.sizes(problem)
    q, gradient = inputs[0].astype(np.float64), inputs[5].astype(np.float64)
    weights, out, _, k, v = _softmax(problem, inputs)
    slopes = gradient @ v.swapaxes(-1, -2) - (gradient * out).sum(-1, keepdims=True)
    slopes *= weights / math.sqrt(D)
    per_head = (slopes.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ gradient)
    shared = [x.reshape(B, HK, H // HK, SK, D).sum(axis=2) for x in per_head]
    return [slopes @ k, *shared]


def _rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any]:
    import torch

    dtype = getattr(torch, str(problem["dtype"]))
    leaves = [torch.from_numpy(x.astype(np.float32)).to(dtype) for x in (*inputs[:3], inputs[5])]
    gradient = leaves.pop()
    for leaf in leaves:
        leaf.requires_grad_()
    out = attention.torch_attention(problem, *leaves)
    return lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)


def _traffic_bytes(problem: Problem) -> float:
    B, H, HK, SQ, SK, D = attention.sizes(problem)
    elements = B * D * (4 * H * SQ + 4 * HK * SK)  # Q, O, dO, dQ; K, V, dK, dV
    return float(elements * DType(problem["dtype"]).itemsize + 4 * B * H * SQ)


ATTENTION_BACKWARD = KernelDefinition(
    name="attention_backward",
    doc="gradients of Q, K and V, given O, its gradient and log(sum(exp(scores))) of each row",
    fields=attention.FIELDS,
    knobs=(
        Knob("block_M", 64, {"cpu": (32, 64, 128)}, doc="queries per step"),
        Knob("block_N", 64, {"cpu": (32, 64, 128)}, doc="keys per step"),
    ),
    program=_program,
    inputs=_inputs,
    reference=_reference,
    rival=_rival,
    work_flop=lambda problem: 2.5 * attention.work_flop(problem),  # five products, not two
    traffic_bytes=_traffic_bytes,
    reduction_length=lambda problem: max(int(problem["seq_q"]), int(problem["dim"])),
    rounded_dtype=lambda problem: str(problem["dtype"]),  # weights and slopes
    numbers=attention.numbers,
    check=attention.check,
    gpu=ATTENTION_BACKWARD_ON_GPU,
)
