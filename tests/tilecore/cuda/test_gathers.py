"""Rows that a tensor of indices names run ahead of the products that use them (cp.async)."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES

TARGETS = ("sm_75", "sm_80", "h100", "gfx942")
AHEAD = ("plain", "named", "chosen", "not chosen", "branches", "branches turned", "two tiles")
BEHIND = ("masked", "written", "scaled", "read before", "part")
BLOCK, WIDE = 32, 64


def gathered(form, rows, queries, stages=2, copies=False):
    """Return a program that multiplies queries by rows of a tensor and adds up the products."""

    @T.prim_func
    def main(
        Q: T.Tensor((16, WIDE), "float16"), X: T.Tensor((rows, 2, WIDE), "float16"),
        names: T.Tensor((queries,), "int32"), C: T.Tensor((16, BLOCK), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            q = T.alloc_shared((16, WIDE), "float16")
            x = T.alloc_shared((BLOCK, WIDE), "float16")
            y = T.alloc_shared((BLOCK, WIDE), "float16")
            mask = T.alloc_fragment((BLOCK,), "bool")
            sums = T.alloc_fragment((16, BLOCK), "float32")
            T.copy(Q, q)
            T.clear(sums)
            if form == "written":
                names[0] = 3
            for step in T.Pipelined(queries // BLOCK, num_stages=stages):
                first = step * BLOCK
                if copies:
                    T.copy(X[first : first + BLOCK, 1, 0:WIDE], y)
                    T.gemm(q, y, sums, transpose_B=True)
                if form == "read before":
                    T.gemm(q, x, sums, transpose_B=True)
                if form == "masked":
                    for i in T.Parallel(BLOCK):
                        mask[i] = names[first + i] >= 0
                for i, j in T.Parallel(BLOCK // 2 if form == "part" else BLOCK, WIDE):
                    row = names[first + i]
                    if form in ("plain", "written", "read before", "part"):
                        x[i, j] = X[names[first + i], 0, j]
                    elif form in ("named", "two tiles"):
                        x[i, j] = X[row, 0, j]
                    elif form == "chosen":
                        x[i, j] = T.if_then_else(row >= 0, X[row, 0, j], T.float16(0))
                    elif form == "not chosen":
                        x[i, j] = T.if_then_else(row < 0, T.float16(0), X[row, 0, j])
                    elif form == "branches":
                        if T.And(row >= 0, first + i < queries - 3):
                            x[i, j] = X[row, 0, j]
                        else:
                            x[i, j] = 0
                    elif form == "branches turned":
                        if row < 0:
                            x[i, j] = 0
                        else:
                            x[i, j] = X[row, 0, j]
                    elif form == "masked":
                        x[i, j] = T.if_then_else(mask[i], X[row, 0, j], T.float16(0))
                    else:
                        x[i, j] = X[row, 0, j] * T.float16(2)
                if form == "two tiles":
                    for i, j in T.Parallel(BLOCK, WIDE):
                        y[i, j] = X[names[first + i], 1, j]
                    T.gemm(q, y, sums, transpose_B=True)
                if form == "part":
                    for i, j in T.Parallel(BLOCK // 2, WIDE):
                        x[i + BLOCK // 2, j] = T.float16(1)
                if form != "read before":
                    T.gemm(q, x, sums, transpose_B=True)
            T.copy(sums, C)

    return main


def reference(form, q, x, names, copies):
    q, x = q.astype(np.float64), x.astype(np.float64)
    total = np.zeros((16, BLOCK))
    names = names.copy()
    if form == "written":
        names[0] = 3
    for first in range(0, len(names), BLOCK):
        here = names[first : first + BLOCK]
        found = np.where(((here >= 0) & (here < len(x)))[:, None], x[here % len(x), 0], 0)
        if form == "branches":
            found[np.arange(first, first + BLOCK) >= len(names) - 3] = 0
        elif form == "scaled":
            found *= 2
        elif form == "part":
            found[BLOCK // 2 :] = 1
        total += q @ found.T
        if form == "two tiles":
            total += q @ x[here, 1].T
        if copies:
            there = np.zeros((BLOCK, WIDE))
            part = x[first : first + BLOCK, 1]
            there[: len(part)] = part
            total += q @ there.T
    return total


@pytest.mark.few(2)
@pytest.mark.covering("form target", "form stages")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(("rows", "queries"), [(50, 96), (40, 32), (64, 224)])
@pytest.mark.parametrize("form", [f for f in AHEAD + BEHIND if f != "read before"])
def test_rows_are_those_that_indices_name(form, rows, queries, stages, copies, target):
    rng = np.random.default_rng(queries)
    q = rng.integers(-3, 4, (16, WIDE)).astype(np.float16)
    x = rng.integers(-3, 4, (rows, 2, WIDE)).astype(np.float16)
    least = -4 if form in ("chosen", "not chosen", "branches", "branches turned", "masked") else 0
    names = rng.integers(least, rows, queries, np.int32)
    found = np.zeros((16, BLOCK), np.float32)
    wanted = reference(form, q, x, names, copies)
    func = gathered(form, rows, queries, stages, copies)
    run_emulated(func, target, [q, x, names, found], ALL_SCHEDULES)
    np.testing.assert_array_equal(found, wanted)


def brought(func, target):
    (launch,) = lowered(func, target)[0].launches.values()
    return [tile.name for p in launch.pipelines.values() for tile in p.tiles]


@pytest.mark.parametrize("form", AHEAD)
@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_they_run_ahead(form, target):
    func = gathered(form, 64, 224)
    assert brought(func, target) == (["x", "y"] if form == "two tiles" else ["x"])
    assert "tc_cp_async" in lowered(func, target)[2].text


@pytest.mark.parametrize("form", BEHIND)
def test_what_an_iteration_has_to_begin_for_does_not(form):
    assert brought(gathered(form, 64, 224), "sm_80") == []


def test_beside_copies_of_the_tma_threads_gather_themselves():
    func = gathered("named", 64, 224, copies=True)
    assert (brought(func, "sm_80"), brought(func, "h100")) == (["y", "x"], ["y"])


def test_one_tile_is_enough_where_there_is_no_room_for_more():
    """A program that fits one tile of each kind is not refused for gathers that might run ahead."""

    @T.prim_func
    def main(
        X: T.Tensor((300, 1024), "float16"), names: T.Tensor((128,), "int32"),
        C: T.Tensor((64, 1024), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((64, 1024), "float16")
            sums = T.alloc_fragment((64, 1024), "float32")
            T.clear(sums)
            for step in T.Pipelined(2, num_stages=2):
                for i, j in T.Parallel(64, 1024):
                    x[i, j] = X[names[step * 64 + i], j]
                for i, j in T.Parallel(64, 1024):
                    sums[i, j] += x[i, j]
            T.copy(sums, C)

    assert brought(main, "h100") == []
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (300, 1024)).astype(np.float16)
    names = rng.integers(0, 300, 128, np.int32)
    found = np.zeros((64, 1024), np.float32)
    run_emulated(main, "h100", [x, names, found])
    np.testing.assert_array_equal(found, x[names].reshape(2, 64, 1024).astype(np.float32).sum(0))
