"""Rounds of a hash: names of values that stand twice in the next ones. Once they were written out.

Of n rounds there were 3**n operations: twelve took three seconds to compile for a CPU, a minute for
a GPU.
"""

import time

import numpy as np
import pytest

import tilecore
import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore import runtime
from tilecore.compiler import compile, lower
from tilecore.ir.arithmetic.length import is_same, length
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Var, binary
from tilecore.target import AVX512

N, FACTOR, LIMIT = 300, 0x9E3779B9, 2_000_000_000


@T.macro
def four_rounds(x, y):
    a = (x * T.uint32(FACTOR)) ^ (y >> T.uint32(3))
    b = (y + x) ^ (x << T.uint32(5))
    c = (a * T.uint32(FACTOR)) ^ (b >> T.uint32(3))
    d = (b + a) ^ (a << T.uint32(5))
    e = (c * T.uint32(FACTOR)) ^ (d >> T.uint32(3))
    f = (d + c) ^ (c << T.uint32(5))
    g = (e * T.uint32(FACTOR)) ^ (f >> T.uint32(3))
    h = (f + e) ^ (e << T.uint32(5))
    return g, h


def hashed(use):
    """Return a program of 24 rounds, and what to do with what comes out."""

    @T.prim_func
    def main(Y: T.Tensor((N,), "uint32"), seed: T.uint32):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as b:
            for i in T.Parallel(128):
                if b * 128 + i < N:
                    x0, y0 = four_rounds(T.cast(b * 128 + i, "uint32"), seed)
                    x1, y1 = four_rounds(x0, y0)
                    x2, y2 = four_rounds(x1, y1)
                    x3, y3 = four_rounds(x2, y2)
                    x4, y4 = four_rounds(x3, y3)
                    x, y = four_rounds(x4, y4)
                    if use == "value" or x < T.uint32(LIMIT):
                        Y[b * 128 + i] = x ^ y

    return main


def exact(use, seed):
    x, y = np.arange(N, dtype=np.uint32), np.full(N, seed, np.uint32)
    for _ in range(24):
        x, y = (x * np.uint32(FACTOR)) ^ (y >> 3), (y + x) ^ (x << 5)
    return x ^ y if use == "value" else np.where(x < LIMIT, x ^ y, 7)


@pytest.mark.parametrize("use", ["value", "condition"])
@pytest.mark.parametrize("target", ["llvm", "sm_80", "h100"])
def test_rounds_of_a_hash(target, use):
    func, out = hashed(use), np.full(N, 7, np.uint32)
    if target == "llvm":
        runtime.load(compile(func))(out, 12345)
    else:
        run_emulated(func, target, [out, 12345])
    np.testing.assert_array_equal(out, exact(use, 12345))


def counted(update):
    """Return a program that counts values by their hash of 24 rounds."""

    @T.prim_func
    def main(X: T.Tensor((N,), "uint32"), H: T.Tensor((1024,), "int32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                x0, y0 = four_rounds(X[i], T.uint32(77))
                x1, y1 = four_rounds(x0, y0)
                x2, y2 = four_rounds(x1, y1)
                x3, y3 = four_rounds(x2, y2)
                x4, y4 = four_rounds(x3, y3)
                x, y = four_rounds(x4, y4)
                place = T.cast((x ^ y) % 1024, "int32")
                if update:
                    H[place] = H[place] + 1
                else:
                    H[place] = 1

    return main


@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("target", ["llvm", "sm_80"])
def test_places_that_a_hash_names(target, update):
    """For a GPU eight rounds took half a minute: where iterations store was written out."""
    x, found = np.arange(N, dtype=np.uint32), np.zeros(1024, np.int32)
    if target == "llvm":
        runtime.load(compile(counted(update)))(x, found)
    else:
        run_emulated(counted(update), target, [x, found])
    counts = np.bincount(exact("value", 77) % 1024, minlength=1024)
    np.testing.assert_array_equal(found, counts if update else np.minimum(counts, 1))


def test_they_run_in_vectors():
    assert '"uint32x16"' in lower(hashed("value"), AVX512, {})[1].script()


def test_what_is_shared_counts_wherever_it_stands():
    x, y = Var("x", DType("int32")), Var("y", DType("int32"))
    twice = binary("add", x, x)
    assert length(twice, {}) == 3
    assert length(binary("mul", twice, twice), {}) == 7
    assert length(binary("mul", twice, y), {y: 100}) == 104
    for _ in range(60):
        twice = binary("add", twice, twice)
    assert length(twice, {}) == 2**62 - 1


def test_whether_two_are_the_same_is_known_without_writing_them_out():
    def sums(x: Expr) -> Expr:
        for _ in range(400):
            x = binary("add", x, x)
        return x

    x, y = Var("x", DType("int32")), Var("y", DType("int32"))
    assert is_same(sums(x), sums(x))
    assert not is_same(sums(x), sums(y))
    assert not is_same(binary("add", x, y), binary("sub", x, y))


def test_rounds_of_floats_compile_in_no_time():
    """Of ten rounds 7 s, of twenty more than ten minutes: TVM wrote names of floats out, too."""

    def escapes(x, y):
        real, imaginary, steps = x * 0, y * 0, x * 0
        for _ in range(20):
            real, imaginary = real * real - imaginary * imaginary + x, 2 * real * imaginary + y
            steps = steps + (real * real + imaginary * imaginary < 4)
        return steps

    x, y = (np.random.default_rng(i).uniform(-2, 1, (7, 33)).astype(np.float32) for i in (0, 1))
    began = time.process_time()
    found = tilecore.compute(escapes)(x, y)
    assert time.process_time() - began < 60  # 2, on a quiet machine
    with np.errstate(all="ignore"):
        wanted = escapes(x, y)
    assert (found == wanted).mean() > 0.99  # at the edge of the set rounding decides
