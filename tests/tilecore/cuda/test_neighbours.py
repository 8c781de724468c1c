"""Indices that jump, as those of convolutions do: what lies between the jumps moves at once."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, Schedule
from tilecore.interpreter import run

BATCH, SIZE, KERNEL, FILTERS = 2, 7, 3, 32


def convolution(channels, step, pad, columns, named):
    """Return a convolution as a product whose left side is gathered, as TileLang's example was."""
    out, rows = (SIZE + 2 * pad - KERNEL) // step + 1, 32
    points, depth = BATCH * out * out, KERNEL * KERNEL * channels

    @T.prim_func
    def main(
        data: T.Tensor((BATCH, SIZE, SIZE, channels), "float16"),
        weights: T.Tensor((depth, FILTERS), "float16"), C: T.Tensor((points, FILTERS), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(points, rows), threads=64) as by:
            left = T.alloc_shared((rows, columns), "float16")
            right = T.alloc_shared((columns, FILTERS), "float16")
            sums = T.alloc_fragment((rows, FILTERS), "float32")
            T.clear(sums)
            for ko in T.Pipelined(T.ceildiv(depth, columns), num_stages=2):
                for i, j in T.Parallel(rows, columns):
                    k, m = ko * columns + j, by * rows + i
                    y = m % (out * out) // out * step + k // (KERNEL * channels) - pad
                    x = m % out * step + k // channels % KERNEL - pad
                    image, channel = m // (out * out), k % channels
                    if named:
                        inside = T.And(T.And(y >= 0, x >= 0), T.And(y < SIZE, x < SIZE))
                        left[i, j] = T.if_then_else(inside, data[image, y, x, channel], 0)
                    else:
                        left[i, j] = T.if_then_else(
                            T.And(T.And(y >= 0, x >= 0), T.And(y < SIZE, x < SIZE)),
                            data[image, y, x, channel], T.float16(0),
                        )  # fmt: skip
                T.copy(weights[ko * columns, 0], right)
                T.gemm(left, right, sums)
            T.copy(sums, C[by * rows, 0])

    return main


CASES = [  # channels, step, padding, columns, the bytes that move at once
    (32, 1, 1, 32, 16), (8, 2, 1, 32, 16), (24, 1, 0, 32, 16), (4, 1, 1, 32, 8), (12, 1, 1, 32, 8),
    (6, 1, 1, 32, 4), (3, 2, 0, 32, 0), (5, 1, 1, 48, 0),
]  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("channels", "step", "pad", "columns", "copied"), CASES)
def test_a_convolution_is_what_the_program_says(
    channels, step, pad, columns, copied, named, target
):
    func = convolution(channels, step, pad, columns, named)
    rng = np.random.default_rng(channels)
    shapes = [tuple(int(e.value) for e in b.shape) for b in func.buffers]
    data, weights = (rng.integers(-3, 4, shape).astype(np.float16) for shape in shapes[:2])
    wanted, found = np.zeros(shapes[2], np.float32), np.zeros(shapes[2], np.float32)
    run(func, data, weights, wanted)
    run_emulated(func, target, [data, weights, found], (LATE, Schedule(seed=9)))
    np.testing.assert_array_equal(found, wanted)
    text = lowered(func, "h100")[2].text.rpartition('extern "C"')[2]
    loads = [line for line in text.splitlines() if "tc_copy_" in line and "&(data_ptr" in line]
    assert [f"tc_copy_{copied}(" in line for line in loads] == [True] * len(loads)
    assert bool(loads) is (copied > 0)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("place", "copied"),
    [
        (lambda j: j % 32, 16), (lambda j: (j + 8) % 32, 16), (lambda j: (j + 4) % 32, 8),
        (lambda j: (j + 1) % 32, 0), (lambda j: j % 24 + j // 24, 0), (lambda j: j % 7, 0),
        (lambda j: j // 16 * 16 + j % 16, 16), (lambda j: j // 2, 0), (lambda j: 63 - j, 0),
        (lambda j: (j - 8) % 32, 16), (lambda j: (j // 8 % 2) * 8 + j % 8, 16),
    ],
)  # fmt: skip
def test_pieces_of_a_row(place, copied):
    @T.prim_func
    def main(A: T.Tensor((8, 64), "float16"), B: T.Tensor((8, 64), "float16")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(8, 64):
                B[i, j] = A[i, place(j)] + T.float16(1)

    a = np.random.default_rng(1).integers(-9, 9, (8, 64)).astype(np.float16)
    wanted, found = np.zeros_like(a), np.zeros_like(a)
    run(main, a, wanted)
    for target in ("sm_80", "gfx942"):
        run_emulated(main, target, [a, found], (LATE,))
        np.testing.assert_array_equal(found, wanted)
    text = lowered(main, "sm_80")[2].text.rpartition('extern "C"')[2]
    loads = [line for line in text.splitlines() if "tc_copy_" in line and "&(A_ptr" in line]
    assert {f"tc_copy_{copied}(" in line for line in loads} <= {True}
    assert bool(loads) is (copied == 16)  # else what is stored moves in wider pieces


@pytest.mark.parametrize(
    ("cond", "place"),
    [
        (lambda i, j: j // 8 % 2 == 0, lambda j: j), (lambda i, j: j < 40, lambda j: j),
        (lambda i, j: i < 5, lambda j: (j + 8) % 64), (lambda i, j: i < 5, lambda j: j % 24),
    ],
)  # fmt: skip
def test_more_neighbours_than_one_access_moves_have_to_be_alike(cond, place):
    """A thread has 16 elements of a byte, and those that it reads come in two moves."""

    @T.prim_func
    def main(A: T.Tensor((8, 64), "float16"), B: T.Tensor((8, 64), "int8")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(8, 64):
                B[i, j] = T.cast(T.if_then_else(cond(i, j), A[i, place(j)], T.float16(7)), "int8")

    a = np.random.default_rng(1).integers(-9, 9, (8, 64)).astype(np.float16)
    wanted, found = np.zeros((8, 64), np.int8), np.zeros((8, 64), np.int8)
    run(main, a, wanted)
    for target in ("sm_80", "gfx942"):
        run_emulated(main, target, [a, found], (LATE,))
        np.testing.assert_array_equal(found, wanted)


def gathered(form):
    """Return a program that reads rows which a table names."""

    @T.prim_func
    def main(
        A: T.Tensor((16, 64), "float16"), R: T.Tensor((64,), "int32"),
        B: T.Tensor((8, 64), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(8, 64):
                row = R[i]
                if form == "row":
                    B[i, j] = A[row, j] + T.float16(1)
                elif form == "row of some columns":
                    of_some = R[j // 4]
                    B[i, j] = A[of_some, j] + T.float16(1)
                elif form == "row of each column":
                    of_each = R[j]
                    B[i, j] = A[of_each, j]
                elif form == "turned by eights":
                    B[i, j] = A[i, (j + row * 8) % 64]
                elif form == "turned":
                    B[i, j] = A[i, (j + row) % 64]
                else:
                    is_low = row < 8
                    B[i, j] = T.if_then_else(is_low, A[row, j], T.float16(9))

    return main


@pytest.mark.parametrize(
    ("form", "is_wide"),
    [("row", True), ("row of some columns", False), ("row of each column", False),
     ("turned by eights", True), ("turned", False), ("some rows", True)],
)  # fmt: skip
def test_rows_that_a_table_names(form, is_wide):
    """The name of a row is given in the nest: what moves for many points needs it before."""
    rng = np.random.default_rng(0)
    a, rows = rng.integers(-9, 9, (16, 64)).astype(np.float16), rng.integers(0, 16, 64)
    table, wanted, found = rows.astype(np.int32), *(np.zeros((8, 64), np.float16) for _ in "wf")
    run(gathered(form), a, table, wanted)
    for target in ("sm_80", "h100", "gfx942"):
        run_emulated(gathered(form), target, [a, table, found], (LATE,))
        np.testing.assert_array_equal(found, wanted)
    text = lowered(gathered(form), "sm_80")[2].text.rpartition('extern "C"')[2]
    assert any("tc_copy_16" in x and "&(A_ptr" in x for x in text.splitlines()) is is_wide


def test_threads_lie_along_what_there_is_most_of():
    """Rows that a table names, updated: its few elements were read twice, and decided."""

    @T.prim_func
    def main(
        table: T.Tensor((16,), "int32"),
        G: T.Tensor((256,), "float32"),
        E: T.Tensor((40, 256), "float32"),
    ):
        with T.Kernel(1, threads=64):
            g = T.alloc_fragment((256,), "float32")
            T.copy(G, g)
            for i, j in T.Parallel(16, 256):
                if table[i] >= 0:
                    T.atomic_add(E[table[i], j], g[j])

    rng = np.random.default_rng(2)
    table, g = rng.integers(-1, 8, 16).astype(np.int32), np.arange(256, dtype=np.float32)
    e = np.zeros((40, 256), np.float32)
    plan = run_emulated(main, "sm_80", [table, g, e])
    assert "g: 4 registers a thread" in plan.explain()
    counts = np.bincount(table[table >= 0], minlength=40)
    np.testing.assert_array_equal(e, counts[:, None] * g)


@pytest.mark.parametrize("is_kept", [True, False])
def test_rows_under_conditions_of_a_table(is_kept):
    """Rows of the tokens of an expert: those of places without one came element by element."""

    @T.prim_func
    def main(
        ids: T.Tensor((32,), "int32"),
        X: T.Tensor((8, 64), "float32"),
        Y: T.Tensor((32, 64), "float32"),
    ):
        with T.Kernel(1, threads=64):
            for i, j in T.Parallel(32, 64):
                Y[i, j] = T.if_then_else(ids[i] >= 0, X[T.max(ids[i], 0), j], 7)
                if not is_kept:
                    ids[i] = 3

    ids, x = np.arange(-3, 29).astype(np.int32) % 11 - 2, np.arange(512, dtype=np.float32)
    y = np.zeros((32, 64), np.float32)
    is_inside = (ids >= 0) & (ids < 8)
    rows = np.where(is_inside[:, None], x.reshape(8, 64)[np.clip(ids, 0, 7)], 0)
    expected = np.where((ids >= 0)[:, None], rows, 7)
    if is_kept:  # else iterations meet
        run_emulated(main, "sm_80", [ids, x.reshape(8, 64), y])
        np.testing.assert_array_equal(y, expected)
    text = lowered(main, "sm_80")[2].text
    assert ("(&(X_ptr[" in text) == is_kept  # 16 bytes at once


def test_conditions_of_a_table_are_not_looked_up_where_there_is_no_point():
    """Found by a random program: rows of 3 share out 4 groups of threads."""

    @T.prim_func
    def main(
        ids: T.Tensor((3,), "int32"),
        X: T.Tensor((3, 32), "float32"),
        Y: T.Tensor((3, 32), "float32"),
    ):
        with T.Kernel(1, threads=64):
            for i, j in T.Parallel(3, 32):
                if ids[i] >= 0:
                    Y[i, j] = X[i, j] + 1

    ids, x = np.array([2, -1, 0], np.int32), np.arange(96, dtype=np.float32).reshape(3, 32)
    y = np.zeros((3, 32), np.float32)
    run_emulated(main, "sm_80", [ids, x, y])
    np.testing.assert_array_equal(y, np.where((ids >= 0)[:, None], x + 1, 0))
