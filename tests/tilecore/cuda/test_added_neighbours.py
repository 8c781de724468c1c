"""Atomic additions to neighbours in a tensor: one instruction adds to up to 16 bytes (sm_90)."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda
from tilecore.emulator import ALL_SCHEDULES

TARGETS = ("sm_75", "sm_80", "h100", "b200", "gfx942")
NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
         "float64": np.float64, "int32": np.int32}  # fmt: skip
ROWS, PLACES = 32, 20


def added(form, dtype, n):
    """Return a program that adds rows to those that indices name."""

    @T.prim_func
    def main(
        X: T.Tensor((ROWS, n), dtype), Where: T.Tensor((ROWS,), "int32"),
        Y: T.Tensor((PLACES, n), dtype),
    ):  # fmt: skip
        with T.Kernel(2, threads=64) as bx:
            x = T.alloc_shared((ROWS // 2, n), dtype)
            held = T.alloc_fragment((ROWS // 2, n), dtype)
            T.copy(X[bx * (ROWS // 2), 0], x)
            for i, j in T.Parallel(ROWS // 2, n):
                held[i, j] = x[i, j]
            if form == "one by one":
                for i, j in T.Parallel(ROWS // 2, n):
                    T.atomic_add(Y[Where[bx * (ROWS // 2) + i], j], x[i, j])
            elif form == "of registers":
                for i, j in T.Parallel(ROWS // 2, n):
                    T.atomic_add(Y[Where[bx * (ROWS // 2) + i], j], held[i, j])
            elif form == "two":
                for i, j in T.Parallel(ROWS // 2, n // 2):
                    T.atomic_addx2(Y[Where[bx * (ROWS // 2) + i], 2 * j], x[i, 2 * j])
            elif form == "four":
                for i, j in T.Parallel(ROWS // 2, n // 4):
                    T.atomic_addx4(Y[Where[bx * (ROWS // 2) + i], 4 * j], x[i, 4 * j])
            elif form == "twice":
                for i, j in T.Parallel(ROWS // 2, n):
                    T.atomic_add(Y[Where[bx * (ROWS // 2) + i], j], x[i, j])
                    T.atomic_add(Y[Where[bx * (ROWS // 2) + i], j], x[i, j])
            elif form == "under a condition":
                for i, j in T.Parallel(ROWS // 2, n):
                    if j < 6:
                        T.atomic_add(Y[Where[bx * (ROWS // 2) + i], j], x[i, j])
            elif form == "asked for":
                for i, j in T.Parallel(ROWS // 2, n):
                    old = T.atomic_add(Y[Where[bx * (ROWS // 2) + i], j], x[i, j], return_prev=True)
                    held[i, j] = old

    return main


def by_threads(dtype, n):
    """Return a program in which a thread adds a row."""

    @T.prim_func
    def main(
        X: T.Tensor((ROWS, n), dtype), Where: T.Tensor((ROWS,), "int32"),
        Y: T.Tensor((PLACES, n), dtype),
    ):  # fmt: skip
        with T.Kernel(1, threads=ROWS):
            t = T.get_thread_binding()
            for j in T.vectorized(n):
                T.atomic_add(Y[Where[t], j], X[t, j])

    return main


def check(func, target, form, dtype, n):
    """Run a program and compare its sums, which are exact."""
    rng = np.random.default_rng(n)
    x = rng.integers(-3, 4, (ROWS, n)).astype(NUMPY[dtype])
    where = rng.integers(-1, PLACES + 1, ROWS).astype(np.int32)  # some are outside
    y = rng.integers(-3, 4, (PLACES, n)).astype(NUMPY[dtype])
    wanted, inside = y.astype(np.float64), (where >= 0) & (where < PLACES)
    columns = slice(0, 6) if form == "under a condition" else slice(None)
    values = x.astype(np.float64) * (2 if form == "twice" else 1)
    np.add.at(wanted[:, columns], where[inside], values[inside][:, columns])
    run_emulated(func, target, [x, where, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y.astype(np.float64), wanted)


FORMS = ("one by one", "of registers", "two", "four", "twice", "under a condition", "asked for")


@pytest.mark.few(2)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("n", [16, 20, 12])
def test_rows_are_added_to_rows_that_indices_name(form, dtype, n, target):
    if dtype == "bfloat16" and target == "sm_75":
        dtype = "float16"
    check(added(form, dtype, n), target, form, dtype, n)


@pytest.mark.parametrize("target", ["sm_80", "h100"])
@pytest.mark.parametrize(("dtype", "n"), [("float32", 8), ("float32", 6), ("float16", 16)])
def test_a_thread_adds_a_row(dtype, n, target):
    check(by_threads(dtype, n), target, "", dtype, n)


@pytest.mark.parametrize(
    ("form", "dtype", "n", "target", "wanted"),
    [
        ("one by one", "float32", 16, "h100", {4}), ("one by one", "float32", 10, "h100", {2}),
        ("one by one", "float32", 16, "sm_80", set()), ("one by one", "float16", 16, "sm_80", {2}),
        ("one by one", "bfloat16", 16, "h100", {8}), ("one by one", "bfloat16", 12, "h100", {4}),
        ("one by one", "bfloat16", 16, "sm_80", set()), ("of registers", "float32", 8, "b200", {4}),
        ("one by one", "float64", 16, "h100", set()), ("one by one", "int32", 16, "h100", set()),
        ("four", "float32", 16, "h100", {4}), ("four", "float16", 16, "h100", {8}),
        ("two", "float32", 10, "h100", {2}), ("twice", "float32", 16, "h100", set()),
        ("under a condition", "float32", 16, "h100", {2}),
        ("asked for", "float32", 16, "h100", set()),
    ],
)  # fmt: skip
def test_what_one_instruction_adds(form, dtype, n, target, wanted):
    text = lowered(added(form, dtype, n), target)[2].text.partition('extern "C" __global__')[2]
    assert {k for k in (2, 4, 8) if f"tc_atomic_add{k}_{dtype}(" in text} == wanted


def test_a_loop_of_a_thread_adds_four_at_once():
    text = lowered(by_threads("float32", 8), "h100")[2].text.partition('extern "C" __global__')[2]
    assert "i1 < 2;" in text
    assert text.count("tc_atomic_add4_float32(") == 1
    assert "tc_atomic_add_float32(" not in text


def test_the_machine_code_has_a_quarter_of_the_updates():
    source = lowered(added("one by one", "float32", 16), "h100")[2]
    (found,) = read_features(compile_cuda(source.text, "sm_90a").data, "sm_90a").values()
    assert found.opcodes["RED"] == ROWS // 2 * 16 // 64 // 4
    assert "ATOMG" not in found.opcodes
