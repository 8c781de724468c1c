"""The LLVM IR for AMD GPUs computes what the programs say, run on the CPU (see llvm_on_cpu)."""

import math

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.test_tile_programs import close, random
from tests.tilecore.cuda.tile_programs import attention, gemm
from tests.tilecore.rocm.llvm_on_cpu import run_text


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "dtype", "out", "trans_b"),
    [
        ("gfx942", "float16", "float16", True),
        ("gfx90a", "bfloat16", "float32", False),
        ("gfx942", "int8", "int32", True),
        ("gfx90a", "int8", "int32", False),
        ("gfx942", "float32", "float32", True),
    ],
)
def test_products_with_ragged_edges(target, dtype, out, trans_b):
    M, N, K = 72, 88, 96
    accum = "int32" if dtype == "int8" else "float32"
    func = gemm(M, N, K, (64, 64, 32), 2, dtype, out, accum, (False, trans_b), 128)
    rng = np.random.default_rng(0)
    a, b = random(rng, (M, K), dtype), random(rng, (N, K) if trans_b else (K, N), dtype)
    c = np.full((M, N), 77, out)
    run_text(func, target, [a, b, c])
    left, right = a.astype(np.float64), b.astype(np.float64)
    close(c, left @ (right.T if trans_b else right), out)


@pytest.mark.few(1)
@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention(causal):
    B, S, H, D = 1, 128, 1, 64
    rng = np.random.default_rng(1)
    q, k, v = (random(rng, (B, S, H, D), "float16") for _ in range(3))
    out = np.zeros((B, S, H, D), np.float16)
    run_text(attention(B, S, H, D, (64, 32), 2, 256, "float16", causal), "gfx942", [q, k, v, out])
    Q, K, V = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = Q @ K.swapaxes(-1, -2) / D**0.5
    if causal:
        scores = np.where(np.tri(S, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights @ V / weights.sum(-1, keepdims=True)
    close(out, expected.transpose(0, 2, 1, 3), "float16")


def functions(N):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((12, N), "float32")):
        with T.Kernel(T.ceildiv(N, 256), threads=128) as bx:
            for i in T.Parallel(256):
                x = X[bx * 256 + i]
                Y[0, bx * 256 + i] = T.exp(x)
                Y[1, bx * 256 + i] = T.exp2(x)
                Y[2, bx * 256 + i] = T.log(T.abs(x))
                Y[3, bx * 256 + i] = T.tanh(x)
                Y[4, bx * 256 + i] = T.erf(x)
                Y[5, bx * 256 + i] = T.sqrt(T.abs(x))
                Y[6, bx * 256 + i] = T.rsqrt(T.abs(x))
                Y[7, bx * 256 + i] = T.floor(x)
                Y[8, bx * 256 + i] = T.max(x, 0.5)
                Y[9, bx * 256 + i] = T.sigmoid(x)
                Y[10, bx * 256 + i] = T.if_then_else(x != x, 1.0, 0.0)
                Y[11, bx * 256 + i] = T.Cast("float32", T.Cast("int32", x) // 3)

    return main


def test_functions_of_the_c_library():
    N = 1000
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(N) * 3).astype(np.float32)
    x[:6] = [0, np.inf, -np.inf, np.nan, 1e-20, -0.3]
    y = np.zeros((12, N), np.float32)
    run_text(functions(N), "gfx942", [x, y])
    with np.errstate(all="ignore"):
        d = x.astype(np.float64)
        erf = np.array([math.erf(v) for v in d])
        expected = [np.exp(d), np.exp2(d), np.log(np.abs(d)), np.tanh(d), erf, np.sqrt(np.abs(d)),
                    1 / np.sqrt(np.abs(d)), np.floor(d), np.fmax(d, 0.5), 1 / (1 + np.exp(-d)),
                    np.isnan(d)]  # fmt: skip
    for row, wanted in zip(y, expected, strict=False):
        np.testing.assert_allclose(row, np.float32(wanted), rtol=3e-7, atol=1e-30)
    finite = np.isfinite(d)
    np.testing.assert_array_equal(y[11][finite], np.floor(np.trunc(d[finite]) / 3))


def conversions(N):
    @T.prim_func
    def main(
        X: T.Tensor((N,), "float32"),
        H: T.Tensor((N,), "float16"),
        B: T.Tensor((N,), "bfloat16"),
        W: T.Tensor((N,), "int8"),
        S: T.Tensor((N,), "uint8"),
    ):
        with T.Kernel(1, threads=64):
            total = T.alloc_local((1,), "int32")
            for i in T.Parallel(N):
                H[i] = X[i]
                B[i] = X[i]
                W[i] = T.Cast("int8", X[i]) >> 1
                total[0] = 0
                for k in T.serial(8):
                    if k == 5:
                        T.loop_break()
                    total[0] += (T.Cast("int32", S[i]) >> k) & 1
                S[i] = total[0]

    return main


def test_conversions_shifts_and_loops_that_are_left():
    N = 200
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(N) * 30).astype(np.float32)
    s = rng.integers(0, 256, N).astype(np.uint8)
    h, b, i = np.zeros(N, np.float16), np.zeros(N, ml_dtypes.bfloat16), np.zeros(N, np.int8)
    bits = sum((s >> k & 1) for k in range(5))
    run_text(conversions(N), "gfx90a", [x, h, b, i, s])
    np.testing.assert_array_equal(h, x.astype(np.float16))
    np.testing.assert_array_equal(b, x.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(i, np.trunc(x).astype(np.int8) >> 1)
    np.testing.assert_array_equal(s, bits)


def test_quotients_of_numbers_that_only_a_call_knows():
    """TVM names what it divides by, within the expression."""

    @T.prim_func
    def main(X: T.Tensor((200,), "int32"), Y: T.Tensor((200, 2), "int32"), by: T.int32):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(200):
                Y[i, 0] = (X[i] + i % by) // by
                Y[i, 1] = T.if_then_else(X[i] // by % 2 == 1, X[i] % by, -1)

    x = np.random.default_rng(4).integers(-1000, 1000, 200).astype(np.int32)
    y = np.zeros((200, 2), np.int32)
    run_text(main, "gfx942", [x, y, 7])
    np.testing.assert_array_equal(y[:, 0], (x + np.arange(200) % 7) // 7)
    np.testing.assert_array_equal(y[:, 1], np.where(x // 7 % 2 == 1, x % 7, -1))


def sums(N):
    @T.prim_func
    def main(X: T.Tensor((N, N), "float32"), Y: T.Tensor((N,), "float32"),
             Z: T.Tensor((1,), "int32")):  # fmt: skip
        with T.Kernel(N, threads=256) as bx:
            row = T.alloc_fragment((1, N), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(X[bx, 0], row)
            T.reduce_sum(row, total, dim=1)
            Y[bx] = total[0]
            T.atomic_add(Z[0], bx)

    return main


def test_sums_across_wavefronts_and_atomic_updates():
    N = 300
    rng = np.random.default_rng(4)
    x = rng.standard_normal((N, N)).astype(np.float32)
    y, z = np.zeros(N, np.float32), np.zeros(1, np.int32)
    run_text(sums(N), "gfx942", [x, y, z])
    np.testing.assert_allclose(y, x.astype(np.float64).sum(1), atol=2e-5)
    assert z[0] == N * (N - 1) // 2
