"""Roles of warps and uniform variables: who shares out a tile operation, where threads meet."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import UnsupportedOnTarget

pytestmark = pytest.mark.few(1)  # a case takes long


@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_loops_over_variables_that_all_threads_have_alike(target):
    """Tile operations in a while loop, in branches, and in a loop that all threads leave early."""
    rows, columns = 7, 64

    @T.prim_func
    def main(
        A: T.Tensor((rows, columns), "float32"),
        Stop: T.Tensor((1,), "int32"),
        B: T.Tensor((rows, columns), "float32"),
    ):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((columns,), "float32")
            row = T.alloc_var("int32")
            left = T.alloc_var("int32")
            row = 0
            while row < rows:
                T.copy(A[row, 0], tile)
                if row % 2 == 1:
                    for i in T.Parallel(columns):
                        tile[i] = tile[i] * 2
                T.copy(tile, B[row, 0])
                row = row + 1
            left = Stop[0]
            for _ in T.serial(5):
                if left <= 0:
                    break
                T.sync_threads()
                if tx < columns:
                    tile[tx] = tile[tx] + 1
                T.sync_threads()
                T.copy(tile, B[0, 0])
                left = left - 1

    rng = np.random.default_rng(0)
    a = rng.standard_normal((rows, columns), dtype=np.float32)
    b = np.zeros_like(a)
    run_emulated(main, target, [a, np.array([3], np.int32), b], ALL_SCHEDULES)
    expected = a * np.where(np.arange(rows) % 2, 2, 1)[:, None]
    expected[0] = expected[-1] + 3
    np.testing.assert_allclose(b, expected, rtol=1e-6)


def test_a_loop_that_some_threads_leave_alone_shares_nothing_out():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), N: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            left = T.alloc_var("int32")
            left = N[tx]
            while left > 0:
                T.fill(A, 1.0)
                left = left - 1

    with pytest.raises(UnsupportedOnTarget, match="a Fill in a branch that only some threads take"):
        lowered(main, "h100")


def test_variables_of_one_role_are_not_those_of_another():
    """What a role counts is the same in its threads, and not in the block."""

    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            count = T.alloc_var("int32")
            count = 0
            if tx < 64:
                count = 2
                while count > 0:
                    T.fill(A, 1.0)
                    count = count - 1
            if count == 0:
                T.fill(A, 2.0)

    with pytest.raises(UnsupportedOnTarget, match="a Fill in a branch that only some threads take"):
        lowered(main, "h100")

    @T.prim_func
    def inside(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            count = T.alloc_var("int32")
            count = 0
            if tx < 64:
                count = 2
                while count > 0:
                    T.fill(A, 1.0)
                    count = count - 1

    a = np.zeros(64, np.float32)
    plan = run_emulated(inside, "h100", [a], ALL_SCHEDULES)
    np.testing.assert_array_equal(a, 1)
    (launch,) = plan.launches.values()
    assert {(t.first, t.count) for t in launch.teams.of.values()} >= {(0, 64)}


@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_the_third_role_of_a_chain(target):
    """Roles of one warp each, and one between two others; they meet at barriers of their own."""

    @T.prim_func
    def main(A: T.Tensor((4, 64), "float32"), B: T.Tensor((4, 64), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((3, 64), "float32")
            sums = T.alloc_shared((64,), "float32")
            done = T.alloc_barrier([32])
            if tx >= 32 and tx < 64:
                T.copy(A[1, 0], tile[1, :])
                for i in T.Parallel(64):
                    B[1, i] = tile[1, 63 - i]
            elif tx < 32:
                T.copy(A[0, 0], tile[0, :])
                for i in T.Parallel(64):
                    B[0, i] = tile[0, 63 - i]
                for i in T.Parallel(64):
                    sums[i] = tile[0, i] * 3
                T.mbarrier_arrive(done)
            elif tx < 96:
                T.copy(A[2, 0], tile[2, :])
                T.mbarrier_wait_parity(done, 0)
                for i in T.Parallel(64):
                    B[2, i] = tile[2, 63 - i] + sums[i]
            else:
                T.fill(B[3, 0:64], 5.0)

    rng = np.random.default_rng(1)
    a = rng.standard_normal((4, 64), dtype=np.float32)
    b = np.zeros_like(a)
    plan = run_emulated(main, target, [a, b], ALL_SCHEDULES)
    expected = a[:, ::-1].copy()
    expected[2] += a[0] * 3
    expected[3] = 5
    np.testing.assert_allclose(b, expected, rtol=1e-6)
    (launch,) = plan.launches.values()
    teams = {(t.first, t.count) for t in launch.teams.all}
    assert teams == {(32, 32), (0, 32), (64, 64), (64, 32), (96, 32)}


def test_threads_of_a_role_meet_among_themselves():
    """T.sync_threads with a barrier of its own, in a branch of two warps of four."""

    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((64,), "int32")
            value = T.alloc_var("int32")
            if tx < 64:
                tile[tx] = A[tx]
                for i in T.serial(6):
                    T.sync_threads(3, 64)
                    if tx >= 1 << i:
                        value = tile[tx] + tile[tx - (1 << i)]
                    T.sync_threads(3, 64)
                    if tx >= 1 << i:
                        tile[tx] = value
                B[tx] = tile[tx]

    a = np.random.default_rng(2).integers(0, 9, 64).astype(np.int32)
    b = np.zeros_like(a)
    run_emulated(main, "h100", [a, b], ALL_SCHEDULES)
    np.testing.assert_array_equal(b, np.cumsum(a))


def test_a_part_of_a_warp_has_no_barrier_of_its_own():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            if tx < 20:
                T.sync_threads(3, 20)
                A[tx] = 1

    with pytest.raises(UnsupportedOnTarget, match="a Sync in a branch that only some threads take"):
        lowered(main, "h100")


def test_fragments_of_a_role_stay_in_its_registers():
    """A nest belongs to the role around it, its stores too."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), B: T.Tensor((2, 64, 64), "float32")):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            first = T.alloc_fragment((64, 64), "float32")
            second = T.alloc_fragment((64, 64), "float32")
            if tx < 128:
                T.copy(A, first)
                for i, j in T.Parallel(64, 64):
                    first[i, j] = first[i, j] + 1
                T.copy(first, B[0, 0, 0])
            else:
                T.copy(A, second)
                for i, j in T.Parallel(64, 64):
                    second[i, j] = second[i, j] * 2
                T.copy(second, B[1, 0, 0])

    a = np.random.default_rng(3).standard_normal((64, 64), dtype=np.float32)
    b = np.zeros((2, 64, 64), np.float32)
    plan = run_emulated(main, "h100", [a, b], ALL_SCHEDULES)
    np.testing.assert_array_equal(b, np.stack([a + 1, a * 2]))
    (launch,) = plan.launches.values()
    assert {f.name for f in launch.fragments} == {"first", "second"}
    assert launch.shared_bytes == 0


@pytest.mark.parametrize(
    ("target", "count", "rows"),
    [("sm_80", 64, 4), ("h100", 64, 4), ("h100", 128, 4), ("h100", 64, 2)],
)
def test_threads_of_a_role_meet_between_their_own_reads_and_writes(target, count, rows):
    """Largest values by column, each thread's loop from a place of its own; then it stores one.

    The loop is not run alike, but it is the role's: what it reads, others of the role write.
    """
    threads = 128

    @T.prim_func
    def main(A: T.Tensor((rows, threads), "float32"), B: T.Tensor((threads,), "float32")):
        with T.Kernel(1, threads=threads):
            tid = T.get_thread_binding()
            tile = T.alloc_shared((rows, threads), "float32")
            for i in T.unroll(rows):
                tile[i, tid] = A[i, tid]
            most = T.alloc_var("float32")
            column = T.alloc_var("int32")
            column = tid % 32 * rows + tid // 32
            most = -1000
            if tid < count:
                for i in T.serial(column // rows, threads, 32):
                    most = T.max(most, tile[column % rows, i])
                tile[0, tid] = most
            B[tid] = tile[0, tid % count]

    a = np.random.default_rng(0).standard_normal((rows, threads), dtype=np.float32)
    b = np.zeros(threads, np.float32)
    run_emulated(main, target, [a, b], ALL_SCHEDULES)
    thread = np.arange(count)
    column = thread % 32 * rows + thread // 32
    expected = [a[c % rows, c // rows :: 32].max() for c in column]
    np.testing.assert_array_equal(b, np.tile(np.array(expected), threads // count))


def behind_a_branch_of_some_blocks(first):
    @T.prim_func
    def main(X: T.Tensor((3, 64), "float32"), Y: T.Tensor((3, 64), "float32")):
        with T.Kernel(3, threads=128) as bx:
            tile = T.alloc_shared((64,), "float32")
            loaded = T.alloc_barrier(32)
            tx = T.get_thread_binding()
            if tx < 32:
                T.copy(X[bx, :], tile)
                T.mbarrier_arrive(loaded)
            elif tx < 64 and bx == 1:
                T.mbarrier_wait_parity(loaded, 0)
                T.copy(tile, Y[0, :])
            elif tx >= first:
                T.mbarrier_wait_parity(loaded, 0)
                if bx != 0:
                    T.copy(tile, Y[bx, :])

    return main


def test_a_role_behind_one_that_only_some_blocks_have():
    """Threads 64 to 127 come by in every block, whatever those before them do."""
    x = np.random.default_rng(8).standard_normal((3, 64)).astype(np.float32)
    y = np.zeros_like(x)
    run_emulated(behind_a_branch_of_some_blocks(64), "h100", [x, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y, x[[1, 1, 2]])
    with pytest.raises(UnsupportedOnTarget, match="a branch that only some threads take"):
        lowered(behind_a_branch_of_some_blocks(32), "h100")


@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_tiles_of_roles_side_by_side_share_no_memory(target):
    """Found by a random program: a role's tile lay where that of a role beside was in use."""
    rows, columns = 32, 64

    @T.prim_func
    def main(
        X: T.Tensor((2, rows, columns), "float32"), Y: T.Tensor((2, rows, columns), "float32")
    ):
        with T.Kernel(1, threads=256):
            done = T.alloc_barrier([128])
            with T.ws(1):
                first = T.alloc_shared((rows, columns), "float32")
                T.copy(X[1, :, :], first)
                T.mbarrier_arrive(done)
                for i, j in T.Parallel(rows, columns):
                    Y[1, i, j] = first[rows - 1 - i, j]
            with T.ws(0):
                second = T.alloc_shared((rows, columns), "float32")
                T.copy(X[0, :, :], second)
                T.mbarrier_wait_parity(done, 0)
                for i, j in T.Parallel(rows, columns):
                    Y[0, i, j] = second[rows - 1 - i, j]

    x = np.random.default_rng(3).standard_normal((2, rows, columns), dtype=np.float32)
    y = np.zeros_like(x)
    run_emulated(main, target, [x, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y, x[:, ::-1])


@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_no_barrier_stands_between_roles_that_wait_for_each_other(target):
    """Found by a random program: what the second role needs was waited for behind the first one."""

    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((2, 64), "float32")):
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((64,), "float32")
            more = T.alloc_shared((64,), "float32")
            done = T.alloc_barrier([128])
            T.copy(X, tile)
            with T.ws(1):
                T.mbarrier_wait_parity(done, 0)
                for i in T.Parallel(64):
                    Y[1, i] = more[i]
            with T.ws(0):
                for i in T.Parallel(64):
                    more[i] = tile[63 - i] + 1
                T.mbarrier_arrive(done)
                for i in T.Parallel(64):
                    Y[0, i] = tile[63 - i]

    x = np.random.default_rng(4).standard_normal(64, dtype=np.float32)
    y = np.zeros((2, 64), np.float32)
    run_emulated(main, target, [x, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y, [x[::-1], x[::-1] + 1])


@pytest.mark.parametrize("target", ["sm_80", "h100"])
@pytest.mark.parametrize(("how", "width"), [("copy", 32), ("box", 32), ("box", 33), ("nest", 32)])
def test_one_thread_tells_a_barrier_for_its_role(target, how, width):
    """Found by a random program: other threads had not yet written the tile, or still read it."""
    rows, columns = 16, 32

    @T.prim_func
    def main(X: T.Tensor((3, rows, width), "float32"), Y: T.Tensor((3, rows, columns), "float32")):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((rows, columns), "float32")
            full = T.alloc_barrier([1])
            free = T.alloc_barrier([1])
            if tx < 128:
                for k in T.serial(3):
                    T.mbarrier_wait_parity(free, k % 2 ^ 1)
                    if how == "copy":
                        T.copy(X[k, 0, 0], tile)
                    elif how == "box":
                        T.tma_copy(X[k, 0, 0], tile, barrier=full)
                    else:
                        for i, j in T.Parallel(rows, columns):
                            tile[i, j] = X[k, i, j]
                    if tx == 0:
                        T.mbarrier_arrive(full)
            else:
                for k in T.serial(3):
                    T.mbarrier_wait_parity(full, k % 2)
                    for i, j in T.Parallel(rows, columns):
                        Y[k, i, j] = tile[rows - 1 - i, j]
                    if tx == 200:
                        T.mbarrier_arrive(free)

    x = np.random.default_rng(6).standard_normal((3, rows, width), dtype=np.float32)
    y = np.zeros((3, rows, columns), np.float32)
    run_emulated(main, target, [x, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y, x[:, ::-1, :columns])
    text = lowered(main, target)[2].text.rpartition('extern "C"')[2]
    is_box = (target, how, width) == ("h100", "box", 32)
    assert text.count("tc_bar_sync(") == (1 if is_box else 2)  # one thread asks for the box
