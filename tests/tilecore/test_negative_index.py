"""Indices that are negative at run time: wrapped where TileLang wraps them, else outside."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore.errors import ShapeMismatch
from tilecore.interpreter import run

rng = np.random.default_rng(0)


def test_an_index_that_is_always_negative_counts_from_the_end(run_both):
    n, shift = 13, 3

    @T.prim_func
    def main(
        A: T.Tensor((n, 5), "float32"), B: T.Tensor((n,), "float32"), C: T.Tensor((n,), "float32")
    ):
        with T.Kernel(1):
            tile = T.alloc_shared((n, 5), "float32")
            T.copy(A, tile)
            for i in T.serial(n):
                last = -1 - i
                B[last] = tile[last, -5]
            for i in T.Parallel(n):
                C[i - n] = A[-i - 1, -shift]

    a = rng.standard_normal((n, 5)).astype(np.float32)
    zeros = np.zeros(n, np.float32)
    run_both(main, [a], [zeros, zeros], [a[:, 0], a[::-1, -shift]])


def test_loops_downwards_and_conditions_tell_the_sign(run_both):
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), B: T.Tensor((3, 8), "int32")):
        with T.Kernel(1):
            for i in T.serial(-1, -5, -1):
                B[0, i] = A[i]
            for i in T.serial(8):
                if i < 3 and i >= 0:  # noqa: SIM114
                    B[1, i] = A[i - 3]
                elif i != 7:
                    B[1, i] = A[i - 3]
                if not (i >= 2):
                    B[2, i] = A[i - 2]

    a = np.arange(10, 18).astype(np.int32)
    expected = np.zeros((3, 8))
    expected[0, 4:] = a[4:]
    expected[1] = [15, 16, 17, 10, 11, 12, 13, 0]
    expected[2, :2] = a[-2:]
    run_both(main, [a], [np.zeros((3, 8), np.int32)], [expected])


def test_an_index_that_may_be_either_is_outside_where_it_is_negative(run_both):
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), shift: T.int32, B: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                B[i] = A[i - 2] + A[i + shift]

    a = np.arange(1, 9).astype(np.int32)
    for shift in (0, -3, 5):
        at = np.arange(8)
        expected = [
            (a[i - 2] if i >= 2 else 0) + (a[i + shift] if 0 <= i + shift < 8 else 0) for i in at
        ]
        run_both(main, [a, shift], [np.zeros(8, np.int32)], [np.array(expected)])


def test_copies_of_tiles_from_the_end(run_both):
    @T.prim_func
    def main(A: T.Tensor((4, 8), "float32"), B: T.Tensor((4, 8), "float32")):
        with T.Kernel(4) as b:
            row = T.alloc_fragment((8,), "float32")
            T.copy(A[b - 4, 0:8], row)
            T.copy(row, B[-1 - b, 0:8])

    a = rng.standard_normal((4, 8)).astype(np.float32)
    run_both(main, [a], [np.zeros((4, 8), np.float32)], [a[::-1]])


def test_lanes_of_a_vector_wrap_one_by_one(run_both):
    @T.prim_func
    def main(
        A: T.Tensor((10,), "float32"), B: T.Tensor((5, 4), "float32"), C: T.Tensor((10,), "float32")
    ):
        with T.Kernel(1):
            for t in T.serial(5):
                B[t, T.Ramp(0, 1, 4)] = A[T.Ramp(t - 2, 1, 4)]
                C[T.Ramp(2 * t - 4, 1, 2)] = A[T.Ramp(2 * t, 1, 2)]

    a = rng.standard_normal(10).astype(np.float32)
    at = np.arange(5)[:, None] - 2 + np.arange(4)
    outputs = [np.zeros((5, 4), np.float32), np.zeros(10, np.float32)]
    run_both(main, [a], outputs, [a[at], np.roll(a, -4)])


def test_indices_known_not_to_be_negative_stay_as_they_are():
    @T.prim_func
    def main(A: T.Tensor((16,), "float32"), B: T.Tensor((16,), "float32")):
        with T.Kernel(4) as b:
            for i in T.serial(3):
                B[b * 4 + 3 - i] = A[15 - b * 4 - i]
            B[T.Ramp(b * 4, 1, 1)] = A[T.Ramp(b * 4, 1, 1)]

    text = str(main)
    assert "A[15 - b * 4 - i]" in text
    assert "select" not in text
    assert "B[b * 4] = " in text


def test_unsigned_indices_wrap_around_as_numbers_do(run_both):
    @T.prim_func
    def main(
        A: T.Tensor((256,), "int32"), B: T.Tensor((16,), "int32"), C: T.Tensor((16,), "int32")
    ):
        with T.Kernel(1):
            for i in T.serial(16):
                B[i] = A[T.cast(i - 20, "uint8")]
            for i in T.Parallel(16):
                C[i] = A[T.cast(i * 30, "int8")] + A[T.cast(i, "uint8") + T.uint8(250)]

    a = np.arange(1, 257, dtype=np.int32)
    at = np.arange(16)
    signed = (at * 30).astype(np.int8)
    wrapped = np.where(signed >= 0, a[signed], 0) + a[(at + 250) % 256]
    zeros = np.zeros(16, np.int32)
    run_both(main, [a], [zeros, zeros], [np.arange(237, 253), wrapped])


def test_a_tile_has_no_element_below_its_first():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            tile = T.alloc_shared((8,), "int32")
            T.copy(A, tile)
            for i in T.serial(8):
                B[i] = tile[A[i] - 2]

    with pytest.raises(ShapeMismatch, match="index of `tile`, axis 0: expected 0 to 7, found -2"):
        run(main, np.zeros(8, np.int32), np.zeros(8, np.int32))
