"""A call that allocates an output which the program only adds to says so: memory is not zero."""

import warnings

import numpy as np
import pytest

import tilecore
import tilecore.language as T
from tilecore.kernel import UnsetOutput

ROWS, COLUMNS = 4, 32
BY_BLOCKS = ("element", "tile", "view", "set by a launch before")


def summed(form):
    """Return a program that adds the rows of a tensor up, in one of several forms."""

    @T.prim_func
    def main(A: T.Tensor((ROWS, COLUMNS), "float32"), C: T.Tensor((COLUMNS,), "float32")):
        if form == "set by a launch before":
            with T.Kernel(1, threads=32):
                T.clear(C)
        with T.Kernel(ROWS if form in BY_BLOCKS else 1, threads=32) as b:
            tile = T.alloc_fragment((COLUMNS,), "float32")
            if form == "+=":
                for row in T.serial(ROWS):
                    for i in T.Parallel(COLUMNS):
                        C[i] += A[row, i]
            elif form == "tile":
                T.copy(A[b, 0], tile)
                T.atomic_add(C, tile)
            elif form == "view":
                halves = T.view(C, (2, COLUMNS // 2))
                for i in T.Parallel(COLUMNS):
                    T.atomic_add(halves[i // 16, i % 16], A[b, i])
            elif form == "one block":
                for i in T.Parallel(COLUMNS):
                    C[i] = 0
                for row in T.serial(ROWS):
                    for i in T.Parallel(COLUMNS):
                        C[i] += A[row, i]
            elif form == "another element":
                for i in T.Parallel(COLUMNS):
                    C[i] = A[b, i] + C[COLUMNS - 1 - i] * 0
            else:
                for i in T.Parallel(COLUMNS):
                    T.atomic_add(C[i], A[b, i])

    return main


@pytest.mark.parametrize("form", ["element", "tile", "view", "+="])
def test_an_output_that_nothing_sets_is_named_once(form):
    kernel = tilecore.compile(summed(form), out_idx=[1])
    a = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    with pytest.warns(UnsetOutput, match=r"test_never_set.py:\d+.*only adds to `C`") as told:
        kernel(a)
    assert [w.filename for w in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnsetOutput)
        kernel(a)
        given = np.zeros(COLUMNS, np.float32)
        kernel(a, given)
    np.testing.assert_array_equal(given, a.sum(0))
    given.fill(np.nan)
    kernel(a, given)
    assert np.isnan(given).all()


@pytest.mark.parametrize("form", ["set by a launch before", "one block", "another element"])
def test_what_a_program_sets_itself_is_not(form):
    kernel = tilecore.compile(summed(form), out_idx=[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnsetOutput)
        kernel(np.ones((ROWS, COLUMNS), np.float32))


def test_a_tensor_of_the_caller_is_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnsetOutput)
        sums = np.zeros(COLUMNS, np.float32)
        tilecore.compile(summed("element"))(np.ones((ROWS, COLUMNS), np.float32), sums)
    np.testing.assert_array_equal(sums, ROWS)
