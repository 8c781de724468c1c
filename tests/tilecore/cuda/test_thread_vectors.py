"""Loops of single threads over neighbours in memory: wide loads and stores."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES, LATE


def scaled(n, dtype, width, whole):
    """Each thread doubles ``width`` neighbours, by way of its own array and a shared one."""

    @T.prim_func
    def main(A: T.Tensor((n,), dtype), B: T.Tensor((n,), dtype)):
        with T.Kernel(T.ceildiv(n, 64 * width), threads=64) as bx:
            tx = T.get_thread_binding()
            own = T.alloc_local((width,), dtype)
            shared = T.alloc_shared((64 * width,), dtype)
            first = bx * 64 * width + tx * width
            if whole:
                T.copy(A[first : first + width], own)
            else:
                for i in T.vectorized(width):
                    own[i] = A[first + i]
            for i in T.vectorized(width):
                shared[tx * width + i] = own[i] * T.cast(2, dtype)
            T.sync_threads()
            for i in T.vectorized(width):
                B[first + i] = shared[(tx ^ 1) * width + i]

    return main


def reference(a, width):
    padded = np.zeros(-(-a.size // (64 * width)) * 64 * width, a.dtype)
    padded[: a.size] = a * a.dtype.type(2)
    pairs = padded.reshape(-1, 2, width)[:, ::-1]
    return pairs.reshape(-1)[: a.size]


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("n", "dtype", "width", "copied"),
    [(2048, "float16", 8, 16), (1000, "float16", 8, 16), (1001, "float16", 8, 0),
     (1026, "float32", 2, 8), (900, "float32", 4, 16), (3000, "int8", 24, 8),
     (96, "float64", 3, 0)],
)  # fmt: skip
def test_neighbours_move_at_once(n, dtype, width, copied, whole):
    a = np.random.default_rng(n).integers(-20, 20, n).astype(dtype)
    b = np.zeros(n, dtype)
    func = scaled(n, dtype, width, whole)
    for target in ("h100", "sm_80"):
        run_emulated(func, target, [a, b], ALL_SCHEDULES)
        np.testing.assert_array_equal(b, reference(a, width))
    kernel = lowered(func, "h100")[2].text.rpartition('extern "C"')[2]
    loads = [line for line in kernel.splitlines() if "tc_copy_" in line and "&(A_ptr" in line]
    assert (f"tc_copy_{copied}(" in kernel) is (copied > 0)
    assert bool(loads) is (copied > 0)


def test_what_a_loop_writes_and_reads_stays_single():
    """Each element needs the one before it."""

    @T.prim_func
    def main(A: T.Tensor((64, 8), "int32"), B: T.Tensor((64, 8), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            row = T.alloc_shared((64, 16), "int32")
            row[tx, 0] = 1
            for i in T.unroll(8):
                row[tx, i + 1] = row[tx, i] + A[tx, i]
            for i in T.unroll(8):
                B[tx, i] = row[tx, i + 1]

    a = np.random.default_rng(0).integers(0, 9, (64, 8)).astype(np.int32)
    b = np.zeros_like(a)
    run_emulated(main, "h100", [a, b], (LATE,))
    np.testing.assert_array_equal(b, 1 + np.cumsum(a, axis=1))


def test_rows_that_a_variable_names_move_at_once():
    """What a thread gathers by an index that it keeps, as producers of sparse attention do."""

    @T.prim_func
    def main(
        A: T.Tensor((40, 64), "float16"), rows: T.Tensor((32,), "int32"),
        B: T.Tensor((32, 64), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            row = T.alloc_var("int32")
            row = rows[tx // 8]
            row += 2
            for k in T.vectorized(8):
                B[tx // 8, tx % 8 * 8 + k] = A[row, tx % 8 * 8 + k]

    kernel = lowered(main, "h100")[2].text.rpartition('extern "C"')[2]
    assert kernel.count("tc_copy_16(") == 2
    rng = np.random.default_rng(0)
    a, names = rng.integers(-9, 9, (40, 64)).astype(np.float16), rng.integers(0, 38, 32, np.int32)
    b = np.zeros((32, 64), np.float16)
    run_emulated(main, "h100", [a, names, b], ALL_SCHEDULES)
    np.testing.assert_array_equal(b, a[names + 2])


def test_a_variable_that_the_loop_changes_names_each_element():
    @T.prim_func
    def main(A: T.Tensor((40, 64), "float16"), B: T.Tensor((32, 64), "float16")):
        with T.Kernel(1, threads=32):
            row = T.alloc_var("int32")
            row = 7
            for i, j in T.Parallel(32, 64):
                row = i
                if j > 3:
                    row = i + 3
                B[i, j] = A[row, j]

    a = np.random.default_rng(0).integers(-9, 9, (40, 64)).astype(np.float16)
    b = np.zeros((32, 64), np.float16)
    run_emulated(main, "h100", [a, b], ALL_SCHEDULES)
    wanted = a[np.arange(32)[:, None] + np.where(np.arange(64) > 3, 3, 0), np.arange(64)]
    np.testing.assert_array_equal(b, wanted)
