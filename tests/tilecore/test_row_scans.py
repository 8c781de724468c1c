"""Sums that run along rows, a vector of neighbours at a time."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import here, paths
from tilecore import runtime
from tilecore.compiler import compile, lower
from tilecore.target import AVX512

PATHS = paths("avx2", "avx512")


def program(rows, n, dtype, reverse=False, dim=1, in_place=True):
    @T.prim_func
    def main(X: T.Tensor((rows, n), dtype), Y: T.Tensor((rows, n), dtype)):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((rows, n), dtype)
            y = T.alloc_shared((rows, n), dtype)
            T.copy(X, x)
            if in_place:
                T.cumsum(x, dim=dim, reverse=reverse)
                T.copy(x, Y)
            else:
                T.cumsum(x, y, dim=dim, reverse=reverse)
                T.copy(y, Y)

    return main


def exact(x, reverse, dim):
    wide = x.astype(np.int64 if x.dtype.kind == "i" else np.float64)
    turned = np.flip(wide, dim) if reverse else wide
    sums = np.cumsum(turned, dim)
    return np.flip(sums, dim) if reverse else sums


@pytest.mark.few(3)
@pytest.mark.covering("n")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 7, 16, 31, 64, 133])
def test_sums_of_rows(n, reverse, path):
    rng = np.random.default_rng(1)
    for dtype in ("float32", "float64", "int32", "int64", "float16", "bfloat16"):
        kind = np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)
        x = (rng.standard_normal((3, n)) * 4).astype(kind)
        for in_place in (True, False):
            out = np.full_like(x, 9)
            func = program(3, n, dtype, reverse, in_place=in_place)
            runtime.load(compile(func, target=here(path)))(x, out)
            wide = out.astype(np.float64)
            tolerance = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-5)
            np.testing.assert_allclose(wide, exact(x, reverse, 1), rtol=tolerance, atol=1e-2)


@pytest.mark.parametrize("reverse", [False, True])
def test_sums_of_columns(reverse, run_both):
    x = np.random.default_rng(2).standard_normal((37, 40)).astype(np.float32)
    out = np.zeros_like(x)
    run_both(program(37, 40, "float32", reverse, 0), [x], [out], [exact(x, reverse, 0)], rtol=1e-4)


def test_integers_wrap_around(run_both):
    x = np.full((2, 64), 2**30, np.int32)
    run_both(program(2, 64, "int32"), [x], [np.zeros_like(x)])


def test_a_part_of_a_tile(run_both):
    @T.prim_func
    def main(X: T.Tensor((4, 64), "float32"), Y: T.Tensor((4, 64), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((4, 64), "float32")
            T.copy(X, x)
            T.cumsum(x[1:3, 5:45], dim=1)
            T.copy(x, Y)

    x = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
    run_both(main, [x], [np.zeros_like(x)], rtol=1e-5)


def test_which_scans_run_in_vectors():
    for func, is_vector in (
        (program(3, 64, "float32"), True),
        (program(3, 64, "float32", reverse=True), True),
        (program(3, 15, "float32"), False),
        (program(64, 64, "float32", dim=0), False),
    ):
        assert ("tilecore_scan_" in lower(func, AVX512, {})[1].script()) == is_vector
