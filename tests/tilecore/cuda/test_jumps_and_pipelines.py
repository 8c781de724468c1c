"""Loops with copies that run ahead, and blocks that leave these, or loops around them, early."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore.emulator import ALL_SCHEDULES

pytestmark = pytest.mark.few(3)  # a case takes long

BATCH, STEPS, ROWS, COLUMNS, DEPTH = 4, 4, 64, 64, 16
COUNTS = (0, 1, 3, 4)
LEAVES = ("break first", "break last", "break on sums", "continue", "return")
LEAVES_AROUND = ("return before", "break around", "continue around", "return around")


def sums_of_steps(leave):
    """Twice: the sum of a batch's products, up to where its count (or its sums) lets it leave."""

    @T.prim_func
    def main(
        A: T.Tensor((BATCH, ROWS, STEPS * DEPTH), "float16"),
        B: T.Tensor((BATCH, STEPS * DEPTH, COLUMNS), "float16"),
        counts: T.Tensor((BATCH,), "int32"),
        C: T.Tensor((BATCH, 2, ROWS, COLUMNS), "float16"),
    ):
        with T.Kernel(BATCH, threads=128) as b:
            A_s = T.alloc_shared((ROWS, DEPTH), "float16")
            B_s = T.alloc_shared((DEPTH, COLUMNS), "float16")
            C_s = T.alloc_shared((ROWS, COLUMNS), "float16")  # lies where A_s and B_s were
            C_l = T.alloc_fragment((ROWS, COLUMNS), "float32")
            count = counts[b]
            if leave == "return before" and count == 0:
                T.thread_return()
            for half in T.serial(2):
                if leave == "break around" and count == half:
                    break
                if leave == "continue around" and count == half:
                    continue
                if leave == "return around" and count == half:
                    T.thread_return()
                T.clear(C_l)
                for k in T.Pipelined(STEPS, num_stages=3):
                    if leave == "break first" and k >= count:
                        break
                    if leave == "continue" and k >= count:
                        continue
                    if leave == "return" and k >= count:
                        T.thread_return()
                    T.copy(A[b, 0, k * DEPTH], A_s)
                    T.copy(B[b, k * DEPTH, 0], B_s)
                    T.gemm(A_s, B_s, C_l)
                    if leave == "break last" and k + 1 >= count:
                        break
                    if leave == "break on sums" and C_l[0, 0] >= DEPTH * count:
                        break
                T.copy(C_l, C_s)
                T.copy(C_s, C[b, half, 0, 0])

    return main


def expected_of(leave, count):
    """Return the steps that each half of a batch sums up, -1 where it stores nothing."""
    match leave:
        case "break first" | "continue":
            return [count] * 2
        case "break last" | "break on sums":
            return [max(1, count)] * 2
        case "return":
            return [STEPS if count == STEPS else -1] * 2
        case "return before":
            return [-1 if count == 0 else STEPS] * 2
        case "continue around":
            return [-1 if count == half else STEPS for half in range(2)]
    return [-1 if count <= half else STEPS for half in range(2)]


def arguments():
    a = np.ones((BATCH, ROWS, STEPS * DEPTH), np.float16)
    b = np.ones((BATCH, STEPS * DEPTH, COLUMNS), np.float16)
    c = np.full((BATCH, 2, ROWS, COLUMNS), -DEPTH, np.float16)
    return [a, b, np.array(COUNTS, np.int32), c]


@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_80", "h100", "b200", "mi300x"])
@pytest.mark.parametrize("leave", [*LEAVES, *LEAVES_AROUND])
def test_blocks_leave_loops_early(leave, target):
    """Producers of boxes waited for ever for threads that had left; copies were not awaited."""
    values = arguments()
    run_emulated(sums_of_steps(leave), target, values, ALL_SCHEDULES)
    expected = DEPTH * np.array([expected_of(leave, count) for count in COUNTS])
    np.testing.assert_array_equal(
        values[-1], np.broadcast_to(expected[..., None, None], values[-1].shape)
    )


@pytest.mark.parametrize("leave", LEAVES_AROUND[:3])
def test_producers_leave_as_the_others_do(leave):
    """What they can know; boxes stay the way in which tiles come."""
    plan = run_emulated(sums_of_steps(leave), "h100", arguments())
    (launch,) = plan.launches.values()
    (pipeline,) = launch.pipelines.values()
    assert len(pipeline.boxes) == 2


@T.prim_func
def two_products(
    Q: T.Tensor((16, 32), "float16"),
    K: T.Tensor((48, 32), "float16"),
    V: T.Tensor((48, 32), "float16"),
    blocks: T.Tensor((3,), "int32"),
    Out: T.Tensor((16, 32), "float16"),
):
    with T.Kernel(1, threads=128):
        q = T.alloc_shared((16, 32), "float16")
        k = T.alloc_shared((16, 32), "float16")
        v = T.alloc_shared((16, 32), "float16")
        p = T.alloc_shared((16, 16), "float16")
        s = T.alloc_fragment((16, 16), "float32")
        o = T.alloc_fragment((16, 32), "float32")
        T.copy(Q, q)
        T.clear(o)
        for n in T.Pipelined(3, num_stages=2):
            block = blocks[n]
            if block < 0:
                break
            T.copy(K[block * 16 : block * 16 + 16, :], k)
            T.copy(V[block * 16 : block * 16 + 16, :], v)
            T.gemm(q, k, s, transpose_B=True, clear_accum=True)
            T.copy(s, p)
            T.gemm(p, v, o)
        T.copy(o, Out)


@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_all_copies_have_arrived_where_their_memory_is_used_again(target):
    """Each thread had waited for its own copies, and wrote where others' were under way."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((n, 32)).astype(np.float16) for n in (16, 48, 48))
    o = np.zeros((16, 32), np.float16)
    run_emulated(two_products, target, [q, k, v, np.array([1, -1, 2], np.int32), o], ALL_SCHEDULES)
    expected = q.astype(float) @ k[16:32].astype(float).T @ v[16:32].astype(float)
    np.testing.assert_allclose(o, expected, rtol=2e-2, atol=0.2)
