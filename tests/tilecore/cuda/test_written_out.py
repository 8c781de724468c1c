"""Loops that take parts of a fragment in turn (as sparse_mla_bwd of TileLang's examples)."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.ir.nodes import For
from tilecore.ir.visitor import walk
from tilecore.passes import write_out

pytestmark = pytest.mark.covering
TARGETS = ("sm_80", "h100", "gfx942")


def product(take, parts, rows=32):
    """C = A B, of which ``take`` moves ``parts`` parts through a small shared tile."""

    @T.prim_func
    def main(
        A: T.Tensor((64, rows), "float16"),
        B: T.Tensor((64, 128), "float16"),
        C: T.Tensor((rows, 128), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, rows), "float16")
            b = T.alloc_shared((64, 128), "float16")
            part = T.alloc_shared((rows // parts, 128), "float32")
            c = T.alloc_fragment((rows, 128), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(
                a, b, c, transpose_A=True, policy=T.GemmWarpPolicy.FullCol, clear_accum=True
            )  # fmt: skip
            for s in range(parts):
                take(c, part, s, rows, rows // parts)
                for i, j in T.Parallel(rows // parts, 128):
                    C[i + s * (rows // parts), j] = part[i, j]

    return main


@T.macro
def under_a_condition(c, part, s, rows, size):
    for i, j in T.Parallel(rows, 128):
        if i < size:
            part[i, j] = c[i + s * size, j]


@T.macro
def with_names(c, part, s, rows, size):
    first = s * size
    for i, j in T.Parallel(size, 128):
        row = first + i
        part[i, j] = c[row, j]


@T.macro
def by_copies(c, part, s, rows, size):
    T.copy(c[s * size : (s + 1) * size, :], part)


def arguments(rows=32):
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (64, rows)).astype(np.float16)
    b = rng.integers(-3, 4, (64, 128)).astype(np.float16)
    return a, b, a.T.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("take", [under_a_condition, with_names, by_copies])
def test_parts_come_from_registers(take, target):
    a, b, want = arguments()
    c = np.zeros_like(want)
    plan = run_emulated(product(take, 2), target, [a, b, c], ALL_SCHEDULES)
    np.testing.assert_array_equal(c, want)
    (launch,) = plan.launches.values()
    if target != "gfx942":  # whose lanes have other rows of the second half
        assert "c" in {tile.name for tile in launch.fragments}, launch.explain()


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_many_parts_come_from_shared_memory(target):
    a, b, want = arguments(64)
    c = np.zeros_like(want)
    run_emulated(product(under_a_condition, 16, 64), target, [a, b, c], ALL_SCHEDULES)
    np.testing.assert_array_equal(c, want)


def test_what_is_written_out():
    def loops(func):
        return sum(isinstance(s, For) for s in walk(write_out.run(func).body))

    assert loops(product(under_a_condition, 2)) == 0
    assert loops(product(by_copies, 8)) == 0
    assert loops(product(under_a_condition, 16)) == 1

    @T.macro
    def whole_rows(c, part, s, rows, size):
        for i, j in T.Parallel(size, 128):
            part[i, j] = c[s, j]

    assert loops(product(whole_rows, 2)) == 1
