"""Convolution of images by products of gathered patches: Y[n, oh, ow, f], channels last.

Each row of the product is a patch of the image (``T.im2col``), each column a filter: filters
[kh, kw, c, f] and images are passed as the matrices [kh * kw * c, f] and [n * oh * ow, f].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tilecore.language as T
from tilecore.errors import InvalidProblem
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import (
    THREADS,
    GpuVariant,
    KernelDefinition,
    Knob,
    Problem,
    ProblemField,
    extent,
)
from tilecore.kernels.gpu.conv2d import CONV2D_KNOBS, is_boxed, numbers, of_patches

FLOATS = ("float32", "float16", "bfloat16")
SIZES = (
    "batch", "height", "width", "channels", "filters", "kernel", "stride", "dilation", "padding",
)  # fmt: skip


def _sizes(problem: Problem) -> tuple[int, ...]:
    """Return the sizes in order, and the height and width of the output."""
    sizes = tuple(extent(problem, name) for name in SIZES)
    _, height, width, _, _, kernel, stride, dilation, padding = sizes
    reach = dilation * (kernel - 1) + 1
    out = ((size + 2 * padding - reach) // stride + 1 for size in (height, width))
    return (*sizes, *out)


def _check(problem: Problem) -> None:
    _, height, width, _, _, kernel, _, dilation, padding, *out = _sizes(problem)
    if min(out) < 1:
        raise InvalidProblem(
            field="kernel",
            expected=f"a reach of at most {min(height, width) + 2 * padding}",
            found=dilation * (kernel - 1) + 1,
        )


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    N, H, W, C, F, K, S, D, P, OH, OW = _sizes(problem)
    dtype, out_dtype = problem["dtype"], problem["out_dtype"]
    block_M, block_N, block_K = knobs["block_M"], knobs["block_N"], knobs["block_K"]
    threads, rows, depth = knobs["threads"], N * OH * OW, K * K * C
    num_stages = knobs.get("num_stages", 1)  # a knob of GPUs

    @T.prim_func
    def conv2d(
        X: T.Tensor((N, H, W, C), dtype),
        Filter: T.Tensor((depth, F), dtype),
        Y: T.Tensor((rows, F), out_dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(F, block_N), T.ceildiv(rows, block_M), threads=threads) as (bx, by):
            patches = T.alloc_shared((block_M, block_K), dtype)
            filters = T.alloc_shared((block_K, block_N), dtype)
            y = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(y)
            for step in T.Pipelined(T.ceildiv(depth, block_K), num_stages=num_stages):
                T.im2col(X, patches, by, step, K, S, D, P)
                T.copy(Filter[step * block_K, bx * block_N], filters)
                T.gemm(patches, filters, y)
            T.copy(y, Y[by * block_M, bx * block_N])

    return conv2d


def _on_gpu(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    return (of_patches if is_boxed(problem) else _program)(problem, knobs)


def _numbers(problem: Problem) -> tuple[str, ...]:
    return "channels", "kernel", "stride", "dilation", "padding"


def _inputs(problem: Problem, rng: np.random.Generator) -> Sequence[np.ndarray]:
    N, H, W, C, F, K, *_ = _sizes(problem)
    dtype, depth = DType(problem["dtype"]).numpy, K * K * C
    image = rng.standard_normal((N, H, W, C), dtype=np.float32)
    filters = rng.standard_normal((depth, F), dtype=np.float32) / np.sqrt(depth)
    return [image.astype(dtype), filters.astype(dtype)]


def _reference(problem: Problem, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    N, _, _, C, F, K, S, D, P, OH, OW = _sizes(problem)
    image, filters = (x.astype(np.float64) for x in inputs)
    padded = np.pad(image, ((0, 0), (P, P), (P, P), (0, 0)))
    weights = filters.reshape(K, K, C, F)
    total = np.zeros((N, OH, OW, F))
    for kh in range(K):
        for kw in range(K):
            rows, columns = (
                slice(k * D, k * D + (o - 1) * S + 1, S) for k, o in ((kh, OH), (kw, OW))
            )
            total += padded[:, rows, columns] @ weights[kh, kw]
    return [total.reshape(-1, F)]


def _rival(problem: Problem, inputs: Sequence[np.ndarray]) -> Callable[[], Any] | None:
    import torch

    if problem["out_dtype"] != problem["dtype"]:
        return None
    _, _, _, C, F, K, S, D, P, _, _ = _sizes(problem)
    dtype = getattr(torch, str(problem["dtype"]))
    image, filters = (torch.from_numpy(x.astype(np.float32)).to(dtype) for x in inputs)
    x = image.permute(0, 3, 1, 2)  # channels last in memory, as here
    w = filters.reshape(K, K, C, F).permute(3, 2, 0, 1)
    w = w.contiguous(memory_format=torch.channels_last)
    call = torch.nn.functional.conv2d  # torch has no out= for it
    return lambda: call(x, w, stride=S, padding=P, dilation=D).permute(0, 2, 3, 1).reshape(-1, F)


def _work_flop(problem: Problem) -> float:
    N, _, _, C, F, K, _, _, _, OH, OW = _sizes(problem)
    return 2.0 * N * OH * OW * F * K * K * C


def _traffic_bytes(problem: Problem) -> float:
    N, H, W, C, F, K, _, _, _, OH, OW = _sizes(problem)
    size, out = (DType(problem[f]).itemsize for f in ("dtype", "out_dtype"))
    return float((N * H * W * C + K * K * C * F) * size + N * OH * OW * F * out)


def _dimension(
    name: str, default: int | None = None, least: int = 1, doc: str = "",
    aliases: tuple[str, ...] = (),
) -> ProblemField:  # fmt: skip
    return ProblemField(name, "dimension", default, aliases=aliases, doc=doc, least=least)


CONV2D = KernelDefinition(
    name="conv2d",
    doc="Y[n * oh * ow, f] = X[n, h, w, c] convolved with Filter[kh * kw * c, f]",
    fields=(
        *(_dimension(name) for name in SIZES[:5]),
        # in files of workloads "kernel" is the name of the kernel
        _dimension("kernel", 3, doc="height and width of the window", aliases=("kernel_size",)),
        _dimension("stride", 1),
        _dimension("dilation", 1),
        _dimension("padding", 0, 0, "zeros around the image"),
        ProblemField("dtype", "dtype", "float32", FLOATS, ("in_dtype",)),
        ProblemField("out_dtype", "dtype", "float32", FLOATS, ("dtype_c",)),
        ProblemField("accum_dtype", "dtype", "float32", ("float32",), doc="of sums"),
    ),
    knobs=(
        Knob(
            "block_M",
            128,
            {"cpu": (32, 64, 112, 128, 256), "cuda": (64, 128, 256)},
            doc="pixels per block",
        ),
        Knob(
            "block_N",
            128,
            {"cpu": (32, 64, 128, 256), "cuda": (32, 64, 128, 256)},
            doc="filters per block",
        ),
        Knob(
            "block_K",
            64,
            {"cpu": (32, 64, 128, 192, 256, 384, 576, 1152), "cuda": (32, 64, 128)},
            doc="best a multiple or divisor of the channels",
        ),
        THREADS,
    ),
    program=_program,
    inputs=_inputs,
    reference=_reference,
    rival=_rival,
    work_flop=_work_flop,
    traffic_bytes=_traffic_bytes,
    reduction_length=lambda problem: int(problem["kernel"]) ** 2 * int(problem["channels"]),
    numbers=_numbers,
    gpu=GpuVariant(CONV2D_KNOBS, _on_gpu, numbers=numbers),
    check=_check,
)
