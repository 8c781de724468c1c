"""Addresses, functions of CUDA by name, and the decoders of TileLang's quantize package."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tilecore import interpreter, runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.errors import TypeMismatch, UnknownPrimitive
from tilecore.ir.dtype import DType


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


def run_both(func, *arguments, store):
    mine, oracle = ([a.copy() for a in arguments] for _ in range(2))
    runtime.load(compile(func, store=store))(*mine)
    interpreter.run(func, *oracle, seed=1)
    for a, b in zip(mine, oracle, strict=True):
        np.testing.assert_array_equal(a, b)
    return mine


def decoder(name, size, count, source, target, *options):
    """Return a program that decodes each row of a tensor."""

    @T.prim_func
    def main(A: T.Tensor((9, size), source), B: T.Tensor((9, count), target)):
        with T.Kernel(9) as row:
            packed = T.alloc_local((size,), source)
            plain = T.alloc_local((count,), target)
            T.import_source("// the text of the function")
            for i in T.vectorized(size):
                packed[i] = A[row, i]
            T.call_extern(
                name, T.access_ptr(packed, "r"), T.access_ptr(plain, "w"), *options, dtype=target
            )
            for i in T.vectorized(count):
                B[row, i] = plain[i]

    return main


def words(raw, dtype):
    return raw.reshape(9, -1).view(dtype).astype(np.uint32)


def pairs(word, bits):
    """What the CUDA text does for float16: pair i is ``word >> bits * i`` in both halves."""
    mask = np.uint32((1 << bits) - 1)
    found = [(word >> np.uint32(bits * i + 16 * half)) & mask for i in range(4) for half in (0, 1)]
    return np.stack(found, -1)


def quads(word, bits, rows):
    """For int8: bytes of ``word >> bits * i``."""
    mask = np.uint32((1 << bits) - 1)
    found = [(word >> np.uint32(bits * i + 8 * k)) & mask for i in range(rows) for k in range(4)]
    return np.stack(found, -1)


def reference(bits, to, raw):
    if to == "f16":
        if bits == 4:
            return pairs(words(raw, np.uint32)[:, 0], 4)
        if bits == 2:
            half = words(raw, np.uint16)[:, 0]
            return pairs(half & 0xFF | (half & 0xFF00) << np.uint32(8), 2)
        byte = words(raw, np.uint8)[:, 0]
        return pairs(byte & 0xF | (byte & 0xF0) << np.uint32(12), 1)
    if bits == 4:
        low, high = words(raw, np.uint32).T
        return np.concatenate([quads(low, 4, 2), quads(high, 4, 2)], 1)
    if bits == 2:
        return quads(words(raw, np.uint32)[:, 0], 2, 4)
    half = words(raw, np.uint16)[:, 0]
    return quads(half & 0x0F0F | (half & 0xF0F0) << np.uint32(12), 1, 4)


@pytest.mark.few(1)
@pytest.mark.covering("bits sign to")
@pytest.mark.parametrize("to", ["f16", "i8s"])
@pytest.mark.parametrize("sign", ["u", "s"])
@pytest.mark.parametrize("bits", [4, 2, 1])
@pytest.mark.parametrize("source", ["int8", "uint8"])
def test_integer_decoders(store, bits, sign, to, source):
    count = 8 if to == "f16" else 16
    size, target = bits * count // 8, {"f16": "float16", "i8s": "int8"}[to]
    raw = np.random.default_rng(bits).integers(0, 256, (9, size), np.uint8)
    main = decoder(f"decode_i{bits}{sign}_to_{to}", size, count, source, target)
    _, found = run_both(main, raw.view(source), np.zeros((9, count), target), store=store)
    want = reference(bits, to, raw).astype(np.int32)
    if sign == "s":
        want = (
            2 * want - 1
            if bits == 1
            else want - (7 if (bits, to) == (4, "i8s") else 2 ** (bits - 1))
        )
    np.testing.assert_array_equal(found.astype(np.int32), want)


def test_twiddled_decoder(store):
    """The text shifts and masks so that each number is a bfloat16 of 2^-126 its value."""
    raw = np.random.default_rng(7).integers(0, 256, (9, 8), np.uint8)
    bf16 = ml_dtypes.bfloat16
    main = decoder("decode_fp4_to_bf16_twiddling", 8, 16, "uint8", "bfloat16", 2)
    _, found = run_both(main, raw, np.zeros((9, 16), bf16), store=store)
    word = raw.view(">u4").astype(np.uint32)  # prmt 0x0123
    mask = np.uint32(0x81C081C0)
    last = word << 1 & 0x80008000 | word >> 3 & 0x01800180 | word >> 7 & 0x00400040
    parts = [word & mask, word << np.uint32(3) & mask, word << np.uint32(6) & mask, last]
    wide = [(p << shift & 0xFFFF0000).view(np.float32) for shift in (0, 16)
            for p in (q.astype(np.uint32) for q in parts)]  # fmt: skip
    want = np.stack([w.astype(np.float64) * 2.0**126 for w in wide], -1).reshape(9, 16)
    np.testing.assert_array_equal(found.astype(np.float64), want)


def test_functions_of_cuda(store):
    @T.prim_func
    def main(A: T.Tensor((7, 20), "float32"), B: T.Tensor((7, 20), "float32"),
             C: T.Tensor((7, 20), "int32"), D: T.Tensor((7, 20), "int32")):  # fmt: skip
        with T.Kernel(7) as row:
            for i in T.Parallel(20):
                x = T.__ldg(T.address_of(A[row, i]))
                y = T.call_extern("float32", "__expf", x) + T.__log(
                    T.call_extern("float32", "fabsf", x)
                )
                B[row, i] = T.call_pure_extern(
                    "float32", "fmaf", y, 2.0, T.call_intrin("float32", "tl.fast_exp2f", x)
                )
                D[row, i] = T.__ffs(C[row, i])

    rng = np.random.default_rng(8)
    a = rng.standard_normal((7, 20)).astype(np.float32)
    c = (rng.integers(-(2**31), 2**31, (7, 20)) << rng.integers(0, 32, (7, 20))).astype(np.int32)
    b, d = np.zeros_like(a), np.zeros_like(c)
    runtime.load(compile(main, store=store))(a, b, c, d)
    oracle = [x.copy() for x in (a, b, c, d)]
    interpreter.run(main, *oracle)
    wide = a.astype(np.float64)
    want = (np.exp(wide) + np.log(np.abs(wide))) * 2 + np.exp2(wide)
    np.testing.assert_allclose(b, want, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(oracle[1], want, rtol=2e-5, atol=2e-5)
    lowest = [(int(x) & -int(x)).bit_length() for x in c.ravel()]
    assert d.ravel().tolist() == lowest == oracle[3].ravel().tolist()


def test_conversions_of_cuda(store):
    """Rounded to the nearest and towards zero; infinities, subnormals and NaN as CUDA has them."""

    @T.prim_func
    def main(A: T.Tensor((5, 200), "float32"), H: T.Tensor((2, 5, 200), "float16"),
             B: T.Tensor((5, 200), "bfloat16"), C: T.Tensor((5, 200), "uint32")):  # fmt: skip
        with T.Kernel(5) as row:
            for i in T.Parallel(200):
                x = A[row, i]
                H[0, row, i] = T.call_extern("float16", "__float2half_rn", x)
                H[1, row, i] = T.call_extern("float16", "__float2half_rz", x)
                B[row, i] = T.call_extern("bfloat16", "__float2bfloat16_rz", x)
                C[row, i] = T.call_extern("uint32", "__float_as_uint", x)

    rng = np.random.default_rng(8)
    a = (rng.standard_normal((5, 200)) * 10.0 ** rng.integers(-9, 6, (5, 200))).astype(np.float32)
    a[0, :6] = np.inf, -np.inf, np.nan, 65519.0, -70000.0, 0.0
    outputs = [np.zeros((2, 5, 200), np.float16), np.zeros((5, 200), DType("bfloat16").numpy),
               np.zeros((5, 200), np.uint32)]  # fmt: skip
    arrays = [a, *(x.copy() for x in outputs)]
    runtime.load(compile(main, store=store))(*arrays)
    oracle = [a, *(x.copy() for x in outputs)]
    interpreter.run(main, *oracle)
    with np.errstate(over="ignore"):
        near = a.astype(np.float16)
    is_beyond = np.abs(near.astype(np.float32)) > np.abs(a)
    towards_zero = np.where(is_beyond, np.nextafter(near, np.float16(0)), near)
    cut = (a.view(np.uint32) & 0xFFFF0000).view(np.float32)
    for _, halves, brains, bits in (arrays, oracle):
        np.testing.assert_array_equal(halves[0], near)
        np.testing.assert_array_equal(halves[1], towards_zero)
        np.testing.assert_array_equal(brains.astype(np.float32), cut)
        np.testing.assert_array_equal(bits, a.view(np.uint32))


def test_pointers_into_the_middle_of_a_tile(store):
    @T.prim_func
    def main(A: T.Tensor((4, 4), "int8"), B: T.Tensor((4, 8), "float16")):
        with T.Kernel(1):
            tile = T.alloc_shared((4, 4), "int8")
            wide = T.alloc_shared((4, 8), "float16")
            T.copy(A, tile)
            for r in T.serial(4):
                T.call_extern("handle", "decode_i4u_to_f16", T.access_ptr(tile[r, 0], "r", 4),
                              T.access_ptr(wide[r, 0:8], "w"), 8)  # fmt: skip
            T.copy(wide, B)

    raw = np.random.default_rng(9).integers(0, 256, (4, 4), np.uint8)
    _, found = run_both(main, raw.view(np.int8), np.zeros((4, 8), np.float16), store=store)
    np.testing.assert_array_equal(found, pairs(raw.view(np.uint32)[:, 0], 4))


def test_thread_indices_by_name_and_values_bound_by_hand(store):
    @T.prim_func
    def main(A: T.Tensor((6, 4), "int32")):
        with T.Kernel(1, threads=(4, 6)):
            x = T.thread_binding(0, 4, thread="threadIdx.x")
            y = T.thread_binding(0, 6, "threadIdx.y")
            place = T.int32()
            T.let(place, y * 10 + x)
            A[y, x] = place

    (found,) = run_both(main, np.zeros((6, 4), np.int32), store=store)
    np.testing.assert_array_equal(found, np.arange(6)[:, None] * 10 + np.arange(4))


def test_views_by_the_data_of_a_tensor(store):
    @T.prim_func
    def main(A: T.Tensor((6, 4), "float32"), B: T.Tensor((24,), "float32")):
        flat = T.Tensor((24,), "float32", A.data)
        with T.Kernel(1):
            scratch = T.alloc_fragment((1,), "int32", "local")
            scratch[0] = 3
            for i in T.Parallel(24):
                B[i] = flat[i] * scratch[0]

    a = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
    _, found = run_both(main, a, np.zeros(24, np.float32), store=store)
    np.testing.assert_array_equal(found, a.ravel() * np.float32(3))


def in_kernel(body):
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            A[0] = body(A)

    return main


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (
            lambda A: T.call_extern("int32", "my_function", A[0]),
            UnknownPrimitive,
            "my_function.*C code is not compiled",
        ),
        (
            lambda A: T.call_extern("float32", "__expf", A[0], A[1]),
            TypeMismatch,
            "1 arguments of __expf, found 2",
        ),
        (
            lambda A: T.call_extern("handle", "decode_i4u_to_f16", A[0], A[1]),
            TypeMismatch,
            "two addresses",
        ),
        (lambda A: T.access_ptr(3), TypeMismatch, "expected a tensor, tile or element"),
        (
            lambda A: T.thread_binding(0, 64, thread="threadIdx.x"),
            TypeMismatch,
            "the extent 32 of threadIdx.x, found 64",
        ),
        (
            lambda A: T.thread_binding(0, 4, thread="threadIdx.y"),
            TypeMismatch,
            "an axis of the launch .threadIdx.x., found 'threadIdx.y'",
        ),
    ],
)
def test_bad_use_is_named(body, error, message):
    with pytest.raises(error, match=message):
        in_kernel(body)


def test_fences_of_memory_are_told_what_orders_instead():
    with pytest.raises(UnknownPrimitive, match=r'__threadfence(.*\n)*.*memory_order="release"'):

        @T.prim_func
        def main(flag: T.Tensor((1,), "int32")):
            with T.Kernel(1):
                T.call_extern("handle", "__threadfence")
                T.atomic_store(flag[0], 1)


# --- functions that say how they round ------------------------------------------------------------


def directed(exact, mode, dtype="float32"):
    """Return exact float64 values rounded to a type in one direction."""
    near = exact.astype(dtype)
    if mode == "rn":
        return near
    goal = {"rz": 0.0, "ru": np.inf, "rd": -np.inf}[mode]
    beyond = np.where(mode == "rz", np.abs(near) > np.abs(exact), near < exact)
    beyond = near > exact if mode == "rd" else beyond
    return np.where(beyond, np.nextafter(near, np.asarray(goal, dtype)), near)


@pytest.mark.parametrize("mode", ["rn", "rz", "ru", "rd"])
def test_functions_that_say_how_they_round(run_both, mode):
    n = 77

    @T.prim_func
    def main(
        A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32"), Y: T.Tensor((6, n), "float32")
    ):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(n):
                a, b = A[i], B[i]
                Y[0, i] = T.call_extern("float32", f"__fadd_{mode}", a, b)
                Y[1, i] = T.call_extern("float32", f"__fsub_{mode}", a, b)
                Y[2, i] = T.call_extern("float32", f"__fmul_{mode}", a, b)
                Y[3, i] = T.call_extern("float32", f"__fdiv_{mode}", a, b)
                Y[4, i] = T.call_extern("float32", f"__fsqrt_{mode}", b)
                Y[5, i] = T.call_extern("float32", f"__frcp_{mode}", b)

    rng = np.random.default_rng(5)
    a = (rng.standard_normal(n) * 3).astype(np.float32)
    b = (rng.random(n) + 0.25).astype(np.float32)
    x, y = a.astype(np.float64), b.astype(np.float64)
    exact = [x + y, x - y, x * y, x / y, np.sqrt(y), 1 / y]
    wanted = np.stack([directed(e, mode) for e in exact])
    run_both(main, [a, b], [np.zeros((6, n), np.float32)], [wanted], rtol=0, atol=0)
