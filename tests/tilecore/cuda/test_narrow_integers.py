"""Integers hold what their type holds, also within an expression, where TVM takes them for numbers.

Its analysis of values knows no type: what an operation on unsigned integers gives, or a conversion
between types, is hidden from it (``tilecore.lowering.cuda.integers``).
"""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda
from tilecore.interpreter import run
from tilecore.ir.dtype import DType

OPERATIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a, b: -a,
    "shl": lambda a, b: a << T.cast(3, a.dtype),
    "not": lambda a, b: ~a,
    "abs": lambda a, b: T.abs(a) if "u" not in str(a.dtype) else a + b,
}


def widened(dtype, count):
    """Return a program that stores each result at once in a type that holds more."""

    @T.prim_func
    def main(
        A: T.Tensor((count,), dtype), B: T.Tensor((count,), dtype),
        C: T.Tensor((len(OPERATIONS), count), "int64"), D: T.Tensor((count,), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=32):
            a = T.alloc_fragment((count,), dtype)
            b = T.alloc_shared((count,), dtype)
            T.copy(A, a)
            T.copy(B, b)
            for number, operation in enumerate(OPERATIONS.values()):
                for i in T.Parallel(count):
                    C[number, i] = T.cast(operation(a[i], b[i]), "int64")
            for i in T.Parallel(count):
                D[i] = T.if_then_else(a[i] + b[i] > a[i], 1.0, 0.0)

    return main


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_results_are_those_of_the_type_before_they_are_widened(dtype, target):
    """Found by a random program: 200 + 77 of uint8 was 277, as C computes in 32 bits."""
    count, limits = 64, np.iinfo(dtype)
    rng = np.random.default_rng(1)
    a, b = (rng.integers(limits.min, limits.max, count, dtype, endpoint=True) for _ in range(2))
    a[:2], b[:2] = (limits.min, limits.max), limits.max
    func = widened(dtype, count)
    wanted, found = (
        [np.zeros((len(OPERATIONS), count), np.int64), np.zeros(count, np.float32)]
        for _ in range(2)
    )
    run(func, a, b, *wanted)
    run_emulated(func, target, [a, b, *found])
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("operation", ["neg", "abs"])
def test_the_assembler_sees_no_negative_of_16_bits(operation):
    """It drops what narrows it: on an H200 both were 32768 for -32768 of int16."""

    @T.prim_func
    def main(A: T.Tensor((32,), "int16"), C: T.Tensor((32,), "int64")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                C[i] = T.cast(OPERATIONS[operation](A[i], A[i]), "int64")

    _, _, source = lowered(main, "h100")
    (kernel,) = read_features(compile_cuda(source.text, source.arch).data, source.arch).values()
    assert kernel.opcodes.get("IABS", 0) == 0
    assert kernel.opcodes["PRMT"] >= 2  # one of the element, one of what becomes of it


@pytest.mark.parametrize(("dtype", "bits"), [("int32", 31), ("int64", 63)])
def test_literals_of_one_expression_may_come_to_more_than_the_type_holds(dtype, bits):
    """TVM makes one literal of them, and stopped where that was none of the type."""
    most = 2**bits - 5

    @T.prim_func
    def main(A: T.Tensor((32,), dtype), C: T.Tensor((3, 32), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                C[0, i] = (A[i] + most) + most
                C[1, i] = A[i] * 2 ** (bits // 2 + 1) * 2 ** (bits // 2 + 1) + A[i]
                C[2, i] = (A[i] - most) * 2 - 3

    a = np.arange(-16, 16).astype(dtype)
    found = np.zeros((3, 32), dtype)
    run_emulated(main, "h100", [a, found])
    wanted = [[(int(x) + 2 * most), int(x), (int(x) - most) * 2 - 3] for x in a]
    kind = DType(dtype)
    assert found.T.tolist() == [[kind.wrapped(v) for v in row] for row in wanted]


CONVERTED = {
    "an index less a literal": lambda x, i, kind: T.cast(i - 40, kind),
    "an index beyond the type": lambda x, i, kind: T.cast(i * 1000, kind),
    "a literal": lambda x, i, kind: T.cast(-3, kind),
    "a difference": lambda x, i, kind: T.cast(i, kind) - T.cast(5, kind),
    "a difference of literals": lambda x, i, kind: T.cast(2, kind) - T.cast(5, kind),
    "bounds of a clamp": lambda x, i, kind: T.cast(T.max(T.min(T.cast(x, "int32"), 7), -8), kind),
    "the least less a literal": lambda x, i, kind: T.min(T.cast(i, kind), 3) - T.cast(5, kind),
    "a sum compared": lambda x, i, kind: T.cast(
        T.cast(x, kind) + T.cast(5, kind) > T.cast(x, kind), kind
    ),
    "a product divided": lambda x, i, kind: T.cast(x, kind) * T.cast(6, kind) // T.cast(3, kind),
    "wider, divided": lambda x, i, kind: T.cast(T.cast(T.cast(x, kind), "int64") // 128, kind),
    "a sign": lambda x, i, kind: T.cast(T.cast(x, kind) < T.cast(0, kind), kind),
}


OVERFLOWING = ("a sum compared", "a product divided")  # of 32 bits with a sign: not defined


@pytest.mark.few(2)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "uint32", "int32", "uint64"])
@pytest.mark.parametrize("source", ["int8", "uint8", "int32", "uint32", "uint64"])
def test_conversions_keep_the_low_bits(source, kind, target):
    """Found by random programs: conversions of 200 to int8 were positive, of -1 ended in TC305."""
    count, limits = 64, np.iinfo(source)
    left_out = OVERFLOWING if kind == "int32" else ()
    makers = [make for name, make in CONVERTED.items() if name not in left_out]

    @T.prim_func
    def main(
        X: T.Tensor((count,), source), Y: T.Tensor((len(makers), count), kind),
        Z: T.Tensor((2, count), "int64"),
    ):  # fmt: skip
        with T.Kernel(1, threads=32):
            for number, make in enumerate(makers):
                for i in T.Parallel(count):
                    Y[number, i] = make(X[i], i, kind)
            for i in T.Parallel(count):
                Z[0, i] = T.cast(T.cast(X[i], kind), "int64")
                Z[1, i] = T.if_then_else(T.cast(X[i], kind) > T.cast(100, kind), 1, 0)

    x = np.random.default_rng(2).integers(limits.min, limits.max, count, source, endpoint=True)
    x[:3] = limits.min, limits.max, 1
    wanted, found = (
        [np.zeros((len(makers), count), kind), np.zeros((2, count), np.int64)] for _ in range(2)
    )
    run(main, x, *wanted)
    run_emulated(main, target, [x, *found])
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("value", [70000.0, -1e30, 65519.0])
def test_literals_beyond_float16(value):
    """A mask of -1e30 in float16 ended in an error of TVM."""

    @T.prim_func
    def main(Y: T.Tensor((2, 64), "float16")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_fragment((64,), "float16")
            T.fill(tile, value)
            T.copy(tile, Y[0, :])
            for i in T.Parallel(64):
                Y[1, i] = T.cast(i * 2000, "float16")

    y = np.zeros((2, 64), np.float16)
    run_emulated(main, "sm_80", [y])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y[0], np.full(64, value, np.float16))
        np.testing.assert_array_equal(y[1], (np.arange(64) * 2000).astype(np.float16))
