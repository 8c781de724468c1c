"""What a Gaussian process says of few told times: which knobs count, what to measure next."""

import numpy as np
import pytest

from recommender.process import Belief, Process, _misfit, gains, spread
from recommender.surrogate import Told

SIZE = 24
GRID = np.array([(a, b, c) for a in range(SIZE) for b in range(SIZE) for c in (0, 1)]) / (
    SIZE - 1.0,
    SIZE - 1.0,
    1.0,
)
TRUTH = 4.0 * (GRID[:, 0] - 0.8) ** 2 + 2.0 * (GRID[:, 1] - 0.3) ** 2  # log time; the third: none
NOTHING = np.zeros(len(GRID))  # is expected before


def told(count, seed=0, log_time=TRUTH):
    rows = np.sort(np.random.default_rng(seed).permutation(len(GRID))[:count])
    return Told(rows, log_time[rows].astype(float))


def open_rows(what, running=()):
    return np.setdiff1d(np.arange(len(GRID)), [*what.rows, *running])


def test_slopes_are_those_of_the_likelihood():
    seen = told(30)
    places = GRID[seen.rows]
    apart = (places.T[:, :, None] - places.T[:, None, :]) ** 2
    times = (seen.log_time - seen.log_time.mean()) / seen.log_time.std()
    point = np.array([-0.3, 0.2, 0.5, 0.1, -3.0])
    steps = 1e-5 * np.eye(len(point))
    found = [
        (_misfit(point + s, apart, times)[0] - _misfit(point - s, apart, times)[0]) / 2e-5
        for s in steps
    ]
    np.testing.assert_allclose(_misfit(point, apart, times)[1], found, rtol=1e-4, atol=1e-4)


def test_a_process_learns_which_knobs_count():
    seen = told(40)
    times = (seen.log_time - seen.log_time.mean()) / seen.log_time.std()
    process = Process.fit(GRID[seen.rows], times)
    assert process.lengths[0] < process.lengths[2]
    assert process.lengths[1] < process.lengths[2]
    truth = (TRUTH - seen.log_time.mean()) / seen.log_time.std()
    assert np.abs(Belief(process, GRID, NOTHING).mean - truth).max() < 0.3


def test_believing_is_telling_what_is_expected():
    seen = told(20)
    times = (seen.log_time - seen.log_time.mean()) / seen.log_time.std()
    process = Process.fit(GRID[seen.rows], times)
    belief = Belief(process, GRID, NOTHING)
    for row in (5, 700):
        belief.believe(row)
    places = GRID[[*seen.rows, 5, 700]]
    inner = process.covariance(places, places) + process.noise * np.eye(len(places))
    outer = process.covariance(GRID, places)
    left = process.size - (outer @ np.linalg.inv(inner) * outer).sum(axis=1)
    np.testing.assert_allclose(belief.variance, left, rtol=1e-4, atol=1e-7)


def test_the_fastest_is_found_soon():
    seen = told(8)
    for _ in range(4):
        picks = gains(seen, GRID, NOTHING, [], open_rows(seen), 4)
        rows = np.concatenate([seen.rows, picks])
        seen = Told(rows, TRUTH[rows])
    assert seen.log_time.min() < 0.01  # of 1152 candidates 11 are that fast


def test_what_was_expected_is_where_a_search_begins():
    """Two times are enough where they are as expected but for a knob that counts more here."""
    seen = Told(np.array([0, 1]), TRUTH[:2])  # alike but for that knob
    picks = gains(seen, GRID, TRUTH + 0.5 * GRID[:, 2] + 7.0, [], open_rows(seen), 4)
    assert TRUTH[picks].min() < 0.01


def test_what_was_expected_is_corrected():
    expected = 4.0 * (GRID[:, 0] - 0.5) ** 2 + 2.0 * (GRID[:, 1] - 0.7) ** 2
    seen = Told(np.array([0, 1]), TRUTH[:2])
    assert TRUTH[np.argmin(expected)] > 0.5
    for _ in range(4):
        picks = gains(seen, GRID, expected, [], open_rows(seen), 4)
        rows = np.concatenate([seen.rows, picks])
        seen = Told(rows, TRUTH[rows])
    assert seen.log_time.min() < 0.01


def test_a_constant_that_was_expected_changes_nothing():
    seen = told(20)
    first = gains(seen, GRID, NOTHING, [], open_rows(seen), 4)
    assert gains(seen, GRID, NOTHING + 3.0, [], open_rows(seen), 4) == first


def test_what_runs_is_not_measured_again_nor_what_is_like_it():
    seen = told(12)
    first = gains(seen, GRID, NOTHING, [], open_rows(seen), 6)
    assert len(set(first)) == 6
    assert gains(seen, GRID, NOTHING, first[:2], open_rows(seen, first[:2]), 1) == first[2:3]


def test_where_candidates_fail_others_are_preferred():
    fails = GRID[:, 0] >= 0.6  # the fastest of all among them
    seen = told(60, log_time=np.where(fails, np.nan, TRUTH))
    picks = gains(seen, GRID, NOTHING, [], open_rows(seen), 8)
    assert np.mean(fails[picks]) < 0.5


@pytest.mark.parametrize("times", [[0.0, np.nan], [1.0] * 9, [0.0] + [np.nan] * 8])
def test_little_that_was_told_is_enough(times):
    rows = np.arange(len(times)) * 7
    seen = Told(rows, np.array(times))
    assert len(set(gains(seen, GRID, NOTHING, [3], open_rows(seen, [3]), 5))) == 5
    assert gains(seen, GRID, NOTHING, [3], np.array([50]), 5) == [50]


def test_the_first_are_spread():
    order = np.random.default_rng(0).permutation(len(GRID))[:400]
    picks = spread(GRID, [0], order, 7)
    places = GRID[[0, *picks]]
    apart = np.sqrt(((places[:, None] - places) ** 2).sum(axis=2)) + 9.0 * np.eye(8)
    assert apart.min() > 0.5  # eight at random are 0.2 apart
    assert sorted(spread(GRID, [], order[:3], 9)) == sorted(order[:3])
