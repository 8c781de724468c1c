"""What nests read and write under conditions moves at once for neighbours that have them alike."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES, LATE, Schedule
from tilecore.inference.gpu.accesses.banks import bank_uses
from tilecore.interpreter import run

ROWS, COLUMNS = 16, 64  # of a block
CONDITIONS = {  # name: (condition of row, column, rows, columns, a number; bytes of a float16 move)
    "rows": (lambda i, j, m, n, r: i < m, 16),
    "both": (lambda i, j, m, n, r: T.And(i < m, j < n), 16),
    "known rows": (lambda i, j, m, n, r: i < r, 16),
    "columns": (lambda i, j, m, n, r: j < 24, 16),
    "columns from": (lambda i, j, m, n, r: j >= 40, 16),
    "number first": (lambda i, j, m, n, r: r * 8 > j, 16),
    "number first, at most": (lambda i, j, m, n, r: r * 8 <= j, 16),
    "at most": (lambda i, j, m, n, r: j <= 39, 16),
    "more than": (lambda i, j, m, n, r: j > 23, 16),
    "by four": (lambda i, j, m, n, r: j < 20, 8),
    "shifted": (lambda i, j, m, n, r: j - 8 >= 0, 16),
    "either": (lambda i, j, m, n, r: T.Or(i < 3, j < 32), 16),
    "not": (lambda i, j, m, n, r: T.Not(j < 32), 16),
    "unaligned": (lambda i, j, m, n, r: j < 21, 0),
    "at most, unaligned": (lambda i, j, m, n, r: j <= 40, 0),
    "one": (lambda i, j, m, n, r: j == 32, 0),
    "diagonal": (lambda i, j, m, n, r: i < j, 0),
    "of rows in turn": (lambda i, j, m, n, r: i % 2 == 0, 16),
    "of columns in turn": (lambda i, j, m, n, r: j % 16 < 8, 16),
    "of fours in turn": (lambda i, j, m, n, r: j // 4 % 2 == 0, 8),
    "of groups in turn": (lambda i, j, m, n, r: (j // 8 + i) % 3 != 1, 16),
    "of threes": (lambda i, j, m, n, r: j // 3 % 2 == 0, 0),
    "named": (lambda i, j, m, n, r: T.And(j // 8 * 8 + i > 20, j < n), 16),
    "other columns": (lambda i, j, m, n, r: j < r * 8, 16),
}


def program(form, cond, m, n):
    """Return a program that doubles what is under a condition, in one of several forms."""

    @T.prim_func
    def main(
        A: T.Tensor((m, n), "float16"), R: T.Tensor((1,), "int32"), B: T.Tensor((m, n), "float16")
    ):
        with T.Kernel(T.ceildiv(n, COLUMNS), T.ceildiv(m, ROWS), threads=32) as (bx, by):
            r = R[0]
            for a, b in T.Parallel(ROWS, COLUMNS):
                i, j = by * ROWS + a, bx * COLUMNS + b
                if form == "if":
                    if cond(i, j, m, n, r):
                        B[i, j] = A[i, j] * T.float16(2)
                elif form == "else":
                    if cond(i, j, m, n, r):
                        B[i, j] = A[i, j] * T.float16(2)
                    else:
                        B[i, j] = A[i, j] + T.float16(1)
                elif form == "choice":
                    B[i, j] = T.if_then_else(cond(i, j, m, n, r), A[i, j], T.float16(7))
                elif form == "choices":
                    B[i, j] = T.if_then_else(i < 5, A[i, j], T.if_then_else(
                        cond(i, j, m, n, r), A[m - 1 - i, j], T.float16(7)))  # fmt: skip
                elif form == "in place":
                    if cond(i, j, m, n, r):
                        B[i, j] = B[i, j] + T.float16(3)
                elif i < 5:  # noqa: SIM102
                    if cond(i, j, m, n, r):
                        B[i, j] = A[i, j]

    return main


def outcome(func, target, m, n, rows):
    rng = np.random.default_rng(m * n)
    a, b = (rng.integers(-20, 20, (m, n)).astype(np.float16) for _ in range(2))
    r, wanted = np.array([rows], np.int32), b.copy()
    run(func, a, r, wanted)
    run_emulated(func, target, [a, r, b], (LATE, Schedule(seed=3)))
    return b, wanted


@pytest.mark.few(3)
@pytest.mark.covering("form name")
@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
@pytest.mark.parametrize(("m", "n"), [(32, 128), (19, 72), (5, 100)])
@pytest.mark.parametrize("form", ["if", "else", "choice", "choices", "in place", "nested"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_what_is_under_conditions_is_what_the_program_says(name, form, m, n, target):
    found, wanted = outcome(program(form, CONDITIONS[name][0], m, n), target, m, n, 7)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("form", ["if", "else", "choice"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_neighbours_that_have_a_condition_alike_move_at_once(name, form):
    cond, copied = CONDITIONS[name]
    text = lowered(program(form, cond, 19, 72), "h100")[2].text.rpartition('extern "C"')[2]
    moved = [line for line in text.splitlines() if "tc_copy_" in line]
    if form == "choice" and copied < 16:
        copied = 16  # what is stored is; what is read is not
        assert not any("&(A_ptr" in line for line in moved)
    assert [f"tc_copy_{copied}(" in line for line in moved] == [True] * len(moved)
    assert bool(moved) is (copied > 0)


def test_conditions_that_data_decides_are_asked_of_each_element():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(64, 64):
                if A[i, j] > T.float16(0):
                    B[i, j] = A[i, j]

    text = lowered(main, "h100")[2].text.rpartition('extern "C"')[2]
    assert "tc_copy_" in text  # of what is compared
    assert not any("tc_copy_" in line and "&(B_ptr" in line for line in text.splitlines())
    a = np.random.default_rng(0).integers(-9, 9, (64, 64)).astype(np.float16)
    b = np.full_like(a, 5)
    run_emulated(main, "h100", [a, b], (LATE,))
    np.testing.assert_array_equal(b, np.where(a > 0, a, 5))


def test_rows_that_are_filled_up_with_zeros_move_at_once():
    """What attention over sequences of any length does: both branches store to one place."""

    @T.prim_func
    def main(
        A: T.Tensor((40, 64), "float16"), R: T.Tensor((1,), "int32"),
        B: T.Tensor((32, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32, 64), "float16")
            for i, j in T.Parallel(32, 64):
                if i < R[0]:
                    tile[i, j] = A[i + 8, j]
                else:
                    tile[i, j] = 0
            T.copy(tile, B)

    (launch,) = lowered(main, "h100")[0].launches.values()
    uses = [u for u in bank_uses(launch) if u.buffer.name == "tile"]
    assert {(u.is_store, u.bytes_per_lane, u.ways) for u in uses} >= {(True, 16, 1.0)}
    a = np.random.default_rng(0).integers(-9, 9, (40, 64)).astype(np.float16)
    found, rows = np.full((32, 64), 5, np.float32), np.array([13], np.int32)
    run_emulated(main, "h100", [a, rows, found], (LATE, Schedule(seed=3)))
    np.testing.assert_array_equal(found, np.where(np.arange(32)[:, None] < 13, a[8:], 0))


def gathered(shift):
    """Return a program that gathers the rows that a shared tile names, zeros for others."""

    @T.prim_func
    def main(
        A: T.Tensor((40, 64), "float16"), names: T.Tensor((32,), "int32"),
        B: T.Tensor((32, 64), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=64):
            kept = T.alloc_shared((32,), "int32")
            T.copy(names, kept)
            for i, j in T.Parallel(32, 64):
                if i + shift < 32:
                    row = kept[i + shift]
                    B[i, j] = T.if_then_else(T.And(row > -1, row < 30), A[row, j], 0)

    return main


@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
@pytest.mark.parametrize("shift", [0, 5])
def test_conditions_on_what_a_shared_tile_holds_are_asked_once_of_neighbours(shift, target):
    func = gathered(shift)
    text = lowered(func, "h100")[2].text.rpartition('extern "C"')[2]
    reads = [line for line in text.splitlines() if "tc_copy_16(" in line and "&(A_ptr" in line]
    assert len(reads) == (0 if shift else 1)  # an element outside of the tile is not looked at
    rng = np.random.default_rng(shift)
    a = rng.integers(-9, 9, (40, 64)).astype(np.float16)
    names = rng.integers(-5, 40, 32, np.int32)
    found = np.full((32, 64), 3, np.float16)
    run_emulated(func, target, [a, names, found], (LATE, Schedule(seed=3)))
    wanted = np.where(((names > -1) & (names < 30))[:, None], a[np.clip(names, 0, 39)], 0)
    wanted = np.concatenate([wanted[shift:], np.full((shift, 64), 3)])
    np.testing.assert_array_equal(found, wanted)


def masked(form, dtype):
    """Return a program that keeps what lies on or below the diagonal of a tile."""

    @T.prim_func
    def main(X: T.Tensor((64, 64), dtype), Y: T.Tensor((64, 64), dtype)):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((64, 64), dtype)
            y = T.alloc_shared((64, 64), dtype)
            held = T.alloc_fragment((64, 64), dtype)
            T.copy(X, x)
            if form == "in place":
                for i, j in T.Parallel(64, 64):
                    x[i, j] = T.if_then_else(i < j, 0, x[i, j])
                T.copy(x, Y)
            elif form == "in a branch":
                T.clear(y)
                for i, j in T.Parallel(64, 64):
                    if i >= j:
                        y[i, j] = x[i, j]
                T.copy(y, Y)
            elif form == "a part of it":
                for i, j in T.Parallel(64, 64):
                    y[i, j] = T.if_then_else(i - j >= 0, x[i - j, j], 0)
                T.copy(y, Y)
            else:
                for i, j in T.Parallel(64, 64):
                    held[i, j] = T.if_then_else(i < j, 0, x[i, j])
                T.copy(held, Y)

    return main


MASKED = ("in place", "in a branch", "a part of it", "of registers")


@pytest.mark.few(2)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "h100", "gfx942"])
@pytest.mark.parametrize("form", MASKED)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_masked_tiles_are_masked(form, dtype, target):
    x = np.random.default_rng(4).integers(-9, 10, (64, 64)).astype(dtype)
    y = np.zeros_like(x)
    run_emulated(masked(form, dtype), target, [x, y], ALL_SCHEDULES)
    i, j = np.meshgrid(np.arange(64), np.arange(64), indexing="ij")
    source = x[np.maximum(i - j, 0), j] if form == "a part of it" else x
    np.testing.assert_array_equal(y, np.where(i >= j, source, 0))


@pytest.mark.parametrize("form", ["in place", "of registers"])
def test_masked_tiles_are_read_sixteen_bytes_at_once(form):
    """Neighbours do not all ask for what they have in a tile: each read by itself."""
    (launch,) = lowered(masked(form, "float16"), "h100")[0].launches.values()
    read = [u for u in bank_uses(launch) if u.buffer.name == "x" and not u.is_store]
    assert {(u.bytes_per_lane, u.ways) for u in read} == {(16, 1.0)}
