"""What TileLang's users complained about: valid programs it rejects or silently miscomputes.

Numbers are those of TileLang's issues; the programs are our own.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilecore.language as T
from tilecore import runtime
from tilecore.compiler import compile
from tilecore.ir.nodes import PrimFunc


def run(func: PrimFunc, artifacts, *arrays: np.ndarray) -> None:
    runtime.load(compile(func, store=artifacts))(*arrays)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


# --- layouts of valid programs are found (2883, 2398, 1374, 40) -----------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [128, 192, 229, 257])
def test_rows_of_any_width(n, artifacts):
    """2398: wider than the threads and no multiple of them."""

    @T.prim_func
    def main(X: T.Tensor((1, n), "float32"), Y: T.Tensor((1, n), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((1, n), "float32")
            T.copy(X, x)
            for i, j in T.Parallel(1, n):
                x[i, j] = x[i, j] + 1.0
            T.copy(x, Y)

    x, y = numbers(1, n), np.empty((1, n), np.float32)
    run(main, artifacts, x, y)
    np.testing.assert_array_equal(y, x + 1)


def test_a_large_nest_of_which_little_runs(artifacts):
    """2883: half a million iterations, most of them behind a condition."""

    @T.prim_func
    def main(X: T.Tensor((1, 8192), "uint8"), Y: T.Tensor((1, 8192), "uint8")):
        with T.Kernel(1):
            for i, j in T.Parallel(64, 8192):
                if i < 1:
                    Y[i, j] = X[i, j]

    x = np.random.default_rng(0).integers(0, 256, (1, 8192)).astype(np.uint8)
    y = np.zeros_like(x)
    run(main, artifacts, x, y)
    np.testing.assert_array_equal(y, x)


def test_one_value_for_many_elements(artifacts):
    """1374: each element of a fragment is needed by 32 others."""

    @T.prim_func
    def main(A: T.Tensor((16, 14), "int32"), B: T.Tensor((16, 448), "int32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((16, 14), "int32")
            b = T.alloc_fragment((16, 448), "int32")
            T.copy(A, a)
            T.copy(B, b)
            for i, j in T.Parallel(16, 448):
                b[i, j] += a[i, j // 32]
            T.copy(b, B)

    a = np.arange(16 * 14, dtype=np.int32).reshape(16, 14)
    b = np.arange(16 * 448, dtype=np.int32).reshape(16, 448)
    want = b + np.repeat(a, 32, axis=1)
    run(main, artifacts, a, b)
    np.testing.assert_array_equal(b, want)


def test_a_fragment_that_is_only_assigned(artifacts):
    """40: nothing but its own values says where it lies."""

    @T.prim_func
    def main(Y: T.Tensor((24, 40), "float32")):
        with T.Kernel(1, threads=128):
            y = T.alloc_fragment((24, 40), "float32")
            for i, j in T.Parallel(24, 40):
                y[i, j] = i * 40 + j
            T.copy(y, Y)

    y = np.empty((24, 40), np.float32)
    run(main, artifacts, y)
    np.testing.assert_array_equal(y, np.arange(960, dtype=np.float32).reshape(24, 40))


def test_nests_of_different_sizes_over_one_fragment(artifacts):
    """2957: the smaller nest must not cut the larger one."""

    @T.prim_func
    def main(Y: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=128):
            f = T.alloc_fragment((256,), "float32")
            T.clear(f)
            for i in T.Parallel(100):
                f[i] = 5.0
            for i in T.Parallel(256):
                Y[i] = f[i] + 1.0

    y = np.zeros(256, np.float32)
    run(main, artifacts, y)
    np.testing.assert_array_equal(y, np.where(np.arange(256) < 100, 6, 1))


# --- products of any size are whole (2537, 2381, 2593, 1191, 3032, 3035) --------------------------

SIZES = [
    (16, 104, 32, 384), (64, 24, 48, 128), (128, 40, 20, 128), (17, 9, 5, 128), (1, 8, 7, 32),
    (112, 136, 36, 256),
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(("m", "n", "k", "threads"), SIZES)
@pytest.mark.parametrize("policy", [T.GemmWarpPolicy.Square, T.GemmWarpPolicy.FullCol])
def test_no_column_row_or_tail_is_lost(m, n, k, threads, policy, artifacts):
    @T.prim_func
    def main(
        A: T.Tensor((m, k), "float16"),
        B: T.Tensor((k, n), "float16"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((m, k), "float16")
            b = T.alloc_shared((k, n), "float16")
            c = T.alloc_fragment((m, n), "float32")
            T.clear(c)
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, policy=policy)
            T.copy(c, C)

    rng = np.random.default_rng(m + n)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, np.float32)
    run(main, artifacts, a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


# --- shared memory is in order without a written barrier (1822, 2556, 1604, 1257) -----------------


def test_threads_behind_a_condition_see_each_others_writes(artifacts):
    """2556: 48 of 64 threads write, then read what others wrote."""

    @T.prim_func
    def main(X: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding(0)
            s = T.alloc_shared((48,), "int32")
            if tx < 48:
                s[tx] = X[tx]
            if tx < 48:
                Y[tx] = s[47 - tx]

    x, y = np.arange(64, dtype=np.int32), np.full(64, -1, np.int32)
    run(main, artifacts, x, y)
    np.testing.assert_array_equal(y[:48], x[47::-1])
    assert (y[48:] == -1).all()


def test_all_threads_read_what_few_wrote(artifacts):
    """1604: a conditional write, an unconditional read."""

    @T.prim_func
    def main(Y: T.Tensor((512,), "float32")):
        with T.Kernel(1, threads=512):
            tx = T.get_thread_binding(0)
            a = T.alloc_shared((32,), "float32")
            b = T.alloc_shared((32,), "float32")
            if tx < 32:
                a[tx] = tx
                b[tx] = 2 * tx
            Y[tx] = a[tx % 32] + b[31 - tx % 32]

    y = np.empty(512, np.float32)
    run(main, artifacts, y)
    lane = np.arange(512) % 32
    np.testing.assert_array_equal(y, lane + 2 * (31 - lane))


def test_a_read_after_an_atomic_update(artifacts):
    """1257: the neighbour's update is done before it is read."""

    @T.prim_func
    def main(Y: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding(0)
            s = T.alloc_shared((64,), "int32")
            s[tx ^ 1] = 10
            T.atomic_add(s[tx], tx)
            Y[tx] = s[tx ^ 1]

    y = np.zeros(64, np.int32)
    run(main, artifacts, y)
    np.testing.assert_array_equal(y, 10 + (np.arange(64) ^ 1))


# --- fragments in serial loops mean what they say (2396, 2395, 2393) ------------------------------


def test_a_fragment_read_written_and_summed_in_serial_loops(artifacts):
    @T.prim_func
    def main(
        X: T.Tensor((16, 16), "float32"),
        Y: T.Tensor((16, 16), "float32"),
        Z: T.Tensor((16, 16), "float32"),
        S: T.Tensor((16,), "float32"),
    ):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((16, 16), "float32")
            z = T.alloc_fragment((16, 16), "float32")
            s = T.alloc_fragment((16,), "float32")
            T.copy(X, x)
            for i in T.serial(16):
                for j in T.serial(16):
                    Y[i, j] = x[i, j]
            for i in T.serial(16):
                for j in T.serial(16):
                    z[i, j] = x[i, j] * 2.0
            T.copy(z, Z)
            for i in T.Parallel(16):
                s[i] = 0.0
                for j in T.serial(16):
                    s[i] += x[i, j]
            T.copy(s, S)

    x = np.arange(256, dtype=np.float32).reshape(16, 16)
    y, z, s = np.zeros_like(x), np.zeros_like(x), np.zeros(16, np.float32)
    run(main, artifacts, x, y, z, s)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, 2 * x)
    np.testing.assert_array_equal(s, x.sum(1))
