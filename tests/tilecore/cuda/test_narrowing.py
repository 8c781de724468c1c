"""float64 becomes float16 by one rounding, as ``cvt`` does; by way of float32 it is two."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated


@pytest.mark.parametrize("source", ["float64", "int32"])
def test_numbers_beside_a_tie(source):
    @T.prim_func
    def main(X: T.Tensor((64,), source), Y: T.Tensor((64,), "float16")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                Y[i] = T.cast(X[i], "float16")

    ties = 2 * np.arange(64) + 1 + 2.0**11
    x = (
        ties * (1 + np.resize([-1, 0, 1], 64) * 1e-12)
        if source == "float64"
        else ties.astype(source)
    )
    y = np.zeros(64, np.float16)
    run_emulated(main, "sm_80", [x, y])
    np.testing.assert_array_equal(y, x.astype(np.float16))
    assert len(set(y - ties)) == 2
