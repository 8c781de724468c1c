"""Integers of 8 and 16 bits hold what their type holds, also within an expression."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore.interpreter import run

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
