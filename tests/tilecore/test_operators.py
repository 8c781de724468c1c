"""Transposes, im2col, padding, persistent loops, math functions, printing and assertions."""

import math
import pickle

import numpy as np
import pytest

import tilecore.language as T
from tilecore import interpreter, runtime
from tilecore.compiler import compile
from tilecore.errors import AssertionFailed, ScopeError, ShapeMismatch, TypeMismatch
from tilecore.ir.dtype import DType

# --- movement ---------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_transpose(run_both, dtype):
    M, N = 37, 50

    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), B: T.Tensor((N, M), dtype), C: T.Tensor((16, 8), dtype)):
        with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16)) as (bx, by):
            tile = T.alloc_shared((16, 16), dtype)
            turned = T.alloc_shared((16, 16), dtype)
            T.copy(A[by * 16, bx * 16], tile)
            T.transpose(tile, turned)
            T.copy(turned, B[bx * 16, by * 16])
            if bx + by == 0:
                T.transpose(tile[0:8, :], C)

    a = np.random.default_rng(0).integers(-9, 9, (M, N)).astype(DType(dtype).numpy)
    outputs = [np.zeros((N, M), a.dtype), np.zeros((16, 8), a.dtype)]
    run_both(main, [a], outputs, [a.T.astype(float), a[:8, :16].T.astype(float)])


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (2, 3, 1), (2, 2, 3)])
def test_transpose_of_the_last_two_axes(run_both, shape):
    turned = (*shape[:-2], shape[-1], shape[-2])

    @T.prim_func
    def main(
        A: T.Tensor(shape, "float32"),
        B: T.Tensor(turned, "float32"),
        C: T.Tensor(turned, "float32"),
    ):
        with T.Kernel(1):
            T.transpose(A, B)
            T.fill(C, -1)
            last = len(shape) - 1
            T.transpose(A, C[..., 1 : shape[last - 1] + 1])

    a = np.random.default_rng(0).standard_normal(shape, np.float32)
    shifted = np.full(turned, -1, np.float32)
    shifted[..., 1:] = np.swapaxes(a, -1, -2)[..., :-1]
    zeros = np.zeros(turned, np.float32)
    run_both(main, [a], [zeros, zeros], [np.swapaxes(a, -1, -2), shifted])


def test_transpose_of_a_slice_drops_axes_of_size_1(run_both):
    @T.prim_func
    def main(A: T.Tensor((3, 6, 2, 5), "float32"), B: T.Tensor((5, 6), "float32")):
        with T.Kernel(1):
            T.transpose(A[1, 0:6, 1, 0:5], B)

    a = np.random.default_rng(0).standard_normal((3, 6, 2, 5)).astype(np.float32)
    run_both(main, [a], [np.zeros((5, 6), np.float32)], [a[1, :, 1].T])


def test_transpose_of_what_lies_outside_of_a_tensor(run_both):
    """As T.copy: zeros come from there, and nothing goes there."""

    @T.prim_func
    def main(
        A: T.Tensor((2, 3, 1), "float32"),
        B: T.Tensor((2, 1, 3), "float32"),
        C: T.Tensor((2, 1, 3), "float32"),
    ):
        with T.Kernel(1):
            T.fill(B, -1)
            T.transpose(A, B[0:2, 1:2, 0:3])
            T.transpose(A[0:2, 0:3, 1:2], C)

    ones = np.ones((2, 1, 3), np.float32)
    a = np.random.default_rng(0).standard_normal((2, 3, 1), np.float32)
    run_both(main, [a], [np.copy(ones), np.copy(ones)], [-ones, 0 * ones])


def convolution(N, H, W, C, F, K, S, D, P, dtype, primitive, blocks=(32, 16, 24)):
    bM, bN, bK = blocks
    OH, OW = ((n + 2 * P - D * (K - 1) - 1) // S + 1 for n in (H, W))

    @T.prim_func
    def main(
        image: T.Tensor((N, H, W, C), dtype),
        weights: T.Tensor((K * K * C, F), dtype),
        out: T.Tensor((N * OH * OW, F), "float32"),
    ):
        with T.Kernel(T.ceildiv(F, bN), T.ceildiv(N * OH * OW, bM)) as (bx, by):
            a = T.alloc_shared((bM, bK), dtype)
            b = T.alloc_shared((bK, bN), dtype)
            c = T.alloc_fragment((bM, bN), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K * K * C, bK), num_stages=3):
                primitive(image, a, by, k, K, S, D, P)
                T.copy(weights[k * bK, bx * bN], b)
                T.gemm(a, b, c)
            T.copy(c, out[by * bM, bx * bN])

    return main, OH, OW


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((2, 9, 7, 8, 16), (3, 1, 1, 1)),
        ((1, 12, 11, 5, 9), (3, 2, 1, 0)),
        ((2, 9, 9, 4, 8), (2, 1, 3, 2)),
        ((1, 10, 9, 48, 20), (3, 1, 1, 1)),  # whole tiles make up the channels
    ],
)
def test_convolution_by_im2col(run_both, shape, window):
    torch = pytest.importorskip("torch")
    (N, H, W, C, F), (K, S, D, P) = shape, window
    primitive = T.im2col if S == 1 else T.c2d_im2col
    func, OH, OW = convolution(N, H, W, C, F, K, S, D, P, "float32", primitive)
    rng = np.random.default_rng(1)
    image = rng.standard_normal((N, H, W, C)).astype(np.float32)
    weights = rng.standard_normal((K, K, C, F)).astype(np.float32)
    expected = torch.nn.functional.conv2d(
        torch.from_numpy(image).double().permute(0, 3, 1, 2),
        torch.from_numpy(weights).double().permute(3, 2, 0, 1),
        stride=S, padding=P, dilation=D,
    )  # fmt: skip
    want = expected.permute(0, 2, 3, 1).reshape(N * OH * OW, F).numpy()
    inputs = [image, weights.reshape(K * K * C, F)]
    run_both(func, inputs, [np.zeros(want.shape, np.float32)], [want], atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_values_outside_a_tensor_may_be_chosen(run_both, dtype):
    M, N = 30, 40

    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16)) as (bx, by):
            T.annotate_safe_value({A: 7})
            tile = T.alloc_shared((16, 16), dtype)
            shifted = T.alloc_shared((16, 16), dtype)
            for i, j in T.Parallel(16, 16):
                tile[i, j] = A[by * 16 + i - 10, bx * 16 + j]
            T.copy(A[by * 16 + 5, bx * 16 + 3], shifted)
            T.copy(tile, B[by * 16, bx * 16])
            T.copy(shifted, C[by * 16, bx * 16])

    a = np.random.default_rng(2).integers(-9, 9, (M, N)).astype(DType(dtype).numpy)
    b, c = np.full((M, N), 7.0), np.full((M, N), 7.0)
    b[10:], c[:-5, :-3] = a[:-10], a[5:, 3:]
    run_both(main, [a], [np.zeros_like(a), np.zeros_like(a)], [b, c])


def test_padded_operands_of_a_gemm(run_both):
    """The edge of an operand is not 0: nothing of the gemm may be skipped."""

    @T.prim_func
    def main(
        A: T.Tensor((20, 12), "float32"),
        B: T.Tensor((12, 20), "float32"),
        C: T.Tensor((20, 20), "float32"),
    ):
        with T.Kernel(1):
            T.annotate_safe_value({A: 1.0, B: 2.0})
            a = T.alloc_shared((20, 16), "float32")
            b = T.alloc_shared((16, 20), "float32")
            c = T.alloc_fragment((20, 20), "float32")
            T.copy(A[0:20, 0:16], a)
            T.copy(B[0:16, 0:20], b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)

    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((20, 12), (12, 20)))
    expected = a.astype(float) @ b.astype(float) + 4 * 2.0
    run_both(main, [a, b], [np.zeros((20, 20), np.float32)], [expected])


@pytest.mark.few(1)
@pytest.mark.parametrize("blocks", [1, 4, 7, 30])
def test_persistent_blocks_take_every_tile_once(run_both, blocks):
    M, N = 5, 4

    @T.prim_func
    def main(
        A: T.Tensor((M * 8, N * 8), "float32"),
        B: T.Tensor((M * 8, N * 8), "float32"),
        seen: T.Tensor((M, N), "int32"),
    ):
        with T.Kernel(blocks, threads=64) as b:
            tile = T.alloc_shared((8, 8), "float32")
            for x, y in T.Persistent([M, N], blocks, b, group_size=2):
                T.copy(A[x * 8, y * 8], tile)
                T.copy(tile, B[x * 8, y * 8])
                T.atomic_add(seen[x, y], 1)

    a = np.random.default_rng(4).standard_normal((M * 8, N * 8)).astype(np.float32)
    run_both(main, [a], [np.zeros_like(a), np.zeros((M, N), np.int32)], [a, np.ones((M, N))])


# --- math -------------------------------------------------------------------------------------

FUNCTIONS = {
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "log1p": np.log1p, "nearbyint": np.rint, "exp10": lambda x: 10.0**x,
    "log2": lambda x: np.log2(np.abs(x)), "erf": np.vectorize(math.erf), "tanh": np.tanh,
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_functions_of_one_value(run_both, dtype):
    names = list(FUNCTIONS)
    n = 50

    @T.prim_func
    def main(A: T.Tensor((n,), dtype), B: T.Tensor((len(names), n), dtype)):
        with T.Kernel(1):
            for row, name in enumerate(names):
                for i in T.Parallel(n):
                    x = T.abs(A[i]) if name == "log2" else A[i]
                    B[row, i] = getattr(T, name)(x)

    a = np.random.default_rng(5).uniform(-0.99, 0.99, n).astype(DType(dtype).numpy)
    expected = np.stack([f(a.astype(np.float64)) for f in FUNCTIONS.values()])
    bound = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}[dtype]
    run_both(main, [a], [np.zeros(expected.shape, a.dtype)], [expected], rtol=bound, atol=bound)


def test_functions_of_two_values_and_predicates(run_both):
    n = 60

    @T.prim_func
    def main(
        A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32"), C: T.Tensor((6, n), "float32")
    ):
        with T.Kernel(1):
            for i in T.Parallel(n):
                C[0, i] = T.atan2(A[i], B[i])
                C[1, i] = T.fmod(A[i], 0.75)
            for i in T.Parallel(n):
                C[2, i] = T.if_then_else(T.isnan(A[i]), 1.0, 0.0)
                C[3, i] = T.if_then_else(T.isinf(A[i]), 1.0, 0.0)
                C[4, i] = T.if_then_else(T.isfinite(A[i]), 1.0, 0.0)
                C[5, i] = T.clamp(B[i], min_val=-0.5, max_val=0.5)

    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(n).astype(np.float32) * 3 for _ in range(2))
    a[5], a[6], a[40] = np.nan, np.inf, -np.inf
    wide = a.astype(np.float64)
    with np.errstate(invalid="ignore"):
        expected = np.stack([
            np.arctan2(wide, b), np.fmod(wide, 0.75), np.isnan(a), np.isinf(a), np.isfinite(a),
            np.clip(b, -0.5, 0.5),
        ])  # fmt: skip
    run_both(main, [a, b], [np.zeros((6, n), np.float32)], [expected])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "int32"), ("float16", "uint16"), ("bfloat16", "int16"), ("uint16", "bfloat16"),
     ("int64", "float64"), ("float16", "bfloat16")],
)  # fmt: skip
def test_reinterpret_keeps_the_bits(run_both, source, target):
    n = 48

    @T.prim_func
    def main(A: T.Tensor((n,), source), B: T.Tensor((n,), target)):
        with T.Kernel(1):
            for i in T.Parallel(n):
                B[i] = T.reinterpret(A[i], target)

    rng = np.random.default_rng(7)
    small = rng.integers(1, 0x3FFF, n)
    kind = DType(source).numpy
    a = rng.standard_normal(n).astype(kind) if DType(source).is_float else small.astype(kind)
    (got,) = run_both(main, [a], [np.zeros(n, DType(target).numpy)])
    assert got.tobytes() == a.tobytes()


@pytest.mark.parametrize("dtype", ["uint16", "int16", "uint8"])
def test_a_narrow_shift_that_is_made_wider_keeps_its_bits(run_both, dtype):
    """As in C, where TileLang's CUDA code shifts; a narrow variable or tensor cuts them off."""

    @T.prim_func
    def main(A: T.Tensor((64,), dtype), B: T.Tensor((4, 64), "uint32"), C: T.Tensor((64,), dtype)):
        with T.Kernel(1):
            for i in T.Parallel(64):
                B[0, i] = T.cast(A[i] << 12, "uint32")
                B[1, i] = T.cast(A[i] << 20, "uint32") | T.cast(A[i] >> 3, "uint32")
                C[i] = A[i] << 5
                B[2, i] = T.cast(C[i], "uint32")
                B[3, i] = (A[i] << 16) + A[i]

    limits = np.iinfo(dtype)
    a = np.random.default_rng(0).integers(limits.min, limits.max, 64).astype(dtype)
    wide = a.astype(np.int64)
    cut = (wide << 5).astype(dtype)
    rows = [wide << 12, wide << 20 | wide >> 3, cut.astype(np.int64), (wide << 16) + wide]
    expected = [np.stack(rows).astype(np.uint32), cut]
    outputs = [np.zeros((4, 64), np.uint32), np.zeros(64, dtype)]
    run_both(main, [a], outputs, expected, rtol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_rounding_and_stated_rounding(run_both, dtype):
    n = 64

    @T.prim_func
    def main(X: T.Tensor((3, n), dtype), Y: T.Tensor((12, n), dtype)):
        with T.Kernel(1):
            for i in T.Parallel(n):
                a, b, c = X[0, i], X[1, i], X[2, i]
                Y[0, i] = T.round(a)
                Y[1, i] = T.round(a, "ties-away-from-zero")
                Y[2, i] = T.ieee_add(a, b)
                Y[3, i] = T.ieee_sub(a, b, "rn")
                Y[4, i] = T.ieee_mul(a, b)
                Y[5, i] = T.ieee_fmaf(a, b, c)
                Y[6, i] = T.ieee_frcp(b)
                Y[7, i] = T.ieee_fsqrt(b)
                Y[8, i] = T.ieee_frsqrt(b)
                Y[9, i] = T.ieee_fdiv(a, b)
                Y[10, i] = T.fma(a, b, c)
                Y[11, i] = T.fmul(a, b)

    rng = np.random.default_rng(0)
    x = rng.uniform(-4, 4, (3, n)).astype(dtype)
    x[0, :12] = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.25, -0.75, 3.0, -0.0, 1000.5, 0.49999997]
    x[1] = np.abs(x[1]) + np.asarray(0.1, dtype)
    a, b, c = x.astype(np.float64)
    away = np.trunc(a) + np.where(np.abs(a - np.trunc(a)) >= 0.5, np.sign(a), 0)
    expected = np.stack([
        np.rint(a), away, a + b, a - b, a * b, a * b + c, 1 / b, np.sqrt(b), b**-0.5, a / b,
        a * b + c, a * b,
    ])  # fmt: skip
    tolerance = 2e-3 if dtype == "float16" else 1e-6
    run_both(main, [x], [np.zeros((12, n), dtype)], [expected], rtol=tolerance, atol=tolerance)
    with pytest.raises(TypeMismatch, match=r"rounding mode rn, rz, ru, rd of T\.ieee_fdiv"):
        T.ieee_fdiv(1.0, T.float32(2.0), "up")
    with pytest.raises(TypeMismatch, match='"ties-to-even" or "ties-away-from-zero"'):
        T.round(T.float32(1.0), "up")


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64"])
def test_unsigned_numbers_are_their_magnitudes(run_both, dtype):
    """CPUs compared them with 0 as signed numbers: no vector of them is below it."""

    @T.prim_func
    def main(X: T.Tensor((64,), dtype), Y: T.Tensor((64,), dtype)):
        with T.Kernel(1):
            for i in T.Parallel(64):
                Y[i] = T.abs(X[i])

    x = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, 64, dtype, endpoint=True)
    run_both(main, [x], [np.zeros_like(x)], [x])


def test_bad_operators():
    with pytest.raises(TypeMismatch, match="32 bits"):
        T.reinterpret(T.float16(1.0), "int32")
    with pytest.raises(ShapeMismatch, match=r"T.transpose of `tile`"):

        @T.prim_func
        def program(A: T.Tensor((4, 8), "float32")):
            with T.Kernel(1):
                tile = T.alloc_shared((4, 8), "float32")
                T.transpose(tile, A)


# --- printing and assertions ------------------------------------------------------------------


def printing():
    @T.prim_func
    def main(A: T.Tensor((2, 3), "float32"), n: T.Tensor((2,), "int32")):
        with T.Kernel(2) as b:
            tile = T.alloc_shared((3,), "float16")
            T.copy(A[b, 0], tile)
            T.print(n[b], msg="100% {n}")
            T.print(tile, "tile")
            T.print(msg="done")

    return main


def test_print_of_compiled_and_interpreted_kernels(artifacts, capfd):
    a = np.array([[0.5, -1.25, np.inf], [1e-3, 3e6, 7]], np.float32)
    a[1, 1] = 3000.0
    n = np.array([5, -7], np.int32)
    func = printing()
    interpreter.run(func, a, n)
    interpreted = sorted(capfd.readouterr().out.splitlines())
    runtime.load(compile(func, store=artifacts))(a, n)
    compiled = sorted(capfd.readouterr().out.splitlines())
    assert compiled == interpreted
    assert len(compiled) == 10
    assert "msg='100% {n}' BlockIdx=(1): dtype=int32 value=-7" in compiled
    assert "msg='tile' BlockIdx=(0): buffer=tile, index=(1), dtype=float16 value=-1.25" in compiled
    assert "msg='done' BlockIdx=(0)" in compiled


def checked(blocks):
    @T.prim_func
    def main(A: T.Tensor((blocks, 4), "float32"), B: T.Tensor((blocks, 4), "float32")):
        with T.Kernel(blocks) as b:
            for i in T.Parallel(4):
                T.device_assert(A[b, i] > 0, "elements are positive")
                B[b, i] = T.log(A[b, i])
            assert A[b, 0] < 100

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("blocks", [1, 50])
def test_failed_assertions_name_message_and_line(artifacts, blocks):
    func = checked(blocks)
    kernel = runtime.load(compile(func, store=artifacts))
    a, b = np.ones((blocks, 4), np.float32), np.zeros((blocks, 4), np.float32)
    kernel(a, b)
    a[-1, 2] = -1
    for call in (lambda: kernel(a, b), lambda: interpreter.run(func, a, b)):
        with pytest.raises(AssertionFailed, match="elements are positive") as caught:
            call()
        assert "T.device_assert(A[b, i] > 0" in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    a[-1, 2], a[0, 0] = 1, 200
    for call in (lambda: kernel(a, b), lambda: interpreter.run(func, a, b)):
        with pytest.raises(AssertionFailed, match=r"`A\[.*\] < 100.0` does not hold"):
            call()
    a[0, 0] = 1
    kernel(a, b)  # a failure leaves nothing behind


def test_no_failed_assertion_is_lost(artifacts):
    """Whichever thread meets it: TVM's pool lost that of a worker now and then."""
    kernel = runtime.load(compile(checked(50), store=artifacts))
    b = np.zeros((50, 4), np.float32)
    for attempt in range(300):
        a = np.ones((50, 4), np.float32)
        a[attempt % 50, 1] = -1
        with pytest.raises(AssertionFailed, match="elements are positive"):
            kernel(a, b)


def test_safe_values_are_for_tensors():
    with pytest.raises(TypeMismatch, match="a tensor as key"):

        @T.prim_func
        def program(A: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                tile = T.alloc_shared((4,), "float32")
                T.annotate_safe_value({tile: 1.0})

    with pytest.raises(ScopeError, match="outside a tile program"):
        T.print(1)
