"""Triton's products and rows for gpu_peers.py; its attention: gpu_peers_triton_attention.py.

Written after Triton's tutorials and the kernels that frameworks ship, with a few configs each.
``launches`` of a kernel yields (config, launches): a launch runs, or compiles for tensors without
memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from gpu_peers_launch import Launch, Launches
from triton.tools.tensor_descriptor import TensorDescriptor

# Rows and columns of a block, a step along K, warps, stages.
GEMM = (
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 128, 64, 4, 4), (128, 128, 64, 8, 4),
    (256, 128, 64, 8, 3), (64, 128, 64, 4, 4),
)  # fmt: skip
FEW_ROWS = ((64, 64, 128, 4, 4), (16, 128, 128, 4, 4), (16, 64, 256, 4, 4))
FP8 = ((128, 256, 128, 8, 3), (128, 256, 128, 8, 4), (128, 128, 128, 4, 4), (256, 128, 128, 8, 3))
GROUPED = ((128, 256, 64, 8, 3), (128, 128, 64, 4, 4), (128, 128, 64, 8, 3), (64, 256, 64, 4, 3))
# Rows and columns of a block, a step along K, splits, warps, stages, whether words are loaded once.
DEQUANT_FEW = (
    (16, 64, 128, 4, 4, 4, True), (16, 64, 128, 4, 4, 4, False), (16, 128, 128, 8, 4, 3, True),
    (16, 32, 128, 4, 4, 4, True), (16, 64, 128, 1, 4, 4, True), (16, 128, 64, 4, 4, 4, True),
)  # fmt: skip
DEQUANT = (
    (128, 128, 64, 1, 4, 3, True), (128, 128, 64, 1, 8, 3, True), (128, 128, 64, 1, 8, 3, False),
    (64, 128, 64, 1, 4, 3, True), (128, 256, 64, 1, 8, 3, True),
)  # fmt: skip
ROW_WARPS = (4, 8, 16)
GROUP = 8


def launches(
    kernel: str, problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]
) -> Launches:
    """Yield the configs of a kernel of ours that Triton has, too."""
    import gpu_peers_triton_attention as attention

    makers = {
        "gemm": gemm, "dynamic_gemm": gemm, "batched_gemm": gemm, "scaled_gemm": scaled_gemm,
        "dequant_gemm": dequant_gemm, "grouped_gemm": grouped_gemm, "softmax": softmax,
        "rms_norm": rms_norm, "layer_norm": layer_norm, "attention": attention.forward,
        "attention_backward": attention.backward, "decode_attention": attention.decode,
        "mla_decode": attention.mla, "linear_attention": attention.linear,
    }  # fmt: skip
    if kernel in makers:
        yield from makers[kernel](problem, inputs, outs)


# --- products ------------------------------------------------------------------------------------


@triton.jit
def _place(M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    place = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = place // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    m = first + place % (GROUP * columns) % height
    n = place % (GROUP * columns) // height
    return m, n


@triton.jit
def _gemm(
    a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    m, n = _place(M, N, BM, BN, GROUP)
    z = tl.program_id(1)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = a_desc.load([z * M + m * BM, k * BK])
        b = b_desc.load([z * K + k * BK, n * BN])
        total = tl.dot(a, b, total)
    c_desc.store([z * M + m * BM, n * BN], total.to(tl.float16 if HALF else tl.bfloat16))


@triton.jit
def _gemm_any(
    A, B, C, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    m, n = _place(M, N, BM, BN, GROUP)
    rows, columns, deep = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN), tl.arange(0, BK)
    at_rows, at_columns = rows % M, columns % N
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        left = K - k * BK
        a = tl.load(
            A + at_rows[:, None] * K + k * BK + deep[None, :], mask=deep[None, :] < left, other=0.0
        )
        b = tl.load(
            B + (k * BK + deep[:, None]) * N + at_columns[None, :], mask=deep[:, None] < left,
            other=0.0,
        )  # fmt: skip
        total = tl.dot(a, b, total)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    found = total.to(tl.float16 if HALF else tl.bfloat16)
    tl.store(C + rows[:, None] * N + columns[None, :], found, mask=inside)


def _descriptor(tensor: Any, box: tuple[int, int]) -> Any:
    return TensorDescriptor.from_tensor(tensor.reshape(-1, tensor.shape[-1]), list(box))


def gemm(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Launches:
    """Yield products, of batches too, by tensor descriptors; by pointers where rows do not suit."""
    a, b = inputs
    (out,) = outs
    batch = a.shape[0] if a.ndim == 3 else 1
    (M, K), N = a.shape[-2:], b.shape[-1]
    half, is_aligned = a.dtype == torch.float16, K % 8 == 0 and N % 8 == 0
    for config in GEMM + (FEW_ROWS if M < 128 else ()):
        BM, BN, BK, warps, stages = config
        if max(64, M) < BM or (M < 128 and BM > 64) or (batch > 1 and (M % BM or K % BK)):
            continue
        grid = (triton.cdiv(M, BM) * triton.cdiv(N, BN), batch)
        tensors, kernel = (a, b, out), _gemm_any
        if is_aligned:
            boxes = ((BM, BK), (BK, BN), (BM, BN))
            tensors = tuple(_descriptor(t, x) for t, x in zip((a, b, out), boxes, strict=True))
            kernel = _gemm
        arguments = (*tensors, M, N, K, BM, BN, BK, GROUP, half)
        yield str(config), [Launch(kernel, grid, arguments, warps, stages)]
    if batch == 1 and M >= 128 and is_aligned:  # TMA's boxes are no better where tiles are ragged
        for BM, BN, BK, warps, stages in GEMM[2:4]:
            grid = (triton.cdiv(M, BM) * triton.cdiv(N, BN),)
            arguments = (a, b, out, M, N, K, BM, BN, BK, GROUP, half)
            shown = f"pointers {(BM, BN, BK, warps, stages)}"
            yield shown, [Launch(_gemm_any, grid, arguments, warps, stages)]


@triton.jit
def _scaled(
    a_desc, b_desc, c_desc, ScaleA, ScaleB, M, N, K, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    m, n = _place(M, N, BM, BN, GROUP)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = a_desc.load([m * BM, k * BK])
        b = b_desc.load([n * BN, k * BK])
        total = tl.dot(a, b.T, total)
    rows, columns = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN)
    total *= tl.load(ScaleA + rows, mask=rows < M, other=0.0)[:, None]
    total *= tl.load(ScaleB + columns, mask=columns < N, other=0.0)[None, :]
    c_desc.store([m * BM, n * BN], total.to(tl.float16 if HALF else tl.bfloat16))


def scaled_gemm(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Launches:
    """Yield A @ B^T of 8-bit floats with scales of rows and columns."""
    a, b, scale_a, scale_b, _ = inputs
    (out,) = outs
    (M, K), N = a.shape, b.shape[0]
    for config in FP8:
        BM, BN, BK, warps, stages = config
        boxes = ((BM, BK), (BN, BK), (BM, BN))
        maps = (_descriptor(t, x) for t, x in zip((a, b, out), boxes, strict=True))
        arguments = (
            *maps, scale_a, scale_b, M, N, K, BM, BN, BK, GROUP, out.dtype == torch.float16
        )  # fmt: skip
        grid = (triton.cdiv(M, BM) * triton.cdiv(N, BN),)
        yield str(config), [Launch(_scaled, grid, arguments, warps, stages)]


@triton.jit
def _dequant(
    A, W, Scale, Zero, Out, M, N, K, SPAN, PER: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    n, m, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, columns = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN)
    deep, words, each = tl.arange(0, BK), tl.arange(0, BK // 8), tl.arange(0, 8) * 4
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(split * SPAN, tl.minimum(split * SPAN + SPAN, K), BK):
        a = tl.load(A + rows[:, None] * K + k + deep[None, :], mask=rows[:, None] < M, other=0.0)
        if ONCE:
            packed = tl.load(W + (k // 8 + words)[:, None] * N + columns[None, :])
            codes = (packed[:, None, :] >> each[None, :, None]) & 15
            codes = tl.reshape(codes, (BK, BN))
        else:
            packed = tl.load(W + ((k + deep) // 8)[:, None] * N + columns[None, :])
            codes = (packed >> (deep % 8 * 4)[:, None]) & 15
        scale = tl.load(Scale + k // PER * N + columns).to(tl.float32)
        zero = tl.load(Zero + k // PER * N + columns).to(tl.float32)
        b = (codes - 8).to(tl.float32) * scale[None, :] + zero[None, :]
        total = tl.dot(a, b.to(A.dtype.element_ty), total)
    at = (split * M + rows)[:, None] * N + columns[None, :]
    found = total.to(Out.dtype.element_ty)
    tl.store(Out + at, found, mask=rows[:, None] < M)


@triton.jit
def _add_parts(Parts, Out, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(SPLITS):
        total += tl.load(Parts + split * size + at, mask=at < size, other=0.0)
    tl.store(Out + at, total.to(Out.dtype.element_ty), mask=at < size)


def packed_along_k(codes: Any) -> Any:
    """Return codes[K, N] as words[K / 8, N]: element k at bit 4 * (k % 8)."""
    k, n = codes.shape
    shifts = torch.arange(8, device=codes.device, dtype=torch.int64)[None, :, None] * 4
    words = (codes.to(torch.int64).view(k // 8, 8, n) << shifts).sum(1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def dequant_gemm(
    problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]
) -> Launches:
    """Yield products with weights of 4 bits; group and tile along K divide each other."""
    from gpu_peers_cases import codes_of

    a, words, _, scale, zero = inputs
    (out,) = outs
    (M, K), N, group = a.shape, out.shape[1], int(problem["group"])
    weights = packed_along_k(codes_of(words, K, N))
    for config in DEQUANT_FEW if M <= 64 else DEQUANT:
        BM, BN, BK, splits, warps, stages, once = config
        span = triton.cdiv(K, splits * BK) * BK
        parts = torch.empty((splits, M, N), dtype=torch.float32, device=a.device)
        arguments = (
            a, weights, scale, zero, parts if splits > 1 else out, M, N, K, span, group,
            BM, BN, BK, once,
        )  # fmt: skip
        made = [Launch(_dequant, (N // BN, triton.cdiv(M, BM), splits), arguments, warps, stages)]
        if splits > 1:
            adding = (parts, out, M * N, splits, 512)
            made.append(Launch(_add_parts, (triton.cdiv(M * N, 512),), adding, 4))
        yield str(config), made


@triton.jit
def _grouped(
    A, B, C, Expert, First, Last, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    TILES: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    t, n = _place(TILES * BM, N, BM, BN, GROUP)
    expert, first, last = tl.load(Expert + t), tl.load(First + t), tl.load(Last + t)
    if first < last:
        rows, columns, deep = (
            first + tl.arange(0, BM), n * BN + tl.arange(0, BN), tl.arange(0, BK)
        )  # fmt: skip
        inside = rows[:, None] < last
        B += expert.to(tl.int64) * N * K
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            a = tl.load(A + rows[:, None] * K + k + deep[None, :], mask=inside, other=0.0)
            b = tl.load(B + columns[None, :] * K + k + deep[:, None])
            total = tl.dot(a, b, total)
        found = total.to(tl.float16 if HALF else tl.bfloat16)
        tl.store(C + rows[:, None] * N + columns[None, :], found, mask=inside)


def grouped_gemm(
    problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]
) -> Launches:
    """Yield products of groups of rows, B[e, n, k]; which rows a tile has is found beforehand."""
    a, b, offsets = inputs
    (out,) = outs
    E, N, K = b.shape
    for config in GROUPED:
        BM, BN, BK, warps, stages = config
        tiles = triton.cdiv(a.shape[0], BM) + E
        ends = torch.cumsum((offsets[1:] - offsets[:-1] + BM - 1) // BM, 0)
        number = torch.arange(tiles, device=a.device)
        expert = (number[:, None] >= ends[None, :]).sum(1)
        known = expert.clamp(max=E - 1)
        begins = torch.cat([torch.zeros_like(ends[:1]), ends])[known]
        first = offsets[:-1][known] + (number - begins) * BM
        last = torch.where(expert < E, offsets[1:][known], torch.zeros_like(first))
        tables = [x.to(torch.int32).contiguous() for x in (known, first, last)]
        arguments = (a, b, out, *tables, N, K, BM, BN, BK, tiles, GROUP, a.dtype == torch.float16)
        grid = (tiles * triton.cdiv(N, BN),)
        yield str(config), [Launch(_grouped, grid, arguments, warps, stages)]


# --- rows ----------------------------------------------------------------------------------------


@triton.jit
def _softmax(X, Y, N, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(X + row * N + at, mask=at < N, other=float("-inf")).to(tl.float32)
    powers = tl.exp(x - tl.max(x, 0))
    found = powers / tl.sum(powers, 0)
    tl.store(Y + row * N + at, found.to(Y.dtype.element_ty), mask=at < N)


@triton.jit
def _norm(X, W, B, Y, N, epsilon, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = at < N
    x = tl.load(X + row * N + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(W + at, mask=inside, other=0.0).to(tl.float32)
    if CENTRED:
        x = tl.where(inside, x - tl.sum(x, 0) / N, 0.0)
    found = x * tl.rsqrt(tl.sum(x * x, 0) / N + epsilon) * w
    if CENTRED:
        found += tl.load(B + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(Y + row * N + at, found.to(Y.dtype.element_ty), mask=inside)


def softmax(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Launches:
    """Yield softmax, a row per program."""
    (x,) = inputs
    M, N = x.shape
    for warps in ROW_WARPS:
        arguments = (x, outs[0], N, triton.next_power_of_2(N))
        yield f"{warps} warps", [Launch(_softmax, (M,), arguments, warps)]


def rms_norm(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Launches:
    """Yield RMS norm, a row per program."""
    x, w = inputs
    yield from _norms(x, w, w, outs[0], False)


def layer_norm(problem: Mapping[str, Any], inputs: Sequence[Any], outs: Sequence[Any]) -> Launches:
    """Yield layer norm, a row per program."""
    yield from _norms(*inputs, outs[0], True)


def _norms(x: Any, w: Any, b: Any, out: Any, is_centred: bool) -> Launches:
    M, N = x.shape
    for warps in ROW_WARPS:
        arguments = (x, w, b, out, N, 1e-5, is_centred, triton.next_power_of_2(N))
        yield f"{warps} warps", [Launch(_norm, (M,), arguments, warps)]
