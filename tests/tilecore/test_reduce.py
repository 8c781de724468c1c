"""Reductions, scans and reducers: compiled, interpreted and NumPy in float64 agree."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilecore.language as T
from tilecore import interpreter
from tilecore.errors import ScopeError, ShapeMismatch, TileError, TypeMismatch
from tilecore.ir.dtype import DType

REFERENCES = {
    "sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce,
    "bitand": np.bitwise_and.reduce, "bitor": np.bitwise_or.reduce,
    "bitxor": np.bitwise_xor.reduce,
    "abssum": lambda x, axis: np.abs(x).sum(axis), "absmax": lambda x, axis: np.abs(x).max(axis),
}  # fmt: skip
COMBINE = {
    "sum": np.add, "abssum": np.add, "max": np.maximum, "absmax": np.maximum, "min": np.minimum,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
}  # fmt: skip
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}


def values(rng, shape, dtype):
    kind = DType(dtype)
    if kind.is_float:
        return rng.standard_normal(shape).astype(kind.numpy)
    low = -9 if kind.is_signed else 0
    return rng.integers(low, 9, shape).astype(kind.numpy)


def reduction(op, shape, dim, dtype, out_dtype, clear=True, keepdim=False, scopes=("f", "f")):
    alloc = {"s": T.alloc_shared, "f": T.alloc_fragment, "l": T.alloc_local}
    axis = dim % len(shape)
    out = tuple(1 if i == axis else n for i, n in enumerate(shape) if keepdim or i != axis)

    @T.prim_func
    def main(A: T.Tensor(shape, dtype), B: T.Tensor(out or (1,), out_dtype)):
        with T.Kernel(1, threads=128):
            src = alloc[scopes[0]](shape, dtype)
            dst = alloc[scopes[1]](out or (1,), out_dtype)
            T.copy(A, src)
            T.copy(B, dst)
            T.reduce(src, dst, op, dim=dim, clear=clear)
            T.copy(dst, B)

    return main, out or (1,), axis


def check_reduction(run_both, op, shape, dim, dtype, out_dtype=None, seed=0, **options):
    out_dtype = out_dtype or dtype
    func, out_shape, axis = reduction(op, shape, dim, dtype, out_dtype, **options)
    rng = np.random.default_rng(seed)
    a, b = values(rng, shape, dtype), values(rng, out_shape, out_dtype)
    wide = (lambda x: x.astype(np.float64)) if DType(out_dtype).is_float else (lambda x: x)
    expected = REFERENCES[op](wide(a), axis=axis).reshape(out_shape)
    if not options.get("clear", True):
        expected = COMBINE[op](wide(b), expected)
    bound = TOLERANCE.get(out_dtype, 1e-5 if out_dtype != "float64" else 1e-12)
    run_both(func, [a], [b], [expected], rtol=bound, atol=bound * max(1, shape[axis]) ** 0.5)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("op", ["sum", "max", "min", "abssum", "absmax"])
@pytest.mark.parametrize(("shape", "dim"), [((7, 45), 1), ((45, 37), 0), ((3, 20, 9), -2)])
def test_reduce_any_axis(run_both, op, shape, dim):
    check_reduction(run_both, op, shape, dim, "float32")


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64", "int8"])
@pytest.mark.parametrize("op", ["sum", "absmax", "min"])
def test_reduce_element_types(run_both, op, dtype):
    check_reduction(run_both, op, (5, 70), -1, dtype)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("op", ["bitand", "bitor", "bitxor"])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_reduce_bits(run_both, op, dtype):
    check_reduction(run_both, op, (6, 40), -1, dtype)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("op", ["sum", "max", "absmax", "bitor"])
@pytest.mark.parametrize("scopes", [("s", "f"), ("f", "s"), ("l", "l")])
def test_reduce_into_what_the_tile_holds(run_both, op, scopes):
    dtype = "int32" if op == "bitor" else "float32"
    check_reduction(run_both, op, (9, 33), 1, dtype, clear=False, keepdim=True, scopes=scopes)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32"), ("float32", "float16")],
)
def test_reduce_converts(run_both, dtype, out_dtype):
    check_reduction(run_both, "sum", (12, 130), 1, dtype, out_dtype)
    check_reduction(run_both, "sum", (130, 12), 0, dtype, out_dtype)


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["int64", "float64", "uint64", "int8"])
@pytest.mark.parametrize("block", [16, 64])
def test_rows_converted_on_the_way_are_folded_together(run_both, dtype, block):
    @T.prim_func
    def program(
        A: T.Tensor((block, 128), dtype), B: T.Tensor((block,), "float32"),
        C: T.Tensor((block,), "float64"),
    ):  # fmt: skip
        with T.Kernel(1):
            tile = T.alloc_fragment((block, 128), "float32")
            total = T.alloc_fragment((block,), "float32")
            most = T.alloc_fragment((block,), "float64")
            T.copy(A, tile)
            T.reduce_sum(tile, total, dim=1)
            T.reduce_max(tile, most, dim=1)
            T.copy(total, B)
            T.copy(most, C)

    numbers = np.random.default_rng(4).integers(0, 100, (block, 128)).astype(dtype)
    outputs = [np.zeros(block, "float32"), np.zeros(block)]
    run_both(program, [numbers], outputs, [numbers.sum(1), numbers.max(1)])


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_reduce_of_any_shape(run_both, data):
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, 40)) for _ in range(rank))
    op = data.draw(st.sampled_from(["sum", "max", "min", "abssum"]))
    check_reduction(
        run_both, op, shape, data.draw(st.integers(-rank, rank - 1)),
        data.draw(st.sampled_from(["float32", "float16", "int32"])),
        clear=data.draw(st.booleans()), keepdim=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 99)),
    )  # fmt: skip


def test_16_bit_sums_are_accumulated_in_float32(run_both):
    func, _, _ = reduction("sum", (1, 4096), 1, "float16", "float16")
    a = np.full((1, 4096), 0.7, np.float16)
    (got,) = run_both(func, [a], [np.zeros(1, np.float16)], rtol=1e-3)
    np.testing.assert_allclose(got.astype(float), a.astype(float).sum(), rtol=1e-3)


def nan_program(op, keeps, dim):
    @T.prim_func
    def main(A: T.Tensor((20, 20), "float32"), B: T.Tensor((20,), "float32")):
        with T.Kernel(1):
            src = T.alloc_fragment((20, 20), "float32")
            dst = T.alloc_fragment((20,), "float32")
            T.copy(A, src)
            if op == "max":
                T.reduce_max(src, dst, dim=dim, nan_propagate=keeps)
            else:
                T.reduce_min(src, dst, dim=dim, nan_propagate=keeps)
            T.copy(dst, B)

    return main


@pytest.mark.few(1)
@pytest.mark.covering("op keeps")
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_nan_is_dropped_unless_asked_for(run_both, op, keeps, dim):
    a = np.random.default_rng(1).standard_normal((20, 20)).astype(np.float32)
    a[3, 17] = a[17, 3] = a[0, 0] = np.nan
    a[5, :] = np.nan
    (got,) = run_both(nan_program(op, keeps, dim), [a], [np.zeros(20, np.float32)])
    if keeps:
        assert np.isnan(got).tolist() == np.isnan(a).any(dim).tolist()
    else:
        nothing = -np.inf if op == "max" else np.inf
        full = np.where(np.isnan(a), nothing, a)
        np.testing.assert_array_equal(got, full.max(dim) if op == "max" else full.min(dim))


def test_maximum_of_two_values_drops_nan(run_both):
    @T.prim_func
    def main(
        A: T.Tensor((40,), "float32"), B: T.Tensor((40,), "float32"), C: T.Tensor((40,), "float32")
    ):
        with T.Kernel(1):
            for i in T.Parallel(40):
                C[i] = T.max(A[i], B[i]) + T.min(A[i], B[i])

    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(40).astype(np.float32) for _ in range(2))
    a[3] = b[7] = a[9] = b[9] = np.nan
    expected = np.fmax(a, b) + np.fmin(a, b)
    run_both(main, [a, b], [np.zeros(40, np.float32)], [expected])


def test_reduce_regions_tensors_and_variables(run_both):
    @T.prim_func
    def main(A: T.Tensor((30, 50), "float32"), B: T.Tensor((4, 30), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((30, 50), "float32")
            sums = T.alloc_fragment((30,), "float32")
            total = T.alloc_var("float32", init=5.0)
            T.copy(A, tile)
            T.reduce_sum(tile[:, 8:40], sums, dim=1)
            T.copy(sums, B[0, 0])
            T.reduce_max(A[0:30, 0:50], B[1, 0:30], dim=1)
            T.reduce_sum(tile[2:5, 7], total, dim=0, clear=False)
            T.fill(B[2, 0:30], total)
            T.reduce_sum(tile[0:16, 0:30], B[3, :], dim=0)

    a = np.random.default_rng(3).standard_normal((30, 50)).astype(np.float32)
    wide = a.astype(np.float64)
    expected = np.stack([
        wide[:, 8:40].sum(1), wide.max(1), np.full(30, 5 + wide[2:5, 7].sum()),
        wide[:16, :30].sum(0),
    ])  # fmt: skip
    run_both(main, [a], [np.zeros((4, 30), np.float32)], [expected])


def test_reduction_beyond_the_edge_of_a_tensor_takes_zeros(run_both):
    @T.prim_func
    def main(A: T.Tensor((10, 50), "float32"), B: T.Tensor((20,), "float32")):
        with T.Kernel(2) as b:
            sums = T.alloc_fragment((10,), "float32")
            T.reduce_sum(A[b * 7 : b * 7 + 10, 10:60], sums)
            T.copy(sums, B[b * 10])

    a = np.random.default_rng(3).standard_normal((10, 50)).astype(np.float32)
    rows = a[:, 10:].astype(np.float64).sum(1)
    expected = np.concatenate([rows, rows[7:], np.zeros(7)])
    run_both(main, [a], [np.zeros(20, np.float32)], [expected])


@pytest.mark.few(1)
@pytest.mark.parametrize("block", [32, 128])
def test_softmax_with_a_running_maximum(run_both, block):
    M, N = 24, 200

    @T.prim_func
    def main(A: T.Tensor((M, N), "float32"), B: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, 16)) as b:
            tile = T.alloc_shared((16, block), "float32")
            scores = T.alloc_fragment((16, block), "float32")
            best = T.alloc_fragment((16,), "float32")
            old = T.alloc_fragment((16,), "float32")
            part = T.alloc_fragment((16,), "float32")
            total = T.alloc_fragment((16,), "float32")
            T.fill(best, -T.infinity("float32"))
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(N, block), num_stages=2):
                T.copy(A[b * 16, k * block], tile)
                T.copy(best, old)
                T.reduce_max(tile, best, dim=1, clear=False)
                for i, j in T.Parallel(16, block):
                    inside = k * block + j < N
                    scores[i, j] = T.if_then_else(inside, T.exp(tile[i, j] - best[i]), 0.0)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(16):
                    total[i] = total[i] * T.exp(old[i] - best[i]) + part[i]
            for i in T.Parallel(16):
                B[b * 16 + i] = best[i] + T.log(total[i])

    a = np.random.default_rng(4).standard_normal((M, N)).astype(np.float32) + 3
    expected = np.log(np.exp(a.astype(np.float64)).sum(1))
    run_both(main, [a], [np.zeros(M, np.float32)], [expected])


def test_extents_known_when_the_kernel_runs(run_both):
    """A fold over no element gives the identity."""

    @T.prim_func
    def main(A: T.Tensor((20, 20), "float32"), B: T.Tensor((20,), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((20, 20), "float32")
            best = T.alloc_fragment((1,), "float32")
            T.copy(A, tile)
            for k in T.serial(20):
                T.reduce_max(tile[k, 0:k], best, dim=1)
                B[k] = best[0]

    a = np.random.default_rng(3).standard_normal((20, 20)).astype(np.float32)
    expected = [-np.inf, *(a[k, :k].max() for k in range(1, 20))]
    run_both(main, [a], [np.zeros(20, np.float32)], [expected])


def attention(batch, heads, length, dim, block, causal):
    scale = dim**-0.5 * 1.44269504  # log2(e): powers of two below
    shape = (batch, length, heads, dim)

    @T.prim_func
    def main(
        Q: T.Tensor(shape, "float16"),
        K: T.Tensor(shape, "float16"),
        V: T.Tensor(shape, "float16"),
        Out: T.Tensor(shape, "float16"),
    ):
        with T.Kernel(T.ceildiv(length, block), heads, batch, threads=128) as (bx, by, bz):
            q = T.alloc_shared((block, dim), "float16")
            k = T.alloc_shared((block, dim), "float16")
            v = T.alloc_shared((block, dim), "float16")
            scores = T.alloc_fragment((block, block), "float32")
            weights = T.alloc_fragment((block, block), "float16")
            out = T.alloc_fragment((block, dim), "float32")
            best = T.alloc_fragment((block,), "float32")
            before = T.alloc_fragment((block,), "float32")
            part = T.alloc_fragment((block,), "float32")
            total = T.alloc_fragment((block,), "float32")
            T.copy(Q[bz, bx * block : (bx + 1) * block, by, :], q)
            T.clear(out)
            T.clear(total)
            T.fill(best, -T.infinity("float32"))
            blocks = T.min(bx + 1, T.ceildiv(length, block)) if causal else T.ceildiv(length, block)
            for j in T.Pipelined(blocks, num_stages=2):
                T.copy(K[bz, j * block : (j + 1) * block, by, :], k)
                for r, c in T.Parallel(block, block):
                    last = bx * block + r if causal else length - 1
                    scores[r, c] = T.if_then_else(j * block + c <= last, 0, -T.infinity("float32"))
                T.gemm(q, k, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(best, before)
                T.reduce_max(scores, best, dim=1, clear=False)
                for r, c in T.Parallel(block, block):
                    scores[r, c] = T.exp2(scores[r, c] * scale - best[r] * scale)
                T.reduce_sum(scores, part, dim=1)
                for r in T.Parallel(block):
                    before[r] = T.exp2(before[r] * scale - best[r] * scale)
                    total[r] = total[r] * before[r] + part[r]
                for r, c in T.Parallel(block, dim):
                    out[r, c] *= before[r]
                T.copy(scores, weights)
                T.copy(V[bz, j * block : (j + 1) * block, by, :], v)
                T.gemm(weights, v, out, policy=T.GemmWarpPolicy.FullRow)
            for r, c in T.Parallel(block, dim):
                out[r, c] /= total[r]
            T.copy(out, Out[bz, bx * block : (bx + 1) * block, by, :])

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize(("length", "causal"), [(64, False), (96, True), (70, False)])
def test_flash_attention(run_both, length, causal):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(length)
    inputs = [rng.standard_normal((2, length, 2, 32)).astype(np.float16) for _ in range(3)]
    heads_first = [torch.from_numpy(x).double().permute(0, 2, 1, 3) for x in inputs]
    expected = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=causal)
    func = attention(2, 2, length, 32, 32, causal)
    outputs, want = [np.zeros_like(inputs[0])], [expected.permute(0, 2, 1, 3).numpy()]
    run_both(func, inputs, outputs, want, rtol=4e-3, atol=4e-3)


# --- scans ------------------------------------------------------------------------------------


def scan_program(op, shape, dim, reverse, dtype, in_place):
    @T.prim_func
    def main(A: T.Tensor(shape, dtype), B: T.Tensor(shape, dtype)):
        with T.Kernel(1):
            tile = T.alloc_shared(shape, dtype)
            other = T.alloc_fragment(shape, dtype)
            T.copy(A, tile)
            scan = T.cumsum if op == "sum" else T.cummax
            if in_place:
                scan(tile, dim=dim, reverse=reverse)
                T.copy(tile, B)
            else:
                scan(tile, other, dim=dim, reverse=reverse)
                T.copy(other, B)

    return main


@pytest.mark.few(1)
@pytest.mark.covering("op reverse")
@pytest.mark.parametrize(
    ("shape", "dim"), [((37, 45), 0), ((5, 70), -1), ((4, 9, 21), 1), ((50,), 0)]
)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_scans(run_both, op, shape, dim, reverse):
    a = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    step = np.add.accumulate if op == "sum" else np.maximum.accumulate
    wide = np.flip(a.astype(np.float64), dim) if reverse else a.astype(np.float64)
    expected = step(wide, axis=dim)
    expected = np.flip(expected, dim) if reverse else expected
    func = scan_program(op, shape, dim, reverse, "float32", in_place=op == "sum")
    run_both(func, [a], [np.zeros(shape, np.float32)], [expected], atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_scan_element_types(run_both, dtype):
    a = values(np.random.default_rng(6), (6, 40), dtype)
    func = scan_program("sum", (6, 40), 1, False, dtype, in_place=True)
    bound = TOLERANCE.get(dtype, 1e-6)
    expected = a.astype(np.float64).cumsum(1)
    run_both(func, [a], [np.zeros_like(a)], [expected], rtol=bound, atol=bound * 8)


# --- predicates -------------------------------------------------------------------------------


def test_any_of_and_all_of_steer_blocks(run_both):
    @T.prim_func
    def main(M: T.Tensor((8, 20), "int32"), B: T.Tensor((8,), "int32")):
        with T.Kernel(8) as b:
            mask = T.alloc_shared((20,), "int32")
            T.copy(M[b, 0], mask)
            B[b] = 0
            if T.any_of(mask):
                B[b] = 1
            if T.all_of(mask[0:10]):
                B[b] = B[b] + 2

    m = np.zeros((8, 20), np.int32)
    m[1, 19], m[2, :10], m[3, :], m[4, 1:10] = 7, 1, -1, 1
    expected = m.any(1) + 2 * m[:, :10].all(1)
    run_both(main, [m], [np.zeros(8, np.int32)], [expected])


def test_any_of_as_the_condition_of_a_while(run_both):
    @T.prim_func
    def main(A: T.Tensor((4, 9), "int32"), B: T.Tensor((4,), "int32")):
        with T.Kernel(2) as b:
            for row in (0, 2):  # a loop of Python, which runs while tracing
                left = T.alloc_local((9,), "int32")
                steps = T.alloc_var("int32", init=0)
                T.copy(A[b + row, 0], left)
                while T.any_of(left):
                    for i in T.Parallel(9):
                        left[i] = T.max(left[i] - 1, 0)
                    steps += 1
                B[b + row] = steps

    a = np.random.default_rng(0).integers(0, 6, (4, 9)).astype(np.int32)
    run_both(main, [a], [np.zeros(4, np.int32)], [a.max(1)])


# --- reducers ---------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_reducers_across_tiles(run_both, op, dtype):
    M, K, block = 13, 90, 30

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((M,), dtype)):
        with T.Kernel(1):
            acc = T.alloc_reducer((M,), dtype, op=op)
            result = T.alloc_fragment((M,), dtype)
            tile = T.alloc_shared((M, block), dtype)
            T.reducer_init(acc)
            for k in T.serial(K // block):
                T.copy(A[0, k * block], tile)
                for i, j in T.Parallel(M, block):
                    T.reducer_update(acc[i], tile[i, j])
            T.finalize_reducer(acc, result)
            T.copy(result, B)

    a = values(np.random.default_rng(7), (M, K), dtype)
    expected = REFERENCES[op](a.astype(np.float64), axis=1)
    bound = 2e-2 if dtype == "float16" and op == "sum" else 1e-5
    run_both(main, [a], [np.zeros(M, a.dtype)], [expected], rtol=bound, atol=bound)


def test_reducers_of_older_programs(run_both):
    M, N = 16, 40

    @T.prim_func
    def main(
        A: T.Tensor((M, N), "float16"),
        x: T.Tensor((N,), "float16"),
        o: T.Tensor((M,), "float32"),
        c: T.Tensor((N,), "float32"),
    ):
        with T.Kernel(1, threads=128):
            rows = T.alloc_reducer(M, "float32", replication="all")
            columns = T.alloc_reducer((N,), "float32", op="max", replication="all")
            T.clear(rows)
            T.fill(columns, -T.infinity("float32"))
            for i, j in T.Parallel(M, N):
                rows[i] += A[i, j] * x[j]
                columns[j] = T.max(columns[j], A[i, j])
            T.finalize_reducer(rows)
            T.finalize_reducer(columns, batch=2)
            T.copy(rows, o)
            T.copy(columns, c)

    rng = np.random.default_rng(8)
    a, x = rng.standard_normal((M, N)).astype(np.float16), rng.standard_normal(N).astype(np.float16)
    expected = [a.astype(np.float64) @ x.astype(np.float64), a.astype(np.float64).max(0)]
    outputs = [np.zeros(M, np.float32), np.zeros(N, np.float32)]
    run_both(main, [a, x], outputs, expected, rtol=2e-3, atol=1e-2)


def test_reducer_with_a_start_and_under_a_condition(run_both):
    @T.prim_func
    def main(A: T.Tensor((50,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(1):
            best = T.alloc_reducer(1, "float32", op="max")
            start = T.alloc_fragment((1,), "float32")
            T.fill(start, 0.25)
            T.reducer_init(best, start)
            for i in T.Parallel(50):
                if i % 3 == 0:
                    T.reducer_update(best[0], A[i])
            T.finalize_reducer(best, B)

    a = np.random.default_rng(9).standard_normal(50).astype(np.float32)
    run_both(main, [a], [np.zeros(1, np.float32)], [[max(0.25, a[::3].max())]])


# --- errors -----------------------------------------------------------------------------------


def failing(body):
    with pytest.raises(TileError) as caught:

        @T.prim_func
        def program(A: T.Tensor((16, 8), "float32")):
            with T.Kernel(1):
                tile = T.alloc_fragment((16, 8), "float32")
                row = T.alloc_fragment((8,), "float32")
                column = T.alloc_fragment((16,), "float32")
                T.copy(A, tile)
                body(tile, row, column)

    return caught.value


def reduce_in_parallel(tile, row, column):
    for _ in T.Parallel(4):
        T.reduce_sum(tile, column)


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (lambda t, r, c: T.reduce_sum(t, r, dim=1), ShapeMismatch, r"expected \(16,\), found"),
        (lambda t, r, c: T.reduce_sum(t, c, dim=2), ShapeMismatch, "expected -2 to 1, found 2"),
        (lambda t, r, c: T.reduce_bitor(t, c), TypeMismatch, "integers or bools"),
        (lambda t, r, c: T.reduce_sum(t, c, batch=0), TypeMismatch, "batch >= 1"),
        (lambda t, r, c: T.reduce_max(t, 3), TypeMismatch, "the result of T.reduce_max"),
        (lambda t, r, c: T.cumsum(t, c), ShapeMismatch, "T.cumsum of `tile`"),
        (lambda t, r, c: T.reducer_update(c[0], 1.0), TypeMismatch, "T.alloc_reducer returned"),
        (lambda t, r, c: T.alloc_reducer((4,), "float32", op="mean"), TypeMismatch, "one of sum"),
        (reduce_in_parallel, ScopeError, r"inside T\.Parallel"),
    ],
)  # fmt: skip
def test_bad_reductions_are_placed(body, kind, text):
    error = failing(body)
    assert isinstance(error, kind)
    assert __import__("re").search(text, error.message), error.message
    assert error.span is not None


def test_canonical_text():
    func, _, _ = reduction("max", (4, 8), 1, "float32", "float32", clear=False)
    assert "reduce max src along (1) -> dst clear=False" in str(func)
    assert "scan sum tile along 0 -> tile reverse=True" in str(
        scan_program("sum", (4,), 0, True, "int32", True)
    )


def test_tile_that_nothing_sets_is_reported():
    @T.prim_func
    def program(A: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            tile = T.alloc_fragment((4, 4), "float32")
            total = T.alloc_fragment((4,), "float32")
            T.fill(tile, 1.0)
            T.reduce_sum(tile, total, clear=False)
            T.copy(total, A)

    from tilecore.ir.verifier import verify

    with pytest.raises(ScopeError, match="`total` is read but nothing ever sets it"):
        verify(program)
    (out,) = interpreter.run(program)
    assert np.isnan(out).all()


@pytest.mark.few(1)
@pytest.mark.covering("op dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16"])
@pytest.mark.parametrize("rows", [16, 37])
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_rows_folded_together(run_both, op, rows, dtype):
    check_reduction(run_both, op, (rows, 48), 1, dtype)
    check_reduction(run_both, op, (2, rows, 16), 2, dtype, clear=False)


def test_nan_in_rows_folded_together(run_both):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((32, 32)).astype(np.float32)
    a[5, 7] = a[20, :] = np.nan
    a[9, 3] = np.inf

    @T.prim_func
    def main(A: T.Tensor((32, 32), "float32"), B: T.Tensor((2, 32), "float32")):
        with T.Kernel(1):
            src = T.alloc_fragment((32, 32), "float32")
            dst = T.alloc_fragment((32,), "float32")
            T.copy(A, src)
            T.reduce_max(src, dst, dim=1)
            T.copy(dst, B[0, 0])
            T.reduce_sum(src, dst, dim=1)
            T.copy(dst, B[1, 0])

    largest = np.fmax.reduce(a, axis=1, initial=-np.inf)
    expected = np.stack([largest, a.astype(np.float64).sum(axis=1)])
    run_both(main, [a], [np.zeros((2, 32), np.float32)], [expected])
