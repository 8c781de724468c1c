"""Blocks side by side become rows where elements have nothing to do with each other."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore import runtime
from tilecore.compiler import compile
from tilecore.ir.dtype import DType
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import KernelLaunch
from tilecore.ir.visitor import walk
from tilecore.passes.pipeline import run_passes

BM, BN = 8, 32


def grids(func):
    """Return the grid of each launch after the passes."""
    found = [s for s in walk(run_passes(func).body) if isinstance(s, KernelLaunch)]
    return [tuple(int_value(e) for e in s.grid) for s in found]


def blocks(body, M=100, N=77, dtype="float32"):
    """Return a program of tiles whose ``body`` computes the tile z of blocks from x and y."""

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype), Z: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            x = T.alloc_shared((BM, BN), dtype)
            y = T.alloc_shared((BM, BN), dtype)
            z = T.alloc_fragment((BM, BN), dtype)
            T.copy(X[by * BM, bx * BN], x)
            T.copy(Y[by * BM, bx * BN], y)
            body(x, y, z, bx, by)
            T.copy(z, Z[by * BM, bx * BN])

    return main


@T.macro
def added(x, y, z, bx, by):
    for i, j in T.Parallel(BM, BN):
        z[i, j] = x[i, j] + y[i, j]


@T.macro
def in_steps(x, y, z, bx, by):
    for i, j in T.Parallel(BM, BN):
        x[i, j] = x[i, j] * 2
    for i, j in T.Parallel(BM, BN):
        z[i, j] = x[i, j] * x[i, j] + y[i, j]
    for i, j in T.Parallel(BM, BN):
        z[i, j] = z[i, j] - x[i, j]


@T.macro
def by_place(x, y, z, bx, by):
    for i, j in T.Parallel(BM, BN):
        row, column = by * BM + i, bx * BN + j
        z[i, j] = T.if_then_else(column % 3 < row % 5, x[i, j] * column, y[i, j])


@T.macro
def by_block(x, y, z, bx, by):
    for i, j in T.Parallel(BM, BN):
        z[i, j] = x[i, j] + y[i, j] * bx


@T.macro
def of_neighbours(x, y, z, bx, by):
    for i, j in T.Parallel(BM, BN):
        z[i, j] = x[i, T.max(j - 1, 0)] + y[i, j]


def neighbours(x, y):
    columns = np.arange(x.shape[1])
    return x[:, np.where(columns % BN, columns - 1, columns)] + y


def placed(x, y):
    rows, columns = np.ogrid[: x.shape[0], : x.shape[1]]
    return np.where(columns % 3 < rows % 5, x * columns, y)


BODIES = {  # the body, what it computes, whether blocks are joined
    "added": (added, lambda x, y: x + y, True),
    "in steps": (in_steps, lambda x, y: 4 * x * x + y - 2 * x, True),
    "by place": (by_place, placed, True),
    "by block": (by_block, lambda x, y: x + y * (np.arange(x.shape[1]) // BN), False),
    "of neighbours": (of_neighbours, neighbours, False),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(("M", "N"), [(100, 77), (64, 64), (96, 40)])
def test_float32(name, M, N, run_both):
    body, expected, is_joined = BODIES[name]
    func = blocks(body, M, N)
    assert grids(func) == ([(M,)] if is_joined else [(-(-N // BN), -(-M // BM))])
    x, y = (np.random.default_rng(s).standard_normal((M, N), np.float32) for s in (0, 1))
    want = expected(x.astype(np.float64), y.astype(np.float64))
    run_both(func, [x, y], [np.full_like(x, np.nan)], [want], rtol=1e-5, atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["added", "in steps"])
def test_tiles_that_round(name, dtype, run_both, artifacts):
    """Bit by bit what the same blocks give that are not joined, as there are too few rows."""
    body, expected, _ = BODIES[name]
    joined, apart = blocks(body, dtype=dtype), blocks(body, M=63, dtype=dtype)
    assert grids(joined) == [(100,)]
    assert grids(apart) == [(3, 8)]
    kind = DType(dtype).numpy
    x, y = (np.random.default_rng(s).standard_normal((100, 77)).astype(kind) for s in (0, 1))
    want = expected(x.astype(np.float64), y.astype(np.float64))
    (found,) = run_both(joined, [x, y], [np.zeros_like(x)], [want], rtol=0.04, atol=0.04)
    z = np.zeros((63, 77), kind)
    runtime.load(compile(apart, store=artifacts))(x[:63].copy(), y[:63].copy(), z)
    np.testing.assert_array_equal(found[:63].view(np.uint16), z.view(np.uint16))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float8_e4m3fn"])
def test_other_narrow_tiles_stay(dtype):
    assert grids(blocks(in_steps, dtype=dtype)) == [(3, 13)]
    assert grids(blocks(added, dtype=dtype)) == [(100,)]


def test_few_rows_stay_blocks():
    assert grids(blocks(added, M=63, N=77)) == [(3, 8)]
    assert grids(blocks(added, M=64, N=77)) == [(64,)]
    assert grids(blocks(added, M=100, N=32)) == [(1, 13)]  # a block is a row's width


def test_a_transposition_keeps_its_blocks(run_both):
    @T.prim_func
    def main(X: T.Tensor((100, 77), "float32"), Y: T.Tensor((77, 100), "float32")):
        with T.Kernel(T.ceildiv(77, BN), T.ceildiv(100, BM)) as (bx, by):
            for i, j in T.Parallel(BM, BN):
                Y[bx * BN + j, by * BM + i] = X[by * BM + i, bx * BN + j]

    assert grids(main) == [(3, 13)]
    x = np.random.default_rng(0).standard_normal((100, 77), np.float32)
    run_both(main, [x], [np.full((77, 100), np.nan, np.float32)], [x.T])


def test_vectors_batches_and_updates_in_place(run_both):
    """A bias along the columns, a scale along the rows, an axis of the grid that stays."""

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 90, 77), np.float32), rng.standard_normal(77, np.float32)
    s, p = rng.standard_normal((3, 90), np.float32), rng.permutation(90).astype(np.int32)
    want = x.astype(np.float64) * s[:, p][:, :, None] + w

    @T.prim_func
    def main(
        W: T.Tensor((77,), "float32"), S: T.Tensor((3, 90), "float32"),
        P: T.Tensor((90,), "int32"), X: T.Tensor((3, 90, 77), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(77, BN), T.ceildiv(90, BM), 3) as (bx, by, bz):
            for i, j in T.Parallel(BM, BN):
                x = X[bz, by * BM + i, bx * BN + j]
                column = bx * BN + j
                scale = S[bz, P[by * BM + i]]
                X[bz, by * BM + i, column] = x * scale + W[column]

    assert grids(main) == [(90, 3)]
    run_both(main, [w, s, p], [x], [want])


def test_what_lies_beyond_the_stored_tensor_is_left_out(run_both):
    """Blocks cover more columns than are stored, and fewer than are read."""

    @T.prim_func
    def main(X: T.Tensor((100, 200), "float32"), Y: T.Tensor((100, 77), "float32")):
        with T.Kernel(4, T.ceildiv(100, BM)) as (bx, by):
            for i, j in T.Parallel(BM, BN):
                Y[by * BM + i, bx * BN + j] = X[by * BM + i, bx * BN + j + 70]

    assert grids(main) == [(100,)]
    x = np.random.default_rng(0).standard_normal((100, 200), np.float32)
    run_both(main, [x], [np.full((100, 77), np.nan, np.float32)], [x[:, 70:147]])


def test_columns_without_a_block_stay_as_they_are(run_both):
    @T.prim_func
    def main(X: T.Tensor((100, 77), "float32"), Y: T.Tensor((100, 77), "float32")):
        with T.Kernel(2, T.ceildiv(100, BM)) as (bx, by):
            for i, j in T.Parallel(BM, BN):
                Y[by * BM + i, bx * BN + j] = X[by * BM + i, bx * BN + j] + 1

    assert grids(main) == [(100,)]
    x = np.random.default_rng(0).standard_normal((100, 77), np.float32)
    want = np.full((100, 77), 5.0)
    want[:, :64] = x[:, :64] + 1.0
    run_both(main, [x], [np.full_like(x, 5)], [want])


def test_a_tile_read_after_its_tensor_was_stored_anew(run_both):
    """The tile has what the tensor had: such blocks stay as they are."""

    @T.prim_func
    def main(X: T.Tensor((100, 77), "float32"), Y: T.Tensor((100, 77), "float32")):
        with T.Kernel(T.ceildiv(77, BN), T.ceildiv(100, BM)) as (bx, by):
            x = T.alloc_shared((BM, BN), "float32")
            T.copy(X[by * BM, bx * BN], x)
            for i, j in T.Parallel(BM, BN):
                X[by * BM + i, bx * BN + j] = x[i, j] + 1
            for i, j in T.Parallel(BM, BN):
                Y[by * BM + i, bx * BN + j] = x[i, j] * 2

    x = np.random.default_rng(0).standard_normal((100, 77), np.float32)
    run_both(main, [], [x, np.full_like(x, np.nan)], [x + 1.0, x * 2.0])
    assert grids(main) == [(3, 13)]


def test_places_that_a_tile_tells(run_both):
    @T.prim_func
    def main(
        X: T.Tensor((96, 77), "float32"), P: T.Tensor((96, 77), "int32"),
        Y: T.Tensor((96, 77), "float32"), Z: T.Tensor((96, 77), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(77, BN), T.ceildiv(96, BM)) as (bx, by):
            p = T.alloc_shared((BM, BN), "int32")
            T.copy(P[by * BM, bx * BN], p)
            for i, j in T.Parallel(BM, BN):
                row, column = by * BM + i, bx * BN + j
                Y[p[i, j], column] = X[row, column]
                Z[row, column] = X[p[i, j], column]

    assert grids(main) == [(96,)]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((96, 77), np.float32)
    p = rng.permuted(np.tile(np.arange(96, dtype=np.int32)[:, None], (1, 77)), axis=0)
    y = np.zeros_like(x)
    np.put_along_axis(y, p, x, 0)
    found = [np.full_like(x, np.nan) for _ in range(2)]
    run_both(main, [x, p], found, [y, np.take_along_axis(x, p, 0)])


def test_blocks_of_views_are_joined(run_both):
    @T.prim_func
    def main(X: T.Tensor((100, 77), "float32"), Y: T.Tensor((7700,), "float32")):
        with T.Kernel(T.ceildiv(77, BN), T.ceildiv(100, BM)) as (bx, by):
            z = T.view(Y, (100, 77))
            for i, j in T.Parallel(BM, BN):
                z[by * BM + i, bx * BN + j] = X[by * BM + i, bx * BN + j] * 2

    assert grids(main) == [(100,)]
    x = np.random.default_rng(0).standard_normal((100, 77), np.float32)
    run_both(main, [x], [np.full(7700, np.nan, np.float32)], [(x * 2.0).ravel()])
