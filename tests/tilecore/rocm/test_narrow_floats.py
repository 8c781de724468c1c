"""Floats of 8 bits in LLVM IR, run on the CPU (llvm_on_cpu)."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tests.tilecore.cuda.test_tile_programs import close, random
from tests.tilecore.cuda.tile_programs import gemm
from tests.tilecore.rocm.llvm_on_cpu import run_text
from tilecore.amd_compiler import lower_amd
from tilecore.target import parse_target

NAMES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def conversions(N, dtype):
    @T.prim_func
    def main(C: T.Tensor((256,), dtype), W: T.Tensor((256,), "float32"),
             X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), dtype)):  # fmt: skip
        with T.Kernel(1, threads=128):
            for i in T.Parallel(256):
                W[i] = C[i]
            for i in T.Parallel(N):
                Y[i] = X[i]

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", NAMES)
def test_all_codes_and_values_of_all_sizes(dtype):
    kind = getattr(ml_dtypes, dtype)
    codes = np.arange(256, dtype=np.uint8).view(kind)
    rng = np.random.default_rng(9)
    x = np.concatenate([
        rng.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32),
        (rng.standard_normal(4000) * np.exp2(rng.integers(-18, 18, 4000))).astype(np.float32),
        np.float32([0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 57344, 61440, 1e-45]),
    ])  # fmt: skip
    results = []
    for run in (run_text, run_emulated):
        w, y = np.zeros(256, np.float32), np.zeros(x.size, kind)
        run(conversions(x.size, dtype), "gfx942", [codes, w, x, y])
        np.testing.assert_array_equal(w, codes.astype(np.float32))
        results.append(y.view(np.uint8))
    np.testing.assert_array_equal(*results)
    with np.errstate(all="ignore"):
        wanted = x.astype(kind).astype(np.float32)
    values = results[0].view(kind).astype(np.float32)
    inside = np.abs(x) <= float(ml_dtypes.finfo(kind).max)  # types differ in what is larger
    if dtype != "float8_e8m0fnu":  # which has no sign
        np.testing.assert_array_equal(values[inside], wanted[inside])


def test_all_codes_of_four_bits():
    @T.prim_func
    def main(C: T.Tensor((16,), "float4_e2m1fn"), W: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(16):
                W[i] = C[i]

    codes, w = np.arange(16, dtype=np.uint8), np.zeros(16, np.float32)
    run_text(main, "gfx942", [codes[::2] | codes[1::2] << 4, w])
    sizes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    np.testing.assert_array_equal(w, sizes + [-x for x in sizes])


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", NAMES[:4])
def test_products_of_8_bit_floats(dtype):
    func = gemm(72, 64, 96, (64, 64, 32), 2, dtype, "float32", "float32", (False, True), 128)
    rng = np.random.default_rng(10)
    a, b = random(rng, (72, 96), dtype), random(rng, (64, 96), dtype)
    c = np.zeros((72, 64), np.float32)
    run_text(func, "gfx942", [a, b, c])
    close(c, a.astype(np.float64) @ b.astype(np.float64).T, "float32")
    *_, code = lower_amd(func, parse_target("gfx90a"))
    assert code.relocatable.startswith(b"\x7fELF")
