"""Elements of 4 bits, two to a byte of a tensor, move up to 8 bytes at once."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, Schedule
from tilecore.interpreter import run

TARGETS = ("sm_80", "h100", "gfx942")
NAMES = ("int4", "uint4", "float4_e2m1fn")
FORMS = ("copy", "through a tile", "branches", "widened", "padded", "turned")


def moved(rows, columns, name, form):
    """Return a program that moves elements, in one of several forms."""
    result = "float32" if form == "widened" else name

    @T.prim_func
    def main(A: T.Tensor((rows, columns), name), B: T.Tensor((rows, columns), result)):
        with T.Kernel(T.ceildiv(columns, 64), T.ceildiv(rows, 16), threads=32) as (bx, by):
            tile = T.alloc_shared((16, 64), name)
            kept = T.alloc_fragment((16, 64), name)
            if form == "padded":
                T.annotate_safe_value({A: T.cast(3, name)})
            if form == "copy":
                T.copy(A[by * 16, bx * 64], kept)
                T.copy(kept, B[by * 16, bx * 64])
            elif form in ("through a tile", "padded"):
                T.copy(A[by * 16 + (4 if form == "padded" else 0), bx * 64], tile)
                T.copy(tile, B[by * 16, bx * 64])
            elif form == "branches":
                for i, j in T.Parallel(16, 64):
                    row, column = by * 16 + i, bx * 64 + j
                    if row % 3 == 0:
                        B[row, column] = A[row, column]
                    else:
                        B[row, column] = A[rows - 1 - row, column]
            elif form == "widened":
                for i, j in T.Parallel(16, 64):
                    row, column = by * 16 + i, bx * 64 + j
                    B[row, column] = T.cast(A[row, column], "float32") * 2.0
            else:
                T.copy(A[by * 16, bx * 64], tile)
                for i, j in T.Parallel(16, 64):
                    B[by * 16 + i, bx * 64 + j] = tile[i, 63 - j]

    return main


@pytest.mark.few(2)
@pytest.mark.covering("form name", "form columns")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [32, 21])
@pytest.mark.parametrize("columns", [128, 96, 72, 68, 66, 34])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
def test_elements_are_what_the_program_says(form, name, columns, rows, target):
    rng = np.random.default_rng(columns)
    a, b = (rng.integers(0, 256, (rows, columns // 2), np.uint8) for _ in range(2))
    if form == "widened":
        b = np.zeros((rows, columns), np.float32)
    wanted = b.copy()
    func = moved(rows, columns, name, form)
    run(func, a.copy(), wanted)
    run_emulated(func, target, [a, b], (LATE, Schedule(seed=3)))
    np.testing.assert_array_equal(b, wanted)


def test_the_bytes_are_those_of_the_tensor():
    a = np.random.default_rng(0).integers(0, 256, (32, 64), np.uint8)
    b = np.zeros_like(a)
    run_emulated(moved(32, 128, "int4", "through a tile"), "h100", [a, b], (LATE,))
    np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize("form", FORMS[:5])
@pytest.mark.parametrize(("columns", "copied"), [(128, 8), (72, 4), (68, 2), (66, 1)])
def test_neighbours_move_at_once(columns, copied, form):
    """Each element was loaded by itself, and stored by a loop that waits for the other half."""
    text = lowered(moved(32, columns, "int4", form), "h100")[2].text.rpartition('extern "C"')[2]
    loads = [line for line in text.splitlines() if f"tc_copy_{copied}(" in line and "&(A_" in line]
    assert loads
    assert "tc_store_half_byte(" not in text
