"""Tiles of less than 128 bytes, which lie side by side in shared memory where no box may begin."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated

RNG = np.random.default_rng(20261129)


def rows_of(width, rows, how):
    """The first row of each block of two goes to Y, the second one twice to Z, by small tiles."""

    @T.prim_func
    def main(
        X: T.Tensor((rows, width), "float32"), Y: T.Tensor((rows, width), "float32"),
        Z: T.Tensor((rows, width), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(rows, 2), threads=64) as bx:
            first, second, third = (T.alloc_shared((width,), "float32") for _ in range(3))
            if how == "loads":
                done = T.alloc_barrier(128)
                T.tma_copy(X[2 * bx, 0:width], first, barrier=done)
                T.barrier_arrive(done)
                T.copy(X[2 * bx + 1, 0:width], second)
                T.barrier_arrive(done)
                T.barrier_wait(done, 0)
            else:
                T.copy(X[2 * bx, 0:width], first)
                T.copy(X[2 * bx + 1, 0:width], second)
            for i in T.Parallel(width):
                third[i] = second[i] * 2
            if how == "updates":
                T.atomic_add(Y[2 * bx, 0:width], first)
                T.atomic_add(Z[2 * bx, 0:width], third)
            else:
                T.copy(first, Y[2 * bx, 0:width])
                T.copy(third, Z[2 * bx, 0:width])

    return main


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("how", ["stores", "updates", "loads"])
@pytest.mark.parametrize(("width", "rows"), [(4, 5), (8, 6), (28, 3), (32, 4)])
def test_rows_of_small_tiles(width, rows, how, target):
    x = RNG.standard_normal((rows, width)).astype(np.float32)
    y, z = np.zeros((2, rows, width), np.float32)
    run_emulated(rows_of(width, rows, how), target, [x, y, z])
    want = np.zeros((2, rows, width))
    want[0, ::2] = x[::2]
    want[1, : rows // 2 * 2 : 2] = 2 * x[1::2].astype(np.float64)
    np.testing.assert_array_equal([y, z], want)
