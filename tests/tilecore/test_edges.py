"""Ends of tensors that vectors come to in other steps than one, and tiles that are one line."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.products import product

pytestmark = pytest.mark.few(1)  # a case takes long

ROWS, LANES = 3, 32


def steps(n, step, first, dtype):
    @T.prim_func
    def main(X: T.Tensor((n,), dtype), Y: T.Tensor((ROWS, LANES), dtype)):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(ROWS, LANES):
                Y[i, j] = X[first + i + j * step]

    return main


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
@pytest.mark.parametrize(
    ("step", "first"), [(1, 0), (2, 0), (4, 3), (-1, LANES), (-2, 40), (3, -10)]
)
def test_elements_beyond_a_tensor_are_zero_at_any_step(run_both, dtype, step, first):
    """The test of a whole vector looked at the next elements, whatever the step of the lanes."""
    for n in (20, 50, 96):
        x = np.arange(1, n + 1).astype(dtype)
        index = first + np.arange(ROWS)[:, None] + np.arange(LANES) * step
        inside = (index >= 0) & (index < n)
        wanted = np.where(inside, x[np.clip(index, 0, n - 1)], 0)
        output = np.full((ROWS, LANES), 99).astype(dtype)
        run_both(steps(n, step, first, dtype), [x], [output], [wanted])


@pytest.mark.parametrize("n", [16 * 4, 7 * 4, 3, 32 * 4])
def test_a_piece_for_each_thread_ends_inside_of_the_pieces(run_both, n):
    """BitNet's decoding example: threads that read four elements each, some behind the row."""

    @T.prim_func
    def main(X: T.Tensor((n,), "int8"), Y: T.Tensor((4, LANES), "int8")):
        with T.Kernel(1, threads=LANES):
            t = T.get_thread_binding()
            own = T.alloc_local((4,), "int8")
            for v in T.serial(4):
                own[v] = X[t * 4 + v]
            for v in T.serial(4):
                Y[v, t] = own[v]

    x = np.arange(1, n + 1).astype(np.int8)
    wanted = np.pad(x, (0, LANES * 4 - n)).reshape(LANES, 4).T
    run_both(main, [x], [np.full((4, LANES), 99, np.int8)], [wanted])


@pytest.mark.parametrize("trans_b", [True, False])
@pytest.mark.parametrize("block", [(16, 1, 4), (16, 16, 1), (16, 1, 1)])
def test_tiles_of_one_line(run_both, block, trans_b):
    """A tile of one row or column was packed before the grid as if it had two axes."""
    m, n, k = 19, 3, 8
    main = product(m, n, k, "float32", block, trans_b)
    shape = (n, k) if trans_b else (k, n)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal(shape, np.float32)
    wanted = a.astype(np.float64) @ (b.T if trans_b else b)
    run_both(main, [a, b], [np.full((m, n), np.nan, np.float32)], [wanted])


def test_what_is_guarded_or_padded_may_lie_outside(run_both):
    """Without a condition it is refused: faulty/shapes.test."""

    @T.prim_func
    def main(X: T.Tensor((8,), "int32"), n: T.int32, Y: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            T.annotate_safe_value({X: 7})
            for i in T.Parallel(4):
                Y[i] = X[i + 8]
                if n > 12:
                    Y[i + 8] = 3
                Y[i + 4] = T.if_then_else(n > 12, X[i + 12], 5)

    x = np.arange(8, dtype=np.int32)
    run_both(main, [x, 1], [np.zeros(8, np.int32)], [[7, 7, 7, 7, 5, 5, 5, 5]])
