"""Covers against brute force: as few configs, as little loss, never beyond the tolerance."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from recommender import cover
from recommender.cover import fewest_runs, greedy_cover, limited_cover, minimum_cover, within

TOLERANCE = 0.05


def losses(seed, shapes=7, configs=8, illegal=0.1):
    """A random loss with a best config per shape; some configs are illegal somewhere."""
    rng = np.random.default_rng(seed)
    found = np.round(rng.exponential(0.08, (shapes, configs)), 3)
    found[rng.random(found.shape) < illegal] = np.nan
    found[np.arange(shapes), rng.integers(0, configs, shapes)] = 0.0
    return found, rng.dirichlet(np.ones(shapes))


def brute(loss, weights, fits, counts):
    """The least weighted loss of the first count of configs that is a cover, and that count."""
    for count in counts:
        costs = []
        for chosen in itertools.combinations(range(loss.shape[1]), count):
            some = np.where(fits[:, chosen], loss[:, chosen], np.inf).min(axis=1)
            if np.all(np.isfinite(some)):
                costs.append(float(some @ weights))
        if costs:
            return count, min(costs)
    raise AssertionError("no cover at all")


def cost_of(found, loss, weights):
    return float(loss[np.arange(len(loss)), found.serves] @ weights)


@pytest.mark.parametrize("seed", range(25))
def test_a_minimum_cover_is_as_small_and_fast_as_brute_force_finds(seed):
    loss, weights = losses(seed)
    found = minimum_cover(loss, weights, TOLERANCE)
    count, cost = brute(loss, weights, within(loss, TOLERANCE), range(1, 9))
    assert found.is_exact
    assert len(found.configs) == count
    assert set(found.serves) == set(found.configs)
    assert cost_of(found, loss, weights) == pytest.approx(cost, abs=1e-6)
    assert np.all(loss[np.arange(len(loss)), found.serves] <= TOLERANCE)


@pytest.mark.few(3)
@pytest.mark.covering
@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("count", [1, 2])
def test_a_limited_cover_bounds_the_worst_loss_then_the_weighted_one(seed, count):
    loss, weights = losses(seed, illegal=0.0)
    found = limited_cover(loss, weights, TOLERANCE, count)
    if len(minimum_cover(loss, weights, TOLERANCE).configs) <= count:
        assert found == minimum_cover(loss, weights, TOLERANCE)
        return
    chosen = list(itertools.combinations(range(loss.shape[1]), count))
    worst = min(float(loss[:, c].min(axis=1).max()) for c in chosen)
    assert found.bound == pytest.approx(worst)
    _, cost = brute(loss, weights, within(loss, worst), [count])
    assert cost_of(found, loss, weights) == pytest.approx(cost, abs=1e-6)
    assert len(found.configs) <= count
    assert "as asked for" in found.note


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 12)),
           elements=st.sampled_from([0.0, 0.01, 0.05, 0.050001, 0.2, 3.0, np.nan, np.inf])),
    st.sampled_from([0.0, 0.02, 0.05, 0.5]),
)  # fmt: skip
def test_no_shape_is_served_beyond_the_tolerance_or_by_an_illegal_config(loss, tolerance):
    loss[:, 0] = np.where(np.isfinite(loss).any(axis=1), loss[:, 0], 0.0)
    best = np.nanargmin(np.where(np.isfinite(loss), loss, np.nan), axis=1)
    loss[np.arange(len(loss)), best] = 0.0
    weights = np.full(len(loss), 1 / len(loss))
    found = minimum_cover(loss, weights, tolerance)
    greedy = greedy_cover(loss, weights, tolerance)
    served = loss[np.arange(len(loss)), found.serves]
    assert np.all(served <= tolerance + cover.ROUNDING)
    assert np.all(within(loss, tolerance)[:, greedy].any(axis=1))
    assert len(found.configs) <= len(greedy)


def test_an_illegal_config_serves_nothing_however_many_shapes_it_would_serve():
    loss = np.array([[np.nan, 0.0, 0.3], [0.0, 0.5, 0.01], [0.0, 0.6, 0.02]])
    found = minimum_cover(loss, np.ones(3) / 3, TOLERANCE)
    assert found.serves == (1, 0, 0)


def test_equal_configs_are_told_apart_by_their_place_alone():
    loss = np.array([[0.0, 0.0, 0.2], [0.0, 0.0, 0.2], [0.2, 0.2, 0.0]])
    found = [minimum_cover(loss, np.ones(3) / 3, TOLERANCE) for _ in range(3)]
    assert {f.configs for f in found} == {(0, 2)}


def test_where_the_time_is_up_the_answer_says_so_and_is_a_cover():
    loss, weights = losses(3, shapes=60, configs=300, illegal=0.0)
    found = minimum_cover(loss, weights, 0.02, time_limit_s=1e-6)
    assert not found.is_exact
    assert "no proof" in found.note
    assert np.all(loss[np.arange(60), found.serves] <= 0.02 + cover.ROUNDING)


def test_too_few_configs_for_what_is_legal_are_not_forced():
    loss = np.array([[0.0, np.nan], [np.nan, 0.0]])
    found = limited_cover(loss, np.ones(2) / 2, TOLERANCE, 1)
    assert found.configs == (0, 1)
    assert "without a legal one" in found.note


@pytest.mark.parametrize("seed", range(15))
def test_runs_are_as_few_as_brute_force_finds(seed):
    loss, weights = losses(seed, shapes=6, configs=4)
    fits = within(loss, TOLERANCE)
    runs = fewest_runs(loss, weights, fits)
    assert [r.first for r in runs] == [0, *(r.last + 1 for r in runs[:-1])]
    assert runs[-1].last == 5
    for run in runs:
        assert np.all(fits[run.first : run.last + 1, run.config])
    ways = []
    for serves in itertools.product(range(4), repeat=6):
        if all(fits[shape, config] for shape, config in enumerate(serves)):
            changes = 1 + sum(a != b for a, b in itertools.pairwise(serves))
            ways.append((changes, float(loss[np.arange(6), serves] @ weights)))
    spent = sum(float(loss[r.first : r.last + 1, r.config] @ weights[r.first : r.last + 1])
                for r in runs)  # fmt: skip
    assert (len(runs), pytest.approx(spent, abs=1e-9)) == min(ways)
