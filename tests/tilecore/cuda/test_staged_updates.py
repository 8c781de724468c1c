"""Sums of products that are added to a tensor go there as whole shared tiles (sm_90)."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.test_tile_programs import close, random
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import EmulationError

ROWS, COLUMNS, DEPTH = 150, 64, 32


def added(place, reads_back=False, beside=0):
    """Blocks add products of their own K to one tensor, whose columns lie where ``place`` says."""

    @T.prim_func
    def main(
        A: T.Tensor((4, ROWS, DEPTH), "float16"), B: T.Tensor((4, DEPTH, COLUMNS), "float16"),
        C: T.Tensor((ROWS, COLUMNS), "float32"), D: T.Tensor((ROWS, COLUMNS), "float32"),
    ):  # fmt: skip
        with T.Kernel(2, threads=128) as bx:
            a = T.alloc_shared((64, DEPTH), "float16")
            b = T.alloc_shared((DEPTH, COLUMNS), "float16")
            part = T.alloc_fragment((64, COLUMNS), "float32")
            if beside:
                other = T.alloc_shared((beside,), "float32")
                T.clear(other)
            for z in T.serial(2):
                first = T.max(z - 1, 0) // 64  # 0
                T.copy(B[bx * 2 + z, 0, 0], b)
                for y in T.serial(T.ceildiv(ROWS, 64)):
                    T.copy(A[bx * 2 + z, y * 64, 0], a)
                    T.gemm(a, b, part, clear_accum=True)
                    for i, j in T.Parallel(64, COLUMNS):
                        T.atomic_add(C[(first + y) * 64 + i, place(i, j)], part[i, j])
            if beside:
                T.copy(other[0:COLUMNS], D[bx, 0])
            elif reads_back:
                for j in T.Parallel(COLUMNS):
                    D[bx, j] = C[bx, j]

    return main


def swapped(i, j):
    return j // 32 * 32 + (j // 16 + i) % 2 * 16 + j % 16


def arguments():
    rng = np.random.default_rng(0)
    a, b = random(rng, (4, ROWS, DEPTH), "float16"), random(rng, (4, DEPTH, COLUMNS), "float16")
    return a, b, *(np.zeros((ROWS, COLUMNS), np.float32) for _ in range(2))


def expected(a, b, place):
    rows, columns = np.indices((ROWS, COLUMNS))
    found = np.zeros((ROWS, COLUMNS))
    found[rows, place(rows % 64, columns)] = (a.astype(np.float64) @ b.astype(np.float64)).sum(0)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["h100", "sm_80"])
@pytest.mark.parametrize("place", [swapped, lambda i, j: j, lambda i, j: COLUMNS - 1 - j])
def test_whole_rows_in_any_order(place, target):
    a, b, c, d = arguments()
    plan = run_emulated(added(place), target, [a, b, c, d], ALL_SCHEDULES, tolerance=1e-5)
    close(c, expected(a, b, place), "float32")
    (launch,) = plan.launches.values()
    assert len(launch.updates) == len(launch.running) == (target == "h100")
    text = lowered(added(place), target)[2].text
    assert ("tc_tma_add_2d" in text) == (target == "h100")


@pytest.mark.few(1)
def test_a_tile_is_written_again_when_it_has_been_read():
    with pytest.raises(EmulationError, match=r"race|still read|leaves"):
        run_emulated(
            added(swapped), "h100", list(arguments()), ALL_SCHEDULES, is_ordered=False,
            without="tc_bulk_wait_read_0();", tolerance=1e-5,
        )  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "func",
    [
        added(lambda i, j: j // 2),  # several elements of a row in one place
        added(swapped, reads_back=True),
        added(swapped, beside=54 << 10),  # 216 KiB: there is no room for the tile
    ],
)
def test_others_are_added_element_by_element(func):
    a, b, c, d = arguments()
    plan = run_emulated(func, "h100", [a, b, c, d], tolerance=1e-5)
    assert np.abs(c).sum() > 0
    (launch,) = plan.launches.values()
    assert not launch.updates
    assert not any(tile.name == "C_tile" for tile in launch.shared)
