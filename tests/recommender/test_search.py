from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recommender.recorded import RecordedSpace
from recommender.replay import replay
from recommender.search import (
    MANY_TOLD,
    STRATEGIES,
    ExhaustiveSearch,
    Landscape,
    ModelGuidedSearch,
    Observations,
    _distances,
)

RECORDED = Path(__file__).parent / "recorded" / "convolution_milo__A100.csv.gz"


@pytest.fixture(scope="module")
def recorded() -> RecordedSpace:
    return RecordedSpace.load(RECORDED)


def test_recorded_space_has_failures(recorded: RecordedSpace) -> None:
    assert len(recorded) == 4362
    assert np.isnan(recorded.time_s).sum() == 161


@pytest.mark.few(1)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_strategies_never_repeat_and_are_deterministic(name: str, recorded: RecordedSpace) -> None:
    landscape, strategy = recorded.landscape(), STRATEGIES[name]
    seen = Observations()
    asked: list[int] = []
    for _ in range(4):
        rows = strategy.ask(6, landscape, seen, 1)
        assert rows == strategy.ask(6, landscape, seen, 1)
        assert len(set(rows)) == 6
        seen.pending |= set(rows)
        for row in rows[:4]:  # two of each batch stay open
            time_s = float(recorded.time_s[row])
            seen.times_s[row] = None if np.isnan(time_s) else time_s
            seen.pending.discard(row)
        asked += rows
    assert len(set(asked)) == len(asked)


def test_small_spaces_run_dry() -> None:
    landscape = Landscape(np.array([3.0, 1.0, 2.0]), np.zeros((3, 1), np.float32), lambda row: [])
    for strategy in STRATEGIES.values():
        assert sorted(strategy.ask(9, landscape, Observations(), 0)) == [0, 1, 2]
    assert ExhaustiveSearch().ask(2, landscape, Observations(), 0) == [1, 2]


def test_model_guided_search_beats_random_on_a_recorded_space(recorded: RecordedSpace) -> None:
    def mean(name: str) -> float:
        curves = [replay(recorded, STRATEGIES[name], trials=48, seed=s) for s in range(3)]
        return float(np.mean([c[31:].mean() for c in curves]))

    assert mean("model") > mean("random") + 0.05


def test_a_search_from_scratch_needs_few_trials_where_near_configs_are_alike() -> None:
    sizes = (1, 2, 4, 8, 16, 32)
    configs = list(itertools.product(sizes, sizes, sizes, sizes))
    a, b, c, d = np.log2(np.array(configs, dtype=np.float64)).T - 2.5
    off = 0.15 * (a + b - 1) ** 2 + 0.1 * (a - c) ** 2 + 0.1 * (c - d + 1) ** 2 + 0.05 * d**2
    texts = tuple(tuple(map(str, config)) for config in configs)
    space = RecordedSpace("made up", ("a", "b", "c", "d"), texts, np.exp(2.0 * off))

    def mean(landscape: Landscape) -> float:
        model = STRATEGIES["model"]
        curves = [replay(space, model, trials=32, seed=s, landscape=landscape) for s in range(4)]
        return float(np.mean([curve[-1] for curve in curves]))

    landscape = space.landscape()
    assert mean(landscape) > max(0.85, mean(replace(landscape, places=None)) + 0.05)


def test_a_prior_leaves_no_room_for_places(recorded: RecordedSpace) -> None:
    flat = np.ones(len(recorded))
    assert recorded.landscape().places is not None
    known = recorded.landscape(flat)
    assert known.places is None
    seen = Observations({r: float(recorded.time_s[r]) for r in range(0, 400, 20)})
    assert ModelGuidedSearch().ask(4, known, seen, 0) == ModelGuidedSearch(process_until=0).ask(
        4, recorded.landscape(), seen, 0
    )


def test_small_asks_share_picks_between_process_and_ensemble(recorded: RecordedSpace) -> None:
    """One at a time, as workers ask that finish one by one, none twice."""
    landscape, strategy = recorded.landscape(), STRATEGIES["model"]
    seen = Observations()
    for row in np.random.default_rng(0).permutation(len(recorded))[:90]:
        time_s = float(recorded.time_s[row])
        seen.times_s[int(row)] = None if np.isnan(time_s) else time_s
    for _ in range(6):
        rows = strategy.ask(1, landscape, seen, 0)
        assert len(rows) == 1
        assert not seen.is_taken(rows[0])
        seen.pending.add(rows[0])


def test_a_good_prior_is_used_from_the_first_trial(recorded: RecordedSpace) -> None:
    rng = np.random.default_rng(0)
    times = np.where(np.isnan(recorded.time_s), np.nanmax(recorded.time_s), recorded.time_s)
    prior = times * np.exp(rng.normal(0, 0.2, len(times)))
    curve = replay(recorded, STRATEGIES["model"], trials=24, prior_s=prior)
    assert curve[7] > 0.75


def test_the_order_of_telling_changes_nothing(recorded: RecordedSpace) -> None:
    landscape, strategy = recorded.landscape(), STRATEGIES["model"]
    rows = np.flatnonzero(np.isfinite(recorded.time_s))[::90]
    times: dict[int, float | None] = {int(r): float(recorded.time_s[r]) for r in rows}
    backwards = dict(reversed(times.items()))
    first = strategy.ask(8, landscape, Observations(times), 3)
    assert first == strategy.ask(8, landscape, Observations(backwards), 3)
    assert len(set(first)) == 8
    known = replace(landscape, places=None)  # where a seed decides more than the first picks
    assert strategy.ask(8, known, Observations(times), 3) != strategy.ask(
        8, known, Observations(times), 4
    )
    nothing = Observations()
    assert strategy.ask(8, landscape, nothing, 3) != strategy.ask(8, landscape, nothing, 4)


def test_the_first_eight_know_no_more_than_the_prior(recorded: RecordedSpace) -> None:
    prior = np.arange(1.0, len(recorded) + 1)
    landscape = recorded.landscape(prior)
    exploiting = ModelGuidedSearch(local_share=0.0, random_share=0.0)
    assert exploiting.ask(4, landscape, Observations({9: 1.0}), 0) == [0, 1, 2, 3]


def test_a_long_search_looks_beyond_the_region_that_it_knows() -> None:
    knobs = np.stack(np.meshgrid(*[np.arange(8.0)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    times = 1.0 + 0.1 * knobs.sum(axis=1)
    near = np.flatnonzero(knobs.sum(axis=1) <= 8)
    landscape = Landscape(np.ones(len(knobs)), knobs.astype(np.float32), lambda row: [])

    def beyond(strategy: ModelGuidedSearch, told: int) -> int:
        seen = Observations({int(row): float(times[row]) for row in near[:told]})
        rows = strategy.ask(32, landscape, seen, 0)
        assert len(set(rows)) == 32
        assert not set(rows) & set(seen.times_s)
        return int(np.count_nonzero(knobs[rows].sum(axis=1) >= 11))

    exploiting = ModelGuidedSearch(random_share=0.0, afar_share=0.0)
    assert beyond(exploiting, 140) <= 2
    assert beyond(replace(exploiting, afar_share=0.5), 140) >= 8
    assert beyond(replace(exploiting, afar_share=0.5), 20) == beyond(exploiting, 20)


def test_many_told_places_are_compared_at_once() -> None:
    """A look at each of 20,000 told ones took 4 s of every second question of a study."""
    rng = np.random.default_rng(0)
    places = rng.integers(0, 9, (300, 5)).astype(np.float32) / np.float32(8)
    known = rng.integers(0, 9, (MANY_TOLD + 77, 5)).astype(np.float32) / np.float32(8)
    expected = np.abs(places[:, None] - known).sum(axis=2).min(axis=1)
    assert np.allclose(_distances(places, known), expected)
    assert np.allclose(_distances(places, known[:50]), _distances(places, known[:50].repeat(50, 0)))
