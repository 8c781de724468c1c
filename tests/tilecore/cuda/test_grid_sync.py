"""What lies in tiles while the blocks of a grid wait for each other (T.sync_grid)."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore import runtime
from tilecore.compiler import compile
from tilecore.emulator import ALL_SCHEDULES
from tilecore.interpreter import run

pytestmark = pytest.mark.few(1)  # a case takes long

TARGETS = ("sm_75", "sm_80", "sm_90a", "sm_100a")
RNG = np.random.default_rng(20261125)


def scaled_by_the_largest(rows, width, blocks):
    """Tiles of rows, divided by the largest element of all rows: what was read once is kept."""

    @T.prim_func
    def main(X: T.Tensor((rows, width), "float32"), Y: T.Tensor((rows, width), "float32")):
        with T.Kernel(blocks, threads=64) as b:
            largest = T.alloc_global((blocks,), "float32")
            tile = T.alloc_shared((8, width), "float32")
            part = T.alloc_fragment((8, width), "float32")
            of_row = T.alloc_fragment((8,), "float32")
            of_block = T.alloc_fragment((1,), "float32")
            T.copy(X[b * 8 : b * 8 + 8, :], tile)
            T.copy(tile, part)
            T.reduce_absmax(part, of_row, dim=1)
            T.reduce_max(of_row, of_block, dim=0)
            T.copy(of_block, largest[b : b + 1])
            T.sync_grid()
            T.fill(of_block, 0)
            for i in T.serial(blocks):
                for j in T.Parallel(1):
                    of_block[j] = T.max(of_block[j], largest[i])
            for i, j in T.Parallel(8, width):
                tile[i, j] = tile[i, j] / of_block[0]
            T.sync_grid()
            T.copy(tile, Y[b * 8 : b * 8 + 8, :])

    return main


def counted_per_thread(blocks, threads, experts):
    """A histogram of every block before those of the blocks before it are added to it."""
    n = T.dynamic("n")

    @T.prim_func
    def main(
        X: T.Tensor((n,), "int32"),
        per_block: T.Tensor((blocks, experts), "int32"),
        Y: T.Tensor((blocks, experts), "int32"),
        Z: T.Tensor((blocks, threads), "int32"),
    ):
        with T.Kernel(blocks, threads=threads) as b:
            t = T.get_thread_binding(0)
            counts = T.alloc_shared((experts,), "int32")
            mine = T.alloc_local((2,), "int32")
            last = T.alloc_var("int32", init=-1)
            mine[0] = t
            mine[1] = b
            T.clear(counts)
            T.sync_threads()
            for i in T.serial(b * threads + t, n, blocks * threads):
                T.atomic_add(counts[X[i]], 1)
                last = X[i]
            T.sync_threads()
            if t < experts:
                per_block[b, t] = counts[t]
            T.sync_grid()
            if t < experts:
                for i in T.serial(b):
                    counts[t] += per_block[i, t]
                Y[b, t] = counts[t]
            Z[b, t] = last * 10000 + mine[0] * 10 + mine[1]

    return main


def everywhere(func, target, inputs, outputs):
    """Return the outputs of the oracle, of the CPU and of the emulated GPU, in this order."""
    found = []
    for runs in (
        lambda *given: run(func, *given),
        lambda *given: runtime.load(compile(func))(*given),
        lambda *given: run_emulated(func, target, given, ALL_SCHEDULES),
    ):
        results = [np.copy(o) for o in outputs]
        runs(*inputs, *results)
        found.append(results)
    return found


@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "width"), [(13, 20), (24, 33)])
def test_a_shared_tile_is_kept_across_two_waits(rows, width, target):
    x = RNG.standard_normal((rows, width)).astype(np.float32)
    func = scaled_by_the_largest(rows, width, -(-rows // 8))
    want = x.astype(np.float64) / np.abs(x).max()
    for (y,) in everywhere(func, target, [x], [np.zeros_like(x)]):
        np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-7)


@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("blocks", "threads", "experts", "n"), [(3, 64, 37, 500), (2, 96, 5, 77)])
def test_what_a_thread_has_for_itself_is_kept_too(blocks, threads, experts, n, target):
    x = RNG.integers(0, experts, n).astype(np.int32)
    counts = np.zeros((blocks, experts), np.int32)
    last = np.full((blocks, threads), -1)
    for i, value in enumerate(x):
        b, t = divmod(i % (blocks * threads), threads)
        counts[b, value] += 1
        last[b, t] = value
    mine = np.arange(threads)[None] * 10 + np.arange(blocks)[:, None]
    func = counted_per_thread(blocks, threads, experts)
    empty = [np.zeros_like(counts), np.zeros_like(counts), np.zeros((blocks, threads), np.int32)]
    for got in everywhere(func, target, [x], empty):
        assert np.array_equal(got[0], counts)
        assert np.array_equal(got[1], np.cumsum(counts, axis=0))
        assert np.array_equal(got[2], last * 10000 + mine)


def the_other_half(n, block):
    """TileLang's test_tilelang_language_cooperative: a nest with a wait in it."""

    @T.prim_func
    def main(A: T.Tensor((n,), "float32")):
        with T.Kernel(n // block, threads=128) as b:
            kept = T.alloc_fragment((block,), "float32")
            for i in T.Parallel(block):
                A[b * block + i] = b * block + i
            T.sync_grid()
            for i in T.Parallel(block):
                place = b * block + i
                kept[i] = A[n - place - 1]
                T.sync_grid()
                A[place] = A[place] + kept[i]

    return main


def products_less_their_largest(rows, n, k):
    """Sums of a matrix product wait in registers for the largest of all blocks."""

    @T.prim_func
    def main(
        A: T.Tensor((3 * rows, k), "float16"),
        B: T.Tensor((k, n), "float16"),
        C: T.Tensor((3 * rows, n), "float32"),
    ):
        with T.Kernel(3, threads=128) as b:
            left = T.alloc_shared((rows, k), "float16")
            right = T.alloc_shared((k, n), "float16")
            sums = T.alloc_fragment((rows, n), "float32")
            largest = T.alloc_fragment((rows,), "float32")
            of_all = T.alloc_global((3, rows), "float32")
            T.copy(A[b * rows, 0], left)
            T.copy(B, right)
            T.clear(sums)
            T.gemm(left, right, sums)
            T.reduce_max(sums, largest, dim=1)
            T.copy(largest, of_all[b, :])
            T.sync_grid()
            for i, j in T.Parallel(rows, n):
                most = T.max(of_all[0, i], T.max(of_all[1, i], of_all[2, i]))
                sums[i, j] -= most + largest[i]
            T.copy(sums, C[b * rows, 0])

    return main


@pytest.mark.covering
@pytest.mark.parametrize("target", [*TARGETS, "gfx942"])
def test_a_nest_with_a_wait_in_it(target):
    func = the_other_half(192, 64)
    for (a,) in everywhere(func, target, [], [np.zeros(192, np.float32)]):
        np.testing.assert_array_equal(a, np.full(192, 191, np.float32))


@pytest.mark.covering
@pytest.mark.parametrize("target", [*TARGETS, "gfx942"])
def test_fragments_are_kept(target):
    rows, n, k = 32, 64, 48
    a = RNG.integers(-3, 4, (3 * rows, k)).astype(np.float16)
    b = RNG.integers(-3, 4, (k, n)).astype(np.float16)
    product = a.astype(np.float32) @ b.astype(np.float32)
    own = product.max(1)
    want = product - np.tile(own.reshape(3, rows).max(0), 3)[:, None] - own[:, None]
    func = products_less_their_largest(rows, n, k)
    for (c,) in everywhere(func, target, [a, b], [np.zeros_like(product)]):
        np.testing.assert_array_equal(c, want)
