"""Shapes of a dispatch table: what is sampled of a range, and what weighs how much."""

import math

import pytest

from recommender.errors import InvalidShapes
from recommender.shapes import (
    MAX_SHAPES,
    ShapeSet,
    Sizes,
    histogram,
    nearest,
    parse_sizes,
    sample_range,
    shape_set,
)


def test_a_range_keeps_its_ends_and_powers_of_two_and_sizes_that_start_a_tile():
    found = sample_range(1, 8192, (96, 448), 32)
    assert len(found) == len(set(found)) == 32
    assert found == sorted(found)
    assert {1 << i for i in range(14)} <= set(found)
    assert {9, 17, 33, 65, 129, 257, 513, 1025, 2049, 4097} <= set(found)


def test_a_large_sample_has_multiples_of_tiles_too():
    found = sample_range(1, 1024, (96, 112), 64)
    assert {96, 97, 112, 192, 224} <= set(found)


@pytest.mark.parametrize(("low", "high"), [(1, 2), (7, 9), (1000, 1100), (5, 5000)])
def test_samples_lie_in_the_range_and_have_its_ends(low, high):
    found = sample_range(low, high, (16,), 8)
    assert found[0] == low
    assert found[-1] == high
    assert len(found) <= 8


def test_few_samples_are_the_ends_and_spread_powers():
    assert sample_range(1, 4096, (), 5) == [1, 8, 64, 512, 4096]


def test_weights_of_a_range_are_shares_of_its_logarithm_or_of_its_integers():
    by_log = shape_set({"m": Sizes(low=1, high=1024)}, samples=11)
    even = shape_set({"m": Sizes(low=1, high=1024)}, samples=11, weighting="uniform")
    for found in (by_log, even):
        assert math.fsum(found.weights) == pytest.approx(1.0)
    assert by_log.weights[3] == pytest.approx(by_log.weights[7])
    assert even.weights[9] > 100 * even.weights[1]


def test_several_dims_are_combined():
    found = shape_set({"m": Sizes(values=(1, 16)), "n": Sizes(values=(8, 4))})
    assert found.dims == ("m", "n")
    assert found.shapes == ((1, 4), (1, 8), (16, 4), (16, 8))
    assert found.weights == (0.25,) * 4


def test_counts_go_to_the_nearest_sample():
    samples = shape_set({"m": Sizes(values=(1, 16, 256))})
    found = histogram(("m",), {(1,): 2.0, (3,): 1.0, (20,): 1.0, (5000,): 4.0}, samples)
    assert found.weights == (3 / 8, 1 / 8, 4 / 8)
    assert histogram(("m",), {(9,): 3.0, (4,): 1.0}).shapes == ((4,), (9,))


def test_the_nearest_shape_is_by_logarithm_and_the_smaller_of_two():
    assert nearest([(1,), (4,), (16,)], (2,)) == (1,)
    assert nearest([(1,), (4,), (16,)], (9,)) == (16,)
    assert nearest([(16, 64), (64, 16)], (60, 20)) == (64, 16)


@pytest.mark.parametrize(
    "text", ["", "0:4", "9:3", "1:9999999", "a", "1,,2", "0", "1:2:3", "-3", "1.5", "1,2000000"]
)
def test_sizes_that_make_no_sense_are_refused_with_what_was_expected(text):
    with pytest.raises(InvalidShapes, match="m: expected") as caught:
        parse_sizes("m", text)
    assert caught.value.code == "RC611"


@pytest.mark.parametrize("text", ["1:99999999999999", "99999999999999", "1,99999999999999"])
def test_sizes_that_are_too_large_are_told_how_large_they_may_be(text):
    """Once "expected sizes as FIRST:LAST", which it was."""
    with pytest.raises(InvalidShapes, match="1048576"):
        parse_sizes("m", text)


def test_sizes_as_people_write_them():
    assert parse_sizes("m", "1:4096") == Sizes(low=1, high=4096)
    assert parse_sizes("m", "16, 1,16") == Sizes(values=(1, 16))
    assert parse_sizes("m", "7:7") == Sizes(values=(7,))


@pytest.mark.parametrize(
    "weights",
    [{}, {(1,): -1.0}, {(1,): math.nan}, {(1,): 0.0}, {(1,): math.inf},
     {(i,): 1.0 for i in range(MAX_SHAPES + 1)}],
)  # fmt: skip
def test_weights_that_are_no_shares_are_refused(weights):
    with pytest.raises(InvalidShapes):
        ShapeSet.of(("m",), weights)


def test_too_many_combinations_and_unknown_weightings_are_refused():
    wide = {d: Sizes(low=1, high=4096) for d in "mnk"}
    with pytest.raises(InvalidShapes, match="combinations"):
        shape_set(wide)
    with pytest.raises(InvalidShapes, match="log, uniform"):
        shape_set({"m": Sizes(values=(1,))}, weighting="even")
