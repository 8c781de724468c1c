"""Roles of warps: producers and consumers that meet at barriers, compiled and in the oracle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilecore as tilelang
import tilecore.language as T
from tilecore import interpreter
from tilecore.errors import AssertionFailed, ScopeError, TypeMismatch

RunBoth = Callable[..., list[np.ndarray]]
RNG = np.random.default_rng(0)
STAGES = 2


def matmul(m: int, n: int, k: int, producer_first: bool, in_loop: bool):
    """Return a product with a producer role and a consumer role, the loop inside or outside."""
    steps = T.ceildiv(k, 16)

    @T.macro
    def produce(A, B, A_shared, B_shared, full, empty, bx, by, ko):
        T.mbarrier_wait_parity(empty[ko % STAGES], (ko // STAGES % 2) ^ 1)
        T.tma_copy(A[by * 32, ko * 16], A_shared[ko % STAGES, :, :], barrier=full[ko % STAGES])
        T.tma_copy(B[ko * 16, bx * 32], B_shared[ko % STAGES, :, :], barrier=full[ko % STAGES])
        T.mbarrier_arrive(full[ko % STAGES])

    @T.macro
    def consume(A_shared, B_shared, C_local, full, empty, ko):
        T.mbarrier_wait_parity(full[ko % STAGES], ko // STAGES % 2)
        T.wgmma_gemm(A_shared[ko % STAGES, :, :], B_shared[ko % STAGES, :, :], C_local)
        T.wait_wgmma(0)
        T.mbarrier_arrive(empty[ko % STAGES])

    @T.prim_func
    def program(
        A: T.Tensor((m, k), "float32"),
        B: T.Tensor((k, n), "float32"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=256) as (bx, by):
            A_shared = T.alloc_shared((STAGES, 32, 16), "float32")
            B_shared = T.alloc_shared((STAGES, 16, 32), "float32")
            C_local = T.alloc_fragment((32, 32), "float32")
            full = T.alloc_barrier([128] * STAGES)
            empty = T.alloc_barrier([128] * STAGES)
            with T.ws(0):
                T.set_max_nreg(240, 1)
                T.clear(C_local)
            if in_loop:
                for ko in T.serial(steps):
                    with T.ws(1):
                        produce(A, B, A_shared, B_shared, full, empty, bx, by, ko)
                    with T.ws(0):
                        consume(A_shared, B_shared, C_local, full, empty, ko)
            else:
                with T.ws(int(producer_first)):
                    for ko in T.serial(steps):
                        if producer_first:
                            produce(A, B, A_shared, B_shared, full, empty, bx, by, ko)
                        else:
                            consume(A_shared, B_shared, C_local, full, empty, ko)
                with T.ws(int(not producer_first)):
                    for ko in T.serial(steps):
                        if producer_first:
                            consume(A_shared, B_shared, C_local, full, empty, ko)
                        else:
                            produce(A, B, A_shared, B_shared, full, empty, bx, by, ko)
            with T.ws(0):
                T.copy(C_local, C[by * 32, bx * 32])

    return program


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("producer_first", "in_loop"), [(True, False), (False, False), (True, True)]
)
def test_a_producer_and_a_consumer(run_both: RunBoth, producer_first: bool, in_loop: bool) -> None:
    m, n, k = 40, 50, 70
    a = RNG.standard_normal((m, k)).astype(np.float32)
    b = RNG.standard_normal((k, n)).astype(np.float32)
    program = matmul(m, n, k, producer_first, in_loop)
    (c,) = run_both(program, [a, b], [np.zeros((m, n), np.float32)])
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("producer_first", [True, False])
def test_a_producer_runs_no_further_ahead_than_it_must(producer_first: bool) -> None:
    """Programs keep one mask for two stages: right on a GPU, where the consumer is quicker."""
    steps = 3

    @T.macro
    def produce(A, tile, number, full, empty, k):
        for stage in (0, 1):
            T.mbarrier_wait_parity(empty[stage], (k % 2) ^ 1)
            T.copy(A[(k * 2 + stage) * 16, 0], tile[stage, :, :])
            number[0] = k * 2 + stage
            T.mbarrier_arrive(full[stage])

    @T.macro
    def consume(tile, found, number, N, full, empty, k):
        for stage in (0, 1):
            T.mbarrier_wait_parity(full[stage], k % 2)
            N[k * 2 + stage] = number[0]
            T.gemm(tile[stage, :, :], tile[stage, :, :], found)
            T.mbarrier_arrive(empty[stage])

    @T.prim_func
    def program(
        A: T.Tensor((steps * 32, 16), "float32"),
        B: T.Tensor((16, 16), "float32"),
        N: T.Tensor((steps * 2,), "int32"),
    ):
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((2, 16, 16), "float32")
            number = T.alloc_shared((1,), "int32")
            found = T.alloc_fragment((16, 16), "float32")
            full, empty = T.alloc_barrier([128] * 2), T.alloc_barrier([128] * 2)
            with T.ws(int(not producer_first)):
                for k in T.serial(steps):
                    produce(A, tile, number, full, empty, k)
            with T.ws(int(producer_first)):
                T.clear(found)
                for k in T.serial(steps):
                    consume(tile, found, number, N, full, empty, k)
                T.copy(found, B)

    a = RNG.standard_normal((steps * 32, 16)).astype(np.float32)
    b, numbers = np.zeros((16, 16), np.float32), np.zeros(steps * 2, np.int32)
    tilelang.compile(program)(a, b, numbers)
    np.testing.assert_array_equal(numbers, np.arange(steps * 2))
    parts = a.reshape(-1, 16, 16)
    np.testing.assert_allclose(b, sum(p @ p for p in parts), rtol=1e-4, atol=1e-4)


def test_the_number_of_steps_may_be_known_only_at_run_time(run_both: RunBoth) -> None:
    k = T.dynamic("k")
    program = matmul(40, 50, k, True, False)
    for size in (1, 15, 64, 100):
        a = RNG.standard_normal((40, size)).astype(np.float32)
        b = RNG.standard_normal((size, 50)).astype(np.float32)
        (c,) = run_both(program, [a, b], [np.zeros((40, 50), np.float32)])
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def test_roles_by_thread_index_and_a_join(run_both: RunBoth) -> None:
    """Warps of one warpgroup: load, multiply, and all of them store."""
    m, k = 24, 50

    @T.prim_func
    def program(A: T.Tensor((m, k), "float32"), C: T.Tensor((m, m), "float32")):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((STAGES, m, 16), "float32")
            C_tmem = T.alloc_tmem([m, m], "float32")
            loaded = T.alloc_barrier([32] * STAGES)
            consumed = T.alloc_barrier([1] * STAGES)
            done = T.alloc_barrier([1])
            tx = T.get_thread_binding()
            if tx < 32:
                for i in T.serial(T.ceildiv(k, 16)):
                    T.mbarrier_wait_parity(consumed[i % STAGES], ((i // STAGES) & 1) ^ 1)
                    T.copy(A[0, i * 16], A_shared[i % STAGES, :, :])
                    T.mbarrier_arrive(loaded[i % STAGES])
            elif tx < 64:
                for i in T.serial(T.ceildiv(k, 16)):
                    T.mbarrier_wait_parity(loaded[i % STAGES], (i // STAGES) & 1)
                    T.tcgen05_gemm(
                        A_shared[i % STAGES, :, :], A_shared[i % STAGES, :, :], C_tmem,
                        transpose_B=True, mbar=consumed[i % STAGES], clear_accum=i == 0,
                    )  # fmt: skip
                T.tcgen05_mma_arrive(done)
            T.mbarrier_wait_parity(done, 0)
            T.copy(C_tmem, C)

    a = RNG.standard_normal((m, k)).astype(np.float32)
    (c,) = run_both(program, [a], [np.zeros((m, m), np.float32)])
    np.testing.assert_allclose(c, a @ a.T, rtol=1e-4, atol=1e-4)


def test_roles_take_turns_and_keep_their_own_variables(run_both: RunBoth) -> None:
    """Two roles add to one tile in turn; each counts its rounds in a variable of its threads."""
    rounds = 5

    @T.prim_func
    def program(X: T.Tensor((rounds, 8), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            total = T.alloc_shared((8,), "float32")
            ping = T.alloc_barrier(128)
            pong = T.alloc_barrier(128)
            turn = T.alloc_var("int32", init=0)
            T.clear(total)
            if tx >= 128:
                while turn < rounds:
                    T.barrier_wait(ping, turn & 1)
                    for i in T.Parallel(8):
                        total[i] = total[i] * 2.0
                    T.barrier_arrive(pong)
                    turn += 1
            else:
                while turn < rounds:
                    if turn > 0:
                        T.barrier_wait(pong, (turn - 1) & 1)
                    for i in T.Parallel(8):
                        total[i] = total[i] + X[turn, i]
                    T.barrier_arrive(ping)
                    turn += 1
            T.copy(total, Y)

    x = RNG.standard_normal((rounds, 8)).astype(np.float32)
    (y,) = run_both(program, [x], [np.zeros(8, np.float32)])
    wanted = np.zeros(8, np.float32)
    for row in x:
        wanted = (wanted + row) * 2
    np.testing.assert_allclose(y, wanted, rtol=1e-5)


def test_roles_without_barriers_run_one_after_the_other(run_both: RunBoth) -> None:
    @T.prim_func
    def program(Y: T.Tensor((3, 8), "float32")):
        with T.Kernel(1, threads=384):
            with T.ws(0):
                T.fill(Y[0, :], 1.0)
            with T.ws(1, 2):
                T.fill(Y[1:3, :], 2.0)

    (y,) = run_both(program, [], [np.zeros((3, 8), np.float32)])
    np.testing.assert_array_equal(y, np.repeat([[1.0], [2.0], [2.0]], 8, axis=1))


def test_a_resident_block_takes_tile_after_tile(run_both: RunBoth) -> None:
    rows, columns, workers = 5, 7, 3

    @T.prim_func
    def program(Y: T.Tensor((rows, columns), "int32"), Z: T.Tensor((rows, columns), "int32")):
        with T.Kernel(workers, threads=256) as (worker,):
            number = T.alloc_shared((2, 1), "int32")
            full = T.alloc_barrier([128] * 2)
            empty = T.alloc_barrier([128] * 2)
            with T.ws(1):
                own = T.PersistentTileScheduler(rows, columns, swizzle_size=2, name="own")
                own.init(worker)
                while own.valid():
                    T.barrier_wait(empty[own.current_iter & 1], (own.current_iter // 2 & 1) ^ 1)
                    T.fill(number[own.current_iter & 1, :], own.linear_idx)
                    T.barrier_arrive(full[own.current_iter & 1])
                    own.next_tile()
            with T.ws(0):
                tile = T.PersistentTileScheduler(rows, columns, swizzle_size=2)
                tile.init(worker)
                while tile.valid():
                    T.barrier_wait(full[tile.current_iter & 1], tile.current_iter // 2 & 1)
                    T.copy(number[tile.current_iter & 1, 0:1], Y[tile.m_idx, tile.n_idx])
                    m, n = tile.coord(tile.linear_idx)
                    T.fill(Z[m, n : n + 1], tile.current_iter)
                    T.barrier_arrive(empty[tile.current_iter & 1])
                    tile.next_tile()

    zeros = np.full((rows, columns), -1, np.int32)
    y, z = run_both(program, [], [zeros, zeros])
    panels = [range(p, min(p + 2, columns)) for p in range(0, columns, 2)]
    order = [(m, n) for panel in panels for m in range(rows) for n in panel]
    for position, place in enumerate(order):
        assert y[place] == position
        assert z[place] == position // workers


def test_roles_that_wait_for_each_other_forever_are_named() -> None:
    @T.prim_func
    def hang(Y: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=256):
            left = T.alloc_barrier(128)
            right = T.alloc_barrier(128)
            with T.ws(0):
                T.barrier_wait(right, 0)
                T.barrier_arrive(left)
            with T.ws(1):
                T.barrier_wait(left, 0)
                T.barrier_arrive(right)
            T.clear(Y)

    y = np.zeros(4, np.float32)
    with pytest.raises(ScopeError, match=r"deadlock: .* `(left|right)`"):
        interpreter.run(hang, y)
    with pytest.raises(AssertionFailed, match=r"deadlock: .* `(left|right)`"):
        tilelang.compile(hang, target="llvm")(y)


def test_a_warpgroup_is_a_number() -> None:
    with pytest.raises(TypeMismatch, match="numbers of warpgroups"):

        @T.prim_func
        def nobody(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1, threads=256), T.ws():
                T.clear(Y)


def test_roles_below_a_hint_wait_for_the_others(run_both: RunBoth) -> None:
    """Roles beside which registers are handed over had one turn together: a deadlock."""
    count = 3

    @T.prim_func
    def program(X: T.Tensor((count, 32), "float32"), Y: T.Tensor((count, 32), "float32")):
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((2, 32), "float32")
            factor = T.alloc_shared((2, 32), "float32")
            full, empty = T.alloc_barrier([64] * 2), T.alloc_barrier([128] * 2)
            tx = T.get_thread_binding()
            if tx < 128:
                T.set_max_nreg(240, 1)
                for i in T.serial(count):
                    T.mbarrier_wait_parity(full[i % 2], i // 2 % 2)
                    for j in T.Parallel(32):
                        Y[i, j] = tile[i % 2, j] * factor[i % 2, j]
                    T.mbarrier_arrive(empty[i % 2])
            else:
                T.set_max_nreg(24, 0)
                if tx < 160:
                    for i in T.serial(count):
                        T.mbarrier_wait_parity(empty[i % 2], (i // 2 + 1) % 2)
                        T.copy(X[i, :], tile[i % 2, :])
                        T.mbarrier_arrive(full[i % 2])
                elif tx < 192:
                    for i in T.serial(count):
                        T.mbarrier_wait_parity(empty[i % 2], (i // 2 + 1) % 2)
                        T.fill(factor[i % 2, :], i + 1)
                        T.mbarrier_arrive(full[i % 2])

    x = RNG.standard_normal((count, 32)).astype(np.float32)
    run_both(program, [x], [np.zeros_like(x)], [x * np.arange(1, count + 1)[:, None]])


def test_minus_one_stands_for_all_warpgroups(run_both: RunBoth) -> None:
    @T.prim_func
    def program(Y: T.Tensor((256,), "int32")):
        with T.Kernel(1, threads=256), T.ws(-1):
            Y[T.get_thread_binding()] = 5

    run_both(program, [], [np.zeros(256, np.int32)], [np.full(256, 5)])


def test_a_fragment_belongs_to_one_role() -> None:
    @T.prim_func
    def shares(Y: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=256):
            mine = T.alloc_fragment((4,), "float32")
            with T.ws(0):
                T.clear(mine)
            with T.ws(1):
                T.copy(mine, Y)

    with pytest.raises(ScopeError, match=r"`mine` is used by threads 0 to 127 and by threads 128"):
        tilelang.compile(shares, target="llvm")


@pytest.mark.exhaustive
def test_a_role_may_depend_on_more_than_the_thread(run_both: RunBoth) -> None:
    """One elected thread arrives; blocks take their roles by their number too."""

    @T.prim_func
    def program(X: T.Tensor((3, 4, 8), "float32"), Y: T.Tensor((3, 8), "float32")):
        with T.Kernel(3, threads=256) as b:
            tx = T.get_thread_binding()
            row = T.alloc_shared((8,), "float32")
            total = T.alloc_fragment((8,), "float32")
            full = T.alloc_barrier(1)
            empty = T.alloc_barrier(1)
            T.clear(Y[b, :])
            if tx >= 128 and b < 2:
                for k in T.serial(b + 2):
                    T.barrier_wait(empty, (k & 1) ^ 1)
                    T.copy(X[b, k, :], row)
                    if T.shuffle_elect(128):
                        T.mbarrier_arrive_expect_tx(full, 32)
            elif b < 2 and tx < 128:
                T.clear(total)
                for k in T.serial(b + 2):
                    T.barrier_wait(full, k & 1)
                    for i in T.Parallel(8):
                        total[i] = total[i] + row[i]
                    if tx == 5:
                        T.mbarrier_arrive(empty)
                T.copy(total, Y[b, :])

    x = RNG.standard_normal((3, 4, 8)).astype(np.float32)
    (y,) = run_both(program, [x], [np.zeros((3, 8), np.float32)])
    wanted = np.stack([x[0, :2].sum(0), x[1, :3].sum(0), np.zeros(8, np.float32)])
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


def test_a_schedule_of_roles_changes_nothing(run_both: RunBoth) -> None:
    @T.prim_func
    def program(X: T.Tensor((4, 8), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=128):
            row = T.alloc_shared((8,), "float32")
            total = T.alloc_fragment((8,), "float32")
            steps = {
                "load": [
                    T.WSSync.producer_acquire("rows"),
                    "copy",
                    T.WSSync.producer_commit("rows"),
                ],
                "add": [T.WSSync.consumer_wait("rows"), "sum", T.WSSync.consumer_release("rows")],
            }
            T.annotate_ws_schedule(
                T.WSSchedule(
                    num_warps=8,
                    roles=[T.WSRole("load", 0, 4), T.WSRole("add", 4, 8, max_nreg=240)],
                    pipelines=[T.WSPipeline("rows", [row], depth=2)],
                    scopes=[T.WSScope("loop", steps), T.WSScope(T.WSScope.ROOT, {})],
                )
            )
            T.clear(total, annotations={T.WSID: "start"})
            for k in T.serial(4, annotations={T.WSID: "loop"}):
                T.copy(X[k, :], row, annotations={T.WSID: "copy"})
                with T.ws_op("sum"):
                    for i in T.Parallel(8):
                        total[i] = total[i] + row[i]
            T.copy(total, Y)

    x = RNG.standard_normal((4, 8)).astype(np.float32)
    (y,) = run_both(program, [x], [np.zeros(8, np.float32)])
    np.testing.assert_allclose(y, x.sum(0), rtol=1e-5, atol=1e-6)


def test_a_part_of_a_warp_may_exchange_values(run_both: RunBoth) -> None:
    @T.prim_func
    def program(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            Y[tx] = 0.0
            if tx < 16:
                Y[tx] = T.warp_reduce_sum(X[tx])
            elif tx >= 32:
                Y[tx] = T.warp_reduce_max(X[tx])

    x = RNG.standard_normal(64).astype(np.float32)
    (y,) = run_both(program, [x], [np.zeros(64, np.float32)])
    wanted = np.concatenate([np.full(16, x[:16].sum()), np.zeros(16), np.full(32, x[32:].max())])
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
