"""Convolution of images on GPUs: a step of the product is one place of the window.

What a block multiplies are patches of pixels, whose channels at a place of the window are a box of
the image: rows of it lie in memory as they are, and what is outside of the image is 0. The tensor
memory accelerator brings such boxes, other GPUs copy their rows asynchronously. Pixels of a stride,
channels that are no rows of 16 bytes, and images that patches leave empty are gathered as
``T.im2col`` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tilecore.language as T
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import NUM_STAGES, THREADS, Knob, Problem, extent

UNIT = 64  # pixels of a patch, which a tile has one or several of
LEAST_CHANNELS = 16
LEAST_FILLED = 0.9  # of the pixels of patches: rows of gathered pixels leave none empty
CHUNK_BYTES = 16
Patch = tuple[int, int, int]  # images, rows and columns of one


def patch_of(batch: int, height: int, width: int) -> Patch:
    """Return the patch of ``UNIT`` pixels of which outputs leave least empty; square ones first."""
    sizes = [1 << n for n in range(UNIT.bit_length())]
    shapes = [
        (UNIT // (h * w), h, w) for h in sizes for w in sizes if h * w <= UNIT and max(h, w) <= 16
    ]

    def empty(shape: Patch) -> tuple[float, int]:
        spent = 1 / _filled((batch, height, width), shape)
        return spent, (shape[1] + 2) * (shape[2] + 2) * shape[0]  # what a window of 3 reads

    return min(shapes, key=empty)


def _filled(sizes: tuple[int, int, int], patch: Patch) -> float:
    """Return the share of the pixels of patches that are pixels of outputs."""
    return math.prod(n / (-(-n // p) * p) for n, p in zip(sizes, patch, strict=True))


def grows_by_images(batch: int, height: int, patch: Patch) -> bool:
    """Return whether a tile of two patches takes them of other images, not of rows below."""
    images, rows, _ = patch

    def spent(size: int, step: int) -> float:
        return -(-size // step) * step / size

    of_images = spent(batch, 2 * images) * spent(height, rows)
    return of_images < spent(batch, images) * spent(height, 2 * rows)


def is_boxed(problem: Problem) -> bool:
    """Return whether what a window sees of patches are boxes of the image."""
    if not _has_rows(problem):
        return False
    sizes = _outputs(problem)
    is_known = not any(isinstance(n, Expr) for n in sizes)
    return is_known and _filled(sizes, patch_of(*sizes)) >= LEAST_FILLED


def numbers(problem: Problem) -> tuple[str, ...]:
    """Return the dimensions that a trace needs as numbers: those of images choose the patch."""
    always = ("channels", "kernel", "stride", "dilation", "padding")
    return (*always, "batch", "height", "width") if _has_rows(problem) else always


def _has_rows(problem: Problem) -> bool:
    """Return whether pixels follow each other as rows of whole chunks."""
    channels = int(problem["channels"])
    is_row = channels * DType(problem["dtype"]).itemsize % CHUNK_BYTES == 0
    return int(problem["stride"]) == 1 and is_row and channels >= LEAST_CHANNELS


def _outputs(problem: Problem) -> tuple[Any, Any, Any]:
    """Return the images, rows and columns of the output of a stride of 1."""
    wide = 2 * int(problem["padding"]) - int(problem["dilation"]) * (int(problem["kernel"]) - 1)
    return (
        extent(problem, "batch"),
        extent(problem, "height") + wide,
        extent(problem, "width") + wide,
    )


def of_patches(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    """Return the program of a problem whose patches are boxes."""
    N, H, W, C, F, K, D, P = (
        extent(problem, name)
        for name in (
            "batch", "height", "width", "channels", "filters", "kernel", "dilation", "padding",
        )
    )  # fmt: skip
    _, OH, OW = _outputs(problem)
    dtype, out_dtype = problem["dtype"], problem["out_dtype"]
    block_N, block_K, threads = knobs["block_N"], knobs["block_K"], knobs["threads"]
    images, height, width = patch_of(N, OH, OW)
    units = knobs["block_M"] // UNIT
    if grows_by_images(N, OH, (images, height, width)):
        images = images * units
    else:
        height = height * units
    down, across = T.ceildiv(OH, height), T.ceildiv(OW, width)
    tiles, steps = T.ceildiv(N, images) * down * across, T.ceildiv(C, block_K)

    @T.prim_func
    def conv2d(
        X: T.Tensor((N, H, W, C), dtype),
        Filter: T.Tensor((K * K * C, F), dtype),
        Y: T.Tensor((N * OH * OW, F), out_dtype),
    ) -> None:
        with T.Kernel(T.ceildiv(F, block_N), tiles, threads=threads) as (bx, by):
            patch = T.alloc_shared((images, height, width, block_K), dtype)
            filters = T.alloc_shared((1, block_K, block_N), dtype)
            y = T.alloc_fragment((units * UNIT, block_N), "float32")
            pixels = T.reshape(patch, (units * UNIT, block_K))
            windows = T.reshape(Filter, (K * K, C, F))
            T.clear(y)
            n = by // (down * across) * images
            h, w = by // across % down * height, by % across * width
            for step in T.Pipelined(K * K * steps, num_stages=knobs["num_stages"]):
                at, c = step // steps, step % steps * block_K
                T.copy(X[n, h + at // K * D - P, w + at % K * D - P, c], patch)
                T.copy(windows[at, c, bx * block_N], filters)
                T.gemm(pixels, filters[0, :, :], y)
            out = T.alloc_shared((images, height, width, block_N), out_dtype)
            T.copy(y, T.reshape(out, (units * UNIT, block_N)))
            T.copy(out, T.reshape(Y, (N, OH, OW, F))[n, h, w, bx * block_N])

    return conv2d


CONV2D_KNOBS = (
    Knob("block_M", 128, {"cuda": (64, 128, 256)}, doc="pixels per block, in patches of 64"),
    Knob("block_N", 128, {"cuda": (32, 64, 128, 256)}, doc="filters per block"),
    Knob("block_K", 32, {"cuda": (32, 64, 128)}, doc="channels of a step"),
    NUM_STAGES,
    THREADS,
)
