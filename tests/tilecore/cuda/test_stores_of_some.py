"""Stores that all threads of a branch do alike: one of them does it, one that comes by.

Where the first thread of the block did not, nobody stored.
"""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import UnsupportedOnTarget
from tilecore.interpreter import run as interpret

N = 64


def program(write):
    @T.prim_func
    def main(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32"), k: T.int32):
        with T.Kernel(1, threads=N):
            write(T.get_thread_binding(), A, B, k)

    return main


@T.macro
def one(tx, A, B, k):
    if tx == 3:
        B[0] = 5


@T.macro
def some(tx, A, B, k):
    if tx >= 8 and tx < 40:
        B[0] = B[0] + 5


@T.macro
def others(tx, A, B, k):
    if tx < 8:
        B[tx] = A[tx]
    else:
        B[20] = B[20] + 7


@T.macro
def in_a_loop(tx, A, B, k):
    if tx > 50:
        for i in T.serial(4):
            B[i] = B[i] + i


@T.macro
def one_that_a_number_names(tx, A, B, k):
    if tx == k:
        B[0] = B[0] + 5


@T.macro
def above_a_number(tx, A, B, k):
    if tx > k:
        B[0] = A[1]


@T.macro
def nobody(tx, A, B, k):
    if tx > 100:
        B[0] = 5


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["h100", "sm_70", "gfx942"])
@pytest.mark.parametrize(
    "write", [one, some, others, in_a_loop, one_that_a_number_names, above_a_number, nobody]
)
def test_somebody_stores(write, target):
    func = program(write)
    a, b = np.arange(1, N + 1, dtype=np.int32), np.zeros(N, np.int32)
    run_emulated(func, target, [a, b, 9], ALL_SCHEDULES)
    expected = np.zeros_like(b)
    interpret(func, a, expected, 9)
    np.testing.assert_array_equal(b, expected)
    assert b.any() == (write is not nobody)


@T.macro
def an_update_above_a_number(tx, A, B, k):
    if tx > k:
        B[0] = B[0] + 5


def test_an_update_by_whoever_comes_first_is_refused():
    with pytest.raises(UnsupportedOnTarget, match=r"an update of `B` by one of some threads"):
        lowered(program(an_update_above_a_number), "h100")
