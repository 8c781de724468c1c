"""Kernels over rows: softmax, RMS norm and layer norm of X[m, n] along n."""

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

EPSILON = 1e-5
FLOATS = ("float32", "float16", "bfloat16")
FIELDS = (
    ProblemField("m", "dimension", aliases=("M", "rows"), doc="rows"),
    ProblemField("n", "dimension", aliases=("N", "columns"), doc="length of a row"),
    ProblemField("dtype", "dtype", "float32", FLOATS, ("in_dtype",), doc="of all tensors"),
    ProblemField("accum_dtype", "dtype", "float32", ("float32",), doc="of sums"),
)
KNOBS = (
    Knob(
        "block_M", 4, {"cpu": (1, 2, 4, 8, 16, 32, 64, 128), "cuda": (1, 2, 4, 8, 16)},
        doc="rows per block",
    ),
    THREADS,
)  # fmt: skip


def _softmax(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, dtype = extent(problem, "m"), extent(problem, "n"), problem["dtype"]
    block_M = knobs["block_M"]

    @T.prim_func
    def softmax(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)) -> None:
        with T.Kernel(T.ceildiv(M, block_M), threads=knobs["threads"]) as b:
            x = T.alloc_fragment((block_M, N), "float32")
            largest = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            T.copy(X[b * block_M, 0], x)
            T.reduce_max(x, largest, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = T.exp(x[i, j] - largest[i])
            T.reduce_sum(x, total, dim=1)
            for i in T.Parallel(block_M):
                scale[i] = 1 / total[i]
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] * scale[i]
            T.copy(x, Y[b * block_M, 0])

    return softmax


def _rms_norm(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, dtype = extent(problem, "m"), extent(problem, "n"), problem["dtype"]
    block_M = knobs["block_M"]

    @T.prim_func
    def rms_norm(
        X: T.Tensor((M, N), dtype),
        W: T.Tensor((N,), dtype),
        Y: T.Tensor((M, N), dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(M, block_M), threads=knobs["threads"]) as b:
            x = T.alloc_fragment((block_M, N), "float32")
            w = T.alloc_fragment((N,), "float32")
            squares = T.alloc_fragment((block_M, N), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            T.copy(X[b * block_M, 0], x)
            T.copy(W, w)
            for i, j in T.Parallel(block_M, N):
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(block_M):
                scale[i] = T.rsqrt(scale[i] / N + EPSILON)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] * scale[i] * w[j]
            T.copy(x, Y[b * block_M, 0])

    return rms_norm


def _layer_norm(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, dtype = extent(problem, "m"), extent(problem, "n"), problem["dtype"]
    block_M = knobs["block_M"]

    @T.prim_func
    def layer_norm(
        X: T.Tensor((M, N), dtype),
        W: T.Tensor((N,), dtype),
        B: T.Tensor((N,), dtype),
        Y: T.Tensor((M, N), dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(M, block_M), threads=knobs["threads"]) as b:
            x = T.alloc_fragment((block_M, N), "float32")
            w = T.alloc_fragment((N,), "float32")
            bias = T.alloc_fragment((N,), "float32")
            squares = T.alloc_fragment((block_M, N), "float32")
            mean = T.alloc_fragment((block_M,), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            T.copy(X[b * block_M, 0], x)
            T.copy(W, w)
            T.copy(B, bias)
            T.reduce_sum(x, mean, dim=1)
            for i in T.Parallel(block_M):
                mean[i] = mean[i] / N
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] - mean[i]
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(block_M):
                scale[i] = T.rsqrt(scale[i] / N + EPSILON)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] * scale[i] * w[j] + bias[j]
            T.copy(x, Y[b * block_M, 0])

    return layer_norm


def matrix_inputs(vectors: int = 0) -> Callable[[Problem, np.random.Generator], list[np.ndarray]]:
    """Return what makes X[m, n] and ``vectors`` of n, of unit variance."""

    def inputs(problem: Problem, rng: np.random.Generator) -> list[np.ndarray]:
        dtype, n = DType(problem["dtype"]).numpy, int(problem["n"])
        shapes = [(int(problem["m"]), n), *[(n,)] * vectors]
        return [rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in shapes]

    return inputs


def _softmax_reference(problem: Problem, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    x = inputs[0].astype(np.float64)
    powers = np.exp(x - x.max(1, keepdims=True))
    return [powers / powers.sum(1, keepdims=True)]


def _rms_norm_reference(problem: Problem, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    x, w = (a.astype(np.float64) for a in inputs)
    return [x / np.sqrt((x * x).mean(1, keepdims=True) + EPSILON) * w]


def _layer_norm_reference(problem: Problem, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    x, w, b = (a.astype(np.float64) for a in inputs)
    centred = x - x.mean(1, keepdims=True)
    return [centred / np.sqrt((centred * centred).mean(1, keepdims=True) + EPSILON) * w + b]


def _tensors(problem: Problem, inputs: Sequence[np.ndarray]) -> list[Any]:
    import torch

    dtype = getattr(torch, str(problem["dtype"]))
    return [torch.from_numpy(a.astype(np.float32)).to(dtype) for a in inputs]


def _softmax_rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any]:
    import torch

    (x,) = _tensors(problem, inputs)
    out = torch.empty_like(x)
    return lambda: torch.softmax(x, 1, out=out)


def _rms_norm_rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any]:
    import torch

    x, w = _tensors(problem, inputs)  # torch has no out= for it: its time includes an allocation
    return lambda: torch.nn.functional.rms_norm(x, (x.shape[1],), w, EPSILON)


def _layer_norm_rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any]:
    import torch

    x, w, b = _tensors(problem, inputs)
    size = [x.shape[1]]
    out, mean, scale = torch.ops.aten.native_layer_norm(x, size, w, b, EPSILON)
    return lambda: torch.ops.aten.native_layer_norm.out(
        x, size, w, b, EPSILON, out0=out, out1=mean, out2=scale
    )


def _definition(
    name: str,
    doc: str,
    program: Callable[[Problem, Mapping[str, Any]], PrimFunc],
    reference: Callable[[Problem, Sequence[np.ndarray]], list[np.ndarray]],
    rival: Callable[[Problem, Sequence[np.ndarray]], Callable[[], Any]],
    *,
    vectors: int,
    operations: int,
) -> KernelDefinition:
    """Return a kernel of a matrix and ``vectors`` of n with so many operations per element."""

    def traffic_bytes(problem: Problem) -> float:
        elements = (2 * int(problem["m"]) + vectors) * int(problem["n"])
        return float(elements * DType(problem["dtype"]).itemsize)

    return KernelDefinition(
        name=name,
        doc=doc,
        fields=FIELDS,
        knobs=KNOBS,
        program=program,
        inputs=matrix_inputs(vectors),
        reference=reference,
        rival=rival,
        work_flop=lambda problem: float(operations * int(problem["m"]) * int(problem["n"])),
        traffic_bytes=traffic_bytes,
        # Sums here are of like size and averaged: their errors stay within some units of the result
        reduction_length=lambda problem: 4,
    )


SOFTMAX = _definition(
    "softmax", "Y[m, n] = softmax of X along n", _softmax, _softmax_reference, _softmax_rival,
    vectors=0, operations=5,
)  # fmt: skip
RMS_NORM = _definition(
    "rms_norm", "Y[m, n] = X / rms(X along n) * W", _rms_norm, _rms_norm_reference,
    _rms_norm_rival, vectors=1, operations=4,
)  # fmt: skip
LAYER_NORM = _definition(
    "layer_norm", "Y[m, n] = (X - mean) / deviation * W + B along n", _layer_norm,
    _layer_norm_reference, _layer_norm_rival, vectors=2, operations=7,
)  # fmt: skip
