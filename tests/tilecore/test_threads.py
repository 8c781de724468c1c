"""Programs written per thread: the serialized program and the threaded oracle agree with torch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import tilecore as tilelang
import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore import interpreter
from tilecore.errors import PredicateMismatch, ScopeError, TypeMismatch

THREADS = 64


def run_both(program, *arrays: np.ndarray) -> list[np.ndarray]:
    """Return the outputs of the compiled program, after comparing them with the oracle's."""
    kernel = tilelang.compile(program, target="llvm")
    compiled = [a.copy() for a in arrays]
    expected = [a.copy() for a in arrays]
    kernel(*compiled)
    interpreter.run(program, *expected)
    for found, wanted in zip(compiled, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    return compiled


def test_block_reduction_through_shared_memory() -> None:
    @T.prim_func
    def total(X: T.Tensor((3, 200), "float32"), Y: T.Tensor((3,), "float32")):
        with T.Kernel(3, threads=THREADS) as b:
            tx = T.get_thread_binding(0)
            shared = T.alloc_shared((THREADS,), "float32")
            acc = T.alloc_var("float32", init=0.0)
            for k in T.serial(T.ceildiv(200, THREADS)):
                acc = acc + X[b, k * THREADS + tx]
            shared[tx] = acc
            T.sync_threads()
            for step in T.serial(6):
                half = 32 >> step
                if tx < half:
                    shared[tx] = shared[tx] + shared[tx + half]
                T.sync_threads()
            if tx == 0:
                Y[b] = shared[0]

    x = np.random.default_rng(0).standard_normal((3, 200)).astype(np.float32)
    _, y = run_both(total, x, np.zeros(3, np.float32))
    np.testing.assert_allclose(y, x.astype(np.float64).sum(1), rtol=1e-5, atol=1e-4)


def test_shuffles_stay_in_their_group() -> None:
    @T.prim_func
    def shuffle(X: T.Tensor((THREADS,), "int32"), Y: T.Tensor((5, THREADS), "int32")):
        with T.Kernel(1, threads=THREADS):
            tx = T.get_thread_binding()
            v = X[tx]
            Y[0, tx] = T.shfl_xor(v, 5)
            Y[1, tx] = T.shfl_up(v, 3)
            Y[2, tx] = T.shfl_down(v, 7, 16)
            Y[3, tx] = T.shfl_sync(v, 9)
            Y[4, tx] = T.tvm_warp_shuffle(T.tvm_warp_activemask(), v, 2, 8, 32)

    x = np.random.default_rng(1).integers(0, 1000, THREADS).astype(np.int32)
    _, y = run_both(shuffle, x, np.zeros((5, THREADS), np.int32))
    lane = np.arange(THREADS)
    warp = lane // 32 * 32
    np.testing.assert_array_equal(y[0], x[warp + ((lane % 32) ^ 5)])
    np.testing.assert_array_equal(y[1], np.where(lane % 32 >= 3, x[lane - 3], x))
    down = np.where(lane % 16 + 7 < 16, lane + 7, lane)
    np.testing.assert_array_equal(y[2], x[down])
    np.testing.assert_array_equal(y[3], x[warp + 9])
    np.testing.assert_array_equal(y[4], x[lane // 8 * 8 + 2])


def test_votes_and_warp_reductions() -> None:
    @T.prim_func
    def vote(X: T.Tensor((THREADS,), "float32"), Y: T.Tensor((8, THREADS), "float32")):
        with T.Kernel(1, threads=THREADS):
            tx = T.get_thread_binding()
            v = X[tx]
            Y[0, tx] = T.any_sync(v > 2.0)
            Y[1, tx] = T.all_sync(v > -9.0)
            Y[2, tx] = T.syncthreads_count(v > 0.0)
            Y[3, tx] = T.warp_reduce_sum(v)
            Y[4, tx] = T.warp_reduce_max(v)
            Y[5, tx] = T.warp_reduce_min(v)
            Y[6, tx] = T.cast(T.ballot(v > 0.0) & 255, "float32")
            Y[7, tx] = T.get_warp_idx() * 100 + T.get_lane_idx()

    x = np.random.default_rng(2).standard_normal(THREADS).astype(np.float32)
    _, y = run_both(vote, x, np.zeros((8, THREADS), np.float32))
    warps = x.reshape(2, 32)
    spread = lambda values: np.repeat(np.asarray(values, np.float64), 32)
    np.testing.assert_array_equal(y[0], spread((warps > 2).any(1)))
    np.testing.assert_array_equal(y[1], spread((warps > -9).all(1)))
    np.testing.assert_array_equal(y[2], (x > 0).sum())
    np.testing.assert_allclose(y[3], spread(warps.astype(np.float64).sum(1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(y[4], spread(warps.max(1)))
    np.testing.assert_array_equal(y[5], spread(warps.min(1)))
    bits = (warps[:, :8] > 0) @ (1 << np.arange(8))
    np.testing.assert_array_equal(y[6], spread(bits))
    np.testing.assert_array_equal(y[7], np.arange(64) // 32 * 100 + np.arange(64) % 32)


def test_gemv_with_allreduce_over_one_axis() -> None:
    n, k, rows, reduce_threads, vector = 10, 100, 4, 16, 4
    step = reduce_threads * vector

    @T.prim_func
    def gemv(
        A: T.Tensor((k,), "float32"), B: T.Tensor((n, k), "float32"), C: T.Tensor((n,), "float32")
    ):
        with T.Kernel(T.ceildiv(n, rows), threads=(reduce_threads, rows)) as bn:
            tk = T.get_thread_binding(0)
            tn = T.get_thread_binding(1)
            a = T.alloc_local((vector,), "float32")
            b = T.alloc_local((vector,), "float32")
            acc = T.alloc_local((1,), "float32")
            total = T.alloc_local((1,), "float32")
            T.clear(acc)
            for bk in T.serial(T.ceildiv(k, step)):
                for v in T.vectorized(vector):
                    a[v] = A[bk * step + tk * vector + v]
                    b[v] = B[bn * rows + tn, bk * step + tk * vector + v]
                for v in T.serial(vector):
                    acc[0] += a[v] * b[v]
            with T.attr(
                T.comm_reducer(lambda x, y: x + y, [T.cast(0, "float32")]), "reduce_scope", 0
            ):
                T.evaluate(T.tvm_thread_allreduce(T.uint32(1), acc[0], True, total[0], tk))
            if tk == 0:
                C[bn * rows + tn] = total[0]

    rng = np.random.default_rng(3)
    a, b = rng.standard_normal(k).astype(np.float32), rng.standard_normal((n, k), dtype=np.float32)
    *_, c = run_both(gemv, a, b, np.zeros(n, np.float32))
    np.testing.assert_allclose(c, b.astype(np.float64) @ a, rtol=1e-4, atol=1e-4)


def test_tile_operations_between_thread_code() -> None:
    @T.prim_func
    def mixed(X: T.Tensor((2, 64), "float32"), Y: T.Tensor((2, 64), "float32")):
        with T.Kernel(2, threads=32) as b:
            tx = T.get_thread_binding()
            tile = T.alloc_shared((64,), "float32")
            scale = T.alloc_var("float32", init=1.0)
            T.copy(X[b, 0], tile)
            if tx % 2 == 0:
                tile[tx] = tile[tx] * 10.0
                T.sync_threads()
                scale = 3.0
            for i in T.Parallel(64):
                tile[i] = tile[i] + 1.0
            tile[tx + 32] = tile[tx + 32] * scale
            T.copy(tile, Y[b, 0])

    x = np.random.default_rng(4).standard_normal((2, 64)).astype(np.float32)
    kernel = tilelang.compile(mixed, target="llvm")
    y = np.zeros_like(x)
    kernel(x, y)
    even = np.arange(32) % 2 == 0
    expected = x.astype(np.float64)
    expected[:, :32][:, even] *= 10
    expected += 1
    expected[:, 32:][:, even] *= 3
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_shared_memory_needs_no_written_barrier() -> None:
    @T.prim_func
    def transpose(X: T.Tensor((3, 8, 8), "int32"), Y: T.Tensor((3, 8, 8), "int32")):
        with T.Kernel(1, threads=(8, 8)):
            tx, ty = T.get_thread_bindings()
            shared = T.alloc_shared((8, 8), "int32")
            mine = T.alloc_local((3,), "int32")
            for r in T.serial(3):
                shared[ty, tx] = X[r, ty, tx]
                mine[r] = shared[tx, ty]
            for r in T.serial(3):
                if tx >= 0:
                    shared[ty, tx] = mine[r] + 1
                    Y[r, ty, tx] = shared[7 - ty, 7 - tx]

    x = np.random.default_rng(5).integers(0, 1000, (3, 8, 8)).astype(np.int32)
    y = np.zeros_like(x)
    tilelang.compile(transpose, target="llvm")(x, y)
    np.testing.assert_array_equal(y, x.transpose(0, 2, 1)[:, ::-1, ::-1] + 1)


def test_a_barrier_that_not_all_threads_reach_is_told() -> None:

    @T.prim_func
    def hang(Y: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=4):
            tx = T.get_thread_binding()
            if tx < 2:
                T.sync_threads()
            Y[tx] = tx

    with pytest.raises(ScopeError, match="not reached by every thread"):
        interpreter.run(hang, np.zeros(4, np.int32))


def test_wrong_uses() -> None:
    with pytest.raises(TypeMismatch, match="axis from 0 to 0"):

        @T.prim_func
        def no_axis(Y: T.Tensor((4,), "int32")):
            with T.Kernel(1, threads=4):
                Y[T.get_thread_binding(1)] = 1

    with pytest.raises(TypeMismatch, match="comm_reducer"):

        @T.prim_func
        def no_reducer(Y: T.Tensor((4,), "int32")):
            with T.Kernel(1, threads=4):
                total = T.alloc_local((1,), "int32")
                T.tvm_thread_allreduce(1, 1, True, total[0], T.get_thread_binding())

    @T.prim_func
    def parallel_local(Y: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=4):
            tx = T.get_thread_binding()
            mine = T.alloc_local((4,), "int32")
            mine[0] = tx
            for i in T.Parallel(4):
                Y[i] = mine[i]

    with pytest.raises(ScopeError, match=r"T\.alloc_local"):
        tilelang.compile(parallel_local)


def test_every_thread_fills_its_own_array_in_parallel(run_both):
    """It was refused: no nest may be over an array that each thread has for itself."""

    @T.prim_func
    def parallel_local(Y: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=4):
            tx = T.get_thread_binding()
            mine = T.alloc_local((4,), "int32")
            for i in T.Parallel(4):
                mine[i] = i * 10 + tx
            Y[tx] = mine[tx]

    (y,) = run_both(parallel_local, [], [np.zeros(4, np.int32)])
    assert y.tolist() == [0, 11, 22, 33]


def test_a_tile_operation_takes_a_scalar_that_every_thread_has() -> None:
    """T.Parallel of one warp group of two reads what its threads keep in T.alloc_local."""

    @T.prim_func
    def main(A: T.Tensor((3, 40), "float32"), B: T.Tensor((3, 40), "float32")):
        with T.Kernel(3, threads=256) as b:
            tx = T.get_thread_binding()
            rows = T.alloc_shared((40,), "float32")
            scale = T.alloc_local((2,), "float32")
            T.copy(A[b, 0], rows)
            if tx >= 128:
                for step in T.serial(2):
                    scale[1] = rows[step] + 1
                    for i in T.Parallel(40):
                        rows[i] = rows[i] * scale[1]
            T.sync_threads()
            T.copy(rows, B[b, 0])

    a = np.random.default_rng(4).standard_normal((3, 40)).astype(np.float32)
    want = a.copy()
    for step in range(2):
        want *= want[:, step : step + 1] + 1
    found = run_both(main, a, np.zeros_like(a))[1]
    np.testing.assert_allclose(found, want, rtol=1e-5)


@pytest.mark.few(2)
@pytest.mark.covering
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1)])
@pytest.mark.parametrize("op", ["sum", "max", "prod"])
def test_allreduce_over_any_thread_axes(axes, op) -> None:
    """Threads of outer axes are no neighbours: they meet in shared memory, in a loop too."""
    extents = (4, 3, 2)
    combine = {"sum": lambda x, y: x + y, "prod": lambda x, y: x * y, "max": T.max}[op]

    @T.prim_func
    def main(A: T.Tensor((2, 2, 3, 4), "float32"), B: T.Tensor((2, 2, 3, 4), "float32")):
        with T.Kernel(1, threads=extents):
            own = T.get_thread_bindings()
            mine = T.alloc_local((1,), "float32")
            found = T.alloc_local((1,), "float32")
            for i in T.serial(2):
                mine[0] = A[i, own[2], own[1], own[0]]
                with T.attr(T.comm_reducer(combine, [T.float32(0)]), "reduce_scope",
                            T.reinterpret(T.uint64(0), dtype="handle")):  # fmt: skip
                    T.evaluate(
                        T.tvm_thread_allreduce(
                            T.uint32(1), mine[0], True, found[0],
                            *[own[d] for d in axes], dtype="handle",
                        )
                    )  # fmt: skip
                B[i, own[2], own[1], own[0]] = found[0]

    a = np.random.default_rng(3).integers(-9, 9, (2, 2, 3, 4)).astype(np.float32)
    fold = {"sum": np.sum, "prod": np.prod, "max": np.max}[op]
    want = fold(a, axis=tuple(3 - d for d in axes), keepdims=True) + np.zeros_like(a)
    found = run_both(main, a, np.zeros_like(a))[1]
    np.testing.assert_array_equal(found, want)


def test_allreduce_over_what_is_no_thread_axis_is_named() -> None:
    with pytest.raises(TypeMismatch, match=r"thread indices of the block \(tx\), found bx"):

        @T.prim_func
        def main(A: T.Tensor((4,), "float32")):
            with T.Kernel(4, threads=4) as bx:
                found = T.alloc_local((1,), "float32")
                with T.attr(T.comm_reducer(lambda x, y: x + y), "reduce_scope", 0):
                    T.tvm_thread_allreduce(T.uint32(1), A[bx], True, found[0], bx)


@pytest.mark.few(1)
@pytest.mark.parametrize("scope", ["fragment", "shared"])
def test_what_all_threads_store_alike_is_stored_once(run_both, scope):
    allocate = T.alloc_fragment if scope == "fragment" else T.alloc_shared

    @T.prim_func
    def main(
        S: T.Tensor((3,), "float32"), A: T.Tensor((24,), "float32"), Out: T.Tensor((25,), "float32")
    ):
        with T.Kernel(1, threads=96):
            total = allocate((1,), "float32")
            total[0] = 0
            for s in T.serial(3):
                weight = S[s] * 2
                total[0] += weight
            total[0] = total[0] + 1
            scaled = T.alloc_shared((24,), "float32")
            for j in T.Parallel(24):
                scaled[j] = A[j] * total[0]
            t = T.get_thread_binding()
            if t < 32:
                if t < 24:
                    Out[t] = scaled[t]
            else:
                total[0] += 5
                Out[24] = total[0]

    rng = np.random.default_rng(0)
    s, a = rng.standard_normal(3, np.float32), rng.standard_normal(24, np.float32)
    total = 2 * s.sum() + 1
    expected = np.concatenate([a * total, [total + 5]])
    run_both(main, [s, a], [np.zeros(25, np.float32)], [expected])


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_variables_that_all_threads_have_alike_choose_one_store(run_both, target):
    """Each thread of a CPU added for itself, and threads of a GPU raced."""

    @T.prim_func
    def main(
        N: T.Tensor((3,), "int32"), S: T.Tensor((64,), "float32"), G: T.Tensor((64,), "float32")
    ):
        with T.Kernel(1, threads=64):
            end, first = T.alloc_var("int32"), N[2]
            end = N[1]
            tile = T.alloc_shared((64,), "float32")
            T.copy(S, tile)
            if end % 16 > 0:
                G[end - 1] += tile[63]
            G[first] += tile[62]
            for i in T.serial(end):
                G[40 + i] += tile[61]
            if T.get_thread_binding() < 32:
                G[end + 1] += tile[60]

    s = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    sizes, expected = np.array([0, 5, 9], np.int32), np.zeros(64, np.float32)
    expected[[4, 9, 6]] = s[[63, 62, 60]]
    expected[40:45] = s[61]
    run_both(main, [sizes, s], [np.zeros(64, np.float32)], [expected])
    found = np.zeros(64, np.float32)
    run_emulated(main, target, [sizes, s, found])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_lanes_that_have_the_same_value(run_both) -> None:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((3, 64), "uint32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            Y[0, tx] = T.match_any_sync(X[tx])
            Y[1, tx] = T.match_all_sync(X[tx])
            Y[2, tx] = T.match_all_sync(T.cast(X[tx], "int32") // 8 + tx // 32)

    x = np.random.default_rng(0).integers(0, 5, 64).astype(np.float32)
    expected = np.zeros((3, 64))
    for lane in range(64):
        start = lane // 32 * 32
        peers = np.flatnonzero(x[start : start + 32] == x[lane])
        expected[0, lane] = sum(1 << int(p) for p in peers)
    expected[2] = 0xFFFFFFFF
    run_both(main, [x], [np.zeros((3, 64), np.uint32)], [expected], rtol=0)


def test_functions_of_a_warp_by_their_names_in_cuda(run_both) -> None:
    every = 0xFFFFFFFF

    @T.prim_func
    def main(X: T.Tensor((64,), "int32"), Y: T.Tensor((8, 64), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            v = X[tx]
            Y[0, tx] = T.call_extern("int32", "__shfl_sync", every, v, 9)
            Y[1, tx] = T.call_extern("int32", "__shfl_xor_sync", every, v, 5, 8)
            Y[2, tx] = T.call_extern("int32", "__shfl_down_sync", every, v, 3)
            T.call_extern("handle", "__syncwarp")
            Y[3, tx] = T.call_extern("int32", "__match_any_sync", every, v)
            Y[4, tx] = T.call_extern("int32", "__ballot_sync", every, v > 2)
            Y[5, tx] = T.call_extern("int32", "__any_sync", every, v > 3)
            T.tvm_storage_sync("shared")
            Y[6, tx] = T.call_extern("int32", "__reduce_add_sync", every, v)
            Y[7, tx] = T.call_extern("int32", "__reduce_max_sync", every, v)

    x = np.random.default_rng(0).integers(0, 5, 64).astype(np.int32)
    warps, lane = x.reshape(2, 32), np.arange(32)
    bits = lambda chosen: (chosen * (1 << lane)).sum(-1).astype(np.uint32).view(np.int32)
    spread = lambda values: np.repeat(np.asarray(values)[:, None], 32, 1)
    expected = np.stack([
        spread(warps[:, 9]), warps[:, lane ^ 5],
        np.where(lane + 3 < 32, warps[:, np.minimum(lane + 3, 31)], warps),
        bits(warps[:, :, None] == warps[:, None, :]),
        spread(bits(warps > 2)), spread((warps > 3).any(1)),
        spread(warps.sum(1)), spread(warps.max(1)),
    ])  # fmt: skip
    run_both(main, [x], [np.zeros((8, 64), np.int32)], [expected.reshape(8, 64)], rtol=0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x: T.tvm_storage_sync("local"), "\"global\" for T.tvm_storage_sync, found 'local'"),
        (lambda x: T.call_extern("int32", "__shfl_sync", x), "3 or 4 arguments of __shfl_sync"),
        (lambda x: T.call_extern("int32", "__reduce_add_sync", 1, x), "a mask of all lanes"),
    ],
)
def test_wrong_uses_of_cudas_names_are_told(body, message) -> None:
    with pytest.raises(TypeMismatch, match=message):

        @T.prim_func
        def main(X: T.Tensor((32,), "int32")):
            with T.Kernel(1, threads=32):
                body(X[T.get_thread_binding()])


def test_the_position_of_a_set_bit(run_both) -> None:
    cases = [(1, 0), (3, 0), (-1, 31), (-2, 20), (0, 7), (0, 6), (2, 9), (9, 30)]

    @T.macro
    def find(M, Y, i, base, offset):
        Y[i] = T.__fns(M[0], base, offset)

    @T.prim_func
    def main(M: T.Tensor((1,), "uint32"), Y: T.Tensor((len(cases),), "uint32")):
        with T.Kernel(1):
            for i, (offset, base) in enumerate(cases):
                find(M, Y, i, base, offset)

    def reference(mask, base, offset):
        order = range(base, 32) if offset >= 0 else range(base, -1, -1)
        if offset == 0:
            return base if mask >> base & 1 else 0xFFFFFFFF
        found = [i for i in order if mask >> i & 1]
        return found[abs(offset) - 1] if len(found) >= abs(offset) else 0xFFFFFFFF

    for mask in (0b1010_0000_1000_0001_1110_0011_1001_0100, 0, 0xFFFFFFFF):
        expected = np.array([reference(mask, base, offset) for offset, base in cases])
        given = np.array([mask], np.uint32)
        run_both(main, [given], [np.zeros(len(cases), np.uint32)], [expected], rtol=0)
    with pytest.raises(TypeMismatch, match="a known offset of __fns"):

        @T.prim_func
        def unknown(Y: T.Tensor((32,), "uint32")):
            with T.Kernel(1, threads=32):
                tx = T.get_thread_binding()
                Y[tx] = T.__fns(0, 0, tx)


def test_a_grid_without_blocks_does_nothing(run_both) -> None:
    @T.prim_func
    def main(Y: T.Tensor((4,), "float32")):
        with T.Kernel(0, threads=32) as b:
            Y[b] = 1.0
        with T.Kernel(4, 0) as (b, c):
            Y[b] = 1.0 + c

    run_both(main, [], [np.zeros(4, np.float32)], [np.zeros(4)])


@pytest.mark.parametrize(
    "vote",
    [
        T.any_sync,
        T.all_sync,
        T.ballot_sync,
        T.syncthreads_and,
        T.syncthreads_or,
        T.syncthreads_count,
    ],
)
def test_a_vote_is_not_about_a_float(vote) -> None:
    """CUDA would cut 0.5 off to 0; TileLang refuses it as well."""
    with pytest.raises(PredicateMismatch, match="requires an integer or boolean") as caught:

        @T.prim_func
        def main(B: T.Tensor((32,), "int32")):
            with T.Kernel(1, threads=32):
                tx = T.get_thread_binding()
                B[tx] = T.cast(vote(T.cast(tx, "float32") * 0.5), "int32")

    assert caught.value.code == "TC206"
    assert isinstance(caught.value, TypeError)
    assert caught.value.span.file == __file__


@pytest.mark.few(1)
@pytest.mark.parametrize(("n", "lanes"), [(33, 32), (150, 16), (5, 32)])
def test_warps_that_meet_in_a_loop_may_run_it_differently_often(run_both, n, lanes):
    """All threads ran such a loop as often as the first one did."""

    @T.prim_func
    def counts(X: T.Tensor((n,), "int32"), Y: T.Tensor((n,), "int32"), Z: T.Tensor((96,), "int32")):
        with T.Kernel(1, threads=96):
            t = T.get_thread_binding(0)
            turns = T.alloc_var("int32", init=0)
            start = T.alloc_var("int32", init=t // lanes * lanes)
            for i in T.serial(start + t % lanes, (n + lanes - 1) // lanes * lanes, 96):
                value = T.alloc_var("int32", init=0)
                if i < n:
                    value = X[i]
                total = T.warp_reduce_sum(value) if lanes == 32 else T.shfl_xor(value, 8)
                turns += 1
                if i < n:
                    Y[i] = total
            while turns > 0:
                turns -= T.shfl_sync(turns, 0)
                turns -= 100
            Z[t] = turns

    x = np.random.default_rng(n).integers(0, 1000, n).astype(np.int32)
    padded = np.zeros(-(-n // lanes) * lanes, np.int32)
    padded[:n] = x
    rows = padded.reshape(-1, lanes)
    y = rows.sum(1, keepdims=True) + 0 * rows if lanes == 32 else rows[:, np.arange(lanes) ^ 8]
    outs = [np.zeros(n, np.int32), np.zeros(96, np.int32)]
    got = run_both(counts, [x], outs)
    assert np.array_equal(got[0], y.reshape(-1)[:n])
    assert (got[1] <= 0).all()


def test_a_distance_outside_of_the_group_gives_the_own_value(run_both):
    """As on GPUs; the first thread read another one's value where the distance was negative."""

    @T.prim_func
    def main(X: T.Tensor((40,), "int32"), Y: T.Tensor((3, 40), "int32")):
        with T.Kernel(1, threads=40):
            tx = T.get_thread_binding()
            Y[0, tx] = T.shfl_xor(X[tx], tx % 11, width=8)
            Y[1, tx] = T.shfl_up(X[tx], tx // 2 - 4)
            Y[2, tx] = T.shfl_down(X[tx], 2 - tx)

    def lane(t, source, distance, width):
        start = t // width * width
        is_there = 0 <= distance < width and start <= source < min(start + width, 40)
        return source if is_there else t

    ways = [lambda t: (t ^ t % 11, t % 11, 8), lambda t: (t - (t // 2 - 4), t // 2 - 4, 32),
            lambda t: (t + 2 - t, 2 - t, 32)]  # fmt: skip
    x = np.arange(100, 140, dtype=np.int32)
    expected = np.array([[x[lane(t, *way(t))] for t in range(40)] for way in ways])
    run_both(main, [x], [np.zeros((3, 40), np.int32)], [expected])


def test_values_of_threads_lie_side_by_side() -> None:
    """Of threads that go their own ways: each had a cache line, and a warp's sums no vectors."""

    @T.prim_func
    def main(
        rows: T.Tensor((1,), "int32"),
        ends: T.Tensor((5,), "int32"),
        at: T.Tensor((100,), "int32"),
        X: T.Tensor((100, 2), "float32"),
        Y: T.Tensor((4, 2), "float32"),
    ):
        with T.Kernel(1, threads=(32, 4)):
            lane, row = T.get_thread_binding(0), T.get_thread_binding(1)
            if row < rows[0]:
                for column in T.serial(2):
                    total = T.alloc_local((1,), "float32")
                    place = T.alloc_var("int32")
                    total[0] = 0.0
                    place = ends[row] + lane
                    while place < ends[row + 1]:
                        total[0] += X[at[place], column]
                        place += 32
                    for step in T.serial(5):
                        total[0] += T.shfl_xor(total[0], 16 >> step)
                    if lane == 0:
                        Y[row, column] = total[0]

    ends = np.array([0, 1, 40, 40, 100], np.int32)
    at = np.random.default_rng(0).permutation(100).astype(np.int32)
    x, y = np.arange(200, dtype=np.float32).reshape(100, 2), np.empty((4, 2), np.float32)
    kernel = tilelang.compile(main, target="llvm")
    kernel(np.array([4], np.int32), ends, at, x, y)
    np.testing.assert_array_equal(y, [x[at[a:b]].sum(0) for a, b in pairwise(ends)])
    assert "total (local): rows, leading dimension 1 " in kernel.explain()
