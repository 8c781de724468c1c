"""Drift is found where times changed for good, and not where they only scatter."""

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from benchmarks.drift import first_alarm, sequence
from recommender.drift import RunTimes, find_drift, run_times
from recommender.measurement import MeasureStatus, Protocol
from tests.recommender.support import measured, space_of, workload

RUNS, SEQUENCES = 12, 50


@pytest.fixture(scope="module")
def repeats():
    """Times of 40 configs, 32 repeats each, with a scatter of 1 % and some outliers."""
    rng = np.random.default_rng(5)
    level = np.exp(rng.normal(0.0, 0.5, (40, 1)))
    noise = np.exp(rng.normal(0.0, 0.01, (40, 32)))
    return level * noise * np.where(rng.random((40, 32)) < 0.05, 1.3, 1.0)


def rate(repeats, noise, shift=1.0, within=RUNS):
    """Return the share of sequences with an alarm in so many runs after the middle."""
    rng = np.random.default_rng(11)
    begin = 0 if shift == 1.0 else RUNS // 2 + 1
    found = [
        first_alarm(sequence(repeats, rng, RUNS, noise, shift), begin) for _ in range(SEQUENCES)
    ]
    limit = RUNS if shift == 1.0 else RUNS // 2 + within
    return sum(f is not None and f[0] <= limit for f in found) / SEQUENCES


@pytest.mark.few(1)
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_scatter_and_loud_neighbours_are_no_drift(repeats, noise):
    assert rate(repeats, noise) <= 0.02


def test_a_shift_is_found_within_a_few_runs(repeats):
    assert rate(repeats, 0.02, 1.3, within=4) > 0.65
    assert rate(repeats, 0.02, 0.75, within=4) > 0.6


def runs(*levels, anchors=3):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        RunTimes(
            str(i),
            start + timedelta(days=i),
            {(f"c{a}", "screen", 1): math.log(level * (1 + a)) for a in range(anchors)},
            0.01,
        )
        for i, level in enumerate(levels)
    ]


def test_what_is_said_of_a_drift():
    found = find_drift(runs(1.0, 1.01, 0.99, 1.3, 1.31, 1.29))
    assert found is not None
    assert (found.before, found.after) == (3, 3)
    assert found.ratio == pytest.approx(1.3, rel=0.02)
    assert found.since == datetime(2026, 1, 4, tzinfo=UTC)
    assert found.explain() == (
        "since 2026-01-04 00:00 3 runs measured times 30% slower than 3 before"
    )
    faster = find_drift(runs(1.0, 1.01, 0.99, 0.7, 0.71, 0.69))
    assert faster is not None
    assert "30% faster" in faster.explain()


@pytest.mark.parametrize(
    "levels",
    [
        (1.0, 1.0, 1.0, 1.5),  # one run proves nothing
        (1.0, 1.0, 1.0, 1.5, 1.5),  # nor do two
        (1.0, 1.5, 1.5, 1.5),  # nor does one before
        (1.0, 1.0, 1.0, 1.5, 1.5, 1.0),  # a neighbour that left
        (1.0, 1.0, 1.0, 1.5, 1.5, 0.6),  # both ways
        (1.0, 1.0, 1.0, 1.04, 1.04, 1.04),  # changes no choice
        (1.0, 1.4, 0.8, 1.3, 1.35, 1.3),  # as much as the runs before differ
    ],
)
def test_what_is_no_drift(levels):
    assert find_drift(runs(*levels)) is None


def test_one_config_alone_proves_nothing():
    assert find_drift(runs(1.0, 1.0, 1.0, 1.5, 1.5, 1.5, anchors=1)) is None


def test_a_run_is_read_without_its_failures():
    w = workload(64, 64, 64)
    first, second = (space_of(w).config(i) for i in (3, 4))
    found = run_times(
        "r",
        [
            measured(w, first, 0.02),
            measured(w, first, 0.03, protocol=Protocol.CONFIRM),
            measured(w, second, None, status=MeasureStatus.WRONG_RESULT),
        ],
    )
    assert found is not None
    assert {key[:2]: round(math.exp(v), 9) for key, v in found.log_s.items()} == {
        (first.key, "screen"): 0.02,
        (first.key, "confirm"): 0.03,
    }
    assert found.noise == pytest.approx(0.0148, rel=0.01)
    assert run_times("r", [measured(w, second, None, status=MeasureStatus.WRONG_RESULT)]) is None
