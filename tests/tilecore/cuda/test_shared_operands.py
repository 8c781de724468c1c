"""Operands that loops copy from tensors into fragments lie in shared memory, where only products
read them: mixtures of experts hold their rows so."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES, LATE, Schedule
from tilecore.inference.gpu.accesses.banks import bank_uses

TARGETS = ("sm_70", "sm_80", "h100", "b200", "gfx942")
FORMS = ("first", "second", "scaled", "upright", "a loop before", "annotated", "kept")


def product(m, n, k, form="first", block=64, stages=2):
    """Return C = A B^T of which a fragment holds an operand."""
    dtype = "float16"

    @T.prim_func
    def main(
        A: T.Tensor((k, m) if form == "upright" else (m, k), dtype), B: T.Tensor((n, k), dtype),
        C: T.Tensor((m, n), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), threads=128) as (bx, by):
            wide = (64, block) if form == "upright" else (block, 64)
            a = (T.alloc_shared if form == "second" else T.alloc_fragment)(wide, dtype)
            b = (T.alloc_fragment if form == "second" else T.alloc_shared)((block, 64), dtype)
            sums = T.alloc_fragment((block, block), "float32")
            if form == "annotated":
                T.annotate_layout({a: T.Fragment(wide, lambda i, j: (i + j // 64, j))})
            T.clear(sums)
            if form == "a loop before":
                T.copy(A[by * block, 0], a)
            for step in T.Pipelined(T.ceildiv(k, 64), num_stages=stages):
                if form == "upright":
                    T.copy(A[step * 64, by * block], a)
                else:
                    T.copy(A[by * block, step * 64], a)
                T.copy(B[bx * block, step * 64], b)
                if form == "scaled":
                    for i, j in T.Parallel(block, 64):
                        a[i, j] = a[i, j] * T.cast(2, dtype)
                T.gemm(a, b, sums, transpose_A=form == "upright", transpose_B=True)
                if form == "kept":
                    T.copy(a, A[by * block, step * 64])
            T.copy(sums, C[by * block, bx * block])

    return main


@pytest.mark.few(2)
@pytest.mark.covering("form target")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS[:5] + FORMS[6:])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 128), (72, 96, 200), (128, 64, 64)])
def test_the_product_is_the_same(m, n, k, form, target):
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
    given = a.T.copy() if form == "upright" else a.copy()
    found = np.zeros((m, n), np.float32)
    func = product(m, n, k, form)
    run_emulated(func, target, [given, b, found], (LATE, Schedule(seed=3)))
    wanted = a.astype(np.float64) @ b.astype(np.float64).T * (2 if form == "scaled" else 1)
    np.testing.assert_array_equal(found, wanted)


def planned(func, target):
    (launch,) = lowered(func, target)[0].launches.values()
    (gemm,) = launch.gemms.values()
    brought = [c.dst.buffer.name for p in launch.pipelines.values() for c in p.copies]
    return gemm, brought


@pytest.mark.parametrize("form", ["first", "second"])
@pytest.mark.parametrize(("target", "source"), [("h100", "descriptor"), ("sm_80", "ldmatrix")])
def test_both_operands_run_ahead_of_the_product(form, target, source):
    gemm, brought = planned(product(128, 128, 512, form), target)
    assert (gemm.a.source, gemm.b.source, brought) == (source, source, ["a", "b"])


@pytest.mark.parametrize("form", ["scaled", "upright", "a loop before", "annotated", "kept"])
def test_fragments_with_other_uses_stay_in_registers(form):
    gemm, brought = planned(product(128, 128, 512, form), "sm_80")
    assert (gemm.a.source, brought) == ("registers", ["b"])


def test_a_fragment_stays_in_registers_where_there_is_no_room():
    stages = 12  # of 16 KiB each
    gemm, brought = planned(product(128, 128, 1024, block=128, stages=stages), "h100")
    assert (gemm.a.source, brought) == ("registers", ["b"])
    assert planned(product(128, 128, 1024, block=128, stages=4), "h100")[1] == ["a", "b"]


def halves(m, n, depth, threads, policies):
    """Return two products in a row, whose warps divide C in different ways."""
    first, second = (getattr(T.GemmWarpPolicy, p) for p in policies)

    @T.prim_func
    def main(
        A: T.Tensor((m, depth), "float16"), B: T.Tensor((n, depth), "float16"),
        V: T.Tensor((n, depth), "float16"), C: T.Tensor((m, depth), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((m, depth), "float16")
            b = T.alloc_shared((n, depth), "float16")
            v = T.alloc_shared((n, depth), "float16")
            scores = T.alloc_fragment((m, n), "float32")
            narrow = T.alloc_fragment((m, n), "float16")
            sums = T.alloc_fragment((m, depth), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(V, v)
            T.clear(scores)
            T.clear(sums)
            T.gemm(a, b, scores, transpose_B=True, policy=first)
            for i, j in T.Parallel(m, n):
                scores[i, j] = scores[i, j] * 0.5
            T.copy(scores, narrow)
            T.gemm(narrow, v, sums, policy=second)
            T.copy(sums, C)

    return main


@pytest.mark.few(2)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "h100", "b200", "gfx942"])
@pytest.mark.parametrize(
    ("m", "n", "threads", "policies"),
    [(32, 32, 128, ("FullRow", "FullRow")), (64, 64, 256, ("FullCol", "FullRow")),
     (128, 64, 256, ("FullCol", "FullRow")), (64, 40, 128, ("Square", "FullCol")),
     (64, 24, 128, ("FullRow", "FullCol"))],
)  # fmt: skip
def test_operands_that_other_warps_hold_are_read_as_matrices(m, n, threads, policies, target):
    rng = np.random.default_rng(m)
    shapes = ((m, 64), (n, 64), (n, 64))
    a, b, v = (rng.integers(-2, 3, s).astype(np.float16) for s in shapes)
    c = np.zeros((m, 64), np.float32)
    run_emulated(halves(m, n, 64, threads, policies), target, [a, b, v, c], ALL_SCHEDULES)
    first, second, third = (x.astype(np.float32) for x in (a, b, v))
    np.testing.assert_array_equal(c, first @ second.T * 0.5 @ third)


@pytest.mark.parametrize(
    ("target", "wanted"),
    [("sm_80", "mma.m16n8k16, 8x1 warps; A from ldmatrix, B from ldmatrix"),
     ("h100", "wgmma.m64n64k16, 2x1 warpgroups; A from descriptor, B from descriptor")],
)  # fmt: skip
def test_how_operands_that_other_warps_hold_are_read(target, wanted):
    """Each element was loaded by itself, its tile met four times in a bank."""
    plan = lowered(halves(128, 64, 64, 256, ("FullCol", "FullRow")), target)[0]
    words = plan.explain()
    assert "narrow: kept in shared memory" in words
    assert "narrow: shared, swizzled by 128 B" in words
    assert f"gemm 128x64x64: {wanted}" in words
    (launch,) = plan.launches.values()
    assert {u.ways for u in bank_uses(launch) if u.buffer.name == "narrow"} <= {1.0}
    assert target != "h100" or "stored by stmatrix: narrow" in words
