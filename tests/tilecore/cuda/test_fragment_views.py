"""Fragments seen in another shape (T.reshape) stay in registers, as indexers of attention do it."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, Schedule
from tilecore.inference.gpu.distribution import Distribution, by_slot, by_thread, spread
from tilecore.interpreter import run
from tilecore.ir.dtype import DType

TARGETS = ("sm_75", "sm_80", "h100", "gfx942")
WHY = "kept in shared memory"


def indexer(queries, heads, keys, block, threads, dim=64, stages=2):
    """Return scores of keys: products with the heads of queries, weighed and summed."""

    @T.prim_func
    def main(
        Q: T.Tensor((queries * heads, dim), "float16"), K: T.Tensor((keys, dim), "float16"),
        W: T.Tensor((queries, heads), "float32"), S: T.Tensor((queries, keys), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=threads):
            q = T.alloc_shared((queries * heads, dim), "float16")
            k = T.alloc_shared((block, dim), "float16")
            s = T.alloc_fragment((block, queries * heads), "float32")
            by_head = T.reshape(s, (block, queries, heads))
            sums = T.alloc_fragment((block, queries), "float32")
            T.copy(Q, q)
            for step in T.Pipelined(T.ceildiv(keys, block), num_stages=stages):
                T.copy(K[step * block, 0], k)
                T.clear(s)
                T.gemm(k, q, s, transpose_B=True)
                for n, m, h in T.Parallel(block, queries, heads):
                    by_head[n, m, h] = T.max(by_head[n, m, h], 0) * W[m, h]
                T.reduce_sum(by_head, sums, dim=-1)
                for m, n in T.Parallel(queries, block):
                    S[m, step * block + n] = sums[n, m]

    return main


@pytest.mark.few(3)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [64, 128, 256])
@pytest.mark.parametrize(("keys", "block"), [(128, 64), (100, 32)])
@pytest.mark.parametrize(("queries", "heads"), [(4, 16), (1, 64), (2, 32), (8, 4), (16, 2), (3, 8)])
def test_scores_of_an_indexer(queries, heads, keys, block, threads, target):
    rng = np.random.default_rng(heads)
    q = rng.integers(-3, 4, (queries * heads, 64)).astype(np.float16)
    k = rng.integers(-3, 4, (keys, 64)).astype(np.float16)
    w = rng.integers(0, 3, (queries, heads)).astype(np.float32)
    found = np.zeros((queries, keys), np.float32)
    func = indexer(queries, heads, keys, block, threads)
    run_emulated(func, target, [q, k, w, found], (LATE, Schedule(seed=3)))
    each = np.maximum(k.astype(np.float32) @ q.astype(np.float32).T, 0)
    wanted = np.einsum("nqh,qh->qn", each.reshape(keys, queries, heads), w)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("target", ["sm_80", "h100"])
@pytest.mark.parametrize(("queries", "heads"), [(4, 16), (1, 64), (2, 32), (8, 8)])
def test_they_take_no_shared_memory(queries, heads, target):
    (plan,) = lowered(indexer(queries, heads, 128, 64, 128), target)[0].launches.values()
    assert not any(WHY in note for note in plan.notes)
    assert {b.name for b in plan.fragments} == {"s", "by_head", "sums"}


def reshaped(form, rows, columns, other, dtype, threads):
    """Return a program that writes a fragment as one shape and reads it as another."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns), dtype), Y: T.Tensor(other, dtype)):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment((rows, columns), dtype)
            y = T.reshape(x, other)
            T.copy(X, x)
            if form == "both":
                for i, j in T.Parallel(rows, columns):
                    x[i, j] = x[i, j] + 1
            if form in ("both", "through"):
                if len(other) == 1:
                    for a in T.Parallel(other[0]):
                        y[a] = y[a] * 2 + a % 3
                elif len(other) == 2:
                    for a, b in T.Parallel(*other):
                        y[a, b] = y[a, b] * 2 + b % 3
                else:
                    for a, b, c in T.Parallel(*other):
                        y[a, b, c] = y[a, b, c] * 2 + (b + c) % 3
            if form == "both":
                for i, j in T.Parallel(rows, columns):
                    x[i, j] = x[i, j] - j % 2
            T.copy(y, Y)

    return main


SHAPES = [
    (16, 64, (1024,)), (16, 64, (64, 16)), (16, 64, (16, 4, 16)), (16, 64, (4, 4, 64)),
    (16, 64, (2, 512)), (12, 20, (240,)), (12, 20, (20, 12)), (12, 20, (3, 4, 20)),
    (5, 9, (45,)), (5, 9, (9, 5)), (32, 32, (8, 4, 32)),
]  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.covering("form rows", "dtype form")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [32, 128])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize(("rows", "columns", "other"), SHAPES)
@pytest.mark.parametrize("form", ["copies", "through", "both"])
def test_one_memory_in_two_shapes(form, rows, columns, other, dtype, threads, target):
    func = reshaped(form, rows, columns, other, dtype, threads)
    x = np.random.default_rng(3).integers(-9, 9, (rows, columns)).astype(DType(dtype).numpy)
    found, wanted = (np.zeros(other, x.dtype) for _ in range(2))
    run(func, x.copy(), wanted)
    run_emulated(func, target, [x, found], (LATE, Schedule(seed=3)))
    np.testing.assert_array_equal(found, wanted)


def test_roles_that_use_both_keep_them_in_shared_memory():
    @T.prim_func
    def main(X: T.Tensor((32, 64), "float32"), Y: T.Tensor((32, 4, 16), "float32")):
        with T.Kernel(1, threads=256):
            x = T.alloc_fragment((32, 64), "float32")
            y = T.reshape(x, (32, 4, 16))
            tx = T.get_thread_binding()
            if tx < 128:
                T.copy(X, x)
            T.sync_threads()
            if tx >= 128:
                T.copy(y, Y)

    (plan,) = lowered(main, "h100")[0].launches.values()
    assert not plan.fragments
    x = np.random.default_rng(3).integers(-9, 9, (32, 64)).astype(np.float32)
    found = np.zeros((32, 4, 16), np.float32)
    run_emulated(main, "h100", [x, found], (LATE, Schedule(seed=3)))
    np.testing.assert_array_equal(found.reshape(32, 64), x)


def test_a_product_under_way_is_waited_for_by_who_sees_its_sums_in_another_shape():
    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 4, 16), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            parts = T.reshape(c, (64, 4, 16))
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c, wg_wait=-1)
            for i, j, k in T.Parallel(64, 4, 16):
                C[i, j, k] = parts[i, j, k] + j

    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (64, 64)).astype(np.float16) for _ in range(2))
    found = np.zeros((64, 4, 16), np.float32)
    run_emulated(main, "h100", [a, b, found], (LATE, Schedule(seed=3)))
    wanted = (a.astype(np.float32) @ b.astype(np.float32)).reshape(64, 4, 16)
    np.testing.assert_array_equal(found, wanted + np.arange(4)[:, None])


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((8, 8), ((8, 8),)), ((8, 4, 16), ((8, 64), (32, 16), (512,), (8, 2, 2, 16))),
        ((12, 6), ((72,), (2, 36), (4, 3, 6))),
    ],
)  # fmt: skip
def test_points_are_where_they_were(shape, axes):
    """Every point of the new shape has the thread and the slot it had in the old one."""
    given = spread(shape, 64, 2)
    numbers = np.arange(np.prod(shape))
    old = given.owner(np.unravel_index(numbers, shape))
    for other in axes:
        found = given.reshaped(other)
        if found is None:
            continue
        new = found.owner(np.unravel_index(numbers, other))
        np.testing.assert_array_equal(np.stack(new), np.stack(old))
    assert given.reshaped(shape) == given or any(map(given.is_padded, range(len(shape))))


def test_what_no_digits_count_has_no_other_shape():
    threes = Distribution((9,), ((by_thread(3, 1), by_slot(3, 1)),), 3)
    assert threes.reshaped((3, 3)) is not None
    assert Distribution((8,), ((by_thread(8, 1),),), 8).reshaped((3, 3)) is None
    assert Distribution((6,), ((by_slot(6, 1),),), 1).reshaped((4, 2)) is None
    padded = Distribution((7,), ((by_thread(8, 1),),), 8)
    assert padded.reshaped((7, 1)) is None
