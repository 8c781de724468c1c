"""T.Parallel over arrays that each thread has for itself (T.alloc_local)."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore import runtime
from tilecore.compiler import compile
from tilecore.emulator import ALL_SCHEDULES
from tilecore.interpreter import run

TARGETS = ("sm_75", "sm_80", "sm_90a", "sm_100a")
RNG = np.random.default_rng(20261126)


def rows_of_threads(rows, width, dtype):
    """Each thread doubles a row in its own array; what is odd in it becomes positive."""
    blocks = -(-rows // 64)

    @T.prim_func
    def main(X: T.Tensor((rows, width), dtype), Y: T.Tensor((rows, width), "float32")):
        with T.Kernel(blocks, threads=64) as b:
            row = b * 64 + T.get_thread_binding(0)
            mine = T.alloc_local((width,), "float32")
            table = T.alloc_local((2, width), "float32")
            for i in T.Parallel(width):
                mine[i] = T.if_then_else(row < rows, T.cast(X[row, i], "float32") * 2, 0)
            for i, j in T.Parallel(2, width):
                if j % 2 == 1:
                    table[i, j] = T.abs(mine[j]) + i
                else:
                    table[i, j] = mine[j] + i
            if row < rows:
                for i in T.serial(width):
                    Y[row, i] = table[1, i]

    return main


def scaled_rows(rows, width):
    """A variable of each point of a nest, beside code per thread."""

    @T.prim_func
    def main(X: T.Tensor((rows, width), "float32"), Y: T.Tensor((rows, width), "float32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding(0)
            tile = T.alloc_shared((rows, width), "float32")
            for k in T.serial(t, rows * width, 64):
                tile[k // width, k % width] = X[k // width, k % width]
            for i, j in T.Parallel(rows, width):
                scale = T.alloc_var("float32", init=1)
                if i % 2 == 1:
                    scale = T.cast(j, "float32")
                Y[i, j] = tile[i, j] * scale

    return main


def everywhere(func, target, x):
    """Return the output of the oracle, of the CPU and of the emulated GPU."""
    found = []
    for runs in (
        lambda *given: run(func, *given),
        lambda *given: runtime.load(compile(func))(*given),
        lambda *given: run_emulated(func, target, given, ALL_SCHEDULES),
    ):
        found.append(np.full(x.shape, np.nan, np.float32))
        runs(x, found[-1])
    return found


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("rows", "width"), [(64, 5), (77, 8), (130, 3)])
def test_every_thread_runs_a_nest_over_its_own_array(rows, width, dtype, target):
    x = RNG.standard_normal((rows, width)).astype(dtype)
    want = 2 * x.astype(np.float64)
    want[:, 1::2] = np.abs(want[:, 1::2])
    for y in everywhere(rows_of_threads(rows, width, dtype), target, x):
        np.testing.assert_allclose(y, want + 1, rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "width"), [(5, 7), (9, 32)])
def test_each_point_has_variables_of_its_own(rows, width, target):
    x = RNG.standard_normal((rows, width)).astype(np.float32)
    scale = np.where(np.arange(rows)[:, None] % 2 == 1, np.arange(width)[None], 1)
    for y in everywhere(scaled_rows(rows, width), target, x):
        np.testing.assert_allclose(y, x * scale.astype(np.float64), rtol=1e-6)
