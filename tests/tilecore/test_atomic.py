"""Atomic updates: no block's update is lost, and what the interpreter says is what runs."""

import numpy as np
import pytest

import tilecore as tilelang
import tilecore.language as T
from tilecore import runtime
from tilecore.compiler import compile, lower
from tilecore.errors import ShapeMismatch, TileError, TypeMismatch, UnsupportedOnTarget
from tilecore.ir.dtype import DType
from tilecore.target import parse_target

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int32", "int64", "uint32", "int8", "uint16",
)  # fmt: skip


def contended(blocks, n, dtype):
    """All blocks update the same few elements, element by element and in another order each."""

    @T.prim_func
    def main(
        A: T.Tensor((blocks, n), dtype),
        total: T.Tensor((n,), dtype),
        best: T.Tensor((n,), dtype),
        least: T.Tensor((n,), dtype),
    ):
        with T.Kernel(blocks, threads=32) as b:
            for i in T.Parallel(n):
                T.atomic_add(total[i], A[b, i], memory_order="relaxed")
                T.atomic_max(best[i], A[b, i])
                T.atomic_min(least[i], A[b, i])

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_update_is_lost_between_cores(run_both, dtype):
    blocks, n = 300, 3
    kind = DType(dtype)
    rng = np.random.default_rng(0)
    low = -4 if kind.is_signed else 0  # whole numbers: sums do not depend on the order
    a = rng.integers(low, 5, (blocks, n)).astype(np.int64)
    wide = a.astype(np.float64)
    a = a.astype(kind.numpy)
    total = wide.sum(0)
    if dtype == "int8":
        total = total.astype(np.int64).astype(np.int8)
    start = [np.zeros(n, kind.numpy) for _ in range(3)]
    exact = {"bfloat16": 8.0}.get(dtype, 0.0)
    expected = [total, np.maximum(wide.max(0), 0), np.minimum(wide.min(0), 0)]
    run_both(contended(blocks, n, dtype), [a], start, expected, rtol=1e-6, atol=exact + 1e-6)


def test_many_cores_on_one_counter(artifacts):
    """Each block draws numbers; together they are all numbers, each once."""
    blocks, draws = 512, 64

    @T.prim_func
    def main(counter: T.Tensor((1,), "int32"), drawn: T.Tensor((blocks, draws), "int32")):
        with T.Kernel(blocks) as b:
            for i in T.serial(draws):
                drawn[b, i] = T.atomic_add(counter[0], 1, return_prev=True)

    kernel = runtime.load(compile(main, store=artifacts))
    for _ in range(3):
        counter, drawn = np.zeros(1, np.int32), np.zeros((blocks, draws), np.int32)
        kernel(counter, drawn)
        assert counter[0] == blocks * draws
        assert np.array_equal(np.sort(drawn.ravel()), np.arange(blocks * draws))
        assert (np.diff(drawn, axis=1) > 0).all()


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("form", ["element", "slice", "mixed"])
def test_tiles_are_added_to_regions(run_both, dtype, form):
    K, M, N, bM, bN = 4, 30, 45, 16, 16

    @T.prim_func
    def main(A: T.Tensor((K, M, N), "float32"), B: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), K) as (bx, by, bz):
            tile = T.alloc_shared((bM, bN), dtype)
            T.copy(A[bz, by * bM, bx * bN], tile)
            if form == "element":
                T.atomic_add(B[by * bM, bx * bN], tile)
            elif form == "slice":
                rows, columns = by * bM, bx * bN
                T.atomic_add(B[rows : rows + bM, columns : columns + bN], tile, use_tma=True)
            else:
                wide = T.alloc_fragment((bM, bN), "float32")
                T.copy(tile, wide)
                T.atomic_add(B[by * bM, bx * bN], wide)

    rng = np.random.default_rng(1)
    a = rng.integers(-3, 4, (K, M, N)).astype(np.float32)
    b = rng.integers(-3, 4, (M, N)).astype(DType(dtype).numpy)
    run_both(main, [a], [b], [b.astype(np.float64) + a.sum(0)])


def test_numbers_for_regions_and_whole_tensors(run_both):
    @T.prim_func
    def main(B: T.Tensor((20,), "float32"), C: T.Tensor((3, 4), "int32")):
        with T.Kernel(8) as b:
            T.atomic_add(B[2:18], 0.5)
            T.atomic_max(C, b)
            T.atomic_or(C[0, 0:2], 16)

    expected = [np.where((np.arange(20) >= 2) & (np.arange(20) < 18), 4.0, 0.0), np.full((3, 4), 7)]
    expected[1][0, :2] = 7
    # max and or do not commute: or after the last max is what the interpreter's order decides
    start = [np.zeros(20, np.float32), np.full((3, 4), 7, np.int32)]
    expected[1][0, :2] |= 16
    run_both(main, [], start, expected)


def test_pairs_and_quads(run_both):
    M, N = 6, 16

    @T.prim_func
    def main(
        A: T.Tensor((M, N), "float32"),
        B: T.Tensor((M, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(M) as b:
            for j in T.Parallel(N // 2):
                T.atomic_addx2(B[b, j * 2], A[b, j * 2])
            for j in T.Parallel(N // 4):
                T.atomic_addx4(C[b, j * 4 : j * 4 + 4], A[b, j * 4 : j * 4 + 4])

    a = np.random.default_rng(2).integers(-9, 9, (M, N)).astype(np.float32)
    run_both(main, [a], [np.zeros((M, N), np.float16), np.ones((M, N), np.float32)], [a, a + 1])


def test_old_values_and_updates_outside_the_tensor(run_both):
    @T.prim_func
    def main(B: T.Tensor((10,), "float32"), old: T.Tensor((12,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(12):
                old[i] = T.atomic_add(B[i], 2.0, return_prev=True)

    b = np.arange(10, dtype=np.float32) + 1
    expected = [b + 2, np.concatenate([b, [0, 0]])]
    run_both(main, [], [b, np.full(12, 9, np.float32)], expected)


def test_load_and_store(run_both):
    @T.prim_func
    def main(
        flag: T.Tensor((4,), "int32"), H: T.Tensor((4,), "bfloat16"), out: T.Tensor((4,), "float32")
    ):
        with T.Kernel(4) as b:
            T.atomic_store(flag[b], b + 10, memory_order="release")
            T.atomic_store(H[b], T.cast(b, "bfloat16") + 0.5)
            seen = T.atomic_load(flag[b], memory_order="acquire")
            half = T.atomic_load(H[b])
            out[b] = seen + half

    outputs = [np.zeros(4, np.int32), np.zeros(4, DType("bfloat16").numpy), np.zeros(4, np.float32)]
    b = np.arange(4)
    run_both(main, [], outputs, [b + 10, b + 0.5, 2 * b + 10.5])


def test_blocks_wait_for_each_other(artifacts):
    """The last block to arrive adds up what the others left: a split reduction in one launch."""
    blocks, n = 64, 32

    @T.prim_func
    def main(
        A: T.Tensor((blocks, n), "float32"),
        parts: T.Tensor((blocks,), "float32"),
        arrived: T.Tensor((1,), "int32"),
        out: T.Tensor((1,), "float32"),
    ):
        with T.Kernel(blocks) as b:
            part = T.alloc_fragment((1,), "float32")
            T.reduce_sum(A[b, :], part, dim=1)
            T.atomic_store(parts[b], part[0])
            ticket = T.atomic_add(arrived[0], 1, return_prev=True)
            if ticket == blocks - 1:
                total = T.alloc_var("float32", init=0.0)
                for i in T.serial(blocks):
                    total += T.atomic_load(parts[i])
                out[0] = total

    a = np.random.default_rng(3).standard_normal((blocks, n)).astype(np.float32)
    kernel = runtime.load(compile(main, store=artifacts))
    for _ in range(5):
        out = np.zeros(1, np.float32)
        kernel(a, np.zeros(blocks, np.float32), np.zeros(1, np.int32), out)
        np.testing.assert_allclose(out[0], a.astype(np.float64).sum(), rtol=1e-4, atol=1e-4)


def test_updates_of_tiles_stay_in_the_block(run_both):
    @T.prim_func
    def main(A: T.Tensor((3, 100), "int32"), B: T.Tensor((3, 8), "int32")):
        with T.Kernel(3) as b:
            histogram = T.alloc_shared((8,), "int32")
            T.clear(histogram)
            for i in T.Parallel(100):
                T.atomic_add(histogram[A[b, i]], 1)
            T.copy(histogram, B[b, 0])

    a = np.random.default_rng(4).integers(0, 8, (3, 100)).astype(np.int32)
    expected = np.stack([np.bincount(row, minlength=8) for row in a])
    run_both(main, [a], [np.zeros((3, 8), np.int32)], [expected])


def test_split_k_gemm(run_both):
    M, N, K, splits = 40, 50, 96, 3

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float32"),
        B: T.Tensor((K, N), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), splits) as (bx, by, bz):
            a = T.alloc_shared((32, 16), "float32")
            b = T.alloc_shared((16, 32), "float32")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for k in T.Pipelined(K // splits // 16, num_stages=2):
                T.copy(A[by * 32, bz * (K // splits) + k * 16], a)
                T.copy(B[bz * (K // splits) + k * 16, bx * 32], b)
                T.gemm(a, b, c)
            T.atomic_add(C[by * 32, bx * 32], c)

    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((M, K)), rng.standard_normal((K, N))
    inputs = [a.astype(np.float32), b.astype(np.float32)]
    run_both(main, inputs, [np.zeros((M, N), np.float32)], [a @ b], atol=1e-4)


@pytest.fixture
def threads_of_torch():
    """Let kernels run on torch's threads, of which a grid is told how many there are."""
    import torch

    before = torch.get_num_threads(), runtime.num_threads()
    runtime.share_threads(True)
    yield runtime.set_num_threads
    runtime.share_threads(False)
    torch.set_num_threads(before[0])
    runtime.set_num_threads(before[1])


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_one_thread_updates_as_several_do(artifacts, threads_of_torch, threads, dtype):
    blocks, n, kind = 40, 35, DType(dtype)
    rng = np.random.default_rng(7)
    a = rng.integers(-4 if kind.is_signed else 0, 5, (blocks, n)).astype(np.int64)
    found = [np.zeros(n, kind.numpy) for _ in range(3)]
    kernel = runtime.load(compile(contended(blocks, n, dtype), store=artifacts))
    threads_of_torch(threads)
    kernel(a.astype(kind.numpy), *found)
    total = a.sum(0).astype(np.int8) if dtype == "int8" else a.sum(0)
    wanted = [total, np.maximum(a.max(0), 0), np.minimum(a.min(0), 0)]
    for one, exact in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.astype(np.float64), exact.astype(np.float64))


def histogram(n, bins, block, shared):
    @T.prim_func
    def main(X: T.Tensor((n,), "int32"), H: T.Tensor((bins,), "int32")):
        with T.Kernel(T.ceildiv(n, block), threads=32) as b:
            table = T.alloc_shared((bins,), "int32")
            T.clear(table)
            for i in T.Parallel(block):
                if b * block + i < n:
                    if shared:
                        T.atomic_add(table[X[b * block + i]], 1)
                    else:
                        T.atomic_add(H[X[b * block + i]], 1)
            if shared:
                T.atomic_add(H, table)

    return main


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shared", [True, False])
def test_histograms(artifacts, threads_of_torch, threads, shared):
    n, bins = 5000, 13
    x = np.random.default_rng(8).integers(0, bins + 3 * (not shared), n).astype(np.int32)
    found = np.zeros(bins, np.int32)
    kernel = runtime.load(compile(histogram(n, bins, 512, shared), store=artifacts))
    threads_of_torch(threads)
    kernel(x, found)
    np.testing.assert_array_equal(found, np.bincount(x, minlength=bins)[:bins])


@pytest.mark.parametrize(("blocks", "own"), [(1, True), (8, False)])
def test_a_block_updates_its_own_tiles_without_atomic_instructions(blocks, own):
    @T.prim_func
    def main(X: T.Tensor((64,), "int32"), H: T.Tensor((8,), "int32"), P: T.Tensor((64,), "int32")):
        with T.Kernel(blocks, threads=32):
            table = T.alloc_shared((8,), "int32")
            T.clear(table)
            for i in T.serial(64):
                P[i] = T.atomic_add(table[X[i]], 1, return_prev=True)
            T.atomic_add(H, table)

    text = str(lower(main, parse_target("avx2"), {})[1])
    assert ("tilecore_atomic" in text) == (not own)
    assert ("tilecore_alone" in text) == (not own)


def test_what_an_own_tile_held_before_is_told(run_both):
    @T.prim_func
    def main(X: T.Tensor((64,), "int32"), P: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=32):
            table = T.alloc_shared((8,), "int32")
            T.clear(table)
            for i in T.serial(64):
                P[i] = T.atomic_add(table[X[i]], 1, return_prev=True)

    x = np.random.default_rng(9).integers(0, 8, 64).astype(np.int32)
    wanted = [[(x[:i] == x[i]).sum() for i in range(64)]]
    run_both(main, [x], [np.zeros(64, np.int32)], wanted)


def test_updated_tensors_are_not_outputs_by_default():
    from tilecore.ir.analysis import output_positions, read_buffers, written_buffers

    func = contended(2, 4, "int32")
    assert output_positions(func) == ()
    assert len(written_buffers(func.body)) == 3
    assert len(read_buffers(func.body)) == 4
    assert "atomic add total[i], A[b, i]" in str(func)


@pytest.mark.parametrize("target", ["llvm", "h100"])
def test_blocks_take_turns_at_one_place(target):
    """Blocks that wait for each other by atomic loads were told of a race (TC204)."""
    blocks, n = (40, 40) if target == "llvm" else (5, 40)

    @T.prim_func
    def main(
        A: T.Tensor((blocks, n), "float32"),
        turn: T.Tensor((1,), "int32"),
        last: T.Tensor((n,), "float32"),
    ):
        with T.Kernel(blocks, threads=64) as b:
            thread = T.get_thread_binding()
            if thread == 0:
                while T.atomic_load(turn[0], memory_order="acquire") != b:
                    pass
            T.sync_threads()
            for i in T.Parallel(n):
                last[i] = last[i] * 0.5 + A[b, i]
            T.sync_threads()
            if thread == 0:
                T.atomic_store(turn[0], b + 1, memory_order="release")

    rng = np.random.default_rng(3)
    a, last = rng.standard_normal((blocks, n), np.float32), np.zeros(n, np.float32)
    kernel = tilelang.compile(main, target=target)
    run = kernel if target == "llvm" else kernel.emulated()
    run(a, np.zeros(1, np.int32), last)
    expected = np.zeros(n)
    for row in a:
        expected = expected * 0.5 + row
    np.testing.assert_allclose(last, expected, rtol=1e-5, atol=1e-5)


def failing(body):
    with pytest.raises(TileError) as caught:

        @T.prim_func
        def program(A: T.Tensor((16, 8), "float32"), n: T.Tensor((4,), "int32")):
            with T.Kernel(1):
                tile = T.alloc_fragment((16, 8), "float32")
                T.clear(tile)
                body(A, n, tile)

    return caught.value


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (lambda A, n, t: T.atomic_add(A[0:4, 0:4], t), ShapeMismatch, "T.atomic_add of `tile`"),
        (lambda A, n, t: T.atomic_add(A, t, return_prev=True), TypeMismatch, "one element"),
        (lambda A, n, t: T.atomic_add(A[0, 0], 1.0, "strong"), TypeMismatch, "memory_order"),
        (lambda A, n, t: T.atomic_load(A[0, 0], "release"), TypeMismatch, "acquire, seq_cst"),
        (lambda A, n, t: T.atomic_store(A[0, 0], 1.0, "acquire"), TypeMismatch, "release, seq_cst"),
        (lambda A, n, t: T.atomic_add(3, 1.0), TypeMismatch, "an element or tile"),
        (lambda A, n, t: T.atomic_or(A[0, 0], 1), TypeMismatch, "integers"),
    ],
)
def test_bad_updates_are_placed(body, kind, text):
    error = failing(body)
    assert isinstance(error, kind)
    assert text in error.message
    assert error.span is not None


def test_element_types_without_updates(artifacts):
    @T.prim_func
    def main(A: T.Tensor((4,), "bool")):
        with T.Kernel(1):
            T.atomic_or(A[0], True)

    with pytest.raises(UnsupportedOnTarget, match="atomic or on `A`"):
        compile(main, store=artifacts)
