"""What told times say of all candidates: the head counts, evidence is weighed, failures cost."""

import numpy as np
import pytest

from recommender.surrogate import Told, plausible_times

SIZE = 32
GRID = np.array([(a, b) for a in range(SIZE) for b in range(SIZE)], dtype=np.float32)
TRUTH = ((GRID[:, 0] - 20) ** 2 + (GRID[:, 1] - 8) ** 2) / 200.0  # log time
NOTHING = np.zeros((len(GRID), 1))


def told(count, seed=0, log_time=TRUTH):
    rows = np.random.default_rng(seed).permutation(len(GRID))[:count]
    return Told(rows, log_time[rows].astype(float))


def members(what, evidence=NOTHING, count=6, seed=1):
    return list(plausible_times(what, evidence, GRID, range(count), np.random.default_rng(seed)))


def test_the_fast_region_is_found_and_members_differ():
    found = members(told(60))
    picks = [int(np.argmin(scores)) for scores in found]
    assert len(set(picks)) > 1  # a batch of them is no batch of one
    assert np.median(TRUTH[picks]) < 0.3  # a random candidate takes 1.0


def test_how_slow_the_slow_ones_are_changes_nothing():
    seen = told(60)
    slower = seen.log_time > np.quantile(seen.log_time, 0.8)
    worse = Told(seen.rows, np.where(slower, seen.log_time + 9.0, seen.log_time))
    first, second = members(seen, count=1)[0], members(worse, count=1)[0]
    assert int(np.argmin(first)) == int(np.argmin(second))


def test_evidence_that_is_right_is_followed_and_what_is_wrong_is_left():
    right, wrong = TRUTH, -TRUTH
    for columns in ([right, wrong], [wrong, right]):
        evidence = np.stack(columns, axis=1)
        picks = [int(np.argmin(s)) for s in members(told(16), evidence)]
        assert np.median(TRUTH[picks]) < 0.1
    alone = [int(np.argmin(s)) for s in members(told(60), wrong[:, None])]
    assert np.median(TRUTH[alone]) < 0.3


def test_where_candidates_fail_others_are_preferred():
    fails = GRID[:, 0] >= 16  # the fastest of all among them
    times = np.where(fails, np.nan, TRUTH)
    picks = [int(np.argmin(s)) for s in members(told(80, log_time=times))]
    assert np.mean(fails[picks]) < 0.5


@pytest.mark.few(1)
@pytest.mark.parametrize("good", [1, 8])
def test_few_that_worked_are_enough(good):
    times = np.where(np.arange(len(TRUTH)) < 0, 0.0, np.nan)
    rows = np.arange(12)
    log_time = np.array([TRUTH[r] if r < good else times[r] for r in rows])
    for scores in members(Told(rows, log_time), count=8):
        assert np.isfinite(scores).all()
