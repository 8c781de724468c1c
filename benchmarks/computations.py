"""Computations beside torch: what ``@tilecore.compute`` makes of plain functions, nothing tuned.

    python -m benchmarks.computations [--match REGEX] [--rounds 9] [--threads 1 2] [--tune N]
        [--json FILE]

torch eager, torch.compile (nan: it refuses the function) and ours, interleaved, each with new
outputs per call, where a function does not write to its arguments: one thread by thread CPU time,
several by wall time; medians, ratios torch / ours, of int8 weights also torch's own kernel / ours.
Every result, and what arguments become, is checked against the function in float64 first.
``--tune N`` measures N configs per kernel before.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import tilecore
from benchmarks.cpu import interleaved
from tilecore.artifact import compiler_versions

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from compute import block, rotated, weights

Function = Callable[..., Any]


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    return {k: _widened(v) for k, v in value.items()} if isinstance(value, dict) else value


def _made(function: Function, args: tuple[Any, ...]) -> torch.Tensor:
    """Return all numbers that a function returns, else those that it makes of its arguments."""
    given = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
    found = function(*given)
    found = given if found is None else found if isinstance(found, tuple) else (found,)
    return torch.cat([t.double().flatten() for t in found])


def attention_of_parts(x: torch.Tensor, w: torch.Tensor, heads: int = 8) -> torch.Tensor:
    """Return causal attention of three parts of a projection, which are views of it."""
    rows, length, width = x.shape
    q, k, v = (
        part.reshape(rows, length, heads, width // heads).transpose(1, 2)
        for part in (x @ w).chunk(3, dim=-1)
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(rows, length, width)


def paired(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return heads with rotary embeddings of neighbouring elements."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def decoded(
    q: torch.Tensor, cache: torch.Tensor, new: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return a token's attention by hand: the cache grows, heads of keys are repeated."""
    keys = torch.cat([cache, new], -2)
    batch, heads, rows, width = keys.shape
    count = q.shape[1] // heads
    keys = keys[:, :, None].expand(batch, heads, count, rows, width)
    keys = keys.reshape(batch, heads * count, rows, width)
    scores = q @ keys.transpose(2, 3) * width**-0.5 + mask
    return F.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ keys


def mixture(
    x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor
) -> torch.Tensor:
    """Return what the experts ``ids`` make of each token, weighted, as transformers has it."""
    count, chosen = w13.shape[0], ids.shape[1]
    sorted_ids, order = torch.sort(ids.reshape(-1))
    rows = x[order // chosen]
    if x.dtype == torch.float64:  # of which torch has no grouped products
        parts = []
        for e in range(count):
            gate, up = F.linear(rows[sorted_ids == e], w13[e]).chunk(2, -1)
            parts.append(F.linear(F.silu(gate) * up, w2[e]))
        y = torch.cat(parts)
    else:
        of_each = torch.histc(sorted_ids.float(), bins=count, min=0, max=count - 1)
        ends = torch.cumsum(of_each, 0, dtype=torch.int32)
        gate, up = F.grouped_mm(rows, w13.transpose(-2, -1), offs=ends).chunk(2, -1)
        y = F.grouped_mm(F.silu(gate) * up, w2.transpose(-2, -1), offs=ends)
    y = y * weights.reshape(-1)[order][:, None]
    return y[torch.argsort(order)].reshape(x.shape[0], chosen, -1).sum(1)


def cases() -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return functions and arguments by name."""
    r = torch.randn
    rows = r(4096, 1024)
    w = r(1024, 1024) / 32
    qkv = tuple(r(1, 8, 1024, 64) for _ in range(3))
    half = tuple(x.bfloat16() for x in qkv)
    return {
        "elements 2048x1024": (
            lambda x, y: (x * y + 1).relu() * x.sigmoid(), (r(2048, 1024), r(2048, 1024))
        ),
        "halves of rows 1024x4096": (
            lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], (r(1024, 4096),)
        ),
        "softmax 4096x1024": (lambda x: x.softmax(-1), (rows,)),
        "softmax of scores 4096x1024": (lambda x, m: (x * 0.125 + m).softmax(-1), (rows, r(1024))),
        "residual + rms norm 4096x1024": (
            lambda x, y, g: F.rms_norm(x + y, (1024,), g), (rows, r(4096, 1024), r(1024))
        ),
        "mean of tokens 32x196x768": (lambda x: x.mean(1), (r(32, 196, 768),)),
        "sum of rows of a product of elements 4096x1024": (
            lambda x, y: (x * y).sum(0), (rows, r(4096, 1024))
        ),
        **channels(), **vectors(), **losses(), **counts(), **quantized(), **steps(), **of_weights(),
        "linear + gelu 512x1024x1024": (
            lambda x, w, b: F.gelu(F.linear(x, w, b)), (r(512, 1024), w, r(1024))
        ),
        "swiglu 256x1024x1024": (
            lambda x, g, u: F.silu(x @ g) * (x @ u), (r(256, 1024), w, w.T.contiguous())
        ),
        "attention 8x1024x64": (F.scaled_dot_product_attention, qkv),
        "attention causal 8x1024x64": (
            lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True), qkv
        ),
        "attention causal bfloat16 8x1024x64": (
            lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True), half
        ),
        "attention by hand, bias 8x1024x64": (
            lambda q, k, v, m: (q @ k.mT * 0.125 + m).softmax(-1) @ v, (*qkv, r(1024, 1024))
        ),
        "decode attention 32 heads of 32, 2048x128": (
            F.scaled_dot_product_attention, tuple(r(1, 32, n, 128) for n in (1, 2048, 2048))
        ),
        "decode attention bfloat16 32 heads of 8, 2048x128": (
            lambda *qkv: F.scaled_dot_product_attention(*qkv, enable_gqa=True),
            tuple(r(1, heads, n, 128).bfloat16() for heads, n in ((32, 1), (8, 2048), (8, 2048))),
        ),
        **experts("", torch.float32), **experts(" bfloat16", torch.bfloat16),
        **linear_layers(), **narrow_weights(torch.float32), **narrow_weights(torch.bfloat16),
        **rotary("", torch.float32), **rotary(" bfloat16", torch.bfloat16),
        "decoding by hand, a cache that grows, 32 heads of 8, 2048x128": (
            decoded, (r(1, 32, 1, 128), r(1, 8, 2047, 128), r(1, 8, 1, 128), r(1, 1, 1, 2048))
        ),
        "linear + silu 1x4096x4096": (
            lambda x, w: F.silu(F.linear(x, w)), (r(1, 4096), r(4096, 4096) / 64)
        ),
        "attention of a projection 2x256x512": (
            attention_of_parts, (r(2, 256, 512), r(512, 1536) / 22)
        ),
        "block 2x256x512": (block.function, (r(2, 256, 512), weights(512, 1376))),
    }  # fmt: skip


def channels() -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return what convolutional networks make of all positions of a channel."""
    x, w, b = torch.randn(16, 64, 56, 56), torch.randn(64, 1, 1), torch.randn(64, 1, 1)
    size, every = "16x64x56x56", (0, 2, 3)

    def trained_batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(every, True)
        return centred * torch.rsqrt(centred.square().mean(every, True) + 1e-5) * w + b

    return {
        f"variance by channel {size}": (lambda x: x.var(every, correction=0), (x,)),
        f"batch norm by hand {size}": (trained_batch_norm, (x, w, b)),
        f"mean of relu by channel {size}": (lambda x: x.relu().mean((2, 3)), (x,)),
        f"average pool of hardswish by channel {size}": (
            lambda x, w, b: F.adaptive_avg_pool2d(F.hardswish(x * w + b), 1),
            (x, w, b),
        ),
        f"instance norm by channel {size}": (F.instance_norm, (x,)),
        f"instance norm + relu by channel {size}": (
            lambda x, w, b: F.instance_norm(x, weight=w.flatten(), bias=b.flatten()).relu(),
            (x, w, b),
        ),
    }


def vectors() -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return norms of vectors, and distances."""
    x, y = torch.randn(4096, 768), torch.randn(4096, 768)
    size = "4096x768"
    return {
        f"norm of vectors {size}": (lambda x: x.norm(dim=-1), (x,)),
        f"vectors over their norms {size}": (lambda x: F.normalize(x, dim=-1), (x,)),
        f"vectors bfloat16 over their norms {size}": (
            lambda x: F.normalize(x, dim=-1), (x.bfloat16(),)
        ),
        f"cosines of vectors {size}": (F.cosine_similarity, (x, y)),
        f"mean square of differences of vectors {size}": (
            lambda x, y: (x - y).square().mean(), (x, y)
        ),
        f"norm of all vectors {size}": (lambda x: x.norm(), (x,)),
    }  # fmt: skip


def losses() -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return losses of elements and of classes."""
    x, y = torch.randn(4096, 768), torch.randn(4096, 768)
    found: dict[str, tuple[Function, tuple[Any, ...]]] = {
        f"{name} loss 4096x768": (loss, (x, y))
        for name, loss in (("mse", F.mse_loss), ("huber", F.huber_loss))
    }
    for dtype in torch.float32, torch.bfloat16:
        for rows, classes in (512, 32000), (64, 128256), (4096, 1000):
            name = str(dtype).removeprefix("torch.")
            logits = (3 * torch.randn(rows, classes)).to(dtype)
            wanted = torch.randint(0, classes, (rows,))
            found[f"cross entropy {name} {rows}x{classes}"] = (F.cross_entropy, (logits, wanted))
    return found


def counts() -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return what is counted, placed and compared, and sums of what is broadcast."""
    x, labels = torch.randn(2048, 2048), torch.randint(0, 2048, (2048,))
    ids, scale = torch.randint(0, 99, (64, 4096)), torch.randn(2048)
    images, mean = torch.randn(16, 3, 224, 224), torch.randn(3, 1, 1)
    functions: dict[str, tuple[Function, tuple[Any, ...]]] = {
        "how many are above 0": (lambda x: (x > 0).sum(), (x,)),
        "how many of each row": (lambda x: (x > 0).sum(1), (x,)),
        "whether any is no number": (lambda x: x.isnan().any(), (x,)),
        "places of the largest": (lambda x: x.argmax(1), (x,)),
        "the largest and their places": (lambda x: x.max(1), (x,)),
        "the largest of all": (lambda x: x.argmax(), (x,)),
        "how many are right": (lambda x, t: (x.argmax(1) == t).float().mean(), (x, labels)),
        "how many tokens there are": (lambda ids: (ids != 0).sum(1), (ids,)),
        "whether all are close": (lambda x, y: torch.isclose(x, y).all(), (x, x + 1e-9)),
        "sum of scaled rows": (lambda x, s: (x * s).sum(), (x, scale)),
        "mean square about channels": (lambda x, m: ((x - m) ** 2).mean(), (images, mean)),
        "sum of a triangle": (lambda x: x.tril().sum(), (x,)),
    }
    return {f"counted: {name}": function for name, function in functions.items()}


def quantized() -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return tensors in 8 bits: by rows, there and back, and read; and a mask."""
    x, int8 = torch.randn(2048, 1024), torch.int8

    def rows(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round().clamp(-128, 127).to(int8)

    def coarse(x: torch.Tensor) -> torch.Tensor:
        return (x * 16).round().clamp(-128, 127).to(int8).float() / 16

    q, scale = rows(x), torch.rand(2048, 1)
    return {
        "rows in int8 2048x1024": (rows, (x,)),
        "int8 and back 2048x1024": (coarse, (x,)),
        "numbers of int8 2048x1024": (lambda q, scale: q.float() * scale, (q, scale)),
        "mask of a threshold 2048x1024": (lambda x: x.abs() > 1, (x,)),
    }


def steps() -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return what writes to its arguments, or returns several tensors of the same rows."""

    def adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> None:
        p.mul_(1 - 1e-5)
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)

    def momentum(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> None:
        m.mul_(0.9).add_(g)
        p.add_(m, alpha=-1e-3)

    def averaged(mean: torch.Tensor, p: torch.Tensor) -> None:
        mean.lerp_(p, 1e-3)

    def cell(gates: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def swiglu_back(dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> Any:
        share = gate.sigmoid()
        return dy * up * share * (1 + gate * (1 - share)), dy * gate * share

    def with_statistics(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        scale = torch.rsqrt(variance + 1e-5)
        return (x - mean) * scale * w + b, mean, scale

    r = torch.randn
    four = (r(4096, 1024), r(4096, 1024), r(4096, 1024) * 0.1, r(4096, 1024).square())
    few = tuple(t[:256].clone() for t in four)
    return {
        "step of AdamW 4096x1024": (adamw, four),
        "step of AdamW 256x1024": (adamw, few),
        "step with momentum 4096x1024": (momentum, four[:3]),
        "moving average 4096x1024": (averaged, four[:2]),
        "LSTM cell 256x1024": (cell, (r(256, 4096), r(256, 1024))),
        "gradients of swiglu 1024x4096": (swiglu_back, tuple(r(1024, 4096) for _ in range(3))),
        "layer norm and its statistics 4096x1024": (
            with_statistics, (r(4096, 1024), r(1024), r(1024))
        ),
        "softmax and log-sum-exp 4096x1024": (
            lambda x: (x.softmax(-1), x.logsumexp(-1)), (r(4096, 1024),)
        ),
    }  # fmt: skip


def of_weights() -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return products whose left operand lies transposed: gradients of weights."""
    found: dict[str, tuple[Function, tuple[Any, ...]]] = {}
    for dtype in torch.float32, torch.bfloat16:
        for rows, width, others in (
            (512, 2048, 512), (1024, 1024, 1024), (4096, 1024, 1024), (4096, 1024, 16),
        ):  # fmt: skip
            given = tuple(torch.randn(rows, n).to(dtype) for n in (width, others))
            name = f"transposed product {width}x{others}x{rows} {str(dtype).removeprefix('torch.')}"
            found[name] = (lambda x, y: x.T @ y, given)
    return found


def linear_layers() -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return linear layers in bfloat16, of 1 to 1024 rows."""
    found: dict[str, tuple[Function, tuple[Any, ...]]] = {}
    for n, k in (4096, 2048), (11008, 4096):
        w = torch.randn(n, k).bfloat16()
        for rows in 1, 2, 16, 64, 256, 1024:
            found[f"linear {rows}x{n}x{k} bfloat16"] = (
                F.linear,
                (torch.randn(rows, k).bfloat16(), w),
            )
    return found


def narrow_weights(dtype: torch.dtype) -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return linear layers of 2048 and 4096 whose weights have 8 or 4 bits, of 1 to 1024 rows."""
    k, n, group = 2048, 4096, 64
    codes = torch.linspace(-1, 1, 16).to(dtype)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)[:, None]

    def in_groups(q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return (q.view(n, -1, group).to(s.dtype) * s).view(n, k)

    def of_8_bits(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w.to(x.dtype)) * s

    def of_8_bits_in_groups(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return F.linear(x, in_groups(w, s))

    def of_4_bits(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        q = torch.stack([w & 15, w >> 4], -1).to(torch.int8) - 8
        return F.linear(x, in_groups(q.reshape(n, k), s))

    def by_table(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        q = torch.stack([w & 15, w >> 4], -1).view(n, k)
        return F.linear(x, (codes[q.int()].view(n, -1, group).to(x.dtype) * s).view(n, k))

    def words(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        q = torch.bitwise_right_shift(w[:, None].expand(-1, 8, -1), shifts) & 15
        scaled = (q.view(-1, group, n).to(x.dtype) - 8) * s.view(-1, 1, n)
        return x @ scaled.view(k, n)

    found: dict[str, tuple[Function, tuple[Any, ...]]] = {}
    whole, groups = torch.rand(n).to(dtype) / 100, torch.rand(n, k // group, 1).to(dtype) / 100
    bytes_ = torch.randint(-128, 128, (n, k), dtype=torch.int8)
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    for rows in 1, 16, 256, 1024:
        x = torch.randn(rows, k).to(dtype)
        end = f"{rows}x{n}x{k} {str(dtype).removeprefix('torch.')}"
        found |= {
            f"int8 weights {end}": (of_8_bits, (x, bytes_, whole)),
            f"int8 weights in groups {end}": (of_8_bits_in_groups, (x, bytes_, groups)),
            f"int4 weights {end}": (of_4_bits, (x, packed, groups)),
            f"weights by table {end}": (by_table, (x, packed, groups)),
            f"int4 weights in words {end}": (
                words, (x, packed.view(torch.int32).view(k // 8, n), groups),
            ),
        }  # fmt: skip
    return found


def own_kernel(name: str, args: tuple[Any, ...]) -> Callable[[], Any] | None:
    """Return a call of the kernel that torch has of a function, under a name of its own."""
    if not re.fullmatch("int8 weights [^ ]* bfloat16", name):
        return None
    return lambda: torch._weight_int8pack_mm(*args)


def experts(kind: str, dtype: torch.dtype) -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return layers of 8 wide and of 128 narrow experts for one token, some and many."""
    found: dict[str, tuple[Function, tuple[Any, ...]]] = {}
    for count, chosen, width in ((8, 2, 2048), (128, 8, 384)):
        w13 = (torch.randn(count, 2 * width, 1024) / 32).to(dtype)
        w2 = (torch.randn(count, 1024, width) / width**0.5).to(dtype)
        for tokens in (1, 16, 256):
            weights, ids = torch.randn(tokens, count).softmax(-1).topk(chosen, -1)
            given = (torch.randn(tokens, 1024).to(dtype), weights.to(dtype), ids, w13, w2)
            found[f"{chosen} of {count} experts{kind} {tokens}x1024x{width}"] = (mixture, given)
    return found


def rotary(kind: str, dtype: torch.dtype) -> dict[str, tuple[Function, tuple[Any, ...]]]:
    """Return rotary embeddings of halves and of pairs."""
    x, cos, sin = (torch.randn(*n, 128).to(dtype) for n in ((2, 32, 512), (512,), (512,)))
    half = tuple(t[:, :64].contiguous() for t in (cos, sin))
    return {
        f"rotary halves{kind} 2x32x512x128": (rotated, (x, cos, sin)),
        f"rotary pairs{kind} 2x32x512x128": (paired, (x, *half)),
    }


def measured(
    name: str, function: Function, args: tuple[Any, ...], options: argparse.Namespace
) -> dict[str, Any]:
    """Return times and ratios of one function."""
    ours, compiled = tilecore.compute(function), torch.compile(function)
    if options.tune:
        ours.tune(*args, trials=options.tune)
    exact = _made(function, tuple(map(_widened, args)))
    error = ((_made(ours, args) - exact).abs().max() / exact.abs().max()).item()
    calls = {
        "eager": lambda: function(*args), "compiled": lambda: compiled(*args),
        "ours": lambda: ours(*args),
    }  # fmt: skip
    try:
        compiled(*args)
    except RuntimeError:  # torch.compile has no products of groups of float32
        del calls["compiled"]
    own = own_kernel(name, args)
    calls |= {} if own is None else {"kernel": own}
    found: dict[str, Any] = {
        "name": name,
        "kernels": len(ours.plan(*args).stages),
        "largest_error": error,
    }
    for threads in options.threads:
        for call in calls.values():
            call()
        times = interleaved(calls, threads, options.rounds)
        median = {who: statistics.median(t) for who, t in times.items()}
        found[f"{threads}T"] = {
            "us": {who: t * 1e6 for who, t in median.items()},
            "of_eager": median["eager"] / median["ours"],
            "of_compiled": median.get("compiled", math.nan) / median["ours"],
            "of_kernel": median.get("kernel", math.nan) / median["ours"],
        }
    return found


def main() -> None:
    """Measure the functions asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--match", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--tune", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # what torch.compile refuses is a result
    found = []
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        os.environ["TILECORE_DATA_DIR"] = folder  # what was tuned before is not known
        for name, (function, args) in cases().items():
            if re.search(options.match, name):
                found.append(measured(name, function, args, options))
                ratios = "; ".join(
                    f"{found[-1][f'{t}T']['of_eager']:.2f}, {found[-1][f'{t}T']['of_compiled']:.2f}"
                    for t in options.threads
                )
                us = " ".join(f"{found[-1][f'{t}T']['us']['ours']:,.0f}" for t in options.threads)
                shown = f"{name}: {found[-1]['kernels']} kernels, {us} us, torch eager, compiled"
                own = [found[-1][f"{t}T"]["of_kernel"] for t in options.threads]
                if not math.isnan(own[0]):
                    ratios += f"; torch's own kernel {', '.join(f'{r:.2f}' for r in own)}"
                error = found[-1]["largest_error"]
                print(f"{shown} / ours {ratios}, error {error:.1e}", flush=True)
    if options.json:
        versions = {"torch": torch.__version__, **compiler_versions()}
        options.json.write_text(json.dumps({"versions": versions, "rows": found}, indent=1))


if __name__ == "__main__":
    main()
