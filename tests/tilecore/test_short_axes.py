"""Nests whose last axis is shorter than a register: once they ran element by element."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import here, paths
from tilecore import runtime
from tilecore.compiler import compile, lower
from tilecore.interpreter import run
from tilecore.target import AVX512

ROWS = 6


def program(n, dtype):
    """Return a program with a function, a choice, a turned row, a sum and a transposed copy."""

    @T.prim_func
    def main(
        X: T.Tensor((ROWS, n), dtype), Y: T.Tensor((ROWS, n), dtype),
        S: T.Tensor((ROWS,), "float32"), Z: T.Tensor((n, ROWS), dtype),
    ):  # fmt: skip
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((ROWS, n), dtype)
            f = T.alloc_fragment((ROWS, n), "float32")
            s = T.alloc_fragment((ROWS,), "float32")
            T.copy(X, x)
            for i, j in T.Parallel(ROWS, n):
                turned = T.if_then_else(x[i, j] > T.cast(0, dtype), x[i, n - 1 - j], x[i, j // 2])
                f[i, j] = T.exp(T.cast(x[i, j], "float32") * 0.25) + T.cast(turned, "float32")
            T.reduce_sum(f, s, dim=1)
            T.copy(s, S)
            for i, j in T.Parallel(ROWS, n):
                if j < n - 1:
                    Y[i, j] = T.cast(f[i, j], dtype)
            for i, j in T.Parallel(n, ROWS):
                Z[i, j] = x[j, i]

    return main


@pytest.mark.few(1)
@pytest.mark.covering("n dtype", "dtype path")
@pytest.mark.parametrize("path", paths("avx2", "avx512"))
@pytest.mark.parametrize("n", [1, 3, 4, 5, 7, 8, 11, 12, 15])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "int32"])
def test_rows_shorter_than_a_register(n, dtype, path):
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    x = np.random.default_rng(0).integers(-4, 5, (ROWS, n)).astype(kind)
    outputs = [np.zeros_like(x), np.zeros(ROWS, np.float32), np.zeros((n, ROWS), kind)]
    found = [np.copy(o) for o in outputs]
    func = program(n, dtype)
    run(func, x, *outputs)
    runtime.load(compile(func, target=here(path)))(x, *found)
    atol = 1 if kind.kind == "i" else 1e-4  # values are cut off
    for got, want in zip(found, outputs, strict=True):
        rtol = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-5)
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=rtol, atol=atol)


@pytest.mark.parametrize(("n", "lanes"), [(4, 4), (7, 4), (8, 8), (12, 8)])
def test_they_run_in_vectors_of_fewer_lanes(n, lanes):
    assert f"tilecore_exp_float32_x{lanes}" in lower(program(n, "float32"), AVX512, {})[1].script()
