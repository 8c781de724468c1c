"""Vectors whose lanes lie anywhere: gathered, scattered, or told by their first lane."""

import ctypes
import mmap

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import here, paths
from tilecore import runtime
from tilecore.compiler import compile, lower
from tilecore.interpreter import run
from tilecore.target import AVX512

PATHS = paths("avx2", "avx512")
N = 83


def check(func, inputs, outputs, path="avx512", **tolerance):
    wanted, found = ([np.copy(o) for o in outputs] for _ in range(2))
    run(func, *inputs, *wanted)
    runtime.load(compile(func, target=here(path)))(*inputs, *found)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, **{"rtol": 1e-5, "atol": 1e-5, **tolerance})


def has(func, text):
    return text in lower(func, AVX512, {})[1].script()


# --- gathered -------------------------------------------------------------------------------------


def read_anywhere(dtype, scope):
    """Return a program that computes with elements that a tensor names, some of them outside."""

    @T.prim_func
    def main(X: T.Tensor((N,), dtype), P: T.Tensor((N,), "int32"), Y: T.Tensor((N,), dtype)):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((N,), dtype)
            T.copy(X, x)
            for i in T.Parallel(N):
                p = P[i]
                if scope == "global":
                    v = X[p]
                else:
                    v = T.if_then_else(p >= 0 and p < N, x[p], T.cast(7, dtype))
                Y[i] = ((v * v + v) * v + T.cast(3, dtype)) * v + v * v - v

    return main


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scope", ["global", "shared"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16"])
def test_elements_outside_are_not_read(dtype, scope, path):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(N) * 2).astype(dtype)
    p = rng.integers(-3, N + 3, N).astype(np.int32)
    p[::7] = 2**31 - 1 - np.arange(len(p[::7]))  # far beyond any memory
    p[3::7] = -(2**31) + np.arange(len(p[3::7]))
    func = read_anywhere(dtype, scope)
    check(func, [x, p], [np.zeros(N, dtype)], path, rtol=2e-2 if dtype == "float16" else 1e-5)


def upsampled(h, w, to_h, to_w):
    @T.prim_func
    def main(X: T.Tensor((h, w), "float32"), Y: T.Tensor((to_h, to_w), "float32")):
        with T.Kernel(1, threads=128):
            for i, j in T.Parallel(to_h, to_w):
                y = T.max((T.cast(i, "float32") + 0.5) * (h / to_h) - 0.5, 0.0)
                x = T.max((T.cast(j, "float32") + 0.5) * (w / to_w) - 0.5, 0.0)
                top = T.cast(y, "int32")
                left = T.cast(x, "int32")
                down = y - T.cast(top, "float32")
                right = x - T.cast(left, "float32")
                bottom = T.min(top + 1, h - 1)
                beside = T.min(left + 1, w - 1)
                Y[i, j] = (1.0 - down) * (
                    X[top, left] * (1.0 - right) + X[top, beside] * right
                ) + down * (X[bottom, left] * (1.0 - right) + X[bottom, beside] * right)

    return main


@pytest.mark.parametrize("path", PATHS)
def test_planes_between_pixels(path):
    for size in ((5, 7, 10, 35), (9, 20, 13, 33)):
        x = np.random.default_rng(2).standard_normal(size[:2]).astype(np.float32)
        check(upsampled(*size), [x], [np.zeros(size[2:], np.float32)], path, rtol=1e-4)
    assert has(upsampled(5, 7, 10, 35), "tilecore_gather")


def test_what_is_only_moved_is_not_gathered():
    @T.prim_func
    def main(
        X: T.Tensor((N,), "float32"), P: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "float32")
    ):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                Y[i] = X[P[i]] + 1.0

    assert not has(main, "tilecore_gather")


# --- scattered ------------------------------------------------------------------------------------


def fourier(n):
    steps = n.bit_length() - 1

    @T.prim_func
    def main(X: T.Tensor((n, 2), "float32"), Y: T.Tensor((n, 2), "float32")):
        with T.Kernel(1, threads=128):
            re = T.alloc_shared((2, n), "float32")
            im = T.alloc_shared((2, n), "float32")
            for i in T.Parallel(n):
                re[0, i] = X[i, 0]
                im[0, i] = X[i, 1]
            for s in T.serial(steps):
                for i in T.Parallel(n // 2):
                    half = 1 << s
                    angle = T.cast(i % half, "float32") * (-np.pi) / T.cast(half, "float32")
                    wr, wi = T.cos(angle), T.sin(angle)
                    br = re[s % 2, i + n // 2] * wr - im[s % 2, i + n // 2] * wi
                    bi = re[s % 2, i + n // 2] * wi + im[s % 2, i + n // 2] * wr
                    at = i // half * half * 2 + i % half
                    re[1 - s % 2, at] = re[s % 2, i] + br
                    im[1 - s % 2, at] = im[s % 2, i] + bi
                    re[1 - s % 2, at + half] = re[s % 2, i] - br
                    im[1 - s % 2, at + half] = im[s % 2, i] - bi
            for i in T.Parallel(n):
                Y[i, 0] = re[steps % 2, i]
                Y[i, 1] = im[steps % 2, i]

    return main


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [8, 32, 256])
def test_fourier_transforms(n, path):
    x = np.random.default_rng(3).standard_normal((n, 2)).astype(np.float32)
    out = np.zeros_like(x)
    runtime.load(compile(fourier(n), target=here(path)))(x, out)
    exact = np.fft.fft(x[:, 0].astype(np.float64) + 1j * x[:, 1])
    np.testing.assert_allclose(out[:, 0] + 1j * out[:, 1], exact, rtol=1e-4, atol=1e-4)


def test_angles_that_stores_share_are_computed_once():
    script = lower(fourier(256), AVX512, {})[1].script()
    assert script.count("tilecore_cos_float32_x16") == 1
    assert script.count("tilecore_sin_float32_x16") == 1
    assert "//" not in script.split("for ")[2]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_stores_anywhere(dtype, path):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), P: T.Tensor((N,), "int32"), Y: T.Tensor((N,), dtype)):
        with T.Kernel(1, threads=128):
            y = T.alloc_shared((N,), dtype)
            T.clear(y)
            for i in T.Parallel(N):
                y[P[i]] = T.cast(T.exp(X[i]) * 4.0, dtype)
            T.copy(y, Y)

    rng = np.random.default_rng(4)
    x, p = rng.standard_normal(N).astype(np.float32), rng.permutation(N).astype(np.int32)
    tolerance = {"rtol": 2e-3, "atol": 1} if dtype == "int32" else {"rtol": 2e-3}
    check(main, [x, p], [np.zeros(N, dtype)], path, **tolerance)


def added_up(form):
    """Return a program in which iterations add to elements that others add to as well."""

    @T.prim_func
    def main(
        X: T.Tensor((N,), "float32"), P: T.Tensor((N,), "int32"), Y: T.Tensor((8,), "float32")
    ):
        with T.Kernel(1, threads=128):
            y = T.alloc_shared((8,), "float32")
            total = T.alloc_reducer((1,), "float32", op="sum")
            T.clear(y)
            T.clear(total)
            for i in T.Parallel(N):
                if form == "reducer":
                    total[0] += T.exp(X[i])
                elif form == "named":
                    p = P[i]
                    y[p] = y[p] + T.exp(X[i])
                else:
                    y[P[i]] += T.exp(X[i])
            T.finalize_reducer(total)
            for i in T.Parallel(8):
                Y[i] = y[i] + total[0]

    return main


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", ["reducer", "element", "named"])
def test_lanes_that_add_to_one_element(form, path):
    """TileLang's online softmax by reducers added up the last lane of each vector alone."""
    rng = np.random.default_rng(8)
    x, p = rng.standard_normal(N).astype(np.float32), rng.integers(0, 8, N).astype(np.int32)
    check(added_up(form), [x, p], [np.zeros(8, np.float32)], path)


def turned_pairs(rows, n, block):
    """Return a program that turns neighbours by an angle, in place: rotary embeddings."""

    @T.prim_func
    def main(X: T.Tensor((rows, n), "float32")):
        with T.Kernel(T.ceildiv(n // 2, block), T.ceildiv(rows, 4), threads=128) as (bx, by):
            for r, i in T.Parallel(4, block):
                at = (bx * block + i) * 2
                angle = T.cast(by * 4 + r, "float32") * T.exp(-0.1 * at)
                a = X[by * 4 + r, at]
                b = X[by * 4 + r, at + 1]
                X[by * 4 + r, at] = a * T.cos(angle) - b * T.sin(angle)
                X[by * 4 + r, at + 1] = a * T.sin(angle) + b * T.cos(angle)

    return main


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("sizes", ["static", "dynamic rows", "dynamic"])
@pytest.mark.parametrize(("n", "block"), [(64, 32), (82, 32), (70, 35)])
def test_pairs_that_are_turned_in_place(n, block, sizes, path):
    """Once such stores ran lane by lane, functions included, since `2 * i` might leave the row."""
    rows = 6 if sizes == "static" else T.dynamic("rows")
    func = turned_pairs(rows, T.dynamic("n") if sizes == "dynamic" else n, block)
    check(func, [], [np.random.default_rng(6).standard_normal((6, n)).astype(np.float32)], path)
    assert has(func, "tilecore_cos_float32_x16")


# --- the first lane -------------------------------------------------------------------------------


def windows(c, size, depth, block):
    """Return the rows of a convolution's matrix, channels last."""
    pixels = size * size

    @T.prim_func
    def main(X: T.Tensor((size, size, c), "float32"), Y: T.Tensor((pixels, depth), "float32")):
        with T.Kernel(T.ceildiv(depth, block), threads=128) as bx:
            a = T.alloc_shared((pixels, block), "float32")
            for i, j in T.Parallel(pixels, block):
                k = j if block >= depth else bx * block + j
                y = i // size + k // (3 * c) - 1
                x = i % size + k // c % 3 - 1
                is_inside = y >= 0 and x >= 0 and y < size and x < size
                a[i, j] = T.if_then_else(is_inside, X[y, x, k % c], 0.0)
            T.copy(a, Y[0, bx * block])

    return main


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("c", [3, 16, 48, 64])
def test_rows_of_convolutions(c, path):
    x = np.random.default_rng(5).standard_normal((5, 5, c)).astype(np.float32)
    for block in (32, 9 * c, 9 * c + 5):
        func = windows(c, 5, 9 * c, block)
        check(func, [x], [np.zeros((25, 9 * c), np.float32)], path, rtol=0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [40, 75, 100])
def test_lanes_beyond_the_last_vector(n, path):
    """Each vector lies within 48 elements; the last ones make no whole vector."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=64):
            for j in T.Parallel(n):
                Y[j] = X[j] * T.cast(j // 48, "float32") + T.cast(j % 48, "float32")

    x = np.random.default_rng(6).standard_normal(n).astype(np.float32)
    check(main, [x], [np.zeros(n, np.float32)], path)
    assert has(main, "x16")


@pytest.mark.parametrize(("c", "runs"), [(3, False), (16, True), (48, True), (64, True)])
def test_vectors_within_a_pixel_are_loaded_as_such(c, runs):
    assert has(windows(c, 5, 9 * c, 32), "T.Select(T.Broadcast(") == runs


# --- near each other ------------------------------------------------------------------------------


def resampled(scale, n, size, dtype="float32", back=False):
    """Return a program that reads where floats say, some of it outside of the tensor."""

    @T.prim_func
    def main(X: T.Tensor((n,), dtype), Y: T.Tensor((size,), dtype)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(size):
                x = T.cast(i, "float32") * scale - 1.5
                left = T.cast(x, "int32")
                at = n - 1 - left if back else left
                a, b = X[at], X[at + 1]
                Y[i] = ((a * a + b) * T.cast(3, dtype) + b * a) * T.cast(2, dtype) - a - b * b

    return main


@pytest.mark.covering("scale back")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32"])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 1.9, 2.1, 40.0])
def test_lanes_near_each_other_and_not(scale, back, dtype, path):
    rng = np.random.default_rng(2)
    x = rng.integers(0, 9, 300).astype(dtype)
    func = resampled(scale, 300, 331, dtype, back)
    check(func, [x], [np.zeros(331, dtype)], path)
    assert has(func, "_near")


@pytest.mark.parametrize("path", PATHS)
def test_what_is_not_in_memory_is_not_touched(path):
    """The last elements of memory that ends there."""
    page = 4096
    memory = mmap.mmap(-1, 2 * page)
    whole = np.frombuffer(memory, np.float32)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + page), page, 0) == 0
    try:
        x = whole[page // 4 - 40 : page // 4]
        x[:] = np.arange(40)
        check(resampled(0.5, 40, 83), [x], [np.zeros(83, np.float32)], path)
        check(resampled(1.5, 40, 83, back=True), [x], [np.zeros(83, np.float32)], path)
    finally:
        libc.mprotect(ctypes.c_void_p(whole.ctypes.data + page), page, 3)


@pytest.mark.parametrize("path", PATHS)
def test_divisions_beside_them(path):
    """Both need the instruction that permutes two registers."""

    @T.prim_func
    def main(X: T.Tensor((99,), "float32"), Y: T.Tensor((160,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(160):
                x = T.cast(i, "float32") * 0.6
                a = X[T.cast(x, "int32")]
                Y[i] = (T.log(a) + a * a) / X[0] + T.exp(a)

    x = np.random.default_rng(3).random(99, dtype=np.float32) + 0.5
    check(main, [x], [np.zeros(160, np.float32)], path)
