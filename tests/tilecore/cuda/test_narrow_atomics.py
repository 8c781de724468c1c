"""Atomic updates of elements of 8 and 16 bits: neighbours in one word do not lose each other's."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore.emulator import ALL_SCHEDULES

NEAR = {"add": np.add, "max": np.maximum, "min": np.minimum}


def updating(op, dtype, size, count):
    update = {"add": T.atomic_add, "max": T.atomic_max, "min": T.atomic_min}[op]

    @T.prim_func
    def main(
        Where: T.Tensor((count,), "int32"),
        Value: T.Tensor((count,), dtype),
        A: T.Tensor((size,), dtype),
        B: T.Tensor((size,), dtype),
    ):
        with T.Kernel(T.ceildiv(count, 64), threads=64) as bx:
            tx = T.get_thread_binding()
            tile = T.alloc_shared((size,), dtype)
            for i in T.Parallel(size):
                tile[i] = B[i]
            T.sync_threads()
            if bx * 64 + tx < count:
                update(A[Where[bx * 64 + tx]], Value[bx * 64 + tx])
                update(tile[Where[bx * 64 + tx]], Value[bx * 64 + tx])
            T.sync_threads()
            if bx == 0:
                for i in T.Parallel(size):
                    B[i] = tile[i]

    return main


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("op", ["add", "max", "min"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_updates_of_neighbours(op, dtype):
    size, count = 10, 64
    rng = np.random.default_rng(0)
    where = rng.integers(0, size, count).astype(np.int32)
    limits = np.iinfo(dtype)
    value = rng.integers(limits.min, limits.max + 1, count).astype(dtype)
    a = rng.integers(limits.min, limits.max + 1, size).astype(dtype)
    b = a.copy()
    expected = a.copy()
    NEAR[op].at(expected, where, value)
    run_emulated(updating(op, dtype, size, count), "h100", [where, value, a, b], ALL_SCHEDULES)
    np.testing.assert_array_equal(a, expected)
    np.testing.assert_array_equal(b, expected)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("schedule", ALL_SCHEDULES, ids=str)
@pytest.mark.parametrize("dtype", ["int8", "uint16"])
def test_the_old_value_is_told(dtype, schedule):
    """Tickets: each of 64 threads gets a number of its own."""

    @T.prim_func
    def main(Next: T.Tensor((3,), dtype), Told: T.Tensor((64,), dtype)):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            ticket = T.alloc_var(dtype)
            ticket = T.atomic_add(Next[1], T.cast(1, dtype), return_prev=True)
            Told[tx] = ticket

    counter, told = np.array([7, -3 if dtype == "int8" else 3, 9], dtype), np.zeros(64, dtype)
    run_emulated(main, "sm_80", [counter, told], (schedule,))
    first = -3 if dtype == "int8" else 3
    assert sorted(told) == list(range(first, first + 64))
    assert list(counter) == [7, first + 64, 9]
