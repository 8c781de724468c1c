from __future__ import annotations

import time
from dataclasses import replace

import pytest

from recommender.features import SCHEMA
from recommender.measurement import Protocol
from recommender.nearest import workload_distance
from recommender.ports import StoredModel
from recommender.recommend import recommend
from recommender.space import SearchSpace
from recommender.training import train
from tests.recommender.support import (
    GEMM,
    HOST,
    PROGRAM,
    TOOLCHAIN,
    MemoryStore,
    SimulatedDevice,
    measured,
    sample,
    space_of,
    workload,
)

CUBE = workload(1024, 1024, 1024)


@pytest.fixture(autouse=True)
def without_prior(monkeypatch):
    """What ships with the package is the business of test_prior.py."""
    monkeypatch.setattr("recommender.predict.prior", lambda kernel, hardware: None)


def ask(store: MemoryStore, w=CUBE, hardware=HOST, **kw):
    return recommend(
        w, GEMM, hardware, store, toolchain_key=TOOLCHAIN.key,
        **{"top_k": 5, "program_digest": PROGRAM, **kw},
    )  # fmt: skip


def test_without_any_measurement_the_analytic_model_answers() -> None:
    found = ask(MemoryStore())
    assert [r.source for r in found] == ["analytic"] * 5
    assert found == ask(MemoryStore())
    for r in found:
        assert r.interval_s[0] < r.time_s < r.interval_s[1]
        assert 0 < r.confidence < 1
        assert "bound by" in r.rationale
    for i, r in enumerate(found):
        for other in found[:i]:
            assert sum(other.config[k] != v for k, v in r.config.items()) >= 2


def test_measured_answers_first_and_only_for_exactly_this_key() -> None:
    config = space_of(CUBE).config(77)
    m = measured(CUBE, config, 0.02, protocol=Protocol.CONFIRM)
    first = ask(MemoryStore([m]))[0]
    assert (first.source, first.config, first.time_s) == ("measured", config, 0.02)
    other_tools = replace(m, toolchain=replace(TOOLCHAIN, llvm="99"))
    stale = ask(MemoryStore([other_tools]))
    assert stale[0].source == "analytic"
    (marked,) = [r for r in stale if r.is_stale]
    assert marked.config == config
    assert "older program or toolchain" in marked.rationale
    now = f"toolchain {other_tools.toolchain.key[:12]}, now {TOOLCHAIN.key[:12]}"
    assert marked.doubts == (now,)
    other_code = ask(MemoryStore([replace(m, program_digest="another")]))
    (marked,) = [r for r in other_code if r.is_stale]
    assert marked.doubts == (f"program another, now {PROGRAM[:12]}",)
    assert marked.confidence == pytest.approx(0.45)
    blind = ask(MemoryStore([m]), use_exact=False)
    assert all(r.source == "analytic" for r in blind)


def test_where_enough_was_confirmed_the_records_are_the_answer() -> None:
    unseen = workload(768, 640, 1024)
    blocks = [(64, 64), (64, 128), (128, 64), (128, 128), (32, 256), (256, 256)]
    default = GEMM.default_config()
    configs = [default.replace(block_M=m, block_N=n, micro_m=6, micro_n=2) for m, n in blocks]
    alike = configs[0].replace(micro_m=8)  # differs in one knob only
    times = [0.02, 0.03, 0.021, 0.025, 0.05, 0.04, 0.0201]
    store = MemoryStore(
        [
            measured(unseen, c, t, protocol=Protocol.CONFIRM)
            for c, t in zip([*configs, alike], times, strict=True)
        ]
    )
    found = ask(store, unseen, top_k=3)
    assert [(r.source, r.time_s) for r in found] == [("measured", t) for t in (0.02, 0.025, 0.04)]
    assert "best measured for exactly" in found[0].rationale
    assert all("another one measured" in r.rationale for r in found[1:])
    assert all(r.bound_by in r.rationale for r in found)
    outline = SearchSpace.outline(GEMM, dict(unseen.problem), HOST)
    assert "_candidates" not in vars(outline)  # nobody needed the space
    more = ask(store, unseen, top_k=5)
    assert more[0] == found[0]
    assert {r.source for r in more[1:]} == {"analytic"}


def test_a_digest_is_asked_for_only_where_something_was_measured() -> None:
    asked = []

    def digest() -> str:
        asked.append(1)
        return PROGRAM

    config = space_of(CUBE).config(77)
    near = MemoryStore([measured(workload(1024, 1024, 2048), config, 0.02)])
    assert ask(near, program_digest=digest) == ask(near)
    assert asked == []
    here = MemoryStore([measured(CUBE, config, 0.02, protocol=Protocol.CONFIRM)])
    assert ask(here, program_digest=digest) == ask(here)
    assert asked == [1]


def test_times_of_another_driver_answer_with_less_confidence() -> None:
    here = replace(HOST, driver="kernel 2")
    slow, fast = space_of(CUBE).config(77), space_of(CUBE).config(78)
    old = replace(measured(CUBE, fast, 0.02, protocol=Protocol.CONFIRM), driver="kernel 1")
    first = ask(MemoryStore([old]), hardware=here)[0]
    assert (first.source, first.config, first.is_stale) == ("measured", fast, True)
    assert first.confidence == pytest.approx(0.98 * 0.8)
    assert first.doubts == ("driver kernel 1, now kernel 2",)
    assert first.doubts[0] in first.rationale
    new = replace(measured(CUBE, slow, 0.03, protocol=Protocol.CONFIRM), driver="kernel 2")
    first = ask(MemoryStore([old, new]), hardware=here)[0]
    assert (first.config, first.doubts, first.confidence) == (slow, (), 0.98)
    assert ask(MemoryStore([old]))[0].doubts == ()  # nobody knows the driver now


def test_close_neighbours_go_before_the_analytic_model_and_far_ones_after() -> None:
    near, far = workload(1024, 1024, 2048), workload(32, 8192, 64)
    config = space_of(CUBE).config(77)
    found = ask(MemoryStore([measured(near, config, 0.02)]))
    assert (found[0].source, found[0].distance) == ("nearest", 1.0)
    found = ask(MemoryStore([measured(far, config, 0.02)]))
    assert found[0].source == "analytic"


def test_neighbours_that_cannot_run_here_are_left_out() -> None:
    avx2 = replace(HOST, name="small", arch="x86-64-avx2", vector_bytes=32, vector_registers=16)
    config = GEMM.default_config().replace(micro_m=14, micro_n=2)
    store = MemoryStore([measured(workload(1024, 1024, 2048), config, 0.02)])
    found = ask(store, hardware=avx2)
    assert {r.source for r in found} <= {"shipped", "analytic"}
    assert config not in [r.config for r in found]


def test_promoted_model_answers_better_than_the_analytic_model() -> None:
    shapes = [(512, 512, 512), (1000, 1000, 1000), (768, 768, 2048), (2048, 256, 512)]
    outcome = train([m for s in shapes for m in sample(workload(*s), 60)], GEMM)
    store = MemoryStore()
    blind = ask(store)[0]
    store.model = StoredModel(
        id=1, kernel="gemm", blob=outcome.model.to_bytes(), feature_schema=SCHEMA,
        metrics=outcome.metrics, trained_on=240,
    )  # fmt: skip
    learned = ask(store)[0]
    assert learned.source == "predicted"
    device = SimulatedDevice(CUBE)
    best = device.best_s(2)
    assert best / device.time_s(learned.config, 2) >= 0.93
    assert device.time_s(learned.config, 2) <= device.time_s(blind.config, 2) * 1.02
    store.model = replace(store.model, blob=b"garbage")
    assert ask(store)[0].source == "analytic"


def test_answers_in_50_ms_once_the_space_is_known() -> None:
    store = MemoryStore()
    ask(store)
    times = []
    for _ in range(7):
        begin = time.process_time()
        ask(store)
        times.append(time.process_time() - begin)
    assert sorted(times)[3] < 0.05


@pytest.mark.parametrize(
    ("other", "distance"),
    [((1024, 1024, 1024), 0.0), ((2048, 1024, 1024), 1.0), ((4096, 1024, 1024), 2.0)],
)
def test_workload_distance(other, distance) -> None:
    assert workload_distance(CUBE, workload(*other)) == pytest.approx(distance)
    assert workload_distance(CUBE, workload(*other, transpose_b=True)) == distance + 2
