"""@autotune and a service: programs as data, what its log says of them, a service in doubt."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import numpy as np
import pytest

import tilecore.language as T
from tests.tuner_service.test_app import coordinate
from tests.tuner_service.test_autotune import program, task
from tests.tuner_service.test_programs import url  # noqa: F401
from tilecore.errors import InvalidDocument
from tilecore.ir.document import digest
from tilecore.portable import MOST_VARIANTS, parse
from tilecore.tile_config import TileConfig
from tilecore.tuning import Candidate
from tuner_service import autotune, wiring
from tuner_service.errors import NoServiceResult, Refused
from tuner_service.service_tuning import NUMBER, as_data, tune_there
from tuner_service.settings import Settings

BLOCKS = [8, 16, 64]


@pytest.fixture
def asking(url, tmp_path):  # noqa: F811
    """Settings of a machine that asks the service."""
    return Settings(data_dir=tmp_path / "asking", service_url=url, service_timeout_s=300.0)


def ask(asking, what):
    return tune_there(what, [None] * len(what.candidates), wiring.detected_host(), asking)


def test_candidates_travel_as_the_programs_they_are():
    what = task(BLOCKS)
    sent, configs = as_data(what, what.candidates)
    assert configs == [c.config for c in what.candidates]
    read = parse(sent.to_bytes())
    assert read.digest == sent.digest
    for candidate in what.candidates:
        arrived = read.program(dict(candidate.config))
        assert digest(arrived) == digest(candidate.program)


def test_configs_that_a_document_cannot_hold_are_numbered():
    odd = [
        Candidate(config=TileConfig.of(c), program=program(b), inputs=[])
        for b, c in zip((8, 16), ({"policy": "a b"}, {"policy": "c-d", "more": 1}), strict=True)
    ]
    what = replace(task([8]), candidates=odd)
    sent, configs = as_data(what, odd)
    assert configs == [TileConfig.of({NUMBER: 0}), TileConfig.of({NUMBER: 1})]
    for candidate, config in zip(odd, configs, strict=True):
        made = parse(sent.to_bytes()).program(dict(config))
        assert digest(made) == digest(candidate.program)


def test_the_log_of_a_service_answers_and_a_run_makes_it(asking, store):
    what = task(BLOCKS)
    done: list[object] = []
    asked = threading.Thread(target=lambda: done.append(ask(asking, what)))
    asked.start()
    while not store.runs.list():
        assert asked.is_alive()
    coordinate(store)
    asked.join(60)
    (first,) = done
    assert not first.is_stored
    assert set(first.times_s) | set(first.failures) == set(range(len(BLOCKS)))
    times = list(first.times_s.values())
    assert times
    again = ask(asking, what)
    assert again.is_stored
    assert (again.times_s, again.failures) == (first.times_s, first.failures)
    assert len(store.runs.list()) == 1


def test_a_run_that_nobody_works_on_is_not_waited_for_longer_than_allowed(asking, store):
    short = asking.model_copy(update={"service_timeout_s": 1.0})
    with pytest.raises(NoServiceResult, match="found it QUEUED: not done after 1 s"):
        ask(short, task(BLOCKS))
    with pytest.raises(NoServiceResult):
        ask(short, task(BLOCKS))
    assert len(store.runs.list()) == 1  # who asks again asks for the same run


def test_a_device_that_the_service_does_not_know_is_refused(asking):
    unknown = replace(wiring.detected_host(), name="a CPU of the year 2040")
    what = task(BLOCKS)
    with pytest.raises(Refused, match="RC601"):
        tune_there(what, [None] * len(what.candidates), unknown, asking)


def test_dynamic_axes_get_the_sizes_of_the_inputs(asking, store):
    def dynamic(block: int):
        n = T.dynamic("n")

        @T.prim_func
        def main(X: T.Tensor((n, 64), "float32"), Y: T.Tensor((n, 64), "float32")):
            with T.Kernel(T.ceildiv(n, block)) as b:
                for i, j in T.Parallel(block, 64):
                    if b * block + i < n:
                        Y[b * block + i, j] = X[b * block + i, j] + 1.0

        return main

    inputs = [np.zeros((77, 64), np.float32)] * 2
    made = [
        Candidate(config=TileConfig.of(block=b), program=dynamic(b), inputs=inputs) for b in (8, 16)
    ]
    short = asking.model_copy(update={"service_timeout_s": 0.1})
    with pytest.raises(NoServiceResult):
        ask(short, replace(task([8]), candidates=made))
    (run,) = store.runs.list()
    assert dict(run.workload.problem) == {"n": 77}


def test_of_very_many_candidates_the_default_and_the_most_promising_are_sent(asking):
    what = task(list(range(1, MOST_VARIANTS + 7)))
    with pytest.raises(InvalidDocument):
        as_data(what, what.candidates)
    short = asking.model_copy(update={"service_timeout_s": 0.1})
    with pytest.raises(NoServiceResult):
        ask(short, what)


def test_a_service_that_is_away_is_told_of_and_the_tuning_is_done_here(
    monkeypatch, settings, caplog
):
    away = settings.model_copy(update={"service_url": "http://127.0.0.1:1"})
    monkeypatch.setattr(autotune, "load_settings", lambda: away)
    here: list[object] = []
    monkeypatch.setattr(autotune, "_tuned_here", lambda tuning, store: here.append(tuning) or "ok")
    with caplog.at_level(logging.WARNING):
        assert autotune.tune(task(BLOCKS)) == "ok"
    assert len(here) == 1
    assert "does not tune script:copy" in caplog.text
    assert "SV917" in caplog.text
