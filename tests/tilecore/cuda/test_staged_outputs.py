"""Sums that nests of a program store, scaled or under conditions, go out in whole rows."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, Schedule
from tilecore.interpreter import run

M, N, K, ROWS, COLUMNS, STEP = 48, 128, 64, 64, 64, 32
KNOWN = 37  # rows that count
STAGED = ("if", "scaled", "plain", "added", "scattered", "two conditions", "float32")
DIRECT = ("turned", "held condition", "half", "two stores", "else")


def program(form):
    """Return a product of 48x64 and 64x128 whose sums a nest stores."""
    dtype = "float32" if form == "float32" else "float16"

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
        W: T.Tensor((M,), "float32"), R: T.Tensor((M,), "int32"), C: T.Tensor((N, N), dtype),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, COLUMNS), T.ceildiv(M, ROWS), threads=128) as (bx, by):
            a = T.alloc_shared((ROWS, STEP), "float16")
            b = T.alloc_shared((STEP, COLUMNS), "float16")
            sums = T.alloc_fragment((ROWS, COLUMNS), "float32")
            large = T.alloc_fragment((ROWS,), "float32")
            rows = R[0]
            T.clear(sums)
            for k in T.Pipelined(T.ceildiv(K, STEP), num_stages=2):
                T.copy(A[by * ROWS, k * STEP], a)
                T.copy(B[k * STEP, bx * COLUMNS], b)
                T.gemm(a, b, sums)
            if form == "held condition":
                T.reduce_max(sums, large, dim=1)
            for i, j in T.Parallel(ROWS // 2 if form == "half" else ROWS, COLUMNS):
                row, column = by * ROWS + i, bx * COLUMNS + j
                if form in ("if", "float32", "half"):
                    if i < rows:
                        C[row, column] = sums[i, j]
                elif form == "scaled":
                    if i < rows:
                        C[row, column] = sums[i, j] * W[row]
                elif form == "plain":
                    C[row, column] = T.max(sums[i, j], 0)
                elif form == "added":
                    C[row, column] = sums[i, j] + C[row, column]
                elif form == "scattered":
                    if row < M:
                        C[R[row], column] = sums[i, j]
                elif form == "two conditions":
                    if i < rows:  # noqa: SIM102
                        if column < 96:
                            C[row, column] = sums[i, j]
                elif form == "turned":
                    C[column, row] = sums[i, j]
                elif form == "held condition":
                    if large[i] > 0:
                        C[row, column] = sums[i, j]
                elif form == "two stores":
                    C[row, column] = sums[i, j]
                    C[row + 64, column] = sums[i, j] * 2
                elif i < rows:
                    C[row, column] = sums[i, j]
                else:
                    C[row, column] = 7

    return main


def inputs(form):
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((M, K), (K, N), (N, N)))
    places = rng.permutation(N)[:M].astype(np.int32) if form == "scattered" else [KNOWN] * M
    c = c.astype(np.float32) if form == "float32" else c
    return [a, b, rng.standard_normal(M).astype(np.float32), np.array(places, np.int32), c]


@pytest.mark.few(3)
@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
@pytest.mark.parametrize("form", [*STAGED, *DIRECT])
def test_what_is_stored_is_what_the_program_says(form, target):
    given = inputs(form)
    wanted = given[-1].copy()
    run(program(form), *given[:-1], wanted)
    run_emulated(program(form), target, given, (LATE, Schedule(seed=5)))
    np.testing.assert_allclose(given[-1], wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("form", STAGED)
def test_rows_go_out_sixteen_bytes_at_a_time(form):
    assert widths(form, "h100") == widths(form, "sm_80") == {16}


@pytest.mark.parametrize("form", DIRECT)
def test_what_would_not_gain_by_it_goes_out_directly(form):
    assert 16 not in widths(form, "sm_80")


def widths(form, target):
    """Return the bytes of the stores to C that move several elements."""
    text = lowered(program(form), target)[2].text.rpartition('extern "C"')[2]
    stores = [line for line in text.splitlines() if "tc_copy_" in line and "&(C_ptr" in line]
    return {int(line.split("tc_copy_")[1].split("((&(C_ptr")[0]) for line in stores
            if "((&(C_ptr" in line}  # fmt: skip
