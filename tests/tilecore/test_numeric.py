"""Functions made of others (tilecore/language/numeric.py): beside NumPy, on a CPU and on GPUs."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore.errors import TypeMismatch
from tilecore.interpreter import run

SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e-6, -3e-6, 0.5, 1e-38, 2e38]
WHOLE = [0, 1, -1, 2, 7, -8, 2**31 - 1, -(2**31), 12345, -6789, 255, -256]


def floats(dtype):
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        return np.array([*SPECIAL, *rng.standard_normal(52) * 4]).astype(dtype)


def agree(run_both, main, inputs, expected, places):
    """Compare a CPU's results, the oracle's and two GPUs'; ``places``: units in the last place."""
    names = [e.dtype for e in expected]
    bounds = [2 * places * np.finfo(n).eps if n.kind == "f" else 0 for n in names]
    outputs = [np.zeros_like(e) for e in expected]  # each within places of the truth
    found = [run_both(main, inputs, outputs, rtol=max(bounds), atol=0)]
    found.append([np.zeros_like(e) for e in expected])
    run(main, *inputs, *found[-1])
    for target in ("h100", "gfx942"):
        found.append([np.zeros_like(e) for e in expected])
        run_emulated(main, target, [*inputs, *found[-1]])
    for results in found:
        for got, want, name in zip(results, expected, names, strict=True):
            bound = places * np.finfo(name).eps if name.kind == "f" else 0
            np.testing.assert_allclose(got, want, rtol=bound, atol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize(("dtype", "places"), [("float16", 1), ("float32", 8), ("float64", 8)])
def test_inverse_hyperbolic_functions_and_hypot(run_both, dtype, places):
    x = floats(dtype)
    y = np.roll(x, 5)
    n = len(x)
    # AMD's float64 has no logarithm yet; its text is compared in float32 and float16.

    @T.prim_func
    def main(X: T.Tensor((n,), dtype), Y: T.Tensor((n,), dtype), A: T.Tensor((4, n), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(n):
                A[0, i] = T.asinh(X[i])
                A[1, i] = T.acosh(T.abs(X[i]) + 1)
                A[2, i] = T.atanh(X[i] / 8)
                A[3, i] = T.hypot(X[i], Y[i])

    with np.errstate(all="ignore"):
        wide, more = x.astype("float64"), (np.abs(x) + x.dtype.type(1)).astype("float64")
        functions = [np.arcsinh(wide), np.arccosh(more), np.arctanh((x / 8).astype("float64")),
                     np.hypot(wide, y.astype("float64"))]  # fmt: skip
        agree(run_both, main, [x, y], [np.stack(functions).astype(dtype)], places)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_signs_neighbours_and_exponents(run_both, dtype):
    x = floats(dtype)
    y = np.roll(x, 7)
    n, most = len(x), {"float16": 30, "float32": 290, "float64": 2140}[dtype]
    e = np.linspace(-most, most, n).astype("int32")

    @T.prim_func
    def main(
        X: T.Tensor((n,), dtype), Y: T.Tensor((n,), dtype), E: T.Tensor((n,), "int32"),
        A: T.Tensor((4, n), dtype),
    ):  # fmt: skip
        with T.Kernel(1, threads=64):
            for i in T.Parallel(n):
                A[0, i] = T.copysign(X[i], Y[i])
                A[1, i] = T.nextafter(X[i], Y[i])
                A[2, i] = T.ldexp(X[i], E[i])
                A[3, i] = 1 / T.copysign(X[i] * 0 + 1, Y[i])

    with np.errstate(all="ignore"):
        sign = 1 / np.copysign(x * 0 + 1, y)
        expected = [np.copysign(x, y), np.nextafter(x, y), np.ldexp(x, e), sign]
        agree(run_both, main, [x, y, e], [np.stack(expected).astype(dtype)], 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "int64"])
def test_bits_of_integers(run_both, dtype):
    bits = np.dtype(dtype).itemsize * 8
    x = np.array(WHOLE).astype(dtype)
    n = len(x)

    @T.prim_func
    def main(X: T.Tensor((n,), dtype), A: T.Tensor((4, n), "int32"), B: T.Tensor((n,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                A[0, i] = T.popcount(X[i])
                A[1, i] = T.clz(X[i])
                A[2, i] = T.call_extern("int32", "__popc", X[i])
                A[3, i] = T.if_then_else(T.likely(X[i] == 1), 1, 0)
                B[i] = T.bitwise_not(X[i])

    codes = [int(v) & ((1 << bits) - 1) for v in x]
    ones = [c.bit_count() for c in codes]
    leading = [bits - c.bit_length() for c in codes]
    expected = np.array([ones, leading, ones, [int(v == 1) for v in x]], "int32")
    agree(run_both, main, [x], [expected, ~x], 0)


def test_division_towards_zero(run_both):
    a = np.array([7, -7, 7, -7, 6, -6, 0, -(2**31), 2**31 - 1], "int32")
    b = np.array([2, 2, -2, -2, 3, -3, -5, 3, -1], "int32")
    n = len(a)

    @T.prim_func
    def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32"), C: T.Tensor((2, n), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                C[0, i] = T.truncdiv(A[i], B[i])
                C[1, i] = T.truncmod(A[i], B[i])

    quotient = np.array([int(int(x) / int(y)) for x, y in zip(a, b, strict=True)], "int32")
    agree(run_both, main, [a, b], [np.stack([quotient, a - quotient * b])], 0)


@pytest.mark.parametrize(
    ("name", "operands", "message"),
    [("popcount", (1.5,), "an integer for T.popcount"), ("truncdiv", (1.5, 2), "integers"),
     ("copysign", (1, 2.0), "a float of 16 bits or more for T.copysign")],
)  # fmt: skip
def test_other_types_are_refused(name, operands, message):
    with pytest.raises(TypeMismatch, match=f"TC202 .*{message}"):
        getattr(T, name)(*operands)
