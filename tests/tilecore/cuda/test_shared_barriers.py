"""Tiles of a pipeline that are first read and freed together have barriers in common (sm_90)."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import EmulationError

M, N, K, DEPTH, STAGES = 64, 64, 256, 64, 3


def program(order):
    """Two products a step: the first of a, b and c, the second of a and c, or of d in c's place."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
        C: T.Tensor((K, N), "float16"), Y: T.Tensor((M, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((M, DEPTH), "float16")
            b = T.alloc_shared((DEPTH, N), "float16")
            c = T.alloc_shared((DEPTH, N), "float16")
            both = T.alloc_shared((DEPTH, N), "float16")
            sums = T.alloc_fragment((M, N), "float32")
            T.clear(sums)
            for k in T.Pipelined(K // DEPTH, num_stages=STAGES):
                T.copy(A[0, k * DEPTH], a)
                T.copy(B[k * DEPTH, 0], b)
                T.copy(C[k * DEPTH, 0], c)
                if order == "together":
                    for i, j in T.Parallel(DEPTH, N):
                        both[i, j] = b[i, j] + c[i, j]
                    T.gemm(a, both, sums)
                else:
                    T.gemm(a, b, sums)
                    T.gemm(a, c, sums)
            T.copy(sums, Y)

    return main


def values():
    rng = np.random.default_rng(0)
    shapes = ((M, K), (K, N), (K, N))
    a, b, c = (rng.integers(-4, 5, s).astype(np.float16) for s in shapes)
    return [a, b, c, np.zeros((M, N), np.float32)]


@pytest.mark.few(1)
@pytest.mark.parametrize(("order", "sets"), [("together", 2), ("one by one", 3)])
def test_tiles_that_are_read_together_are_waited_for_once(order, sets):
    given = values()
    run_emulated(program(order), "h100", given, ALL_SCHEDULES)
    a, b, c, y = (x.astype(np.float64) for x in given)
    np.testing.assert_array_equal(y, a @ (b + c))
    kernel = lowered(program(order), "h100")[2].text.partition('extern "C" __global__')[2]
    assert kernel.count("tc_barrier_init(") == 2 * sets * STAGES
    assert kernel.count("tc_barrier_expect(") == sets


@pytest.mark.few(1)
def test_the_bytes_of_all_of_them_are_waited_for():
    """With those of one tile alone the emulator finds the other one read too soon."""
    text = lowered(program("together"), "h100")[2].text
    both = 2 * DEPTH * N * 2
    assert f", {both});" in text
    wait = next(
        line for line in text.splitlines() if "tc_barrier_expect(" in line and str(both) in line
    )
    with pytest.raises(EmulationError):
        run_emulated(program("together"), "h100", values(), ALL_SCHEDULES, without=wait.strip())
