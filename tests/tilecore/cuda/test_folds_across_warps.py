"""Reductions across warps: lanes that have one value tell it once."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, Schedule

TARGETS = ("sm_80", "h100", "gfx942")


def rows(m, n, threads, op, dtype="float32"):
    """Return a program that folds the rows of a matrix, which all threads of a block share."""

    @T.prim_func
    def main(X: T.Tensor((m, n), dtype), Y: T.Tensor((m,), dtype)):
        with T.Kernel(1, threads=threads):
            x, y = T.alloc_fragment((m, n), dtype), T.alloc_fragment((m,), dtype)
            T.copy(X, x)
            if op == "sum":
                T.reduce_sum(x, y, dim=1)
            else:
                T.reduce_max(x, y, dim=1)
            T.copy(y, Y)

    return main


@pytest.mark.few(4)
@pytest.mark.covering("m n", "threads n")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("threads", [64, 96, 128, 512])
@pytest.mark.parametrize("n", [32, 100, 256, 1024, 3000])
@pytest.mark.parametrize("m", [1, 5, 16])
def test_rows_are_folded(m, n, threads, op, dtype, target):
    x = np.random.default_rng(n).integers(-9, 9, (m, n)).astype(dtype)
    y = np.zeros(m, dtype)
    run_emulated(rows(m, n, threads, op, dtype), target, [x, y], (LATE, Schedule(seed=2)))
    np.testing.assert_array_equal(y, x.sum(1) if op == "sum" else x.max(1))


def scratch_bytes(func, target="h100"):
    """Return the shared memory of a block beyond its tiles."""
    (plan,) = lowered(func, target)[0].launches.values()
    return plan.shared_bytes - plan.tile_bytes


@pytest.mark.parametrize(("threads", "found"), [(128, 16), (512, 64), (1024, 128)])
def test_a_warp_tells_one_value(threads, found):
    assert scratch_bytes(rows(1, 4096, threads, "sum")) == found


def sums_of_roles(counts, use):
    """Return a program in which roles of so many threads fold rows of their own at once."""
    total, n = sum(counts), 256

    @T.prim_func
    def main(X: T.Tensor((len(counts), n), "float32"), Y: T.Tensor((len(counts),), "float32")):
        with T.Kernel(1, threads=total):
            x = T.alloc_shared((len(counts), n), "float32")
            first, second = T.alloc_fragment((n,), "float32"), T.alloc_fragment((n,), "float32")
            one, other = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            T.copy(X, x)
            tx = T.get_thread_binding()
            if tx < counts[0]:
                T.copy(x[0, :], first)
                for _ in range(use):
                    T.reduce_sum(first, one, dim=0)
                T.copy(one, Y[0:1])
            else:
                T.copy(x[1, :], second)
                for _ in range(use):
                    T.reduce_sum(second, other, dim=0)
                T.copy(other, Y[1:2])

    return main


@pytest.mark.parametrize("target", ["sm_80", "h100"])
@pytest.mark.parametrize("counts", [(128, 128), (64, 192), (256, 128)])
def test_roles_fold_side_by_side(counts, target):
    x = np.random.default_rng(1).integers(-9, 9, (2, 256)).astype(np.float32)
    y = np.zeros(2, np.float32)
    func = sums_of_roles(counts, 3)
    run_emulated(func, target, [x, y], (LATE, Schedule(seed=2), Schedule(seed=5)))
    np.testing.assert_array_equal(y, x.sum(1))
    assert scratch_bytes(func, target) <= 8 * (sum(counts) // 32 + 1)
