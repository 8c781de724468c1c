"""Quotients and remainders in vectors: multiplied where the dividend is known to be small."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilecore.language as T
from tests.tilecore.x86_paths import here, paths
from tilecore import runtime
from tilecore.compiler import compile, lower
from tilecore.interpreter import run
from tilecore.lowering.cpu.functions.multiplied import MOST, factor
from tilecore.target import AVX512

PATHS = paths("avx2", "avx512")


@given(st.integers(2, 1 << 20), st.integers(0, 1 << 30), st.data())
def test_the_factor_divides_all_that_are_as_small(divisor, most, data):
    found = factor(divisor, most)
    if found is None:
        return
    number, shift = found
    assert most * number < MOST
    ends = [n for q in (1, most // divisor) for n in (q * divisor - 1, q * divisor)]
    drawn = data.draw(st.lists(st.integers(0, most), max_size=20))
    for n in (*drawn, *(n for n in ends if 0 <= n <= most), most):
        assert n * number >> shift == n // divisor


def test_a_factor_for_what_kernels_divide():
    assert all(factor(d, 8192) is not None for d in range(2, 512))
    assert factor(3, 1 << 30) is None


def gathered(h, w, c, size, stride, depth, pixels):
    """Return a program that lays out the pixels of windows as rows of a matrix."""
    oh, ow = (h - 1) // stride + 1, (w - 1) // stride + 1

    @T.prim_func
    def main(X: T.Tensor((h, w, c), "float32"), Y: T.Tensor((oh * ow, depth), "float32")):
        with T.Kernel(T.ceildiv(oh * ow, pixels), threads=128) as b:
            for i, j in T.Parallel(pixels, depth):
                pixel = b * pixels + i
                y = pixel // ow * stride + j // (size * c) - size // 2
                x = pixel % ow * stride + j // c % size - size // 2
                is_inside = y >= 0 and x >= 0 and y < h and x < w and pixel < oh * ow
                Y[pixel, j] = T.if_then_else(is_inside, X[y, x, j % c], 0.0)

    return main


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("h", "w", "c", "size", "stride", "depth"),
    [(9, 11, 3, 3, 2, 32), (8, 8, 3, 7, 2, 147), (7, 5, 5, 3, 1, 48), (6, 7, 1, 5, 1, 25)],
)
def test_windows_of_few_channels(h, w, c, size, stride, depth, path):
    func = gathered(h, w, c, size, stride, depth, 16)
    x = np.random.default_rng(0).standard_normal((h, w, c), dtype=np.float32)
    pixels = ((h - 1) // stride + 1) * ((w - 1) // stride + 1)
    wanted, found = (np.full((pixels, depth), 7, np.float32) for _ in range(2))
    run(func, x, wanted)
    runtime.load(compile(func, target=here(path)))(x, found)
    np.testing.assert_array_equal(found, wanted)


def test_they_run_in_vectors():
    script = lower(gathered(112, 112, 3, 3, 2, 32, 64), AVX512, {})[1].script()
    assert "tilecore_gather_16xfloat32" in script


@pytest.mark.parametrize("path", PATHS)
def test_large_and_negative_dividends(path):
    """What the multiplication cannot divide is divided lane by lane."""

    @T.prim_func
    def main(X: T.Tensor((4096,), "float32"), Y: T.Tensor((4, 2, 4096), "float32")):
        with T.Kernel(4, threads=128) as b:
            for j in T.Parallel(4096):
                Y[b, 0, j] = X[(b * 300000000 + j * 16777) // 1000003 % 4096] * 2.0 + 1.0
                Y[b, 1, j] = X[(b * 7 + j - 5000) % 37] + X[(j - 5000) // 7 + 800] * 3.0

    x = np.random.default_rng(0).standard_normal(4096, dtype=np.float32)
    wanted, found = (np.zeros((4, 2, 4096), np.float32) for _ in range(2))
    run(main, x, wanted)
    runtime.load(compile(main, target=here(path)))(x, found)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
