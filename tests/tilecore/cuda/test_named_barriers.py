"""Named barriers: T.named_barrier_arrive goes on, T.sync_threads(barrier, count) waits."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore import runtime
from tilecore.compiler import compile
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import (
    AssertionFailed,
    EmulationError,
    OrderFault,
    ScopeError,
    TypeMismatch,
    UnsupportedOnTarget,
)
from tilecore.interpreter import run
from tilecore.ir.nodes import Sync
from tilecore.ir.visitor import walk

TARGETS = ("sm_75", "sm_80", "sm_90a", "sm_100a")
RNG = np.random.default_rng(20261127)
FULL, FREE = 2, 9  # the ids of the two barriers


def hand_over(rows, width, dtype="float32", missing=""):
    """One half of the block doubles a row in shared memory, the other half turns it around."""

    @T.prim_func
    def main(X: T.Tensor((rows, width), dtype), Y: T.Tensor((rows, width), "float32")):
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding()
            tile = T.alloc_shared((width,), "float32")
            if t < 64:
                for r in T.serial(rows):
                    T.sync_threads(FREE, 128)
                    for i in T.serial(t, width, 64):
                        tile[i] = X[r, i] * 2
                    if missing != "arrival" or r < rows - 1:
                        T.named_barrier_arrive(FULL, 128)
            else:
                T.named_barrier_arrive(FREE, 128)
                for r in T.serial(rows):
                    if missing != "wait":
                        T.sync_threads(FULL, 128)
                    else:
                        T.named_barrier_arrive(FULL, 128)
                    for i in T.serial(t - 64, width, 64):
                        Y[r, i] = tile[width - 1 - i]
                    if r < rows - 1:
                        T.named_barrier_arrive(FREE, 128)

    return main


def in_turns(rows, width):
    """Two groups take turns, and the first one opens its own barrier (as attention kernels do)."""

    @T.prim_func
    def main(X: T.Tensor((rows, width), "float32"), Y: T.Tensor((width,), "float32")):
        with T.Kernel(1, threads=(128,)):
            t = T.get_thread_binding()
            total = T.alloc_shared((width,), "float32")
            if t < 64:
                for i in T.serial(t, width, 64):
                    total[i] = 0
                T.named_barrier_arrive(1, 128)
            if t < 64:
                for r in T.serial(rows):
                    T.sync_threads(3, 128)
                    for i in T.serial(t, width, 64):
                        total[i] = total[i] * 2 + X[r, i]
                    T.named_barrier_arrive(1, 128)
            else:
                for _ in T.serial(rows):
                    T.sync_threads(1, 128)
                    for i in T.serial(t - 64, width, 64):
                        total[width - 1 - i] = total[width - 1 - i] + 1
                    T.named_barrier_arrive(3, 128)
                T.sync_threads(1, 128)
                for i in T.serial(t - 64, width, 64):
                    Y[i] = total[i]

    return main


def meet(rows, width):
    """Both halves wait at the same barriers, each in a branch of its own."""

    @T.prim_func
    def main(X: T.Tensor((rows, width), "float32"), Y: T.Tensor((rows, width), "float32")):
        with T.Kernel(1, threads=(32, 4)):
            t = T.get_thread_binding(0) + 32 * T.get_thread_binding(1)
            tile = T.alloc_shared((width,), "float32")
            for r in T.serial(rows):
                if t // 32 < 2:
                    for i in T.serial(t, width, 64):
                        tile[i] = X[r, i]
                    T.sync_threads(2, 128)
                else:
                    T.sync_threads(2, 128)
                    for i in T.serial(t - 64, width, 64):
                        Y[r, i] = tile[width - 1 - i]
                T.sync_threads(5, 128)

    return main


def everywhere(func, target, x, out):
    """Return the output of the oracle, of the CPU and of the emulated GPU."""
    found = []
    for runs in (
        lambda *given: run(func, *given),
        lambda *given: runtime.load(compile(func))(*given),
        lambda *given: run_emulated(func, target, given, ALL_SCHEDULES),
    ):
        found.append(np.full_like(out, np.nan))
        runs(x, found[-1])
    return found


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (5, 37), (3, 131)])
def test_one_half_of_a_block_hands_rows_to_the_other(rows, width, dtype, target):
    x = RNG.standard_normal((rows, width)).astype(dtype)
    func = hand_over(rows, width, dtype)
    for y in everywhere(func, target, x, np.zeros((rows, width), np.float32)):
        np.testing.assert_array_equal(y, 2 * x[:, ::-1].astype(np.float32))


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "width"), [(2, 40), (4, 77)])
def test_two_groups_take_turns(rows, width, target):
    x = RNG.standard_normal((rows, width)).astype(np.float32)
    want = np.zeros(width)
    for row in x.astype(np.float64):
        want = (want + 1) * 2 + row
    for y in everywhere(in_turns(rows, width), target, x, np.zeros(width, np.float32)):
        np.testing.assert_allclose(y, want, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "width"), [(2, 40), (3, 131)])
def test_branches_that_both_wait_meet_each_other(rows, width, target):
    x = RNG.standard_normal((rows, width)).astype(np.float32)
    for y in everywhere(meet(rows, width), target, x, np.zeros_like(x)):
        np.testing.assert_array_equal(y, x[:, ::-1])


def barriers(count, cond):
    """Return the scopes of a barrier of so many threads in a branch of a block of 128."""

    @T.prim_func
    def main(X: T.Tensor((2,), "int32"), Y: T.Tensor((128,), "int32")):
        with T.Kernel(2, threads=128) as bx:
            t = T.get_thread_binding()
            warp = T.alloc_var("int32")
            warp = t // 32
            if cond(t, bx, X, warp):
                T.sync_threads(1, count)
                Y[t] = 1

    return {s.scope for s in walk(main.body) if isinstance(s, Sync)}


@pytest.mark.parametrize(("count", "cond", "scope"), [
    (64, lambda t, bx, X, warp: t < 64, "group"),
    (64, lambda t, bx, X, warp: T.And(t // 64 == 1, bx == 0), "group"),
    (128, lambda t, bx, X, warp: X[bx] > 0, "group"),
    (64, lambda t, bx, X, warp: warp < 2, "named"),  # who these are is not known
    (128, lambda t, bx, X, warp: t < 64, "named"),
    (64, lambda t, bx, X, warp: X[bx] > 0, "named"),
])  # fmt: skip
def test_the_threads_of_one_branch_need_no_named_barrier(count, cond, scope):
    assert barriers(count, cond) == {scope}


def by_role(role_of, count, meets_other):
    """Threads whose role is 1 turn their warp's part of a row around, or another branch's."""

    @T.prim_func
    def main(
        X: T.Tensor((128,), "float32"), F: T.Tensor((4,), "int32"), Y: T.Tensor((128,), "float32")
    ):
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding()
            tile = T.alloc_shared((128,), "float32")
            role = T.alloc_var("int32")
            role = role_of(t, F)
            if role == 1:
                if not meets_other:
                    tile[t] = X[t]
                T.sync_threads(2, count)
                Y[t] = tile[31 - t % 32 + t // 32 * 32]
            elif meets_other:
                tile[t % 32 + (3 - t // 32) * 32] = X[t]
                T.sync_threads(2, count)

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("role_of", [
    lambda t, F: F[t // 32], lambda t, F: t // 64, lambda t, F: t // 32 % 2
])  # fmt: skip
def test_a_barrier_in_a_branch_that_no_thread_index_chooses_is_never_taken_for_its_alone(role_of):
    x = RNG.standard_normal(128).astype(np.float32)
    flags = np.array([role_of(32 * w, np.array([1, 0, 1, 0])) for w in range(4)], np.int32)
    own = by_role(role_of, 64, meets_other=False)
    want = np.where(np.repeat(flags, 32) == 1, x.reshape(4, 32)[:, ::-1].reshape(-1), 0)
    for runs in (lambda *given: run(own, *given), runtime.load(compile(own))):
        y = np.zeros(128, np.float32)
        runs(x, flags, y)
        np.testing.assert_array_equal(y, want)
    both = by_role(role_of, 128, meets_other=True)
    y = np.zeros(128, np.float32)
    run(both, x, flags, y)
    crossed = x.reshape(4, 32)[::-1, ::-1].reshape(-1)
    np.testing.assert_array_equal(y, np.where(np.repeat(flags, 32) == 1, crossed, 0))
    with pytest.raises(AssertionFailed, match=r"deadlock(.|\n)*one after the other on a CPU"):
        runtime.load(compile(both))(x, flags, y)
    for func in (own, both):
        with pytest.raises(UnsupportedOnTarget, match="in a branch that only some threads take"):
            run_emulated(func, "sm_80", [x, flags, y])


def turns(count, leaves):
    @T.prim_func
    def main(X: T.Tensor((2,), "int32"), Y: T.Tensor((128,), "int32")):
        with T.Kernel(2, threads=128):
            t = T.get_thread_binding()
            left = T.alloc_var("int32")
            left = X[0]
            if t < 64:
                for i in T.serial(T.if_then_else(leaves == "early", t, 4)):
                    left = left - t
                    if leaves == "by a variable" and left <= 0:
                        T.loop_break()
                    if leaves == "break" and X[i % 2] == t:
                        T.loop_break()
                    for _ in T.serial(4):
                        if leaves == "inner" and X[i % 2] == t:
                            T.loop_break()
                        Y[t] = i
                    if leaves == "return" and t < 7:
                        T.thread_return()
                    T.sync_threads(1, count)

    return {s.scope for s in walk(main.body) if isinstance(s, Sync)}


@pytest.mark.parametrize("leaves", ["early", "break", "return", "by a variable", "inner", "nobody"])
def test_a_barrier_in_a_loop_that_threads_leave_apart_is_not_of_the_branch(leaves):
    assert turns(64, leaves) == ({"group"} if leaves in ("inner", "nobody") else {"named"})


def test_who_leaves_by_a_variable_that_all_have_alike_meets_the_others():
    """DeepSeek's top-k: rounds that end when a count in every thread's own variable is used up."""

    @T.prim_func
    def main(X: T.Tensor((32,), "int32"), Y: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            tile = T.alloc_shared((32,), "int32")
            left = T.alloc_var("int32")
            left = X[0]
            for i in T.serial(8):
                if left <= 0:
                    T.loop_break()
                if t < 32:
                    tile[t] = X[t] + i
                    T.sync_threads(3, 32)
                    Y[t] = tile[31 - t]
                T.sync_threads()
                left = left - tile[1]
                T.sync_threads()

    x = np.arange(32, dtype=np.int32)
    x[:2] = 5, 2  # left: 5, 3, 0 after the rounds that add 0, 1
    for runs in (
        lambda *given: run(main, *given),
        runtime.load(compile(main)),
        lambda *given: run_emulated(main, "sm_80", list(given)),
    ):
        y = np.zeros(32, np.int32)
        runs(x, y)
        np.testing.assert_array_equal(y, x[::-1] + 1)


def test_numbers_and_counts_must_be_known_where_they_matter():
    def main(barrier, count, is_branch):
        @T.prim_func
        def main(n: T.int32, Y: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=64):
                t = T.get_thread_binding()
                known = {"n": n, "t": t // 32}
                if not is_branch or t < 32:
                    T.sync_threads(known.get(barrier, barrier), known.get(count, count))
                Y[t] = 1.0

        return {s.scope for s in walk(main.body) if isinstance(s, Sync)}

    for barrier, count in ((1, None), ("n", 64), ("t", 64), (0, 64), (1, "n"), (0, None)):
        assert main(barrier, count, is_branch=False) == {"group"}
    for barrier, count in (("n", 32), (0, 32), (1, 32), (101, 32)):
        assert main(barrier, count, is_branch=True) == {"group"}
    for barrier, count, error, text in (
        (1, None, ScopeError, "expected a count that is known"),
        (1, "n", ScopeError, "expected a count that is known"),
        ("n", 64, ScopeError, "expected a number that is known"),
        (0, 64, ScopeError, "found that of all threads of the block"),
        (16, 64, TypeMismatch, "a barrier from 1 to 15"),
        (-1, 32, TypeMismatch, "a barrier from 1 to 15"),
        (1, 0, TypeMismatch, "at least one thread"),
    ):
        with pytest.raises(error, match=text) as caught:
            main(barrier, count, is_branch=True)
        assert caught.value.span.line


def test_an_arrival_that_is_missing_is_a_deadlock_everywhere():
    x, y = (np.zeros((3, 37), np.float32) for _ in range(2))
    func = hand_over(3, 37, missing="arrival")
    with pytest.raises(ScopeError, match="deadlock: no thread arrives any more at barrier"):
        run(func, x, y)
    with pytest.raises(EmulationError, match=f"deadlock:(.|\n)*barrier {FULL} of 128 threads"):
        run_emulated(func, "sm_80", [x, y], is_ordered=False)
    with pytest.raises(OrderFault, match=r"deadlock|never"):
        run_emulated(func, "sm_80", [x, y])


@pytest.mark.few(1)
@pytest.mark.parametrize("cut", [f"tc_bar_arrive({FULL}, 128);", f"tc_bar_sync({FREE}, 128);"])
def test_a_barrier_that_is_cut_out_of_the_code_is_found(cut):
    x, y = (np.zeros((3, 37), np.float32) for _ in range(2))
    with pytest.raises(EmulationError, match=r"deadlock|race"):
        run_emulated(hand_over(3, 37), "sm_80", [x, y], without=cut)


def test_who_does_not_wait_reads_what_is_being_written():
    x, y = (np.zeros((3, 37), np.float32) for _ in range(2))
    func = hand_over(3, 37, missing="wait")
    with pytest.raises(EmulationError, match="race"):
        run_emulated(func, "sm_80", [x, y], is_ordered=False)
    with pytest.raises(OrderFault, match="race"):
        run_emulated(func, "sm_80", [x, y])


def test_what_is_wrong_with_a_named_barrier_is_said():
    def arriving(barrier, count, waited=64):
        @T.prim_func
        def main(Y: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=64):
                t = T.get_thread_binding()
                if t < 32:
                    T.named_barrier_arrive(barrier, count)
                else:
                    T.sync_threads(barrier, waited)
                    Y[t] = 1.0

        return main

    for barrier, count, error, text in (
        (0, 64, TypeMismatch, "a barrier from 1 to 15"),
        (16, 64, TypeMismatch, "a barrier from 1 to 15"),
        (1, 40, TypeMismatch, "a multiple of 32 threads"),
        (1, 128, ScopeError, "at most the 64 threads of the block, found 128"),
    ):
        with pytest.raises(error, match=text) as caught:
            arriving(barrier, count)
        assert caught.value.span.line
    with pytest.raises(ScopeError, match="expected 64 threads as elsewhere, found 32"):
        arriving(1, 64, waited=32)
    with pytest.raises(UnsupportedOnTarget, match=r"T\.named_barrier_arrive on target gfx942"):
        run_emulated(arriving(1, 64), "gfx942", [np.zeros(64, np.float32)])
    with pytest.raises(UnsupportedOnTarget, match=r"T\.sync_threads between branches"):
        run_emulated(meet(2, 64), "gfx942", [np.zeros((2, 64), np.float32)] * 2)
    with pytest.raises(ScopeError, match="expected whole warps of 32 threads, found 40 threads"):
        barriers(40, lambda t, bx, X, warp: t < 64)


def in_other_numbers(between):
    """All threads turn around what they have, then the first and the last quarter of them."""

    @T.prim_func
    def main(X: T.Tensor((256,), "float32"), Y: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=256):
            t = T.get_thread_binding()
            tile = T.alloc_shared((256,), "float32")
            other = T.alloc_shared((128,), "float32")
            tile[t] = X[t]
            if t < 128:
                T.sync_threads(1, 256)
            else:
                T.sync_threads(1, 256)
            Y[t] = tile[255 - t]
            if between == "all":
                T.sync_threads()
            elif between == "all by number":
                T.sync_threads(1)
            elif between == "in a loop":
                for _ in T.serial(2):
                    T.sync_threads()
            if t < 64:
                other[t] = Y[t] * 2
                T.sync_threads(1, 128)
                Y[t] = other[127 - t]
            elif t >= 192:
                other[t - 128] = Y[t] * 2
                T.sync_threads(1, 128)
                Y[t] = other[255 - t]

    return main


@pytest.mark.parametrize("between", ["all", "all by number"])
@pytest.mark.parametrize("target", ["llvm", *TARGETS])
def test_a_barrier_is_filled_by_others_once_all_threads_have_met(target, between):
    """It was refused, though who waited there has gone on by then (TC104)."""
    x = RNG.standard_normal(256).astype(np.float32)
    y, func = np.zeros_like(x), in_other_numbers(between)
    if target == "llvm":
        run(func, x, y)
        oracle, y = y, np.zeros_like(x)
        runtime.load(compile(func))(x, y)
        np.testing.assert_array_equal(oracle, y)
    else:
        run_emulated(func, target, [x, y], ALL_SCHEDULES)
    wanted = x[::-1].copy()
    wanted[:64], wanted[192:] = 2 * x[:64], 2 * x[192:]
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("between", ["", "in a loop"])
def test_a_barrier_that_may_be_in_use_is_filled_by_one_number_of_threads(between):
    with pytest.raises(ScopeError, match="expected 256 threads as elsewhere, found 128") as caught:
        in_other_numbers(between)
    assert caught.value.span.line


def test_a_barrier_that_some_leave_at_once_is_filled_by_one_number_of_threads():
    def arriving(count):
        @T.prim_func
        def main(Y: T.Tensor((128,), "float32")):
            with T.Kernel(1, threads=128):
                t = T.get_thread_binding()
                if t < 64:
                    T.named_barrier_arrive(1, 128)
                T.sync_threads()
                if t < 64:
                    T.sync_threads(1, count)
                Y[t] = 1.0

        return main

    with pytest.raises(ScopeError, match="expected 128 threads as elsewhere, found 64"):
        arriving(64)


def quarters(*, turns, is_shared):
    """All 256 threads come to a barrier of 128, the first quarter of them is read by the last."""

    @T.prim_func
    def main(X: T.Tensor((256,), "float32"), Y: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=256):
            t = T.get_thread_binding()
            tile = T.alloc_shared((256,), "float32")
            for _ in T.serial(turns):
                if is_shared:
                    tile[t] = X[t]
                T.sync_threads(1, 128)
            if is_shared:
                Y[t] = tile[255 - t]
            else:
                Y[t] = X[t] + 1

    return main


@pytest.mark.parametrize("turns", [1, 2])
def test_threads_who_fill_a_barrier_more_than_once_are_not_at_fault(turns):
    """TC308 said that 256 threads came to a barrier of 128: four warps go on as four come."""
    x = RNG.standard_normal(256).astype(np.float32)
    y = np.zeros_like(x)
    run_emulated(quarters(turns=turns, is_shared=False), "sm_80", [x, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y, x + 1)
    with pytest.raises(OrderFault, match=r"race: .* nothing orders them"):
        run_emulated(quarters(turns=turns, is_shared=True), "sm_80", [x, y])


def test_threads_whom_no_barrier_stands_between_may_fill_a_barrier_for_each_other():
    """Two branches of 128 threads meet at one barrier of 128: any four warps go on."""

    def main(*, is_apart):
        @T.prim_func
        def main(X: T.Tensor((256,), "float32"), Y: T.Tensor((256,), "float32")):
            with T.Kernel(1, threads=256):
                t = T.get_thread_binding()
                tile = T.alloc_shared((256,), "float32")
                if t < 128:
                    tile[t] = X[t]
                    if t < 64:
                        T.sync_threads(1, 128)
                    else:
                        T.sync_threads(1, 128)
                    Y[t] = tile[127 - t]
                if is_apart:
                    T.sync_threads()
                if t >= 128:
                    tile[t] = X[t]
                    if t < 192:
                        T.sync_threads(1, 128)
                    else:
                        T.sync_threads(1, 128)
                    Y[t] = tile[383 - t]

        return main

    x = RNG.standard_normal(256).astype(np.float32)
    y = np.zeros_like(x)
    run_emulated(main(is_apart=True), "sm_80", [x, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y, np.concatenate([x[127::-1], x[:127:-1]]))
    with pytest.raises(OrderFault, match="that a barrier of 128 was full before"):
        run_emulated(main(is_apart=False), "sm_80", [x, y])
