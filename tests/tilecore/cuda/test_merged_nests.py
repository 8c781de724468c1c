"""A T.Parallel in a T.Parallel on GPUs."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.interpreter import run as interpret

pytestmark = pytest.mark.covering
TARGETS = ("sm_80", "h100", "gfx942")


@T.macro
def whole(x, y):
    for i in T.Parallel(16):
        for j in T.Parallel(24):
            if j >= i:
                x[i, j] = x[i, j] * 2


@T.macro
def three_with_names(x, y):
    for i in T.Parallel(16):
        row = 15 - i
        for j in T.Parallel(4):
            for k in T.Parallel(6):
                y[i, j * 6 + k] = x[row, j * 6 + k] + row


@T.macro
def beside_others(x, y):
    for i in T.Parallel(16):
        y[i, 0] = x[i, 1]
        for j in T.Parallel(23):
            y[i, j + 1] = y[i, 0] + x[i, j + 1]


@T.macro
def of_rows_of_their_own(x, y):
    for i in T.Parallel(16):
        for j in T.Parallel(i + 1):
            y[i, j] = x[i, j] * i


@T.macro
def sums(x, y):
    for i in T.Parallel(16):
        first = x[i, 0]
        for j in T.Parallel(24):
            y[i, 3] += x[i, j] * first


def program(body):
    @T.prim_func
    def main(
        A: T.Tensor((16, 24), "float32"),
        B: T.Tensor((16, 24), "float32"),
        C: T.Tensor((16, 24), "float32"),
    ):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((16, 24), "float32")
            y = T.alloc_fragment((16, 24), "float32")
            T.copy(A, x)
            T.clear(y)
            body(x, y)
            T.copy(x, B)
            T.copy(y, C)

    return main


def expected(name, a):
    x, y = a.copy(), np.zeros_like(a)
    i, j = np.indices(a.shape)
    match name:
        case "whole":
            x[j >= i] *= 2
        case "three_with_names":
            y[:] = a[::-1] + np.arange(16)[::-1, None]
        case "of_rows_of_their_own":
            y[:] = np.where(j <= i, a * i, 0)
        case "sums":
            y[:, 3] = a.sum(1) * a[:, 0]
        case _:
            y[:] = a[:, 1:2] + a
            y[:, 0] = a[:, 1]
    return x, y


CASES = (whole, three_with_names, beside_others, of_rows_of_their_own, sums)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_nests_in_nests(case, target):
    name = ("whole", "three_with_names", "beside_others", "of_rows_of_their_own", "sums")[case]
    func = program(CASES[case])
    a = np.random.default_rng(case).integers(-9, 9, (16, 24)).astype(np.float32)
    found, oracle = np.zeros((2, 2, 16, 24), np.float32)
    run_emulated(func, target, [a, *found], ALL_SCHEDULES)
    interpret(func, a, *oracle)
    for got, told, want in zip(found, oracle, expected(name, a), strict=True):
        np.testing.assert_array_equal(told, want)
        np.testing.assert_array_equal(got, want)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_a_loop_fills_one_by_one_are_filled_together(target):
    """T.im2col goes row by row: all threads have work, 16 bytes at a time."""
    N, H, W, C, K, BM, BK = 1, 7, 6, 64, 3, 32, 64
    rows, depth = N * H * W, K * K * C

    @T.prim_func
    def main(X: T.Tensor((N, H, W, C), "float16"), Y: T.Tensor((rows, depth), "float16")):
        with T.Kernel(T.ceildiv(rows, BM), threads=128) as by:
            tile = T.alloc_shared((BM, BK), "float16")
            for step in T.serial(depth // BK):
                T.im2col(X, tile, by, step, K, 1, 1, 1)
                T.copy(tile, Y[by * BM, step * BK])

    x = np.random.default_rng(5).standard_normal((N, H, W, C)).astype(np.float16)
    y = np.zeros((rows, depth), np.float16)
    run_emulated(main, target, [x, y], ALL_SCHEDULES)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = [padded[:, i : i + H, j : j + W] for i in range(K) for j in range(K)]
    np.testing.assert_array_equal(y, np.concatenate(windows, -1).reshape(rows, depth))
    kernel = lowered(main, target)[2].text.rpartition('extern "C"')[2]
    assert "tc_copy_4(" not in kernel
    assert kernel.count("tc_copy_16(") >= 2


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_follow_from_the_ones_before_are_filled_in_order(target):
    @T.prim_func
    def main(A: T.Tensor((8, 64), "float32"), B: T.Tensor((8, 64), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((9, 64), "float32")
            T.clear(tile)
            for i in T.serial(8):
                for j in T.Parallel(64):
                    tile[i + 1, j] = tile[i, 63 - j] + A[i, j]
            for i, j in T.Parallel(8, 64):
                B[i, j] = tile[i + 1, j]

    a = np.random.default_rng(6).integers(-9, 9, (8, 64)).astype(np.float32)
    b, row = np.zeros_like(a), np.zeros(64, np.float32)
    run_emulated(main, target, [a, b], ALL_SCHEDULES)
    for i in range(8):
        row = row[::-1] + a[i]
        np.testing.assert_array_equal(b[i], row)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_an_axis_of_vectors_goes_by_their_elements(target):
    """The fragment lay in shared memory: its elements were not those of the other nests."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "uint16")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((64, 64), "float32")
            high = T.alloc_fragment((64, 64), "uint16")
            T.copy(A, x)
            for i, j in T.Parallel(64, 32):
                for lane in T.vectorized(2):
                    column = j * 2 + lane
                    word = T.reinterpret(x[i, j * 2 + lane], dtype="uint32")
                    high[i, column] = T.if_then_else(column < 40, word >> 16, 7)
            for i, j in T.Parallel(64, 64):
                B[i, j] = high[i, j] + 1

    a = np.random.default_rng(6).standard_normal((64, 64)).astype(np.float32)
    found = np.zeros((64, 64), np.uint16)
    run_emulated(main, target, [a, found])
    words = np.where(np.arange(64) < 40, a.view(np.uint32) >> 16, 7) + 1
    np.testing.assert_array_equal(found, words.astype(np.uint16))
    (launch,) = lowered(main, target)[0].launches.values()
    assert launch.shared_bytes == 0
