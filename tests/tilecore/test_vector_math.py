"""exp and exp2 of float32 over their whole range, against float64."""

from __future__ import annotations

import numpy as np
import pytest

import tilecore.language as T
from tilecore import runtime
from tilecore.compiler import compile

FUNCTIONS = {"exp": (T.exp, np.exp), "exp2": (T.exp2, np.exp2)}


def kernel_of(function, artifacts):
    n = T.dynamic("n")

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 1024)) as b:
            for i in T.Parallel(1024):
                Y[b * 1024 + i] = function(X[b * 1024 + i])

    return runtime.load(compile(main, store=artifacts))


def applied(kernel, x):
    y = np.empty_like(x)
    kernel(x, y)
    return y


def units_off(found, exact):
    """Return the distance in units of the last place of the exact value."""
    last = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return np.abs(found.astype(np.float64) - exact) / last


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_over_the_whole_range(name, artifacts):
    ours, exact = FUNCTIONS[name]
    kernel = kernel_of(ours, artifacts)
    rng = np.random.default_rng(0)
    codes = np.arange(0, 2**32, 4099, np.uint64).astype(np.uint32).view(np.float32)
    low, high = (-87.3, 88.7) if name == "exp" else (-126.0, 127.999)
    x = np.concatenate([codes, rng.uniform(low, high, 400_000).astype(np.float32)])
    x = x[np.isfinite(x)]
    with np.errstate(over="ignore", under="ignore"):
        want = exact(x.astype(np.float64))
        single = want.astype(np.float32)
    found = applied(kernel, x)
    normal = np.isfinite(single) & (single >= np.finfo(np.float32).tiny)
    assert normal.sum() > 400_000
    assert units_off(found[normal], want[normal]).max() <= 2.0
    overflows = want > 1.0001 * float(np.finfo(np.float32).max)
    assert overflows.any()
    assert np.isposinf(found[overflows]).all()
    small = want < np.finfo(np.float32).tiny
    assert np.abs(found[small] - want[small]).max() <= 2**-149


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_and_tails(name, artifacts):
    ours, exact = FUNCTIONS[name]
    kernel = kernel_of(ours, artifacts)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40], np.float32)
    for count in (1, 3, 8, 17):  # lanes one by one, and in vectors
        x = np.resize(special, count)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(applied(kernel, x), exact(x))
    x = np.random.default_rng(1).uniform(-20, 20, 1024).astype(np.float32)
    whole = applied(kernel, x)
    for count in (1, 5, 1000):
        np.testing.assert_array_equal(applied(kernel, x[:count].copy()), whole[:count])
