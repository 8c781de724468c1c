"""Threads in groups: which axis they run along, what stays outside, and where none pays."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilecore.language as T
from tilecore.ir.nodes import For, KernelLaunch, Parallel
from tilecore.ir.printer import format_func
from tilecore.ir.visitor import walk
from tilecore.passes.threads import serialize_threads, vectorize_threads

N, K = 8, 128


def grouped(func) -> str:
    """Return the text of a program after its threads became lanes."""
    return format_func(vectorize_threads.run(serialize_threads.run(func)))


def split_k(threads_shape, axes):
    """Return a GEMV of whose threads each sums every 32nd product of a row."""

    @T.prim_func
    def gemv(
        A: T.Tensor((K,), "float32"), B: T.Tensor((N, K), "float32"), C: T.Tensor((N,), "float32")
    ):
        with T.Kernel(N // 4, threads=threads_shape) as b:
            tn = T.get_thread_binding(axes[0])
            tk = T.get_thread_binding(axes[1])
            acc = T.alloc_local((1,), "float32")
            total = T.alloc_shared((4,), "float32")
            if tk == 0:
                total[tn] = 0
            T.sync_threads()
            T.clear(acc)
            for k in T.serial(K // 32):
                acc[0] += A[k * 32 + tk] * B[b * 4 + tn, k * 32 + tk]
            T.atomic_add(total[tn], acc[0])
            T.sync_threads()
            C[b * 4 + tn] = total[tn]

    return gemv


@pytest.mark.few(1)
@pytest.mark.parametrize(("shape", "axes"), [((4, 32), (0, 1)), ((32, 4), (1, 0))])
def test_threads_run_along_the_axis_whose_neighbours_are_neighbours_in_memory(
    shape, axes, run_both
) -> None:
    func = split_k(shape, axes)
    text = grouped(func)
    assert "in parallel(32):" in text
    assert (
        "alloc acc: local float32[1, 4, 32]" in text
    )  # the other axis outside, whatever its number
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(K, dtype=np.float32), rng.standard_normal((N, K), dtype=np.float32)
    expected = b.astype(np.float64) @ a
    run_both(func, [a, b], [np.zeros(N, np.float32)], [expected], rtol=1e-4, atol=1e-4)


def test_an_index_that_the_program_divides_has_the_axes_it_makes(run_both) -> None:
    @T.prim_func
    def copy(X: T.Tensor((8, 16), "float32"), Y: T.Tensor((8, 16), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            v = T.alloc_local((1,), "float32")
            for k in T.serial(2):
                v[0] = X[tx // 16, tx % 16] + k
            Y[tx >> 4, tx & 15] = v[0]

    text = grouped(copy)
    assert "//" not in text
    assert "%" not in text
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    run_both(copy, [x], [np.zeros_like(x)], [x + 1])


def test_what_threads_copy_in_rows_is_copied_in_rows(run_both) -> None:
    """A tile that all threads fill alike in the same loop does not make it a loop of columns."""

    @T.prim_func
    def rows(A: T.Tensor((64,), "float32"), B: T.Tensor((32, 64), "float32"),
             C: T.Tensor((32,), "float32")):  # fmt: skip
        with T.Kernel(1, threads=32):
            t = T.get_thread_binding()
            a = T.alloc_shared((64,), "float32")
            b = T.alloc_shared((32, 64), "float32")
            total = T.alloc_local((1,), "float32")
            T.clear(total)
            for k in T.serial(64):
                a[k] = A[k]
                b[t, k] = B[t, k]
            T.sync_threads()
            for k in T.serial(64):
                total[0] += a[k] * b[t, k]
            C[t] = total[0]

    body = vectorize_threads.run(serialize_threads.run(rows)).body
    launch = next(s for s in walk(body) if isinstance(s, KernelLaunch))
    nests = [s for s in walk(launch) if isinstance(s, Parallel)]
    assert [int(e.value) for e in nests[1].extents] == [32, 64]
    rng = np.random.default_rng(1)
    a, b = (
        rng.standard_normal(64, dtype=np.float32),
        rng.standard_normal((32, 64), dtype=np.float32),
    )
    run_both(rows, [a, b], [np.zeros(32, np.float32)], [b.astype(np.float64) @ a], rtol=1e-4)


def test_a_loop_that_reads_what_it_writes_is_not_taken_apart(run_both) -> None:
    @T.prim_func
    def scan(X: T.Tensor((16, 32), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            t = T.get_thread_binding()
            last = T.alloc_shared((32,), "float32")
            v = T.alloc_local((1,), "float32")
            last[t] = 0
            T.sync_threads()
            for k in T.serial(16):
                v[0] = last[31 - t] + X[k, t]
                T.sync_threads()
                last[t] = v[0]
                T.sync_threads()
            Y[t] = last[t]

    x = np.random.default_rng(2).integers(-3, 4, (16, 32)).astype(np.float32)
    expected = np.zeros(32)
    for row in x:
        expected = expected[::-1] + row
    run_both(scan, [x], [np.zeros(32, np.float32)], [expected])


def test_threads_that_go_different_ways_run_one_after_the_other(run_both) -> None:
    @T.prim_func
    def uneven(X: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            n = T.alloc_local((1,), "int32")
            n[0] = 0
            for k in T.serial(X[t]):
                if k % 3 == 2:
                    break
                n[0] += k + t
            Y[t] = n[0]

    text = grouped(uneven)
    assert "for thread in serial(0, 64):" in text
    assert "parallel" not in text
    x = np.random.default_rng(3).integers(0, 7, 64).astype(np.int32)
    counts = np.minimum(x, 2)
    expected = counts * (counts - 1) // 2 + counts * np.arange(64)
    run_both(uneven, [x], [np.zeros(64, np.int32)], [expected])


def test_a_loop_that_a_thread_breaks_goes_on_for_the_others(run_both) -> None:
    """It left the loop over the threads instead, and only the first threads of a group ran."""

    @T.prim_func
    def main(X: T.Tensor((8, N), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=N):
            tx = T.get_thread_binding()
            total = T.alloc_var("float32", 0.0)
            for k in T.serial(8):
                if X[k, tx] < 0.0:
                    break
                total += X[k, tx]
            Y[tx] = total

    x = np.arange(8 * N, dtype=np.float32).reshape(8, N)
    for thread in range(N):
        x[thread % 9 :, thread] *= -1
    expected = np.where(np.cumsum(x < 0, 0) > 0, 0, x).sum(0)
    run_both(main, [x], [np.zeros(N, np.float32)], [expected])


@pytest.mark.parametrize("count", [1, 4, 7])
def test_few_threads_run_one_after_the_other(count, run_both) -> None:
    @T.prim_func
    def few(X: T.Tensor((7,), "float32"), Y: T.Tensor((7,), "float32")):
        with T.Kernel(1, threads=count):
            t = T.get_thread_binding()
            for k in T.serial(T.ceildiv(7 - t, count)):
                Y[k * count + t] = X[k * count + t] * 2

    body = vectorize_threads.run(serialize_threads.run(few)).body
    assert not any(isinstance(s, Parallel) for s in walk(body))
    assert all(s.kind == "serial" for s in walk(body) if isinstance(s, For))
    x = np.arange(7, dtype=np.float32)
    run_both(few, [x], [np.zeros(7, np.float32)], [x * 2])


def test_elements_of_one_thread_each_are_a_nest(run_both) -> None:
    @T.prim_func
    def add(X: T.Tensor((4, 256), "float32"), Y: T.Tensor((4, 256), "float32")):
        with T.Kernel(2, 4, threads=128) as (bx, by):
            t = T.get_thread_binding()
            Y[by, bx * 128 + t] = X[by, bx * 128 + t] + 1

    assert "in parallel(128):" in grouped(add)
    x = np.random.default_rng(4).standard_normal((4, 256), dtype=np.float32)
    run_both(add, [x], [np.zeros_like(x)], [x.astype(np.float64) + 1])


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_of_threads_become_columns_of_their_tiles_in_blocks(dtype, run_both) -> None:
    @T.prim_func
    def main(X: T.Tensor((2, 256), dtype), Y: T.Tensor((2, 256), dtype)):
        with T.Kernel(2, threads=32) as b:
            t = T.get_thread_binding()
            a = T.alloc_local((8,), dtype)
            for k in T.vectorized(8):
                a[k] = X[b, t * 8 + k]
            for _round in T.serial(3):
                for k in T.serial(8):
                    a[k] = a[k] + a[7 - k]
            for k in T.vectorized(8):
                Y[b, t * 8 + k] = a[k]

    text = grouped(main)
    assert re.search(r"for k, \w+ in parallel\(8, 32\):\n +a\[k, \w+\] = X", text)
    assert re.search(r"for \w+, k\w* in parallel\(32, 8\):\n +Y\[", text)
    x = np.random.default_rng(5).integers(0, 3, (2, 256)).astype(dtype)
    run_both(main, [x], [np.zeros_like(x)])


def test_a_role_of_some_threads_fills_its_own_tiles(run_both) -> None:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            shared = T.alloc_shared((32,), "float32")
            a = T.alloc_local((4,), "float32")
            total = T.alloc_local((1,), "float32")
            T.fill(a, 1)
            for step in T.serial(8):
                total[0] = X[t] + step
            if t < 32:
                T.fill(a, 2)
                shared[t] = X[t]
                T.sync_threads(1, 32)
                total[0] += shared[31 - t] * a[3]
            Y[t] = total[0] + a[0]

    assert "for thread in serial(0, 32):" in grouped(main)
    x = np.arange(64, dtype=np.float32)
    expected = x + 8.0
    expected[:32] += 1 + 2 * x[31::-1]
    run_both(main, [x], [np.zeros_like(x)], [expected])


def test_a_row_that_is_read_by_another_name_is_not_copied_at_once(run_both) -> None:
    @T.prim_func
    def main(X: T.Tensor((32, 16), "float32"), Y: T.Tensor((32, 16), "float32")):
        with T.Kernel(1, threads=32):
            t = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            a = T.alloc_local((16,), "float32")
            b = T.view(a, (1, 16))
            total[0] = 0
            for _k in T.serial(64):  # what groups pay for
                total[0] += X[0, 0] + t
            for k in T.serial(16):
                a[k] = X[t, k]
            T.sync_threads()
            for k in T.serial(15):
                a[k + 1] = b[0, k]
            T.sync_threads()
            for k in T.serial(16):
                Y[t, k] = a[k] + total[0]

    assert "in parallel(32):" in grouped(main)
    x = np.random.default_rng(6).integers(-4, 5, (32, 16)).astype(np.float32)
    added = 64.0 * (x[0, 0] + np.arange(32))
    run_both(main, [x], [np.zeros_like(x)], [np.repeat((x[:, 0] + added)[:, None], 16, 1)])
