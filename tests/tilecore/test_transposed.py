"""Moves across: read along one axis, stored along another one, in blocks where they fit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tilecore.compiler import lower
from tilecore.target import parse_cpu_target

TYPES = {
    "float64": np.float64, "float32": np.float32, "float16": np.float16, "int8": np.int8,
    "bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
}  # fmt: skip


def transposed(rows: int, columns: int, dtype: str, how: str, block: int = 32):
    """Return a transposition by tiles: by T.transpose, or by a nest of either order."""

    @T.prim_func
    def main(A: T.Tensor((rows, columns), dtype), B: T.Tensor((columns, rows), dtype)):
        with T.Kernel(T.ceildiv(columns, block), T.ceildiv(rows, block)) as (bx, by):
            S = T.alloc_shared((block, block), dtype)
            R = T.alloc_shared((block, block), dtype)
            T.copy(A[by * block, bx * block], S)
            if how == "tiles":
                T.transpose(S, R)
                T.copy(R, B[bx * block, by * block])
            elif how == "stored in rows":
                for j, i in T.Parallel(block, block):
                    B[bx * block + j, by * block + i] = S[i, j]
            else:
                for i, j in T.Parallel(block, block):
                    B[bx * block + j, by * block + i] = S[i, j]

    return main


def shuffles(func, target: str = "avx2") -> int:
    """Return how many shuffles the program has."""
    _, module = lower(func, parse_cpu_target(target), {})
    return str(module).count("T.Shuffle")


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["tiles", "stored in rows", "read in rows"])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_element_comes_across(dtype, how, run_both) -> None:
    for shape in ((64, 96), (40, 72), (33, 50), (7, 3)):
        a = np.random.default_rng(0).integers(-8, 9, shape).astype(TYPES[dtype])
        out = np.zeros(shape[::-1], TYPES[dtype])
        run_both(transposed(*shape, dtype, how), [a], [out], [a.T.astype(np.float64)])


@pytest.mark.parametrize(("dtype", "stages"), [("float32", 2), ("float16", 3), ("int8", 4)])
def test_blocks_are_as_wide_as_a_register_of_16_bytes(dtype, stages) -> None:
    size = 1 << stages
    lanes = max(size, 8)
    expected = lanes // size * stages * size + (size if lanes > size else 0)
    for how in ("tiles", "stored in rows"):
        assert shuffles(transposed(64, 64, dtype, how)) == expected


def test_what_is_computed_or_leaves_a_tensor_goes_element_by_element(run_both) -> None:
    @T.prim_func
    def doubled(A: T.Tensor((32, 32), "float32"), B: T.Tensor((32, 32), "float32")):
        with T.Kernel(1):
            for j, i in T.Parallel(32, 32):
                B[j, i] = A[i, j] * 2

    @T.prim_func
    def shifted(A: T.Tensor((32, 32), "float32"), B: T.Tensor((32, 32), "float32")):
        with T.Kernel(1):
            for j, i in T.Parallel(32, 32):
                B[j, i] = A[i + 1, j]

    a = np.random.default_rng(1).standard_normal((32, 32), dtype=np.float32)
    below = np.zeros((32, 32))
    below[:, :-1] = a[1:].T
    assert shuffles(doubled) == 0
    assert shuffles(shifted) > 0  # where nothing leaves it
    for func, expected in ((doubled, 2.0 * a.T), (shifted, below)):
        run_both(func, [a], [np.zeros_like(a)], [expected])


def moved(rows: int, columns: int, dtype: str, axes: str):
    """Return a transposition without tiles."""

    @T.prim_func
    def main(A: T.Tensor((rows, columns), dtype), B: T.Tensor((columns, rows), dtype)):
        with T.Kernel(T.ceildiv(columns, 32), T.ceildiv(rows, 32)) as (bx, by):
            for p, q in T.Parallel(32, 32):
                i, j = (p, q) if axes == "ij" else (q, p)
                B[bx * 32 + j, by * 32 + i] = A[by * 32 + i, bx * 32 + j]

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axes", ["ij", "ji"])
def test_tensors_are_moved_across_in_place_of_tiles(dtype, axes, run_both) -> None:
    for shape in ((64, 96), (40, 72), (33, 50), (7, 3)):
        assert shuffles(moved(*shape, dtype, axes)) > 0 or max(shape) < 8
        a = np.random.default_rng(3).integers(-8, 9, shape).astype(TYPES[dtype])
        run_both(
            moved(*shape, dtype, axes),
            [a],
            [np.zeros(shape[::-1], a.dtype)],
            [a.T.astype(np.float64)],
        )


def test_axes_outside_of_a_block(run_both) -> None:
    @T.prim_func
    def main(A: T.Tensor((3, 16, 5, 24), "float32"), B: T.Tensor((3, 24, 5, 16), "float32")):
        with T.Kernel(3) as b:
            for j, k, i in T.Parallel(24, 5, 16):
                B[b, j, k, i] = A[b, i, k, j]

    assert shuffles(main) > 0
    a = np.random.default_rng(2).standard_normal((3, 16, 5, 24), dtype=np.float32)
    out = np.zeros((3, 24, 5, 16), np.float32)
    run_both(main, [a], [out], [a.transpose(0, 3, 2, 1).astype(np.float64)])
