"""Nests that read elements of a shared tile which they have written move them at once."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.inference.gpu.accesses.banks import bank_uses

M, N = 32, 64
FORMS = (
    "twice", "never read before", "some alone", "some together", "both ways", "another element",
    "another column", "sums",
)  # fmt: skip


def changed(form, dtype):
    """Return a program that scales a tile in place, and computes another one with it."""

    @T.prim_func
    def main(
        X: T.Tensor((M, N), dtype), G: T.Tensor((M, N), dtype),
        Y: T.Tensor((M, N), dtype), Z: T.Tensor((M, N), dtype),
    ):  # fmt: skip
        with T.Kernel(1, threads=64):
            x = T.alloc_shared((M, N), dtype)
            g = T.alloc_shared((M, N), dtype)
            z = T.alloc_shared((M, N), dtype)
            T.copy(X, x)
            T.copy(G, g)
            for i, j in T.Parallel(M, N):
                if form == "twice":
                    x[i, j] = x[i, j] * 2
                    z[i, j] = x[i, j] + g[i, j]
                elif form == "never read before":
                    x[i, j] = g[i, j] * 3
                    z[i, j] = x[i, j] + g[i, j]
                elif form == "some alone":
                    if j < 21:
                        x[i, j] = x[i, j] * 2
                    z[i, j] = x[i, j] + g[i, j]
                elif form == "some together":
                    if j < 16:
                        x[i, j] = g[i, j] * 2
                    z[i, j] = x[i, j] + g[i, j]
                elif form == "both ways":
                    if j < 16:
                        x[i, j] = g[i, j] * 2
                    else:
                        x[i, j] = g[i, j] + 1
                    if i < 8:
                        z[i, j] = x[i, j] + g[i, j]
                    else:
                        z[i, j] = g[i, j]
                elif form == "another element":
                    x[i, j] = x[i, j] * 2
                    z[i, j] = g[i, N - 1 - j]
                    g[i, N - 1 - j] = z[i, j] + x[i, j]
                elif form == "another column":
                    x[i, j] = x[i, j] * 2
                    z[i, j] = x[i, j] + g[i // 2, j]
                else:
                    x[i, j] = x[i, j] + g[i, j]
                    x[i, j] = x[i, j] + g[i, j]
                    z[i, j] = x[i, j]
            T.copy(x, Y)
            T.copy(z, Z)

    return main


def expected(form, x, g):
    if form == "twice":
        return 2 * x, 2 * x + g
    if form == "never read before":
        return 3 * g, 4 * g
    if form == "some alone":
        y = np.concatenate([2 * x[:, :21], x[:, 21:]], axis=1)
        return y, y + g
    if form == "some together":
        y = np.concatenate([2 * g[:, :16], x[:, 16:]], axis=1)
        return y, y + g
    if form == "both ways":
        y = np.concatenate([2 * g[:, :16], g[:, 16:] + 1], axis=1)
        return y, np.concatenate([y[:8] + g[:8], g[8:]])
    if form == "another element":
        return 2 * x, g[:, ::-1]
    if form == "another column":
        return 2 * x, 2 * x + np.repeat(g, 2, axis=0)[:M]
    return x + 2 * g, x + 2 * g


@pytest.mark.few(2)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "h100", "gfx942"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_points_read_what_they_have_written(form, dtype, target):
    rng = np.random.default_rng(3)
    x, g = (rng.integers(-9, 10, (M, N)).astype(dtype) for _ in range(2))
    y, z = np.zeros_like(x), np.zeros_like(x)
    run_emulated(changed(form, dtype), target, [x, g, y, z], ALL_SCHEDULES)
    wanted = expected(form, x, g)
    np.testing.assert_array_equal(y, wanted[0])
    np.testing.assert_array_equal(z, wanted[1])


@pytest.mark.parametrize(
    "form", ["twice", "never read before", "some together", "both ways", "sums"]
)
def test_they_move_sixteen_bytes_at_once(form):
    """Each element of the tile moved by itself, four rows of a warp in one bank."""
    (launch,) = lowered(changed(form, "float16"), "h100")[0].launches.values()
    uses = [u for u in bank_uses(launch) if u.buffer.name == "x"]
    assert {(u.bytes_per_lane, u.ways) for u in uses} == {(16, 1.0)}
