"""Dispatch tables: the tolerance is kept, what was measured counts, ranges have no gaps."""

import itertools
import json
from datetime import UTC, datetime

import numpy as np
import pytest

from recommender.dispatch.question import DispatchQuestion
from recommender.dispatch.table import Choice, dispatch_table, table_of_times, to_cross_measure
from recommender.dispatch.times import Times, known_times
from recommender.errors import InvalidShapes
from recommender.measurement import Protocol
from recommender.shapes import ShapeSet, Sizes, shape_set
from tests.recommender.support import (
    GEMM,
    HOST,
    TOOLCHAIN,
    MemoryStore,
    SimulatedDevice,
    measured,
)
from tilecore.dispatch_reader import read_table
from tilecore.tile_config import TileConfig

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def question(sizes, weights=None, threads=1, **fields):
    canonical = GEMM.parse_problem({"m": 1, "n": 256, "k": 256, **fields})
    dims = tuple(sizes)
    shapes = (
        shape_set({d: Sizes(values=tuple(v)) for d, v in sizes.items()})
        if weights is None
        else ShapeSet.of(dims, {(s,): w for s, w in zip(sizes["m"], weights, strict=True)})
    )
    return DispatchQuestion(
        definition=GEMM, fixed={k: v for k, v in canonical.items() if k not in dims},
        shapes=shapes, hardware=HOST, toolchain=TOOLCHAIN, threads=threads,
    )  # fmt: skip


def configs(count):
    return [TileConfig.of(block_M=16 * (i + 1), block_N=64, block_K=64) for i in range(count)]


def table_of(sizes, times_us, **options):
    times = np.array(times_us, float) * 1e-6
    asked = question({"m": sizes})
    return dispatch_table(
        asked, Times.of(configs(times.shape[1]), times), Choice(**options), now=NOW
    )


def measurement_of(asked, size, config, time_s, protocol=Protocol.CONFIRM, program=None):
    workload = asked.workload((size,))
    digest = GEMM.program_digest(dict(workload.problem)) if program is None else program
    return measured(workload, config, time_s, protocol=protocol, program=digest)


def test_one_config_where_one_is_enough_and_the_loss_is_told():
    table = table_of([1, 16, 256], [[10, 10.4], [20.8, 20], [30, 31]])
    assert len(table.configs) == 1
    assert table.configs[0]["block_M"] in (16, 32)
    assert table.worst_loss <= 0.05
    assert [(r.first, r.last) for r in table.ranges] == [(1, 256)]


def test_ranges_are_contiguous_and_choose_what_serves_each_shape():
    table = table_of([1, 16, 256, 4096], [[10, 20], [10, 20], [20, 10], [20, 10]])
    assert [(r.first, r.last, r.config) for r in table.ranges] == [(1, 16, 0), (17, 4096, 1)]
    assert [table.choose((m,)) for m in (1, 16, 17, 9999)] == [0, 0, 1, 1]
    assert "fewest" in table.reason


def test_fewest_configs_go_before_fewest_ranges_and_the_table_says_so():
    # Two configs in four ranges, or three configs in three ranges.
    times = [[10, 20, 20], [20, 10, 10.2], [10, 20, 10.2], [20, 10, 20]]
    table = table_of([1, 16, 256, 4096], times)
    assert (len(table.configs), len(table.ranges)) == (2, 4)
    assert "before the fewest ranges" in table.reason


@pytest.mark.parametrize("seed", range(12))
def test_no_shape_is_beyond_the_tolerance_and_ranges_agree_with_shapes(seed):
    rng = np.random.default_rng(seed)
    times = rng.uniform(1.0, 1.3, (9, 7)) * rng.uniform(1e-5, 1e-3, (9, 1)) * 1e6
    times[rng.random(times.shape) < 0.1] = np.nan
    times[:, 0] = np.where(np.isnan(times).all(axis=1), 1.0, times[:, 0])
    sizes = sorted(rng.choice(np.arange(1, 5000), 9, replace=False).tolist())
    table = table_of(sizes, times, tolerance=0.03)
    assert table.worst_loss <= 0.03 + 1e-9
    assert table.ranges[0].first == sizes[0]
    assert table.ranges[-1].last == sizes[-1]
    assert all(b.first == a.last + 1 for a, b in itertools.pairwise(table.ranges))
    best = np.nanmin(times, axis=1)
    for row, served in enumerate(table.shapes):
        assert table.choose(served.shape) == served.config
        column = next(i for i, c in enumerate(configs(7)) if c == table.configs[served.config])
        assert times[row, column] <= best[row] * 1.03 * (1 + 1e-9)  # never an illegal one


def test_at_most_so_many_configs_and_what_that_costs():
    times = [[10, 20, 12], [20, 10, 12], [20, 10, 12]]
    table = table_of([1, 16, 256], times, max_configs=1)
    assert [dict(c)["block_M"] for c in table.configs] == [48]
    assert table.worst_loss == pytest.approx(0.2)
    assert "as asked for" in table.method


def test_weights_decide_between_covers_of_one_size():
    times = [[10.0, 10.4], [10.4, 10.0]]
    asked = [question({"m": [1, 16]}, weights=w) for w in ([9, 1], [1, 9])]
    chosen = [dispatch_table(q, Times.of(configs(2), np.array(times) * 1e-6)) for q in asked]
    assert [t.configs[0]["block_M"] for t in chosen] == [16, 32]


def test_the_order_of_configs_does_not_matter():
    rng = np.random.default_rng(5)
    times = rng.uniform(1.0, 1.2, (8, 20))
    asked, all_configs = question({"m": [1, 2, 4, 8, 16, 32, 64, 128]}), configs(20)
    tables = []
    for _ in range(3):
        order = rng.permutation(20)
        given = Times.of([all_configs[i] for i in order], times[:, order])
        tables.append(dispatch_table(asked, given, now=NOW))
    assert tables[0] == tables[1] == tables[2]


def test_a_table_of_several_dims_goes_by_the_nearest_shape():
    asked = question({"m": [1, 256], "n": [64, 4096]})
    times = np.array([[1, 2], [2, 1], [2, 1], [1, 2]]) * 1e-5
    table = dispatch_table(asked, Times.of(configs(2), times), now=NOW)
    assert (table.rule, table.ranges) == ("nearest", ())
    by_size = [table.configs[table.choose(s)]["block_M"] for s in ((2, 70), (200, 70), (300, 9999))]
    assert by_size == [16, 32, 16]


def test_a_table_reads_back_as_it_was():
    table = table_of([1, 16, 256], [[10, 20], [12, 10], [20, 10]])
    again = read_table(json.loads(json.dumps(table.to_json())))
    assert again.to_json() == table.to_json()
    assert again.ranges == table.ranges
    assert again.configs == table.configs


def test_what_nobody_measured_is_predicted_and_the_table_says_so():
    asked = question({"m": [1, 16, 100, 512]})
    times = known_times(asked, MemoryStore())
    table = dispatch_table(asked, times)
    assert {s.source for s in table.shapes} <= {"prior", "analytic"}
    assert table.measured_share() == 0.0
    for served in table.shapes:
        low, high = served.interval_s
        assert low < served.time_s < high
        SimulatedDevice(asked.workload(served.shape)).space.check(table.configs[served.config])


def test_where_a_shape_was_measured_predictions_do_not_count_unless_trusted():
    asked = question({"m": [16, 512]})
    space = SimulatedDevice(asked.workload((512,))).space
    chosen = [space.config(i) for i in (10, 900)]
    store = MemoryStore([measurement_of(asked, 512, c, t) for c, t in zip(chosen, (3e-4, 2e-4))])  # noqa: B905
    times = known_times(asked, store)
    assert set(times.source[1]) <= {"", "measured"}
    assert (times.best_s[1], times.best_source[1]) == (2e-4, "measured")
    trusted = known_times(asked, store, trust_predictions=True)
    assert {"measured"} < set(trusted.source[1])
    assert np.all(trusted.time_s[1] >= 2e-4)  # no prediction beats what was measured


def test_one_threads_screening_is_brought_to_the_scale_of_confirmations():
    asked = question({"m": [512, 1024]}, threads=2)
    space = SimulatedDevice(asked.workload((512,))).space
    a, b = space.config(10), space.config(900)
    store = MemoryStore([
        measurement_of(asked, 512, a, 6e-4, Protocol.SCREEN),
        measurement_of(asked, 512, b, 3e-4, Protocol.SCREEN),
        measurement_of(asked, 512, a, 4e-4),
    ])  # fmt: skip
    times = known_times(asked, store)
    row = dict(zip(times.configs, zip(times.time_s[0], times.source[0], strict=True), strict=True))
    assert row[a] == (pytest.approx(4e-4), "measured")
    assert row[b][1] == "screened"
    assert times.best_s[0] == pytest.approx(4e-4)  # screening alone makes no best
    assert row[b][0] >= 4e-4


def test_measurements_of_another_program_or_toolchain_do_not_count():
    asked = question({"m": [512, 1024]})
    config = SimulatedDevice(asked.workload((512,))).space.config(10)
    stale = measurement_of(asked, 512, config, 1e-4, program="0" * 32)
    times = known_times(asked, MemoryStore([stale]))
    assert "measured" not in times.source


def test_configs_that_cannot_run_a_shape_have_no_time_there():
    asked = question({"m": [16, 64]})
    spilling = TileConfig.of(GEMM.default_config(), micro_m=14, micro_n=4)
    store = MemoryStore([measurement_of(asked, 16, spilling, 1e-9)])
    times = known_times(asked, store)
    assert spilling not in times.configs


@pytest.mark.parametrize(
    "wrong",
    [{"tolerance": -0.1}, {"tolerance": float("nan")}, {"tolerance": 11}, {"max_configs": 0}],
)
def test_a_tolerance_or_count_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidShapes) as caught:
        table_of([1, 2], [[1, 2], [1, 2]], **wrong)
    assert caught.value.code == "RC611"


def test_what_is_cross_measured_has_each_winner_its_neighbours_and_what_serves_all():
    asked = question({"m": [1, 2, 4, 8, 16]})
    times = np.full((5, 6), 30.0)
    times[np.arange(5), np.arange(5)] = 10.0
    times[:, 5] = 10.2  # of no shape the best, within 2.5 % everywhere
    chosen = to_cross_measure(Times.of(configs(6), times), np.array(asked.shapes.weights), limit=1)
    assert chosen == [
        [0, 1, 2, 5],
        [1, 0, 2, 3, 5],
        [2, 0, 1, 3, 4, 5],
        [3, 1, 2, 4, 5],
        [4, 2, 3, 5],
    ]


def test_a_prediction_is_no_winner_where_something_was_measured():
    times = Times.of(configs(3), np.full((2, 3), 10.0))
    times.source[0] = ["prior", "prior", "measured"]
    first = to_cross_measure(times, np.array([0.5, 0.5]))[0][0]
    assert first == 2


def test_a_table_of_ones_own_times():
    shapes = ShapeSet.of(("rows",), {(1,): 9.0, (64,): 1.0})
    table = table_of_times(
        "copy", shapes, configs(2), np.array([[1e-5, 2e-5], [np.nan, 1e-5]]), problem={"n": 24}
    )
    assert (table.kernel, table.problem, table.dims) == ("copy", {"n": 24}, ("rows",))
    assert [c["block_M"] for c in table.configs] == [16, 32]
    assert read_table(json.loads(json.dumps(table.to_json()))).ranges == table.ranges
    for wrong, said in (
        (np.ones((2, 3)), "times: expected"),
        (np.array([[1, 1], [0, np.nan]]), "times at rows=64: expected a config that runs"),
    ):
        with pytest.raises(InvalidShapes, match=said):
            table_of_times("copy", shapes, configs(2), wrong)
