"""Tiles that the tensor memory accelerator still stores while threads go on."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import EmulationError, OrderFault, TypeMismatch


def doubled(M, N, pending=1):
    """Rows doubled through two tiles in turn, one of which is stored while the other is filled."""
    BM, BN = 32, 64

    @T.prim_func
    def main(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, BN), threads=128) as bx:
            tile = T.alloc_shared((2, BM, BN), "float32")
            part = T.alloc_fragment((BM, BN), "float32")
            for k in T.serial(T.ceildiv(M, BM)):
                T.copy(A[k * BM, bx * BN], part)
                for i, j in T.Parallel(BM, BN):
                    part[i, j] *= 2
                T.tma_store_wait(pending)
                T.sync_threads()
                T.copy(part, tile[k % 2, :, :])
                T.tma_copy(tile[k % 2, :, :], B[k * BM, bx * BN])
                T.tma_store_arrive()
            T.tma_store_wait(0, read=False)

    return main


def arguments(M, N):
    return [
        np.random.default_rng(0).standard_normal((M, N), dtype=np.float32),
        np.zeros((M, N), np.float32),
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["h100", "a100"])
def test_a_program_waits_for_its_stores(target):
    a, b = arguments(200, 96)
    func = doubled(200, 96)
    run_emulated(func, target, [a, b], ALL_SCHEDULES)
    np.testing.assert_array_equal(b, 2 * a)
    kernel = lowered(func, target)[2].text.rpartition('extern "C"')[2]
    waits = [line.strip() for line in kernel.splitlines() if "bulk_wait" in line]
    on_hopper = ["tc_bulk_wait_read_1();", "tc_bulk_wait_0();", "tc_bulk_wait_read_0();"]
    assert waits == (on_hopper if target == "h100" else [])


def test_too_weak_a_wait_is_a_race():
    func, given = doubled(200, 96, pending=2), arguments(200, 96)
    with pytest.raises(EmulationError, match=r"race|still read"):
        run_emulated(func, "h100", given, ALL_SCHEDULES, is_ordered=False)
    with pytest.raises(OrderFault, match="race: a bulk store of thread 0 reads"):
        run_emulated(func, "h100", given)


def test_the_last_store_runs_until_the_kernel_ends():
    """And the tile is not written again before it has been read."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32"),
             C: T.Tensor((64, 64), "float32")):  # fmt: skip
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            part = T.alloc_fragment((64, 64), "float32")
            T.copy(A, part)
            T.copy(part, tile)
            T.copy(tile, B)
            for i, j in T.Parallel(64, 64):
                part[i, j] += 1
            T.copy(part, tile)
            T.copy(tile, C)

    a, b = arguments(64, 64)
    c = np.zeros_like(b)
    plan = run_emulated(main, "h100", [a, b, c], ALL_SCHEDULES)
    np.testing.assert_array_equal(b, a)
    np.testing.assert_array_equal(c, a + 1)
    (launch,) = plan.launches.values()
    assert len(launch.running) == 2
    kernel = lowered(main, "h100")[2].text.rpartition('extern "C"')[2]
    assert "tc_bulk_wait_0" not in kernel
    with pytest.raises(EmulationError):
        run_emulated(main, "h100", [a, b, c], ALL_SCHEDULES, without="tc_bulk_wait_read_0();")


def test_waits_are_known_numbers():
    with pytest.raises(TypeMismatch, match="number of copies that may still run"):

        @T.prim_func
        def main(A: T.Tensor((4,), "float32")):
            with T.Kernel(1, threads=128):
                T.tma_store_wait(-1)


def tiles_in_turn(tiles, reads_back=False):
    """A block computes one tile after another and stores them."""
    BM, BN = 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((tiles * BM, BN), "float32"), B: T.Tensor((tiles * BM, BN), "float32"),
        C: T.Tensor((BM, BN), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((BM, BN), "float32")
            part = T.alloc_fragment((BM, BN), "float32")
            for w in T.serial(tiles):
                T.copy(A[w * BM, 0], part)
                for i, j in T.Parallel(BM, BN):
                    part[i, j] += 1
                T.copy(part, tile)
                T.copy(tile, B[w * BM, 0])
            if reads_back:
                T.copy(B[0, 0], C)

    return main


@pytest.mark.few(1)
def test_a_store_of_a_loop_is_waited_for_where_its_tile_is_needed_again():
    func = tiles_in_turn(3)
    a = np.random.default_rng(4).standard_normal((192, 64)).astype(np.float32)
    b, c = np.zeros_like(a), np.zeros((64, 64), np.float32)
    run_emulated(func, "h100", [a, b, c], ALL_SCHEDULES)
    np.testing.assert_array_equal(b, a + 1)
    kernel = lowered(func, "h100")[2].text.rpartition('extern "C"')[2]
    store, first = kernel.index("tc_tma_store"), kernel.index("tc_bulk_wait_0();")
    assert first < store  # before the tile is written, not behind the store
    assert kernel.rindex("tc_bulk_wait_read_0();") > store
    for wait in ("tc_bulk_wait_0();", "tc_bulk_wait_read_0();"):
        with pytest.raises(EmulationError, match=r"race|still read|in flight|leaves"):
            run_emulated(func, "h100", [a, b, c], ALL_SCHEDULES, without=wait, is_ordered=False)


@pytest.mark.few(1)
def test_what_is_read_again_is_stored_before():
    func = tiles_in_turn(3, reads_back=True)
    a = np.random.default_rng(5).standard_normal((192, 64)).astype(np.float32)
    b, c = np.zeros_like(a), np.zeros((64, 64), np.float32)
    run_emulated(func, "h100", [a, b, c], ALL_SCHEDULES)
    np.testing.assert_array_equal(c, a[:64] + 1)


def added_in_turn(tiles):
    """Each of two blocks adds one tile after another to a tensor."""
    BM, BN = 32, 64

    @T.prim_func
    def main(A: T.Tensor((tiles * BM, BN), "float32"), B: T.Tensor((tiles * BM, BN), "float32")):
        with T.Kernel(2, threads=128):
            tile = T.alloc_shared((BM, BN), "float32")
            part = T.alloc_fragment((BM, BN), "float32")
            for w in T.serial(tiles):
                T.copy(A[w * BM, 0], part)
                T.copy(part, tile)
                for i, j in T.Parallel(BM, BN):
                    T.atomic_add(B[w * BM + i, j], tile[i, j])

    return main


@pytest.mark.few(1)
def test_an_update_of_a_loop_is_waited_for_where_its_tile_is_needed_again():
    func = added_in_turn(3)
    a = np.random.default_rng(6).integers(-9, 9, (96, 64)).astype(np.float32)
    b = np.zeros_like(a)
    plan = run_emulated(func, "h100", [a, b], ALL_SCHEDULES)
    np.testing.assert_array_equal(b, 2 * a)
    (launch,) = plan.launches.values()
    assert launch.running == launch.updates.keys()
    assert len(launch.updates) == 1
    kernel = lowered(func, "h100")[2].text.rpartition('extern "C"')[2]
    update = kernel.index("tc_tma_add")
    assert kernel.index("tc_bulk_wait_read_0();") < update  # before the tile is written
    assert "tc_bulk_wait_0();" not in kernel  # the order of additions does not matter
    with pytest.raises(EmulationError, match=r"race|still read|leaves"):
        run_emulated(
            func, "h100", [a, b], ALL_SCHEDULES, without="tc_bulk_wait_read_0();", is_ordered=False
        )


@pytest.mark.few(1)
def test_an_update_of_what_the_block_also_stores_is_waited_for():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A, tile)
            for i, j in T.Parallel(64, 64):
                B[i, j] = 1.0
            T.atomic_add(B, tile)

    (launch,) = lowered(main, "h100")[0].launches.values()
    assert launch.updates
    assert not launch.running


@pytest.mark.few(1)
def test_a_barrier_waits_for_copies_since_the_last_one():
    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32"),
        C: T.Tensor((640, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            tile, other = (T.alloc_shared((64, 64), "float32") for _ in range(2))
            T.copy(A, tile)
            for k in T.serial(10):
                for i, j in T.Parallel(64, 64):
                    other[i, j] = tile[j, i] + k
                for i, j in T.Parallel(64, 64):
                    C[k * 64 + i, j] = other[j, i]
            T.copy(B, tile)
            for i, j in T.Parallel(64, 64):
                C[i, j] = tile[j, i]

    a, b = arguments(64, 64)
    b[:] = a * 3
    c = np.zeros((640, 64), np.float32)
    run_emulated(main, "sm_80", [a, b, c], ALL_SCHEDULES)
    np.testing.assert_array_equal(c[64:128], a + 1)
    np.testing.assert_array_equal(c[:64], b.T)
    kernel = lowered(main, "sm_80")[2].text.rpartition('extern "C"')[2]
    assert kernel.count("tc_sync_threads") > kernel.count("tc_cp_async_wait_0") == 2
