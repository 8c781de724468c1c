"""Nests in loops with stages that copy boxes of tensors run ahead as T.copy does."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.ir.nodes import Copy, Parallel
from tilecore.ir.visitor import walk
from tilecore.passes import nest_copies


def program(fill, *, kind="float32", source="float32", loop=T.Pipelined):
    """Return a program that adds up 4 tiles of 32 x 32, which ``fill(A, tile, step)`` brings."""

    @T.prim_func
    def main(A: T.Tensor((4, 40, 32), source), C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32, 32), kind)
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for k in loop(4, num_stages=2) if loop is T.Pipelined else loop(4):
                fill(A, tile, k)
                for i, j in T.Parallel(32, 32):
                    c[i, j] += T.cast(tile[i, j], "float32")
            T.copy(c, C)

    return main


@T.macro
def whole(A, tile, k):
    for i, j in T.Parallel(32, 32):
        tile[i, j] = A[k, i + 4 + k, j]


@T.macro
def half(A, tile, k):
    for i, j in T.Parallel(16, 32):
        tile[i + 16, j] = A[k, i, j]
    for i, j in T.Parallel(16, 32):
        tile[i, j] = A[k, 16 + i, j]


@T.macro
def turned(A, tile, k):
    for i, j in T.Parallel(32, 32):
        tile[j, i] = A[k, i, j]


@T.macro
def every_other(A, tile, k):
    for i, j in T.Parallel(32, 16):
        tile[i, j] = A[k, i, 2 * j]
    for i, j in T.Parallel(32, 16):
        tile[i, j + 16] = A[k, i, 2 * j + 1]


@T.macro
def doubled(A, tile, k):
    for i, j in T.Parallel(32, 32):
        tile[i, j] = A[k, i, j] * 2


@T.macro
def chosen(A, tile, k):
    for i, j in T.Parallel(32, 32):
        if j < 31 - k:
            tile[i, j] = A[k, i, j]
        else:
            tile[i, j] = 0


def copies(func):
    """Return how many copies to shared tiles the pass makes of nests."""
    made = nest_copies.run(func)
    found = [s for s in walk(made.body) if isinstance(s, Copy) and s.dst.buffer.scope == "shared"]
    nests = [sum(isinstance(s, Parallel) for s in walk(f.body)) for f in (func, made)]
    assert nests[0] - nests[1] == len(found)
    return len(found)


@pytest.mark.parametrize(
    ("fill", "options", "count"),
    [
        (whole, {}, 1),
        (half, {}, 2),
        (whole, {"loop": T.serial}, 0),
        (whole, {"kind": "float16"}, 0),
        (turned, {}, 0),
        (every_other, {}, 0),
        (doubled, {}, 0),
        (chosen, {}, 0),
    ],
)
def test_which_nests_are_copies(fill, options, count):
    assert copies(program(fill, **options)) == count


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["h100", "sm_80"])
def test_they_run_ahead_of_what_uses_the_tile(target):
    func = program(whole)
    a = np.random.default_rng(0).normal(size=(4, 40, 32)).astype(np.float32)
    c = np.full((32, 32), 77, np.float32)
    plan = run_emulated(func, target, [a, c], ALL_SCHEDULES)
    (launch,) = plan.launches.values()
    (pipeline,) = launch.pipelines.values()
    assert len(pipeline.copies) == 1
    expected = sum(a[k, 4 + k : 36 + k] for k in range(4))
    np.testing.assert_allclose(c, expected, rtol=1e-6, atol=1e-6)
