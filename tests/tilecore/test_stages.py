"""What the passes make of roles and of tiles with several stages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilecore.language as T
from tilecore.passes import drop_stages
from tilecore.passes.pipeline import run_passes

RunBoth = Callable[..., list[np.ndarray]]
RNG = np.random.default_rng(0)


def producer_and_consumer(steps: object, shift: int):
    """Return a program that adds up tiles; its loops are the same, or one is ``shift`` longer."""

    @T.prim_func
    def program(X: T.Tensor((steps, 24), "float32"), Y: T.Tensor((24,), "float32")):
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((3, 1, 24), "float32")
            total = T.alloc_fragment((24,), "float32")
            full = T.alloc_barrier([128] * 3)
            empty = T.alloc_barrier([128] * 3)
            with T.ws(0):
                for k in T.serial(steps + shift):
                    T.barrier_wait(empty[k % 3], (k // 3 % 2) ^ 1)
                    T.tma_copy(X[k : k + 1, :], tile[k % 3, :, :], barrier=full[k % 3])
                    T.barrier_arrive(full[k % 3])
            with T.ws(1):
                T.clear(total)
                for k in T.serial(steps):
                    T.barrier_wait(full[k % 3], k // 3 % 2)
                    for i in T.Parallel(24):
                        total[i] = total[i] + tile[k % 3, 0, i]
                    T.barrier_arrive(empty[k % 3])
                T.copy(total, Y)

    return program


def check(run_both: RunBoth, program, steps: int) -> None:
    x = RNG.standard_normal((steps, 24)).astype(np.float32)
    (y,) = run_both(program, [x], [np.zeros(24, np.float32)])
    np.testing.assert_allclose(y, x.sum(0), rtol=1e-4, atol=1e-5)


def test_roles_with_known_loops_of_one_range_need_no_turns(run_both: RunBoth) -> None:
    program = producer_and_consumer(7, 0)
    text = str(run_passes(program))
    assert "while" not in text
    assert "barrier" not in text
    check(run_both, program, 7)


def test_roles_with_other_loops_take_turns(run_both: RunBoth) -> None:
    for program, steps in (
        (producer_and_consumer(7, 2), 7),
        (producer_and_consumer(T.dynamic("steps"), 0), 5),
    ):
        assert "while" in str(run_passes(program))
        check(run_both, program, steps)


def test_a_step_that_is_filled_and_used_at_once_needs_one_copy(run_both: RunBoth) -> None:
    @T.prim_func
    def program(A: T.Tensor((20, 50), "float32"), C: T.Tensor((20, 20), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((2, 20, 16), "float32")
            total = T.alloc_fragment((20, 20), "float32")
            T.clear(total)
            for k in T.serial(T.ceildiv(50, 16)):
                T.copy(A[0, k * 16], tile[k % 2, :, :])
                T.gemm(tile[k % 2, :, :], tile[k % 2, :, :], total, transpose_B=True)
            T.copy(total, C)

    assert "alloc tile: shared float32[20, 16]" in str(run_passes(program))
    a = RNG.standard_normal((20, 50)).astype(np.float32)
    (c,) = run_both(program, [a], [np.zeros((20, 20), np.float32)])
    np.testing.assert_allclose(c, a @ a.T, rtol=1e-4, atol=1e-4)


def test_a_step_that_is_used_later_keeps_its_copy(run_both: RunBoth) -> None:
    @T.prim_func
    def program(X: T.Tensor((6, 4, 8), "float32"), Y: T.Tensor((5, 4, 8), "float32")):
        with T.Kernel(1):
            ahead = T.alloc_shared((2, 4, 8), "float32")
            behind = T.alloc_shared((2, 4, 8), "float32")
            T.copy(X[0, :, :], ahead[0, :, :])
            T.clear(behind)
            for k in T.serial(5):
                T.copy(X[k + 1, :, :], ahead[(k + 1) % 2, :, :])
                T.copy(behind[0, :, :], Y[k, :, :])
                T.copy(ahead[k % 2, :, :], behind[0, :, :])

    text = str(drop_stages.run(program))
    assert "alloc ahead: shared float32[2, 4, 8]" in text
    assert "alloc behind: shared float32[2, 4, 8]" in text
    x = RNG.standard_normal((6, 4, 8)).astype(np.float32)
    (y,) = run_both(program, [x], [np.zeros((5, 4, 8), np.float32)])
    np.testing.assert_array_equal(y, np.concatenate([np.zeros_like(x[:1]), x[:4]]))


def test_loops_may_depend_on_a_block_index(run_both: RunBoth) -> None:
    @T.prim_func
    def program(X: T.Tensor((6, 8), "float32"), Y: T.Tensor((5, 8), "float32")):
        with T.Kernel(5, threads=256) as b:
            row = T.alloc_shared((2, 8), "float32")
            total = T.alloc_fragment((8,), "float32")
            full = T.alloc_barrier([128, 128])
            empty = T.alloc_barrier([128, 128])
            with T.ws(1):
                for k in T.serial(b + 2):
                    T.barrier_wait(empty[k % 2], (k // 2 % 2) ^ 1)
                    T.copy(X[k, :], row[k % 2, :])
                    T.barrier_arrive(full[k % 2])
            with T.ws(0):
                T.clear(total)
                for k in T.serial(b + 2):
                    T.barrier_wait(full[k % 2], k // 2 % 2)
                    for i in T.Parallel(8):
                        total[i] = total[i] + row[k % 2, i]
                    T.barrier_arrive(empty[k % 2])
                T.copy(total, Y[b, :])

    assert "while" not in str(run_passes(program))
    x = RNG.standard_normal((6, 8)).astype(np.float32)
    (y,) = run_both(program, [x], [np.zeros((5, 8), np.float32)])
    wanted = np.stack([x[: b + 2].sum(0) for b in range(5)])
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize(("stages", "ahead"), [(1, 0), (3, 0), (3, 2)])
def test_three_roles_in_any_order_of_the_text(
    run_both: RunBoth, order: tuple[int, ...], stages: int, ahead: int
) -> None:
    """One role loads (``ahead`` steps before its loop), one mixes, one uses row and mixture."""
    steps = 7

    @T.prim_func
    def program(X: T.Tensor((steps, 8), "float32"), Y: T.Tensor((2, 8), "float32")):
        with T.Kernel(1, threads=384):
            row = T.alloc_shared((stages, 8), "float32")
            mix = T.alloc_shared((8,), "float32")
            first = T.alloc_fragment((8,), "float32")
            second = T.alloc_fragment((8,), "float32")
            full = T.alloc_barrier([128] * stages)
            empty = T.alloc_barrier([256] * stages)
            mixed = T.alloc_barrier(128)
            used = T.alloc_barrier(128)
            for role in order:
                with T.ws(role):
                    if role == 0:
                        for k in T.unroll(ahead):
                            T.copy(X[k, :], row[k, :])
                            T.barrier_arrive(full[k])
                        for k in T.serial(ahead, steps):
                            T.barrier_wait(empty[k % stages], (k // stages & 1) ^ 1)
                            T.copy(X[k, :], row[k % stages, :])
                            T.barrier_arrive(full[k % stages])
                    elif role == 1:
                        T.clear(first)
                        for k in T.serial(steps):
                            T.barrier_wait(full[k % stages], k // stages & 1)
                            for i in T.Parallel(8):
                                first[i] = first[i] * 0.5 + row[k % stages, i]
                            T.barrier_wait(used, (k & 1) ^ 1)
                            T.copy(first, mix)
                            T.barrier_arrive(mixed)
                            T.barrier_arrive(empty[k % stages])
                        T.copy(first, Y[0, :])
                    else:
                        T.clear(second)
                        for k in T.serial(steps):
                            T.barrier_wait(full[k % stages], k // stages & 1)
                            T.barrier_wait(mixed, k & 1)
                            for i in T.Parallel(8):
                                second[i] = second[i] + row[k % stages, i] * mix[i]
                            T.barrier_arrive(used)
                            T.barrier_arrive(empty[k % stages])
                        T.copy(second, Y[1, :])

    x = RNG.standard_normal((steps, 8)).astype(np.float32)
    (y,) = run_both(program, [x], [np.zeros((2, 8), np.float32)])
    mixture, total = np.zeros(8, np.float32), np.zeros(8, np.float32)
    for line in x:
        mixture = mixture * 0.5 + line
        total = total + line * mixture
    np.testing.assert_allclose(y, [mixture, total], rtol=1e-4, atol=1e-4)
