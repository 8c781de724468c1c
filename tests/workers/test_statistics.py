from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.statistics import StoppingRule, median_absolute_deviation, relative_interval

TIMES = st.lists(st.floats(1e-6, 10.0), min_size=2, max_size=30)
RULE = StoppingRule(min_samples=3, max_samples=6, target=0.05, unstable=0.5)


@given(TIMES, st.floats(1e-3, 1e3))
def test_the_relative_interval_does_not_depend_on_the_unit(times, factor):
    scaled = [t * factor for t in times]
    assert relative_interval(scaled) == pytest.approx(relative_interval(times), rel=1e-6, abs=1e-9)


def test_one_outlier_moves_neither_interval_nor_deviation():
    assert median_absolute_deviation([1.0, 1.0, 1.0, 50.0]) == 0
    assert relative_interval([1.0, 1.01, 1.0, 0.99, 50.0]) < 0.05


def test_one_sample_is_infinitely_uncertain():
    assert relative_interval([1.0]) == math.inf


@pytest.mark.parametrize(
    ("times", "enough"),
    [
        ([1.0, 1.0], False),  # fewer than min_samples
        ([1.0, 1.0, 1.0], True),  # agree
        ([1.0, 2.0, 3.0], False),  # disagree
        ([1.0, 2.0, 3.0, 1.0, 2.0, 3.0], True),  # max_samples
    ],
)
def test_when_to_stop(times, enough):
    assert RULE.is_enough(times) is enough


def test_unstable_means_the_median_is_worthless():
    assert RULE.is_unstable([1.0, 5.0, 30.0, 2.0])
    assert not RULE.is_unstable([1.0, 1.1, 0.9])


def test_a_rule_checks_itself():
    with pytest.raises(ValueError, match="min <= max"):
        StoppingRule(min_samples=4, max_samples=3, target=0.1, unstable=0.5)
