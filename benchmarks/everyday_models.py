"""Layers and sequences of models, beside torch: more cases of ``everyday_programs.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks import everyday_layers as layers
from benchmarks import everyday_sequences as sequences
from benchmarks.everyday_case import Case

F = torch.nn.functional


def logit_cases() -> Iterator[Case]:
    """Yield programs on rows of logits."""
    x = torch.randn(256, 4096)
    values, places = torch.topk(x, 8)
    yield Case(
        "top 8 of 256x4096", layers.top_k(256, 4096, 8, 4), [x],
        lambda x=x: torch.topk(x, 8), [values, places],
    )  # fmt: skip
    x = torch.randn(4096, 128)

    def gate(x: Any = x) -> Any:
        weights, experts = torch.topk(torch.softmax(x, 1), 8)
        return weights, experts, torch.bincount(experts.view(-1), minlength=128)

    weights, experts = torch.topk(torch.softmax(x.double(), 1), 8)
    exact = [weights, experts, torch.bincount(experts.view(-1), minlength=128)]
    yield Case(
        "gating 4096x128, 8 experts", layers.gating(4096, 128, 8, 16), [x], gate, exact, True
    )
    tokens, order = torch.randn(1024, 1024), torch.randperm(2048).int().view(1024, 2)
    back = torch.argsort(order.view(-1).long()) // 2
    yield Case(
        "tokens by expert 1024x1024, twice", layers.permuted(1024, 1024, 2, 8), [tokens, order],
        lambda t=tokens, b=back: t[b], [tokens[back]],
    )  # fmt: skip
    x = torch.randn(1024, 4000)
    yield Case(
        "log-sum-exp 1024x4000", layers.log_sum_exp(1024, 4000, 8, 512), [x],
        lambda x=x: torch.logsumexp(x, 1), [torch.logsumexp(x.double(), 1)],
    )  # fmt: skip
    for n in (32000, 50257):
        x, label = torch.randn(64, n), torch.randint(0, n, (64,))
        wide, leaf = x.double(), x.clone().requires_grad_()
        hot = F.one_hot(label, n)

        def loss(x: Any = leaf, label: Any = label) -> Any:
            x.grad = None
            F.cross_entropy(x, label, reduction="sum").backward()

        yield Case(
            f"cross entropy and gradients 64x{n}", layers.cross_entropy(64, n, 2048),
            [x, label.int()], loss,
            [F.cross_entropy(wide, label, reduction="none"), torch.softmax(wide, 1) - hot],
        )  # fmt: skip


def byte_cases() -> Iterator[Case]:
    """Yield programs with activations and weights of 8 bits."""
    x, w = torch.randn(1024, 2048), torch.rand(2048) + 0.5
    for dtype, most in (("int8", 127.0), ("float8_e4m3fn", 448.0)):
        kind = getattr(torch, dtype)

        def quantised(x: Any = x, w: Any = w, most: float = most, kind: Any = kind) -> Any:
            y = F.rms_norm(x, (2048,), w, 1e-6)
            scale = y.abs().amax(1, keepdim=True).clamp(min=1e-10) / most
            y = y / scale
            return (y.round() if most < 128 else y).to(kind), scale[:, 0]

        yield Case(
            f"RMS norm to {dtype} 1024x2048",
            layers.normalized_bytes(1024, 2048, 4, dtype),
            [x, w],
            quantised,
            [t.double() for t in quantised()],
            tolerance=0.08,  # a code beside the border of two
        )
    n, k = 4096, 4096
    codes, scales = torch.randint(-127, 128, (n, k), dtype=torch.int8), torch.rand(n) / 64
    scales = scales.bfloat16()
    for m in (1, 16, 64):
        a = torch.randn(m, k).bfloat16()
        exact = a.double() @ (codes.double() * scales.double()[:, None]).T
        yield Case(
            f"int8 weights, bfloat16, M={m}, torch's int8",
            layers.int8_columns(m, n, k, m),
            [a, codes, scales],
            lambda a=a, c=codes, s=scales: torch.ops.aten._weight_int8pack_mm(a, c, s),
            [exact],
            tolerance=1e-2,
        )


def step_cases() -> Iterator[Case]:
    """Yield the step of an optimiser."""
    n = 1 << 21
    g, w, m, v = torch.randn(n), torch.randn(n), torch.randn(n) / 10, torch.rand(n) / 10
    corrections = torch.tensor([1 - 0.9**3, 1 - 0.999**3])
    mean, square = m.double() * 0.9 + g.double() * 0.1, v.double() * 0.999 + g.double() ** 2 * 0.001
    new = w.double() * (1 - 1e-5) - 1e-3 * (mean / corrections[0].double()) / (
        (square / corrections[1].double()).sqrt() + 1e-8
    )
    theirs, step = [t.clone() for t in (w, g, m, v)], torch.tensor(3.0)

    def rival() -> None:
        own = [[t] for t in theirs]
        torch._fused_adamw_(
            *own, [], [step], lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01,
            eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip

    yield Case(
        "AdamW step of 2M", layers.adam(n, 4096), [g, corrections], rival, [new, mean, square],
        begun=[w, m, v],
    )  # fmt: skip


def picture_cases() -> Iterator[Case]:
    """Yield programs over planes and small matrices."""
    for c, size, f, stride in ((64, 56, 64, 1), (64, 56, 128, 2), (3, 112, 32, 2)):
        x, w = torch.randn(1, c, size, size), torch.randn(f, c, 3, 3) / 10
        exact = F.conv2d(x.double(), w.double(), stride=stride, padding=1)
        last = [t.contiguous(memory_format=torch.channels_last) for t in (x, w)]
        yield Case(
            f"convolution {size}x{size}x{c} to {f}, stride {stride}",
            layers.convolved(1, c, size, size, f, stride),
            [x.permute(0, 2, 3, 1).contiguous(), w.permute(2, 3, 1, 0).reshape(9 * c, f)],
            lambda x=last[0], w=last[1], s=stride: F.conv2d(x, w, stride=s, padding=1),
            [exact.permute(0, 2, 3, 1).reshape(-1, f)],
        )
    x = torch.randn(1, 64, 56, 56)
    yield Case(
        "bilinear upsampling 64x56x56", layers.bilinear(1, 64, 56, 56), [x],
        lambda x=x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        [F.interpolate(x.double(), scale_factor=2, mode="bilinear")],
    )  # fmt: skip
    for size in (16, 32):
        a, b = torch.randn(2, 2048, size, size)
        yield Case(
            f"2048 products of {size}x{size}", layers.small_products(2048, size, 8), [a, b],
            lambda a=a, b=b: torch.bmm(a, b), [a.double() @ b.double()],
        )  # fmt: skip


def attention_cases() -> Iterator[Case]:
    """Yield caches of keys and what attends to them."""
    tokens, heads, d, slots = 256, 32, 128, 1024
    q, k, v = torch.randn(3, tokens, heads, d)
    c, s = torch.rand(2, tokens, d // 2)
    slot = torch.randperm(slots)[:tokens]
    caches = torch.zeros(2, slots, heads, d)

    def rotated(x: Any, c: Any = c, s: Any = s) -> Any:
        a, b = x[..., :64], x[..., 64:]
        return torch.cat((a * c[:, None] - b * s[:, None], b * c[:, None] + a * s[:, None]), -1)

    def append(q: Any = q, k: Any = k, v: Any = v, caches: Any = caches, slot: Any = slot) -> Any:
        caches[0][slot] = rotated(k)
        caches[1][slot] = v
        return rotated(q)

    exact = [append(), caches[0].clone(), caches[1].clone()]
    yield Case(
        "rotary to cache 256x32x128", sequences.rotated_to_cache(tokens, heads, d, slots),
        [q, k, v, c, s, slot.int()], append, exact,
    )  # fmt: skip
    batch, heads, groups, d, size, most = 8, 32, 8, 128, 16, 64
    pages = batch * most
    k, v = torch.randn(2, pages, size, groups, d)
    q, table = torch.randn(batch, heads, d), torch.randperm(pages).int().view(batch, most)
    length = torch.randint(most * size // 2, most * size, (batch,), dtype=torch.int32)

    def paged(q: Any = q, k: Any = k, v: Any = v) -> Any:
        outs = []
        for b in range(batch):
            at = table[b, : -(-int(length[b]) // size)].long()
            own = [t[at].flatten(0, 1)[: int(length[b])].transpose(0, 1)[None] for t in (k, v)]
            outs.append(F.scaled_dot_product_attention(q[b][None, :, None], *own, enable_gqa=True))
        return torch.cat(outs)[:, :, 0]

    yield Case(
        "paged decoding 8x32x128",
        sequences.paged_decode(batch, heads, groups, d, pages, size, most),
        [q, k, v, table, length],
        paged,
        [paged(q.double(), k.double(), v.double())],
    )
    heads, rows, d, window = 8, 1024, 64, 256
    at = torch.arange(rows)
    mask = (at[None] <= at[:, None]) & (at[None] > at[:, None] - window)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        q, k, v = torch.randn(3, heads, rows, d).to(dtype)

        def sdpa(q: Any = q, k: Any = k, v: Any = v, mask: Any = mask) -> Any:
            own = (t[None] for t in (q, k, v))
            return F.scaled_dot_product_attention(*own, attn_mask=mask)[0]

        name = str(dtype).removeprefix("torch.")
        yield Case(
            f"sliding window, {name}", sequences.sliding_window(heads, rows, d, window, name),
            [q, k, v], sdpa, [sdpa(q.double(), k.double(), v.double())], tolerance=tolerance,
        )  # fmt: skip


def recurrence_cases() -> Iterator[Case]:
    """Yield what runs along sequences, step by step or in chunks."""
    for length in (512, 1000):
        x, w, b = torch.randn(1, 1024, length), torch.randn(1024, 4), torch.randn(1024)

        def conv(x: Any = x, w: Any = w, b: Any = b, length: int = length) -> Any:
            return F.silu(F.conv1d(x, w[:, None], b, padding=3, groups=1024)[..., :length])

        yield Case(
            f"causal convolution 1024x{length}",
            sequences.causal_convolution(1, 1024, length, 4, 256), [x, w, b], conv,
            [conv(x.double(), w.double(), b.double())],
        )  # fmt: skip
    channels, length, states = 512, 256, 16
    u, dt = torch.randn(1, length, channels), torch.rand(1, length, channels) / 10
    a, b, c = -torch.rand(channels, states), *torch.randn(2, 1, length, states)

    def scan(u: Any = u, dt: Any = dt, a: Any = a, b: Any = b, c: Any = c) -> Any:
        h = torch.zeros(1, channels, states, dtype=u.dtype)
        ys = []
        for t in range(length):
            h = torch.exp(dt[:, t, :, None] * a) * h
            h = h + (dt[:, t] * u[:, t])[..., None] * b[:, t, None]
            ys.append((h * c[:, t, None]).sum(-1))
        return torch.stack(ys, 1)

    given = [u, dt, a, b, c]
    yield Case(
        "selective scan 256x512x16", sequences.selective_scan(1, channels, length, states, 32),
        given, scan, [scan(*(t.double() for t in given))],
    )  # fmt: skip
    heads, length, d = 8, 512, 64
    q, k, v = torch.randn(3, heads, length, d) / 8
    g, w, u = -torch.rand(heads, length) / 8, torch.rand(heads, length, d), torch.randn(heads, d)

    def gated(q: Any = q, k: Any = k, v: Any = v, g: Any = g) -> Any:
        state, outs = torch.zeros(heads, d, d, dtype=q.dtype), []
        for t in range(0, length, 64):
            at = slice(t, t + 64)
            decay = torch.cumsum(g[:, at], 1)
            apart = torch.exp(decay[:, :, None] - decay[:, None]).tril()
            o = (q[:, at] @ k[:, at].transpose(1, 2) * apart) @ v[:, at]
            outs.append(o + q[:, at] @ state * torch.exp(decay)[..., None])
            rest = torch.exp(decay[:, -1:] - decay)
            state = state * torch.exp(decay[:, -1:, None])
            state = state + (k[:, at] * rest[..., None]).transpose(1, 2) @ v[:, at]
        return torch.cat(outs, 1)

    given = [q, k, v, g]
    yield Case(
        "gated linear attention 8x512x64", sequences.gated_chunks(heads, length, d, 64), given,
        gated, [gated(*(t.double() for t in given))],
    )  # fmt: skip

    def mixed(r: Any = q, k: Any = k, v: Any = v, w: Any = w, u: Any = u) -> Any:
        state, outs = torch.zeros(heads, d, d, dtype=r.dtype), []
        for t in range(length):
            new = k[:, t, :, None] * v[:, t, None]
            outs.append((r[:, t, None] @ (state + u[..., None] * new))[:, 0])
            state = state * w[:, t, :, None] + new
        return torch.stack(outs, 1)

    given = [q, k, v, w, u]
    yield Case(
        "RWKV-6 8x512x64", sequences.time_mix(heads, length, d), given, mixed,
        [mixed(*(t.double() for t in given))],
    )  # fmt: skip


def sparse_cases() -> Iterator[Case]:
    """Yield segments, compaction and sparse rows."""
    rows, n, segments = 8192, 256, 512
    x = torch.randn(rows, n)
    first = torch.cat((torch.tensor([0]), torch.randint(0, rows, (segments - 1,)).sort()[0]))
    first = torch.cat((first, torch.tensor([rows])))
    owner = torch.repeat_interleave(torch.arange(segments), first.diff())
    exact = torch.zeros(segments, n, dtype=torch.float64).index_add_(0, owner, x.double())
    yield Case(
        "segment sums 8192x256", sequences.segment_sums(segments, rows, n), [x, first.int()],
        lambda x=x, f=first: torch.segment_reduce(x, "sum", offsets=f, axis=0), [exact],
    )  # fmt: skip
    x = torch.randn(512, 2048)
    count = (x > 0).sum(1)
    exact = torch.zeros(512, 2048)
    for i, row in enumerate(x):
        exact[i, : count[i]] = row[row > 0]
    yield Case(
        "compaction 512x2048", sequences.compacted(512, 2048), [x],
        lambda x=x: x[x > 0], [exact, count],
    )  # fmt: skip
    rows, each = 4096, 48
    at = torch.randint(0, rows, (rows, each)).sort(1)[0]
    first = torch.arange(0, rows * each + 1, each)
    values, v = torch.randn(rows * each), torch.randn(rows)
    matrix = torch.sparse_csr_tensor(first, at.view(-1), values, (rows, rows))
    exact = (values.view(rows, each).double() * v.double()[at]).sum(1)
    yield Case(
        "sparse rows by warps 4096x48", sequences.sparse_rows(rows, rows, rows * each, 4),
        [first.int(), at.view(-1).int(), values, v], lambda m=matrix, v=v: m @ v, [exact],
    )  # fmt: skip


def transform_cases() -> Iterator[Case]:
    """Yield Fourier transforms and decompositions."""
    x = torch.randn(64, 1024, dtype=torch.complex64)
    exact = torch.view_as_real(torch.fft.fft(x.to(torch.complex128)))
    yield Case(
        "Fourier transforms 64x1024", sequences.fourier(64, 1024), [torch.view_as_real(x)],
        lambda x=x: torch.fft.fft(x), [exact],
    )  # fmt: skip
    x = torch.randn(256, 32, 32)
    x = x @ x.transpose(1, 2) / 32 + torch.eye(32) * 0.1
    yield Case(
        "Cholesky 256x32x32", sequences.cholesky(256, 32), [x],
        lambda x=x: torch.linalg.cholesky(x), [torch.linalg.cholesky(x.double())],
    )  # fmt: skip


def cases() -> Iterator[Case]:
    """Yield all cases."""
    yield from logit_cases()
    yield from byte_cases()
    yield from step_cases()
    yield from picture_cases()
    yield from attention_cases()
    yield from recurrence_cases()
    yield from sparse_cases()
    yield from transform_cases()
