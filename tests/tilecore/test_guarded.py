"""Nests under conditions on places: vectors where they hold in all lanes, else lane by lane."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore.compiler import lower
from tilecore.target import AVX512

ROWS, COLUMNS = 7, 75  # of tensors: blocks of 4 x 64 leave both
ROW, COLUMN = 4, 64


@T.macro
def inside(X, Y, n, y, x):
    for i, j in T.Parallel(ROW, COLUMN):
        if y + i < ROWS and x + j < COLUMNS:
            Y[y + i, x + j] = T.exp(X[y + i, x + j])


@T.macro
def nested(X, Y, n, y, x):
    for i, j in T.Parallel(ROW, COLUMN):
        if y + i < ROWS:
            at = x + j
            if at <= COLUMNS - 1:
                Y[y + i, at] = X[y + i, at] + T.cast(at, "float32")


@T.macro
def read_along(X, Y, n, y, x):
    """How long a row is stands in a tensor."""
    for i, j in T.Parallel(ROW, COLUMN):
        if y + i < ROWS and x + j < n[y + i]:
            Y[y + i, x + j] = X[y + i, x + j] * 2.0


@T.macro
def named(X, Y, n, y, x):
    """Once the name of what is loaded had no value where the condition was asked."""
    for i, j in T.Parallel(ROW, COLUMN):
        if y + i < ROWS:
            end = n[y + i]
            if x + j < end:
                half = X[y + i, x + j] * 0.5
                if x + j > 1:
                    Y[y + i, x + j] = half * half + half


@T.macro
def named_ahead(X, Y, n, y, x):
    for i, j in T.Parallel(ROW, COLUMN):
        end = n[2] + 3
        if x + j < end * 2:
            Y[y + i, x + j] = X[y + i, x + j] + T.cast(end, "float32")


@T.macro
def from_some_on(X, Y, n, y, x):
    for i, j in T.Parallel(ROW, COLUMN):
        if x + j >= y + i + 3 and x + j < 70 and y + i <= 5:
            Y[y + i, x + j] = X[y + i, x + j] - 1.0


@T.macro
def backwards(X, Y, n, y, x):
    for i, j in T.Parallel(ROW, COLUMN):
        if y + i < ROWS and COLUMNS - 1 - x - j >= 0:
            Y[y + i, x + j] = X[y + i, COLUMNS - 1 - x - j]


@T.macro
def apart(X, Y, n, y, x):
    """Each store has a condition of its own."""
    for i, j in T.Parallel(ROW, COLUMN):
        if x + j > 9:
            Y[y + i, x + j] = X[y + i, x + j]
        if x + j < 8 and y < 3:
            Y[y + i, x + j] = 5.0


@T.macro
def otherwise(X, Y, n, y, x):
    for i, j in T.Parallel(ROW, COLUMN):
        if x + j < 20:
            Y[y + i, x + j] = X[y + i, x + j]
        else:
            Y[y + i, x + j] = 3.0


@T.macro
def every_third(X, Y, n, y, x):
    for i, j in T.Parallel(ROW, COLUMN):
        if (x + j) % 3 == 1 and x + j < COLUMNS:
            Y[y + i, x + j] = X[y + i, x + j]


@T.macro
def of_named_values(X, Y, n, y, x):
    for i, j in T.Parallel(ROW, COLUMN):
        if x + j < COLUMNS:
            twice = X[y + i, x + j] * 2.0
            more = twice + 1.0
            if more > 0.5:
                Y[y + i, x + j] = more * twice


@T.macro
def of_what_changes(X, Y, n, y, x):
    """The condition is asked of what the nest itself writes."""
    for i, j in T.Parallel(ROW, COLUMN):
        if y + i < ROWS and x + j < COLUMNS:
            Y[y + i, x + j] = X[y + i, x + j]
            new = Y[y + i, x + j]
            if new < 0.0:
                Y[y + i, x + j] = new * new


@T.macro
def of_values(X, Y, n, y, x):
    for i, j in T.Parallel(ROW, COLUMN):
        if x + j < COLUMNS and X[y + i, x + j] > 0.0:
            Y[y + i, x + j] = 1.0


VECTORS = [inside, nested, read_along, named, named_ahead, from_some_on, apart]
LANES = [backwards, otherwise, every_third, of_named_values, of_what_changes, of_values]


def program(change):
    @T.prim_func
    def main(
        X: T.Tensor((ROWS, COLUMNS), "float32"), N: T.Tensor((ROWS,), "int32"),
        Y: T.Tensor((ROWS, COLUMNS), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(COLUMNS, COLUMN), T.ceildiv(ROWS, ROW), threads=128) as (bx, by):
            change(X, Y, N, by * ROW, bx * COLUMN)

    return main


def tensors():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    n = np.array([75, 0, 16, 74, 65, 1, 31], np.int32)
    return [x, n], [np.full_like(x, 9)]


@pytest.mark.parametrize("change", [*VECTORS, *LANES], ids=lambda change: change.__name__)
def test_values_are_those_of_the_oracle(change, run_both):
    run_both(program(change), *tensors(), rtol=1e-6)


@pytest.mark.parametrize("change", VECTORS, ids=lambda change: change.__name__)
def test_lanes_run_at_once_where_all_of_them_count(change):
    _, tir = lower(program(change), AVX512, {})
    assert "x16" in tir.script() or ", 1, 16)" in tir.script()


def test_what_holds_for_a_row_is_asked_once_a_row():
    """The condition on the rows stands before the loop over the vectors."""
    _, tir = lower(program(inside), AVX512, {})
    lines = [line.strip() for line in tir.script().splitlines()]
    condition = next(i for i, line in enumerate(lines) if line.startswith("if ") and "< 7" in line)
    assert lines[condition + 1].startswith("for ")


@pytest.mark.parametrize("n", [0, 1, 15, 16, 63, 64, 100])
def test_dynamic_sizes(n, run_both):
    size = T.dynamic("n")

    @T.prim_func
    def main(X: T.Tensor((size,), "float32"), Y: T.Tensor((size,), "float32")):
        with T.Kernel(T.ceildiv(size, 64), threads=64) as b:
            for j in T.Parallel(64):
                if b * 64 + j < size:
                    Y[b * 64 + j] = T.sqrt(T.abs(X[b * 64 + j]))

    x = np.random.default_rng(4).standard_normal(n).astype(np.float32)
    run_both(main, [x], [np.full_like(x, 9)], rtol=1e-6)


def test_a_tile_is_updated_where_a_condition_holds(run_both):
    """The trailing update of a Cholesky decomposition: rows and vectors outside are skipped."""
    n = 40

    @T.prim_func
    def main(A: T.Tensor((n, n), "float32"), B: T.Tensor((n, n), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_shared((n, n), "float32")
            T.copy(A, x)
            for k in T.serial(n):
                x[k, k] = T.sqrt(x[k, k])
                for i in T.Parallel(n):
                    if i > k:
                        x[i, k] = x[i, k] / x[k, k]
                for i, j in T.Parallel(n, n):
                    if i > k and j > k and j <= i:
                        x[i, j] -= x[i, k] * x[j, k]
            for i, j in T.Parallel(n, n):
                B[i, j] = T.if_then_else(j <= i, x[i, j], 0.0)

    a = np.random.default_rng(5).standard_normal((n, n)).astype(np.float32)
    a = (a @ a.T + n * np.eye(n)).astype(np.float32)
    exact = np.linalg.cholesky(a.astype(np.float64))
    run_both(main, [a], [np.full_like(a, 9)], [exact], rtol=1e-4)


# --- without conditions of the program's own ------------------------------------------------------


def biased(n, dtype, columns=64):
    @T.prim_func
    def main(X: T.Tensor((5, n), dtype), B: T.Tensor((n,), dtype), Y: T.Tensor((5, n), dtype)):
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(5, 2), threads=128) as (bx, by):
            x = T.alloc_fragment((2, columns), dtype)
            T.copy(X[by * 2, bx * columns], x)
            for i, j in T.Parallel(2, columns):
                x[i, j] = x[i, j] * 2 + B[bx * columns + j]
            T.copy(x, Y[by * 2, bx * columns])

    return main


@pytest.mark.few(8)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int8"])
@pytest.mark.parametrize("n", [65, 79, 127, 128, 150])
def test_vectors_at_the_edge_of_what_is_read(n, dtype, run_both):
    rng = np.random.default_rng(6)
    x, b = ((rng.standard_normal(s) * 9).astype(dtype) for s in ((5, n), n))
    run_both(biased(n, dtype), [x, b], [np.full_like(x, 9)], rtol=1e-2 if dtype == "float16" else 0)


def test_lanes_at_the_edge_are_masked():
    _, tir = lower(biased(150, "float32"), AVX512, {})
    assert "masked_load" in tir.script()
