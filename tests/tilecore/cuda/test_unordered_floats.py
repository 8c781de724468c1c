"""NaN, infinities and signed zeros on GPUs, where TVM's simplifier takes floats for ordered."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import tilecore as tilelang
import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tests.tilecore.rocm.llvm_on_cpu import run_text

pytestmark = pytest.mark.few(1)  # a case takes long

PAIRS = list(itertools.product([0.0, -0.0, 1.0, -2.0, np.nan, np.inf], repeat=2))
N = len(PAIRS)


def conditions(dtype):
    @T.prim_func
    def main(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N, 9), "int32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(N):
                C[i, 0] = T.Cast("int32", not (A[i] < B[i]))
                C[i, 1] = T.Cast("int32", (A[i] < B[i]) or (B[i] <= A[i]))
                C[i, 2] = T.Cast("int32", not ((A[i] >= B[i]) and (A[i] > 0)))
                C[i, 3] = T.Cast("int32", A[i] == A[i])
                C[i, 4] = T.Cast("int32", A[i] * 0 == 0)
                C[i, 5] = T.Cast("int32", A[i] - A[i] == 0)
                C[i, 6] = T.Cast("int32", A[i] == B[i])
                C[i, 7] = T.if_then_else(A[i] < B[i], 1, T.if_then_else(B[i] <= A[i], 2, 3))
                if not (A[i] <= B[i]):
                    C[i, 8] = 1
                else:
                    C[i, 8] = 2

    return main


def expected(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        columns = [
            ~(a < b), (a < b) | (b <= a), ~((a >= b) & (a > 0)), a == a, a * 0 == 0, a - a == 0,
            a == b, np.where(a < b, 1, np.where(b <= a, 2, 3)), np.where(a <= b, 2, 1),
        ]  # fmt: skip
    return np.stack([c.astype(np.int32) for c in columns], 1)


def given(dtype):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    a, b = (np.array(side).astype(kind) for side in zip(*PAIRS, strict=True))
    return a, b, np.zeros((N, 9), np.int32)


@pytest.mark.covering("dtype", "target")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("target", ["h100", "sm_80", "gfx942"])
def test_conditions_of_nan(dtype, target):
    a, b, c = given(dtype)
    run_emulated(conditions(dtype), target, [a, b, c])
    np.testing.assert_array_equal(c, expected(a, b))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_conditions_of_nan_in_llvm_of_an_amd_gpu(dtype):
    a, b, c = given(dtype)
    run_text(conditions(dtype), "gfx942", [a, b, c])
    np.testing.assert_array_equal(c, expected(a, b))


def test_a_scalar_that_is_nan_reaches_a_kernel():
    @T.prim_func
    def main(C: T.Tensor((2,), "float32"), s: T.float32, u: T.float32):
        with T.Kernel(1, threads=32):
            C[0] = T.if_then_else(s < u, 1.0, T.if_then_else(u <= s, 2.0, 3.0))
            C[1] = s * 0.0 + u

    kernel = tilelang.compile(main, target="h100").emulated()
    out = np.zeros(2, np.float32)
    kernel(out, np.nan, np.inf)
    np.testing.assert_array_equal(out, [3, np.nan])


@pytest.mark.parametrize("target", ["h100", "gfx942"])
def test_sums_are_not_taken_apart(target):
    """(x + c) - c rounds x to multiples of c's last place: a way to round."""

    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((4, 64), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[0, i] = (A[i] + 12582912.0) - 12582912.0
                C[1, i] = (A[i] + 1e8) - A[i]
                C[2, i] = A[i] - (A[i] - 1e-9)
                C[3, i] = (T.abs(A[i]) + 1.0) - 1.0

    a = np.linspace(-9, 9, 64).astype(np.float32)
    one, million, tiny = np.float32(1), np.float32(1e8), np.float32(1e-9)
    wanted = np.stack([np.rint(a), (a + million) - a, a - (a - tiny), (np.abs(a) + one) - one])
    for run in (run_emulated, run_text) if target == "gfx942" else (run_emulated,):
        c = np.zeros((4, 64), np.float32)
        run(main, target, [a, c])
        np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("target", ["h100", "gfx942"])
def test_literals_of_float64_keep_all_digits(target):
    values = [1e-20, -0.1, 1 / 3, 2.5e-7, 6.02214076e23, 2.0**-1074, -1.7976931348623157e308, 0.25]

    a, b, c, d, e, f, g, h = values

    @T.prim_func
    def main(C: T.Tensor((8,), "float64")):
        with T.Kernel(1, threads=32):
            C[0] = T.float64(a)
            C[1] = T.float64(b)
            C[2] = T.float64(c)
            C[3] = T.float64(d)
            C[4] = T.float64(e)
            C[5] = T.float64(f)
            C[6] = T.float64(g)
            C[7] = T.float64(h)

    for run in (run_emulated, run_text) if target == "gfx942" else (run_emulated,):
        found = np.zeros(8)
        run(main, target, [found])
        np.testing.assert_array_equal(found, values)


def test_literals_become_others_of_their_bits():
    @T.prim_func
    def main(
        C: T.Tensor((4,), "float32"), D: T.Tensor((2,), "int32"), E: T.Tensor((2,), "float64")
    ):
        with T.Kernel(1, threads=32):
            C[0] = T.reinterpret(T.int32(1), "float32")
            C[1] = T.reinterpret(T.int32(-8388608), "float32")
            C[2] = T.reinterpret(T.uint32(0x3F800000), "float32")
            C[3] = T.reinterpret(T.reinterpret(T.float32(2.5), "int32"), "float32")
            D[0] = T.reinterpret(T.float32(1.0), "int32")
            D[1] = T.reinterpret(T.float32(-0.0), "int32")
            E[0] = T.reinterpret(T.int64(5) << 52, "float64")
            E[1] = T.reinterpret(T.cast(D[0] >> 23, "int64") << 52, "float64")

    c, d, e = np.zeros(4, np.float32), np.zeros(2, np.int32), np.zeros(2)
    run_emulated(main, "h100", [c, d, e])
    bits = np.array([1, -8388608, 0x3F800000, 0x40200000], np.int32)
    np.testing.assert_array_equal(c.view(np.int32), bits)
    np.testing.assert_array_equal(d, [0x3F800000, -(2**31)])
    np.testing.assert_array_equal(e, np.array([5 << 52, 127 << 52]).view(np.float64))
