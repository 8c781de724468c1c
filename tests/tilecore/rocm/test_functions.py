"""Functions of float32 that this code generator writes itself, against float64 and at their edges.

The LLVM text runs on the CPU (llvm_on_cpu); what LLVM makes of it for AMD GPUs has run nowhere.
"""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.rocm.llvm_on_cpu import run_text
from tilecore.amd_compiler import lower_amd
from tilecore.target import parse_target

pytestmark = pytest.mark.few(1)  # a case takes long

ONE = {"sin": T.sin, "cos": T.cos, "tan": T.tan, "asin": T.asin, "acos": T.acos, "atan": T.atan,
       "sinh": T.sinh, "cosh": T.cosh, "log1p": T.log1p}  # fmt: skip
TWO = {"atan2": T.atan2, "pow": T.pow, "fmod": T.fmod}
EXACT = {"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
         "pow": np.power}  # fmt: skip
WORST = 0.501  # of a unit in the last place: half of one is the nearest value
LARGEST = float(np.finfo(np.float32).max)


def exact(name):
    return EXACT.get(name) or getattr(np, name)


def of_one(N):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((len(ONE), N), "float32")):
        with T.Kernel(T.ceildiv(N, 256), threads=128) as bx:
            for i in T.Parallel(256):
                x = X[bx * 256 + i]
                Y[0, bx * 256 + i] = T.sin(x)
                Y[1, bx * 256 + i] = T.cos(x)
                Y[2, bx * 256 + i] = T.tan(x)
                Y[3, bx * 256 + i] = T.asin(x)
                Y[4, bx * 256 + i] = T.acos(x)
                Y[5, bx * 256 + i] = T.atan(x)
                Y[6, bx * 256 + i] = T.sinh(x)
                Y[7, bx * 256 + i] = T.cosh(x)
                Y[8, bx * 256 + i] = T.log1p(x)

    return main


def of_two(N):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Z: T.Tensor((N,), "float32"),
             Y: T.Tensor((len(TWO), N), "float32")):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 256), threads=128) as bx:
            for i in T.Parallel(256):
                x = X[bx * 256 + i]
                z = Z[bx * 256 + i]
                Y[0, bx * 256 + i] = T.atan2(x, z)
                Y[1, bx * 256 + i] = T.pow(x, z)
                Y[2, bx * 256 + i] = T.fmod(x, z)

    return main


def close(name, found, wanted, *given):
    """Assert that results are within WORST of the exact values, and of the same kind and sign."""
    rounded = wanted.astype(np.float32)
    special = ~np.isfinite(rounded) | (rounded == 0)
    np.testing.assert_array_equal(found[special], rounded[special], name)
    zeros = rounded == 0
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(rounded[zeros]), name)
    unit = np.spacing(np.abs(rounded[~special])).astype(np.float64)
    error = np.abs(found[~special].astype(np.float64) - wanted[~special]) / unit
    worst = np.argmax(error)
    at = [float(g[~special][worst]) for g in given]
    assert error[worst] <= WORST, (name, at, float(error[worst]))


def samples(rng, count):
    """Return float32 of all sizes, among them those whose angles nearly vanish."""
    bits = rng.integers(0, 2**32, count // 2, dtype=np.uint32).view(np.float32)
    near = rng.standard_normal(count - count // 2).astype(np.float32)
    near[::3] *= np.float32(1e3)
    turns = np.arange(1, 400) * (np.pi / 2)
    edges = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 2.0**30, -(2.0**30),
             2.0**30 - 64, LARGEST, -LARGEST, 16367173.0 * 2.0**72, 0.5, -0.5, 88.9, 89.5, 3.0,
             -3.0]  # fmt: skip
    return np.concatenate([np.float32(edges), np.float32(turns), bits, near]).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 1])
def test_functions_of_one_argument(seed):
    x = samples(np.random.default_rng(seed), 6000)
    y = np.zeros((len(ONE), x.size), np.float32)
    run_text(of_one(x.size), "gfx942", [x, y])
    with np.errstate(all="ignore"):
        for row, name in zip(y, ONE, strict=True):
            close(name, row, exact(name)(x.astype(np.float64)), x)


@pytest.mark.parametrize("seed", [2, 3])
def test_functions_of_two_arguments(seed):
    rng = np.random.default_rng(seed)
    edges = np.float32(
        [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, -2.0, 3.0, -3.0, 0.5, -2.5]
    )
    x = np.concatenate([np.repeat(edges, len(edges)), samples(rng, 3000)])
    z = np.concatenate([np.tile(edges, len(edges)), rng.permutation(samples(rng, 3000))])
    small = np.abs(rng.standard_normal(2000)).astype(np.float32)
    x = np.concatenate([x, small])
    z = np.concatenate([z, (rng.standard_normal(2000) * 20).astype(np.float32)])
    y = np.zeros((len(TWO), x.size), np.float32)
    run_text(of_two(x.size), "gfx90a", [x, z, y])
    with np.errstate(all="ignore"):
        for row, name in zip(y, TWO, strict=True):
            close(name, row, exact(name)(x.astype(np.float64), z.astype(np.float64)), x, z)


@pytest.mark.parametrize("target", ["gfx90a", "gfx942"])
def test_they_compile_without_scratch_memory(target):
    for func in (of_one(256), of_two(256)):
        *_, code = lower_amd(func, parse_target(target))
        (found,) = code.kernels.values()
        assert found.scratch_bytes == 0
        assert found.opcodes["v_fma_f64"] + found.opcodes["v_fmac_f64_e32"] > 100
