"""Division of float32 vectors by one number: IEEE results, whatever the operands."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore import runtime
from tilecore.compiler import compile

ROWS, LANES = 1 << 16, 16


@pytest.fixture(scope="module")
def divide():
    @T.prim_func
    def main(
        X: T.Tensor((ROWS, LANES), "float32"),
        Y: T.Tensor((ROWS,), "float32"),
        Z: T.Tensor((ROWS, LANES), "float32"),
    ):
        with T.Kernel(ROWS // 256) as b:
            for i, j in T.Parallel(256, LANES):
                Z[b * 256 + i, j] = X[b * 256 + i, j] / Y[b * 256 + i]

    kernel = runtime.load(compile(main))

    def run(x, y):
        z = np.empty((ROWS, LANES), np.float32)
        kernel(x, y, z)
        return z

    return run


def same(found, x, y):
    with np.errstate(all="ignore"):
        want = x / y[:, None]
    np.testing.assert_array_equal(found, want)
    is_zero = want == 0
    np.testing.assert_array_equal(np.signbit(found[is_zero]), np.signbit(want[is_zero]))


def floats(mantissas, exponents):
    return (mantissas + (exponents << 23)).astype(np.int32).view(np.float32)


@pytest.mark.parametrize("seed", range(8))
def test_random_mantissas_round_correctly(divide, seed):
    rng = np.random.default_rng(seed)
    x = floats(rng.integers(0, 1 << 23, (ROWS, LANES)), rng.integers(100, 154, (ROWS, LANES)))
    mantissas = rng.integers(0, 1 << 23, ROWS)
    if seed % 2:
        mantissas = (1 << 23) - 1 - (mantissas & 15)  # the hardest divisors: nearly all ones
    y = floats(mantissas, rng.integers(100, 154, ROWS))
    same(divide(x, y), x, y)


def test_any_bit_patterns(divide):
    rng = np.random.default_rng(1)
    x, y = (
        rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
        for shape in ((ROWS, LANES), ROWS)
    )
    same(divide(x, y), x, y)


def test_every_pair_of_special_values(divide):
    special = [0.0, 1.0, np.inf, np.nan, 1e-45, 1e-38, 3e38, 2.0**-40, 2.0**60, 3.0]
    values = np.array([*special, *(-v for v in special)], np.float32)
    x, y = (m.ravel() for m in np.meshgrid(values, values))
    x = np.repeat(np.resize(x, ROWS)[:, None], LANES, axis=1)
    same(divide(x, np.resize(y, ROWS)), x, np.resize(y, ROWS))


def test_masked_rows_divide_by_their_sum():
    rows, columns = 8, 100

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1):
            x = T.alloc_fragment((rows, columns), "float32")
            s = T.alloc_fragment((rows,), "float32")
            T.copy(X, x)
            T.reduce_sum(x, s, dim=1)
            for i, j in T.Parallel(rows, columns):
                x[i, j] = x[i, j] / s[i]
            T.copy(x, Y)

    x = np.random.default_rng(0).random((rows, columns)).astype(np.float32)
    x[:, 50:] = 0
    y = np.empty_like(x)
    runtime.load(compile(main))(x, y)
    np.testing.assert_allclose(y, x / x.sum(1, keepdims=True, dtype=np.float64), rtol=3e-7)
    assert (y[:, 50:] == 0).all()
