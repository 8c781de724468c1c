"""Views of shared tiles: of the stage that is meant, and as operands where they keep its rows."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.inference.gpu.accesses.banks import bank_uses
from tilecore.ir.nodes import Gemm

M, N, K, STEP = 64, 64, 128, 32


def product(form):
    """Return a product whose A comes in as boxes of [m // 16, 16, k], and is seen as a matrix."""

    @T.prim_func
    def main(
        A: T.Tensor((M // 16, 16, K), "float16"), B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32" if form == "other rows" else "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((M // 16, 16, STEP), "float16")
            b = T.alloc_shared((STEP, N), "float16")
            sums = T.alloc_fragment((M, N), "float32")
            out = T.alloc_shared((M // 16, 16, N), "float16")
            pairs = T.view(a, (M, STEP // 2), "int32") if form == "other type" else None
            rows = T.reshape(a, (M, STEP))
            T.clear(sums)
            for k in T.Pipelined(K // STEP, num_stages=3):
                T.copy(A[0, 0, k * STEP], a)
                T.copy(B[k * STEP, 0], b)
                if form == "other rows":
                    flat = T.reshape(a, (M * STEP,))
                    for i, j in T.Parallel(M, N):
                        sums[i, j] += flat[i * STEP + j % STEP]
                elif form == "other type":
                    for i, j in T.Parallel(M, N):
                        sums[i, j] += T.cast(pairs[i, j % (STEP // 2)] % 64, "float32")
                else:
                    T.gemm(rows, b, sums)
            if form == "rows":
                T.copy(sums, T.reshape(out, (M, N)))
                T.copy(out, T.reshape(C, (M // 16, 16, N))[0, 0, 0])
            else:
                T.copy(sums, C)

    return main


def expected(form, a, b):
    steps = a.reshape(M, K // STEP, STEP).swapaxes(0, 1)
    if form == "other rows":
        return np.tile(steps.astype(np.float32).sum(0), (1, N // STEP))
    if form == "other type":
        pairs = np.ascontiguousarray(steps).view(np.int32) % 64
        return np.tile(pairs.sum(0), (1, 2 * N // STEP)).astype(np.float16)
    return (a.reshape(M, K).astype(np.float32) @ b.astype(np.float32)).astype(np.float16)


@pytest.mark.parametrize("target", ["sm_80", "h100", "b200"])
@pytest.mark.parametrize("form", ["rows", "product", "other rows", "other type"])
def test_views_of_tiles_with_stages_mean_the_stage_in_use(form, target):
    """They meant the first one: every step but one in three read another step's elements."""
    rng = np.random.default_rng(5)
    a = rng.integers(-3, 4, (M // 16, 16, K)).astype(np.float16)
    b = rng.integers(-3, 4, (K, N)).astype(np.float16)
    c = np.zeros((M, N), np.float32 if form == "other rows" else np.float16)
    run_emulated(product(form), target, [a, b, c], ALL_SCHEDULES)
    np.testing.assert_array_equal(c, expected(form, a, b))


def test_a_view_that_keeps_the_rows_of_a_tile_is_multiplied_where_it_lies():
    plan = lowered(product("rows"), "h100")[0].explain()
    assert "a: shared, swizzled by 64 B" in plan
    assert "wgmma.m64n64k16, 1x1 warpgroups; A from descriptor, B from descriptor" in plan
    assert "stored by stmatrix: out_view" in plan
    assert "stored by TMA: out" in plan
    other = lowered(product("other rows"), "h100")[0].explain()
    assert "a: shared, row-major" in other


def test_bank_conflicts_of_a_view_are_those_of_its_tile():
    """Compiling it failed: a view has no layout of its own."""
    plan = lowered(product("product"), "sm_80")[0]
    (launch,) = plan.launches.values()
    seen = {use.ways for use in bank_uses(launch) if use.buffer.base is not None}
    assert seen == {1.0}


SHAPES = {  # of views of M x STEP elements of 16 bits
    "longer rows": ((M // 4, STEP * 4), "float16"),
    "shorter rows": ((M * 2, STEP // 2), "float16"),
    "rows across": ((M * STEP // 8 // 32, 4, 32, 2), "float16"),
    "no whole part of rows": ((M * STEP // 512, 8, 64), "float16"),
    "words": ((M, STEP // 2), "int32"),
    "bytes": ((M // 2, STEP * 4), "uint8"),
}


def seen(form, target_of_copy):
    """Return a product whose A is filled, or is changed, through a view of another shape."""
    shape, dtype = SHAPES[form]

    @T.prim_func
    def main(
        A: T.Tensor((K // STEP, *shape), dtype), B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"), Seen: T.Tensor((K // STEP, *shape), dtype),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((M, STEP), "float16")
            b = T.alloc_shared((STEP, N), "float16")
            sums = T.alloc_fragment((M, N), "float32")
            other = T.view(a, shape, dtype)
            T.clear(sums)
            for k in T.serial(K // STEP):
                if target_of_copy == "view":
                    T.copy(A[(k, *[0] * len(shape))], other)
                else:
                    flat = T.view(A, (K // STEP, M, STEP), "float16")
                    T.copy(flat[k, 0, 0], a)
                T.copy(B[k * STEP, 0], b)
                T.gemm(a, b, sums)
                T.copy(other, Seen[(k, *[0] * len(shape))])
            T.copy(sums, C)

    return main


@pytest.mark.few(2)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "h100", "b200", "gfx942"])
@pytest.mark.parametrize("target_of_copy", ["view", "tile"])
@pytest.mark.parametrize("form", SHAPES)
def test_views_find_the_elements_of_swizzled_tiles(form, target_of_copy, target):
    """Tiles that were seen in another shape lay row by row: ldmatrix met banks eight times."""
    rng = np.random.default_rng(7)
    a = rng.integers(-3, 4, (K // STEP, M, STEP)).astype(np.float16)
    b = rng.integers(-3, 4, (K, N)).astype(np.float16)
    shape, dtype = SHAPES[form]
    given = np.ascontiguousarray(a).view(dtype).reshape(K // STEP, *shape)
    c, found = np.zeros((M, N), np.float32), np.zeros_like(given)
    func = seen(form, target_of_copy)
    plan = run_emulated(func, target, [given, b, c, found], ALL_SCHEDULES)
    wanted = np.einsum("kms,ksn->mn", a.astype(np.float32), b.reshape(-1, STEP, N))
    np.testing.assert_array_equal(c, wanted)
    np.testing.assert_array_equal(found, given)
    (launch,) = plan.launches.values()
    (layout,) = [x for tile, x in launch.shared.items() if tile.name == "a"]
    assert layout.swizzle_bytes == 64
    read = [u.ways for u in bank_uses(launch) if isinstance(u.stmt, Gemm)]
    assert set(read) <= {1.0}


def test_products_of_warpgroups_read_tiles_that_views_show():
    for target, instruction in (("h100", "wgmma.m64n64k16"), ("b200", "tcgen05")):
        plan = lowered(seen("words", "tile"), target)[0].explain()
        assert f"gemm 64x64x32: {instruction}" in plan
        assert "A from descriptor, B from descriptor" in plan
