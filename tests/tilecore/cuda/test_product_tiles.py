"""Products on matrix units: which tiles warps and warpgroups read, on the emulator."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.test_products import TRANSPOSES, matrices, multiply, operands
from tests.tilecore.cuda.test_tile_programs import random
from tests.tilecore.cuda.tile_programs import gemm
from tilecore.emulator import ALL_SCHEDULES
from tilecore.ir.dtype import DType

pytestmark = pytest.mark.few(1)  # a case takes long

# --- Volta --------------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize("sums", ["float16", "float32"])
@pytest.mark.parametrize("trans", TRANSPOSES)
def test_volta_multiplies_by_quad_pairs(trans, sums):
    size = (72, 136, 96)
    func = gemm(*size, (64, 64, 32), 2, "float16", sums, sums, trans)
    a, b = operands(np.random.default_rng(11), size, "float16", trans)
    c, product = multiply(func, "v100", a, b, sums, trans)
    assert (product.kind, product.sums) == ("quads", sums)
    left, right = matrices(a, b, trans)
    each = 2.0**-11 * size[2] / 4 if sums == "float16" else 2.0**-20
    assert np.all(np.abs(c - left @ right) <= each * (np.abs(left) @ np.abs(right)))


@pytest.mark.parametrize("trans", TRANSPOSES[1:3])
def test_fragments_are_operands_on_volta(trans):
    """A, and where it is transposed B too, from registers; columns that do not divide by 16."""

    @T.prim_func
    def main(
        A: T.Tensor((32, 48) if trans[0] else (48, 32), "float16"),
        B: T.Tensor((64, 32) if trans[1] else (32, 64), "float16"),
        C: T.Tensor((48, 64), "float32"),
    ):
        with T.Kernel(1, threads=64):
            left = T.alloc_fragment((32, 48) if trans[0] else (48, 32), "float16")
            right = T.alloc_fragment((64, 32) if trans[1] else (32, 64), "float16")
            sums = T.alloc_fragment((48, 64), "float32")
            T.copy(A, left)
            T.copy(B, right)
            T.gemm(left, right, sums, trans[0], trans[1], clear_accum=True)
            T.copy(sums, C)

    a, b = operands(np.random.default_rng(12), (48, 64, 32), "float16", trans)
    c, product = multiply(main, "v100", a, b, "float32", trans)
    assert (product.a.source, product.b.source) == ("registers", "registers")
    left, right = matrices(a, b, trans)
    np.testing.assert_allclose(c, left @ right, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "threads", "dtype", "reason"),
    [
        ((64, 64, 32), 128, "bfloat16", "no mma for bfloat16 x bfloat16 on sm_70"),
        ((24, 64, 32), 128, "float16", "not a multiple of 16x16x4"),
        ((64, 64, 32), 48, "float16", "48 threads are no whole warps"),
    ],
)
def test_volta_says_why_it_takes_multiply_adds(size, threads, dtype, reason):
    func = gemm(*size, size, 2, dtype, "float32", threads=threads)
    assert f"fma ({reason})" in lowered(func, "v100")[0].explain()


# --- descriptors of wgmma ------------------------------------------------------------------------


def sliced(trans, a_start, b_start, size, dynamic):
    """C = op(A)[.., K part] op(B)[K part, ..] of two tiles of 128 x 128; parts of 32 along K."""
    M, N, K = size
    tA, tB = trans
    (m, ka), (n, kb) = a_start, b_start

    @T.prim_func
    def main(
        A: T.Tensor((128, 128), "float16"),
        B: T.Tensor((128, 128), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((128, 128), "float16")
            B_s = T.alloc_shared((128, 128), "float16")
            C_l = T.alloc_fragment((M, N), "float32")
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.clear(C_l)
            for k in T.serial(2) if dynamic else range(1):
                i, j = ka + k * K, kb + k * K
                T.gemm(
                    A_s[i : i + K, m : m + M] if tA else A_s[m : m + M, i : i + K],
                    B_s[n : n + N, j : j + K] if tB else B_s[j : j + K, n : n + N],
                    C_l, transpose_A=tA, transpose_B=tB,
                )  # fmt: skip
            T.copy(C_l, C)

    return main


@pytest.mark.parametrize(
    ("trans", "a_start", "b_start", "size", "dynamic", "kind"),
    [
        ((False, True), (64, 16), (8, 48), (64, 96, 32), False, "wgmma"),
        ((False, False), (0, 64), (64, 8), (128, 48, 32), False, "wgmma"),
        ((True, False), (64, 32), (0, 64), (64, 128, 64), False, "wgmma"),
        ((False, True), (64, 32), (64, 0), (64, 64, 32), True, "wgmma"),
        ((True, False), (0, 32), (64, 64), (64, 64, 32), True, "wgmma"),
        ((False, False), (64, 0), (32, 0), (64, 64, 32), False, "mma"),  # inside a panel
        ((False, True), (64, 8), (0, 8), (64, 64, 32), False, "mma"),  # inside 32 bytes
        ((False, True), (4, 0), (0, 0), (64, 64, 32), False, "mma"),  # inside 8 rows
    ],
)
def test_slices_of_shared_tiles(trans, a_start, b_start, size, dynamic, kind):
    M, N, K = size
    rng = np.random.default_rng(8)
    a, b = random(rng, (128, 128), "float16"), random(rng, (128, 128), "float16")
    c = np.zeros((M, N), np.float32)
    func = sliced(trans, a_start, b_start, size, dynamic)
    plan = run_emulated(func, "h100", [a, b, c])
    depth = 2 * K if dynamic else K
    left, right = matrices(a, b, trans)
    left = left[a_start[0] : a_start[0] + M, a_start[1] : a_start[1] + depth]
    right = right[b_start[1] : b_start[1] + depth, b_start[0] : b_start[0] + N]
    np.testing.assert_allclose(c, left @ right, atol=1e-4)
    (launch,) = plan.launches.values()
    assert {g.kind for g in launch.gemms.values()} == {kind}


@pytest.mark.parametrize(("columns", "threads"), [(320, 128), (192, 256), (96, 256)])
def test_instructions_begin_at_panels(columns, threads):
    """320 columns were cut at 160, in the middle of a panel of 64."""
    size = (64, columns, 64)
    func = gemm(*size, (64, columns, 32), 2, "float16", "float32", threads=threads)
    a, b = operands(np.random.default_rng(9), size, "float16", (False, False))
    c, product = multiply(func, "h100", a, b, "float32")
    left, right = matrices(a, b, (False, False))
    np.testing.assert_allclose(c, left @ right, atol=1e-4)
    assert product.kind == "wgmma"
    assert product.shape[1] % (32 if columns == 96 else 64) == 0


def test_tiles_that_views_see_are_read_by_warps():
    """Where rows are others in the view, they lie row by row, which no descriptor means."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((4, 32, 32), "float16")
            seen = T.reshape(tile, (64, 64))
            sums = T.alloc_fragment((64, 64), "float32")
            T.copy(A, seen)
            T.gemm(seen, seen, sums, clear_accum=True)
            T.copy(sums, C)

    a, c = random(np.random.default_rng(10), (64, 64), "float16"), np.zeros((64, 64), np.float32)
    plan = run_emulated(main, "h100", [a, c], ALL_SCHEDULES)
    np.testing.assert_allclose(c, a.astype(np.float64) @ a.astype(np.float64), atol=1e-4)
    (launch,) = plan.launches.values()
    assert {g.kind for g in launch.gemms.values()} == {"mma"}


# --- what random programs found ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "size", "dtype", "out", "trans", "kind"),
    [
        # Rows of one thread that lie further apart than its columns were taken for neighbours.
        ("sm_80", (64, 16, 64), "float32", "float32", (False, True), "fma"),
        ("sm_80", (64, 16, 8), "int8", "int32", (True, True), "fma"),
        # Rows of 48 and 16 bytes, which no swizzle fits, were not aligned to 16.
        ("sm_80", (48, 16, 48), "uint8", "int32", (False, True), "mma"),
        ("h100", (64, 24, 16), "uint8", "int32", (False, True), "mma"),
        # Rows of 48 bytes along N have no panels that a descriptor could mean.
        ("h100", (64, 24, 32), "float16", "float32", (False, False), "mma"),
    ],
)
def test_small_and_narrow_tiles(target, size, dtype, out, trans, kind):
    a, b = operands(np.random.default_rng(13), size, dtype, trans)
    func = gemm(*size, size, 2, dtype, out, out, trans)
    knobs = {"float32_products": "exact"}
    c, product = multiply(func, target, a, b, out, trans, ALL_SCHEDULES, knobs)
    left, right = matrices(a, b, trans)
    assert product.kind == kind
    bound = 0 if out == "int32" else 2.0**-20 * (np.abs(left) @ np.abs(right))
    assert np.all(np.abs(c - left @ right) <= bound)


@pytest.mark.covering
def test_wide_stores_to_swizzled_tiles_go_chunk_by_chunk():
    """Eight bfloat16 of a thread become two chunks of float32, which a swizzle takes apart."""

    @T.prim_func
    def main(
        A: T.Tensor((16, 32), "float32"),
        B: T.Tensor((16, 32), "bfloat16"),
        C: T.Tensor((16, 16), "float32"),
    ):
        with T.Kernel(1, threads=32):
            a = T.alloc_fragment((16, 32), "float32")
            b = T.alloc_shared((16, 32), "float32")
            c = T.alloc_fragment((16, 16), "float32")
            T.clear(c)
            T.copy(A, a)
            for j, k in T.Parallel(16, 32):
                b[j, k] = T.cast(B[j, k], "float32") * 2.0
            T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    rng = np.random.default_rng(5)
    a, b = rng.integers(-4, 5, (2, 16, 32)).astype(np.float32)
    for target in ("h100", "sm_80"):
        c = np.zeros((16, 16), np.float32)
        run_emulated(main, target, [a, b.astype(DType("bfloat16").numpy), c], ALL_SCHEDULES)
        np.testing.assert_array_equal(c, a @ b.T * 2)
