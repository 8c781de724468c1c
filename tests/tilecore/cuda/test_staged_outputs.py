"""Sums that nests of a program store, scaled or under conditions, go out in whole rows."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, Schedule
from tilecore.interpreter import run

M, N, K, ROWS, COLUMNS, STEP = 48, 128, 64, 64, 64, 32
KNOWN = 37  # rows that count
STAGED = ("if", "scaled", "plain", "added", "scattered", "two conditions")
DIRECT = ("turned", "held condition", "half", "two stores", "else", "float32")


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


@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
def test_a_shared_tile_keeps_what_a_condition_leaves(target):
    """Matrices of 8x8 elements go to shared memory at once, whatever conditions say."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 32), "float16"), B: T.Tensor((32, 64), "float16"),
        R: T.Tensor((1,), "int32"), C: T.Tensor((64, 64), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            sums = T.alloc_fragment((64, 64), "float32")
            kept = T.alloc_shared((64, 64), "float16")
            rows = R[0]
            T.copy(A, a)
            T.copy(B, b)
            T.fill(kept, 5)
            T.clear(sums)
            T.gemm(a, b, sums)
            for i, j in T.Parallel(64, 64):
                if i < rows:
                    kept[i, j] = sums[i, j]
            T.copy(kept, C)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((64, 32), (32, 64)))
    found, rows = np.zeros((64, 64), np.float16), np.array([21], np.int32)
    run_emulated(main, target, [a, b, rows, found], (LATE,))
    wanted = np.full((64, 64), 5, np.float16)
    wanted[:21] = (a.astype(np.float32) @ b.astype(np.float32))[:21]
    np.testing.assert_array_equal(found, wanted)
    if target == "h100":  # what registers happen to hold may be what was there
        assert "stmatrix" not in lowered(main, target)[2].text


def test_sums_for_some_rows_only_fill_their_tile_by_matrices():
    text = lowered(program("if"), "h100")[2].text.rpartition('extern "C"')[2]
    assert "tc_stmatrix" in text
    assert "tc_stmatrix" not in lowered(program("scaled"), "h100")[2].text


@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
def test_what_a_nest_makes_of_sums_goes_out_in_rows_too(target):
    """Of a fragment that is no sum itself pairs of elements were written, row by row."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 32), "float16"), B: T.Tensor((32, 64), "float16"),
        S: T.Tensor((64,), "float32"), C: T.Tensor((64, 64), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            sums = T.alloc_fragment((64, 64), "float32")
            scaled = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(sums)
            T.gemm(a, b, sums)
            for i, j in T.Parallel(64, 64):
                x = sums[i, j] * S[i]
                scaled[i, j] = x + 1
            T.copy(scaled, C)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((64, 32), (32, 64)))
    s, found = rng.integers(1, 4, 64).astype(np.float32), np.zeros((64, 64), np.float16)
    plan = run_emulated(main, target, [a, b, s, found], (LATE,))
    wanted = (a.astype(np.float32) @ b.astype(np.float32)) * s[:, None] + 1
    np.testing.assert_array_equal(found, wanted.astype(np.float16))
    assert "C_tile: shared" in plan.explain()
    assert target != "h100" or "stored by TMA: C_tile" in plan.explain()
