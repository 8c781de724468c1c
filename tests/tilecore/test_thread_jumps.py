"""break, continue and T.thread_return where the threads of a block wait for each other."""

import numpy as np
import pytest

import tilecore as tilelang
import tilecore.language as T
from tilecore.errors import ScopeError

THREADS = 32
rng = np.random.default_rng(0)


def test_break_on_a_variable_that_all_threads_have_alike(run_both):
    """The smallest number of halvings after which the block's sum is below a bound."""

    @T.prim_func
    def main(X: T.Tensor((5, THREADS), "float32"), Y: T.Tensor((5, 2), "float32")):
        with T.Kernel(5, threads=THREADS) as b:
            tx = T.get_thread_binding()
            shared = T.alloc_shared((THREADS,), "float32")
            total = T.alloc_shared((1,), "float32")
            mine = T.alloc_var("float32", X[b, tx])
            left = T.alloc_var("float32", 1000.0)
            for step in T.serial(10):
                if left < 10.0:
                    break
                shared[tx] = mine
                T.sync_threads()
                if tx == 0:
                    total[0] = 0.0
                    for i in range(THREADS):
                        total[0] += shared[i]
                T.sync_threads()
                left = total[0]
                mine = mine / 2
                if tx == 0:
                    Y[b, 0] = step
                    Y[b, 1] = left

    x = rng.uniform(0, 60, (5, THREADS)).astype(np.float32)
    x[4] = 0
    expected = np.zeros((5, 2))
    for b in range(5):
        sums = x[b].astype(np.float64).sum() / 2.0 ** np.arange(10)
        step = next((i for i in range(10) if sums[i] < 10), 9)
        expected[b] = step, sums[step]
    run_both(main, [x], [np.zeros((5, 2), np.float32)], [expected], rtol=1e-4)


def test_continue_and_break_on_votes_and_shared_memory(run_both):
    @T.prim_func
    def main(X: T.Tensor((3, 8, THREADS), "int32"), Y: T.Tensor((3, THREADS), "int32")):
        with T.Kernel(3, threads=THREADS) as b:
            tx = T.get_thread_binding()
            shared = T.alloc_shared((THREADS,), "int32")
            count = T.alloc_var("int32", 0)
            row = T.alloc_var("int32", 0)
            while row < 8:
                T.sync_threads()
                shared[tx] = X[b, row, tx]
                row += 1
                T.sync_threads()
                if T.syncthreads_or(shared[tx] < 0):
                    continue
                if shared[0] == 7:
                    break
                count += shared[(tx + 1) % THREADS]
            Y[b, tx] = count

    x = rng.integers(0, 7, (3, 8, THREADS), np.int32)
    x[0, 2, 5] = x[1, 7, 0] = -1
    x[1, 3, 0] = 7
    x[2, 0, 0] = 7
    expected = np.zeros((3, THREADS))
    for b in range(3):
        for row in x[b]:
            if (row < 0).any():
                continue
            if row[0] == 7:
                break
            expected[b] += np.roll(row, -1)
    run_both(main, [x], [np.zeros((3, THREADS), np.int32)], [expected])


def test_a_loop_of_updates_that_threads_leave_apart(run_both):
    """Updates of shared memory are no meeting of threads: CPUs refused the loop."""
    n = 150

    @T.prim_func
    def main(X: T.Tensor((n,), "int32"), Y: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=THREADS):
            tx = T.get_thread_binding()
            counts = T.alloc_shared((8,), "int32")
            if tx < 8:
                counts[tx] = 0
            T.sync_threads()
            for step in T.serial(9):
                if step * THREADS + tx >= n:
                    break
                T.atomic_add(counts[X[step * THREADS + tx]], 1)
            T.sync_threads()
            if tx < 8:
                Y[tx] = counts[tx]

    x = rng.integers(0, 8, n).astype(np.int32)
    run_both(main, [x], [np.zeros(8, np.int32)], [np.bincount(x, minlength=8)])


def test_all_threads_return_before_a_barrier(run_both):
    @T.prim_func
    def main(N: T.Tensor((4,), "int32"), Y: T.Tensor((4, THREADS), "int32")):
        with T.Kernel(4, threads=THREADS) as b:
            tx = T.get_thread_binding()
            shared = T.alloc_shared((THREADS,), "int32")
            length = T.alloc_var("int32", N[b])
            if length == 0:
                T.thread_return()
            shared[tx] = tx * length
            T.sync_threads()
            Y[b, tx] = shared[THREADS - 1 - tx]

    n = np.array([2, 0, 1, 0], np.int32)
    expected = np.arange(THREADS)[None, ::-1] * n[:, None]
    run_both(main, [n], [np.zeros((4, THREADS), np.int32)], [expected])


def test_the_only_warp_of_a_block_returns_as_one(run_both):
    """Which warp a thread is of, is one number where a block has one warp."""

    @T.prim_func
    def main(N: T.Tensor((4,), "int32"), Y: T.Tensor((4, THREADS), "int32")):
        with T.Kernel(4, threads=THREADS) as b:
            tx = T.get_thread_binding()
            warp = tx // 32
            row = b + warp
            shared = T.alloc_shared((1, THREADS), "int32")
            if N[row] == 0:
                T.thread_return()
            shared[warp, tx % 32] = tx * N[row]
            T.sync_threads()
            Y[row, tx] = shared[tx // 32, THREADS - 1 - tx]

    n = np.array([2, 0, 1, 0], np.int32)
    expected = np.arange(THREADS)[None, ::-1] * n[:, None]
    run_both(main, [n], [np.zeros((4, THREADS), np.int32)], [expected])


def bad(condition):
    @T.prim_func
    def main(X: T.Tensor((THREADS,), "int32")):
        with T.Kernel(1, threads=THREADS):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((THREADS,), "int32")
            mine = T.alloc_var("int32", X[tx])
            late = T.alloc_var("int32", 0)
            for step in T.serial(4):
                if condition(tx, mine, late):
                    break
                shared[tx] = mine
                T.sync_threads()
                mine = shared[THREADS - 1 - tx] - step
                if mine < 0:
                    late = 1

    return main


@pytest.mark.parametrize(
    "condition",
    [
        lambda tx, mine, late: tx == 3,
        lambda tx, mine, late: mine < 0,
        lambda tx, mine, late: late,
        lambda tx, mine, late: tx // 16 == 1,
    ],
    ids=["index", "own value", "own branch", "half of a warp"],
)
def test_threads_that_may_part_are_refused(condition):
    with pytest.raises(ScopeError, match=r"`break` .* in a branch that threads may take differ"):
        tilelang.compile(bad(condition))


def test_a_thread_that_may_return_before_a_barrier_is_refused():
    @T.prim_func
    def main(X: T.Tensor((THREADS,), "int32")):
        with T.Kernel(1, threads=THREADS):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((THREADS,), "int32")
            if tx > 16:
                T.thread_return()
            shared[tx] = X[tx]
            T.sync_threads()
            X[tx] = shared[0]

    with pytest.raises(ScopeError, match="a branch that threads may take differently"):
        tilelang.compile(main)


def test_jumps_past_waits_at_barriers_are_refused():
    @T.prim_func
    def main(X: T.Tensor((4, THREADS), "int32"), Y: T.Tensor((THREADS,), "int32")):
        with T.Kernel(1, threads=THREADS):
            tx = T.get_thread_binding()
            full = T.alloc_barrier(THREADS)
            shared = T.alloc_shared((THREADS,), "int32")
            for k in T.serial(4):
                if X[k, 0] == 0:
                    break
                shared[tx] = X[k, tx]
                T.barrier_arrive(full)
                T.barrier_wait(full, k % 2)
                Y[tx] = shared[THREADS - 1 - tx]

    with pytest.raises(ScopeError, match="a loop in which threads wait at barriers"):
        tilelang.compile(main)
