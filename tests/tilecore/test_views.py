"""Memory under other names: views, strided tensors, pointers, workspaces."""

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.errors import ArgumentError, ScopeError, ShapeMismatch, TypeMismatch
from tilecore.interpreter import run


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


def run_both(func, inputs, outputs, store):
    expected = [np.copy(o) for o in outputs]
    run(func, *[np.copy(i) for i in inputs], *expected, seed=3)
    runtime.load(compile(func, store=store))(*inputs, *outputs)
    for got, want in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(48,), (6, 8), (2, 3, 8)])
def test_reshaped_tensors_share_memory(store, shape):
    @T.prim_func
    def main(X: T.Tensor(shape, "float32"), Y: T.Tensor((48,), "float32")):
        flat = T.reshape(X, (48,))
        with T.Kernel(3) as b:
            square = T.reshape(Y, (3, 16))
            for i in T.Parallel(16):
                square[b, i] = flat[b * 16 + i] + 1

    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    y = np.full(48, np.nan, np.float32)
    run_both(main, [x], [y], store)
    np.testing.assert_array_equal(y, x.ravel() + 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("scope", ["shared", "fragment", "local"])
def test_views_of_tiles_see_what_the_tile_holds(store, scope):
    allocate = {"shared": T.alloc_shared, "fragment": T.alloc_fragment, "local": T.alloc_local}

    @T.prim_func
    def main(X: T.Tensor((40, 24), "float32"), Y: T.Tensor((24, 40), "float32")):
        with T.Kernel(1):
            tile = allocate[scope]((40, 24), "float32")
            other = T.view(tile, (24, 40))
            T.copy(X, tile)
            for i, j in T.Parallel(24, 40):
                other[i, j] = other[i, j] * 2
            T.copy(other, Y)
            for i, j in T.Parallel(40, 24):
                tile[i, j] = tile[i, j] + 1
            T.copy(tile, X)

    x = np.random.default_rng(1).standard_normal((40, 24), dtype=np.float32)
    want, y = x * 2, np.full((24, 40), np.nan, np.float32)
    run_both(main, [], [x, y], store)
    np.testing.assert_array_equal(y, want.reshape(24, 40))
    np.testing.assert_array_equal(x, want + 1)


@pytest.mark.few(1)
@pytest.mark.parametrize(("dtype", "last"), [("int32", 12), ("uint8", 48), ("float64", 6)])
def test_bits_seen_as_another_type_in_both_directions(store, dtype, last):
    @T.prim_func
    def main(X: T.Tensor((4, 12), "float32"), Y: T.Tensor((4, last), dtype)):
        with T.Kernel(4) as b:
            row = T.alloc_shared((12,), "float32")
            bits = T.view(row, dtype=dtype)
            for i in T.Parallel(12):
                row[i] = X[b, i]
            for i in T.Parallel(last):
                Y[b, i] = bits[i]
            for i in T.serial(last):
                bits[i] = Y[b, i] + T.cast(1, dtype)
            row[0] = row[0]
            bits[1] = bits[0]
            for i in T.Parallel(12):
                X[b, i] = row[i]

    x = np.random.default_rng(2).standard_normal((4, 12), dtype=np.float32)
    want = x.copy()
    y = np.zeros((4, last), T.dtype(dtype).numpy)
    run_both(main, [], [x, y], store)
    np.testing.assert_array_equal(y, want.view(T.dtype(dtype).numpy))


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("size", [16, 4096])
@pytest.mark.parametrize("is_tensor", [False, True])
def test_stores_through_one_view_are_seen_through_another(store, size, is_tensor):
    @T.prim_func
    def main(
        X: T.Tensor((size,), "float32"), K: T.Tensor((2,), "int32"), Y: T.Tensor((4,), "float32")
    ):
        with T.Kernel(1):
            row = X if is_tensor else T.alloc_shared((size,), "float32")
            half, byte = T.view(row, dtype="uint16"), T.view(row, dtype="uint8")
            for i in T.serial(size):
                row[i] = T.cast(i, "float32")
            row[K[0]] = 1.5
            half[K[1]] = 0x4000
            Y[0] = row[K[0]]
            byte[4 * K[0] + 3] = 0xC0
            Y[1] = row[K[0]]
            row[3] = 7.0
            half[7] = 0x3F80
            Y[2] = row[3]
            row[K[0]] = 2.25
            Y[3] = T.cast(half[K[1]], "float32")

    x, y = np.zeros(size, np.float32), np.zeros(4, np.float32)
    run_both(main, [], [x, k := np.array([5, 11], np.int32), y], store)
    assert k.tolist() == [5, 11]
    assert y.tolist() == [2.0, -2.0, 1.0, 0x4010]


def test_buffers_matched_with_pointers_and_tensors(store):
    @T.prim_func
    def main(x: T.handle, Y: T.Tensor((4, 6), "float32")):
        X = T.match_buffer(x, (24,), "float32")
        flat = T.match_buffer(Y, (24,), "float32")
        with T.Kernel(1):
            for i in T.Parallel(24):
                flat[i] = X[i] * 2

    x, y = torch.randn(24), torch.zeros(4, 6)
    runtime.load(compile(main, store=store))(x, y)
    torch.testing.assert_close(y, x.reshape(4, 6) * 2)


def test_gemm_on_views(store):
    @T.prim_func
    def main(
        A: T.Tensor((20 * 24,), "float32"),
        B: T.Tensor((24, 5, 4), "float32"),
        C: T.Tensor((20, 20), "float32"),
    ):
        A2 = T.reshape(A, (20, 24))
        B2 = T.reshape(B, (24, 20))
        with T.Kernel(1):
            a = T.alloc_shared((24 * 20,), "float32")
            b = T.alloc_shared((24, 20), "float32")
            c = T.alloc_fragment((400,), "float32")
            a2, c2 = T.reshape(a, (20, 24)), T.reshape(c, (20, 20))
            T.copy(A2, a2)
            T.copy(B2, b)
            T.clear(c)
            T.gemm(a2, b, c2)
            T.copy(c2, C)

    rng = np.random.default_rng(3)
    a, b = rng.standard_normal(480, np.float32), rng.standard_normal((24, 5, 4), np.float32)
    c = np.full((20, 20), np.nan, np.float32)
    runtime.load(compile(main, store=store))(a, b, c)
    expected = a.reshape(20, 24).astype(np.float64) @ b.reshape(24, 20)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)


def test_views_must_have_the_size_of_their_base():
    with pytest.raises(ShapeMismatch, match=r"T.view of `X`: expected the size of float32\(8,\)"):

        @T.prim_func
        def main(X: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                T.reshape(X, (3, 3))

    n = T.dynamic("n")
    with pytest.raises(ShapeMismatch):

        @T.prim_func
        def dynamic(X: T.Tensor((n,), "float32")):
            with T.Kernel(1):
                T.view(X, (n,), "float64")


def test_views_of_dynamic_tensors(store):
    m, n = T.dynamic("m, n")

    @T.prim_func
    def main(X: T.Tensor((m, n), "float32"), Y: T.Tensor((m, n), "int32")):
        flat = T.reshape(X, (m * n,))
        bits = T.view(flat, dtype="int32")
        with T.Kernel(m) as i:
            for j in T.Parallel(n):
                Y[i, j] = bits[i * n + j]

    kernel = runtime.load(compile(main, store=store))
    for shape in ((1, 3), (5, 40)):
        x = np.random.default_rng(4).standard_normal(shape, dtype=np.float32)
        y = np.zeros(shape, np.int32)
        kernel(x, y)
        np.testing.assert_array_equal(y, x.view(np.int32))


def strided_scale(strides):
    m, n = T.dynamic("m, n")

    @T.prim_func
    def main(X: T.StridedTensor((m, n), strides, "float32"), Y: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 8)) as (bx, by):
            tile = T.alloc_shared((8, 32), "float32")
            T.copy(X[by * 8, bx * 32], tile)
            for i, j in T.Parallel(8, 32):
                tile[i, j] = tile[i, j] * 3
            T.copy(tile, Y[by * 8, bx * 32])

    return main


def test_strided_tensors_with_known_and_dynamic_strides(store):
    wide = torch.randn(20, 100)
    for strides, x in (
        ((100, 1), wide[:, 10:80]),
        ((T.dynamic("s"), 1), wide[3:, 5:42]),
        ((T.dynamic("s", "int64"), T.dynamic("t", "int64")), wide[::2, ::3]),
        ((T.dynamic("s"), T.dynamic("t")), wide.T),
    ):
        kernel = runtime.load(compile(strided_scale(strides), store=store))
        y = torch.full(x.shape, float("nan"))
        kernel(x, y)
        torch.testing.assert_close(y, x * 3)
    kernel = runtime.load(compile(strided_scale((100, 1)), store=store))
    with pytest.raises(ArgumentError, match=r"strides \(100, 1\)"):
        kernel(wide[:, ::2], torch.empty(20, 50))


def test_strided_gemm_operands_and_output(store):
    s, t, u = T.dynamic("s, t, u")

    @T.prim_func
    def main(
        A: T.StridedTensor((50, 40), (s, 1), "float32"),
        B: T.StridedTensor((40, 60), (1, t), "float32"),
        C: T.StridedTensor((50, 60), (u, 1), "float32"),
    ):
        with T.Kernel(2, 2) as (bx, by):
            a = T.alloc_shared((32, 40), "float32")
            b = T.alloc_shared((40, 32), "float32")
            c = T.alloc_fragment((32, 32), "float32")
            T.copy(A[by * 32, 0], a)
            T.copy(B[0, bx * 32], b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C[by * 32, bx * 32])

    kernel = runtime.load(compile(main, store=store))
    a, b = torch.randn(50, 64)[:, :40], torch.randn(60, 41)[:, :40].T
    c = torch.zeros(50, 77)
    kernel(a, b, c[:, 5:65])
    torch.testing.assert_close(c[:, 5:65], a @ b, rtol=1e-4, atol=1e-4)
    assert not c[:, :5].any()
    assert not c[:, 65:].any()


def pointer_gemm(dtype):
    @T.prim_func
    def main(
        a_ptr: T.ptr, b_ptr: T.ptr, c_ptr: T.ptr("float32"), m: T.int32, n: T.int32, k: T.int32
    ):
        A = T.make_tensor(a_ptr, (m, k), dtype)
        B = T.make_tensor(b_ptr, (n, k), dtype)
        C = T.make_tensor(c_ptr, (m, n))
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32)) as (bx, by):
            a = T.alloc_shared((32, 16), dtype)
            b = T.alloc_shared((32, 16), dtype)
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, 16), num_stages=2):
                T.copy(A[by * 32, ko * 16], a)
                T.copy(B[bx * 32, ko * 16], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 32, bx * 32])

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tensors_made_of_pointers(store, dtype):
    func = pointer_gemm(dtype)
    kernel = runtime.load(compile(func, store=store))
    for m, n, k in ((32, 32, 16), (45, 70, 33)):
        a, b = (torch.randn(s).to(getattr(torch, dtype)) for s in ((m, k), (n, k)))
        c, by_oracle = torch.full((m, n), float("nan")), torch.zeros(m, n)
        kernel(a.data_ptr(), b, c.data_ptr(), m, n, k)
        torch.testing.assert_close(c, a.float() @ b.float().T, rtol=1e-3, atol=1e-3)
        run(func, a.data_ptr(), b.data_ptr(), by_oracle.data_ptr(), m, n, k)
        torch.testing.assert_close(by_oracle, c, rtol=1e-3, atol=1e-3)
    with pytest.raises(ArgumentError, match="a tensor or an address"):
        kernel(1.5, b, c, m, n, k)


def test_a_table_of_pointers(store):
    @T.prim_func
    def main(
        Table: T.Tensor((3,), T.ptr), Sizes: T.Tensor((3,), "int32"), Out: T.Tensor((3,), "float32")
    ):
        with T.Kernel(3) as b:
            X = T.make_tensor_from_addr(Table[b], (Sizes[b],), "float32")
            total = T.alloc_var("float32", 0)
            for i in T.serial(Sizes[b]):
                total += X[i]
            Out[b] = total + X[Sizes[b]]

    rows = [torch.randn(n) for n in (1, 7, 30)]
    table = np.array([r.data_ptr() for r in rows], np.int64)
    sizes, out = np.array([1, 7, 30], np.int32), np.zeros(3, np.float32)
    run_both(main, [table, sizes], [out], store)
    np.testing.assert_allclose(out, [r.double().sum() for r in rows], rtol=1e-5, atol=1e-5)


def test_workspaces_live_across_launches(store):
    n = T.dynamic("n")

    @T.prim_func
    def main(X: T.Tensor((n, 16), "float32"), Y: T.Tensor((n, 16), "float32")):
        half = T.alloc_global((n, 16), "float32")
        total = T.alloc_global((16,), "float32")
        with T.Kernel(n) as i:
            for j in T.Parallel(16):
                half[i, j] = X[i, j] * 0.5
        with T.Kernel(16) as j:
            total[j] = 0
            for i in T.serial(n):
                total[j] += half[i, j]
        with T.Kernel(n) as i:
            for j in T.Parallel(16):
                Y[i, j] = half[i, j] / total[j]

    kernel = runtime.load(compile(main, store=store))
    for rows in (1, 40):
        x = np.random.default_rng(rows).uniform(1, 2, (rows, 16)).astype(np.float32)
        y, by_oracle = np.zeros_like(x), np.zeros_like(x)
        kernel(x, y)
        run(main, x, by_oracle)
        np.testing.assert_allclose(y, x / x.astype(np.float64).sum(0), rtol=1e-5)
        np.testing.assert_allclose(by_oracle, y, rtol=1e-5)


def test_tensors_of_more_than_two_gibi_elements(store):
    rows, columns = 2**16 + 3, 2**15

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "int8"), Y: T.Tensor((4,), "int8")):
        with T.Kernel(4) as i:
            Y[i] = X[rows - 4 + i, columns - 1 - i]

    x = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (rows, columns), (0, 0))
    with pytest.raises(ArgumentError, match="contiguous"):
        runtime.load(compile(main, store=store))(x, np.zeros(4, np.int8))
    x = np.zeros((rows, columns), np.int8)  # untouched pages take no memory
    x[-4:, -4:] = np.arange(16).reshape(4, 4)
    y = np.zeros(4, np.int8)
    runtime.load(compile(main, store=store))(x, y)
    np.testing.assert_array_equal(y, [3, 6, 9, 12])


def test_annotations_of_macro_arguments():
    @T.macro
    def double(tile: T.FragmentBuffer((8,), "float32")):
        for i in T.Parallel(8):
            tile[i] = tile[i] * 2

    @tilelang.jit(out_idx=[1])
    def build(alloc=T.alloc_fragment):
        @T.prim_func
        def main(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32")):
            with T.Kernel(1):
                tile = alloc((8,), "float32")
                T.copy(X, tile)
                double(tile)
                T.copy(tile, Y)

        return main

    x = torch.randn(8)
    torch.testing.assert_close(build()(x), x * 2)
    torch.testing.assert_close(build(T.alloc_shared)(x), x * 2)  # a memory is a remark


def test_workspaces_that_nothing_sets_are_reported():
    @T.prim_func
    def main(Y: T.Tensor((8,), "float32")):
        work = T.alloc_global((8,), "float32")
        with T.Kernel(8) as i:
            Y[i] = work[i]

    with pytest.raises(ScopeError, match="`work` is read but nothing ever sets it"):
        compile(main)


def test_other_strides_are_told_once_where_they_are_numbers():
    @T.prim_func
    def main(A: T.StridedTensor((6, 4), (20, 2), "float32"), B: T.Tensor((6, 4), "float32")):
        with T.Kernel(1):
            T.copy(A, B)

    kernel = tilelang.compile(main)
    with pytest.raises(ArgumentError, match=r"expected strides \(20, 2\), found \(4, 1\)"):
        kernel(torch.zeros(6, 4), torch.zeros(6, 4))
    strided = torch.arange(120.0).reshape(6, 20)[:, 0:8:2]
    out = torch.zeros(6, 4)
    kernel(strided, out)
    torch.testing.assert_close(out, strided.contiguous())


def _product_of_views(kind):
    def look(x, shape):
        return T.reshape(x, shape) if kind == "reshape" else T.Tensor(shape, "float32", x.data)

    @T.prim_func
    def main(
        A: T.Tensor((70 * 96,), "float32"),
        B: T.Tensor((96 * 48,), "float32"),
        C: T.Tensor((70 * 48,), "float32"),
    ):
        with T.Kernel(3, threads=128) as by:
            a = T.alloc_shared((32, 32), "float32")
            b = T.alloc_shared((32, 48), "float32")
            c = T.alloc_fragment((32, 48), "float32")
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(look(A, (70, 96))[by * 32, k * 32], a)
                T.copy(look(B, (96, 48))[k * 32, 0], b)
                T.gemm(a, b, c)
            T.copy(c, look(C, (70, 48))[by * 32, 0])

    return main


@pytest.mark.parametrize("kind", ["reshape", "data"])
def test_views_that_come_after_the_tiles_which_read_and_are_their_memory(store, kind):
    """The accumulator is the output itself, which the program names last."""
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(n, dtype=np.float32) for n in (70 * 96, 96 * 48))
    c = np.full(70 * 48, np.nan, np.float32)
    runtime.load(compile(_product_of_views(kind), store=store))(a, b, c)
    expected = a.reshape(70, 96).astype(np.float64) @ b.reshape(96, 48)
    np.testing.assert_allclose(c.reshape(70, 48), expected, atol=1e-4)


@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_views_made_in_a_pipelined_loop_on_gpus(target):
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-4, 5, n).astype(np.float32) for n in (70 * 96, 96 * 48))
    c = np.full(70 * 48, np.nan, np.float32)
    run_emulated(_product_of_views("reshape"), target, [a, b, c])
    np.testing.assert_array_equal(c.reshape(70, 48), a.reshape(70, 96) @ b.reshape(96, 48))


@pytest.mark.parametrize("target", ["llvm", "emulated sm_80", "emulated h100"])
def test_tensors_at_addresses_that_come_after_the_tiles(target):
    """Of tables of addresses: where A and C lie is known once their elements are read."""

    @T.prim_func
    def main(
        table: T.Tensor((4,), "int64"),
        B: T.Tensor((96, 16), "float16"),
        out: T.Tensor((1,), "int64"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((32, 32), "float16")
            b = T.alloc_shared((32, 16), "float16")
            c = T.alloc_fragment((32, 16), "float32")
            row = T.alloc_fragment((32,), "float16")
            top = T.alloc_fragment((1,), "float16")
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                A = T.make_tensor_from_addr(table[k], (32, 32), "float16")
                T.copy(A, a)
                T.copy(B[k * 32, 0], b)
                T.gemm(a, b, c)
            C = T.make_tensor_from_addr(out[0], (32, 16), "float32")
            T.copy(c, C)
            last = T.make_tensor_from_addr(table[3], (2, 32), "float16")
            T.copy(last[0, :], row)
            T.reduce_max(row, top, dim=0)
            for i in T.Parallel(32):
                last[1, i] = row[i] + top[0]

    kernel = tilelang.compile(main, target=target)
    torch.manual_seed(0)
    parts = [torch.randint(-4, 5, (32, 32)).half() for _ in range(3)]
    b, c = torch.randint(-4, 5, (96, 16)).half(), torch.zeros(32, 16)
    rows = torch.arange(64).half().reshape(2, 32)
    addresses = torch.tensor([p.data_ptr() for p in (*parts, rows)])
    kernel(addresses, b, torch.tensor([c.data_ptr()]))
    torch.testing.assert_close(c, torch.cat(parts, 1).float() @ b.float())
    torch.testing.assert_close(rows[1], torch.arange(32).half() + 31)


def test_an_address_is_an_integer():
    with pytest.raises(
        TypeMismatch, match=r"found Pointer\b.*\n(.*\n)*.*hint: .*T.view\(A, shape\)"
    ):

        @T.prim_func
        def main(A: T.Tensor((64,), "float32")):
            with T.Kernel(1):
                T.make_tensor(T.address_of(A[0]), (8, 8), "float32")
