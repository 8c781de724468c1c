"""Products whose operands end before their output does: what lies beyond is 0."""

import numpy as np
import pytest

import tilecore.language as T


@pytest.mark.few(2)
@pytest.mark.parametrize("clears", ["by the gemm", "before it", "in the first step"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_an_output_that_is_larger_than_its_operands(run_both, dtype, clears):
    accum = "int32" if dtype == "int8" else "float32"

    @T.prim_func
    def main(
        X: T.Tensor((100, 48), dtype), W: T.Tensor((48, 90), dtype), Y: T.Tensor((128, 128), accum)
    ):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((128, 16), dtype)
            w = T.alloc_shared((16, 128), dtype)
            y = T.alloc_fragment((128, 128), accum)
            if clears == "before it":
                T.clear(y)
            for k in T.serial(3):
                T.copy(X[0, k * 16], x)
                T.copy(W[k * 16, 0], w)
                if clears == "by the gemm":  # the last step alone counts
                    T.gemm(x, w, y, clear_accum=True)
                else:
                    T.gemm(x, w, y, clear_accum=k == 0 if clears == "in the first step" else False)
            T.copy(y, Y)

    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, s).astype(dtype) for s in ((100, 48), (48, 90)))
    steps = slice(32, 48) if clears == "by the gemm" else slice(0, 48)
    wanted = np.zeros((128, 128))
    wanted[:100, :90] = x[:, steps].astype(float) @ w[steps].astype(float)
    run_both(main, [x, w], [np.full((128, 128), -7, accum)], [wanted])


def test_columns_of_an_operand_that_differ_from_step_to_step(run_both):
    """Found by a random program: sums of the step before stayed where the last one has none."""

    @T.prim_func
    def main(
        X: T.Tensor((3, 64, 32), "float32"), W: T.Tensor((112, 32), "float32"),
        Y: T.Tensor((64, 48), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((64, 32), "float32")
            w = T.alloc_shared((48, 32), "float32")
            y = T.alloc_fragment((64, 48), "float32")
            for k in T.serial(3):
                T.copy(X[k, 0, 0], x)
                T.copy(W[k * 48, 0], w)
                T.gemm(x, w, y, transpose_B=True, clear_accum=True)
            T.copy(y, Y)

    rng = np.random.default_rng(1)
    x, w = (rng.integers(-3, 4, s).astype(np.float32) for s in ((3, 64, 32), (112, 32)))
    wanted = np.zeros((64, 48))
    wanted[:, :16] = x[2] @ w[96:].T
    run_both(main, [x, w], [np.zeros((64, 48), np.float32)], [wanted])
