"""Torch's side of gpu_peers.py: calls that write to ``outs`` (None) or return their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from gpu_peers_cases import EPSILON, chunked_linear_attention, codes_of, out_size, weights_of

# Participant, config, call, what the call computes in place of the workload (None: the workload).
Peer = tuple[str, str, Callable[[], Any], Any]
Peers = Iterator[Peer]
functional = torch.nn.functional


def peers(
    kernel: str, problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]
) -> Peers:
    """Yield torch's ways to compute a workload."""
    yield from MAKERS[kernel](problem, inputs, outs)


def _gemm(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    yield "torch", "torch.matmul", lambda: _nothing(torch.matmul(*inputs, out=outs[0])), None


def _nothing(*_: Any) -> None:
    """Return None: the results are where they belong."""


def _scaled(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    a, b, scale_a, scale_b, _ = inputs
    kind = outs[0].dtype

    def by_rows(is_fast: bool) -> Callable[[], Any]:
        scales = {"scale_a": scale_a[:, None], "scale_b": scale_b[None, :]}
        return lambda: torch._scaled_mm(a, b.T, out_dtype=kind, use_fast_accum=is_fast, **scales)

    for is_fast in (True, False):
        yield "torch", f"_scaled_mm, rows, fast {is_fast}", by_rows(is_fast), None
    one, scale = (torch.tensor(x, device=a.device) for x in (1.0, 1 / 64))
    plain = [torch.mm(a.double(), b.double().T) / 64]
    yield (
        "torch_one_scale", "_scaled_mm, fast True",
        lambda: torch._scaled_mm(
            a, b.T, scale_a=one, scale_b=scale, out_dtype=kind, use_fast_accum=True
        ),
        plain,
    )  # fmt: skip


def _dequant(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    a, words, _, scale, zero = inputs
    n, k, group = (int(problem[name]) for name in ("n", "k", "group"))
    wide = weights_of(problem, inputs, a.dtype)
    yield "torch_wide_weights", "torch.mm", lambda: _nothing(torch.mm(a, wide, out=outs[0])), None
    codes = codes_of(words, k, n)
    bytes_of = (codes[::2] | codes[1::2] << 4).to(torch.uint8)

    def decoded() -> None:
        values = torch.stack([bytes_of & 15, bytes_of >> 4], 1).view(k, n).to(a.dtype) - 8
        grouped = values.view(k // group, group, n)
        found = torch.addcmul(zero[:, None, :], grouped, scale[:, None, :]).view(k, n)
        torch.mm(a, found, out=outs[0])

    yield "torch", "decoded, torch.mm", decoded, None
    if a.device.type != "cuda":
        return
    pairs = torch.stack([scale, zero], -1).contiguous()
    for name, high, low in (("high first", 0, 1), ("low first", 1, 0)):
        packed = (codes.T[:, high::2] << 4 | codes.T[:, low::2]).to(torch.uint8).contiguous()
        for tiles in (8, 4):
            weights = torch._convert_weight_to_int4pack(packed, tiles)

            def call(weights: Any = weights) -> Any:
                return torch._weight_int4pack_mm(a, weights, group, pairs)

            yield "torch", f"_weight_int4pack_mm, {name}, {tiles}", call, None


def _grouped(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    a, b, offsets = inputs
    ends = offsets[1:].contiguous()
    turned = b.transpose(1, 2)
    limits = [int(i) for i in offsets.tolist()]
    parts = [
        (a[i:j], w, outs[0][i:j]) for i, j, w in zip(limits[:-1], limits[1:], turned, strict=True)
    ]

    def by_products() -> None:
        for rows, weights, result in parts:
            torch.mm(rows, weights, out=result)

    yield "torch", "torch.mm each", by_products, None
    yield "torch", "_grouped_mm", lambda: torch._grouped_mm(a, turned, offs=ends), None


def _conv(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    image, filters = inputs
    size = int(problem["kernel"])
    x = image.permute(0, 3, 1, 2)  # channels last in memory, as here
    w = filters.reshape(size, size, image.shape[3], -1).permute(3, 2, 0, 1)
    w = w.contiguous(memory_format=torch.channels_last)
    names = {"stride": "stride", "padding": "padding", "dilation": "dilation"}
    options = {key: int(problem[name]) for key, name in names.items()}
    high, wide = out_size(problem)
    rows = int(problem["batch"]) * high * wide
    torch.backends.cudnn.benchmark = True

    def call() -> Any:
        return functional.conv2d(x, w, **options).permute(0, 2, 3, 1).reshape(rows, -1)

    yield "torch", "conv2d, channels last", call, None


def _attention(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    q, k, v = inputs
    options = {"is_causal": bool(problem["causal"]), "enable_gqa": k.shape[1] != q.shape[1]}
    yield from _by_backends(q, k, v, options, "")
    if q.shape[2] == 1 and not problem["causal"]:  # heads that share keys as rows of a head
        rows = q.view(q.shape[0], k.shape[1], -1, q.shape[3])
        for name, config, call, _ in _by_backends(rows, k, v, {}, "shared keys, "):

            def viewed(call: Callable[[], Any] = call) -> Any:
                return call().reshape(q.shape)

            yield name, config, viewed, None


def _backends() -> list[Any]:
    from torch.nn.attention import SDPBackend

    return [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]


def _by_backends(q: Any, k: Any, v: Any, options: Mapping[str, Any], note: str) -> Peers:
    from torch.nn.attention import sdpa_kernel

    for backend in _backends():

        def call(backend: Any = backend) -> Any:
            with sdpa_kernel([backend]):
                return functional.scaled_dot_product_attention(q, k, v, **options)

        yield "torch", note + backend.name, call, None


def _backward(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    from torch.nn.attention import sdpa_kernel

    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    gradient, causal = inputs[5], bool(problem["causal"])
    for backend in _backends():
        try:
            with sdpa_kernel([backend]):
                out = functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        except RuntimeError as error:  # a backend that does not take it
            print(f"  {backend.name}: {str(error)[:200]}", flush=True)
            continue

        def call(out: Any = out) -> Any:
            return torch.autograd.grad(out, leaves, gradient, retain_graph=True)

        yield "torch", backend.name, call, None


def _mla(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    q, q_pe, kv, k_pe = inputs
    scale = (q.shape[2] + q_pe.shape[2]) ** -0.5
    both, keys = torch.cat([q, q_pe], -1), torch.cat([kv, k_pe], -1)

    def joined() -> None:
        scores = torch.bmm(both, keys.mT) * scale
        torch.bmm(torch.softmax(scores, -1), kv, out=outs[0])

    def scaled() -> None:
        empty = both.new_empty((1, 1, 1))
        scores = torch.baddbmm(empty, both, keys.mT, beta=0, alpha=scale)
        torch.bmm(torch.softmax(scores, -1), kv, out=outs[0])

    def attended() -> Any:
        return functional.scaled_dot_product_attention(both[:, None], keys[:, None], kv[:, None])[
            :, 0
        ]

    yield "torch", "bmm, softmax, bmm", joined, None
    yield "torch", "baddbmm, softmax, bmm", scaled, None
    yield "torch", "scaled_dot_product_attention", attended, None


def _linear(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    for chunk in (64, 128):
        if inputs[0].shape[2] % chunk == 0:

            def call(chunk: int = chunk) -> Any:
                return chunked_linear_attention(*inputs, chunk)

            yield "torch", f"chunks of {chunk}", call, None


def _softmax(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    yield "torch", "softmax", lambda: _nothing(torch.softmax(inputs[0], 1, out=outs[0])), None


def _rms_norm(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    x, w = inputs
    yield "torch", "rms_norm", lambda: functional.rms_norm(x, (x.shape[1],), w, EPSILON), None


def _layer_norm(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Peers:
    x, w, b = inputs
    yield (
        "torch",
        "layer_norm",
        lambda: functional.layer_norm(x, (x.shape[1],), w, b, EPSILON),
        None,
    )


MAKERS: Mapping[str, Callable[..., Peers]] = {
    "gemm": _gemm, "dynamic_gemm": _gemm, "batched_gemm": _gemm, "scaled_gemm": _scaled,
    "dequant_gemm": _dequant, "grouped_gemm": _grouped, "conv2d": _conv, "attention": _attention,
    "attention_backward": _backward, "decode_attention": _attention, "mla_decode": _mla,
    "linear_attention": _linear, "softmax": _softmax, "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
}  # fmt: skip
