"""Tiles that a nest keeps in registers, and tiles that it must store: who reads them later?"""

import numpy as np
import pytest

import tilecore.language as T
from tilecore.inference.cpu.infer import infer
from tilecore.inference.cpu.options import CpuOptions
from tilecore.passes.pipeline import run_passes
from tilecore.target import parse_target

ROWS, COLUMNS = 6, 70


def handed_on(func):
    """Return the names of the tiles that nests of the first launch do not store."""
    plan = infer(run_passes(func), parse_target("avx512"), CpuOptions())
    (launch,) = plan.launches.values()
    nests = {id(n): n for n in launch.fused.values()}.values()
    return sorted({buffer.name for nest in nests for buffer in nest.handed_on})


@T.macro
def weigh(x, y, r):
    for i, j in T.Parallel(ROWS, COLUMNS):
        x[i, j] = T.exp2(x[i, j])
    T.reduce_sum(x, r, dim=1)
    T.copy(x, y)


@T.macro
def nothing_else(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    weigh(x, y, r)


@T.macro
def read_later(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    weigh(x, y, r)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = y[i, j] + x[i, COLUMNS - 1 - j] + r[i]


@T.macro
def read_by_the_next_iteration(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    for _ in range(2):
        weigh(x, y, r)


@T.macro
def read_before_it_is_set_again(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.clear(y)
    for _ in range(3):
        for _ in range(2):
            for i, j in T.Parallel(ROWS, COLUMNS):
                y[i, j] = y[i, j] + x[i, COLUMNS - 1 - j]
        T.reduce_max(y, r, dim=1)
        for i, j in T.Parallel(ROWS, COLUMNS):
            x[i, j] = y[i, j] * 0.5


@T.macro
def set_in_every_iteration(X, x, y, r, b):
    for k in range(2):
        T.copy(X[b * ROWS, 0], x)
        for i, j in T.Parallel(ROWS, COLUMNS):
            x[i, j] = x[i, j] * (k + 1)
        weigh(x, y, r)


@T.macro
def set_in_part(X, x, y, r, b):
    for _ in range(2):
        T.fill(x[0 : ROWS - 1, :], 0.25)
        weigh(x, y, r)


@T.macro
def other_element(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    for i, j in T.Parallel(ROWS, COLUMNS):
        x[i, j] = x[i, j] * 2
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[i, T.max(j - 1, 0)]


@T.macro
def read_outside_the_loop(X, x, y, r, b):
    for _ in range(1):
        T.copy(X[b * ROWS, 0], x)
        weigh(x, y, r)
    T.copy(x, y)


@T.macro
def read_through_a_view(X, x, y, r, b):
    flat = T.view(x, (ROWS * COLUMNS,))
    T.copy(X[b * ROWS, 0], x)
    weigh(x, y, r)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = flat[i * COLUMNS + j]


@T.macro
def stored_twice(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    for i, j in T.Parallel(ROWS, COLUMNS):
        x[i, j] = x[i, j] + 1
        x[i, j] = x[i, j] * x[i, j]
    T.reduce_max(x, r, dim=1)
    T.copy(x, y)


# y goes from its nest to the tensor, and r does where nothing but its start and its end is left
PROGRAMS = {
    nothing_else: ["x", "y"], read_later: ["y"], read_by_the_next_iteration: [], set_in_part: [],
    set_in_every_iteration: ["x"], other_element: ["r", "y"], read_outside_the_loop: ["y"],
    read_before_it_is_set_again: [], read_through_a_view: ["y"], stored_twice: ["x", "y"],
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("rows", [12, 10])  # whole blocks, and one whose nests run one by one
@pytest.mark.parametrize("body", PROGRAMS, ids=lambda body: body.__name__)
def test_only_what_nobody_else_reads_stays_in_registers(body, rows, run_both):
    @T.prim_func
    def main(
        X: T.Tensor((rows, COLUMNS), "float32"),
        Y: T.Tensor((rows, COLUMNS), "float32"),
        R: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(2) as b:
            x = T.alloc_fragment((ROWS, COLUMNS), "float32")
            y = T.alloc_fragment((ROWS, COLUMNS), "float32")
            r = T.alloc_fragment((ROWS,), "float32")
            T.clear(r)
            T.clear(x)
            body(X, x, y, r, b)
            T.copy(y, Y[b * ROWS, 0])
            T.copy(r, R[b * ROWS])

    assert handed_on(main) == PROGRAMS[body]
    x = np.random.default_rng(0).standard_normal((rows, COLUMNS)).astype(np.float32)
    run_both(main, [x], [np.zeros_like(x), np.zeros(rows, np.float32)])
