"""Names bound in the body of a parallel nest: in vectors, by the meaning of scalar code."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore.compiler import lower
from tilecore.ir.dtype import DType
from tilecore.target import parse_target


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [5, 64, 77])
def test_values_read_before_a_store_stay(run_both, n):
    @T.prim_func
    def main(A: T.Tensor((3, n), "float32"), B: T.Tensor((3, n), "float32")):
        with T.Kernel(3) as b:
            for j in T.Parallel(n):
                old = B[b, j]
                new = A[b, j] + old
                B[b, j] = new * new
                A[b, j] = old - B[b, j]

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((3, n), np.float32) for _ in range(2))
    total = (a + b).astype(np.float64) ** 2
    run_both(main, [], [a, b], [b - total, total])


def test_indices_conditions_and_lookups(run_both):
    @T.prim_func
    def main(
        A: T.Tensor((40, 50), "float32"), P: T.Tensor((40,), "int32"),
        M: T.Tensor((40, 50), "int8"), C: T.Tensor((40, 50), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(50, 32), T.ceildiv(40, 16)) as (bx, by):
            for i, j in T.Parallel(16, 32):
                row, column = by * 16 + i, bx * 32 + j
                source = P[row]
                hidden = T.Or(column > row, row % 7 == 3)
                masked = M[row, column] == 0
                x = A[source, column]
                C[row, column] = T.if_then_else(T.Or(hidden, masked), 0.0, x * 2 + 1)

    rng = np.random.default_rng(1)
    a = rng.standard_normal((40, 50), np.float32)
    p = rng.permutation(40).astype(np.int32)
    m = rng.integers(0, 3, (40, 50)).astype(np.int8)
    row, column = np.arange(40)[:, None], np.arange(50)[None]
    hidden = (column > row) | (row % 7 == 3) | (m == 0)
    wanted = np.where(hidden, 0, a[p] * 2 + 1)
    run_both(main, [a, p, m], [np.full((40, 50), np.nan, np.float32)], [wanted])


def test_an_index_read_from_memory_in_every_lane(run_both):
    @T.prim_func
    def main(
        A: T.Tensor((64,), "float32"), P: T.Tensor((64,), "int32"), C: T.Tensor((64,), "float32")
    ):
        with T.Kernel(1):
            for j in T.Parallel(64):
                source = P[j]
                C[j] = A[source] + A[j]

    rng = np.random.default_rng(2)
    a, p = rng.standard_normal(64, np.float32), rng.permutation(64).astype(np.int32)
    run_both(main, [a, p], [np.full(64, np.nan, np.float32)], [a[p] + a])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_names_bound_again_and_again(run_both, dtype):
    @T.prim_func
    def main(A: T.Tensor((48,), dtype), C: T.Tensor((48,), "float32")):
        with T.Kernel(1):
            for j in T.Parallel(48):
                x = T.cast(A[j], "float32")
                x = (x + x) * 0.5
                x = (x + x) * 0.5
                x = (x + x) * 0.5
                C[j] = x

    a = np.random.default_rng(3).standard_normal(48).astype(DType(dtype).numpy)
    run_both(main, [a], [np.full(48, np.nan, np.float32)], [a.astype(np.float64)])


def test_such_a_body_runs_in_vectors():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1):
            for j in T.Parallel(64):
                at = j + 0
                x = A[at]
                C[at] = x * x

    _, tir = lower(main, parse_target("avx512"), {})
    assert "float32x16" in str(tir)
