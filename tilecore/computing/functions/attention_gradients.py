"""Gradients of attention on CPUs by the kernel of the library, where it has what torch asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tilecore.jit_compile import compile as compiled
from tilecore.kernel import JITKernel
from tilecore.kernels.attention_backward import ATTENTION_BACKWARD, program_of
from tilecore.runtime.memo import Memo

NAME = "_scaled_dot_product_flash_attention_for_cpu_backward"
OF_TORCH = getattr(torch.ops.aten, NAME).default
TYPES = (torch.float32, torch.bfloat16, torch.float16)
LEAST = 64  # queries, keys, and numbers of a head: of fewer a step is not filled
MOST_SIZES = 16  # that get kernels; torch computes what comes in more of them
_kernels: Memo[JITKernel] = Memo()


def gradients(
    gradient: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dropout_p: float, is_causal: bool,
    *, attn_mask: Any = None, scale: float | None = None,
) -> Sequence[Any]:  # fmt: skip
    """Return the gradients of (batch, heads, rows, dim) queries, keys and values.

    They are laid out as (batch, rows, heads, dim), as what they are gradients of mostly is.

    Args:
        gradient: of ``out``.
        q: queries.
        k: keys.
        v: values.
        out: the attention.
        lse: log(sum(exp(scores))) of each row, (batch, heads, rows).
        dropout_p: of weights.
        is_causal: whether later keys are hidden.
        attn_mask: what is added to scores.
        scale: of scores; None: 1 / sqrt(dim).
    """
    if q.is_meta:
        return [_rows_of(t) for t in (q, k, v)]
    is_plain = attn_mask is None and not dropout_p and q.dtype in TYPES
    is_plain = is_plain and (scale is None or math.isclose(scale, q.shape[-1] ** -0.5))
    given = [t if _has_rows(t) else t.contiguous() for t in (q, k, v, out, gradient)]
    steps = [None if t.is_contiguous() else tuple(t.stride()) for t in given]
    size = (*q.shape, k.shape[2], q.dtype, is_causal, *steps)
    has_room = size in _kernels or len(_kernels) < MOST_SIZES
    if not (is_plain and has_room and _fits(q, k, v, is_causal)):
        passed = (gradient, q, k, v, out, lse, dropout_p, is_causal)
        made = OF_TORCH(*passed, attn_mask=attn_mask, scale=scale)
        return [t.transpose(1, 2).contiguous() for t in made]
    found = [_rows_of(t) for t in (q, k, v)]
    seen = [t.transpose(1, 2) for t in found]
    if size not in _kernels:
        laid = [*steps, *(tuple(t.stride()) for t in seen)]
        _kernels.keep(size, _kernel(q, k, is_causal, laid))
    *rows, last = given
    _kernels[size].run(*rows, lse.contiguous(), last, *seen)
    return found


def _rows_of(t: Any) -> Any:
    """Return a new tensor (batch, rows, heads, dim) for one (batch, heads, rows, dim)."""
    batch, heads, rows, dim = t.shape
    return t.new_empty((batch, rows, heads, dim))


def _has_rows(t: Any) -> bool:
    """Return whether the numbers of a head lie side by side."""
    return bool(t.stride(3) == 1 and min(t.stride()) > 0)


def _fits(q: Any, k: Any, v: Any, is_causal: bool) -> bool:
    """Return whether the kernel's steps are filled, and it hides the keys that torch does."""
    rows, keys, dim = q.shape[2], k.shape[2], q.shape[3]
    has_heads = q.shape[:2] == k.shape[:2] and v.shape == k.shape
    is_square = rows == keys or not is_causal
    return has_heads and is_square and min(rows, keys, dim) >= LEAST and dim <= 256


def _kernel(
    q: Any, k: Any, is_causal: bool, strides: Sequence[tuple[int, ...] | None]
) -> JITKernel:
    batch, heads, rows, dim = q.shape
    problem = ATTENTION_BACKWARD.parse_problem({
        "batch": batch, "heads": heads, "kv_heads": heads, "seq_q": rows, "seq_kv": k.shape[2],
        "dim": dim, "dtype": str(q.dtype).removeprefix("torch."), "causal": is_causal,
    })  # fmt: skip
    program = program_of(problem, dict(ATTENTION_BACKWARD.default_config()), strides)
    return compiled(program, target="llvm")
