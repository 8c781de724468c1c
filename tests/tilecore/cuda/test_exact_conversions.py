"""Small integers become floats by additions, not by the unit that converts them."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda

NUMPY = {"float16": np.float16, "float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
N = 2048


def converting(source, dtype, digits=0, less=None, wide=False):
    """Return a program that converts integers, or some of their bits, and subtracts a number."""

    @T.prim_func
    def main(X: T.Tensor((N,), source), Y: T.Tensor((N,), "float32" if wide else dtype)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                x = X[i] if not digits else (X[i] >> 1) & (2**digits - 1)
                y = T.cast(x, dtype)
                if wide:
                    y = T.cast(y, "float32")
                if less is not None:
                    y = y - (T.float32(less) if wide else T.Cast(dtype, less))
                Y[i] = y

    return main


def kernel_text(func, target):
    return lowered(func, target)[2].text.partition('extern "C" __global__')[2]


@pytest.mark.few(16)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "h100"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize(("source", "digits"), [
    ("int8", 0), ("uint8", 0), ("int16", 0), ("uint16", 0), ("int32", 0), ("uint8", 4),
    ("int32", 4), ("uint32", 10), ("int32", 11), ("int32", 17), ("int64", 3),
])  # fmt: skip
@pytest.mark.parametrize(("less", "wide"), [
    (None, False), (8, False), (-128, False), (1024, False), (2500, False), (-70000, False),
    (0.5, False), (None, True), (8, True), (-1024, True),
])  # fmt: skip
def test_every_integer_becomes_the_float_that_a_conversion_makes(
    source, digits, less, wide, dtype, target
):
    if target == "sm_75" and dtype == "bfloat16":
        dtype = "float16"
    rng = np.random.default_rng(digits)
    ends = np.iinfo(source)
    x = rng.integers(ends.min, ends.max, N, source, endpoint=True)
    x[:4] = ends.min, ends.max, 0, 1
    x[4 : 4 + 512] = np.arange(ends.min, ends.min + 512).astype(source)
    y = np.zeros(N, np.float32 if wide else NUMPY[dtype])
    run_emulated(converting(source, dtype, digits, less, wide), target, [x, y])
    given = x if not digits else (x >> 1) & x.dtype.type(2**digits - 1)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = given.astype(NUMPY[dtype])
        if wide:
            wanted = wanted.astype(np.float32)
        if less is not None:
            wanted = wanted - wanted.dtype.type(less)
    np.testing.assert_array_equal(y.view(f"u{y.itemsize}"), wanted.view(f"u{y.itemsize}"))


@pytest.mark.parametrize(("source", "dtype", "digits", "less", "target", "wanted"), [
    ("int8", "float16", 0, None, "sm_80", "tc_exact_float16("),
    ("uint8", "float16", 0, 8, "h100", "tc_exact_float16("),
    ("uint32", "float16", 10, None, "b200", "tc_exact_float16("),
    ("uint32", "float16", 11, None, "b200", None),  # 1024 and more are not behind 1024
    ("int16", "float16", 0, None, "sm_80", None),
    ("uint8", "float16", 0, 0.5, "sm_80", "tc_exact_float16("),
    ("int8", "float32", 0, None, "h100", "tc_exact_float32("),
    ("uint8", "float32", 0, None, "h100", None),  # I2FP
    ("uint8", "float32", 0, 128, "h100", "tc_exact_float32("),
    ("uint8", "bfloat16", 0, None, "sm_80", "tc_exact_float32("),
    ("int32", "float32", 0, None, "sm_80", None),
])  # fmt: skip
def test_which_integers_are_added(source, dtype, digits, less, target, wanted):
    text = kernel_text(converting(source, dtype, digits, less), target)
    found = {f for f in ("tc_exact_float16(", "tc_exact_float32(") if f in text}
    assert found == ({wanted} if wanted else set())


def test_the_number_that_is_subtracted_next_is_subtracted_with_the_power():
    text = kernel_text(converting("uint8", "float16", 4, 8), "sm_80")
    assert "0x1.02p+10" in text  # 1032
    text = kernel_text(converting("uint8", "bfloat16", 4, 8, wide=True), "h100")
    assert "0x1.80001p+23" in text
    assert "tc_narrow_bfloat16" not in text  # 15 is a bfloat16 as it is


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("target", "arch"), [("sm_80", "sm_80"), ("h100", "sm_90a")])
def test_no_conversion_is_left_where_weights_of_4_bits_are_decoded(dtype, target, arch):
    rows, k = 64, 64

    @T.prim_func
    def main(
        X: T.Tensor((rows, k), dtype), W: T.Tensor((rows, k // 2), "uint8"),
        S: T.Tensor((rows,), dtype), Y: T.Tensor((rows, rows), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((rows, k), dtype)
            w = T.alloc_shared((rows, k // 2), "uint8")
            decoded = T.alloc_shared((rows, k), dtype)
            y = T.alloc_fragment((rows, rows), "float32")
            T.copy(X, x)
            T.copy(W, w)
            for i, j in T.Parallel(rows, k):
                decoded[i, j] = (T.cast((w[i, j // 2] >> (j % 2 * 4)) & 15, dtype) - 8.0) * S[i]
            T.clear(y)
            T.gemm(x, decoded, y, transpose_B=True)
            T.copy(y, Y)

    rng = np.random.default_rng(3)
    x = rng.standard_normal((rows, k)).astype(NUMPY[dtype])
    w = rng.integers(0, 256, (rows, k // 2), np.uint8)
    s = rng.standard_normal(rows).astype(NUMPY[dtype])
    y = np.zeros((rows, rows), np.float32)
    run_emulated(main, target, [x, w, s, y])
    weights = np.stack([w & 15, w >> 4], -1).reshape(rows, k).astype(np.float32) - 8
    weights = (weights * s[:, None].astype(np.float32)).astype(NUMPY[dtype])
    wanted = x.astype(np.float64) @ weights.astype(np.float64).T
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-2)
    source = lowered(main, target)[2]
    (found,) = read_features(compile_cuda(source.text, arch).data, arch).values()
    assert not {"I2F", "I2FP"} & found.opcodes.keys()
