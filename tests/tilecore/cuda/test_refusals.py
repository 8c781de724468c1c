"""What a GPU lacks is refused when it is compiled: by code, place, limit and what would fit.

A table: each row is a program that asks for it. What is beside the limit, and right, must compute
the same as the interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import tilecore
import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.codegen.nvrtc import load_nvrtc
from tilecore.emulator import LATE
from tilecore.errors import InvalidConfig, LaunchFailed, TileError, TypeMismatch
from tilecore.interpreter import run as interpret
from tilecore.runtime.cuda import check_grid

needs_nvrtc = pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
Make = Callable[[], object]


def refused(make: Make, target: str) -> TileError:
    """Return the error of a program, traced or lowered, which names its place."""
    with pytest.raises(TileError) as found:
        lowered(make(), target)
    assert found.value.span is not None
    assert found.value.span.file == __file__
    return found.value


def plain(threads, grid=(1,), cluster=None):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(*grid, threads=threads, cluster_dims=cluster):
            for i in T.Parallel(64):
                B[i] = A[i] + 1.0

    return main


# Program, target, code, what the message says, what the hint says.
LAUNCHES = {
    "no thread": (lambda: plain(0), "h100", "TC303", "at least one thread", ""),
    "fewer than none": (lambda: plain(-32), "h100", "TC303", "at least one thread", ""),
    "four axes": (lambda: plain((1, 1, 1, 32)), "a100", "TC303", "at most 3 axes", ""),
    "too many threads": (
        lambda: plain((1024, 2)), "a100", "TC303", "threads=2048: expected at most 1024",
        "threads=1024",
    ),
    "too many along z": (
        lambda: plain((1, 1, 128)), "a100", "TC303", "at most 64 threads of a block along z",
        r"threads=\(128, 1, 1\)",
    ),
    "too many blocks along y": (
        lambda: plain(64, (1, 65536)), "a100", "TC303", "0 to 65535 blocks along y",
        "the longest axis of T.Kernel first",
    ),
    "too many blocks": (
        lambda: plain(64, (2**31,)), "a100", "TC303", "0 to 2147483647 blocks", "a block do more"
    ),
    "too many blocks, AMD": (
        lambda: plain(64, (2**31,)), "gfx942", "TC303", "0 to 2147483647 blocks", "a block do more"
    ),
    "fewer blocks than none": (lambda: plain(64, (-1,)), "a100", "TC303", "grid=-1 blocks", ""),
    "a large cluster": (
        lambda: plain(64, (16,), 16), "h100", "TC303", "at most 8 blocks in a cluster", "=8 fits"
    ),
    "half a cluster": (
        lambda: plain(64, (6,), 4), "h100", "TC303", "divisors of the grid, which has 6",
        "2 along x fits, or a grid of a multiple of 4",
    ),
    "a cluster of more axes than the grid": (
        lambda: plain(64, (4,), (2, 2)), "h100", "TC303", "which has 1 blocks", "1 along y fits"
    ),
    "a cluster of four axes": (
        lambda: plain(64, (4, 4, 4), (2, 1, 1, 2)), "h100", "TC202", "along at most 3 axes", ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_that_no_device_begins(name):
    make, target, code, message, hint = LAUNCHES[name]
    error = refused(make, target)
    assert error.code == code
    assert_says(error, message, hint)


def assert_says(error: TileError, message: str, hint: str) -> None:
    assert re.search(message, error.message), error.message
    assert re.search(hint, error.hint), error.hint


def test_a_call_with_half_a_cluster():
    check_grid("main", (4, 2, 1), (2, 2, 1))
    with pytest.raises(LaunchFailed, match=r"whole clusters of 2 x 1 x 1 blocks, found 3 x 1 x 1"):
        check_grid("main", (3, 1, 1), (2, 1, 1))


@needs_nvrtc
def test_arrays_that_are_more_than_the_local_memory_of_a_thread():
    """The driver refuses to load such a kernel."""

    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            x = T.alloc_local((150000,), "int32")
            x[A[tx]] = tx
            B[tx] = x[A[(tx + 1) % 64]]

    with pytest.raises(InvalidConfig, match=r"expected at most 524288 B of a thread on a100"):
        tilecore.compile(main, target="a100")


# --- exchanges ------------------------------------------------------------------------------------


def exchange(of, dtype="float32", threads=64):
    @T.prim_func
    def main(A: T.Tensor((threads,), dtype), B: T.Tensor((threads,), dtype)):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            B[tx] = T.cast(of(A[tx], tx), dtype)

    return main


EXCHANGES = {
    "backwards": (lambda: exchange(lambda v, t: T.shfl_down(v, -1)), "distance from 0 to 31"),
    "beyond the warp": (lambda: exchange(lambda v, t: T.shfl_up(v, 32)), "distance from 0 to 31"),
    "beyond the group": (
        lambda: exchange(lambda v, t: T.shfl_xor(v, 8, width=8)), "0 to 7 for T.shfl_xor"
    ),
    "bits of floats": (
        lambda: exchange(lambda v, t: T.warp_reduce_bitor(v)), "integers for T.warp_reduce_bitor"
    ),
    "a lane and a half": (lambda: exchange(lambda v, t: T.shfl_sync(v, 1.5)), "an integer lane"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_exchange_that_means_nothing(name):
    make, message = EXCHANGES[name]
    error = refused(make, "a100")
    assert error.code == "TC202"
    assert_says(error, message, "")


WAYS = {
    "down": lambda v, t: T.shfl_down(v, 3),
    "a lane": lambda v, t: T.shfl_sync(v, 5, width=8),
    "a distance of the thread": lambda v, t: T.shfl_xor(v, t % 9, width=8),
    "a distance up of the thread": lambda v, t: T.shfl_up(v, t // 2 - 1),
    "sum": lambda v, t: T.warp_reduce_sum(v),
    "max": lambda v, t: T.warp_reduce_max(v),
}  # fmt: skip


def agrees(func, target, a):
    b, expected = np.zeros_like(a), np.zeros_like(a)
    interpret(func, a.copy(), expected)
    run_emulated(func, target, [a, b], (LATE,))
    np.testing.assert_array_equal(b.astype(np.float64), expected.astype(np.float64))


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["v100", "a100", "h100", "gfx942"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "float8_e4m3fn"])
@pytest.mark.parametrize("way", WAYS)
def test_narrow_values_go_from_lane_to_lane(way, dtype, target):
    """They ended in a KeyError, or in an error of NVRTC's."""
    kind = T.dtype(dtype).numpy
    a = np.random.default_rng(1).integers(0, 2, 64).astype(np.float32).astype(kind)
    agrees(exchange(WAYS[way], dtype), target, a)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["a100", "h100", "gfx942"])
@pytest.mark.parametrize("threads", [33, 40, 48, 84])
@pytest.mark.parametrize("way", WAYS)
def test_a_warp_that_is_not_full_exchanges_what_is_there(way, threads, target):
    """Lanes that are not there were counted, or gave what nobody defines (AMD: 0)."""
    a = np.random.default_rng(2).integers(-9, 10, threads).astype(np.int32)
    agrees(exchange(WAYS[way], "int32", threads), target, a)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["v100", "h100", "gfx942"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("op", ["reduce_sum", "reduce_absmax", "reduce_bitor"])
def test_rows_of_narrow_integers_are_reduced_by_shuffles(op, dtype, target):
    """Those of 16 bits ended in a KeyError."""

    @T.prim_func
    def main(A: T.Tensor((8, 40), dtype), B: T.Tensor((8,), dtype)):
        with T.Kernel(1, threads=96):
            a = T.alloc_fragment((8, 40), dtype)
            b = T.alloc_fragment((8,), dtype)
            T.copy(A, a)
            getattr(T, op)(a, b, dim=1)
            T.copy(b, B)

    a = np.random.default_rng(4).integers(0, 3, (8, 40)).astype(dtype)
    b, expected = np.zeros(8, dtype), np.zeros(8, dtype)
    interpret(main, a.copy(), expected)
    run_emulated(main, target, [a, b], (LATE,))
    np.testing.assert_array_equal(b, expected)


# --- barriers -------------------------------------------------------------------------------------


def waiting(count=64, parity=0, nreg=None, threads=64):
    """Threads tell a barrier and wait for it; ``parity`` may be a function of the turn."""

    @T.prim_func
    def main(A: T.Tensor((4, threads), "float32"), B: T.Tensor((4, threads), "float32")):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((threads,), "float32")
            bar = T.alloc_barrier(count)
            if nreg is not None:
                T.set_max_nreg(*nreg)
            for turn in T.serial(4):
                tile[tx] = A[turn, tx]
                T.mbarrier_arrive(bar)
                T.mbarrier_wait_parity(bar, parity(turn) if callable(parity) else parity)
                B[turn, tx] = tile[threads - 1 - tx]
                T.sync_threads()

    return main


def short_role():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((64,), "float32")
            if tx < 32:
                T.copy(A, tile)
            T.sync_threads()
            B[tx] = tile[tx]

    return main


def single_copy(columns):
    @T.prim_func
    def main(A: T.Tensor((64, columns), "float16"), B: T.Tensor((64, columns), "float16")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((64, columns), "float16")
            bar = T.alloc_barrier(1)
            if T.get_thread_binding() == 0:
                T.tma_copy(A, tile, barrier=bar)
                T.mbarrier_arrive(bar)
            T.mbarrier_wait_parity(bar, 0)
            T.copy(tile, B)

    return main


BARRIERS = {
    "more arrivals than are counted": (
        lambda: waiting(2**20), "h100", "TC202", "from 1 to 1048575", ""
    ),
    "no arrival": (lambda: waiting(0), "h100", "TC202", "from 1 to 1048575", ""),
    "an old architecture": (
        waiting, "rtx2080", "TC302", "on target rtx2080: mbarriers come with sm_80", "sync_threads"
    ),
    "AMD": (waiting, "gfx942", "TC302", "on target gfx942: mbarriers", "sync_threads"),
    "registers": (lambda: waiting(nreg=(44, 0)), "h100", "TC202", "multiple of 8 from 24", ""),
    "neither more nor fewer": (lambda: waiting(nreg=(40, 2)), "h100", "TC202", "0 or 1", ""),
    "half a wavefront": (
        short_role, "gfx942", "TC302",
        "a role of 32 threads that begins with 0 on .*64 threads have a role", "multiples of 64",
    ),
    "a box of short rows": (
        lambda: single_copy(20), "h100", "TC302", "cannot bring this tile", "multiple of 16 bytes"
    ),
    "a box on sm_80": (
        lambda: single_copy(64), "a100", "TC302", "comes with sm_90", "let a whole warp copy"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BARRIERS)
def test_a_barrier_or_role_that_there_is_not(name):
    make, target, code, message, hint = BARRIERS[name]
    error = refused(make, target)
    assert error.code == code
    assert_says(error, message, hint)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["a100", "h100"])
def test_a_parity_is_the_last_bit_of_what_is_given(target):
    """Hardware takes 0 and 1 only; the turn itself was handed to it."""
    func = waiting(parity=lambda turn: turn + 2)
    a = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
    agrees(func, target, a)
    assert "& 1" in lowered(func, target)[2].text
    known = waiting(parity=lambda turn: turn % 2)  # which TVM writes as a bit, too: once
    assert lowered(known, target)[2].text.count("& 1)") == 1


# --- atomic updates, tensor memory ----------------------------------------------------------------


def update(op, dtype):
    @T.prim_func
    def main(A: T.Tensor((64,), dtype), B: T.Tensor((4,), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                getattr(T, op)(B[i % 4], A[i])

    return main


@pytest.mark.parametrize("target", ["v100", "gfx942"])
@pytest.mark.parametrize("dtype", ["bool", "float8_e5m2"])
def test_updates_of_types_that_no_instruction_updates(dtype, target):
    """The error of an instruction did not know where the program stands, nor the target."""
    error = refused(lambda: update("atomic_add", dtype), target)
    assert error.code == "TC302"
    assert_says(error, f"atomic add of {dtype} on target {target}: expected add, .* of int32", "")


def summed_up(rows=128, columns=64):
    @T.prim_func
    def main(A: T.Tensor((rows, 16), "float16"), C: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((rows, 16), "float16")
            B_s = T.alloc_shared((columns, 16), "float16")
            sums = T.alloc_tmem((rows, columns), "float32")
            done = T.alloc_barrier(1)
            T.copy(A, A_s)
            T.fill(B_s, 1)
            T.tcgen05_gemm(A_s, B_s, sums, transpose_B=True, clear_accum=True, mbar=done)
            T.mbarrier_wait_parity(done, 0)
            T.copy(sums, C)

    return main


@pytest.mark.parametrize(
    ("rows", "columns", "why"),
    [(128, 528, "128 x 528 sums are no multiple of 16 columns within the 512 there are"),
     (256, 512, "256 x 512 sums are no multiple of 16 columns within the 512 there are"),
     (96, 640, "96 rows are neither 64 nor a multiple of 128")],
)  # fmt: skip
def test_sums_that_fit_neither_tensor_memory_nor_shared_memory(rows, columns, why):
    """The hint spoke of shared memory alone, where nobody had asked for it."""
    error = refused(lambda: summed_up(rows, columns), "b200")
    assert error.code == "TC303"
    assert_says(error, "shared memory=", rf"sums: shared instead of tensor memory \(.*{why}\)")


# --- numbers --------------------------------------------------------------------------------------


def computed(of):
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = of(A[i], i)

    return main


NUMBERS = {
    "divided by 0": (lambda x, i: x // 0, "a divisor of .* other than 0"),
    "modulo 0": (lambda x, i: x % 0, "a divisor of .* other than 0"),
    "shifted too far": (lambda x, i: x << 32, "int32 .* by 0 to 31 bits, found 32"),
    "shifted backwards": (lambda x, i: x >> -1, "int32 .* by 0 to 31 bits, found -1"),
}  # fmt: skip


@pytest.mark.parametrize("target", ["a100", "gfx942", "llvm"])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_has_no_value_is_said_at_its_place(name, target):
    """TVM's words came out, as TC305 without a place or as an InternalError."""
    make, message = NUMBERS[name]
    with pytest.raises(TypeMismatch, match=message) as found:
        tilecore.compile(computed(make), target=target)
    assert found.value.span is not None


@pytest.mark.parametrize("target", ["a100", "h100", "gfx942"])
def test_a_tile_of_a_size_that_a_call_decides(target):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((n,), "float32")
            T.copy(A, tile)

    error = refused(lambda: main, target)
    assert error.code == "TC302"
    assert_says(error, "a tile `tile` of a size known only at run time", "of the largest size")


@pytest.mark.parametrize("given", [0, -32, 24, 32.0])
def test_factors_of_a_number_of_elements_that_no_instruction_has(given):
    def make():
        @T.prim_func
        def main(A: T.Tensor((128, 128), "float8_e4m3fn")):
            with T.Kernel(1, threads=128):
                A_s = T.alloc_shared((128, 128), "float8_e4m3fn")
                factors = T.alloc_tmem((128, 4), "uint32")
                sums = T.alloc_tmem((128, 128), "float32")
                T.copy(A, A_s)
                T.tcgen05_gemm_blockscaled(
                    A_s, A_s, sums, factors, factors, transpose_B=True, k_start=0,
                    sf_a_granularity_k=given, sf_b_granularity_k=32,
                )  # fmt: skip

        return main

    error = refused(make, "b200")
    assert error.code == "TC202"
    assert_says(error, "a multiple of 16 elements that share a factor", "")


@pytest.mark.parametrize("target", ["a100", "llvm"])
def test_a_running_sum_of_bools(target):
    """It ended in a KeyError on GPUs."""

    @T.prim_func
    def main(A: T.Tensor((8, 16), "bool"), B: T.Tensor((8, 16), "bool")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((8, 16), "bool")
            T.copy(A, tile)
            T.cumsum(tile, dim=1)
            T.copy(tile, B)

    with pytest.raises(TypeMismatch, match="numbers for a running fold, found bool"):
        tilecore.compile(main, target=target)
