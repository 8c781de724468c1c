"""The tuner behind @autotune, on workers whose times follow from the config."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest

import tilecore.language as T
from db.errors import DatabaseAway
from db.records import MeasurementQuery
from db.store import SqlStore
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.ports import MeasureRequest
from recommender.programs import version
from tilecore.ir.nodes import PrimFunc
from tilecore.tile_config import TileConfig
from tilecore.tuning import Candidate, TuningTask
from tuner_service import autotune
from tuner_service.wiring import detected_host, host_toolchain

FASTEST_BLOCK = 48


def program(block: int, n: int = 4096) -> PrimFunc:
    @T.prim_func
    def main(X: T.Tensor((n, n), "float32"), Y: T.Tensor((n, n), "float32")):
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(n, block)) as (bx, by):
            tile = T.alloc_fragment((block, block), "float32")
            T.copy(X[by * block, bx * block], tile)
            T.copy(tile, Y[by * block, bx * block])

    return main


def task(blocks: Sequence[int], name: str = "script:copy") -> TuningTask:
    candidates = [
        Candidate(config=TileConfig.of(block=b), program=program(b), inputs=[]) for b in blocks
    ]
    return TuningTask(
        name=name,
        problem={"X": "float32", "X[0]": 4096, "X[1]": 4096},
        candidates=candidates,
        target="llvm",
    )


@dataclass
class FakePool:
    """A Measurer without processes. Blocks 16 and 17 make the same code."""

    lost: dict[int, int] = field(default_factory=dict)  # block: how often its worker is lost
    silent: set[int] = field(default_factory=set)
    asked: list[tuple[Protocol, int]] = field(default_factory=list)
    pools: int = 0

    def __call__(self, *_: object, **__: object) -> FakePool:
        self.pools += 1
        self._queue: list[MeasureRequest] = []
        return self

    def __enter__(self) -> FakePool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, requests: Sequence[MeasureRequest]) -> None:
        self._queue.extend(requests)

    def collect(self, timeout_s: float) -> list[tuple[MeasureRequest, Measurement]]:
        taken, self._queue = self._queue, []
        return [(r, self._measure(r)) for r in taken if r.config["block"] not in self.silent]

    def _measure(self, request: MeasureRequest) -> Measurement:
        block = int(request.config["block"])
        candidate = next(c for c in self.task.candidates if c.config == request.config)
        self.asked.append((request.protocol, block))
        status, times_s = MeasureStatus.OK, (1e-3 * (1 + abs(block - FASTEST_BLOCK)),)
        if block == 17:
            times_s = (1e-3 * (1 + abs(16 - FASTEST_BLOCK)),)
        if self.lost.get(block, 0) > 0:
            self.lost[block] -= 1
            status, times_s = MeasureStatus.WORKER_LOST, ()
        if block == 13:
            status, times_s = MeasureStatus.WRONG_RESULT, ()
        return Measurement(
            workload=request.workload,
            config=request.config,
            hardware=detected_host(),
            toolchain=host_toolchain().on("cpu"),
            program_digest=version(candidate.program, "", candidate.lowering),
            protocol=request.protocol,
            threads=1,
            status=status,
            times_s=times_s,
            detail="" if times_s else "as asked",
            measured_at=datetime.now(UTC),
        )

    def tune(self, what: TuningTask):
        self.task = what
        return autotune.tune(what)


@pytest.fixture
def pool(monkeypatch, settings) -> Iterator[FakePool]:
    made = FakePool()
    monkeypatch.setattr(autotune, "LocalPool", made)
    monkeypatch.setattr(autotune, "load_settings", lambda: settings)
    return made


def test_default_and_recommendation_first_finalists_by_time_and_code(pool) -> None:
    blocks = [8, 13, *range(16, 29), 64]
    answer = pool.tune(task(blocks))
    screened = [block for protocol, block in pool.asked if protocol is Protocol.SCREEN]
    confirmed = [block for protocol, block in pool.asked if protocol is Protocol.CONFIRM]
    assert screened[0] == 8, "the author's default"
    assert sorted(screened) == blocks
    assert confirmed[0] == 8
    assert set(confirmed) == {8, screened[1], 64, *range(21, 29)} - {13}
    ranked = [blocks[i] for i in answer.times_s]
    assert ranked[:2] == [64, 28]
    assert set(ranked) == set(blocks) - {13}
    assert answer.failures == {1: "WRONG_RESULT: as asked"}


def test_equal_code_is_confirmed_once(pool) -> None:
    pool.tune(task([16, 17, 13]))
    confirmed = [block for protocol, block in pool.asked if protocol is Protocol.CONFIRM]
    assert confirmed == [16]


def test_what_was_measured_is_not_measured_again(pool, store) -> None:
    first = pool.tune(task([8, 13, 64]))
    again = pool.tune(task([8, 13, 64]))
    assert pool.pools == 1
    assert (first.is_stored, again.is_stored) == (False, True)
    assert (again.times_s, again.failures) == (first.times_s, first.failures)
    rows = store.page(MeasurementQuery(kernel="script:copy"), limit=50).items
    assert {r.measurement.status.value for r in rows} == {"OK", "WRONG_RESULT"}
    assert len(rows) == 5
    assert pool.tune(task([8, 64])).is_stored, "they were among those"
    pool.tune(replace(task([8, 13, 64]), problem={"X": "float32", "X[0]": 64, "X[1]": 64}))
    assert pool.pools == 2


def test_candidates_that_are_new_are_measured_beside_those_that_are_known(pool) -> None:
    pool.tune(task([8, 64]))
    pool.asked.clear()
    answer = pool.tune(task([8, 24, 64]))
    assert not answer.is_stored
    assert [block for protocol, block in pool.asked if protocol is Protocol.SCREEN] == [24]
    assert {b for protocol, b in pool.asked if protocol is Protocol.CONFIRM} == {8, 24, 64}
    assert list(answer.times_s) == [2, 1, 0]
    assert pool.tune(task([8, 24, 64])).is_stored


def test_a_part_of_which_little_was_confirmed_is_confirmed(pool) -> None:
    blocks = [1, *range(20, 48)]  # the first one, the default, is the slowest
    pool.tune(task(blocks))
    confirmed = {block for protocol, block in pool.asked if protocol is Protocol.CONFIRM}
    other = max(set(blocks) - confirmed)
    pool.asked.clear()
    answer = pool.tune(task([1, other]))
    assert not answer.is_stored
    assert sorted(pool.asked) == [(Protocol.CONFIRM, 1), (Protocol.CONFIRM, other)]
    assert list(answer.times_s) == [1, 0]
    assert pool.tune(task([1, other])).is_stored


def test_the_newest_time_of_a_candidate_counts(pool, monkeypatch) -> None:
    pool.tune(task([8, 64]))
    monkeypatch.setattr("tests.tuner_service.test_autotune.FASTEST_BLOCK", 8)
    pool.tune(task([8, 24, 64]))
    assert next(iter(pool.tune(task([8, 24, 64])).times_s)) == 0


def test_a_program_that_changed_or_is_lowered_otherwise_is_measured_again(pool) -> None:
    pool.tune(task([8, 64]))
    changed = task([8, 64])
    first = replace(changed.candidates[0], program=program(8, n=2048))
    pool.asked.clear()
    pool.tune(replace(changed, candidates=[first, changed.candidates[1]]))
    assert [block for protocol, block in pool.asked if protocol is Protocol.SCREEN] == [8]
    packed = [replace(c, lowering={"micro_m": 4}) for c in changed.candidates]
    pool.asked.clear()
    pool.tune(replace(changed, candidates=packed))
    screened = [block for protocol, block in pool.asked if protocol is Protocol.SCREEN]
    assert sorted(screened) == [8, 64]


def test_a_lost_worker_is_no_ones_fault(pool) -> None:
    pool.lost = {64: 2, 8: 1}
    answer = pool.tune(task([8, 64]))
    assert list(answer.times_s) == [1, 0]
    pool.lost = {24: 99}
    answer = pool.tune(task([24, 32]))
    assert answer.failures == {0: "WORKER_LOST: as asked"}


def test_the_time_limit_leaves_the_rest_out(pool, settings, monkeypatch) -> None:
    short = settings.model_copy(update={"time_limit_s": 0.05})
    monkeypatch.setattr(autotune, "load_settings", lambda: short)
    pool.silent = {64}
    answer = pool.tune(task([8, 64]))
    assert list(answer.times_s) == [0]
    assert "time limit" in answer.failures[1]
    assert pool.pools == 2, "the first one still has work in its queue"


def test_without_a_database_it_is_measured_and_not_kept(
    pool, monkeypatch, settings, caplog
) -> None:
    """A first call failed where the database was away, or had no room: of a program that runs."""
    caplog.set_level(logging.WARNING)
    away = settings.model_copy(update={"database_url": "sqlite:////proc/none/tilecore.db"})
    with monkeypatch.context() as patch:
        patch.setattr(autotune, "load_settings", lambda: away)
        answer = pool.tune(task([8, 48, 64]))
        assert next(iter(answer.times_s)) == 1
    assert "without a database" in caplog.text

    def refuse(*_: object) -> None:
        raise DatabaseAway(url="here", reason="disk full")

    with monkeypatch.context() as patch:
        patch.setattr(SqlStore, "add_all", refuse)
        assert next(iter(pool.tune(task([8, 48, 64])).times_s)) == 1
    assert "what was measured is not kept" in caplog.text
    assert not pool.tune(task([8, 48, 64])).is_stored
    assert pool.tune(task([8, 48, 64])).is_stored
