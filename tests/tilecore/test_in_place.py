"""Copies that need not be made: what nests read where it lies, and what they fetch ahead."""

import re

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.test_assembly import assembly
from tilecore import kernels
from tilecore.inference.cpu.infer import infer
from tilecore.inference.cpu.options import CpuOptions
from tilecore.ir.dtype import DType
from tilecore.passes.pipeline import run_passes
from tilecore.target import parse_target

ROWS, COLUMNS = 4, 48


def in_place(func):
    """Return the names of the tiles of the first launch that are read in place."""
    plan = infer(run_passes(func), parse_target("avx512"), CpuOptions())
    (launch,) = plan.launches.values()
    return sorted(b.name for b, tile in launch.tiles.items() if tile.placement == "in_place")


def fetching(func):
    """Return the lines of the nests that fetch what tiles read next, and to which cache."""
    plan = infer(run_passes(func), parse_target("avx512"), CpuOptions())
    (launch,) = plan.launches.values()
    nests = {id(nest): nest for nest in launch.fused.values()}.values()
    return sorted((a.tile.name, "L1" if a.is_near else "L2") for n in nests for a in n.ahead)


@T.macro
def scaled(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.reduce_max(x, r, dim=1)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[i, j] * r[i]


@T.macro
def named(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.reduce_max(x, r, dim=1)
    for i, j in T.Parallel(ROWS, COLUMNS):
        value = x[i, j] * r[i]
        y[i, j] = value + x[i, j]


@T.macro
def named_for_two(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.reduce_max(x, r, dim=1)
    for i, j in T.Parallel(ROWS, COLUMNS):
        value = x[i, j] * r[i]
        y[i, j] = value * value


@T.macro
def named_and_read_once(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.clear(r)
    for i, j in T.Parallel(ROWS, COLUMNS):
        value = x[i, j] * 2
        y[i, j] = value + x[i, j]


@T.macro
def named_elsewhere(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.reduce_max(x, r, dim=1)
    for i, j in T.Parallel(ROWS, COLUMNS):
        value = x[i, (j * j) % COLUMNS]
        y[i, j] = value * r[i]


@T.macro
def computed_anew(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.reduce_sum(x, r, dim=1)
    for i, j in T.Parallel(ROWS, COLUMNS):
        x[i, j] = x[i, j] - r[i]
        y[i, j] = x[i, j] * x[i, j]
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = y[i, j] + x[i, COLUMNS - 1 - j]


@T.macro
def copied_anew(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    for i, j in T.Parallel(ROWS, COLUMNS):
        x[i, j] = x[i, j] * 2
    T.reduce_sum(x, r, dim=1)
    T.copy(X[b * ROWS, 0], x)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[i, j] + r[i]


@T.macro
def computed_in_part(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.reduce_sum(x, r, dim=1)
    for i, j in T.Parallel(ROWS - 1, COLUMNS):
        x[i, j] = x[i, j] - r[i]
    T.copy(x, y)


@T.macro
def computed_from_neighbours(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.reduce_sum(x, r, dim=1)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[ROWS - 1 - i, j]
    T.copy(y, x)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[i, j] * r[i]


@T.macro
def turned(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.reduce_sum(x, r, dim=1)
    for j, i in T.Parallel(COLUMNS, ROWS):
        y[i, j] = x[i, j] + r[i]


@T.macro
def folded_down_columns(X, x, y, r, b):
    c = T.alloc_fragment((COLUMNS,), "float32")
    T.copy(X[b * ROWS, 0], x)
    T.reduce_sum(x, r, dim=1)
    T.reduce_sum(x, c, dim=0)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = c[j] + r[i]


@T.macro
def read_again_and_again(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.reduce_sum(x, r, dim=1)
    T.clear(y)
    for k in range(3):
        for i, j in T.Parallel(ROWS, COLUMNS):
            y[i, j] = y[i, j] + x[i, j] * k


@T.macro
def looked_up(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.reduce_sum(x, r, dim=1)
    for i, j in T.Parallel(ROWS, COLUMNS):
        y[i, j] = x[i, (j * j) % COLUMNS]


@T.macro
def scanned(X, x, y, r, b):
    T.copy(X[b * ROWS, 0], x)
    T.reduce_sum(x, r, dim=1)
    T.cumsum(x, y, dim=1)


# the program's statements: what is read in place, what is fetched ahead
PROGRAMS = {
    scaled: (["x"], ["x"]), named: (["x"], ["x"]), named_for_two: (["x"], ["x"]),
    named_and_read_once: (["x"], []), named_elsewhere: ([], []),
    computed_anew: (["x"], ["x"]), copied_anew: (["x"], []),
    computed_in_part: ([], []), computed_from_neighbours: ([], []), turned: ([], []),
    folded_down_columns: ([], []), read_again_and_again: ([], []), looked_up: ([], []),
    scanned: ([], []),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("rows", [12, 10])  # whole blocks, and rows that the tensor has not
@pytest.mark.parametrize("body", PROGRAMS, ids=lambda body: body.__name__)
def test_what_nests_read_along_rows_is_not_copied(body, rows, run_both):
    @T.prim_func
    def main(
        X: T.Tensor((rows, COLUMNS), "float32"),
        Y: T.Tensor((rows, COLUMNS), "float32"),
        R: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(3) as b:
            x = T.alloc_fragment((ROWS, COLUMNS), "float32")
            y = T.alloc_fragment((ROWS, COLUMNS), "float32")
            r = T.alloc_fragment((ROWS,), "float32")
            body(X, x, y, r, b)
            T.copy(y, Y[b * ROWS, 0])
            T.copy(r, R[b * ROWS])

    placed, ahead = PROGRAMS[body]
    assert in_place(main) == placed
    assert fetching(main) == [(name, "L1") for name in ahead]
    x = np.random.default_rng(0).standard_normal((rows, COLUMNS)).astype(np.float32)
    run_both(main, [x], [np.zeros_like(x), np.zeros(rows, np.float32)], atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("source", "tile", "is_read"),
    [
        ("float32", "float32", True), ("float16", "float32", True), ("bfloat16", "float32", True),
        ("float64", "float64", True), ("float16", "float16", True), ("float32", "float16", False),
        ("int8", "float32", False), ("float8_e4m3fn", "float32", False), ("int32", "int32", False),
    ],
)  # fmt: skip
def test_only_types_that_are_read_as_quickly_are_not_copied(source, tile, is_read, run_both):
    @T.prim_func
    def main(X: T.Tensor((8, 2, COLUMNS), source), Y: T.Tensor((8, COLUMNS), "float32")):
        with T.Kernel(4) as b:
            x = T.alloc_fragment((2, COLUMNS), tile)
            r = T.alloc_fragment((2,), tile)
            T.copy(X[b * 2 : b * 2 + 2, 1, :], x)
            T.reduce_max(x, r, dim=1)
            for i, j in T.Parallel(2, COLUMNS):
                Y[b * 2 + i, j] = T.cast(x[i, j], "float32") + T.cast(r[i], "float32")

    assert in_place(main) == (["x"] if is_read else [])
    found = np.random.default_rng(1).integers(-40, 40, (8, 2, COLUMNS))
    x = found.astype(DType(source).numpy)
    run_both(main, [x], [np.zeros((8, COLUMNS), np.float32)])


def test_a_tensor_of_unknown_strides_and_rows_is_read_in_place(run_both):
    rows, stride = T.dynamic("rows"), T.dynamic("stride")

    @T.prim_func
    def main(
        X: T.StridedTensor((rows, COLUMNS), (stride, 1), "float32"),
        Y: T.Tensor((rows, COLUMNS), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, ROWS)) as b:
            x = T.alloc_fragment((ROWS, COLUMNS), "float32")
            r = T.alloc_fragment((ROWS,), "float32")
            T.copy(X[b * ROWS, 0], x)
            T.reduce_sum(x, r, dim=1)
            for i, j in T.Parallel(ROWS, COLUMNS):
                x[i, j] = x[i, j] * r[i]
            T.copy(x, Y[b * ROWS, 0])

    assert in_place(main) == ["x"]
    assert fetching(main) == [("x", "L1")]
    for count in (1, 4, 11):
        x = np.random.default_rng(2).standard_normal((count, 100)).astype(np.float32)[:, :COLUMNS]
        run_both(main, [x], [np.zeros((count, COLUMNS), np.float32)], atol=1e-4)


def test_a_tensor_that_the_launch_writes_is_copied(run_both):
    @T.prim_func
    def main(X: T.Tensor((8, COLUMNS), "float32")):
        with T.Kernel(2) as b:
            x = T.alloc_fragment((ROWS, COLUMNS), "float32")
            r = T.alloc_fragment((ROWS,), "float32")
            T.copy(X[b * ROWS, 0], x)
            T.reduce_sum(x, r, dim=1)
            for i, j in T.Parallel(ROWS, COLUMNS):
                X[b * ROWS + i, j] = x[i, COLUMNS - 1 - j] * r[i]

    assert in_place(main) == []
    x = np.random.default_rng(3).standard_normal((8, COLUMNS)).astype(np.float32)
    want = x[:, ::-1] * x.sum(1, keepdims=True)
    run_both(main, [], [x], [want], atol=1e-4)


def test_a_place_that_a_variable_names_is_copied_when_it_says_so(run_both):
    """The variable names another place before the tile is read (wrong results on 2026-11-25)."""

    @T.prim_func
    def main(
        X: T.Tensor((64, COLUMNS), "float32"),
        W: T.Tensor((COLUMNS, COLUMNS), "float32"),
        Y: T.Tensor((ROWS, COLUMNS), "float32"),
        Z: T.Tensor((ROWS, COLUMNS), "float32"),
    ):
        with T.Kernel(1):
            x = T.alloc_fragment((ROWS, COLUMNS), "float32")
            a = T.alloc_shared((ROWS, COLUMNS), "float32")
            w = T.alloc_shared((COLUMNS, COLUMNS), "float32")
            z = T.alloc_fragment((ROWS, COLUMNS), "float32")
            r = T.alloc_fragment((ROWS,), "float32")
            step = T.alloc_var("int32")
            step = 3
            T.copy(X[(step % 8) * ROWS, 0], x)
            T.copy(X[(step % 8) * ROWS, 0], a)
            T.copy(W, w)
            T.reduce_max(x, r, dim=1)
            step = 5
            for i, j in T.Parallel(ROWS, COLUMNS):
                Y[i, j] = x[i, j] * r[i]
            T.gemm(a, w, z, clear_accum=True)
            T.copy(z, Z)

    assert in_place(main) == ["w"]
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal((n, COLUMNS)).astype(np.float32) for n in (64, COLUMNS))
    rows = x[3 * ROWS : 4 * ROWS]
    empty = np.zeros((ROWS, COLUMNS), np.float32)
    run_both(main, [x, w], [empty, empty], [rows * rows.max(1, keepdims=True), rows @ w], atol=1e-4)


def test_the_scaled_operand_of_a_product_stays_one_tile(run_both):
    @T.prim_func
    def main(
        X: T.Tensor((ROWS, COLUMNS), "float32"),
        W: T.Tensor((COLUMNS, COLUMNS), "float32"),
        Y: T.Tensor((ROWS, COLUMNS), "float32"),
    ):
        with T.Kernel(1):
            x = T.alloc_shared((ROWS, COLUMNS), "float32")
            w = T.alloc_shared((COLUMNS, COLUMNS), "float32")
            y = T.alloc_fragment((ROWS, COLUMNS), "float32")
            T.copy(X, x)
            T.copy(W, w)
            for i, j in T.Parallel(ROWS, COLUMNS):
                x[i, j] = x[i, j] * 0.5
            for i, j in T.Parallel(COLUMNS, COLUMNS):
                value = w[i, j] + 1
                w[i, j] = value
            T.gemm(x, w, y, clear_accum=True)
            T.copy(y, Y)

    assert not re.search("[xw]_new", str(run_passes(main)))
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal((n, COLUMNS)).astype(np.float32) for n in (ROWS, COLUMNS))
    run_both(main, [x, w], [np.zeros_like(x)], [0.5 * x @ (w + 1)], atol=1e-4)


@pytest.mark.parametrize(("columns", "cache"), [(1024, ["L1"]), (4096, ["L2"]), (40000, [])])
def test_rows_are_fetched_to_the_cache_that_holds_them(columns, cache):
    softmax = kernels.get("softmax")
    problem = softmax.parse_problem({"m": 64, "n": columns})
    program = softmax.program(problem, {"block_M": 1, "threads": 128})
    assert fetching(program) == [("x", name) for name in cache]


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_line_is_fetched_once_and_small_tiles_take_no_memory_of_the_pool(target, dtype):
    kernel = kernels.get("layer_norm")
    problem = kernel.parse_problem({"m": 64, "n": 1024, "dtype": dtype})
    lines = assembly(target, kernel.program(problem, {"block_M": 1, "threads": 128}))
    itemsize = 4 if dtype == "float32" else 2
    lanes = {"avx512": 16, "avx2": 8}[target]
    fetches = sum("prefetcht0" in line for line in lines)
    vectors = fetches * 64 // (lanes * itemsize)  # that an iteration of the loop reads
    assert fetches > 0
    assert 1024 % (vectors * lanes) == 0
    assert not any(re.search(r"\bcall\w*\s.*Workspace", line) for line in lines)
