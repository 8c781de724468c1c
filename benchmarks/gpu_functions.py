"""Functions of whole tensors as users write them for ``@tilecore.compute``; for a GPU's sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Tensor = Any  # of torch
Draw = Callable[..., Tensor]  # (*shape, scale=1.0) -> random numbers of the case's type
HALF, BRAIN, FLOAT = torch.float16, torch.bfloat16, torch.float32


@dataclass(frozen=True, slots=True)
class Case:
    """A function and how to make its tensors.

    Attributes:
        function: of the tensors.
        tensors: makes them, of sizes.
        dtype: of all of them.
        sizes: on a GPU.
        small: sizes that an emulator can do.
    """

    function: Callable[..., Any]
    tensors: Callable[..., tuple[Tensor, ...]]
    dtype: Any
    sizes: tuple[int, ...]
    small: tuple[int, ...]


# --- rows -----------------------------------------------------------------------------------------


def scores(x: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax of scaled and masked scores."""
    return (x * 0.125 + mask).softmax(-1)


def residual_norm(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return a residual stream and its RMS norm."""
    stream = x + y
    return stream, F.rms_norm(stream, w.shape, w, 1e-6)


def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return a layer norm."""
    return F.layer_norm(x, w.shape, w, b)


def norm_by_hand(x: Tensor, w: Tensor) -> Tensor:
    """Return an RMS norm as models write it: in float32."""
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def soft_cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    """Return the mean cross entropy of logits with weights of classes."""
    return -(F.log_softmax(x, -1) * t).sum(-1).mean()


def divergence(x: Tensor, y: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of rows of logits."""
    p, q = F.log_softmax(x, -1), F.log_softmax(y, -1)
    return (p.exp() * (p - q)).sum(-1)


def standardised(x: Tensor) -> Tensor:
    """Return rows of mean 0 and variance 1."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()


def totals(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum, the largest element and the mean square of everything."""
    return x.sum(), x.amax(), x.square().mean()


def bias_gradient(x: Tensor, y: Tensor) -> Tensor:
    """Return sums over rows."""
    return (x * y).sum(0)


# --- elements -------------------------------------------------------------------------------------


def biased_gelu(x: Tensor, b: Tensor) -> Tensor:
    """Return GELU of rows with a bias."""
    return F.gelu(x + b, approximate="tanh")


def gated(x: Tensor) -> Tensor:
    """Return the halves of rows, one gating the other."""
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return the halves of rotated heads."""
    a, b = x.chunk(2, -1)
    return a * cos - b * sin, b * cos + a * sin


def batch_norm(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return a batch norm of images for inference, and ReLU."""
    mean, var, w, b = (t[:, None, None] for t in (mean, var, w, b))
    return torch.relu((x - mean) * torch.rsqrt(var.abs() + 1e-5) * w + b)


def added_transposed(x: Tensor, y: Tensor) -> Tensor:
    """Return a sum with a transposed matrix."""
    return x + 2 * y.T


def activations(x: Tensor) -> Tensor:
    """Return a chain of functions of elements."""
    return F.mish(x) + F.softplus(x) * torch.tanh(x) - F.hardswish(x).clamp(-1, 3)


# --- products -------------------------------------------------------------------------------------


def linear_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return a layer."""
    return F.gelu(F.linear(x, w, b))


def projected(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """Return a product with bias and residual."""
    return x @ w + b + y


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return the MLP of a language model."""
    return (F.silu(x @ gate) * (x @ up)) @ down


def experts(x: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    """Return what experts make of rows that are sorted by expert, unevenly many."""
    count, rows = w13.shape[0], x.shape[0]
    ends = [n * rows // count - n % 3 for n in range(1, count)] + [rows]
    if x.dtype == torch.float64:  # of which torch has no grouped products
        parts = []
        for e, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
            gate, up = F.linear(x[first:last], w13[e]).chunk(2, -1)
            parts.append(F.linear(F.silu(gate) * up, w2[e]))
        return torch.cat(parts)
    offs = torch.tensor(ends, dtype=torch.int32, device=x.device)
    gate, up = F.grouped_mm(x, w13.transpose(-2, -1), offs=offs).chunk(2, -1)
    return F.grouped_mm(F.silu(gate) * up, w2.transpose(-2, -1), offs=offs)


def dequantised(x: Tensor, w: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return a product with scales of rows and columns."""
    return (x @ w) * rows[:, None] * columns


def heads_of(x: Tensor, w: Tensor) -> Tensor:
    """Return a projection to heads."""
    return torch.einsum("bsd,hde->bhse", x, w)


# --- attention ------------------------------------------------------------------------------------


def attention_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention in its three steps."""
    weights = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhqk,bhkd->bhqd", weights.softmax(-1), v)


def attention_with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Return attention with a bias that is added to its scores."""
    return (q @ k.mT * 0.125 + bias).softmax(-1) @ v


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_of_a_token(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention of a token to a cache with grouped heads."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def block(x: Tensor, w: Tensor, out: Tensor, scale: Tensor) -> Tensor:
    """Return the attention half of a transformer's block, of heads of 64."""
    rows, length, width = x.shape
    q, k, v = (
        part.reshape(rows, length, width // 64, 64).transpose(1, 2)
        for part in (F.rms_norm(x, (width,), scale, 1e-6) @ w).chunk(3, dim=-1)
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(rows, length, width) @ out + x


def _scaled(r: Draw, *shape: int) -> Tensor:
    """Return weights whose products have a variance of about 1."""
    return r(*shape, scale=shape[-2] ** -0.5)


CASES = {
    "softmax of masked scores": Case(
        scores, lambda r, m, n: (r(m, n), r(n)), BRAIN, (8192, 4096), (10, 70)
    ),
    "residual + rms norm": Case(
        residual_norm, lambda r, m, n: (r(m, n), r(m, n), r(n)), BRAIN, (8192, 4096), (10, 70)
    ),
    "layer norm": Case(
        norm, lambda r, m, n: (r(m, n), r(n), r(n)), HALF, (16384, 1024), (10, 70)
    ),
    "rms norm by hand": Case(
        norm_by_hand, lambda r, m, n: (r(m, n), r(n)), BRAIN, (8192, 8192), (10, 70)
    ),
    "log softmax": Case(
        lambda x: F.log_softmax(x, -1), lambda r, m, n: (r(m, n),), FLOAT, (4096, 32000), (10, 70)
    ),
    "cross entropy": Case(
        soft_cross_entropy, lambda r, m, n: (r(m, n), r(m, n).abs()), FLOAT, (4096, 32000), (10, 70)
    ),
    "divergence": Case(
        divergence, lambda r, m, n: (r(m, n), r(m, n)), FLOAT, (8192, 4096), (10, 70)
    ),
    "log of summed exponentials": Case(
        lambda x: x.logsumexp(-1), lambda r, m, n: (r(m, n),), BRAIN, (8192, 8192), (10, 70)
    ),
    "standardised rows": Case(
        standardised, lambda r, m, n: (r(m, n),), FLOAT, (16384, 2048), (10, 70)
    ),
    "totals": Case(totals, lambda r, m, n: (r(m, n),), FLOAT, (8192, 8192), (30, 70)),
    "sums over rows": Case(
        bias_gradient, lambda r, m, n: (r(m, n), r(m, n)), FLOAT, (16384, 4096), (30, 70)
    ),
    "mean over tokens": Case(
        lambda x: x.mean(1), lambda r, b, m, n: (r(b, m, n),), BRAIN, (64, 1024, 4096), (2, 30, 70)
    ),
    "bias + gelu": Case(
        biased_gelu, lambda r, m, n: (r(m, n), r(n)), HALF, (8192, 16384), (10, 70)
    ),
    "gated halves": Case(gated, lambda r, m, n: (r(m, 2 * n),), BRAIN, (8192, 11008), (10, 70)),
    "rotary embedding": Case(
        rotary, lambda r, b, h, s, d: (r(b, h, s, d), r(s, d // 2), r(s, d // 2)), BRAIN,
        (4, 32, 4096, 128), (1, 2, 10, 32),
    ),
    "batch norm + relu": Case(
        batch_norm, lambda r, b, c, s: (r(b, c, s, s), *(r(c) for _ in range(4))), HALF,
        (64, 256, 56), (2, 3, 8),
    ),
    "sum with a transposed matrix": Case(
        added_transposed, lambda r, m, n: (r(m, n), r(n, m)), BRAIN, (8192, 8192), (40, 70)
    ),
    "chain of activations": Case(
        activations, lambda r, m, n: (r(m, n),), FLOAT, (8192, 8192), (10, 70)
    ),
    "linear + gelu": Case(
        linear_gelu, lambda r, m, n, k: (r(m, k), _scaled(r, k, n).T.contiguous(), r(n)), HALF,
        (4096, 4096, 4096), (40, 48, 40),
    ),
    "product + bias + residual": Case(
        projected, lambda r, m, n, k: (r(m, k), _scaled(r, k, n), r(n), r(m, n)), BRAIN,
        (8192, 4096, 4096), (40, 48, 40),
    ),
    "gated MLP": Case(
        gated_mlp, lambda r, m, n, k: (r(m, k), _scaled(r, k, n), _scaled(r, k, n),
                                       _scaled(r, n, k)), BRAIN,
        (2048, 11008, 4096), (40, 48, 40),
    ),
    "gated MLP of 16 tokens": Case(
        gated_mlp, lambda r, m, n, k: (r(m, k), _scaled(r, k, n), _scaled(r, k, n),
                                       _scaled(r, n, k)), BRAIN,
        (16, 14336, 4096), (16, 48, 40),
    ),
    **{
        f"experts of {rows} rows": Case(
            experts, lambda r, m, e, n, k: (r(m, k), _scaled(r, e, 2 * n, k), _scaled(r, e, k, n)),
            BRAIN, (rows, 64, 1408, 2048), (40, 5, 24, 32),
        )
        for rows in (128, 16384)
    },
    "scaled product": Case(
        dequantised, lambda r, m, n, k: (r(m, k), _scaled(r, k, n), r(m), r(n)), HALF,
        (2048, 8192, 4096), (40, 48, 40),
    ),
    "projection to heads": Case(
        heads_of, lambda r, b, s, w, h, d: (r(b, s, w), _scaled(r, h, w, d)), BRAIN,
        (4, 2048, 2048, 16, 128), (1, 24, 32, 2, 16),
    ),
    "attention by hand": Case(
        attention_by_hand, lambda r, b, h, s, d: tuple(r(b, h, s, d) for _ in range(3)), BRAIN,
        (4, 16, 2048, 128), (1, 2, 40, 32),
    ),
    "attention with a bias": Case(
        attention_with_bias,
        lambda r, b, h, s, d: (*(r(b, h, s, d) for _ in range(3)), r(s, s)), HALF,
        (2, 16, 2048, 64), (1, 2, 40, 32),
    ),
    "causal attention": Case(
        causal_attention, lambda r, b, h, s, d: tuple(r(b, h, s, d) for _ in range(3)), HALF,
        (2, 32, 4096, 128), (1, 2, 40, 32),
    ),
    "attention of a token": Case(
        attention_of_a_token,
        lambda r, b, h, k, s, d: (r(b, h, 1, d), r(b, k, s, d), r(b, k, s, d)), BRAIN,
        (8, 32, 8, 8192, 128), (1, 4, 2, 40, 32),
    ),
    "attention block": Case(
        block,
        lambda r, b, s, w: (r(b, s, w), _scaled(r, w, 3 * w), _scaled(r, w, w), r(w)), BRAIN,
        (4, 2048, 2048), (1, 24, 128),
    ),
}  # fmt: skip
