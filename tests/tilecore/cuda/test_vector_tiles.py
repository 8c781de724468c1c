"""Tiles whose elements are vectors: T.alloc_local((n,), T.bfloat16x2), T.alloc_shared and views."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore import runtime
from tilecore.compiler import compile
from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.interpreter import run

RNG = np.random.default_rng(20261128)
PLACES = {
    "oracle": run,
    "cpu": lambda func, *given: runtime.load(compile(func))(*given),
    "sm_80": lambda func, *given: run_emulated(func, "sm_80", given),
    "sm_90a": lambda func, *given: run_emulated(func, "sm_90a", given),
}


def largest(rows, width, element, lanes):
    """The largest magnitude of each column, by vectors, as kernels that quantise columns do it."""
    kind = f"{element}x{lanes}"

    @T.prim_func
    def main(X: T.Tensor((rows, width), element), Y: T.Tensor((width,), element)):
        with T.Kernel(T.ceildiv(width, 32 * lanes), threads=32) as bx:
            t = T.get_thread_binding()
            found = T.alloc_local((2,), kind)
            one = T.view(found, (2 * lanes,), element)
            shared = T.alloc_shared((32, lanes), element)
            kept = T.view(shared, (32,), kind)
            values = T.alloc_local((lanes,), element)
            first = (bx * 32 + t) * lanes
            for r in T.serial(rows):
                for i in T.serial(lanes):
                    values[i] = T.if_then_else(first + i < width, X[r, first + i], 0)
                packed = T.view(values, (1,), kind)
                if r == 0:
                    found[0] = T.abs2(packed[0])
                else:
                    found[r % 2] = T.max2(T.abs2(packed[0]), found[(r - 1) % 2])
            kept[t] = found[(rows - 1) % 2]
            for i in T.serial(lanes):
                one[i] = shared[t, i]
                if first + i < width:
                    Y[first + i] = one[i]

    return main


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("element", "lanes"), [
    ("bfloat16", 2), ("float16", 2), ("float32", 2), ("float32", 4), ("int32", 4)
])  # fmt: skip
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (7, 129), (4, 300)])
def test_largest_magnitudes_of_columns(rows, width, element, lanes, place):
    dtype = np.dtype(getattr(ml_dtypes, element, element))
    x = (RNG.standard_normal((rows, width)) * 100).astype(dtype)
    y = np.zeros(width, dtype)
    PLACES[place](largest(rows, width, element, lanes), x, y)
    want = np.abs(x.astype(np.float64)).max(0)
    np.testing.assert_array_equal(y.astype(np.float64), want)


@pytest.mark.few(1)
@pytest.mark.parametrize("place", PLACES)
def test_vectors_are_updated_sliced_copied_and_filled(place):
    @T.prim_func
    def main(X: T.Tensor((37, 8), "float32"), Y: T.Tensor((37, 8), "float32")):
        with T.Kernel(37) as bx:
            tile, other = (T.alloc_shared((2,), T.float32x4) for _ in range(2))
            work = T.alloc_global((37, 2), T.float32x4)
            T.copy(T.view(X, (37, 2), T.float32x4)[bx : bx + 1, :], other)
            T.fill(tile, 1.5)
            for i in T.serial(2):
                tile[i] += other[1 - i] * 2.0
                work[bx, i] = T.float32x4(0.25) - tile[i]
            Y[bx, 0:4] = work[bx, 1]
            Y[bx, 4:8] = T.Shuffle([work[bx, 0]], [3, 2, 1, 0])

    x, y = RNG.standard_normal((37, 8)).astype(np.float32), np.zeros((37, 8), np.float32)
    PLACES[place](main, x, y)
    found = 0.25 - (1.5 + 2 * x.astype(np.float64))
    want = np.concatenate([found[:, :4], found[:, 4:][:, ::-1]], axis=1)
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-6)


def test_shapes_of_views_count_vectors():
    @T.prim_func
    def main(Y: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_local((3, 4), T.float16x2)
            shapes = [T.view(tile, dtype=T.float16), T.view(tile, dtype=T.float32x4)]
            shapes += [T.reshape(tile, (12,)), T.view(tile, dtype="uint32")]
            assert [v.static_shape for v in shapes] == [(3, 8), (3, 1, 4), (12, 2), (3, 4)]
            assert [v.lanes for v in shapes] == [1, 4, 2, 1]
            Y[0] = 0

    assert main is not None


def test_what_is_wrong_with_a_tile_of_vectors_is_said():
    def traced(body):
        @T.prim_func
        def main(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1, threads=32):
                tile = T.alloc_local((4,), "float32x4")
                body(tile)
                Y[0] = 0

        return main

    @T.macro
    def two_lanes(tile):
        tile[0] = T.float32x2(1.0, 2.0)

    @T.macro
    def three_indices(tile):
        tile[0] = tile[0, 1, 2]

    for body, error, text in (
        (two_lanes, TypeMismatch, "expected 4 lanes, found float32x2"),
        (three_indices, ShapeMismatch, "indices of `tile`"),
        (lambda tile: T.view(tile, (3,), "float32x4"), ShapeMismatch, "the size of float32"),
        (lambda tile: T.alloc_local((0,), "float32x4"), TypeMismatch, "extent"),
    ):
        with pytest.raises(error, match=text) as caught:
            traced(body)
        assert caught.value.span.line
    with pytest.raises(TypeMismatch, match="but no tensor's, found float32x4"):
        T.Tensor((4,), "float32x4")


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_two_axes_that_begin_anew_keep_both_offsets(target):
    """TVM's FlattenBuffer lost that of the second: rows moved by 3 of 5 and 0 of 24."""

    @T.prim_func
    def main(X: T.Tensor((5, 24, 16), "float32"), Y: T.Tensor((1920,), "float32")):
        with T.Kernel(1, threads=32):
            for step in T.serial(15):
                for e in T.Parallel(128):
                    f = step * 128 + e
                    Y[f] = X[(f // 384 + 3) % 5, (f // 16 % 24 + 1) % 24, f % 16]

    x = np.arange(1920, dtype=np.float32).reshape(5, 24, 16)
    y = np.zeros(1920, np.float32)
    run_emulated(main, target, [x, y])
    np.testing.assert_array_equal(y, np.roll(x, (-3, -1), (0, 1)).ravel())
