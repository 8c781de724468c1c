"""What nests read and write under conditions moves at once for neighbours that have them alike."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, Schedule
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


@pytest.mark.parametrize("form", ["if", "choice"])
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
