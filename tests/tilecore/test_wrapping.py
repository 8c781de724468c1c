"""Integers of elements wrap around at the ends of their type, as those of NumPy and torch do."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tests.tilecore.x86_paths import HOST, here, paths
from tilecore import runtime
from tilecore.compiler import compile, lower
from tilecore.interpreter import run
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Const, cast, const, unary

SIZE = 40


def elements(dtype):
    ends = np.iinfo(dtype)
    found = np.random.default_rng(0).integers(ends.min, ends.max, SIZE, dtype, endpoint=True)
    found[:6] = [0, ends.max, 3, ends.min, ends.max - 1, ends.min + 1]
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_arithmetic_of_elements_wraps_around(run_both, dtype):
    one, four, ten = (np.array(x, dtype) for x in (1, 4, 10))

    @T.prim_func
    def main(X: T.Tensor((SIZE,), dtype), Y: T.Tensor((8, SIZE), dtype)):
        with T.Kernel(1, threads=32) as _:
            for i in T.Parallel(SIZE):
                Y[0, i] = -X[i]
                Y[1, i] = X[i] * T.cast(4, dtype) // T.cast(4, dtype)
                Y[2, i] = X[i] * T.cast(3, dtype) >> T.cast(1, dtype)
                Y[3, i] = T.max(X[i] + T.cast(1, dtype), X[i])
                Y[4, i] = T.if_then_else(X[i] + T.cast(1, dtype) > X[i], 1, 0)
                Y[5, i] = X[i] * T.cast(6, dtype) % T.cast(3, dtype)
                doubled = X[i] * T.cast(2, dtype)
                Y[6, i] = T.min(doubled, doubled - T.cast(10, dtype))
                Y[7, i] = T.abs(X[i]) if dtype[0] == "i" else X[i]

    x = elements(dtype)
    with np.errstate(over="ignore"):
        wanted = np.stack([
            -x, x * four // four, x * np.array(3, dtype) >> one, np.maximum(x + one, x),
            (x + one > x).astype(dtype), x * np.array(6, dtype) % np.array(3, dtype),
            np.minimum(x + x, x + x - ten), np.abs(x),
        ])  # fmt: skip
    (found,) = run_both(main, [x], [np.zeros((8, SIZE), dtype)])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize(("source", "target"), [("uint32", "int8"), ("uint32", "int32"),
                                            ("int32", "int16")])  # fmt: skip
def test_what_a_conversion_makes_negative_is_divided_as_such(run_both, source, target):
    @T.prim_func
    def main(X: T.Tensor((SIZE,), source), Y: T.Tensor((2, SIZE), target)):
        with T.Kernel(1, threads=32) as _:
            for i in T.Parallel(SIZE):
                Y[0, i] = T.cast(X[i], target) % T.cast(7, target)
                Y[1, i] = T.cast(X[i] & T.cast(255, source), target) // T.cast(7, target)

    x = elements(source)
    low = (x & np.array(255, source)).astype(target)
    wanted = np.stack([x.astype(target) % np.array(7, target), low // np.array(7, target)])
    (found,) = run_both(main, [x], [np.zeros((2, SIZE), target)])
    np.testing.assert_array_equal(found, wanted)


def test_literals_wrap_around():
    def value(expr):
        assert isinstance(expr, Const)
        return expr.value

    assert value(unary("neg", const(4, "uint64"))) == 2**64 - 4
    assert value(unary("bitnot", const(15, "uint8"))) == 240
    assert value(const(200, "uint8") + const(100, "uint8")) == 44
    assert value(cast(const(-2, "int8"), "uint16")) == 2**16 - 2
    assert value(cast(const(200, "uint8"), "int8")) == -56


def test_indices_keep_their_form():
    """LLVM is told that an index does not wrap around: it simplifies addresses by that."""

    @T.prim_func
    def main(N: T.Tensor((4,), "int32"), X: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32")):
        with T.Kernel(4, threads=32) as bx:
            first = N[bx] + bx
            for i in T.Parallel(16):
                Y[first + i] = X[first + i]

    _, tir = lower(main, HOST, {})
    assert "tilecore_add" not in str(tir)


@pytest.mark.parametrize("mask", [False, True])
def test_an_index_that_begins_anew(run_both, mask):
    """LLVM 22 made vectors of this loop that read on beyond the end of a ring."""

    @T.prim_func
    def main(X: T.Tensor((5, 16), "int32"), Y: T.Tensor((5, 24, 2), "float64")):
        with T.Kernel(5, threads=64) as bx:
            for j, i in T.Parallel(2, 24):
                Y[bx, i, j] = X[bx, (bx + i) & 15 if mask else (bx + i) % 16]

    x = np.random.default_rng(0).integers(1, 9, (5, 16), np.int32)
    wanted = [np.roll(x[b], -b)[np.arange(24) % 16] for b in range(5)]
    run_both(main, [x], [np.zeros((5, 24, 2))], [np.stack([wanted, wanted], -1)])


def test_an_index_that_only_looks_like_it_is_not_hidden():
    @T.prim_func
    def main(X: T.Tensor((4, 16), "int32"), Y: T.Tensor((4, 16), "int32")):
        with T.Kernel(1, threads=64) as _:
            for i, j in T.Parallel(4, 16):
                Y[(i * 16 + j) // 16, (i * 16 + j) % 16] = X[i, j]

    _, tir = lower(main, HOST, {})
    assert "tilecore_hidden" not in str(tir)


def test_division_by_negative_numbers(run_both):
    @T.prim_func
    def main(
        X: T.Tensor((12,), "int32"), Y: T.Tensor((2, 12), "int32"), Z: T.Tensor((3,), "int32")
    ):
        with T.Kernel(1, threads=32) as _:
            for i in T.Parallel(12):
                Y[0, i] = X[i] // -3
                Y[1, i] = X[i] % -3
            for i in T.Parallel(3):
                far = X[3 * i + 9] // -2  # beyond the end but for the first
                Z[i] = T.if_then_else(far < 0, far % 3, far)

    x = np.array([-(2**31), -(2**31) + 1, -7, -6, -3, -1, 0, 1, 3, 6, 7, 2**31 - 1], np.int32)
    outputs = [np.zeros((2, 12), np.int32), np.ones(3, np.int32)]
    run_both(main, [x], outputs, [np.stack([x // -3, x % -3]), np.zeros(3)])


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["int8", "uint8", "int16"])
def test_indices_that_a_narrow_type_cuts_off(run_both, target):
    """TVM failed at the step of a ramp that the type cannot hold."""

    @T.prim_func
    def main(Y: T.Tensor((2, SIZE), "float32")):
        with T.Kernel(1, threads=32) as _:
            for i in T.Parallel(SIZE):
                Y[0, i] = T.cast(T.cast(i * 100_000 + 7, target), "float32")
                Y[1, i] = T.cast(T.cast(9 - i * 1000, target), "float32")

    i = np.arange(SIZE)
    wanted = np.stack([i * 100_000 + 7, 9 - i * 1000]).astype(target)
    run_both(main, [], [np.zeros((2, SIZE), np.float32)], [wanted.astype(np.float32)])


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_division_by_the_least_number_of_a_type(run_both, dtype):
    least = np.iinfo(dtype).min

    @T.prim_func
    def main(X: T.Tensor((SIZE,), dtype), Y: T.Tensor((2, SIZE), dtype)):
        with T.Kernel(1, threads=32) as _:
            for i in T.Parallel(SIZE):
                Y[0, i] = X[i] // T.cast(least, dtype)
                Y[1, i] = X[i] % T.cast(least, dtype)

    x, divisor = elements(dtype), np.array(least, dtype)
    wanted = np.stack([x // divisor, x % divisor])
    run_both(main, [x], [np.zeros((2, SIZE), dtype)], [wanted])


@pytest.mark.few(1)
@pytest.mark.parametrize(("source", "target"), [("int64", "uint8"), ("int64", "int32"),
                                                ("float32", "bfloat16")])  # fmt: skip
def test_one_lane_of_what_is_cut_off_is_stored(run_both, source, target):
    """LLVM 22 stored the wider element where it knew that of a vector one lane is stored."""
    kind = DType(target).numpy

    @T.prim_func
    def main(X: T.Tensor((7,), source), Y: T.Tensor((7, 17), target)):
        with T.Kernel(1, threads=32) as _:
            t = T.alloc_shared((7, 17), target)
            T.fill(t, 1)
            for i, j in T.Parallel(7, 16):
                if j % 5 == 0:
                    t[i, j] = T.cast(T.max(T.min(X[i ^ 1 if i < 6 else i] // 2, 9), 0), target)
            T.copy(t, Y)

    x = np.arange(7).astype(source)
    wanted = np.ones((7, 17))
    wanted[:, :16:5] = (x[[1, 0, 3, 2, 5, 4, 6]] // 2)[:, None]
    run_both(main, [x], [np.zeros((7, 17), kind)], [wanted])


def test_a_loop_that_stores_the_last_one_first(run_both):
    """LLVM 22 made vectors of this loop that TVM refuses."""

    @T.prim_func
    def main(X: T.Tensor((17,), "float32"), Y: T.Tensor((5, 12), "float64")):
        with T.Kernel(1, threads=64) as _:
            x = T.alloc_fragment((17,), "float32")
            y = T.alloc_fragment((5, 12), "float64")
            T.copy(X, x)
            for j, i in T.Parallel(12, 5):
                y[i, 11 - j] = T.max(T.min(x[16 - j], 9), -8)
            T.copy(y, Y)

    x = np.arange(17, dtype=np.float32) - 8
    run_both(main, [x], [np.zeros((5, 12))], [np.broadcast_to(np.clip(x, -8, 9)[5:], (5, 12))])


def test_what_is_cut_off_is_stored_last_one_first_under_a_condition(run_both):
    """Found by a random program: LLVM 22 stored the wider elements, beyond the tile, too."""

    @T.prim_func
    def main(
        A: T.Tensor((2, 72, 16), "int4"), S: T.Tensor((2, 64), "uint4"),
        B: T.Tensor((2, 72, 64), "int4"), V: T.Tensor((2, 72), "float32"),
        Y: T.Tensor((2, 64), "uint4"),
    ):  # fmt: skip
        with T.Kernel(2, threads=128) as bx:
            a = T.alloc_fragment((64, 16), "int4")
            s = T.alloc_shared((64,), "uint4")
            b = T.alloc_fragment((64, 64), "int4")
            c = T.alloc_fragment((64, 16), "int32")
            d = T.alloc_shared((64, 16), "int32")
            T.fill(a, 1)
            T.fill(c, 0)
            T.copy(A[bx, 4, 1], a)
            T.copy(S[bx, 0], s)
            T.copy(B[bx, 1, 0], b)
            for _ in T.Pipelined(2, num_stages=2):
                for i in T.Parallel(64):
                    if i >= 1:
                        least = T.min(T.cast(s[63 - i], "int32"), T.cast(V[bx, i], "int32"))
                        s[63 - i] = T.cast(T.max(T.min(least, 2), 0), "uint4")
            for i, j in T.Parallel(64, 16):
                a[i, j] = T.cast(T.min(T.cast(a[i, j], "int32"), T.cast(b[i, j], "int32")), "int4")
            if bx % 2 == 1:
                T.gemm(b, a, c)
            T.copy(s, Y[bx, 0])
            T.copy(c, d)

    rng = np.random.default_rng(0)
    given = [
        rng.integers(-128, 128, (2, 72, 8)).astype(np.int8),
        rng.integers(0, 256, (2, 32)).astype(np.uint8),
        rng.integers(-128, 128, (2, 72, 32)).astype(np.int8),
        rng.integers(-3, 4, (2, 72)).astype(np.float32),
    ]
    run_both(main, given, [np.zeros((2, 32), np.uint8)])


@pytest.mark.parametrize("target", paths("avx2", "avx512"))
def test_quotients_of_elements_that_say_which_row(target):
    """TVM failed over a literal: what it adds to a quotient, times the row's length."""

    @T.prim_func
    def main(
        X: T.Tensor((9, 83), "float32"),
        P: T.Tensor((37,), "int32"),
        Y: T.Tensor((3, 37), "float32"),
    ):
        with T.Kernel(3, threads=64) as b:
            for j in T.Parallel(37):
                row = (P[(b * 5 + j) % 37] // 3 + 5) // 7
                other = P[(b * 64 + j) % 37] // 3 // 3
                v = T.exp(T.min(T.if_then_else(b % 3 == 1, 1.0, X[row, j] + X[other, j]), 2.0))
                if b < 2:
                    Y[b, j] = v

    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 83), dtype=np.float32)
    p = rng.integers(-40, 200, 37).astype(np.int32)
    p[::9], p[3::9] = -(2**31) + np.arange(5), 2**31 - 1 - np.arange(4)
    wanted, found = (np.zeros((3, 37), np.float32) for _ in range(2))
    run(main, x, p, wanted)
    runtime.load(compile(main, here(target)))(x, p, found)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint32"])
def test_division_by_0_and_of_the_least_number_traps_nowhere(run_both, dtype):
    """A CPU ended the process, also where a condition left the quotient out."""

    @T.prim_func
    def main(
        X: T.Tensor((12,), dtype),
        D: T.Tensor((12,), dtype),
        n: T.int32,
        Y: T.Tensor((6, 12), dtype),
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(12):
                Y[0, i] = X[i] // D[i]
                Y[1, i] = X[i] % D[i]
                Y[2, i] = T.cast(X[i], "int32") // n
                if D[i] != 0 and X[i] % D[i] == 0:
                    Y[3, i] = 1
                quotient = X[i] // D[i]
                if D[i] != 0:
                    Y[4, i] = quotient
                Y[5, i] = T.if_then_else(D[i] > 1, X[i] // T.max(D[i], 1), 5)

    low = 0 if dtype == "uint32" else np.iinfo(dtype).min
    x = np.array([low, low, low, 7, 7, 7, 6, 0, 1, 100, 100, 9], dtype)
    d = np.array([1, 0, 3, 0, 2, 3, 3, 0, 5, 7, 0, 9]).astype(dtype)
    if low:
        d[0] = -1
    quotient = np.where(d == 0, x, x // np.where((d == 0) | (d == -1), 1, d))
    quotient, rest = np.where(d == -1, -x, quotient), x % np.where((d == 0) | (d == -1), 1, d)
    kept, chosen = np.where(d != 0, quotient, 0), np.where(d > 1, quotient, 5)
    rows = [quotient, rest, x.astype(np.int32), (d != 0) & (rest == 0), kept, chosen]
    expected, found = np.stack(rows).astype(dtype), np.zeros((6, 12), dtype)
    run_both(main, [x, d, 0], [found], [expected])
    run_emulated(main, "sm_80", [x, d, 0, found])
    np.testing.assert_array_equal(found, expected)
