"""Statements over one domain share a loop nest, and only where nobody can tell."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore.inference.cpu.infer import infer
from tilecore.inference.cpu.options import CpuOptions
from tilecore.ir.dtype import DType
from tilecore.passes.pipeline import run_passes
from tilecore.target import parse_target

ROWS, COLUMNS = 6, 70


def groups(func):
    """Return the number of statements in each nest of several of the first launch."""
    plan = infer(run_passes(func), parse_target("avx512"), CpuOptions())
    (launch,) = plan.launches.values()
    nests = {id(nest): nest for nest in launch.fused.values()}.values()
    return sorted(len(nest.members) for nest in nests if len(nest.members) > 1)


def rows_kernel(body, rows=ROWS, columns=COLUMNS, total=10):
    """Return a program whose ``body`` computes the tile y from x; r, q and c are for sums."""

    @T.prim_func
    def main(X: T.Tensor((total, columns), "float32"), Y: T.Tensor((total, columns), "float32")):
        with T.Kernel(T.ceildiv(total, rows)) as b:
            x = T.alloc_fragment((rows, columns), "float32")
            y = T.alloc_fragment((rows, columns), "float32")
            r = T.alloc_fragment((rows,), "float32")
            q = T.alloc_fragment((rows,), "float32")
            c = T.alloc_fragment((columns,), "float32")
            T.copy(X[b * rows, 0], x)
            body(x, y, r, q, c)
            T.copy(y, Y[b * rows, 0])

    return main


@T.macro
def centred(x, y, r, q, c):
    T.reduce_sum(x, r, dim=1)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[i, j] - r[i] / COLUMNS


@T.macro
def centred_columns(x, y, r, q, c):
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[i, j] * 2
    T.reduce_sum(y, c, dim=0)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = y[i, j] - c[j]


@T.macro
def two_folds(x, y, r, q, c):
    T.reduce_max(x, r, dim=1)
    T.reduce_sum(x, q, dim=1)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[i, j] * r[i] + q[i]


@T.macro
def folds_of_other_axes(x, y, r, q, c):
    T.reduce_sum(x, r, dim=1)
    T.reduce_sum(x, c, dim=0)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[i, j] + r[i] + c[j]


@T.macro
def neighbours(x, y, r, q, c):
    for i, j in T.Parallel(ROWS, COLUMNS):
        x[i, j] = x[i, j] * 3
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[i, T.max(j - 1, 0)]


@T.macro
def swapped(x, y, r, q, c):
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[ROWS - 1 - i, j]
    for i, j in T.Parallel(ROWS, COLUMNS):
        x[i, j] = y[i, j] + 1
    T.copy(x, y)


@T.macro
def one_column_for_all(x, y, r, q, c):
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[i, j] * x[i, 3]
    for i, j in T.Parallel(ROWS, COLUMNS):
        x[i, j] = y[i, j] * x[i, j]
    T.copy(x, y)


def centred_of(x, axis, scale=1):
    rows = [x[i : i + ROWS] for i in range(0, len(x), ROWS)]
    if axis == 1:
        return x - x.mean(1, keepdims=True)
    return np.concatenate([scale * (r - r.sum(0)) for r in rows])


def folded_twice(x):
    return x * x.max(1, keepdims=True) + x.sum(1, keepdims=True)


def other_axes(x):
    found = []
    for i in range(0, len(x), ROWS):
        block = x[i : i + ROWS]
        found.append(block + block.sum(1, keepdims=True) + block.sum(0))
    return np.concatenate(found)


def mirrored(x):
    padded = np.concatenate([x, np.zeros((-len(x) % ROWS, COLUMNS))]).reshape(-1, ROWS, COLUMNS)
    return (padded[:, ::-1].reshape(-1, COLUMNS) + 1)[: len(x)]


CASES = {  # the program's body, what it computes, statements in each nest
    "centred": (centred, lambda x: centred_of(x, 1), [2]),
    "columns": (centred_columns, lambda x: centred_of(x, 0, 2), [2, 2]),
    "two folds": (two_folds, folded_twice, [2, 2]),
    "folds of other axes": (folds_of_other_axes, other_axes, [2, 2]),
    "neighbours": (neighbours, lambda x: 3 * x[:, [0, *range(COLUMNS - 1)]], [2]),
    "mirrored": (swapped, mirrored, [4]),
    "one column": (one_column_for_all, lambda x: x * x * x[:, 3:4], [4]),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_programs(name, run_both):
    body, expected, sizes = CASES[name]
    func = rows_kernel(body)
    assert groups(func) == sizes
    x = np.random.default_rng(0).standard_normal((10, COLUMNS)).astype(np.float32)
    want = expected(x.astype(np.float64))
    run_both(func, [x], [np.zeros_like(x)], [want], rtol=1e-5, atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("op", ["sum", "max", "min", "absmax"])
@pytest.mark.parametrize(("rows", "columns"), [(3, 16), (5, 333), (1, 64), (4, 7)])
def test_folds_with_tails_and_nan(op, rows, columns, run_both):
    fold = getattr(T, f"reduce_{op}")

    @T.prim_func
    def main(X: T.Tensor((8, columns), "float32"), R: T.Tensor((8,), "float32")):
        with T.Kernel(T.ceildiv(8, rows)) as b:
            x = T.alloc_fragment((rows, columns), "float32")
            r = T.alloc_fragment((rows,), "float32")
            T.fill(r, 0.5)
            T.copy(X[b * rows, 0], x)
            for i, j in T.Parallel(rows, columns):
                x[i, j] = x[i, j] * 2
            fold(x, r, dim=1, clear=False)
            T.copy(r, R[b * rows])

    x = np.random.default_rng(1).standard_normal((8, columns)).astype(np.float32)
    x[2, columns // 2] = np.nan
    step = {"sum": np.sum, "max": np.fmax.reduce, "min": np.fmin.reduce}.get(op)
    doubled = 2.0 * x.astype(np.float64)
    found = np.fmax.reduce(np.abs(doubled), 1) if step is None else step(doubled, axis=1)
    rest = {"sum": np.add, "min": np.fmin}.get(op, np.fmax)
    assert sorted(groups(main)) == [2]
    run_both(main, [x], [np.zeros(8, np.float32)], [rest(found, 0.5)], rtol=1e-5)


def test_a_statement_does_not_pass_what_it_depends_on(run_both):
    @T.prim_func
    def main(X: T.Tensor((4, 64), "float32"), Y: T.Tensor((4, 64), "float32")):
        with T.Kernel(1):
            x = T.alloc_fragment((4, 64), "float32")
            y = T.alloc_fragment((4, 64), "float32")
            s = T.alloc_fragment((4,), "float32")
            T.copy(X, x)
            for i in T.Parallel(4):
                s[i] = x[i, 5]
            for i, j in T.Parallel(4, 64):
                y[i, j] = x[i, j] * s[i]
            for i in T.Parallel(4):
                x[i, 7] = 0.0
            for i, j in T.Parallel(4, 64):
                y[i, j] = y[i, j] + x[i, j]
            T.copy(y, Y)

    assert groups(main) == [2]  # the last two: what stands between them ends the others
    x = np.random.default_rng(2).standard_normal((4, 64)).astype(np.float32)
    want = x.astype(np.float64) * x[:, 5:6]
    rest = x.copy()
    rest[:, 7] = 0
    run_both(main, [x], [np.zeros_like(x)], [want + rest])


def test_a_condition_that_stands_twice_in_the_program(run_both):
    """The reduction of T.any_of is one statement before the loop and in its body."""

    @T.prim_func
    def main(A: T.Tensor((32,), "int32"), B: T.Tensor((32,), "int32")):
        with T.Kernel(1):
            left = T.alloc_fragment((32,), "int32")
            T.copy(A, left)
            while T.any_of(left):
                for i in T.Parallel(32):
                    left[i] = T.max(left[i] - 2, 0)
            T.copy(left, B)

    a = np.arange(32, dtype=np.int32)
    run_both(main, [a], [np.ones(32, np.int32)], [np.zeros(32)])


def test_blocks_of_a_task(run_both):
    """More blocks than tasks: each task runs several, the last one fewer."""

    @T.prim_func
    def main(X: T.Tensor((1100, 20), "float32"), Y: T.Tensor((1100, 20), "float32")):
        with T.Kernel(1100) as b:
            x = T.alloc_fragment((20,), "float32")
            T.copy(X[b, 0], x)
            for j in T.Parallel(20):
                x[j] = x[j] + b
            T.copy(x, Y[b, 0])

    x = np.random.default_rng(3).standard_normal((1100, 20)).astype(np.float32)
    run_both(main, [x], [np.zeros_like(x)], [x + np.arange(1100.0)[:, None]], rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("op", ["sum", "max", "absmax"])
@pytest.mark.parametrize(("rows", "columns"), [(3, 16), (5, 33), (8, 64), (4, 7), (1, 40)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_columns_of_a_tensor_are_folded_by_rows(dtype, op, rows, columns, run_both):
    """What is read of a tensor goes to the folds of its columns as it comes."""

    @T.prim_func
    def main(X: T.Tensor((10, 70), dtype), R: T.Tensor((70,), "float32")):
        with T.Kernel(T.ceildiv(70, columns)) as b:
            x = T.alloc_fragment((rows, columns), "float32")
            r = T.alloc_fragment((columns,), "float32")
            T.fill(r, 0.25)
            for k in T.serial(T.ceildiv(10, rows)):
                for i, j in T.Parallel(rows, columns):
                    value = T.cast(X[k * rows + i, b * columns + j], "float32")
                    x[i, j] = value * 2
                T.reduce(x, r, op, dim=0, clear=False, nan_propagate=True)
            T.copy(r, R[b * columns])

    x = np.random.default_rng(1).standard_normal((10, 70)).astype(DType(dtype).numpy)
    x[2, 3] = np.nan
    doubled = 2.0 * x.astype(np.float64)
    found = {"sum": doubled.sum(0), "max": doubled.max(0), "absmax": np.abs(doubled).max(0)}[op]
    want = found + 0.25 if op == "sum" else np.maximum(found, 0.25)
    assert groups(main) == [2] if rows > 1 else groups(main) in ([], [2])
    run_both(main, [x], [np.zeros(70, np.float32)], [want], rtol=1e-5)


@T.macro
def names_one_value(x, y, r, q, c):
    for i, j in T.Parallel(ROWS, COLUMNS):
        wide = T.exp(x[i, j])
        y[i, j] = wide + 1
    T.reduce_sum(y, r, dim=1)


@T.macro
def names_an_element_for_many(x, y, r, q, c):
    for i, j in T.Parallel(ROWS, COLUMNS):
        value = x[i, j]
        y[i, j] = value * value + value
    T.reduce_sum(y, r, dim=1)


@T.macro
def computes_a_name_for_many(x, y, r, q, c):
    for i, j in T.Parallel(ROWS, COLUMNS):
        power = T.exp(x[i, j])
        y[i, j] = power * power
    T.reduce_sum(y, r, dim=1)


@T.macro
def names_a_sum_for_many(x, y, r, q, c):
    for i, j in T.Parallel(ROWS, COLUMNS):
        twice = x[i, j] * 2 + 1
        kept = T.if_then_else(twice > 1, twice, -twice)
        y[i, j] = kept * kept + twice
    T.reduce_sum(y, r, dim=1)


@T.macro
def names_long_arithmetic(x, y, r, q, c):
    for i, j in T.Parallel(ROWS, COLUMNS):
        a = x[i, j] / 4 + 1
        b = a * a - a
        d = b * b + b * a
        e = d * d - d * b + d
        y[i, j] = e * e
    T.reduce_sum(y, r, dim=1)


@T.macro
def names_what_is_stored_anew(x, y, r, q, c):
    for i, j in T.Parallel(ROWS, COLUMNS):
        old = x[i, j]
        x[i, j] = old + 1
        y[i, j] = old * x[i, j]
    T.reduce_sum(y, r, dim=1)


@T.macro
def rounds_by_a_name(x, y, r, q, c):
    for i, j in T.Parallel(ROWS, COLUMNS):
        short = T.cast(x[i, j] * 3, "bfloat16")
        y[i, j] = T.cast(short, "float32")
    T.reduce_sum(y, r, dim=1)


def long_arithmetic(x):
    a = x / 4 + 1
    b = a * a - a
    d = b * b + b * a
    return (d * d - d * b + d) ** 2


NAMED = {  # the body, what it computes, statements in each nest
    "one value": (names_one_value, lambda x: np.exp(x) + 1, [3]),
    "an element": (names_an_element_for_many, lambda x: x * x + x, [3]),
    "a sum": (
        names_a_sum_for_many,
        lambda x: (2 * x + 1) ** 2 + 2 * x + 1,
        [3],
    ),
    "long arithmetic": (names_long_arithmetic, long_arithmetic, [2]),
    "computed once": (computes_a_name_for_many, lambda x: np.exp(x) ** 2, [2]),
    "stored anew": (names_what_is_stored_anew, lambda x: x * (x + 1), [3]),
    "rounded": (
        rounds_by_a_name,
        lambda x: (x * 3).astype(np.float32).astype(DType("bfloat16").numpy).astype(np.float64),
        [2],
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMED)
def test_names_inside_a_nest(name, run_both):
    """Named values do not keep statements apart where the names can be done without."""
    body, expected, sizes = NAMED[name]
    func = rows_kernel(body)
    assert groups(func) == sizes
    x = np.random.default_rng(0).integers(-40, 40, (10, COLUMNS)).astype(np.float32) / 16
    want = expected(x.astype(np.float64))
    run_both(func, [x], [np.zeros_like(x)], [want], rtol=1e-5, atol=1e-4)


def test_a_name_for_what_is_stored_before_its_use_stays(run_both):
    @T.prim_func
    def main(X: T.Tensor((6, 70), "float32"), Y: T.Tensor((6, 70), "float32")):
        with T.Kernel(1):
            r = T.alloc_fragment((6,), "float32")
            y = T.alloc_fragment((6, 70), "float32")
            for i, j in T.Parallel(6, 70):
                old = X[i, j]
                X[i, j] = old + 1
                y[i, j] = old * X[i, j]
            T.reduce_sum(y, r, dim=1)
            for i, j in T.Parallel(6, 70):
                Y[i, j] = y[i, j] + r[i]

    assert groups(main) == []
    x = np.random.default_rng(4).standard_normal((6, 70)).astype(np.float32)
    product = x.astype(np.float64) * (x + 1)
    want = product + product.sum(1, keepdims=True)
    run_both(main, [], [x, np.zeros_like(x)], [x + 1.0, want], atol=1e-4)


def test_a_nest_that_does_nothing_is_no_member(run_both):
    """Its condition never holds, a name is left: inference failed at it (2026-11-27)."""

    @T.prim_func
    def main(X: T.Tensor((4, 32), "float32"), Y: T.Tensor((4, 32), "float32")):
        with T.Kernel(1, threads=64):
            y = T.alloc_shared((4, 32), "float32")
            T.fill(y, 3.0)
            for i, j in T.Parallel(4, 32):
                v = X[i, j] * 2.0
                if i - 11 >= 19:
                    y[i, j] = v
            T.copy(y, Y)

    x = np.ones((4, 32), np.float32)
    run_both(main, [x], [np.zeros_like(x)], [np.full_like(x, 3)])
