"""Statements over rows of tiles run row by row: where, with which tiles, and to what result."""

import runpy

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import tilecore.language as T
from tests.tilecore.program_generator import Program, programs
from tilecore import runtime
from tilecore.compiler import compile
from tilecore.interpreter import run
from tilecore.ir.nodes import Alloc, For
from tilecore.ir.visitor import walk
from tilecore.passes import rows_in_turn
from tilecore.passes.pipeline import run_passes

ROWS, COLUMNS = 16, 1000


def loops(func, always=False):
    """Return how many loops over rows the pass makes."""
    body = rows_in_turn.run(func, always=always).body
    return sum(isinstance(s, For) and s.loop_var.name == "row" for s in walk(body))


def heights(func):
    """Return the rows of each tile after the passes."""
    tiles = [s.buffer for s in walk(run_passes(func).body) if isinstance(s, Alloc)]
    return {b.name: b.static_shape[0] for b in tiles}


def rows(body, m=100, n=COLUMNS, dtype="float32", height=ROWS):
    """Return a program whose ``body`` computes y, and sums of each row and column, from x."""

    @T.prim_func
    def main(
        X: T.Tensor((m, n), dtype),
        W: T.Tensor((n,), dtype),
        Y: T.Tensor((m, n), dtype),
        R: T.Tensor((m,), dtype),
        C: T.Tensor((T.ceildiv(m, height), n), dtype),
    ):
        with T.Kernel(T.ceildiv(m, height), threads=128) as b:
            x = T.alloc_fragment((height, n), dtype)
            w = T.alloc_fragment((n,), dtype)
            y = T.alloc_fragment((height, n), dtype)
            r = T.alloc_fragment((height,), dtype)
            c = T.alloc_fragment((n,), dtype)
            T.copy(X[b * height, 0], x)
            T.copy(W, w)
            body(x, w, y, r, c, height, n)
            T.copy(y, Y[b * height, 0])
            T.copy(r, R[b * height])
            T.copy(c, C[b, 0])

    return main


@T.macro
def centred(x, w, y, r, c, height, n):
    T.reduce_sum(x, r, dim=1)
    for i, j in T.Parallel(height, n):
        y[i, j] = (x[i, j] - r[i] / n) * w[j]
    T.reduce_sum(y, c, dim=0)


@T.macro
def largest(x, w, y, r, c, height, n):
    T.reduce_absmax(x, r, dim=1)
    for i, j in T.Parallel(height, n):
        y[i, j] = x[i, j] / r[i] + w[j]
    T.fill(c, 0.5)
    T.reduce_max(y, c, dim=0, clear=False)


@T.macro
def across(x, w, y, r, c, height, n):
    T.reduce_sum(x, r, dim=1)
    for i, j in T.Parallel(height, n):
        y[i, j] = x[height - 1 - i, j] * r[i] + w[j]
    T.reduce_sum(y, c, dim=0)


@T.macro
def of_all(x, w, y, r, c, height, n):
    T.reduce_sum(x, c, dim=0)
    for i, j in T.Parallel(height, n):
        y[i, j] = x[i, j] - c[j] / height + w[j]
    T.reduce_sum(y, r, dim=1)


def exact(body, x, w, height):
    """Return what the body gives, in float64."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    y, r, c = np.zeros_like(x), np.zeros(len(x)), []
    for first in range(0, len(x), height):
        padded = np.zeros((height, x.shape[1]))
        own = x[first : first + height]
        padded[: len(own)] = own
        if body is largest:
            sums = np.abs(padded).max(1)
            with np.errstate(invalid="ignore"):
                new = padded / sums[:, None] + w
            columns = np.maximum(np.nanmax(new, 0), 0.5)
        elif body is of_all:
            columns = padded.sum(0)
            new = padded - columns / height + w
            sums = new.sum(1)
        else:
            sums = padded.sum(1)
            given = padded[::-1] if body is across else padded
            if body is across:
                new = given * sums[:, None] + w
            else:
                new = (given - sums[:, None] / x.shape[1]) * w
            columns = new.sum(0)
        y[first : first + height], r[first : first + height] = new[: len(own)], sums[: len(own)]
        c.append(columns)
    return y, r, np.stack(c)


@pytest.mark.few(8)
@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize("shape", [(96, 1000), (100, 1003), (33, 512)])
@pytest.mark.parametrize("body", [centred, largest, across, of_all], ids=lambda b: b.__name__)
def test_results(body, shape, target, artifacts):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, dtype=np.float32)
    w = rng.standard_normal(shape[1], dtype=np.float32)
    kernel = runtime.load(compile(rows(body, *shape), target, store=artifacts))
    wanted = exact(body, x, w, ROWS)
    found = [np.empty(one.shape, np.float32) for one in wanted]
    kernel(x, w, *found)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4 * np.abs(want).max())


def test_one_row_is_enough_for_what_is_handed_on():
    func = rows(centred)
    assert loops(func) == 1
    assert heights(func) == {"x": 1, "w": COLUMNS, "y": 1, "r": 1, "c": COLUMNS}


@pytest.mark.parametrize(
    ("func", "why"),
    [
        (rows(centred, height=1), "one row"),
        (rows(centred, n=100), "short rows fit L1 together"),
        (rows(centred, n=192, height=64), "sums of short rows are closed together"),
        (rows(of_all), "columns are summed before rows begin"),
    ],
)
def test_not_where(func, why):
    assert loops(func) == 0, why


def test_a_row_that_others_read_waits_for_all():
    func = rows(across)
    assert loops(func, always=True) == 2
    assert heights(func)["x"] == ROWS


def test_rows_of_a_tensor_in_place():
    """What is computed from rows that are stored and read again is what it was."""

    @T.prim_func
    def main(X: T.Tensor((64, 2048), "float32")):
        with T.Kernel(4) as b:
            x = T.alloc_fragment((16, 2048), "float32")
            s = T.alloc_fragment((16,), "float32")
            T.copy(X[b * 16, 0], x)
            T.reduce_sum(x, s, dim=1)
            for i, j in T.Parallel(16, 2048):
                X[b * 16 + i, j] = x[i, j] + s[i]
            for i, j in T.Parallel(16, 2048):
                X[b * 16 + (i + 1) % 16, j] += s[i]

    x = np.random.default_rng(1).standard_normal((64, 2048), dtype=np.float32)
    blocks = x.astype(np.float64).reshape(4, 16, 2048)
    sums = blocks.sum(-1, keepdims=True)
    runtime.load(compile(main))(x)
    wanted = blocks + sums + np.roll(sums, 1, axis=1)
    np.testing.assert_allclose(x, wanted.reshape(64, 2048), rtol=1e-4, atol=1e-3)


FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=4, suppress_health_check=FIXTURES)
@given(program=programs())
def test_the_meaning_of_programs_stays(program: Program, tmp_path):
    _check_meaning(program, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=40, suppress_health_check=FIXTURES)
@given(program=programs())
def test_the_meaning_of_many_programs_stays(program: Program, tmp_path):
    _check_meaning(program, tmp_path)


def _check_meaning(program: Program, tmp_path):
    file = tmp_path / f"program{abs(hash(program.source))}.py"
    file.write_text(program.source)
    func = runpy.run_path(str(file), {"T": T})["main"]
    before, after = ([array.copy() for array, _ in program.outputs] for _ in range(2))
    run(func, *[x.copy() for x in program.inputs], *before, seed=5)
    changed = rows_in_turn.run(func, always=True)
    run(changed, *[x.copy() for x in program.inputs], *after, seed=5)
    for got, want, (_, tolerance) in zip(after, before, program.outputs, strict=True):
        difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
        assert difference.max(initial=0.0) <= tolerance, program
