"""Pieces of rows that a block reads soon are fetched, and nothing else is."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore.compiler import lower
from tilecore.target import parse_target


def chain(M, N, rows, columns, steps=1):
    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        grid = (T.ceildiv(N, columns * steps), T.ceildiv(M, rows))
        with T.Kernel(*grid) as (bx, by):
            for k in T.serial(steps):
                for i, j in T.Parallel(rows, columns):
                    column = (bx * steps + k) * columns + j
                    Y[by * rows + i, column] = X[by * rows + i, column] * 2 + 1

    return main


def fetches(func):
    _, found = lower(func, parse_target("avx512"), {})
    return found.script().count('"tilecore_fetch')


@pytest.mark.parametrize(
    ("shape", "block", "count"),
    [
        ((1024, 2048), (8, 256), 1),  # pieces of 1 KiB
        ((1024, 2048), (8, 2048), 0),  # whole rows follow each other
        ((1024, 2048), (1, 256), 0),  # so do the pieces of one row
        ((1024, 8192), (8, 4096), 0),  # a stream of 16 KiB
        ((64, 512), (8, 256), 0),  # 128 KiB stay in a cache
    ],
)
def test_short_pieces_of_large_tensors(shape, block, count):
    assert fetches(chain(*shape, *block)) == count


@pytest.mark.few(1)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("M", "N"), [(400, 1000), (333, 1024)])
def test_results_are_what_they_were(M, N, steps, run_both):
    func = chain(M, N, 16, 64, steps)
    assert fetches(func) == 1
    x = np.random.default_rng(0).standard_normal((M, N), np.float32)
    run_both(func, [x], [np.full_like(x, np.nan)], [x * 2.0 + 1])


def test_sizes_known_when_the_kernel_runs(run_both):
    M, N = T.dynamic("M N")

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 8)) as (bx, by):
            for i, j in T.Parallel(8, 64):
                Y[by * 8 + i, bx * 64 + j] = X[by * 8 + i, bx * 64 + j] * 2 + 1

    assert fetches(main) == 1
    x = np.random.default_rng(0).standard_normal((77, 130), np.float32)
    run_both(main, [x], [np.full_like(x, np.nan)], [x * 2.0 + 1])


def test_a_reduction_that_reads_a_tensor_in_place(run_both):
    @T.prim_func
    def main(X: T.Tensor((400, 1000), "float32"), Y: T.Tensor((400,), "float32")):
        with T.Kernel(T.ceildiv(400, 16)) as b:
            x = T.alloc_fragment((16, 128), "float32")
            y = T.alloc_fragment((16,), "float32")
            T.clear(y)
            for k in T.serial(T.ceildiv(1000, 128)):
                T.copy(X[b * 16, k * 128], x)
                T.reduce_sum(x, y, dim=1, clear=False)
            T.copy(y, Y[b * 16])

    assert fetches(main) > 0
    x = np.random.default_rng(0).standard_normal((400, 1000), np.float32)
    want = x.astype(np.float64).sum(1)
    run_both(main, [x], [np.full(400, np.nan, np.float32)], [want], atol=1e-3)
