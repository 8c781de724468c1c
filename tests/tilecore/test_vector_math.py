"""Vector functions over their whole range: float32 against float64, float64 against 80 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import here
from tilecore import runtime
from tilecore.compiler import compile
from tilecore.ir.dtype import DType

LIMIT = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).tiny)
erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class Function:
    """What a function of the language is compared with, where it matters most, and how closely."""

    ours: Callable[[Any], Any]
    exact: Callable[[np.ndarray], np.ndarray]
    dense: tuple[float, float]
    units: float = 2.0


FUNCTIONS = {
    "exp": Function(T.exp, np.exp, (-87.3, 88.7)),
    "exp2": Function(T.exp2, np.exp2, (-126.0, 127.999)),
    "exp10": Function(T.exp10, lambda x: 10.0**x, (-37.9, 38.5)),
    "log": Function(T.log, np.log, (0.0, 4.0)),
    "log2": Function(T.log2, np.log2, (0.0, 4.0), 3.0),
    "log10": Function(T.log10, np.log10, (0.0, 4.0), 3.0),
    "log1p": Function(T.log1p, np.log1p, (-1.0, 4.0), 3.0),
    "sin": Function(T.sin, np.sin, (-40.0, 40.0)),
    "cos": Function(T.cos, np.cos, (-40.0, 40.0)),
    "rsqrt": Function(T.rsqrt, lambda x: 1 / np.sqrt(x), (0.0, 4.0)),
    "sigmoid": Function(T.sigmoid, lambda x: 1 / (1 + np.exp(-x)), (-87.0, 20.0), 3.5),
    "tanh": Function(T.tanh, np.tanh, (-11.0, 11.0)),
    "erf": Function(T.erf, erf, (-4.5, 4.5)),
}


def kernel_of(function, artifacts, target="llvm", dtype="float32"):
    n = T.dynamic("n")

    @T.prim_func
    def main(X: T.Tensor((n,), dtype), Y: T.Tensor((n,), dtype)):
        with T.Kernel(T.ceildiv(n, 1024)) as b:
            for i in T.Parallel(1024):
                Y[b * 1024 + i] = function(X[b * 1024 + i])

    return runtime.load(compile(main, here(target), store=artifacts))


def applied(kernel, x):
    y = np.empty_like(x)
    kernel(x, y)
    return y


def units_off(found, exact):
    """Return the distance in units of the last place of the exact value."""
    last = np.spacing(np.abs(exact).astype(found.dtype)).astype(exact.dtype)
    return np.abs(found.astype(exact.dtype) - exact) / last


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["avx2", "avx512"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_over_the_whole_range(name, target, artifacts):
    function = FUNCTIONS[name]
    kernel = kernel_of(function.ours, artifacts, target)
    rng = np.random.default_rng(0)
    codes = np.arange(0, 2**32, 4099, np.uint64).astype(np.uint32).view(np.float32)
    near_one = np.arange(-20_000, 20_000) + np.float32(1.0).view(np.int32)
    x = np.concatenate(
        [
            codes,
            near_one.astype(np.int32).view(np.float32),
            rng.uniform(*function.dense, 400_000).astype(np.float32),
        ]
    )
    x = x[np.isfinite(x)]
    if name.startswith("log") or name == "rsqrt":
        x = x[x > (-1 if name == "log1p" else 0)]
    with np.errstate(over="ignore", under="ignore"):
        want = function.exact(x.astype(np.float64))
        single = want.astype(np.float32)
    found = applied(kernel, x)
    normal = np.isfinite(single) & (np.abs(single) >= TINY)
    assert normal.sum() > 400_000
    assert units_off(found[normal], want[normal]).max() <= function.units
    assert (found[np.abs(want) > 1.0001 * LIMIT] == np.inf).all()
    small = np.abs(want) < TINY
    assert np.abs(found[small] - want[small]).max(initial=0.0) <= 2**-149


@pytest.mark.few(2)
@pytest.mark.parametrize("target", ["avx2", "avx512"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_of_float64_over_the_whole_range(name, target, artifacts):
    function = FUNCTIONS[name]
    kernel = kernel_of(function.ours, artifacts, target, "float64")
    rng = np.random.default_rng(0)
    sizes = rng.uniform(-1, 1, 100_000) * 10.0 ** rng.uniform(-12, 3, 100_000)
    near_one = 1 + rng.uniform(-1, 1, 100_000) * 10.0 ** rng.uniform(-15, 0, 100_000)
    x = np.concatenate(
        [
            rng.integers(0, 2**64, 100_000, np.uint64).view(np.float64),
            sizes,
            near_one,
            rng.uniform(*function.dense, 100_000),
            rng.integers(-(2**29), 2**29, 100_000) * (np.pi / 2),  # zeros of sin and cos
        ]
    )
    x = x[np.isfinite(x)]
    if name.startswith("log") or name == "rsqrt":
        x = x[x > (-1 if name == "log1p" else 0)]
    with np.errstate(over="ignore", under="ignore"):
        want = function.exact(x.astype(np.longdouble))
        double = want.astype(np.float64)
    found = applied(kernel, x)
    normal = np.isfinite(double) & (np.abs(double) >= np.finfo(np.float64).tiny)
    assert normal.sum() > 200_000
    is_exact = np.result_type(want) == np.longdouble
    assert units_off(found[normal], want[normal]).max() <= 2.6 + (not is_exact)
    np.testing.assert_array_equal(found[np.isinf(double)], double[np.isinf(double)])
    small = np.abs(want) < np.finfo(np.float64).tiny
    assert np.abs(found[small] - want[small]).max(initial=0.0) <= 2.0**-1074


def test_exp_leaves_the_range_as_libm_does(artifacts):
    found = applied(kernel_of(T.exp, artifacts), np.array([-1e30, -104, 89, 1e30], np.float32))
    np.testing.assert_array_equal(found, np.array([0, 0, np.inf, np.inf], np.float32))


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", ["avx2", "avx512"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_and_tails(name, target, dtype, artifacts):
    function = FUNCTIONS[name]
    kernel = kernel_of(function.ours, artifacts, target, dtype)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0], dtype)
    for count in (1, 3, 8, 17):  # lanes one by one, and in vectors
        x = np.resize(special, count)
        with np.errstate(invalid="ignore", divide="ignore"):
            want = function.exact(x.astype(np.float64)).astype(dtype)
        found = applied(kernel, x)
        np.testing.assert_array_almost_equal_nulp(
            found[np.isfinite(want)], want[np.isfinite(want)], 2
        )
        np.testing.assert_array_equal(found[~np.isfinite(want)], want[~np.isfinite(want)])
        zeros = want == 0
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(want[zeros]))
    low, high = function.dense
    x = np.random.default_rng(1).uniform(low, high, 1024).astype(dtype)
    whole = applied(kernel, x)
    for count in (1, 5, 1000):
        np.testing.assert_array_equal(applied(kernel, x[:count].copy()), whole[:count])


@pytest.mark.parametrize("name", ["exp", "erf"])
def test_vectors_of_many_registers(name, artifacts):
    function = FUNCTIONS[name]

    @T.prim_func
    def main(X: T.Tensor((256,), "int8"), Y: T.Tensor((256,), "int8")):
        with T.Kernel(1):
            for i in T.Parallel(256):
                Y[i] = T.cast(function.ours(T.cast(X[i], "float32") * 0.03) * 2.0, "int8")

    x = np.arange(-128, 128).astype(np.int8)
    found = applied(runtime.load(compile(main, store=artifacts)), x)
    want = function.exact(x * 0.03) * 2.0
    assert np.abs(found - np.trunc(want)).max() <= (np.abs(want - np.rint(want)) < 1e-4).any()


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("name", ["erf", "tanh", "log"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types(name, dtype, artifacts):
    function = FUNCTIONS[name]

    @T.prim_func
    def main(X: T.Tensor((100,), dtype), Y: T.Tensor((100,), dtype)):
        with T.Kernel(1):
            for i in T.Parallel(100):
                Y[i] = function.ours(X[i])

    x = np.random.default_rng(0).uniform(0.01, 4.0, 100).astype(DType(dtype).numpy)
    found = applied(runtime.load(compile(main, store=artifacts)), x)
    want = function.exact(x.astype(np.float64))
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(found.astype(np.float64), want, rtol=tolerance)
