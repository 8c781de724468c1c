"""Conversions to narrower types: how they round, and that neighbours go by one instruction."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.emulator import ALL_SCHEDULES

ROWS = T.GemmWarpPolicy.FullRow


@pytest.mark.parametrize("source", ["float64", "int32"])
def test_numbers_beside_a_tie(source):
    """float64 becomes float16 by one rounding, as ``cvt`` does; by way of float32 it is two."""

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


def read_again(dtype):
    """An operand of a product in registers that threads compute with, too."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 64), dtype), B: T.Tensor((64, 64), dtype),
        C: T.Tensor((64, 64), "float32"), D: T.Tensor((64, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a, b = (T.alloc_shared((64, 64), dtype) for _ in range(2))
            first, second = (T.alloc_fragment((64, 64), "float32") for _ in range(2))
            narrow = T.alloc_fragment((64, 64), dtype)
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, first, clear_accum=True, policy=ROWS)
            T.copy(first, narrow)
            T.gemm(narrow, b, second, clear_accum=True, policy=ROWS)
            for i, j in T.Parallel(64, 64):
                first[i, j] = T.cast(narrow[i, j], "float32") * 3
            T.copy(first, C)
            T.copy(second, D)

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["sm_80", "h100"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_neighbours_are_narrowed_at_once(dtype, target):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-30, 30, (64, 64)).astype(kind) for _ in range(2))
    a[0, :2], a[1, 0], a[2, 0] = np.nan, np.inf, 200.0
    c, d = (np.zeros((64, 64), np.float32) for _ in range(2))
    run_emulated(read_again(dtype), target, [a, b, c, d], ALL_SCHEDULES)
    with np.errstate(invalid="ignore"):
        narrow = (a.astype(np.float32) @ b.astype(np.float32)).astype(kind).astype(np.float32)
    np.testing.assert_array_equal(c, narrow * 3)
    source = lowered(read_again(dtype), target)[2]
    assert source.text.count(f"tc_narrow_pair_{dtype}(") == 2  # the function, and its use
    if load_nvrtc() is not None:
        cubin = compile_cuda(source.text, source.arch)
        (features,) = read_features(cubin.data, source.arch).values()
        assert features.opcodes["F2FP"] == 16
        assert "F2F" not in features.opcodes


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "h100"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
@pytest.mark.parametrize("wide", ["float32", "float16"])
def test_every_8_bit_float_is_widened_exactly(wide, dtype, target):
    @T.prim_func
    def main(X: T.Tensor((256,), dtype), Y: T.Tensor((256,), wide)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(256):
                Y[i] = X[i]

    x = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, dtype))
    y = np.zeros(256, wide)
    run_emulated(main, target, [x, y])
    wanted = x.astype(wide)
    np.testing.assert_array_equal(y, wanted)
    is_number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(y)[is_number], np.signbit(wanted)[is_number])


@pytest.mark.parametrize(
    ("dtype", "arch", "most"),
    [
        ("float8_e4m3fn", "sm_90a", 100),
        ("float8_e5m2", "sm_90a", 100),
        ("float8_e4m3fn", "sm_80", 220),
    ],
)
def test_8_bit_floats_are_widened_by_few_instructions(dtype, arch, most):
    """Sixteen of float8_e4m3fn took 216 instructions for an H100, which has one for it."""

    @T.prim_func
    def main(X: T.Tensor((4096,), dtype), Y: T.Tensor((4096,), "float16")):
        with T.Kernel(2, threads=128) as bx:
            for i in T.Parallel(2048):
                Y[bx * 2048 + i] = X[bx * 2048 + i]

    source = lowered(main, arch)[2]
    (found,) = read_features(compile_cuda(source.text, arch).data, arch).values()
    assert found.instructions <= most
    assert "I2F" not in found.opcodes
