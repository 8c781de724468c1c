"""Types of mixed operands are TVM's: a literal is as wide as it is by itself, or wider."""

import numpy as np
import pytest

import tilecore as tilelang
import tilecore.language as T
from tilecore.errors import ScopeError, TypeMismatch
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    Const,
    Var,
    binary,
    const,
    select,
    unary,
)


@pytest.mark.parametrize(
    ("kind", "op", "number", "expected"),
    [
        ("float16", "mul", 0.1, "float32"),
        ("bfloat16", "gt", 0.1, "bool"),
        ("float16", "mul", 2, "float16"),
        ("float64", "mul", 0.1, "float64"),
        ("float8_e4m3fn", "max", 0.5, "float32"),
        ("uint8", "sub", 8, "int32"),
        ("int8", "mul", 2, "int32"),
        ("int16", "floordiv", 3, "int32"),
        ("uint32", "add", 1, "uint32"),
        ("int64", "add", 1, "int64"),
        ("uint8", "bitand", 15, "uint8"),
        ("uint8", "shl", 4, "uint8"),
        ("bool", "add", 1, "int32"),
        ("int32", "mul", 0.5, "float32"),
    ],
)
def test_type_beside_a_number(kind, op, number, expected):
    value = Var("x", DType(kind))
    assert binary(op, value, number).dtype == expected
    swapped = binary(op, number, value) if op not in ("shl", "floordiv") else None
    assert swapped is None or swapped.dtype == expected


def test_type_of_a_choice_beside_a_number():
    cond, half, byte = Var("c", DType("bool")), Var("h", DType("float16")), Var("b", DType("uint8"))
    assert select(cond, half, 0.5).dtype == select(cond, 0.5, half).dtype == "float32"
    assert select(cond, half, 0).dtype == "float16"
    assert select(cond, byte, 0).dtype == "int32"


def test_half_times_a_number_does_not_overflow(run_both):
    n = 70

    @T.prim_func
    def main(A: T.Tensor((n,), "float16"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 32)) as b:
            for i in T.Parallel(32):
                B[b * 32 + i] = T.exp2(-A[b * 32 + i] * 1.44269504)

    a = -np.random.default_rng(1).random(n).astype(np.float16) * 30
    expected = np.exp2(-a.astype(float) * np.float32(1.44269504))
    assert expected.max() > 65504
    run_both(main, [a], [np.zeros(n, np.float32)], [expected])


def test_nibbles_below_their_middle_are_negative(run_both):
    n = 37

    @T.prim_func
    def main(A: T.Tensor((n,), "uint8"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 16)) as b:
            for i in T.Parallel(16):
                B[b * 16 + i] = T.cast((A[b * 16 + i] & 15) - 8, "float32")

    a = np.random.default_rng(2).integers(0, 256, n).astype(np.uint8)
    run_both(main, [a], [np.zeros(n, np.float32)], [(a & 15).astype(float) - 8])


def test_literals_are_numbers_of_their_type(run_both):
    """What came of them was computed from the number as it is written, or TVM refused it."""

    @T.prim_func
    def main(Y: T.Tensor((8,), "float32"), H: T.Tensor((4,), "float16")):
        with T.Kernel(1):
            Y[0] = T.floor(T.bfloat16(257.9))
            Y[1] = T.ceil(T.float32(8388608.5))
            Y[2] = T.floor(T.float32(2.99999999))
            Y[3] = T.trunc(T.float16(2049.0))
            Y[4] = T.float32(-3.402823466385289e38)
            Y[5] = T.float32(1e39)
            Y[6] = T.float8_e4m3fn(500.0)
            Y[7] = T.floor(T.float8_e5m2(2.9))
            H[0] = T.cast(T.float32(65510.0), "float16")
            H[1] = T.cast(T.float32(65520.0), "float16")
            H[2] = T.cast(-1e9, "float16")
            H[3] = T.float16(65504.0)

    most = float(np.finfo(np.float32).max)
    expected = np.array([258, 8388608, 3, 2048, -most, np.inf, 448, 3], np.float32)
    halves = np.array([65504, np.inf, -np.inf, 65504], np.float16)
    outputs = [np.zeros(8, np.float32), np.zeros(4, np.float16)]
    run_both(main, [], outputs, [expected, halves], rtol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize("op", ["add", "mul", "sub", "max"])
def test_arithmetic_of_truths_is_that_of_integers(run_both, op):
    n = 40
    meaning = {"add": np.add, "mul": np.multiply, "sub": np.subtract, "max": np.maximum}[op]

    @T.prim_func
    def main(
        A: T.Tensor((n,), "bool"), B: T.Tensor((n,), "bool"), C: T.Tensor((n,), "bool"),
        S: T.Tensor((n,), "int32"),
    ):  # fmt: skip
        with T.Kernel(1):
            for i in T.Parallel(n):
                S[i] = binary(op, A[i], B[i])
                C[i] = binary(op, A[i], B[i])

    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 2, n).astype(bool) for _ in range(2))
    found = meaning(a.astype(int), b.astype(int))
    run_both(main, [a, b], [np.zeros(n, bool), np.zeros(n, np.int32)], [found != 0, found])


def test_truths_are_0_and_1_where_numbers_are_meant(run_both):
    """Negated, compared for order and shifted they reached TVM as truths, which it refuses."""
    n = 40

    @T.prim_func
    def main(A: T.Tensor((n,), "bool"), B: T.Tensor((n,), "bool"), Y: T.Tensor((6, n), "int32")):
        with T.Kernel(1):
            for i in T.Parallel(n):
                Y[0, i] = -A[i]
                Y[1, i] = T.abs(A[i])
                Y[2, i] = A[i] < B[i]
                Y[3, i] = A[i] >= B[i]
                Y[4, i] = A[i] << B[i]
                Y[5, i] = A[i] >> B[i]

    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 2, n).astype(bool) for _ in range(2))
    x, y = a.astype(int), b.astype(int)
    expected = np.stack([-x, x, x < y, x >= y, x << y, x >> y])
    run_both(main, [a, b], [np.zeros((6, n), np.int32)], [expected])


def test_operators_by_their_names(run_both):
    n = 50

    @T.prim_func
    def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32")):
        with T.Kernel(T.ceildiv(n, 32)) as b:
            for i in T.Parallel(32):
                place = T.Add(T.Mul(b, 32), i)
                small = T.And(T.GE(A[place], 0), T.Or(T.LT(A[place], 5), T.EQ(A[place], 7)))
                B[place] = T.if_then_else(
                    T.Not(small), T.FloorMod(A[place], 4), T.Max(T.FloorDiv(A[place], 2), 1)
                )

    a = np.random.default_rng(4).integers(-20, 20, n).astype(np.int32)
    small = (a >= 0) & ((a < 5) | (a == 7))
    run_both(main, [a], [np.zeros_like(a)], [np.where(small, np.maximum(a // 2, 1), a % 4)])


def test_branches_by_hand(run_both):
    n = 75

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 32)) as b:
            for i in T.Parallel(32):
                with T.If(A[b * 32 + i] > 0):
                    with T.Then():
                        B[b * 32 + i] = A[b * 32 + i] * 2
                    with T.Else():
                        B[b * 32 + i] = -1.0
            with T.If(b == 1), T.Then():
                B[40] = 77.0

    a = np.random.default_rng(5).standard_normal(n).astype(np.float32)
    expected = np.where(a > 0, 2 * a, -1)
    expected[40] = 77
    run_both(main, [a], [np.zeros_like(a)], [expected])


def test_bad_branches_are_told():
    def program(body):
        @T.macro
        def branch(A):
            body(A)

        @T.prim_func
        def main(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                branch(A)

    def without_then(A):
        with T.If(A[0] > 0):
            pass

    def twice(A):
        with T.If(A[0] > 0):
            with T.Then():
                pass
            with T.Then():
                pass

    def alone(A):
        with T.Else():
            pass

    def outside(A):
        with T.If(A[0] > 0):
            T.fill(A, 1)
            with T.Then():
                pass

    for body, message in (
        (without_then, "no T.Then"), (twice, "twice in one T.If"), (alone, "outside T.If"),
        (outside, "a statement outside both"),
    ):  # fmt: skip
        with pytest.raises(ScopeError, match=message):
            program(body)


def test_literals_of_narrow_and_unsigned_types_wrap():
    """``x & ~T.uint8(15)`` had a literal that no uint8 is."""
    for made, value in (
        (unary("bitnot", const(15, "uint8")), 240), (unary("neg", const(1, "uint32")), 2**32 - 1),
        (binary("sub", const(2, "uint8"), const(5, "uint8")), 253),
        (binary("mul", const(100, "int8"), const(2, "int8")), -56),
    ):  # fmt: skip
        assert isinstance(made, Const)
        assert made.value == value


@pytest.mark.parametrize("op", [*ARITHMETIC, *BITWISE, *COMPARISONS])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_two_literals_fold_to_what_a_wider_pair_folds_to(op, kind):
    """Two of one type take a way of their own."""
    for a, b in ((7, 3), (-7, 3), (2**31 - 1, 1), (5, 5), (0, 4)):
        if op in ("shl", "shr") and a * b < 0:
            continue
        same, mixed = binary(op, const(a, kind), const(b, kind)), binary(op, const(a, "uint32"), b)
        is_number = isinstance(same, Const)
        assert is_number == (op not in ("div", "pow"))
        if is_number and a >= 0:
            assert same.value % 2**32 == mixed.value  # which has no sign
        assert same.dtype == binary(op, Var("x", DType(kind)), const(b, kind)).dtype
    if op in ("floordiv", "mod"):
        with pytest.raises(TypeMismatch):
            binary(op, const(1, kind), const(0, kind))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
def test_a_comparison_that_several_stores_convert(dtype):
    @T.prim_func
    def main(
        X: T.Tensor((9, 70), "float32"), A: T.Tensor((9, 70), dtype), B: T.Tensor((9, 70), dtype)
    ):
        with T.Kernel(1, threads=128):
            for i, j in T.Parallel(9, 70):
                above = T.cast(X[i, j] > 0, dtype)
                A[i, j] = above + T.cast(X[i, j] < 0, dtype) * 3
                B[i, j] = above * 2

    x = np.random.default_rng(3).standard_normal((9, 70)).astype(np.float32)
    x[0, :5] = 0
    a, b = np.zeros((2, 9, 70), dtype)
    tilelang.compile(main, target="llvm")(x, a, b)
    np.testing.assert_array_equal(a, (x > 0) + 3 * (x < 0))
    np.testing.assert_array_equal(b, 2 * (x > 0))
