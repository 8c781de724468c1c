"""Elements of 4 bits: packed tensors, conversions, tiles, views and matrix products."""

import ml_dtypes
import numpy as np
import pytest
import torch

import tilecore
import tilecore.language as T
from tilecore import interpreter, runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.errors import ArgumentError, TileError

NAMES = ["int4", "uint4", "float4_e2m1fn"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


def pack(values, name):
    dtype = getattr(ml_dtypes, name)
    bits = values.astype(dtype).view(np.uint8) & 15
    return bits[..., 0::2] | bits[..., 1::2] << 4


def unpack(memory, name):
    """Return the numbers in packed bytes as float32, by a table of their codes."""
    table = {
        "int4": [*range(8), *range(-8, 0)],
        "uint4": list(range(16)),
        "float4_e2m1fn": [s * x for s in (1, -1) for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)],
    }[name]
    memory = np.asarray(memory).view(np.uint8)
    codes = np.stack([memory & 15, memory >> 4], -1).reshape(*memory.shape[:-1], -1)
    return np.array(table, np.float32)[codes]


def run_both(func, *arguments, store):
    """Run compiled and interpreted on copies, check that they agree, return the arguments."""
    mine, oracle = ([a.copy() for a in arguments] for _ in range(2))
    runtime.load(compile(func, store=store))(*mine)
    interpreter.run(func, *oracle, seed=1)
    for a, b in zip(mine, oracle, strict=True):
        np.testing.assert_array_equal(a, b)
    return mine


def random_bytes(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [2, 30, 32, 200])
def test_numbers_of_every_code(store, name, n):
    @T.prim_func
    def main(A: T.Tensor((3, n), name), B: T.Tensor((3, n), "float32")):
        with T.Kernel(T.ceildiv(n, 64), 3) as (b, r):
            tile = T.alloc_shared((64,), name)
            wide = T.alloc_fragment((64,), "float32")
            T.copy(A[r, b * 64], tile)
            T.copy(tile, wide)
            T.copy(wide, B[r, b * 64])

    a = random_bytes(3, n // 2)
    a.reshape(-1)[:1] = 0xF8
    _, b = run_both(main, a, np.zeros((3, n), np.float32), store=store)
    np.testing.assert_array_equal(b, unpack(a, name))


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [16, 64, 7])
def test_conversion_and_store_of_ragged_blocks(store, name, block):
    """Blocks of odd length share bytes: no block may lose its neighbour's half."""
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), name), C: T.Tensor((n,), name)):
        with T.Kernel(T.ceildiv(n, block)) as b:
            tile = T.alloc_fragment((block,), "float32")
            T.copy(A[b * block], tile)
            T.copy(tile, B[b * block])
            for i in T.Parallel(block):
                C[n - 1 - (b * block + i)] = T.cast(tile[i], name)

    size = 1502
    top = {"int4": (-8, 7), "uint4": (0, 15), "float4_e2m1fn": (-9, 9)}[name]
    a = np.random.default_rng(2).uniform(*top, size).astype(np.float32)
    if name == "float4_e2m1fn":
        a[:8] = [np.nan, np.inf, -np.inf, 0.25, 0.75, 2.5, 3.5, -5.0]
    out = random_bytes(size // 2), random_bytes(size // 2, seed=1)
    _, b, c = run_both(main, a, *out, store=store)
    want = unpack(pack(np.trunc(a) if "int" in name else np.nan_to_num(a, nan=6.0), name), name)
    np.testing.assert_array_equal(unpack(b, name), want)
    np.testing.assert_array_equal(unpack(c, name), want[::-1])


def test_integers_wrap_and_compute_as_int32(store):
    @T.prim_func
    def main(
        A: T.Tensor((40,), "int32"), B: T.Tensor((40,), "int4"), C: T.Tensor((40,), "int32"),
        D: T.Tensor((40,), "uint4"),
    ):  # fmt: skip
        with T.Kernel(1):
            for i in T.Parallel(40):
                B[i] = A[i]
                D[i] = T.reinterpret(T.cast(A[i], "int4"), "uint4")
            for i in T.Parallel(40):
                C[i] = B[i] * B[i] - 3 * B[39 - i] + T.max(B[i], -2)

    a = np.arange(-20, 20, dtype=np.int32) * 7
    _, b, c, d = run_both(
        main, a, random_bytes(20), np.zeros(40, np.int32), random_bytes(20), store=store
    )
    wrapped = ((a + 8) % 16 - 8).astype(np.int32)
    np.testing.assert_array_equal(unpack(b, "int4"), wrapped)
    np.testing.assert_array_equal(unpack(d, "uint4"), wrapped % 16)
    np.testing.assert_array_equal(c, wrapped**2 - 3 * wrapped[::-1] + np.maximum(wrapped, -2))


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transpose", [False, True])
def test_gemm(store, name, transpose):
    """Ragged edges, operands in shared tiles and fragments, exact sums."""
    accum = "float32" if name == "float4_e2m1fn" else "int32"
    m, n, k = 50, 70, 90

    @T.prim_func
    def main(
        A: T.Tensor((m, k), name),
        B: T.Tensor((n, k) if transpose else (k, n), name),
        C: T.Tensor((m, n), accum),
    ):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32)) as (bx, by):
            a = T.alloc_shared((32, 32), name)
            b = T.alloc_shared((32, 32), name)
            f = T.alloc_fragment((32, 32), name)
            c = T.alloc_fragment((32, 32), accum)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(A[by * 32, ko * 32], a)
                T.copy(a, f)
                if transpose:
                    T.copy(B[bx * 32, ko * 32], b)
                else:
                    T.copy(B[ko * 32, bx * 32], b)
                T.gemm(f, b, c, transpose_B=transpose)
            T.copy(c, C[by * 32, bx * 32])

    a = random_bytes(m, k // 2, seed=3)
    b = random_bytes(n, k // 2, seed=4) if transpose else random_bytes(k, n // 2, seed=4)
    c = run_both(main, a, b, np.zeros((m, n), accum), store=store)[2]
    right = unpack(b, name).T if transpose else unpack(b, name)
    np.testing.assert_array_equal(c, unpack(a, name) @ right)


def test_operands_read_in_place(store):
    """The broadcast operand may be read from the packed tensor, the other packed per grid."""

    @T.prim_func
    def main(A: T.Tensor((24, 64), "int4"), B: T.Tensor((40, 64), "int4"),
             C: T.Tensor((24, 40), "int32")):  # fmt: skip
        with T.Kernel(3) as b:
            a = T.alloc_shared((8, 64), "int4")
            w = T.alloc_shared((40, 64), "int4")
            c = T.alloc_fragment((8, 40), "int32")
            T.copy(A[b * 8, 0], a)
            T.copy(B, w)
            T.gemm(a, w, c, transpose_B=True, clear_accum=True)
            T.copy(c, C[b * 8, 0])

    a, b = random_bytes(24, 32), random_bytes(40, 32, seed=1)
    for options in ({}, {"pack_a": "none"}, {"pack_b": "block"}):
        c = np.zeros((24, 40), np.int32)
        runtime.load(compile(main, store=store, config=options))(a, b, c)
        np.testing.assert_array_equal(c, unpack(a, "int4") @ unpack(b, "int4").T)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_view_of_a_packed_tile(store, name):
    @T.prim_func
    def main(A: T.Tensor((6, 34), "float32"), B: T.Tensor((6, 17), "uint8"),
             C: T.Tensor((6, 34), name)):  # fmt: skip
        with T.Kernel(1):
            tile = T.alloc_shared((6, 34), name)
            raw = T.view(tile, (6, 17), "uint8")
            for i, j in T.Parallel(6, 34):
                tile[i, j] = T.cast(A[i, j], name)
            T.copy(raw, B)
            for i, j in T.Parallel(6, 17):
                raw[i, j] = raw[i, j] ^ 0x11
            T.copy(tile, C)

    a = np.random.default_rng(5).integers(0, 7, (6, 34)).astype(np.float32)
    _, b, c = run_both(main, a, random_bytes(6, 17), random_bytes(6, 17, seed=1), store=store)
    np.testing.assert_array_equal(b, pack(a, name))
    np.testing.assert_array_equal(c, b ^ 0x11)


def test_reductions_and_scatter(store):
    @T.prim_func
    def main(A: T.Tensor((8, 36), "int4"), P: T.Tensor((36,), "int32"),
             S: T.Tensor((8,), "int32"), B: T.Tensor((8, 36), "int4")):  # fmt: skip
        with T.Kernel(8) as r:
            tile = T.alloc_fragment((36,), "int4")
            total = T.alloc_fragment((1,), "int32")
            T.copy(A[r, 0], tile)
            T.reduce_sum(tile, total, dim=0)
            S[r] = total[0]
            for i in T.serial(36):
                B[r, P[i]] = tile[i]

    order = np.random.default_rng(6).permutation(36).astype(np.int32)
    a = random_bytes(8, 18)
    _, _, s, b = run_both(
        main, a, order, np.zeros(8, np.int32), random_bytes(8, 18, seed=1), store=store
    )
    np.testing.assert_array_equal(s, unpack(a, "int4").sum(1))
    np.testing.assert_array_equal(unpack(b, "int4")[:, order], unpack(a, "int4"))


def test_strides_and_dimensions_count_elements(store):
    m, n, s = T.dynamic("m"), T.dynamic("n"), T.dynamic("s")

    @T.prim_func
    def main(A: T.StridedTensor((m, n), (s, 1), "float4_e2m1fn"),
             B: T.Tensor((m, n), "float32"), N: T.Tensor((3,), "int64")):  # fmt: skip
        with T.Kernel(m) as i:
            N[0], N[1], N[2] = m, n, s
            for j in T.Parallel(n):
                B[i, j] = A[i, j]

    a = random_bytes(10, 9)[::2]
    b, sizes = np.zeros((5, 18), np.float32), np.zeros(3, np.int64)
    runtime.load(compile(main, store=store))(a, b, sizes)
    assert sizes.tolist() == [5, 18, 36]
    np.testing.assert_array_equal(b, unpack(a, "float4_e2m1fn"))
    b[:] = 0
    interpreter.run(main, a, b, sizes)
    np.testing.assert_array_equal(b, unpack(a, "float4_e2m1fn"))


@tilecore.jit
def halves(A, name):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), name)
    B = T.empty((M, N), name)
    with T.Kernel(M) as i:
        for j in T.Parallel(N):
            B[i, j] = T.cast(T.cast(A[i, j], "float32") * 0.5, name)
    return B


@pytest.mark.parametrize(
    ("name", "carrier"),
    [("int4", torch.int8), ("uint4", torch.uint8), ("float4_e2m1fn", torch.float4_e2m1fn_x2)],
)
def test_torch_tensors_that_carry_pairs(name, carrier):
    a = torch.from_numpy(random_bytes(4, 10))
    for kind in {torch.int8, torch.uint8, carrier}:
        b = halves(a.view(kind), name)
        assert b.dtype == carrier
        assert tuple(b.shape) == (4, 10)
        half = unpack(a.numpy(), name) * 0.5
        want = unpack(pack(np.trunc(half) if "int" in name else half, name), name)
        np.testing.assert_array_equal(unpack(b.view(torch.uint8).numpy(), name), want)


def test_wrong_tensor_is_refused(store):
    @T.prim_func
    def main(A: T.Tensor((4, 8), "int4"), B: T.Tensor((4, 8), "int32")):
        with T.Kernel(1):
            T.copy(A, B)

    kernel, out = runtime.load(compile(main, store=store)), np.zeros((4, 8), np.int32)
    with pytest.raises(ArgumentError, match=r"int4, two per byte of int8 or uint8.*found int32"):
        kernel(np.zeros((4, 8), np.int32), out)
    with pytest.raises(ArgumentError, match=r"shape \(4, 8\), found shape \(4, 16\)"):
        kernel(np.zeros((4, 8), np.int8), out)
    with pytest.raises(ArgumentError, match="two per byte"):
        interpreter.run(main, np.zeros((4, 8), np.int32), out)


def build(shape, strides=None, body=None, dtype="int4"):
    @T.prim_func
    def main(A: T.StridedTensor(shape, strides, dtype) if strides else T.Tensor(shape, dtype)):
        with T.Kernel(1):
            body(A)

    return main


@T.macro
def add_one(A):
    T.atomic_add(A[0], 1)


@T.macro
def multiply(A):
    a = T.alloc_shared((4, 4), "int4")
    T.fill(a, 1)
    c = T.alloc_fragment((4, 4), "int4")
    T.gemm(a, a, c, clear_accum=True)


@T.macro
def nothing(A):
    T.evaluate(0)


@pytest.mark.parametrize(
    ("shape", "strides", "body", "message"),
    [
        ((3, 5), None, nothing, "last axis of `A` .int4.: expected an even number"),
        ((3, 6), (9, 1), nothing, "stride of axis 0 of `A` .int4.: expected an even number"),
        ((3, 6), (12, 2), nothing, "stride of axis 1 of `A` .int4.: expected 1"),
        ((4,), None, add_one, "elements of 8 bits or more in an atomic add"),
        ((4,), None, multiply, "an accumulator `c` of 8 bits or more"),
    ],
)
def test_bad_use_is_named(shape, strides, body, message):
    with pytest.raises(TileError, match=message):
        compile(build(shape, strides, body))


def test_names_of_what_carries_pairs():
    assert T.resolve_torch_storage_dtype(T.int4) == T.int8
    assert T.resolve_torch_storage_dtype(T.float16) == T.float16
    assert T.resolve_torch_storage_dtype(T.float4_e2m1fn) == T.float4_e2m1fnx2
    assert T.float4_e2m1fnx2.as_torch() is torch.float4_e2m1fn_x2
    assert T.float4_e2m1fn.as_torch() is torch.float4_e2m1fn_x2
    assert T.int4.as_torch() is torch.int8
    assert [T.int4.bytes, T.float8_e4m3fn.bytes, T.bfloat16.bytes, T.float32.bytes] == [1, 1, 2, 4]


@pytest.mark.parametrize("name", NAMES)
def test_limits(name):
    low, high = {"int4": (-8, 7), "uint4": (0, 15), "float4_e2m1fn": (-6, 6)}[name]
    assert (float(T.min_value(name)), float(T.max_value(name))) == (low, high)


@pytest.mark.parametrize("op", ["max", "min"])
def test_folds_of_four_bits(store, op):
    fold = T.reduce_max if op == "max" else T.reduce_min

    @T.prim_func
    def main(A: T.Tensor((6, 38), "int4"), B: T.Tensor((6,), "int4")):
        with T.Kernel(1):
            tile = T.alloc_fragment((6, 38), "int4")
            best = T.alloc_fragment((6,), "int4")
            T.copy(A, tile)
            fold(tile, best, dim=1)
            T.copy(best, B)

    a = random_bytes(6, 19, seed=8) & 0x77 if op == "max" else random_bytes(6, 19, seed=8)
    b = run_both(main, a, random_bytes(3), store=store)[1]
    want = getattr(unpack(a, "int4"), op)(1)
    np.testing.assert_array_equal(unpack(b, "int4"), want)


@pytest.mark.parametrize(("source", "target"), [("int4", "uint4"), ("uint4", "int4")])
def test_a_copy_between_signed_and_unsigned_keeps_the_bits(store, source, target):
    """The oracle ended in a TypeError of NumPy."""

    @T.prim_func
    def main(A: T.Tensor((64,), source), B: T.Tensor((64,), target)):
        with T.Kernel(1):
            a = T.alloc_shared((64,), source)
            b = T.alloc_shared((64,), target)
            T.copy(A, a)
            T.copy(a, b)
            T.copy(b, B)

    a, b = run_both(main, random_bytes(32), random_bytes(32, seed=1), store=store)
    np.testing.assert_array_equal(a, b)
