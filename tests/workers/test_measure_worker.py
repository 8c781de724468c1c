"""Whose fault it is: processes that candidates share, and confirmations that end early."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from recommender.measurement import MeasureStatus
from recommender.workload import Workload
from tests.workers.fault_toolbox import WORKLOAD, FaultToolbox, config
from workers.measure_bench import MeasureBench
from workers.measure_worker import MOST_LEFT_OUT, MeasureWorker
from workers.outcome import Compiled, Failure, Timed
from workers.sandbox import Zygote
from workers.turn import Turn

S = MeasureStatus
Make = Callable[..., MeasureWorker]


class TurnsBench:
    """Takes one turn each; the name of a candidate says what comes of it.

    "crash", "hang"; after "spoil" whoever comes next crashes; "nobody" dies between turns.
    """

    def __init__(self, toolbox: object, cores: int) -> None:
        self._is_spoilt = False

    def prepare(self, workload: Workload) -> None:
        pass

    prepare_rival = prepare

    def check(self, workload: Workload, path: str) -> float:
        return 0.5

    def confirm(
        self, workload: Workload, paths: Sequence[str], turn: Turn
    ) -> list[Timed | Failure]:
        for path in paths:
            turn.begin("" if path.startswith("nobody") else path)
            if self._is_spoilt or path.startswith(("crash", "nobody")):
                os.abort()
            if path.startswith("hang"):
                time.sleep(1000)
            self._is_spoilt = path.startswith("spoil")
        return [Timed(times_s=(1e-3,), metrics={"together": float(len(paths))}) for _ in paths]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    zygote = Zygote("measure worker", ["tests.workers.test_measure_worker"])
    made = []

    def make_worker(bench: Callable[..., object] = MeasureBench, timeout_s: float = 20.0):
        worker = MeasureWorker(
            zygote, FaultToolbox(), cores=2, timeout_s=timeout_s, lock=tmp_path / "lock",
            bench=bench,
        )  # fmt: skip
        made.append(worker)
        return worker

    yield make_worker
    for worker in made:
        worker.close()
    zygote.close()


def named(*names: str) -> list[Compiled]:
    return [Compiled(path=name, digest=name, compile_s=0.0) for name in names]


def compiled(store: Path, fault: str, delay_us: int = 100) -> Compiled:
    return FaultToolbox().compile(WORKLOAD, config(fault, delay_us=delay_us), store)


@pytest.mark.parametrize("fault", ["stray", "heap"])
def test_an_innocent_candidate_is_measured_whoever_ran_before_it(
    make: Make, tmp_path: Path, fault: str
) -> None:
    worker = make()
    assert isinstance(worker.screen(WORKLOAD, compiled(tmp_path, fault)), Timed)
    found = worker.screen(WORKLOAD, compiled(tmp_path, "none"))
    assert isinstance(found, Timed), found
    assert worker._sandbox.starts == 2


@pytest.mark.few(2)
@pytest.mark.parametrize("fault", ["wrong", "beyond", "input", "segfault", "unpicklable"])
def test_what_fails_is_tried_in_a_process_of_its_own_and_leaves_none_to_others(
    make: Make, tmp_path: Path, fault: str
) -> None:
    worker = make()
    assert isinstance(worker.screen(WORKLOAD, compiled(tmp_path, fault)), Failure)
    assert worker._sandbox.starts == 1  # it was new
    assert isinstance(worker.screen(WORKLOAD, compiled(tmp_path, "none")), Timed)
    assert worker._sandbox.starts == 2
    assert isinstance(worker.screen(WORKLOAD, compiled(tmp_path, fault)), Failure)
    assert worker._sandbox.starts == 3
    assert isinstance(worker.screen(WORKLOAD, compiled(tmp_path, "none")), Timed)
    assert worker._sandbox.starts == 4


def test_a_hang_costs_its_time_limit_once(make: Make, tmp_path: Path) -> None:
    worker = make(timeout_s=2.0)
    assert isinstance(worker.screen(WORKLOAD, compiled(tmp_path, "none")), Timed)
    start = time.monotonic()
    found = worker.screen(WORKLOAD, compiled(tmp_path, "hang"))
    assert isinstance(found, Failure)
    assert found.status is S.RUN_TIMEOUT
    assert time.monotonic() - start < 4.0


def test_checked_candidates_are_timed_in_turn_without_one_that_crashes_later(
    make: Make, tmp_path: Path
) -> None:
    batch = [
        compiled(tmp_path, "none", 1_000), compiled(tmp_path, "crash-later"),
        compiled(tmp_path, "none", 2_000),
    ]  # fmt: skip
    one, late, other = make().confirm(WORKLOAD, batch)
    assert isinstance(late, Failure)
    assert late.status is S.LAUNCH_ERROR
    assert isinstance(one, Timed), one
    assert isinstance(other, Timed), other
    assert one.metrics["is_apart"] == other.metrics["is_apart"] == 0.0
    assert one.metrics["timing_s"] == other.metrics["timing_s"]
    assert one.reference_times_s == other.reference_times_s


@pytest.mark.few(1)
@pytest.mark.parametrize(("guilty", "status"), [("crash", S.LAUNCH_ERROR), ("hang", S.RUN_TIMEOUT)])
def test_the_one_whose_turn_it_was_is_left_out(
    make: Make, monkeypatch: pytest.MonkeyPatch, guilty: str, status: MeasureStatus
) -> None:
    monkeypatch.setattr("workers.measure_worker.CONFIRM_TIMEOUT_S", 1.0)
    worker = make(TurnsBench, timeout_s=0.1)
    results = worker.confirm(WORKLOAD, named("a", guilty, "b", "c"))
    assert [type(r) for r in results] == [Timed, Failure, Timed, Timed]
    assert results[1].status is status
    told = [(r.metrics["together"], r.metrics["is_apart"], r.max_error) for r in results[2:]]
    assert told == [(3.0, 0.0, 0.5)] * 2


def test_one_who_was_spoilt_by_another_is_timed_apart_and_says_so(make: Make) -> None:
    spoil, victim, last = make(TurnsBench).confirm(WORKLOAD, named("spoil", "victim", "last"))
    told = {name: (m["together"], m["is_apart"]) for name, m in (
        ("victim", victim.metrics), ("last", last.metrics), ("spoil", spoil.metrics),
    )}  # fmt: skip
    assert told == {"victim": (1.0, 1.0), "last": (1.0, 1.0), "spoil": (1.0, 0.0)}


@pytest.mark.parametrize("names", [
    ["good", "nobody", "good too"],
    ["good", *(f"crash {i}" for i in range(MOST_LEFT_OUT + 1)), "good too"],
])  # fmt: skip
def test_where_nobody_can_be_named_all_are_timed_apart(make: Make, names: list[str]) -> None:
    first, *bad, last = make(TurnsBench).confirm(WORKLOAD, named(*names))
    assert {type(r) for r in bad} == {Failure}
    assert [r.metrics["is_apart"] for r in (first, last)] == [1.0, 1.0]
