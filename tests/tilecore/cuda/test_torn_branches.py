"""Threads that meet in shared memory in branches and loops that not all of them take.

No barrier stood there, and nothing said so: threads read what others had not written yet.
"""

import re

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import EmulationError, UnsupportedOnTarget

N = 64
TARGETS = ("h100", "sm_70", "gfx942")
BARRIER = re.compile(r"tc_sync_threads\(\);")


def program(write):
    """Return a program whose threads do something with a shared tile; ``write`` is a macro."""

    @T.prim_func
    def main(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32"), k: T.int32):
        with T.Kernel(1, threads=N):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((N,), "int32")
            write(tx, tile, A, B, k)

    return main


@T.macro
def first_48(tx, tile, A, B, k):
    if tx < 48:
        tile[tx] = A[tx]
        B[tx] = tile[47 - tx]


@T.macro
def half_a_warp(tx, tile, A, B, k):
    if tx < 16:
        tile[tx] = A[tx]
        B[tx] = tile[15 - tx]


@T.macro
def every_other(tx, tile, A, B, k):
    if tx % 2 == 0:
        tile[tx] = A[tx]
        B[tx] = tile[N - 2 - tx]


@T.macro
def as_data_says(tx, tile, A, B, k):
    tile[tx] = -1
    if A[tx] > 20:
        tile[tx] = A[tx]
        B[tx] = tile[N - 1 - tx]


@T.macro
def both_ways(tx, tile, A, B, k):
    if tx < 40:
        tile[tx] = A[tx]
        B[tx] = tile[39 - tx]
    else:
        tile[tx] = 2 * A[tx]
        B[tx] = tile[103 - tx]


@T.macro
def below_a_number(tx, tile, A, B, k):
    tile[tx] = 0
    if tx < k and A[tx] < 50:
        tile[tx] = A[tx]
        B[tx] = tile[(k - 1 - tx) % N]


@T.macro
def names(tx, tile, A, B, k):
    if tx < 48:
        x = A[tx]
        other = 47 - tx
        tile[tx] = x * 2
        y = tile[other]
        tile[other] = y + x
        B[tx] = tile[tx] + y


@T.macro
def in_a_loop(tx, tile, A, B, k):
    if tx < 40:
        tile[tx] = A[tx]
        for i in T.serial(3):
            x = tile[39 - tx]
            tile[tx] = x + i
        B[tx] = tile[tx]


@T.macro
def uneven(tx, tile, A, B, k):
    tile[tx] = 0
    for i in T.serial(tx % 3 + 1):
        tile[tx] = A[tx] + i
        B[tx] = tile[N - 1 - tx]


@T.macro
def strided(tx, tile, A, B, k):
    for i in T.serial(tx, k, N):
        tile[i % N] = A[i % N] + i
        B[i % N] = tile[N - 1 - i % N]


@T.macro
def left_early(tx, tile, A, B, k):
    tile[tx] = 0
    for i in T.serial(8):
        if A[tx] % 8 == i:
            break
        tile[tx] = A[tx] + i
        B[tx] = tile[tx ^ 1]


@T.macro
def skipped(tx, tile, A, B, k):
    tile[tx] = 0
    for i in T.serial(4):
        if A[tx] % 4 == i:
            continue
        tile[tx] = A[tx] + i
        B[tx] = tile[tx ^ 1]


@T.macro
def returned(tx, tile, A, B, k):
    if tx >= 48:
        T.thread_return()
    tile[tx] = A[tx]
    B[tx] = tile[47 - tx]


@T.macro
def meet_in_a_branch(tx, tile, A, B, k):
    if tx < 48:
        tile[tx] = A[tx]
        T.sync_threads()
        B[tx] = tile[47 - tx]


@T.macro
def lanes_meet_in_a_branch(tx, tile, A, B, k):
    if tx % 32 < 20:
        tile[tx] = A[tx]
        T.sync_warp()
        B[tx] = tile[tx // 32 * 32 + 19 - tx % 32]


@T.macro
def meet_after_a_return(tx, tile, A, B, k):
    if tx >= 48:
        T.thread_return()
    tile[tx] = A[tx]
    T.sync_threads()
    B[tx] = tile[47 - tx]


class Block:
    """The threads of a block in NumPy, all in step: ``tile`` and ``b`` change where some are."""

    def __init__(self, a):
        self.a, self.tx = a, np.arange(N)
        self.tile, self.b = np.zeros(N, np.int64), np.zeros(N, np.int64)

    def exchange(self, some, values, source):
        """Let ``some`` threads write their element, then read that of ``source``."""
        self.tile[some] = np.broadcast_to(values, N)[some]
        self.b[some] = self.tile[np.where(some, source, 0)][some]


def expected(name, a, k):
    """Return what a program gives, thread by thread in step."""
    block = Block(a.astype(np.int64))
    a, tx = block.a, block.tx
    match name:
        case "first_48" | "returned" | "meet_in_a_branch" | "meet_after_a_return":
            block.exchange(tx < 48, a, 47 - tx)
        case "lanes_meet_in_a_branch":
            block.exchange(tx % 32 < 20, a, tx // 32 * 32 + 19 - tx % 32)
        case "half_a_warp":
            block.exchange(tx < 16, a, 15 - tx)
        case "every_other":
            block.exchange(tx % 2 == 0, a, N - 2 - tx)
        case "as_data_says":
            block.tile[:] = -1
            block.exchange(a > 20, a, N - 1 - tx)
        case "both_ways":
            block.exchange(tx < 40, a, 39 - tx)
            block.exchange(tx >= 40, 2 * a, 103 - tx)
        case "below_a_number":
            block.exchange((tx < k) & (a < 50), a, k - 1 - tx)
        case "names":
            x, y = a[:48], 2 * a[47::-1]
            block.b[:48] = (y + x)[::-1] + y
        case "in_a_loop":
            tile = a[:40]
            for i in range(3):
                tile = tile[::-1] + i
            block.b[:40] = tile
        case "uneven":
            for i in range(3):
                block.exchange(i < tx % 3 + 1, a + i, N - 1 - tx)
        case "strided":
            for start in range(0, k, N):
                block.exchange(start + tx < k, a + start + tx, N - 1 - tx)
        case "left_early":
            for i in range(8):
                block.exchange(a % 8 > i, a + i, tx ^ 1)
        case "skipped":
            for i in range(4):
                block.exchange(a % 4 != i, a + i, tx ^ 1)
    return block.b


PROGRAMS = {
    f.__name__: f
    for f in (
        first_48, half_a_warp, every_other, as_data_says, both_ways, below_a_number, names,
        in_a_loop, uneven, strided, left_early, skipped, returned, meet_in_a_branch,
        meet_after_a_return, lanes_meet_in_a_branch,
    )
}  # fmt: skip


def arguments(k):
    a = np.random.default_rng(3).permutation(N).astype(np.int32)
    return [a, np.zeros(N, np.int32), k]


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_some_threads_meet(name, target):
    func = program(PROGRAMS[name])
    for k in (128, 150) if name == "strided" else (37,):
        given = arguments(k)
        run_emulated(func, target, given, ALL_SCHEDULES)
        np.testing.assert_array_equal(given[1], expected(name, given[0], k))


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "lanes_meet_in_a_branch"])
def test_each_barrier_is_needed(name):
    """Without any one of them the emulator finds a race."""
    source = lowered(program(PROGRAMS[name]), "h100")[2].emulated
    barriers = len(BARRIER.findall(source.rpartition('extern "C" __global__')[2]))
    assert barriers
    with pytest.raises(EmulationError, match="race"):
        run_emulated(
            program(PROGRAMS[name]), "h100", arguments(37), ALL_SCHEDULES,
            without="tc_sync_threads();", is_ordered=False,
        )  # fmt: skip


def test_threads_of_both_ways_meet_at_once():
    plan, _, source = lowered(program(both_ways), "h100")
    assert len(BARRIER.findall(source.text.rpartition('extern "C"')[2])) == 1
    assert "is in parts, as all must meet in it" in plan.explain()


@T.macro
def own_elements(tx, tile, A, B, k):
    lane, warp = tx % 32, tx // 32
    if lane < 20:
        tile[warp * 32 + lane] = A[tx]
        B[tx] = tile[tx] + 1


@T.macro
def one_thread(tx, tile, A, B, k):
    if tx == k:
        tile[0] = A[0]
        for i in T.serial(1, N):
            tile[i] = tile[i - 1] + A[i]
        B[0] = tile[N - 1]


@T.macro
def apart(tx, tile, A, B, k):
    if tx < 8:
        tile[tx] = A[tx]
        B[tx] = tile[tx + 8 * (tx // 8)]


@T.macro
def a_histogram(tx, tile, A, B, k):
    tile[tx] = 0
    T.sync_threads()
    for i in T.serial(tx, N, 32):
        if A[i] > 3:
            T.atomic_add(tile[A[i] % 8], 1)
    T.sync_threads()
    B[tx] = tile[tx]


@T.macro
def lanes_that_meet(tx, tile, A, B, k):
    left = T.alloc_var("int32")
    lane, warp = tx % 32, tx // 32
    left = A[warp] % 5 + 1
    while left > 0:
        tile[tx] = A[tx] + left
        T.sync_warp()
        B[tx] = tile[warp * 32 + 31 - lane]
        T.sync_warp()
        left -= 1


@pytest.mark.parametrize("write", [own_elements, one_thread, apart, a_histogram, lanes_that_meet])
def test_what_threads_do_by_themselves_needs_no_barrier(write):
    plan, _, source = lowered(program(write), "h100")
    assert not plan.torn
    (launch,) = plan.launches.values()
    assert not launch.barriers
    kernel = source.text.rpartition('extern "C"')[2]
    assert kernel.count("tc_sync_threads();") == (2 if write is a_histogram else 0)
    given = arguments(5)
    run_emulated(program(write), "h100", given, ALL_SCHEDULES)
    a, b = given[:2]
    lanes = np.arange(N)
    if write is own_elements:
        np.testing.assert_array_equal(b, np.where(lanes % 32 < 20, a + 1, 0))
    elif write is a_histogram:
        read = np.concatenate([a[tx::32] for tx in range(N)])
        np.testing.assert_array_equal(b, np.bincount(read[read > 3] % 8, minlength=N))
    elif write is one_thread:
        assert b[0] == a.sum()
    elif write is lanes_that_meet:
        np.testing.assert_array_equal(b, a[lanes // 32 * 32 + 31 - lanes % 32] + 1)


def test_tiles_that_share_memory():
    """What threads of a branch write may be where all have read another tile, or they have."""

    @T.prim_func
    def main(A: T.Tensor((N,), "int32"), B: T.Tensor((2, N), "int32")):
        with T.Kernel(1, threads=N):
            tx = T.get_thread_binding()
            one = T.alloc_shared((40000,), "int32")
            other = T.alloc_shared((40000,), "int32")
            one[tx] = A[tx]
            if tx < 48:
                B[0, tx] = one[47 - tx]
            if tx < 48:
                other[tx] = A[tx] + 1
                B[1, tx] = other[47 - tx]

    a, b = np.arange(N, dtype=np.int32), np.zeros((2, N), np.int32)
    run_emulated(main, "h100", [a, b], ALL_SCHEDULES)
    np.testing.assert_array_equal(b[:, :48], [a[47::-1], a[47::-1] + 1])


@T.macro
def while_data_says(tx, tile, A, B, k):
    left = T.alloc_var("int32")
    left = A[tx]
    while left > 0:
        tile[tx] = left
        B[tx] = tile[N - 1 - tx]
        left -= 1


@T.macro
def as_often_as_data_says(tx, tile, A, B, k):
    for i in T.serial(A[tx]):
        tile[tx] = A[tx] + i
        B[tx] = tile[N - 1 - tx]


@pytest.mark.parametrize("target", ["h100", "gfx942"])
@pytest.mark.parametrize("write", [while_data_says, as_often_as_data_says])
def test_a_loop_of_nobody_knows_how_many_turns_is_refused(write, target):
    with pytest.raises(UnsupportedOnTarget, match="each of them alone") as caught:
        lowered(program(write), target)
    assert "tile[tx] = " in str(caught.value)
    assert "all threads run the loop equally often" in str(caught.value)


def test_a_barrier_of_the_program_in_a_torn_branch_is_refused():
    @T.prim_func
    def main(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((N,), "int32")
            full = T.alloc_barrier(16)
            if tx < 16:
                tile[tx] = A[tx]
                B[tx] = tile[15 - tx]
                T.barrier_arrive(full)
                T.barrier_wait(full, 0)

    with pytest.raises(UnsupportedOnTarget, match="wait at barriers of the program"):
        lowered(main, "h100")


@T.macro
def parts_of_a_role(tx, tile, A, B, k):
    """A warp does nothing but what data say, in two parts."""
    left = T.alloc_var("int32")
    left = A[tx]
    tile[tx] = 0
    if left > 20:
        B[tx] = 5
    else:
        if tx // 32 == 1:
            tile[(tx + 58) % N] = left
            left = tile[(A[tx] + 59) % N]
            B[tx] = left


@T.macro
def a_loop_with_an_end_of_its_own(tx, tile, A, B, k):
    """What leaves the inner loop does not leave the outer one."""
    tile[tx] = 0
    for i in T.serial(3):
        if tx < 48:
            for _ in T.serial(tx, N, 16):
                if A[tx] > 40:
                    break
                B[tx] = B[tx] + 1
            tile[47 - tx] = A[tx] + i
            B[tx] = B[tx] + tile[tx]


@T.macro
def turns_that_write_again(tx, tile, A, B, k):
    """The last turn decides, whose threads write what others wrote before."""
    tile[tx] = 0
    if tx < 48:
        for i in T.serial(4):
            tile[(tx * 3 + i * 5) % N] = i
    B[tx] = tile[tx]


@T.macro
def one_among_others(tx, tile, A, B, k):
    """One thread of a branch reads what another one of them writes next."""
    tile[tx] = A[tx]
    if tx >= 16:
        if tx == 40:
            B[tx] = tile[20]
        tile[tx] = 7
        B[tx] = B[tx] + tile[tx]


@T.macro
def a_role_among_others(tx, tile, A, B, k):
    """A warp writes what others of the branch write and read behind it."""
    tile[tx] = 0
    if tx >= 25:
        if tx // 32 == 1:
            tile[tx] = A[tx]
        tile[(tx + 30) % N] = 7
        B[tx] = tile[N - 1 - tx]


def in_step(name, a):
    """Return what a program gives, thread by thread in step."""
    tx, b, tile = np.arange(N), np.zeros(N, np.int64), np.zeros(N, np.int64)
    match name:
        case "parts_of_a_role":
            some = (a <= 20) & (tx >= 32)
            tile[(tx[some] + 58) % N] = a[some]
            b = np.where(a > 20, 5, np.where(some, tile[(a + 59) % N], 0))
        case "a_loop_with_an_end_of_its_own":
            some = tx < 48
            for i in range(3):
                tile[47 - tx[some]] = a[some] + i
                turns = np.where(a > 40, 0, (N - tx + 15) // 16)
                b = np.where(some, b + turns + tile, 0)
        case "turns_that_write_again":
            for i in range(4):
                tile[(tx[:48] * 3 + i * 5) % N] = i
            b = tile
        case "a_role_among_others":
            tile[32:] = a[32:]
            tile[(tx[25:] + 30) % N] = 7
            b[25:] = tile[::-1][25:]
        case "one_among_others":
            b = np.where(tx >= 16, np.where(tx == 40, a[20], 0) + 7, 0)
    return b


@pytest.mark.parametrize("target", ["h100", "gfx942"])
@pytest.mark.parametrize(
    "write",
    [
        parts_of_a_role,
        a_loop_with_an_end_of_its_own,
        turns_that_write_again,
        one_among_others,
        a_role_among_others,
    ],
)
def test_programs_that_random_ones_led_to(write, target):
    a, b, k = arguments(0)
    for schedule in ALL_SCHEDULES:
        b[:] = 0
        run_emulated(program(write), target, [a, b, k], (schedule,))
        np.testing.assert_array_equal(b, in_step(write.__name__, a))


def test_a_role_of_nobody_in_a_loop_of_one_thread():
    """It was left by a break out of no loop: an IndexError."""

    @T.prim_func
    def main(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            tx = T.get_thread_binding()
            if tx == 18:
                for i in T.serial(4):
                    if A[tx] > i:
                        if tx >= 41:
                            break
                        B[tx] = i

    a, b = np.full(N, 2, np.int32), np.zeros(N, np.int32)
    run_emulated(main, "h100", [a, b], ALL_SCHEDULES)
    assert b.tolist() == [1 if tx == 18 else 0 for tx in range(N)]


def test_conditions_of_which_data_decides_one_keep_threads_out():
    """The proof let all threads in and reported what none of them does."""

    @T.prim_func
    def main(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((N,), "int32")
            tile[tx] = A[tx]
            if tx < 40 and A[tx] > 3:
                B[tx] = tile[39 - tx]
            if tx >= 40 and A[tx] > 3:
                B[tx] = tile[tx - 40]
            else:
                B[tx] = B[tx] + 1

    a, b = np.arange(N, dtype=np.int32), np.zeros(N, np.int32)
    run_emulated(main, "h100", [a, b], ALL_SCHEDULES[:1])
    np.testing.assert_array_equal(b[:40], np.where(a[:40] > 3, a[39::-1], 0) + 1)
    np.testing.assert_array_equal(b[40:], a[: N - 40])
