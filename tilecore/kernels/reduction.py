"""Sums, means and extremes of X[m, n] along one axis, in float32 and rounded once.

Each of ``splits`` blocks reduces a part of the axis; a second launch joins the parts, so that few
long rows (or columns) keep all cores busy. On GPUs each element of a step has a result of its own
in a register, and threads wait for each other only when their part of the axis is over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tilecore.language as T
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import (
    THREADS,
    GpuVariant,
    KernelDefinition,
    Knob,
    Problem,
    ProblemField,
    extent,
)
from tilecore.kernels.rows import FIELDS, matrix_inputs

OPS = ("sum", "mean", "max", "min")
START = {"sum": 0.0, "mean": 0.0, "max": -float("inf"), "min": float("inf")}
JOIN_BLOCK = 256  # results that a block of the second launch joins


@T.macro
def _join(op: str, results: Any, i: Any, j: Any, value: Any) -> None:
    """Join a value to the result of an element; NaN stays."""
    if op in ("max", "min"):
        stays = results[i, j] >= value if op == "max" else results[i, j] <= value
        stays = T.Or(stays, T.isnan(results[i, j]))
        results[i, j] = T.if_then_else(stays, results[i, j], value)
    else:
        results[i, j] += value


def _program(problem: Problem, knobs: Mapping[str, Any], on_gpu: bool = False) -> PrimFunc:
    M, N, dtype = extent(problem, "m"), extent(problem, "n"), problem["dtype"]
    op, along_n = str(problem["op"]), problem["axis"] == "n"
    block_M, block_N, splits = knobs["block_M"], knobs["block_N"], knobs["splits"]
    how: dict[str, Any] = {
        "reduce_type": op if op in ("max", "min") else "sum", "clear": False, "nan_propagate": True,
    }  # fmt: skip
    kept, length = (M, N) if along_n else (N, M)
    kept_block, step = (block_M, block_N) if along_n else (block_N, block_M)

    @T.prim_func
    def reduction(
        X: T.Tensor((M, N), dtype),
        Y: T.Tensor((kept,), dtype),
    ) -> None:
        parts = T.alloc_global((splits, kept), "float32")
        steps = T.ceildiv(length, splits * step)
        with T.Kernel(T.ceildiv(kept, kept_block), splits, threads=knobs["threads"]) as (b, split):
            x = T.alloc_fragment((block_M, block_N), "float32")
            part = T.alloc_fragment((kept_block,), "float32")
            T.fill(part, START[op])
            if on_gpu:
                T.fill(x, START[op])
            for k in T.serial(steps):
                first = (split * steps + k) * step
                row, column = (b * block_M, first) if along_n else (first, b * block_N)
                for i, j in T.Parallel(block_M, block_N):
                    is_inside = (column + j < N) if along_n else (row + i < M)
                    value = T.cast(X[row + i, column + j], "float32")
                    value = T.if_then_else(is_inside, value, START[op])
                    if on_gpu:
                        _join(op, x, i, j, value)
                    else:
                        x[i, j] = value
                if not on_gpu:
                    T.reduce(x, part, dim=1 if along_n else 0, **how)
            if on_gpu:
                T.reduce(x, part, dim=1 if along_n else 0, **how)
            T.copy(part, parts[split, b * kept_block])
        with T.Kernel(T.ceildiv(kept, JOIN_BLOCK), threads=knobs["threads"]) as b:
            part = T.alloc_fragment((1, JOIN_BLOCK), "float32")
            total = T.alloc_fragment((JOIN_BLOCK,), "float32")
            T.fill(total, START[op])
            for split in T.serial(splits):
                T.copy(parts[split, b * JOIN_BLOCK], part)
                T.reduce(part, total, dim=0, **how)
            if op == "mean":
                for i in T.Parallel(JOIN_BLOCK):
                    total[i] = total[i] / length
            T.copy(total, Y[b * JOIN_BLOCK])

    return reduction


def _axis(problem: Problem) -> int:
    return 1 if problem["axis"] == "n" else 0


def _reference(problem: Problem, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    x = inputs[0].astype(np.float64)
    return [getattr(np, str(problem["op"]))(x, axis=_axis(problem))]


def _rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any]:
    import torch

    dtype, axis, op = getattr(torch, str(problem["dtype"])), _axis(problem), str(problem["op"])
    x = torch.from_numpy(inputs[0].astype(np.float32)).to(dtype)
    out = torch.empty(x.shape[1 - axis], dtype=dtype)
    call = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}[op]
    return lambda: call(x, axis, out=out)


def _traffic_bytes(problem: Problem) -> float:
    m, n = int(problem["m"]), int(problem["n"])
    results = m if problem["axis"] == "n" else n
    return float((m * n + results) * DType(problem["dtype"]).itemsize)


KNOBS = (
    Knob("block_M", 4, {"cpu": (1, 4, 16, 64), "cuda": (1, 4, 16, 32)}, doc="rows per step"),
    Knob(
        "block_N",
        1024,
        {"cpu": (64, 256, 1024, 4096), "cuda": (64, 256, 1024, 4096)},
        doc="columns per step",
    ),
    Knob("splits", 1, {"cpu": (1, 2, 8, 32), "cuda": (1, 4, 16, 64)}, doc="parts of the axis"),
    THREADS,
)
REDUCTION = KernelDefinition(
    name="reduction",
    doc="Y = sum, mean, max or min of X[m, n] along one axis",
    fields=(
        *FIELDS,
        ProblemField("op", "choice", "sum", OPS),
        ProblemField("axis", "choice", "n", ("n", "m"), doc="that is reduced: n: Y[m], m: Y[n]"),
    ),
    knobs=KNOBS,
    program=_program,
    inputs=matrix_inputs(),
    reference=_reference,
    rival=_rival,
    work_flop=lambda problem: float(int(problem["m"]) * int(problem["n"])),
    traffic_bytes=_traffic_bytes,
    reduction_length=lambda problem: (
        int(problem["n" if problem["axis"] == "n" else "m"]) if problem["op"] == "sum" else 4
    ),
    gpu=GpuVariant(KNOBS, functools.partial(_program, on_gpu=True)),
)  # fmt: skip
