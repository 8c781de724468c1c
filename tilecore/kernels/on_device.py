"""Inputs, references and rivals of large kernels with torch, on the device of a GPU."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from tilecore.ir.dtype import DType
from tilecore.kernels.definition import Problem, TorchCounterpart

BLOCK_ELEMENTS = 1 << 26  # of a float64 intermediate: 512 MiB


def random_tensor(shape: Sequence[int], dtype: str, generator: Any) -> Any:
    """Return numbers of unit variance (integers: of the whole range) on the generator's device."""
    torch = importlib.import_module("torch")
    kind = DType(dtype).as_torch()
    if not kind.is_floating_point:
        ends, options = torch.iinfo(kind), {"generator": generator, "device": generator.device}
        return torch.randint(ends.min, ends.max + 1, tuple(shape), dtype=kind, **options)
    found = torch.empty(tuple(shape), dtype=torch.float32, device=generator.device)
    return found.normal_(generator=generator).to(kind)


# --- gemm ----------------------------------------------------------------------------------------


def gemm_inputs(problem: Problem, generator: Any) -> Sequence[Any]:
    """Return A and B."""
    m, n, k = (int(problem[name]) for name in "mnk")
    shapes = (
        (k, m) if problem["transpose_a"] else (m, k),
        ((n, k) if problem["transpose_b"] else (k, n)),
    )
    return [random_tensor(shape, str(problem["dtype"]), generator) for shape in shapes]


def gemm_operands(problem: Problem, tensors: Sequence[Any]) -> tuple[Any, Any]:
    """Return A as [m, k] and B as [k, n]."""
    a, b = tensors
    return (a.T if problem["transpose_a"] else a), (b.T if problem["transpose_b"] else b)


def gemm_reference(problem: Problem, tensors: Sequence[Any]) -> Sequence[Any]:
    """Return A @ B in float64, rows by rows; sums of 8-bit integers are exact in it."""
    torch = importlib.import_module("torch")
    a, b = gemm_operands(problem, tensors)
    wide = b.double()
    found = torch.empty((a.shape[0], b.shape[1]), dtype=torch.float64, device=a.device)
    step = max(1, BLOCK_ELEMENTS // max(a.shape[1], b.shape[1]))
    for row in range(0, a.shape[0], step):
        torch.mm(a[row : row + step].double(), wide, out=found[row : row + step])
    return [found]


def gemm_rival(problem: Problem, tensors: Sequence[Any]) -> Callable[[], Any] | None:
    """Return torch.mm of the same tensors."""
    if problem["out_dtype"] != problem["dtype"] or "float" not in str(problem["dtype"]):
        return None
    torch = importlib.import_module("torch")
    a, b = gemm_operands(problem, tensors)
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    return lambda: torch.mm(a, b, out=out)


GEMM_ON_DEVICE = TorchCounterpart(gemm_inputs, gemm_reference, gemm_rival)


# --- attention -----------------------------------------------------------------------------------


def attention_inputs(problem: Problem, generator: Any) -> Sequence[Any]:
    """Return Q, K and V."""
    from tilecore.kernels.attention import sizes

    B, H, HK, SQ, SK, D = sizes(problem)
    shapes = ((B, H, SQ, D), (B, HK, SK, D), (B, HK, SK, D))
    return [random_tensor(shape, str(problem["dtype"]), generator) for shape in shapes]


def attention_reference(problem: Problem, tensors: Sequence[Any]) -> Sequence[Any]:
    """Return O in float64, a head and as many queries as fit at a time."""
    from tilecore.kernels.attention import sizes

    torch = importlib.import_module("torch")
    B, H, HK, SQ, SK, D = sizes(problem)
    q, k, v = tensors
    found = torch.empty((B, H, SQ, D), dtype=torch.float64, device=q.device)
    keys = torch.arange(SK, device=q.device)
    step = max(1, BLOCK_ELEMENTS // SK)
    for b in range(B):
        for h in range(H):
            group = h // (H // HK)
            wide_k, wide_v = k[b, group].double(), v[b, group].double()
            for row in range(0, SQ, step):
                scores = q[b, h, row : row + step].double() @ wide_k.T / math.sqrt(D)
                if problem["causal"]:
                    rows = torch.arange(row, row + scores.shape[0], device=q.device)
                    hidden = keys[None, :] > rows[:, None] + (SK - SQ)
                    scores.masked_fill_(hidden, -math.inf)
                found[b, h, row : row + step] = torch.softmax(scores, -1) @ wide_v
    return [found]


def attention_rival(problem: Problem, tensors: Sequence[Any]) -> Callable[[], Any]:
    """Return torch's attention of the same tensors."""
    from tilecore.kernels.attention import torch_attention

    return lambda: torch_attention(problem, *tensors)


ATTENTION_ON_DEVICE = TorchCounterpart(attention_inputs, attention_reference, attention_rival)
