"""Dynamic shapes: one compiled kernel serves every size, and refuses sizes that disagree."""

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.errors import ArgumentError, InvalidProgram
from tilecore.interpreter import run

SIZES = [(64, 64, 64), (1, 1, 1), (50, 70, 33), (131, 17, 96)]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


def agree(kernel, func, inputs, outputs, **tolerance):
    """Run compiled and interpreted on the same arguments and compare the outputs."""
    expected = [np.copy(o) for o in outputs]
    run(func, *inputs, *expected, seed=5)
    kernel(*inputs, *outputs)
    for got, want in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64),
            want.astype(np.float64),
            **{"rtol": 1e-5, "atol": 1e-5, **tolerance},
        )


def dynamic_gemm(dims, block=(32, 48, 16), dtype="float32"):
    """A matrix product whose extents named in ``dims`` are dynamic."""
    M, N, K = (T.dynamic(n, t) if n is not None else s for n, t, s in dims)
    bM, bN, bK = block

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=128) as (bx, by):
            a = T.alloc_shared((bM, bK), dtype)
            b = T.alloc_shared((bK, bN), dtype)
            c = T.alloc_fragment((bM, bN), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=2):
                T.copy(A[by * bM, k * bK], a)
                T.copy(B[k * bK, bx * bN], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * bM, bx * bN])

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_one_gemm_kernel_for_every_size(store, index):
    func = dynamic_gemm([("m", index, 0), ("n", index, 0), ("k", index, 0)])
    kernel = runtime.load(compile(func, store=store))
    rng = np.random.default_rng(1)
    for m, n, k in SIZES:
        a, b = (rng.standard_normal(s, dtype=np.float32) for s in ((m, k), (k, n)))
        out = np.full((m, n), np.nan, np.float32)
        agree(kernel, func, [a, b], [out], atol=1e-4)
        np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "config", [{"pack_a": "none"}, {"pack_a": "rows"}, {"pack_a": "block", "pack_b": "block"}]
)
def test_only_the_rows_are_dynamic(store, config):
    func = dynamic_gemm([("m", "int32", 0), (None, None, 70), (None, None, 40)])
    artifact = compile(func, config=config, store=store)
    packed_once = config.get("pack_b") is None
    assert any("packed once before the grid" in n for n in artifact.manifest.notes) == packed_once
    kernel = runtime.load(artifact)
    b = np.random.default_rng(2).standard_normal((40, 70), dtype=np.float32)
    for m in (1, 31, 32, 100):
        a = np.random.default_rng(m).standard_normal((m, 40), dtype=np.float32)
        out = np.full((m, 70), np.nan, np.float32)
        kernel(a, b, out)
        np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_batches_of_transposed_operands(store, trans_a, trans_b):
    b, m, n, k = T.dynamic("b, m, n, k")

    @T.prim_func
    def main(
        A: T.Tensor((b, k, m) if trans_a else (b, m, k), "float32"),
        B: T.Tensor((b, n, k) if trans_b else (b, k, n), "float32"),
        C: T.Tensor((b, m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 24), b) as (bx, by, bz):
            a = T.alloc_shared((16, 24) if trans_a else (24, 16), "float32")
            w = T.alloc_shared((32, 16) if trans_b else (16, 32), "float32")
            c = T.alloc_fragment((24, 32), "float32")
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, 16), num_stages=2):
                if trans_a:
                    T.copy(A[bz, ko * 16, by * 24], a)
                else:
                    T.copy(A[bz, by * 24, ko * 16], a)
                if trans_b:
                    T.copy(B[bz, bx * 32, ko * 16], w)
                else:
                    T.copy(B[bz, ko * 16, bx * 32], w)
                T.gemm(a, w, c, trans_a, trans_b)
            T.copy(c, C[bz, by * 24, bx * 32])

    artifact = compile(main, store=store)
    assert any("accumulated in the output itself" in note for note in artifact.manifest.notes)
    kernel = runtime.load(artifact)
    for batch, rows, columns, depth in (
        (1, 24, 32, 16),
        (3, 25, 70, 33),
        (2, 0, 5, 4),
        (2, 7, 5, 0),
    ):
        x, y = torch.randn(batch, rows, depth), torch.randn(batch, depth, columns)
        out = torch.full((batch, rows, columns), float("nan"))
        given = (
            x.transpose(1, 2).contiguous() if trans_a else x,
            y.transpose(1, 2).contiguous() if trans_b else y,
        )
        kernel(*given, out)
        torch.testing.assert_close(out, x @ y, rtol=1e-4, atol=1e-4)


def test_half_precision_with_an_epilogue(store):
    m = T.dynamic("m")

    @T.prim_func
    def main(
        A: T.Tensor((m, 64), "float16"),
        B: T.Tensor((48, 64), "float16"),
        Bias: T.Tensor((48,), "float32"),
        C: T.Tensor((m, 48), "float16"),
    ):
        with T.Kernel(T.ceildiv(m, 32)) as by:
            a = T.alloc_shared((32, 64), "float16")
            b = T.alloc_shared((48, 64), "float16")
            c = T.alloc_fragment((32, 48), "float32")
            T.copy(A[by * 32, 0], a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(32, 48):
                c[i, j] = T.max(c[i, j] + Bias[j], 0)
            T.copy(c, C[by * 32, 0])

    kernel = runtime.load(compile(main, store=store))
    rng = np.random.default_rng(3)
    b, bias = rng.standard_normal((48, 64)).astype(np.float16), rng.standard_normal(48, np.float32)
    for rows in (1, 32, 77):
        a = rng.standard_normal((rows, 64)).astype(np.float16)
        out = np.full((rows, 48), np.nan, np.float16)
        agree(kernel, main, [a, b, bias], [out], rtol=1e-2, atol=1e-2)
        expected = np.maximum(a.astype(np.float64) @ b.T.astype(np.float64) + bias, 0)
        np.testing.assert_allclose(out, expected, rtol=1e-2, atol=2e-2)


def test_elementwise_over_dynamic_axes_of_every_rank(store):
    b, m, n = T.dynamic("b, m, n")

    @T.prim_func
    def main(X: T.Tensor((b, m, n), "float32"), Y: T.Tensor((b, n, m), "float32"), s: T.float32):
        with T.Kernel(T.ceildiv(n, 24), T.ceildiv(m, 8), b) as (bx, by, bz):
            for i, j in T.Parallel(8, 24):
                if bx * 24 + j < n and by * 8 + i < m:
                    Y[bz, bx * 24 + j, by * 8 + i] = X[bz, by * 8 + i, bx * 24 + j] * s

    kernel = runtime.load(compile(main, store=store))
    rng = np.random.default_rng(4)
    for shape in ((1, 1, 1), (2, 9, 24), (3, 17, 50)):
        x = rng.standard_normal(shape, dtype=np.float32)
        y = np.full((shape[0], shape[2], shape[1]), np.nan, np.float32)
        kernel(x, y, 2.5)
        np.testing.assert_allclose(y, x.transpose(0, 2, 1) * np.float32(2.5))


def test_whole_rows_in_loops_with_dynamic_ends(store):
    m, n = T.dynamic("m, n")

    @T.prim_func
    def main(X: T.Tensor((m, n), "float32"), Sum: T.Tensor((m,), "float32")):
        with T.Kernel(m) as row:
            total = T.alloc_var("float32", 0.0)
            for j in T.serial(n):
                total += X[row, j]
            Sum[row] = total
            for j in T.Parallel(n):
                X[row, j] = X[row, j] / total

    kernel = runtime.load(compile(main, store=store))
    for shape in ((1, 1), (3, 16), (5, 101)):
        x = np.random.default_rng(5).uniform(1, 2, shape).astype(np.float32)
        total = x.astype(np.float64).sum(1)
        expected, sums = x / total[:, None], np.zeros(shape[0], np.float32)
        kernel(x, sums)
        np.testing.assert_allclose(sums, total, rtol=1e-5)
        np.testing.assert_allclose(x, expected, rtol=1e-5)


def test_shapes_may_be_expressions_of_dimensions(store):
    m = T.dynamic("m")

    @T.prim_func
    def main(
        X: T.Tensor((m,), "int32"),
        Twice: T.Tensor((m * 2 + 1,), "int32"),
        Blocks: T.Tensor((T.ceildiv(m, 16),), "int32"),
    ):
        with T.Kernel(T.ceildiv(m, 16)) as b:
            Blocks[b] = b
            for i in T.Parallel(16):
                if b * 16 + i < m:
                    Twice[2 * (b * 16 + i)] = X[b * 16 + i]
                    Twice[2 * (b * 16 + i) + 1] = -X[b * 16 + i]

    kernel = runtime.load(compile(main, store=store))
    for size in (1, 16, 40):
        x = np.arange(size, dtype=np.int32)
        twice, blocks = np.zeros(2 * size + 1, np.int32), np.zeros(-(-size // 16), np.int32)
        agree(kernel, main, [x], [twice, blocks])
        np.testing.assert_array_equal(twice[:-1], np.stack([x, -x], 1).ravel())
    with pytest.raises(ArgumentError, match=r"shape \(41,\) = \(m \* 2 \+ 1,\).*shape \(40,\)"):
        kernel(x[:20], np.zeros(40, np.int32), np.zeros(2, np.int32))


def test_tensors_of_a_call_must_agree(store):
    func = dynamic_gemm([("m", "int32", 0), ("n", "int32", 0), ("k", "int32", 0)])
    kernel = runtime.load(compile(func, store=store))
    a, b, c = (np.zeros(s, np.float32) for s in ((4, 5), (6, 7), (4, 7)))
    with pytest.raises(ArgumentError, match="`B`: expected k = 5, as in `A`, found k = 6"):
        kernel(a, b, c)
    with pytest.raises(ArgumentError, match="rank 2"):
        kernel(a, b[0], c)


def test_a_dimension_needs_an_axis_of_its_own():
    m, n = T.dynamic("m, n")

    @T.prim_func
    def main(X: T.Tensor((m * n,), "float32")):
        with T.Kernel(m) as i:
            X[i] = 0

    with pytest.raises(InvalidProgram, match=r"dimension `m` in the shape of `X` follows from no"):
        compile(main)


def test_a_dimension_follows_from_a_linear_axis(store):
    n = T.dynamic("n")

    @T.prim_func
    def main(X: T.Tensor((n * 4 + 2,), "int32")):
        with T.Kernel(n) as b:
            for i in T.Parallel(4):
                X[b * 4 + i] = b

    kernel = runtime.load(compile(main, store=store))
    for size in (2, 6, 42):
        x, oracle = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
        kernel(x)
        run(main, oracle)
        np.testing.assert_array_equal(x, [*np.repeat(np.arange(size // 4), 4), -1, -1])
        np.testing.assert_array_equal(oracle, x)
    with pytest.raises(ArgumentError, match=r"shape \(42,\) = \(n \* 4 \+ 2,\)"):
        kernel(np.zeros(45, np.int32))


def test_dimension_from_a_scalar_parameter(store):
    @T.prim_func
    def main(n: T.int32, X):
        X: T.Tensor[[n, 3], T.float32]
        with T.Kernel(n) as i:
            for j in T.serial(3):
                X[i, j] = T.cast(i * 10 + j, "float32")

    kernel = runtime.load(compile(main, store=store))
    x = np.zeros((7, 3), np.float32)
    kernel(7, x)
    np.testing.assert_array_equal(x, np.arange(7)[:, None] * 10 + np.arange(3))
    with pytest.raises(ArgumentError, match="shape"):
        kernel(6, x)
    with pytest.raises(ArgumentError, match=r"a number \(int32\)"):
        kernel("7", x)
    with pytest.raises(ArgumentError, match="a value of type int32"):
        kernel(2**31, x)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int8", -7), ("uint16", 60000), ("int64", 2**40), ("float16", 0.5), ("bfloat16", 1.5),
     ("float64", 1e-200), ("bool", True)],
)  # fmt: skip
def test_scalar_parameters_of_each_type(store, dtype, value):
    out = "int32" if dtype == "bool" else dtype

    @T.prim_func
    def main(x: T.dtype(dtype), Y: T.Tensor((2,), out)):
        with T.Kernel(1):
            Y[0] = T.cast(x, out)
            Y[1] = T.cast(x, out) + T.cast(x, out) if dtype.startswith("float") else T.cast(x, out)

    kernel = runtime.load(compile(main, store=store))
    y = np.zeros(2, T.dtype(out).numpy)
    expected = np.copy(y)
    run(main, value, expected)
    kernel(value, y)
    np.testing.assert_array_equal(y, expected)
    assert float(y[0]) == float(value)


def test_jit_allocates_outputs_of_dynamic_shape():
    @tilelang.jit(out_idx=[-1])
    def build(block=16):
        m, n = T.dynamic("m"), T.symbolic("n")

        @T.prim_func
        def main(X: T.Tensor((m, n), "float32"), Y: T.Tensor((n, m), "float32")):
            with T.Kernel(T.ceildiv(m, block), T.ceildiv(n, block)) as (bx, by):
                for i, j in T.Parallel(block, block):
                    Y[by * block + i, bx * block + j] = X[bx * block + j, by * block + i]

        return main

    kernel = build()
    for shape in ((3, 5), (40, 17)):
        x = torch.randn(shape)
        torch.testing.assert_close(kernel(x), x.T.contiguous())


def test_eager_programs_with_dynamic_dimensions_and_scalars():
    @tilelang.jit
    def repeat(A, scale: T.float32):
        m = T.dynamic("m")
        A: T.Tensor[[m], T.float32]
        B = T.empty([m * 2 + 1], T.float32)
        C = T.empty([m], T.float32)
        with T.Kernel(1):
            for i in T.serial(m * 2 + 1):
                B[i] = A[i % m] * scale
            for i in T.serial(m):
                C[i] = A[i] + T.cast(i, "float32")
        return B, C

    kernels = set()
    for size in (1, 19, 37):
        a = torch.randn(size)
        b, c = repeat(a, 3.0)
        torch.testing.assert_close(b, (a * 3).repeat(3)[: 2 * size + 1])
        torch.testing.assert_close(c, a + torch.arange(size))
        kernels.add(id(repeat.compile(a)))
    assert len(kernels) == 1


def test_a_program_of_scalars_only():
    @tilelang.jit
    def count(m: T.int32):
        B = T.empty([m + 1], T.float32)
        with T.Kernel(1):
            for i in T.serial(m + 1):
                B[i] = T.cast(i, T.float32)
        return B

    for m in (0, 23):
        np.testing.assert_array_equal(np.asarray(count(m)), np.arange(m + 1))


def test_profiler_takes_sizes_by_name():
    func = dynamic_gemm([("m", "int32", 0), (None, None, 32), (None, None, 16)])
    kernel = tilelang.compile(func, out_idx=[2])
    profiler = kernel.get_profiler()
    sizes = {"m": 40}
    assert profiler.do_bench(dynamic_symbolic_constraints=sizes, warmup=1, rep=1) > 0
