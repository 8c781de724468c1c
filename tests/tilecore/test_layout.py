"""Layouts: tables, inverses, expressions; random layouts are bijections of their domain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilecore.errors import ShapeMismatch
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Var, const, int_value
from tilecore.ir.layout import Layout, panels, row_major
from tilecore.ir.nodes import Buffer
from tilecore.ir.values.evaluate import evaluate
from tilecore.layout import (
    SwizzleMode,
    get_swizzle_layout,
    make_full_bank_swizzled_layout,
    make_fully_replicated_layout_fragment,
    make_half_bank_swizzled_layout,
    make_quarter_bank_swizzled_layout,
    make_wgmma_swizzled_layout,
)


def test_row_major_with_padding() -> None:
    layout = row_major((3, 5), leading=8)
    np.testing.assert_array_equal(layout.table, np.arange(3)[:, None] * 8 + np.arange(5))
    assert layout.size == 2 * 8 + 5
    assert layout.is_injective
    assert layout.describe() == "row-major layout of 3x5, strides (8, 1)"
    with pytest.raises(ShapeMismatch, match="at least 5"):
        row_major((3, 5), leading=4)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1), st.sampled_from([4, 6, 16]))
def test_panels_are_bijections(rows: int, columns: int, axis: int, width: int) -> None:
    layout = panels((rows, columns), axis, width)
    i, j = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    along, across, other = (i, j, columns) if axis == 0 else (j, i, rows)
    expected = along // width * (other * width) + across * width + along % width
    np.testing.assert_array_equal(layout.table, expected)
    assert layout.is_injective
    inverse = layout.inverse
    np.testing.assert_array_equal(inverse[layout.table.ravel()], np.arange(rows * columns))
    assert (inverse >= 0).sum() == rows * columns


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 2, 4]))
def test_expression_and_table_agree(rows: int, columns: int, width: int) -> None:
    layout = Layout((rows, columns), lambda i, j: (j // width, i, j % width))
    i, j = Var("i"), Var("j")
    grid = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij", sparse=True)
    offsets = evaluate(layout.offset((i, j)), {i: grid[0], j: grid[1]})
    np.testing.assert_array_equal(np.broadcast_to(offsets, layout.shape), layout.table)
    assert layout.is_injective


def test_equality_is_by_table() -> None:
    plain = row_major((4, 8))
    assert plain.equals(Layout((4, 8), lambda i, j: (i, j)))
    assert not plain.equals(Layout((4, 8), lambda i, j: (j, i)))
    assert not plain.equals(row_major((8, 4)))
    assert not Layout((4, 8), lambda i, j: i + j).is_injective


def test_layouts_need_known_shapes_and_fitting_functions() -> None:
    with pytest.raises(ShapeMismatch, match="known ints"):
        Layout((Var("n"), 4), lambda i, j: i)
    with pytest.raises(ShapeMismatch, match="2 indices"):
        Layout((4, 4), lambda i: i)


@pytest.mark.parametrize(
    ("columns", "dtype"), [(32, "float16"), (64, "int8"), (128, "float16"), (48, "float32")]
)
def test_swizzled_places_are_distinct(columns: int, dtype: str) -> None:
    layout = Layout((16, columns), lambda i, j: get_swizzle_layout(i, j, columns, dtype))
    assert layout.is_injective
    assert layout.physical_shape == (16, columns)
    with pytest.raises(ShapeMismatch, match="a multiple of 32 bytes, found 6"):
        get_swizzle_layout(0, 0, 3, "float16")


def test_swizzles_of_a_tile_or_of_its_measures() -> None:
    tile = Buffer("tile", tuple(const(n) for n in (8, 64)), DType("float16"), "shared")
    for make, wide in (
        (make_quarter_bank_swizzled_layout, 16),
        (make_half_bank_swizzled_layout, 32),
        (make_full_bank_swizzled_layout, 64),
    ):
        layout = make(8, wide, 16)
        assert layout.is_injective
        assert layout.table[0].tolist() == list(range(wide))  # the first row stays
        assert layout.table[7].tolist() != list(range(7 * wide, 8 * wide))
    full = make_full_bank_swizzled_layout(tile)
    assert full.equals(make_full_bank_swizzled_layout(8, 64, 16))
    assert full.equals(make_wgmma_swizzled_layout(tile))
    half = make_half_bank_swizzled_layout(tile)
    assert half.equals(make_wgmma_swizzled_layout(tile, continuity=32))


def test_layouts_behind_new_axes_and_repeated() -> None:
    swap = Layout((2, 3), lambda i, j: (j, i))
    stages = swap.expand([4])
    assert stages.is_equal(Layout((4, 2, 3), lambda s, i, j: (s, j, i)))
    assert (stages.get_input_shape(), stages.get_output_shape()) == ([4, 2, 3], [4, 3, 2])
    point = dict(zip(swap.variables, (1, 2), strict=True))
    assert evaluate(swap.get_linearized_forward_index(), point) == 5
    assert [evaluate(c, point) for c in swap.get_forward_index()] == [2, 1]
    assert swap.expand(()) is swap
    tall = swap.repeat(0, 5)
    assert tall.shape == (10, 3)
    assert tall.is_equal(Layout((10, 3), lambda i, j: (i // 2, j, i % 2)))
    assert swap.repeat(-1, 2).is_equal(Layout((2, 6), lambda i, j: (j // 3, j % 3, i)))
    assert swap.repeat(1, 1) is swap
    for wrong in (0, [-1], "4"):
        with pytest.raises(ShapeMismatch, match=r"TC201 .*Layout.expand.* an int of at least 1"):
            swap.expand(wrong)
    with pytest.raises(ShapeMismatch, match=r"TC201 .*an axis of 2, found 2"):
        swap.repeat(2, 3)


def test_the_place_of_one_element() -> None:
    layout = Layout((8, 16), lambda i, j: (j // 4, i, j % 4))
    assert [int_value(c) for c in layout.map_forward_index([3, 9])] == [2, 3, 1]
    with pytest.raises(ShapeMismatch, match=r"of \(8, 16\): expected 2, found 1"):
        layout.map_forward_index([3])


def test_modes_of_swizzles_and_a_fragment_that_all_threads_hold() -> None:
    mode = SwizzleMode.SWIZZLE_64B
    assert mode.is_swizzle_64b()
    assert not mode.is_none()
    assert (mode.swizzle_byte_size(), mode.swizzle_atom_size(), mode.smem_alignment()) == (
        64,
        4,
        512,
    )
    assert (SwizzleMode.NONE.swizzle_atom_size(), SwizzleMode.NONE.smem_alignment()) == (1, 128)
    whole = make_fully_replicated_layout_fragment((2, 3), 64)
    assert whole.replicate == 64
    assert whole.is_equal(make_fully_replicated_layout_fragment((2, 3), 64))
    assert not whole.is_equal(make_fully_replicated_layout_fragment((2, 3), 32))
    np.testing.assert_array_equal(whole.coordinate_tables[1], np.arange(6).reshape(2, 3))
