"""Accesses that interleave move at once: of pairs, say, each takes one half and both take all."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, Schedule
from tilecore.interpreter import run

ROWS, COLUMNS = 8, 64  # of a block: rows, groups


def turned(rows, columns, dtype, form):
    """Return a program that turns pairs by angles, each pair (a, b) of a row side by side."""
    pairs = (rows, columns, 2) if form == "axis" else (rows, 2 * columns)

    def at(i, j, half):
        return (i, j, half) if form == "axis" else (i, 2 * j + half)

    @T.prim_func
    def main(X: T.Tensor(pairs, dtype), C: T.Tensor((columns,), dtype), Y: T.Tensor(pairs, dtype)):
        with T.Kernel(T.ceildiv(columns, COLUMNS), T.ceildiv(rows, ROWS), threads=32) as (bx, by):
            for i, j in T.Parallel(ROWS, COLUMNS):
                row, column = by * ROWS + i, bx * COLUMNS + j
                a = T.cast(X[at(row, column, 0)], "float32")
                b = T.cast(X[at(row, column, 1)], "float32")
                c = T.cast(C[column], "float32")
                if form == "in place":
                    X[at(row, column, 0)] = T.cast(a * c - b, dtype)
                    X[at(row, column, 1)] = T.cast(b * c + a, dtype)
                else:
                    Y[at(row, column, 0)] = T.cast(a * c - b, dtype)
                    Y[at(row, column, 1)] = T.cast(b * c + a, dtype)

    return main, pairs


def moves(func, target="h100"):
    """Return the lines of the kernel that move elements at once."""
    text = lowered(func, target)[2].text.rpartition('extern "C"')[2]
    return [line for line in text.splitlines() if "tc_copy_" in line]


@pytest.mark.few(3)
@pytest.mark.covering("form dtype")
@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
@pytest.mark.parametrize(("rows", "columns"), [(16, 128), (11, 96), (3, 70), (5, 33)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("form", ["axis", "columns", "in place"])
def test_pairs_are_what_the_program_says(form, dtype, rows, columns, target):
    func, pairs = turned(rows, columns, dtype, form)
    rng = np.random.default_rng(rows)
    x, y = (rng.integers(-9, 9, pairs).astype(dtype) for _ in range(2))
    c = rng.integers(-3, 3, columns).astype(dtype)
    wanted = [x.copy(), c, y.copy()]
    run(func, *wanted)
    run_emulated(func, target, [x, c, y], (LATE, Schedule(seed=3)))
    np.testing.assert_array_equal(x, wanted[0])
    np.testing.assert_array_equal(y, wanted[2])


@pytest.mark.parametrize("form", ["axis", "columns", "in place"])
@pytest.mark.parametrize(("dtype", "loads"), [("float16", 3), ("float32", 3), ("int8", 3)])
def test_pairs_move_at_once(dtype, loads, form):
    copied = moves(turned(16, 128, dtype, form)[0])
    stores = 2
    assert ["tc_copy_16(" in line for line in copied] == [True] * (loads + stores)


def grouped(size, rows, columns, dtype, form):
    """Return a program over groups of ``size`` elements, in one of several forms."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns, size), dtype), Y: T.Tensor((rows, columns, size), dtype)):
        with T.Kernel(T.ceildiv(rows, ROWS), threads=32) as by:
            kept = T.alloc_shared((ROWS, COLUMNS * size), dtype)
            for i, j in T.Parallel(ROWS, COLUMNS):
                for k in T.unroll(size):
                    kept[i, j * size + k] = T.cast(i + j + k, dtype)
            for i, j in T.Parallel(ROWS, COLUMNS):
                row = by * ROWS + i
                if form == "all":
                    Y[row, j, 0] = X[row, j, size - 1]
                    for k in T.serial(1, size):
                        Y[row, j, k] = X[row, j, k - 1] + X[row, j, k]
                elif form == "written out":
                    first, last = X[row, j, 0], X[row, j, size - 1]
                    for k in range(size):
                        Y[row, j, k] = X[row, j, k] * first + last
                elif form == "under":
                    if j >= 8:
                        for k in range(size):
                            Y[row, j, k] = X[row, j, k] + X[row, j, size - 1 - k]
                elif form == "some":
                    for k in range(size - 1):
                        Y[row, j, k] = X[row, j, k] + X[row, j, size - 1]
                elif form == "one differs":
                    for k in range(size):
                        if k > 0 or i < 3:
                            Y[row, j, k] = X[row, j, k] + X[row, j, size - 1 - k]
                elif form == "read again":
                    Y[row, j, 0] = X[row, j, 1]
                    for k in range(1, size):
                        Y[row, j, k] = X[row, j, k] + Y[row, j, k - 1]
                elif form == "twice":
                    for k in range(size):
                        Y[row, j, k] = X[row, j, k]
                    Y[row, j, 0] = X[row, j, 1]
                elif form == "of a tile":
                    for k in range(size):
                        Y[row, j, k] = kept[i, j * size + k] + kept[i, j * size + size - 1 - k]
                else:  # the group before
                    for k in range(size):
                        Y[row, j, k] = X[row, j, k] + X[row, j - 1, k]

    return main


FORMS = ["all", "written out", "under", "some", "one differs", "read again", "twice", "of a tile",
         "before"]  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.covering("form size", "form dtype")
@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
@pytest.mark.parametrize(("rows", "columns"), [(8, 64), (11, 64), (3, 21)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("form", FORMS)
def test_groups_are_what_the_program_says(form, size, dtype, rows, columns, target):
    func = grouped(size, rows, columns, dtype, form)
    rng = np.random.default_rng(size)
    x, y = (rng.integers(0, 5, (rows, columns, size)).astype(dtype) for _ in range(2))
    wanted = y.copy()
    run(func, x, wanted)
    run_emulated(func, target, [x, y], (LATE, Schedule(seed=3)))
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(
    ("form", "size", "dtype", "read", "written"),
    [
        ("written out", 2, "float16", True, True),
        ("written out", 3, "float32", True, True),
        ("written out", 3, "uint8", True, True),
        ("written out", 4, "float32", True, True),  # a point is all that one instruction moves
        ("under", 2, "float32", True, True),
        ("some", 3, "float32", True, False),
        ("one differs", 2, "float32", True, False),
        ("read again", 2, "float32", False, False),
        ("twice", 2, "float32", True, True),
        ("written out", 5, "float32", False, False),  # more than one instruction moves
    ],
)
def test_what_whole_groups_ask_for_moves_at_once(form, size, dtype, read, written):
    text = "\n".join(moves(grouped(size, 8, 64, dtype, form)))
    assert ("&(X_ptr" in text, "&(Y_ptr" in text) == (read, written)


@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
@pytest.mark.parametrize(("bytes_", "halves"), [(32, 24), (32, 32), (48, 40), (16, 24)])
def test_rows_that_end_between_lanes_keep_the_next_ones(bytes_, halves, target):
    """A store of 16 lanes of float16 is two instructions, of which the second may lie outside."""

    @T.prim_func
    def main(
        A: T.Tensor((8, bytes_), "int8"), B: T.Tensor((8, halves), "float16"),
        C: T.Tensor((8, bytes_), "int8"), D: T.Tensor((8, halves), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=16):
            for i, j in T.Parallel(8, bytes_):
                C[i, j] = A[i, j] + T.cast(B[i, j], "int8")
                D[i, j] = T.cast(A[i, j], "float16")

    rng = np.random.default_rng(halves)
    a, c = (rng.integers(-9, 9, (8, bytes_)).astype(np.int8) for _ in range(2))
    b, d = (rng.integers(-9, 9, (8, halves)).astype(np.float16) for _ in range(2))
    wanted = [a, b, c.copy(), d.copy()]
    run(main, *wanted)
    run_emulated(main, target, [a, b, c, d], (LATE, Schedule(seed=3)))
    np.testing.assert_array_equal(c, wanted[2])
    np.testing.assert_array_equal(d, wanted[3])


@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
def test_a_thread_moves_its_own_pairs_at_once(target):
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), Y: T.Tensor((64, 8), "float32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            for k in T.vectorized(4):
                Y[t, 2 * k] = X[t, 2 * k] - X[t, 2 * k + 1]
                Y[t, 2 * k + 1] = X[t, 2 * k] + X[t, 2 * k + 1]

    x = np.random.default_rng(0).integers(-9, 9, (64, 8)).astype(np.float32)
    y = np.zeros_like(x)
    run_emulated(main, target, [x, y], (LATE, Schedule(seed=3)))
    np.testing.assert_array_equal(y[:, ::2], x[:, ::2] - x[:, 1::2])
    np.testing.assert_array_equal(y[:, 1::2], x[:, ::2] + x[:, 1::2])
    if target == "h100":
        assert len(moves(main)) == 2  # in each of two turns
