"""What is stored where a condition holds, or what is there already: a blend, no store under a mask.

Zen processors take 12 cycles for a vector that is stored under a mask.
"""

import re

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.test_assembly import assembly

ROWS, COLUMNS = 8, 48
UNDER_A_MASK = re.compile(r"vp?maskmov\w+\s+%[yz]mm\d+, %[yz]mm\d+, ")


@T.macro
def chosen(x, y, r, n):
    for i, j in T.Parallel(ROWS, COLUMNS):
        x[i, j] = T.if_then_else(i * 5 >= j, x[i, j], -1.0)


@T.macro
def at_least(x, y, r, n):
    for i, j in T.Parallel(ROWS, COLUMNS):
        x[i, j] = T.max(x[i, j], 0.25)


@T.macro
def by_place(x, y, r, n):
    for i, j in T.Parallel(ROWS, COLUMNS):
        if i * 5 >= j:
            x[i, j] = 0.5


@T.macro
def by_value(x, y, r, n):
    for i, j in T.Parallel(ROWS, COLUMNS):
        if x[i, j] > 0.1:
            x[i, j] = T.exp(x[i, j]) + y[i, j]


@T.macro
def both_ways(x, y, r, n):
    for i, j in T.Parallel(ROWS, COLUMNS):
        if r[j] > 0.0:
            x[i, j] = x[i, j] * 2.0
        else:
            y[i, j] = 3.0


@T.macro
def several(x, y, r, n):
    for i, j in T.Parallel(ROWS, COLUMNS):
        if y[i, j] > 0.0:
            x[i, j] = x[i, j] + y[i, j]
            y[i, j] = 7.0
        r[j] = 1.0


@T.macro
def largest_of_columns(x, y, r, n):
    for _ in T.serial(2):
        T.reduce_max(x, r, dim=0, clear=False)


@T.macro
def largest_or_nan(x, y, r, n):
    T.reduce_max(x, r, dim=0, nan_propagate=True)
    T.reduce_min(y, r, dim=0, clear=False, nan_propagate=True)


@T.macro
def largest_so_far(x, y, r, n):
    T.cummax(x, y, dim=0)


# --- conditions that have to be asked -------------------------------------------------------------


@T.macro
def chosen_anew(x, y, r, n):
    """The first store changes what decides on the second."""
    for i, j in T.Parallel(ROWS, COLUMNS):
        if x[i, j] > 0.0:
            x[i, j] = -1.0
            y[i, j] = 5.0


@T.macro
def neighbours(x, y, r, n):
    """The first column has no neighbour."""
    for i, j in T.Parallel(ROWS, COLUMNS):
        if j > 0:
            x[i, j] = y[i, j - 1]


@T.macro
def divided(x, y, r, n):
    """n is 0 in some rows."""
    for i, j in T.Parallel(ROWS, COLUMNS):
        if n[i] != 0:
            x[i, j] = T.cast(100 // n[i], "float32")


def program(change, dtype="float32"):
    @T.prim_func
    def main(
        X: T.Tensor((ROWS, COLUMNS), dtype), Y: T.Tensor((ROWS, COLUMNS), dtype),
        R: T.Tensor((COLUMNS,), dtype), N: T.Tensor((ROWS,), "int32"),
        A: T.Tensor((ROWS, COLUMNS), dtype), B: T.Tensor((ROWS, COLUMNS), dtype),
        C: T.Tensor((COLUMNS,), dtype),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((ROWS, COLUMNS), dtype)
            y = T.alloc_fragment((ROWS, COLUMNS), dtype)
            r = T.alloc_fragment((COLUMNS,), dtype)
            n = T.alloc_fragment((ROWS,), "int32")
            T.copy(X, x)
            T.copy(Y, y)
            T.copy(R, r)
            T.copy(N, n)
            change(x, y, r, n)
            T.copy(x, A)
            T.copy(y, B)
            T.copy(r, C)

    return main


BLENDED = [
    chosen, at_least, by_place, by_value, both_ways, several, largest_of_columns, largest_or_nan,
    largest_so_far,
]  # fmt: skip
ASKED = [chosen_anew, neighbours, divided]


def tensors(dtype="float32"):
    rng = np.random.default_rng(2)
    x, y, r = (rng.standard_normal(s) * 4 for s in ((ROWS, COLUMNS), (ROWS, COLUMNS), COLUMNS))
    if "float" in dtype:
        x[2, 5] = x[7, 40] = y[0, 3] = np.nan
    x, y, r = (v.astype(dtype) for v in (x, y, r))
    n = np.array([3, 0, -2, 7, 0, 1, 100, 0], np.int32)
    return [x, y, r, n], [np.full_like(v, 9) for v in (x, y, r)]


@pytest.mark.parametrize("change", [*BLENDED, *ASKED], ids=lambda change: change.__name__)
def test_values_are_those_of_the_oracle(change, run_both):
    run_both(program(change), *tensors())


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float64", "int32", "float16", "int8"])
@pytest.mark.parametrize("change", [chosen, by_place, both_ways, largest_of_columns])
def test_other_elements(dtype, change, run_both):
    run_both(program(change, dtype), *tensors(dtype), rtol=1e-3)


@pytest.mark.parametrize("change", BLENDED, ids=lambda change: change.__name__)
def test_nothing_is_stored_under_a_mask(change):
    lines = assembly("avx2", program(change))
    assert not [line for line in lines if UNDER_A_MASK.search(line)]
    assert any("%ymm" in line for line in lines)
