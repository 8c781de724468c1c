"""Conditions that the ranges of loops tell are not asked; others are."""

import numpy as np
import pytest
import torch

import tilecore
import tilecore.language as T
from tilecore.ir.expr import Select
from tilecore.ir.nodes import If, Parallel, Seq, Store
from tilecore.ir.visitor import expressions, walk, walk_expr
from tilecore.passes import settle
from tilecore.passes.pipeline import run_passes

BLOCK = 16


@T.macro
def guarded(X, x, bx, by, m, n):
    """Loads that a program guards itself."""
    for i, j in T.Parallel(BLOCK, BLOCK):
        row, column = by * BLOCK + i, bx * BLOCK + j
        x[i, j] = T.if_then_else((row < m) and (column < n), X[row, column], -1.0)


@T.macro
def stored(X, x, bx, by, m, n):
    """Stores under a condition, and where it does not hold."""
    for i, j in T.Parallel(BLOCK, BLOCK):
        if by * BLOCK + i >= m:
            x[i, j] = -1.0
        else:
            x[i, j] = X[by * BLOCK + i, T.min(bx * BLOCK + j, n - 1)]


@T.macro
def nested(X, x, bx, by, m, n):
    """A condition inside of another that narrows its range."""
    T.copy(X[by * BLOCK, bx * BLOCK], x)
    for k in T.serial(4):
        for i, j in T.Parallel(BLOCK, BLOCK):
            if i < 8:
                if i + k < 12:
                    x[i, j] = x[i, j] + 1.0
                if i + k > 9:
                    x[i, j] = x[i, j] * 2.0


@T.macro
def in_words(X, x, bx, by, m, n):
    """What wraps around is not what it looks like."""
    T.copy(X[by * BLOCK, bx * BLOCK], x)
    for i, j in T.Parallel(BLOCK, BLOCK):
        byte = T.cast(i * 16 + 100, "uint8")
        x[i, j] = T.if_then_else(byte >= 100, x[i, j], 5.0)


@T.macro
def hashed(X, x, bx, by, m, n):
    """A product that wraps around."""
    T.copy(X[by * BLOCK, bx * BLOCK], x)
    for i, j in T.Parallel(BLOCK, BLOCK):
        one = T.cast(T.cast(j, "uint32") * T.cast(2025150001, "uint32"), "int32")
        if one < 0:
            x[i, j] = x[i, j] + 1.0


@T.macro
def several(X, x, bx, by, m, n):
    """A branch that is always taken: its stores stand beside the others."""
    for i, j in T.Parallel(BLOCK, BLOCK):
        x[i, j] = X[by * BLOCK + i, bx * BLOCK + j]
        if by * BLOCK + i < m:
            x[i, j] = x[i, j] + 1.0
            x[i, j] = x[i, j] * 2.0


@T.macro
def never(X, x, bx, by, m, n):
    """Loops, nests and branches that nothing is left of."""
    T.copy(X[by * BLOCK, bx * BLOCK], x)
    for k in T.serial(3):
        for i, j in T.Parallel(BLOCK, BLOCK):
            if i + k < 0:
                x[i, j] = 0.0
        if k > 5:
            T.clear(x)
    if bx < 0:
        T.clear(x)
    else:
        for i, j in T.Parallel(BLOCK, BLOCK):
            if x[i, j] > 0.0 and j >= BLOCK:
                x[i, j] = 2.0


def program(body, m, n, block_rows):
    @T.prim_func
    def main(X: T.Tensor((m, n), "float32"), Y: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(n, BLOCK), block_rows, threads=128) as (bx, by):
            x = T.alloc_fragment((BLOCK, BLOCK), "float32")
            body(X, x, bx, by, m, n)
            T.copy(x, Y[by * BLOCK, bx * BLOCK])

    return main


def conditions(func):
    """Return how many choices and branches are left."""
    stmts = list(walk(run_passes(func).body))
    chosen = sum(
        isinstance(node, Select)
        for stmt in stmts if isinstance(stmt, Store)
        for e in expressions(stmt)
        for node in walk_expr(e)
    )  # fmt: skip
    return chosen + sum(isinstance(stmt, If) for stmt in stmts)


@pytest.mark.parametrize(
    ("body", "size", "left"),
    [(guarded, (32, 48), 0), (guarded, (32, 40), 1), (guarded, (30, 48), 1), (stored, (32, 48), 0),
     (stored, (30, 48), 1), (nested, (32, 48), 2), (in_words, (32, 48), 1), (hashed, (32, 48), 1),
     (several, (32, 48), 0), (never, (32, 48), 0)],
)  # fmt: skip
def test_what_is_known_is_not_asked(body, size, left, run_both):
    m, n = size
    func = program(body, m, n, -(-m // BLOCK))
    assert conditions(func) == left
    x = np.random.default_rng(0).standard_normal((m, n)).astype(np.float32)
    run_both(func, [x], [np.full_like(x, np.nan)])


def test_what_is_left_of_branches_is_one_sequence():
    func = run_passes(program(several, 32, 48, 2))
    (nest,) = (s for s in walk(func.body) if isinstance(s, Parallel))
    assert isinstance(nest.body, Seq)
    assert [type(stmt) for stmt in nest.body.stmts] == [Store] * 3


def test_sizes_of_the_call_are_asked(run_both):
    m = T.dynamic("m")
    func = program(guarded, m, 48, T.ceildiv(m, BLOCK))
    assert conditions(func) == 1
    for rows in (1, 16, 37):
        x = np.random.default_rng(0).standard_normal((rows, 48)).astype(np.float32)
        run_both(func, [x], [np.full_like(x, np.nan)])


def test_a_launch_that_nothing_is_left_of():
    @T.prim_func
    def main(X: T.Tensor((32, 48), "float32")):
        with T.Kernel(2, 3, threads=128) as (by, bx):
            for i, j in T.Parallel(BLOCK, BLOCK):
                if by * BLOCK + i >= 32:
                    X[by * BLOCK + i, bx * BLOCK + j] = 1.0

    x = np.ones((32, 48), np.float32)
    tilecore.compile(main)(torch.from_numpy(x))
    assert np.all(x == 1)


def test_a_program_without_conditions_stays_the_same_object():
    @T.prim_func
    def main(X: T.Tensor((32, 48), "float32"), Y: T.Tensor((32, 48), "float32")):
        with T.Kernel(2, 2, threads=128) as (bx, by):
            x = T.alloc_fragment((16, 24), "float32")
            T.copy(X[by * 16, bx * 24], x)
            for i, j in T.Parallel(16, 24):
                x[i, j] = x[i, j] + T.if_then_else(x[i, j] > 0, 1.0, 2.0)
            T.copy(x, Y[by * 16, bx * 24])

    assert settle.run(main).body is main.body


def test_a_nest_whose_statements_a_flag_leaves_out_does_nothing(run_both):
    is_causal = False

    @T.prim_func
    def main(X: T.Tensor((33,), "float32"), Y: T.Tensor((33,), "float32")):
        with T.Kernel(1, threads=32) as _:
            x = T.alloc_fragment((33,), "float32")
            T.copy(X, x)
            for k in T.serial(3):
                for i in T.Parallel(33):
                    if is_causal:
                        x[i] += k
            for i in T.Parallel(33):
                if is_causal:
                    x[i] = 0
            T.copy(x, Y)

    x = np.arange(33, dtype=np.float32)
    run_both(main, [x], [np.zeros(33, np.float32)], [x])
