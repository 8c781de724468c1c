"""Activations that kernels of the library apply: in tile programs, and exactly in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tilecore.language as T

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")


def activation(name: str, x: Any) -> Any:
    """Return the activation of an expression; gelu is exact, gelu_tanh its usual approximation."""
    if name == "relu":
        return T.max(x, T.float32(0))
    if name == "gelu":
        return x * 0.5 * (1 + T.erf(x * math.sqrt(0.5)))
    if name == "gelu_tanh":
        return x * 0.5 * (1 + T.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return x * T.sigmoid(x) if name == "silu" else x


def exact(name: str, x: Any) -> Any:
    """Return the activation of a float64 array."""
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x * math.sqrt(0.5)))
    if name == "gelu_tanh":
        return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x)) if name == "silu" else x


def torch_activation(name: str, x: Any, out: Any) -> Any:
    """Write torch's activation of ``x`` to ``out``; return where the result is (none: ``x``)."""
    import torch

    aten = torch.ops.aten
    if name == "none":
        return x
    if name == "relu":
        aten.relu.out(x, out=out)
    elif name == "silu":
        aten.silu.out(x, out=out)
    else:
        aten.gelu.out(x, approximate="tanh" if name == "gelu_tanh" else "none", out=out)
    return out
