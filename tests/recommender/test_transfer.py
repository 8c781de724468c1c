"""What other devices say of a space, for one that was never measured."""

from dataclasses import replace

import numpy as np
import pytest

from recommender.errors import NotEnoughMeasurements
from recommender.recorded import RecordedSpace
from recommender.replay import replay
from recommender.search import STRATEGIES, ModelGuidedSearch, Observations
from recommender.transfer import Sources


def devices(count, seed=0):
    """Return one landscape on several made-up devices: shared optimum, own noise, lucky points."""
    rng = np.random.default_rng(seed)
    configs = [(str(a), str(b)) for a in range(1, 33) for b in range(1, 33)]
    grid = np.array(configs, dtype=float)
    shared = np.exp(-((grid[:, 0] - 20) ** 2 + (grid[:, 1] - 12) ** 2) / 200)
    found = []
    for number in range(count):
        speed = shared * np.exp(rng.normal(0, 0.05, len(grid)))
        speed[rng.integers(len(grid))] = 1.5  # lucky on this device alone
        found.append(RecordedSpace(f"k__{number}", ("a", "b"), tuple(configs), 1e-3 / speed))
    return found


def test_luck_on_one_device_is_not_carried_to_another():
    spaces = devices(3)
    sources = Sources.of(spaces[2], spaces[:2])
    chosen = int(np.argmax(sources.expected))
    assert spaces[2].speed[chosen] > 0.55  # the lucky point is 1.5 times as fast
    cover = sources.cover(4)
    assert len(set(cover)) == 4
    assert cover[0] == chosen


def test_a_search_that_knows_other_devices_starts_where_they_are_fast():
    spaces = devices(3)
    target = spaces[2]
    sources = Sources.of(target, spaces[:2])
    known = sources.landscape(target.landscape())
    warm = replay(target, STRATEGIES["model"], trials=16, landscape=known, first=sources.cover(4))
    cold = [replay(target, STRATEGIES["model"], trials=1, seed=s)[0] for s in range(8)]
    assert warm[0] > np.mean(cold) + 0.2
    assert warm[0] > 0.6  # of the lucky point, which is 1.5 times as fast as the best of the rest


def test_a_search_corrects_what_other_devices_lead_to_expect():
    grid = [(str(a), str(b)) for a in range(1, 17) for b in range(1, 17)]
    a, b = np.array(grid, dtype=float).T

    def fastest_at(name, x, y):
        return named(name, grid, np.exp(((a - x) ** 2 + (b - y) ** 2) / 100))

    target = fastest_at("k__here", 8, 9)
    sources = Sources.of(target, [fastest_at("k__one", 14, 5), fastest_at("k__two", 14, 6)])
    known = sources.landscape(target.landscape())

    def reached(landscape, first):
        curve = replay(
            target, STRATEGIES["model"], trials=24, batch=4, landscape=landscape, first=first
        )
        return curve[-1]

    first = sources.cover(4)
    assert target.speed[first].max() < 0.75
    assert reached(known, first) > 0.95
    assert reached(known, first) >= reached(replace(known, places=None), first)
    assert reached(known, first) >= reached(target.landscape(), [])


def test_places_tell_how_slow_configs_were_elsewhere():
    spaces = devices(3)
    sources = Sources.of(spaces[2], spaces[:2])
    own = spaces[2].landscape()
    assert own.places is not None
    known = sources.landscape(own).places
    assert known is not None
    np.testing.assert_array_equal(known[:, :-2], own.places)
    slowness = known[:, -2:]
    assert slowness.min() >= 0
    assert slowness.max() == 1  # slower than a twentieth of the best
    order = np.argsort(sources.trusted[:, 0])
    assert (np.diff(slowness[order, 0]) <= 0).all()
    with_prior = spaces[2].landscape(np.ones(len(own)))
    assert sources.landscape(with_prior).places is None


def test_before_the_first_time_the_prior_picks():
    spaces = devices(3)
    sources = Sources.of(spaces[2], spaces[:2])
    known = sources.landscape(spaces[2].landscape())
    failed = Observations(dict.fromkeys(sources.cover(4)))
    best = sources.expected >= np.quantile(sources.expected, 0.5)
    for seen in (Observations(), failed):
        assert best[STRATEGIES["model"].ask(8, known, seen, 0)].all()


def test_trees_take_over_where_a_process_costs_more_than_it_finds():
    spaces = devices(3)
    sources = Sources.of(spaces[2], spaces[:2])
    known = sources.landscape(spaces[2].landscape())
    trees = replace(known, places=None)
    model = ModelGuidedSearch()
    times = {row: float(time_s) for row, time_s in enumerate(spaces[2].time_s)}
    rows = np.argsort(-sources.expected)

    def asked(landscape, told):
        return model.ask(4, landscape, Observations({int(r): times[r] for r in rows[:told]}), 0)

    last = model.process_alone - 1
    assert asked(known, last) != asked(trees, last)
    assert asked(known, last + 1) == asked(trees, last + 1)


def test_failures_do_not_slow_down_what_works_beside_them():
    """pnpoly on a 2080 Ti: beside blocks that fail, trees made 1.48 of 0.92, and 0.53 of 0.94."""
    grid = [(str(a), str(b)) for a in range(1, 33) for b in range(1, 33)]
    sizes = np.array(grid, dtype=float).prod(axis=1)
    time_s = 1.0 + np.abs(np.log2(sizes) - 8.0)
    broken = np.where(sizes > 300, np.nan, time_s)
    target, other = named("k__one", grid, time_s), named("k__two", grid, broken)
    sources = Sources.of(target, [other])
    worked = ~np.isnan(broken)
    off = np.abs(np.log(sources.smoothed[worked, 0] / other.speed[worked]))
    assert off.max() < 0.15
    assert sources.trusted[~worked].max() == 0


def test_what_was_not_asked_may_fail_as_its_neighbours_did():
    grid = [(str(a), str(b)) for a in range(1, 17) for b in range(1, 17)]
    a = np.array(grid, dtype=float)[:, 0]
    fails = a >= 9
    time_s = np.where(fails, np.nan, 20.0 - a)  # the nearer to what fails the faster
    asked = np.random.default_rng(0).permutation(256)[:128]
    part = named("k__part", [grid[r] for r in asked], time_s[asked])
    target = named("k__target", grid, np.ones(256))
    sources = Sources.of(target, [part])
    unasked = np.setdiff1d(np.arange(256), asked)
    trusted = sources.trusted[:, 0]
    assert trusted[unasked[fails[unasked]]].mean() < 0.2
    assert trusted[unasked[a[unasked] == 8]].mean() > 0.7
    assert (sources.works[asked[~fails[asked]]] > 0.5).all()


def test_spaces_of_other_kernels_are_no_evidence():
    spaces = devices(1)
    other = RecordedSpace("x", ("c",), (("1",),), np.ones(1))
    with pytest.raises(ValueError, match="same knobs"):
        Sources.of(spaces[0], [other])


def named(name, configs, time_s):
    return RecordedSpace(name, ("a", "b"), tuple(configs), np.array(time_s, dtype=float))


def test_the_nearer_a_device_the_more_it_counts():
    grid = [(str(a), str(b)) for a in range(1, 9) for b in range(1, 9)]

    def fastest_at(name, a, b):
        return named(name, grid, [1 + abs(int(x) - a) + abs(int(y) - b) for x, y in grid])

    ampere, turing, amd = (
        fastest_at("k__RTX_A4000", 2, 2), fastest_at("k__RTX_2080_Ti", 7, 2),
        fastest_at("k__W6600", 7, 7),
    )  # fmt: skip
    chosen = {}
    for device in ("NVIDIA RTX A6000", "TITAN RTX", "AMD Radeon PRO W6800"):
        target = fastest_at(f"k__{device}", 1, 1)
        sources = Sources.of(target, [ampere, turing, amd])
        assert sources.weights.sum() == pytest.approx(1)
        chosen[device] = grid[int(np.argmax(sources.expected))]
    assert chosen == {
        "NVIDIA RTX A6000": ("2", "2"), "TITAN RTX": ("7", "2"), "AMD Radeon PRO W6800": ("7", "7"),
    }  # fmt: skip
    assert set(np.round(Sources.of(named("k__x", grid, [1] * 64), [ampere, amd]).weights, 6)) == {
        0.5
    }


def test_what_a_device_was_not_asked_is_no_failure_there():
    rng = np.random.default_rng(0)
    grid = [(str(a), str(b)) for a in range(1, 17) for b in range(1, 17)]
    time_s = np.array([1 + (abs(int(a) - 12) + abs(int(b) - 12)) / 4 for a, b in grid])
    whole = named("k__one", grid, time_s * rng.uniform(0.95, 1.05, 256))
    best = grid.index(("12", "12"))
    asked = [row for row in rng.permutation(256)[:160] if row != best]
    part = named("k__two", [grid[r] for r in asked], time_s[asked])
    failed = named("k__two", grid, [np.nan if r not in asked else time_s[r] for r in range(256)])
    target = named("k__three", grid, time_s)
    unasked, broken = (Sources.of(target, [whole, second]) for second in (part, failed))
    assert unasked.expected[best] > 0.85 * unasked.expected.max()
    assert broken.expected[best] < 0.5 * broken.expected.max()


def test_only_candidates_of_the_target_are_taken():
    grid = [(str(a), "1") for a in range(1, 33)]
    other = named("k__one", grid, [1 + abs(int(a) - 30) for a, _ in grid])
    target = named("k__two", grid[:16], np.ones(16))
    sources = Sources.of(target, [other])
    assert len(sources.expected) == len(sources.landscape(target.landscape())) == 16
    assert all(row < 16 for row in sources.cover(20))
    assert len(sources.cover(20)) == 16
    assert int(np.argmax(sources.expected)) >= 13  # nearest to what was fastest there


def test_too_little_told_is_no_evidence():
    features = np.arange(32.0)[:, None]
    few = {row: 1.0 + row for row in range(4)} | dict.fromkeys(range(4, 16))
    failures = dict.fromkeys(range(16))
    assert Sources.told(features, [few, failures], [0, 0]) is None
    enough = {**{row: 1.0 + row for row in range(12)}, 20: None}
    found = Sources.told(features, [few, enough], [0, 2])
    assert found is not None
    assert found.weights.tolist() == [1.0]
    assert found.cover(1) == [0]


def test_a_space_in_which_hardly_anything_worked_is_refused():
    grid = [(str(a), "1") for a in range(1, 33)]
    broken = named("k__one", grid, [1.0] * 7 + [np.nan] * 25)
    with pytest.raises(NotEnoughMeasurements, match="8 measurements"):
        _ = Sources.of(named("k__two", grid, np.ones(32)), [broken]).expected


def test_texts_mean_the_same_on_every_device():
    """A device that was asked about fewer layouts numbered those it had, by another rank each."""
    slow = {"col": 4.0, "nhwc": 2.0, "row": 1.0}

    def recorded(*layouts):
        grid = [(layout, str(b)) for layout in layouts for b in range(1, 25)]
        return named(
            "k__" + "_".join(layouts), grid, [slow[a] * (1 + int(b) / 100) for a, b in grid]
        )

    target = recorded("col", "row")
    rows = {layout: [i for i, c in enumerate(target.configs) if c[0] == layout] for layout in slow}
    for source in (recorded("col", "nhwc", "row"), recorded("nhwc", "row")):
        found = Sources.of(target, [source])
        assert len(set(found.features[:, 0].tolist())) == 3
        assert found.expected[rows["row"]].min() > found.expected[rows["col"]].max()
