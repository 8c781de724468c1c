"""Copies whose places a table holds run ahead in pipelines, as others do."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES

PAGES, ROWS, WIDTH = 7, 32, 64


def sums_of_pages(form, dtype, writes_table=False):
    """Sums of products of A with pages of B, which a table of places in another one names."""

    @T.prim_func
    def main(
        A: T.Tensor((2, 64, 4 * ROWS), "float16"),
        B: T.Tensor((PAGES, ROWS, WIDTH), "float16"),
        table: T.Tensor((2, 4), dtype),
        order: T.Tensor((8,), dtype),
        lengths: T.Tensor((2,), "int32"),
        C: T.Tensor((2, 64, WIDTH), "float32"),
    ):
        with T.Kernel(2, threads=128) as b:
            a = T.alloc_shared((64, ROWS), "float16")
            page = T.alloc_shared((ROWS, WIDTH), "float16")
            c = T.alloc_fragment((64, WIDTH), "float32")
            T.clear(c)
            for k in T.Pipelined(lengths[b], num_stages=3):
                T.copy(A[b, 0:64, k * ROWS : (k + 1) * ROWS], a)
                if form == "name":
                    number = table[b, k]
                    place = order[number]
                    T.copy(B[place, :, :], page)
                else:
                    T.copy(B[order[table[b, k]], :, :], page)
                T.gemm(a, page, c)
            T.copy(c, C[b, :, :])
            if writes_table:
                table[b, 0] = 0

    return main


def arrays(dtype):
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (2, 64, 4 * ROWS)).astype(np.float16)
    b = rng.integers(-3, 4, (PAGES, ROWS, WIDTH)).astype(np.float16)
    table = np.array([[5, 0, 6, 2], [3, 4, 7, 1]], dtype)
    order = np.array([2, 6, 0, 4, -1, 5, 1, 99], dtype)  # two pages lie outside
    c = np.zeros((2, 64, WIDTH), np.float32)
    return [a, b, table, order, np.array([3, 4], np.int32), c]


def expected(a, b, table, order, lengths, _):
    sums = np.zeros((2, 64, WIDTH))
    for block, count in enumerate(lengths):
        for k, number in enumerate(order[table[block][:count]]):
            if 0 <= number < PAGES:
                part = a[block, :, k * ROWS : (k + 1) * ROWS].astype(np.float64)
                sums[block] += part @ b[number].astype(np.float64)
    return sums


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("form", ["name", "element"])
@pytest.mark.parametrize(
    ("target", "has_boxes"), [("sm_80", False), ("h100", True), ("b200", True), ("mi300x", False)]
)
def test_pages_of_a_table_run_ahead(target, has_boxes, form, dtype):
    given = arrays(dtype)
    want = expected(*given)
    plan = run_emulated(sums_of_pages(form, dtype), target, given, ALL_SCHEDULES)
    np.testing.assert_array_equal(given[-1], want)
    (launch,) = plan.launches.values()
    (pipeline,) = launch.pipelines.values()
    assert len(pipeline.copies) == 2
    assert bool(pipeline.boxes) == has_boxes
    assert len(pipeline.lookups) == (2 if form == "name" else 1)


@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_a_table_that_the_launch_writes_is_read_in_its_turn(target):
    plan, _, _ = lowered(sums_of_pages("name", "int32", writes_table=True), target)
    (launch,) = plan.launches.values()
    assert all(not p.lookups and len(p.copies) == 1 for p in launch.pipelines.values())


def groups(form):
    """Products of groups of rows, one matrix for each; variables say which group a block has."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((3, 64, 32), "float16"),
        ends: T.Tensor((4,), "int32"),
        C: T.Tensor((64, 32), "float16"),
    ):
        with T.Kernel(5, threads=128) as b:
            a = T.alloc_shared((32, 32), "float16")
            w = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            group = T.alloc_var("int32", -1)
            row = T.alloc_var("int32", 0)
            step = T.alloc_var("int32", 0)
            seen = T.alloc_var("int32", 0)
            for g in T.serial(3):
                blocks = T.ceildiv(ends[g + 1] - ends[g], 32)
                if b >= seen and b < seen + blocks:
                    group = g
                    row = ends[g] + (b - seen) * 32
                seen = seen + blocks
            if group >= 0:
                T.clear(c)
                for k in T.Pipelined(2, num_stages=2):
                    T.copy(A[row, (k if form == "kept" else step) * 32], a)
                    T.copy(B[group, k * 32, 0], w)
                    T.gemm(a, w, c)
                    step = step + 1
                for i, j in T.Parallel(32, 32):
                    if row + i < ends[group + 1]:
                        C[row + i, j] = c[i, j]

    return main


@pytest.mark.covering
@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["sm_80", "h100"])
@pytest.mark.parametrize("form", ["kept", "changed"])
def test_variables_that_a_loop_leaves_as_they_are(form, target):
    """Their copies came element by element, after everything else, and so went what is stored."""
    rng = np.random.default_rng(1)
    a = rng.integers(-3, 4, (64, 64)).astype(np.float16)
    b = rng.integers(-3, 4, (3, 64, 32)).astype(np.float16)
    ends, c = np.array([0, 40, 40, 61], np.int32), np.zeros((64, 32), np.float16)
    plan = run_emulated(groups(form), target, [a, b, ends, c])
    (launch,) = plan.launches.values()
    ahead = [copy.dst.buffer.name for p in launch.pipelines.values() for copy in p.copies]
    assert ahead == (["a", "w"] if form == "kept" else ["w"])
    assert lowered(groups(form), target)[2].text.count("C_ptr[") == 1  # in words of 16 bytes
    wanted = np.zeros((64, 32))
    for g in range(3):
        rows = slice(ends[g], ends[g + 1])
        wanted[rows] = a[rows].astype(float) @ b[g].astype(float)
    np.testing.assert_array_equal(c, wanted)
