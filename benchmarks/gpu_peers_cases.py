"""Workloads of gpu_peers.py, most wanted first: their inputs, float64 references and outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

Problem = Mapping[str, Any]
Tensors = list[Any]
Shape = tuple[str, dict[str, Any], int]
EPSILON = 1e-5  # of norms
BLOCK_ELEMENTS = 1 << 26  # of a float64 intermediate: 512 MiB
DEEPSEEK = {"heads": 128, "dim": 512, "pe": 64}


def shapes() -> Iterator[Shape]:
    """Yield what is compared, with how many of our configs."""
    for batch, seq, dtype in (
        (128, 4096, "bfloat16"),
        (16, 8192, "bfloat16"),
        (64, 8192, "float16"),
    ):
        yield "mla_decode", {"batch": batch, **DEEPSEEK, "seq_kv": seq, "dtype": dtype}, 6
    for heads, dim in ((16, 128), (32, 128), (16, 64)):
        problem = {"batch": 4, "heads": heads, "seq_len": 8192, "dim": dim, "dim_v": dim}
        yield "linear_attention", {**problem, "dtype": "bfloat16"}, 6
    for dim, causal in ((128, False), (128, True), (64, False)):
        yield "attention_backward", _attention(4, 16, 16, 4096, dim, causal, "bfloat16"), 6
    for dtype in ("float16", "bfloat16"):
        for causal in (True, False):
            yield "attention", _attention(2, 32, 8, 4096, 64, causal, dtype), 8
    yield from _products()
    yield from _others()


def _products() -> Iterator[Shape]:
    for size in (4096, 8192):
        problem = {"m": size, "n": size, "k": size, "dtype": "float8_e4m3fn"}
        yield "scaled_gemm", {**problem, "out_dtype": "bfloat16"}, 6
    for m, n, k in ((16, 4096, 4096), (1, 14336, 4096), (2048, 4096, 4096)):
        yield "dequant_gemm", {"m": m, "n": n, "k": k, "dtype": "bfloat16"}, 6
    for m, n, k, dtype in ((4096, 4096, 4096, "float16"), (2048, 28672, 4096, "bfloat16")):
        yield "dynamic_gemm", {"m": m, "n": n, "k": k, "dtype": dtype}, 2
    for m, n, k, dtype in (
        (1000, 1000, 1000, "float16"), (4096, 4104, 2056, "float16"),
        (8192, 8192, 8192, "bfloat16"), (2048, 28672, 4096, "bfloat16"),
    ):  # fmt: skip
        few = {"m": m, "n": n, "k": k, "dtype": dtype, "out_dtype": dtype}
        yield "gemm", few, 8 if m < 2048 or n == 4104 else 3
    yield "grouped_gemm", {
        "experts": 8, "m": 16384, "n": 4096, "k": 4096, "dtype": "bfloat16",
        "out_dtype": "bfloat16", "transpose_b": True,
    }, 4  # fmt: skip


def _others() -> Iterator[Shape]:
    for batch, heads, seq in ((16, 32, 8192), (1, 32, 32768)):
        problem = _attention(batch, heads, 8, seq, 128, False, "float16")
        yield "decode_attention", {**problem, "seq_q": 1}, 4
    yield "batched_gemm", {
        "batch": 64, "m": 1024, "n": 1024, "k": 1024, "dtype": "float16", "out_dtype": "float16",
    }, 3  # fmt: skip
    for name, n in (("rms_norm", 4096), ("softmax", 8192), ("layer_norm", 4096)):
        yield name, {"m": 16384, "n": n, "dtype": "bfloat16"}, 3
    yield "conv2d", {
        "batch": 32, "height": 56, "width": 56, "channels": 128, "filters": 128, "kernel": 3,
        "padding": 1, "dtype": "float16", "out_dtype": "float16",
    }, 4  # fmt: skip
    for causal in (False, True):
        yield "attention", _attention(1, 32, 8, 8192, 128, causal, "float16"), 3
    yield "attention", _attention(1, 40, 40, 2048, 128, True, "float16"), 3  # few waves of blocks


def _attention(
    batch: int, heads: int, kv_heads: int, seq: int, dim: int, causal: bool, dtype: str
) -> dict[str, Any]:
    return {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_q": seq, "seq_kv": seq,
        "dim": dim, "causal": causal, "dtype": dtype,
    }  # fmt: skip


def _normal(shape: Sequence[int], dtype: Any, device: str) -> Any:
    return torch.randn(tuple(shape), device=device).to(dtype)


def _numbers(problem: Problem, *names: str) -> list[int]:
    return [int(problem[name]) for name in names]


def _type(problem: Problem, name: str = "dtype") -> Any:
    return getattr(torch, str(problem[name]))


# --- products ------------------------------------------------------------------------------------


def _gemm_inputs(problem: Problem, device: str) -> Tensors:
    m, n, k = _numbers(problem, "m", "n", "k")
    batch = [int(problem["batch"])] if "batch" in problem else []
    return [_normal((*batch, *s), _type(problem), device) for s in ((m, k), (k, n))]


def _gemm_reference(problem: Problem, inputs: Tensors) -> Tensors:
    a, b = inputs
    return [torch.matmul(a.double(), b.double())]


def _scaled_inputs(problem: Problem, device: str) -> Tensors:
    m, n, k = _numbers(problem, "m", "n", "k")
    a, b = (_normal(s, _type(problem), device) for s in ((m, k), (n, k)))
    scales = [0.5 + torch.rand(size, device=device) for size in (m, n)]
    return [a, b, scales[0], scales[1] / math.sqrt(k), torch.zeros(n, device=device)]


def _scaled_reference(problem: Problem, inputs: Tensors) -> Tensors:
    a, b, scale_a, scale_b, _ = inputs
    return [torch.mm(a.double(), b.double().T) * scale_a.double()[:, None] * scale_b.double()]


def _dequant_inputs(problem: Problem, device: str) -> Tensors:
    m, n, k = _numbers(problem, "m", "n", "k")
    dtype, groups = _type(problem), k // int(problem["group"])
    words = torch.randint(-(2**31), 2**31, (n // 64, k // 8, 64), device=device).to(torch.int32)
    table = torch.arange(-8, 8, device=device).to(dtype)
    scale = (0.5 + torch.rand((groups, n), device=device)) / (8 * math.sqrt(k))
    zero = torch.randn((groups, n), device=device) * 0.1 / math.sqrt(k)
    return [_normal((m, k), dtype, device), words, table, scale.to(dtype), zero.to(dtype)]


def codes_of(words: Any, k: int, n: int) -> Any:
    """Return the codes[k, n] of words as tilecore packs them (tilecore/kernels/packed_weights)."""
    bits = [4 * (i // 2) + 16 * (i % 2) for i in range(8)]
    parts = torch.stack([(words >> bit) & 15 for bit in bits], 2)  # panels, words, 8, 64
    return parts.permute(1, 2, 0, 3).reshape(k, n)


def weights_of(problem: Problem, inputs: Tensors, dtype: Any) -> Any:
    """Return the weights[k, n] that codes, scales and zeros stand for."""
    _, words, _, scale, zero = inputs
    n, k, group = _numbers(problem, "n", "k", "group")
    scales, zeros = (x.to(dtype).repeat_interleave(group, 0) for x in (scale, zero))
    return (codes_of(words, k, n) - 8).to(dtype) * scales + zeros


def _dequant_reference(problem: Problem, inputs: Tensors) -> Tensors:
    return [inputs[0].double() @ weights_of(problem, inputs, torch.float64)]


def _grouped_inputs(problem: Problem, device: str) -> Tensors:
    e, m, n, k = _numbers(problem, "experts", "m", "n", "k")
    generator = torch.Generator().manual_seed(3)
    cuts = torch.randint(0, m + 1, (e - 1,), generator=generator).sort().values
    offsets = torch.cat([torch.tensor([0]), cuts, torch.tensor([m])]).to(torch.int32)
    dtype = _type(problem)
    return [_normal((m, k), dtype, device), _normal((e, n, k), dtype, device), offsets.to(device)]


def _grouped_reference(problem: Problem, inputs: Tensors) -> Tensors:
    a, b, offsets = inputs
    ends = offsets.tolist()
    parts = zip(ends[:-1], ends[1:], b, strict=True)
    return [torch.cat([a[i:j].double() @ w.double().T for i, j, w in parts])]


def _conv_inputs(problem: Problem, device: str) -> Tensors:
    n, h, w, c, f, kernel = _numbers(
        problem, "batch", "height", "width", "channels", "filters", "kernel"
    )
    depth = kernel * kernel * c
    filters = torch.randn((depth, f), device=device) / math.sqrt(depth)
    return [_normal((n, h, w, c), _type(problem), device), filters.to(_type(problem))]


def out_size(problem: Problem) -> tuple[int, int]:
    """Return height and width of a convolution's output."""
    kernel, stride, dilation, padding = _numbers(problem, "kernel", "stride", "dilation", "padding")
    reach = dilation * (kernel - 1) + 1
    high, wide = (
        (s + 2 * padding - reach) // stride + 1 for s in _numbers(problem, "height", "width")
    )
    return high, wide


def _conv_reference(problem: Problem, inputs: Tensors) -> Tensors:
    image, filters = (x.double() for x in inputs)
    kernel, s, d, p = _numbers(problem, "kernel", "stride", "dilation", "padding")
    high, wide = out_size(problem)
    padded = torch.nn.functional.pad(image, (0, 0, p, p, p, p))
    weights = filters.reshape(kernel, kernel, image.shape[3], -1)
    total: Any = 0
    for y in range(kernel):
        for x in range(kernel):
            rows = slice(y * d, y * d + (high - 1) * s + 1, s)
            columns = slice(x * d, x * d + (wide - 1) * s + 1, s)
            total = total + padded[:, rows, columns] @ weights[y, x]
    return [total.reshape(-1, filters.shape[1])]


# --- attention -----------------------------------------------------------------------------------


def _attention_inputs(problem: Problem, device: str) -> Tensors:
    b, h, hk, sq, sk, d = _numbers(problem, "batch", "heads", "kv_heads", "seq_q", "seq_kv", "dim")
    sizes = ((b, h, sq, d), (b, hk, sk, d), (b, hk, sk, d))
    return [_normal(s, _type(problem), device) for s in sizes]


def _weights(problem: Problem, q: Any, k: Any) -> tuple[Any, Any]:
    """Return weights of a head in float64 and log(sum(exp(scores)))."""
    scores = q.double() @ k.double().T / math.sqrt(q.shape[1])
    if problem["causal"]:
        rows, columns = (torch.arange(n, device=q.device) for n in scores.shape)
        hidden = columns[None, :] > rows[:, None] + len(columns) - len(rows)
        scores.masked_fill_(hidden, -math.inf)
    lse = torch.logsumexp(scores, 1)
    return torch.exp(scores - lse[:, None]), lse


def _attention_reference(problem: Problem, inputs: Tensors) -> Tensors:
    q, k, v = inputs
    group = q.shape[1] // k.shape[1]
    found = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            weights, _ = _weights(problem, q[b, h], k[b, h // group])
            found[b, h] = weights @ v[b, h // group].double()
    return [found]


def _backward_inputs(problem: Problem, device: str) -> Tensors:
    q, k, v = _attention_inputs(problem, device)
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            weights, sums = _weights(problem, q[b, h], k[b, h // group])
            out[b, h] = (weights @ v[b, h // group].double()).to(out.dtype)
            lse[b, h] = sums.float()
    return [q, k, v, out, lse, _normal(q.shape, q.dtype, device)]


def _backward_reference(problem: Problem, inputs: Tensors) -> Tensors:
    q, k, v, out, _, gradient = inputs
    group, scale = q.shape[1] // k.shape[1], 1 / math.sqrt(q.shape[3])
    found = [torch.zeros(x.shape, dtype=torch.float64, device=q.device) for x in (q, k, v)]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            weights, _ = _weights(problem, q[b, h], k[b, h // group])
            slope, value = gradient[b, h].double(), v[b, h // group].double()
            found[2][b, h // group] += weights.T @ slope
            delta = (slope * out[b, h].double()).sum(1, keepdim=True)
            weights *= (slope @ value.T - delta) * scale
            found[0][b, h] = weights @ k[b, h // group].double()
            found[1][b, h // group] += weights.T @ q[b, h].double()
    return found


def _mla_inputs(problem: Problem, device: str) -> Tensors:
    b, h, s, d, pe = _numbers(problem, "batch", "heads", "seq_kv", "dim", "pe")
    sizes = ((b, h, d), (b, h, pe), (b, s, d), (b, s, pe))
    return [_normal(x, _type(problem), device) for x in sizes]


def _mla_reference(problem: Problem, inputs: Tensors) -> Tensors:
    q, q_pe, kv, k_pe = inputs
    found = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    scale = (q.shape[2] + q_pe.shape[2]) ** -0.5
    step = max(1, BLOCK_ELEMENTS // (kv.shape[1] * kv.shape[2]))
    for b in range(0, q.shape[0], step):
        part = slice(b, b + step)
        keys = kv[part].double()
        scores = torch.bmm(q[part].double(), keys.mT)
        scores += torch.bmm(q_pe[part].double(), k_pe[part].double().mT)
        found[part] = torch.bmm(torch.softmax(scores * scale, -1), keys)
    return [found]


def _linear_inputs(problem: Problem, device: str) -> Tensors:
    b, h, s, d, dv = _numbers(problem, "batch", "heads", "seq_len", "dim", "dim_v")
    q, k = (torch.randn((b, h, s, d), device=device) for _ in range(2))
    values = _normal((b, h, s, dv), _type(problem), device)
    return [(q / math.sqrt(s * d)).to(_type(problem)), k.to(_type(problem)), values]


def chunked_linear_attention(q: Any, k: Any, v: Any, chunk: int) -> Any:
    """Return causal linear attention by torch: within chunks, and by the sums of chunks before."""
    b, h, s, _ = q.shape
    q, k, v = (x.reshape(b, h, s // chunk, chunk, -1) for x in (q, k, v))
    products = k.mT @ v
    state = torch.cumsum(products, 2) - products
    return (torch.tril(q @ k.mT) @ v + q @ state).reshape(b, h, s, -1)


def _linear_reference(problem: Problem, inputs: Tensors) -> Tensors:
    found = torch.empty(inputs[2].shape, dtype=torch.float64, device=inputs[2].device)
    for b in range(found.shape[0]):
        part = (x[b : b + 1].double() for x in inputs)
        found[b : b + 1] = chunked_linear_attention(*part, min(128, found.shape[2]))
    return [found]


# --- rows ----------------------------------------------------------------------------------------


def _row_inputs(vectors: int) -> Callable[[Problem, str], Tensors]:
    def inputs(problem: Problem, device: str) -> Tensors:
        m, n = _numbers(problem, "m", "n")
        return [_normal(s, _type(problem), device) for s in ((m, n), *[(n,)] * vectors)]

    return inputs


def _softmax_reference(problem: Problem, inputs: Tensors) -> Tensors:
    return [torch.softmax(inputs[0].double(), 1)]


def _rms_reference(problem: Problem, inputs: Tensors) -> Tensors:
    x, w = (t.double() for t in inputs)
    return [x * torch.rsqrt((x * x).mean(1, keepdim=True) + EPSILON) * w]


def _layer_reference(problem: Problem, inputs: Tensors) -> Tensors:
    x, w, b = (t.double() for t in inputs)
    return [torch.nn.functional.layer_norm(x, (x.shape[1],), w, b, EPSILON)]


CASES: Mapping[str, tuple[Callable[..., Tensors], Callable[..., Tensors]]] = {
    "gemm": (_gemm_inputs, _gemm_reference),
    "dynamic_gemm": (_gemm_inputs, _gemm_reference),
    "batched_gemm": (_gemm_inputs, _gemm_reference),
    "scaled_gemm": (_scaled_inputs, _scaled_reference),
    "dequant_gemm": (_dequant_inputs, _dequant_reference),
    "grouped_gemm": (_grouped_inputs, _grouped_reference),
    "conv2d": (_conv_inputs, _conv_reference),
    "attention": (_attention_inputs, _attention_reference),
    "attention_backward": (_backward_inputs, _backward_reference),
    "decode_attention": (_attention_inputs, _attention_reference),
    "mla_decode": (_mla_inputs, _mla_reference),
    "linear_attention": (_linear_inputs, _linear_reference),
    "softmax": (_row_inputs(0), _softmax_reference),
    "rms_norm": (_row_inputs(1), _rms_reference),
    "layer_norm": (_row_inputs(2), _layer_reference),
}


def outputs(kernel: str, problem: Problem, inputs: Tensors) -> Tensors:
    """Return tensors that a participant writes to."""
    device = inputs[0].device
    if kernel == "attention_backward":
        return [torch.empty_like(x) for x in inputs[:3]]
    if kernel == "conv2d":
        high, wide = out_size(problem)
        size = [int(problem["batch"]) * high * wide, int(problem["filters"])]
    elif "gemm" in kernel:
        batch = [int(problem["batch"])] if "batch" in problem else []
        size = [*batch, int(problem["m"]), int(problem["n"])]
    else:
        size = list(inputs[2 if kernel == "linear_attention" else 0].shape)
    name = "out_dtype" if "out_dtype" in problem else "dtype"
    return [torch.empty(size, dtype=_type(problem, name), device=device)]


def work_flop(kernel: str, problem: Problem) -> float:
    """Return the FLOP of a workload."""
    if kernel == "mla_decode":
        b, h, s, d, pe = _numbers(problem, "batch", "heads", "seq_kv", "dim", "pe")
        return 2.0 * b * h * s * (2 * d + pe)
    if kernel == "dynamic_gemm":
        return 2.0 * math.prod(_numbers(problem, "m", "n", "k"))
    from tilecore import kernels

    return float(kernels.get(kernel).work_flop(problem))
