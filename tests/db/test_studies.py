"""Studies: every configuration is given out once at a time and told once."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from db.errors import (
    AlreadyTold,
    IdempotencyConflict,
    LeaseLost,
    StudyClosed,
    UnknownStudy,
    UnknownTrial,
)
from db.records import NewStudy, ToldConfig
from db.session import Database
from db.store import SqlStore
from tests.db.conftest import BOTH

NEW = NewStudy(
    name="conv",
    space={"parameters": [["a", [1, 2]]], "conditions": [], "default": None},
    space_key="s",
    strategy="random",
    max_trials=40,
    body_hash="b",
)

pytestmark = BOTH


@pytest.fixture
def study(store):
    return store.studies.create(NEW)[0]


def configs(*rows):
    return {row: {"a": row} for row in rows}


def test_a_study_is_kept_and_found(store, second_store, study):
    assert second_store.studies.get(study.public_id) == study
    other, _ = store.studies.create(replace(NEW, name="gemm"))
    assert second_store.studies.list() == [other, study]
    assert second_store.studies.list(before=other.id) == [study]
    with pytest.raises(UnknownStudy):
        store.studies.get("none")


def test_the_same_key_is_the_same_study(store):
    first = store.studies.create(replace(NEW, idempotency_key="k"))
    assert first[1]
    assert store.studies.create(replace(NEW, idempotency_key="k")) == (first[0], False)
    with pytest.raises(IdempotencyConflict):
        store.studies.create(replace(NEW, idempotency_key="k", body_hash="c"))


def test_a_row_is_given_out_once(store, second_store, study):
    first = store.studies.add(study, configs(3, 1), "w1", 60)
    assert [t.row for t in first] == [3, 1]
    (only,) = second_store.studies.add(study, configs(1, 2), "w2", 60)
    assert only.row == 2
    assert store.studies.lease_again(study, "w3", 5, 60) == []
    assert [t.id for t in store.studies.lease_again(study, "w1", 5, 60)] == [t.id for t in first]


def test_no_more_than_the_budget_however_many_ask(store, study):
    def take(worker):
        rows = range(worker * 10, worker * 10 + 10)
        return len(store.studies.add(study, configs(*rows), f"w{worker}", 60))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(8))) == NEW.max_trials


def test_told_once_by_who_holds_it(store, second_store, study):
    (trial,) = store.studies.add(study, configs(0), "w1", 60)
    with pytest.raises(LeaseLost):
        second_store.studies.complete(study, trial.id, "w2", [1.0], "")
    told = store.studies.complete(study, trial.id, "w1", [3.0, 1.0, 2.0], "fine")
    assert (told.state, told.time_s, told.times_s) == ("ok", 2.0, (3.0, 1.0, 2.0))
    assert store.studies.complete(study, trial.id, "w1", [3.0, 1.0, 2.0], "again") == told
    with pytest.raises(AlreadyTold, match=r"DB828.*known of it \(3 times\)"):
        store.studies.complete(study, trial.id, "w1", [9.0], "")
    with pytest.raises(AlreadyTold):
        store.studies.complete(study, trial.id, "w1", [], "broken")
    with pytest.raises(UnknownTrial):
        store.studies.complete(study, trial.id + 1, "w1", [1.0], "")
    assert store.studies.count(study) == {"ok": 1}


def test_failures_have_no_time(store, study):
    (trial,) = store.studies.add(study, configs(0), "w1", 60)
    failed = store.studies.complete(study, trial.id, "w1", [], "does not compile")
    assert (failed.state, failed.time_s, failed.detail) == ("failed", None, "does not compile")
    assert store.studies.complete(study, trial.id, "w1", [], "does not compile") == failed
    with pytest.raises(AlreadyTold, match="failed: does not compile"):
        store.studies.complete(study, trial.id, "w1", [], "hangs")
    assert store.studies.best([study]) == {}


def test_the_median_of_an_even_number_of_times_lies_between(store, study):
    (trial,) = store.studies.add(study, configs(0), "w1", 60)
    assert store.studies.complete(study, trial.id, "w1", [1.0, 4.0, 2.0, 9.0], "").time_s == 3.0


def test_a_late_answer_counts_while_nobody_else_has_the_trial(store, study):
    (trial,) = store.studies.add(study, configs(0), "w1", 0.01)
    time.sleep(0.05)
    assert store.studies.complete(study, trial.id, "w1", [1.0], "").state == "ok"


def test_who_holds_a_trial_too_long_loses_it(store, study):
    (trial,) = store.studies.add(study, configs(0), "w1", 0.01)
    time.sleep(0.05)
    (again,) = store.studies.lease_again(study, "w2", 1, 60)
    assert (again.id, again.worker, again.attempt) == (trial.id, "w2", 2)
    with pytest.raises(LeaseLost):
        store.studies.complete(study, trial.id, "w1", [1.0], "")
    assert store.studies.complete(study, trial.id, "w2", [1.0], "").state == "ok"


def test_what_is_told_while_others_ask_is_given_to_nobody(store, store_url, study):
    """Who asked just then took it from its worker, or both waited for each other."""
    is_telling, goes_on = threading.Event(), threading.Event()

    class Slow(Database):
        def now(self, session):  # the trial is locked, and its outcome not committed
            is_telling.set()
            assert goes_on.wait(20)
            return super().now(session)

    (trial,) = store.studies.add(study, configs(0), "w1", 0.01)
    slow = SqlStore(Slow(store_url))
    with ThreadPoolExecutor(2) as pool:
        telling = pool.submit(slow.studies.complete, study, trial.id, "w1", [1.0], "")
        assert is_telling.wait(20)
        asking = pool.submit(store.studies.lease_again, study, "w2", 1, 60)
        time.sleep(0.3)
        goes_on.set()
        told = telling.result(20)
        assert asking.result(20) == []
    slow.database.close()
    assert (told.state, told.worker) == ("ok", "w1")
    assert store.studies.trials(study) == [told]
    assert store.studies.complete(study, trial.id, "w1", [1.0], "") == told


def test_what_stops_three_workers_is_a_failure(store, study):
    store.studies.add(study, configs(0), "w1", 0.01)
    for worker in ("w2", "w3"):
        time.sleep(0.05)
        assert store.studies.lease_again(study, worker, 1, 0.01)
    time.sleep(0.05)
    assert store.studies.lease_again(study, "w4", 1, 60) == []
    (trial,) = store.studies.trials(study)
    assert (trial.state, trial.detail) == ("failed", "3 workers did not answer")


def test_outlines_tell_what_trials_do(store, study):
    given = store.studies.add(study, configs(*range(4)), "w", 60)
    store.studies.complete(study, given[0].id, "w", [2e-3, 1e-3, 4e-3], "")
    store.studies.complete(study, given[2].id, "w", [], "no such register " * 40)
    full = store.studies.trials(study)
    assert [(o.id, o.config, o.state, o.time_s) for o in store.studies.outlines(study)] == [
        (t.id, t.config, t.state, t.time_s) for t in full
    ]
    assert store.studies.outlines(study)[2].detail == full[2].detail[:300]
    assert store.studies.known(study) == [(t.row, t.state, t.time_s) for t in full]
    assert store.studies.some([given[2].id, given[0].id]) == [full[2], full[0]]


def test_studies_to_learn_from_are_those_that_were_told_enough(store, study):
    for count in (3, 1):
        other, _ = store.studies.create(NEW)
        for trial in store.studies.add(other, configs(*range(4)), "w", 60)[:count]:
            store.studies.complete(other, trial.id, "w", [1e-3], "")
    first = store.studies.list()[1]
    assert store.studies.related("conv", "s", 2, 9) == [first]
    assert store.studies.related("conv", "s", 1, 9) == store.studies.list(limit=2)
    assert store.studies.related("conv", "s", 1, 1) == store.studies.list(limit=1)
    assert store.studies.related("other", "s", 1, 9) == []
    assert store.studies.related("conv", "other", 1, 9) == []


def test_a_closed_study_gives_out_nothing_but_listens(store, study):
    (trial,) = store.studies.add(study, configs(0), "w1", 60)
    assert store.studies.close(study.public_id).state == "CLOSED"
    for ask in (
        store.studies.lease_again,
        lambda s, w, n, t: store.studies.add(s, configs(1), w, t),
    ):
        with pytest.raises(StudyClosed):
            ask(study, "w1", 1, 60)
    assert store.studies.complete(study, trial.id, "w1", [1.0], "").state == "ok"


def test_what_nobody_was_given_comes_on_top_of_the_budget(store, second_store):
    new = replace(NEW, space={**NEW.space, "size": 42}, max_trials=40)
    study = store.studies.create(new)[0]
    (held,) = store.studies.add(study, configs(3), "w", 60)
    told = {row: ToldConfig(config={"a": row}, times_s=[row / 8]) for row in (3, 5, 6, 7)}
    told[8] = ToldConfig(config={"a": 8}, detail="it spills")
    found = store.studies.tell(study, told, "old")
    assert [(t.row, t.state, t.time_s, t.worker) for t in found] == [
        (3, "ok", 0.375, "old"), (5, "ok", 0.625, "old"), (6, "ok", 0.75, "old"),
        (7, "ok", 0.875, "old"), (8, "failed", None, "old"),
    ]  # fmt: skip
    assert found[0].id == held.id
    assert second_store.studies.tell(study, {5: ToldConfig(config={}, times_s=[9.0])}, "x") == [
        found[1]
    ]
    assert store.studies.get(study.public_id).max_trials == 42  # 40 and 4, of 42 that there are
    with pytest.raises(LeaseLost):
        store.studies.complete(study, held.id, "w", [1.0], "")
    store.studies.close(study.public_id)
    with pytest.raises(StudyClosed):
        store.studies.tell(study, told, "old")


def test_the_best_of_several_studies_is_found_at_once(store, study):
    other, _ = store.studies.create(replace(NEW, name="gemm"))
    empty, _ = store.studies.create(replace(NEW, name="none"))
    told = {study.id: [3.0, 1.0, 1.0], other.id: [2.0]}
    for one in (study, other):
        given = store.studies.add(one, configs(*range(5)), "w1", 60)
        for trial, time_s in zip(given, told[one.id], strict=False):
            store.studies.complete(one, trial.id, "w1", [time_s], "")
        store.studies.complete(one, given[4].id, "w1", [], "does not compile")
    best = store.studies.best([empty, other, study])
    assert {number: (t.row, t.time_s) for number, t in best.items()} == {
        study.id: (1, 1.0), other.id: (0, 2.0)
    }  # fmt: skip
    assert store.studies.counts([empty, other, study]) == {
        empty.id: {}, study.id: {"ok": 3, "failed": 1, "leased": 1},
        other.id: {"ok": 1, "failed": 1, "leased": 3},
    }  # fmt: skip
