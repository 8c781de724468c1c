"""Tiles whose rows a warp meets in few banks are swizzled, where that relieves the banks."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES, LATE, Schedule
from tilecore.inference.gpu.accesses.banks import bank_uses

TARGETS = ("sm_75", "sm_80", "h100", "gfx942")


def decoded(m, n, k, block_k):
    """Return a product of which a fragment holds decoded weights of four bits, two to a byte."""

    @T.prim_func
    def main(
        A: T.Tensor((m, k), "float16"), B: T.Tensor((n, k // 2), "uint8"),
        C: T.Tensor((n, m), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(m, 64), T.ceildiv(n, 64), threads=128) as (bx, by):
            a = T.alloc_shared((64, block_k), "float16")
            b = T.alloc_shared((64, block_k // 2), "uint8")
            codes = T.alloc_fragment((64, block_k // 2), "uint8")
            weights = T.alloc_fragment((64, block_k), "float16")
            sums = T.alloc_fragment((64, 64), "float32")
            T.clear(sums)
            for step in T.Pipelined(T.ceildiv(k, block_k), num_stages=2):
                T.copy(A[bx * 64, step * block_k], a)
                T.copy(B[by * 64, step * block_k // 2], b)
                T.copy(b, codes)
                for i, j in T.Parallel(64, block_k):
                    code = T.cast(codes[i, j // 2] >> (j % 2 * 4), "int32") & 15
                    weights[i, j] = T.cast(code - 8, "float16")
                T.gemm(weights, a, sums, transpose_B=True)
            T.copy(sums, C[by * 64, bx * 64])

    return main


def ways(func, name, target="h100"):
    """Return the conflicts of the accesses of a tile, and its swizzles."""
    launches = lowered(func, target)[0].launches.values()
    uses = [u.ways for launch in launches for u in bank_uses(launch) if u.buffer.name == name]
    swizzles = [p.swizzle_bytes for x in launches for t, p in x.shared.items() if t.name == name]
    return uses, swizzles


@pytest.mark.few(2)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 256), (72, 64, 192), (64, 96, 128)])
@pytest.mark.parametrize("block_k", [64, 128])
def test_decoded_weights_are_multiplied(m, n, k, block_k, target):
    rng = np.random.default_rng(k)
    a = rng.integers(-3, 4, (m, k)).astype(np.float16)
    b = rng.integers(0, 256, (n, k // 2)).astype(np.uint8)
    found = np.zeros((n, m), np.float32)
    run_emulated(decoded(m, n, k, block_k), target, [a, b, found], (LATE, Schedule(seed=3)))
    weights = np.stack([b & 15, b >> 4], axis=-1).reshape(n, k).astype(np.float64) - 8
    np.testing.assert_array_equal(found, weights @ a.astype(np.float64).T)


@pytest.mark.parametrize(("block_k", "swizzle"), [(128, 64), (64, 32)])
def test_codes_of_a_fragment_are_read_without_conflicts(block_k, swizzle):
    """Eight rows of 64 bytes lie in two rows of banks: lanes met four at a time."""
    found, swizzles = ways(decoded(64, 64, 256, block_k), "b")
    assert (found, swizzles) == ([1.0] * len(found), [swizzle])


def turned(rows, columns, dtype, form="copy"):
    """Return a program that transposes by way of a shared tile."""

    @T.prim_func
    def main(A: T.Tensor((rows, columns), dtype), B: T.Tensor((columns, rows), dtype)):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((rows, columns), dtype)
            T.copy(A, tile)
            if form == "an element":
                A[0, 0] = tile[1, 0]
            source = T.reshape(tile, (rows * columns,)) if form == "view" else tile
            for j, i in T.Parallel(columns, rows):
                at = (i * columns + j,) if form == "view" else (i, j)
                B[j, i] = source[at]

    return main


@pytest.mark.few(2)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", ["copy", "an element", "view"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (16, 32), (24, 40)])
def test_tiles_are_transposed(rows, columns, dtype, form, target):
    a = np.random.default_rng(rows).integers(-9, 9, (rows, columns)).astype(dtype)
    wanted, found = a.T.copy(), np.zeros((columns, rows), dtype)
    run_emulated(turned(rows, columns, dtype, form), target, [a, found], ALL_SCHEDULES)
    np.testing.assert_array_equal(found, wanted)


def test_columns_are_read_in_half_of_the_time():
    relieved, swizzles = ways(turned(32, 64, "float32"), "tile")
    crossing, rows = ways(turned(32, 64, "float32", "an element"), "tile")
    assert (swizzles, rows) == ([128], [0])
    assert max(relieved) * 2 <= max(crossing)


def test_tiles_stay_row_by_row_where_that_is_as_good():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float16")
            T.copy(A, tile)
            for i, j in T.Parallel(64, 64):
                B[i, j] = tile[i, j] * T.float16(2)

    assert ways(main, "tile")[1] == [0]


@pytest.mark.parametrize(("rows", "swizzle"), [(454, 0), (452, 128)])
def test_tiles_that_only_fit_row_by_row_are_not_swizzled(rows, swizzle):
    """Swizzles begin at multiples of 1 KiB: two tiles of 113.5 KiB fill all of the memory."""

    @T.prim_func
    def main(A: T.Tensor((2, rows, 64), "float32"), B: T.Tensor((2, 64, rows), "float32")):
        with T.Kernel(1, threads=128):
            one = T.alloc_shared((rows, 64), "float32")
            other = T.alloc_shared((rows, 64), "float32")
            T.copy(A[0, 0, 0], one)
            T.copy(A[1, 0, 0], other)
            for j, i in T.Parallel(64, rows):
                B[0, j, i] = one[i, j]
            for j, i in T.Parallel(64, rows):
                B[1, j, i] = other[i, j]

    assert [ways(main, name)[1] for name in ("one", "other")] == [[swizzle]] * 2
