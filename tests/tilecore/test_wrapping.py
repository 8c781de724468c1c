"""Integers of elements wrap around at the ends of their type, as those of NumPy and torch do."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import HOST
from tilecore.compiler import lower
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
