"""T.use_swizzle: the order of blocks changes, and each still runs once, in its own place."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated

pytestmark = pytest.mark.covering


def numbered(grid, panel, order):
    @T.prim_func
    def main(Y: T.Tensor(grid[::-1], "int32")):
        with T.Kernel(*grid, threads=32) as (bx, by, bz):
            T.use_swizzle(panel, order=order)
            if T.get_thread_binding() == 0:
                T.atomic_add(Y[bz, by, bx], bx + by * 100 + bz * 10000 + 1)

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ["row", "column", "mlx"])
@pytest.mark.parametrize(
    ("grid", "panel"),
    [((5, 7, 1), 3), ((4, 4, 2), 2), ((1, 9, 1), 4), ((9, 1, 2), 10), ((3, 5, 1), 1)],
)
def test_every_block_runs_once(grid, panel, order):
    y = np.zeros(grid[::-1], np.int32)
    run_emulated(numbered(grid, panel, order), "h100", [y])
    z, row, column = np.indices(y.shape)
    np.testing.assert_array_equal(y, column + row * 100 + z * 10000 + 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ["row", "column"])
def test_the_order_is_that_of_panels(order):
    """Blocks take numbers from a counter as they start; the emulator starts them in order."""
    width, height, panel = 6, 5, 2

    @T.prim_func
    def main(N: T.Tensor((1,), "int32"), Y: T.Tensor((height, width), "int32")):
        with T.Kernel(width, height, threads=32) as (bx, by):
            T.use_swizzle(panel, order=order)
            if T.get_thread_binding() == 0:
                Y[by, bx] = T.atomic_add(N[0], 1, return_prev=True)

    y, count = np.zeros((height, width), np.int32), np.zeros(1, np.int32)
    run_emulated(main, "h100", [count, y])
    expected = np.zeros((height, width), np.int32)
    table = expected if order == "row" else expected.T  # panels of rows, or of columns
    number = 0
    for first in range(0, table.shape[0], panel):
        for along in range(table.shape[1]):
            for across in range(first, min(first + panel, table.shape[0])):
                table[across, along] = number
                number += 1
    np.testing.assert_array_equal(y, expected)
