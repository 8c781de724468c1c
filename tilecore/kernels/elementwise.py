"""Chains of elementwise operations on two matrices: gated units, residual sums.

``combine="gate"`` is Z = activation(X) * Y (silu: SwiGLU, gelu: GEGLU, relu: ReGLU, none: X * Y),
``combine="add"`` is Z = activation(X + Y). Computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tilecore.language as T
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.activations import ACTIVATIONS, activation, exact, torch_activation
from tilecore.kernels.definition import (
    THREADS,
    KernelDefinition,
    Knob,
    Problem,
    ProblemField,
    extent,
)
from tilecore.kernels.rows import FIELDS

OPERATIONS = {"none": 0, "relu": 1, "gelu": 4, "gelu_tanh": 8, "silu": 2}  # per element


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, dtype = extent(problem, "m"), extent(problem, "n"), problem["dtype"]
    kind, is_gate = str(problem["activation"]), problem["combine"] == "gate"
    block_M, block_N = knobs["block_M"], knobs["block_N"]

    @T.prim_func
    def elementwise(
        X: T.Tensor((M, N), dtype),
        Y: T.Tensor((M, N), dtype),
        Z: T.Tensor((M, N), dtype),
    ) -> None:
        grid = (T.ceildiv(N, block_N), T.ceildiv(M, block_M))
        with T.Kernel(*grid, threads=knobs["threads"]) as (bx, by):
            for i, j in T.Parallel(block_M, block_N):
                x = T.cast(X[by * block_M + i, bx * block_N + j], "float32")
                y = T.cast(Y[by * block_M + i, bx * block_N + j], "float32")
                z = activation(kind, x) * y if is_gate else activation(kind, x + y)
                Z[by * block_M + i, bx * block_N + j] = z

    return elementwise


def _inputs(problem: Problem, rng: np.random.Generator) -> Sequence[np.ndarray]:
    dtype, shape = DType(problem["dtype"]).numpy, (int(problem["m"]), int(problem["n"]))
    return [rng.standard_normal(shape, dtype=np.float32).astype(dtype) for _ in range(2)]


def _reference(problem: Problem, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    x, y = (a.astype(np.float64) for a in inputs)
    kind = str(problem["activation"])
    return [exact(kind, x) * y if problem["combine"] == "gate" else exact(kind, x + y)]


def _rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any]:
    import torch

    dtype, kind = getattr(torch, str(problem["dtype"])), str(problem["activation"])
    x, y = (torch.from_numpy(a.astype(np.float32)).to(dtype) for a in inputs)
    middle, out = torch.empty_like(x), torch.empty_like(x)

    def gate() -> Any:
        return torch.mul(torch_activation(kind, x, middle), y, out=out)

    def add() -> Any:
        return torch_activation(kind, torch.add(x, y, out=middle), out)

    return gate if problem["combine"] == "gate" else add


def _work_flop(problem: Problem) -> float:
    per_element = 1 + OPERATIONS[str(problem["activation"])]
    return float(per_element * int(problem["m"]) * int(problem["n"]))


ELEMENTWISE = KernelDefinition(
    name="elementwise",
    doc="Z[m, n] = activation(X) * Y (gate: SwiGLU and its kin) or activation(X + Y) (add)",
    fields=(
        *FIELDS,
        ProblemField("activation", "choice", "silu", ACTIVATIONS),
        ProblemField("combine", "choice", "gate", ("gate", "add")),
    ),
    knobs=(
        Knob(
            "block_M", 4, {"cpu": (1, 4, 16, 64), "cuda": (1, 2, 4, 8, 16)}, doc="rows per block"
        ),
        Knob(
            "block_N", 1024, {"cpu": (256, 1024, 4096), "cuda": (256, 512, 1024, 2048)},
            doc="columns per block",
        ),
        THREADS,
    ),
    program=_program,
    inputs=_inputs,
    reference=_reference,
    rival=_rival,
    work_flop=_work_flop,
    traffic_bytes=lambda problem: float(
        3 * int(problem["m"]) * int(problem["n"]) * DType(problem["dtype"]).itemsize
    ),
    reduction_length=lambda problem: 8,  # three roundings of values up to 30 weigh as much
)  # fmt: skip
