"""Nests that only move elements: as they lie in memory, in as many lanes as fit."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilecore.language as T
from tilecore import runtime
from tilecore.codegen.llvm import generate
from tilecore.compiler import compile, lower
from tilecore.interpreter import run
from tilecore.ir.dtype import DType
from tilecore.target import parse_target

DTYPES = ["bfloat16", "float16", "int8", "float32", "uint16"]


def gather(dtype, width, fill=0):
    """Rows 3 up and columns 5 to the left, where a flag per row says so, else the row itself."""

    @T.prim_func
    def main(
        A: T.Tensor((20, width), dtype),
        Flags: T.Tensor((20,), "int32"),
        B: T.Tensor((20, width), dtype),
    ):
        with T.Kernel(20) as row:
            flag = Flags[row] > 0
            for j in T.Parallel(width):
                moved = T.if_then_else(row < 15, A[row - 3, j - 5], T.cast(fill, dtype))
                B[row, j] = T.if_then_else(flag, moved, A[row, j])

    return main


def operands(dtype, width):
    rng = np.random.default_rng(width)
    a = rng.integers(-100, 100, (20, width)).astype(DType(dtype).numpy)
    if dtype == "bfloat16":
        bits = rng.integers(0, 1 << 16, (20, width)).astype(np.uint16)
        bits[::2, ::3] = (0x7F80, 0xFF80, 0x0001)[width % 3]  # infinite, subnormal
        a = bits.view(DType(dtype).numpy)
    return a, (rng.integers(0, 2, 20)).astype(np.int32)


@pytest.mark.few(1)
@pytest.mark.covering("dtype fill")
@pytest.mark.parametrize("width", [7, 64, 77, 200])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", [0, 3])
def test_elements_are_moved_bit_by_bit(artifacts, dtype, width, fill):
    func = gather(dtype, width, fill)
    a, flags = operands(dtype, width)
    out, expected = (np.zeros_like(a) for _ in range(2))
    runtime.load(compile(func, store=artifacts))(a, flags, out)
    run(func, a, flags, expected, seed=1)
    shifted = np.zeros_like(a)
    shifted[3:, 5:] = a[:-3, :-5]
    shifted[15:] = np.asarray(fill).astype(a.dtype)
    want = np.where(flags[:, None] > 0, shifted, a)
    for got in (out, expected):
        with np.errstate(invalid="ignore"):  # signaling NaN
            np.testing.assert_array_equal(got != got, want != want)
            np.testing.assert_array_equal(got[got == got], want[want == want])


def test_a_constant_that_is_no_bfloat16_is_rounded(artifacts):
    a, flags = operands("bfloat16", 64)
    flags[:] = 1
    out = np.zeros_like(a)
    runtime.load(compile(gather("bfloat16", 64, 0.1), store=artifacts))(a, flags, out)
    assert (out[15:] == np.asarray(0.1).astype(a.dtype)).all()


def test_views_need_not_be_aligned(artifacts):
    a, flags = operands("bfloat16", 77)
    memory = np.zeros(a.size + 1, a.dtype)
    memory[1:] = a.ravel()
    out, expected = np.zeros_like(a), np.zeros_like(a)
    kernel = runtime.load(compile(gather("bfloat16", 77), store=artifacts))
    kernel(memory[1:].reshape(a.shape), flags, out)
    kernel(a, flags, expected)
    np.testing.assert_array_equal(out.view(np.uint16), expected.view(np.uint16))


def test_whole_registers_of_bfloat16_move_without_arithmetic():
    @T.prim_func
    def main(A: T.Tensor((40, 64), "bfloat16"), B: T.Tensor((8, 64), "bfloat16"), n: T.int32):
        with T.Kernel(8) as row:
            for j in T.Parallel(64):
                B[row, j] = T.if_then_else(row < n, A[row + n, j], T.cast(0, "bfloat16"))

    target = parse_target("avx512")
    _, tir = lower(main, target, {})
    text = generate(tir, target).inspect_source("asm")
    assert re.search(r"vmov(dq)?u\w+\s+.*%zmm\d+, ", text)
    assert not re.search(r"vpslld\\s.*zmm|vpsrld\\s.*zmm|vcvt\\w+\\s.*zmm", text)
