"""Reducers on GPUs: what points of a nest add is folded in registers, and always in one order.

Each point updated shared memory atomically.
"""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, Schedule

SCHEDULES = (LATE, Schedule("random", 3))
M, N = 24, 40


@T.macro
def rows(x, r):
    for i, j in T.Parallel(M, N):
        r[i] += x[i, j]


@T.macro
def some(x, r):
    for i, j in T.Parallel(M, N):
        if x[i, j] > 0:
            r[i] += x[i, j]
        else:
            r[i] += -2 * x[i, j]


@T.macro
def repeated(x, r):
    for i, j in T.Parallel(M, N):
        for k in T.serial(3):
            r[i] += x[i, j] * k


@T.macro
def neighbours(x, r):
    for i, j in T.Parallel(M, N):
        r[(i + j) % M] += x[i, j]


@T.macro
def own(x, r):
    for i in T.Parallel(M):
        r[i] += x[i, 3]


@T.macro
def twice(x, r):
    rows(x, r)
    own(x, r)


def at_neighbours(x):
    i, j = np.indices(x.shape)
    return np.bincount(((i + j) % M).ravel(), x.ravel(), M)


SUMS = {
    rows: lambda x: x.sum(1), own: lambda x: x[:, 3], twice: lambda x: x.sum(1) + x[:, 3],
    some: lambda x: np.where(x > 0, x, -2 * x).sum(1), repeated: lambda x: 3 * x.sum(1),
    neighbours: at_neighbours,
}  # fmt: skip


def program(body, dtype):
    @T.prim_func
    def main(X: T.Tensor((2, M, N), dtype), Y: T.Tensor((M,), dtype)):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((M, N), dtype)
            r = T.alloc_reducer((M,), dtype, "sum", replication="all")
            T.clear(r)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(X[k, 0, 0], x)
                body(x, r)
            T.finalize_reducer(r)
            T.copy(r, Y)

    return main


@pytest.mark.few(3)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("body", SUMS)
def test_sums_of_points(body, dtype, target):
    x = np.random.default_rng(0).integers(-9, 10, (2, M, N)).astype(dtype)
    y = np.zeros(M, dtype)
    run_emulated(program(body, dtype), target, [x, y], SCHEDULES)
    np.testing.assert_array_equal(y, sum(SUMS[body](part.astype(np.float64)) for part in x))
    is_atomic = "atomic_add" in lowered(program(body, dtype), target)[2].text
    assert is_atomic == (body is neighbours)  # an element that is no point's own row


@pytest.mark.parametrize(("op", "dtype"), [("max", "float16"), ("min", "int32"), ("bitor", "int8")])
def test_other_operations_and_one_element(op, dtype):
    fold = {"max": np.maximum, "min": np.minimum, "bitor": np.bitwise_or}[op]

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((N,), dtype), Z: T.Tensor((1,), dtype)):
        with T.Kernel(1, threads=64):
            columns = T.alloc_reducer((N,), dtype, op=op)
            one = T.alloc_reducer(1, dtype, op=op)
            T.reducer_init(columns)
            T.reducer_init(one)
            for i, j in T.Parallel(M, N):
                T.reducer_update(columns[j], X[i, j])
                T.reducer_update(one[0], X[i, j])
            T.finalize_reducer(columns, Y)
            T.finalize_reducer(one, Z)

    x = np.random.default_rng(1).integers(-40, 40, (M, N)).astype(dtype)
    y, z = np.zeros(N, dtype), np.zeros(1, dtype)
    run_emulated(main, "sm_80", [x, y, z], SCHEDULES)
    np.testing.assert_array_equal(y, fold.reduce(x, 0))
    np.testing.assert_array_equal(z, fold.reduce(x, None))
