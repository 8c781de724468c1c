"""Where barriers and fences stand, and where not: by the proof of order, and on the emulator."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.codegen.order_proof import ENOUGH, order_programs
from tilecore.emulator import ALL_SCHEDULES
from tilecore.inference.gpu.threads.turns import write_apart
from tilecore.ir import nodes
from tilecore.ir.visitor import walk
from tilecore.ordering import unneeded
from tilecore.ordering.check import acts

TARGETS = ("sm_80", "h100")
ROWS, COLUMNS, THREADS = 37, 64, 128


def in_loops(func, target, kinds=("barrier", "fence")):
    """Return the barriers and fences in the loops of the one kernel of a program."""
    (kernel,) = order_programs(lowered(func, target)[1])
    assert unneeded(kernel, ENOUGH) == []
    return [kernel.sites[a.site].text for a in acts(kernel, inside_loops=True) if a.kind in kinds]


def by_rows(step, width):
    """Fill a tile piece by piece, each turn ``width`` elements from ``step * i`` on; turn it."""
    size = step * (ROWS - 1) + width

    @T.prim_func
    def main(A: T.Tensor((ROWS, width), "float32"), B: T.Tensor((size,), "float32")):
        with T.Kernel(1, threads=THREADS):
            tile = T.alloc_shared((size,), "float32")
            for i in T.serial(ROWS):
                for j in T.Parallel(width):
                    tile[step * i + j] = A[i, j]
            for j in T.Parallel(size):
                B[j] = tile[size - 1 - j]

    return main


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("step", "width", "meets"), [(64, 64, False), (70, 64, False), (40, 64, True)]
)
def test_turns_that_write_other_elements_need_no_barrier(step, width, meets, target):
    func = by_rows(step, width)
    assert bool(in_loops(func, target)) == meets
    a = np.random.default_rng(1).standard_normal((ROWS, width)).astype(np.float32)
    size = step * (ROWS - 1) + width
    expected, out = np.zeros(size, np.float32), np.full(size, np.nan, np.float32)
    for i, row in enumerate(a):
        expected[step * i : step * i + width] = row
    run_emulated(func, target, [a, out], ALL_SCHEDULES)
    is_written = np.arange(size) % step < width if step >= width else np.ones(size, bool)
    assert np.array_equal(out[::-1][is_written], expected[is_written])


@pytest.mark.parametrize(
    ("row", "column", "inner", "expected"),
    [
        # outer loop i < 6, inner loop k < 4, parallel j < 8
        (lambda i, k, j: i, lambda i, k, j: k * 8 + j, True, True),
        (lambda i, k, j: i, lambda i, k, j: k * 8 + j, False, True),
        (lambda i, k, j: 0, lambda i, k, j: k * 8 + j, False, False),
        (lambda i, k, j: i * 4 + k, lambda i, k, j: j, False, True),
        (lambda i, k, j: i * 3 + k, lambda i, k, j: j, False, False),
        (lambda i, k, j: i * 3 + k, lambda i, k, j: j, True, True),
        (lambda i, k, j: 0, lambda i, k, j: k * 7 + j, True, False),
        (lambda i, k, j: i % 3, lambda i, k, j: j, False, False),
    ],
)
def test_which_turns_write_apart(row, column, inner, expected):
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32, 32), "float32")
            for i in T.serial(6):
                for k in T.serial(4):
                    for j in T.Parallel(8):
                        tile[row(i, k, j), column(i, k, j)] = A[j]
            T.copy(tile[0, 0:8], B)

    loops = [s for s in walk(main.body) if isinstance(s, nodes.For)]
    (nest,) = (s for s in walk(main.body) if isinstance(s, nodes.Parallel))
    (tile,) = (s.buffer for s in walk(main.body) if isinstance(s, nodes.Alloc))
    assert write_apart(nest, tile, loops[1 if inner else 0]) == expected
    if expected and inner:
        places = {(row(5, k, j), column(5, k, j)) for k in range(4) for j in range(8)}
        assert len(places) == 32


def around_a_loop(turns):
    """Write a tile, run a loop in which threads meet, read the tile in another order."""

    @T.prim_func
    def main(
        A: T.Tensor((THREADS,), "float32"),
        N: T.Tensor((1,), "int32"),
        B: T.Tensor((THREADS,), "float32"),
        C: T.Tensor((THREADS,), "float32"),
    ):
        with T.Kernel(1, threads=THREADS):
            one = T.alloc_shared((THREADS,), "float32")
            other = T.alloc_shared((THREADS,), "float32")
            for j in T.Parallel(THREADS):
                other[j] = 2 * A[j]
            for j in T.Parallel(THREADS):
                one[j] = A[j]
            for i in T.serial(N[0] if turns is None else turns):
                for j in T.Parallel(THREADS):
                    C[j] = other[THREADS - 1 - j]
                for j in T.Parallel(THREADS):
                    other[j] = A[j] + i
            for j in T.Parallel(THREADS):
                B[j] = one[THREADS - 1 - j]

    return main


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("turns", [3, None])
def test_a_loop_that_may_not_run_orders_nothing(turns, target):
    func = around_a_loop(turns)
    plan, _, _ = lowered(func, target)
    (launch,) = plan.launches.values()
    last = [s for s in walk(launch.launch.body) if isinstance(s, nodes.Parallel)][-1]
    assert (last in launch.barriers) == (turns is None)
    a = np.random.default_rng(2).standard_normal(THREADS).astype(np.float32)
    for count in (turns,) if turns else (0, 1, 4):
        b, c = (np.full(THREADS, np.nan, np.float32) for _ in range(2))
        given = [a, np.array([count], np.int32), b, c]
        run_emulated(func, target, given, ALL_SCHEDULES)
        assert np.array_equal(b, a[::-1])
        if count:
            told = 2 * a if count == 1 else a + np.float32(count - 2)
            assert np.array_equal(c, told[::-1])


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [64, 40])
def test_what_a_fold_across_warps_leaves_is_told_to_the_units(columns, target):
    """The sums were written behind the fence of the fold's own barrier, and stored without one."""

    @T.prim_func
    def main(A: T.Tensor((2 * ROWS, columns), "float32"), B: T.Tensor((2, columns), "float32")):
        with T.Kernel(2, threads=THREADS) as bx:
            tile = T.alloc_shared((ROWS, columns), "float32")
            sums = T.alloc_shared((columns,), "float32")
            T.copy(A[bx * ROWS, 0], tile)
            T.reduce_sum(tile, sums, dim=0)
            T.copy(sums, B[bx, 0:columns])

    rng = np.random.default_rng(4)
    a = rng.standard_normal((2 * ROWS, columns)).astype(np.float32)
    b = np.full((2, columns), np.nan, np.float32)
    plan = run_emulated(main, target, [a, b], ALL_SCHEDULES)
    (launch,) = plan.launches.values()
    assert bool(launch.stores) == (target == "h100")
    expected = a.reshape(2, ROWS, columns).astype(np.float64).sum(1)
    assert np.abs(b - expected).max() < 1e-5 * ROWS


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_a_fold_across_warps_is_a_barrier(target):
    """What was read before it may be written behind it, turn by turn."""
    turns, rows, columns = 5, 2, 256

    @T.prim_func
    def main(A: T.Tensor((turns, rows, columns), "float32"), B: T.Tensor((turns, rows), "float32")):
        with T.Kernel(1, threads=THREADS):
            tile = T.alloc_shared((rows, columns), "float32")
            sums = T.alloc_fragment((rows,), "float32")
            for i in T.serial(turns):
                T.copy(A[i, 0, 0], tile)
                T.reduce_sum(tile, sums, dim=1)
                T.copy(sums, B[i, 0])

    a = np.random.default_rng(5).standard_normal((turns, rows, columns)).astype(np.float32)
    b = np.full((turns, rows), np.nan, np.float32)
    run_emulated(main, target, [a, b], ALL_SCHEDULES)
    assert np.abs(b - a.astype(np.float64).sum(2)).max() < 1e-4
    plan, _, _ = lowered(main, target)
    (launch,) = plan.launches.values()
    before = [type(s).__name__ for s in walk(launch.launch.body) if s in launch.barriers]
    assert "Reduce" in before
    assert "Copy" not in before


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", ["branch", "sum in a loop", "thread after thread", "role"])
def test_threads_meet_before_a_branch_of_some_that_reads_what_all_wrote(form, target):
    """Nothing told the threads of a branch to wait: they read what was still being copied."""
    rows, n = 5, 37

    @T.prim_func
    def main(
        X: T.Tensor((n,), "int32"), P: T.Tensor((rows, n), "int32"), Y: T.Tensor((n,), "int32")
    ):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding(0)
            tile = T.alloc_shared((n,), "int32")
            if form == "thread after thread":
                if t < n:
                    tile[t] = X[t]
            else:
                T.copy(X, tile)
            if t < n:
                if form == "sum in a loop":
                    for i in T.serial(rows):
                        tile[t] += P[i, t]
                    Y[t] = tile[t]
                else:
                    Y[t] = tile[n - 1 - t]
            if form == "role" and t < 64:  # a branch of all: a barrier could stand inside
                Y[t % n] = tile[n - 1 - t % n]

    rng = np.random.default_rng(11)
    x, p = (rng.integers(0, 1000, s).astype(np.int32) for s in (n, (rows, n)))
    y = np.zeros_like(x)
    run_emulated(main, target, [x, p, y], ALL_SCHEDULES)
    assert np.array_equal(y, x + p.sum(0) if form == "sum in a loop" else x[::-1])


def exchanged(kind, rounds=3):
    """Threads give each other their elements through a tile, a part at a time, there and back."""
    width = 4

    @T.prim_func
    def main(
        A: T.Tensor((THREADS, rounds * width), "float32"),
        B: T.Tensor((THREADS, rounds * width), "float32"),
    ):
        with T.Kernel(1, threads=THREADS):
            local = T.alloc_local((rounds * width,), "float32")
            tile = T.alloc_shared((THREADS, width), "float32")
            tx = T.get_thread_binding()
            for i in T.vectorized(rounds * width):
                local[i] = A[tx, i]
            other = tx % 8 * (THREADS // 8) + tx // 8
            for r in T.serial(rounds):
                for j in kind(width):
                    tile[tx, j] = local[r * width + j]
                for j in kind(width):
                    local[r * width + j] = tile[other, j]
            for i in T.vectorized(rounds * width):
                B[tx, i] = local[i]

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [T.vectorized, T.serial, T.unroll])
def test_threads_that_move_vectors_meet_before_and_behind_each_turn(kind, target):
    """One barrier before a tile is written again, one before it is read; none for each element."""
    func = exchanged(kind)
    a = np.random.default_rng(2).standard_normal((THREADS, 12)).astype(np.float32)
    b = np.zeros_like(a)
    run_emulated(func, target, [a, b], ALL_SCHEDULES)
    thread = np.arange(THREADS)
    np.testing.assert_array_equal(b, a[thread % 8 * (THREADS // 8) + thread // 8])
    kernel = lowered(func, target)[2].text.rpartition('extern "C"')[2]
    assert kernel.count("tc_sync_threads();") == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [T.vectorized, T.unroll])
def test_threads_meet_between_the_statements_of_a_turn(kind, target):
    """What one statement of a loop over neighbours writes, the next one reads of other threads."""

    @T.prim_func
    def main(A: T.Tensor((THREADS, 4), "float32"), B: T.Tensor((THREADS, 4), "float32")):
        with T.Kernel(1, threads=THREADS):
            tile = T.alloc_shared((THREADS, 4), "float32")
            tx = T.get_thread_binding()
            for j in kind(4):
                tile[tx, j] = A[tx, j]
                B[tx, j] = tile[THREADS - 1 - tx, j]

    a = np.random.default_rng(2).standard_normal((THREADS, 4)).astype(np.float32)
    b = np.zeros_like(a)
    run_emulated(main, target, [a, b], ALL_SCHEDULES)
    np.testing.assert_array_equal(b, a[::-1])
