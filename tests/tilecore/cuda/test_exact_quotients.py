"""Quotients without a rest: where packed weights begin, ``k * block_K // 2``.

Nothing was known of them: tiles of weights came byte by byte, and not ahead.
"""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore.ir.arithmetic.bounds import Linear, linear
from tilecore.ir.expr import Var, binary

K, STEP = 256, 64


def program(start):
    """Return a program that adds up tiles of bytes, which begin at ``start(k)``."""

    @T.prim_func
    def main(Q: T.Tensor((32, K // 2), "uint8"), S: T.Tensor((32, STEP // 2), "int32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32, STEP // 2), "uint8")
            sums = T.alloc_fragment((32, STEP // 2), "int32")
            T.clear(sums)
            for k in T.Pipelined(K // STEP, num_stages=2):
                T.copy(Q[0, start(k)], tile)
                for i, j in T.Parallel(32, STEP // 2):
                    sums[i, j] += T.cast(tile[i, j], "int32")
            T.copy(sums, S)

    return main


@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_80", "h100"])
@pytest.mark.parametrize("start", [lambda k: k * STEP // 2, lambda k: (k << 6) >> 1])
def test_tiles_of_packed_weights_come_ahead(start, target):
    q = np.random.default_rng(0).integers(0, 256, (32, K // 2)).astype(np.uint8)
    found = np.zeros((32, STEP // 2), np.int32)
    plan = run_emulated(program(start), target, [q, found])
    (launch,) = plan.launches.values()
    assert len(launch.pipelines) == 1
    np.testing.assert_array_equal(found, q.reshape(32, -1, STEP // 2).sum(axis=1))


X, Y = Var("x"), Var("y")


@pytest.mark.parametrize(
    ("op", "by", "expected"),
    [
        ("floordiv", 4, Linear({X: 2, Y: 1}, -2)),  # -5 // 4
        ("shr", 2, Linear({X: 2, Y: 1}, -2)),
        ("shl", 3, Linear({X: 64, Y: 32}, -40)),
        ("floordiv", 8, None),
        ("shr", 3, None),
        ("floordiv", -4, None),
    ],
)
def test_forms_of_quotients_and_shifts(op, by, expected):
    whole = binary("sub", binary("add", binary("mul", X, 8), binary("mul", Y, 4)), 5)
    assert linear(binary(op, whole, by)) == expected
