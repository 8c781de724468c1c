"""A study from Python: here in a database of this machine, or at a service."""

import threading

import numpy as np
import pytest
import torch

from db.errors import IdempotencyConflict
from recommender.errors import InvalidExternalSpace, InvalidRecording
from tests.tuner_service.serving import served
from tuner_service.app import create_app
from tuner_service.errors import InvalidRequest, NothingMeasured, Refused
from tuner_service.study import Study

TILES = {"BM": [32, 64, 128], "BN": [32, 64, 128], "stages": [2, 3]}


@pytest.fixture(params=["here", "service"])
def place(request, settings, store, monkeypatch):
    """Return what `service` is for studies: None, or the address of a service."""
    monkeypatch.setenv("TILECORE_DATA_DIR", str(settings.data_dir))
    if request.param == "here":
        yield None
        return
    with served(create_app(settings, store)) as url:
        yield url


def time_of(config):
    return 1e-6 * (10.0 + abs(config["BM"] - 128) + abs(config["BN"] - 64) + config["stages"])


def test_the_fastest_is_found_and_kept(place, store):
    measured = []

    def measure(config):
        measured.append(dict(config))
        return [time_of(config), time_of(config) * 3, time_of(config)]

    asked = {
        "conditions": ["BM * BN <= 8192"], "default": {"BM": 32, "BN": 32, "stages": 3},
        "max_trials": 12, "key": "mine", "service": place,
    }  # fmt: skip
    study = Study("my matmul", TILES, **asked)
    assert study.best() is None
    best = study.optimize(measure)
    assert measured[0] == {"BM": 32, "BN": 32, "stages": 3}
    assert best.config == min(measured, key=time_of) == {"BM": 128, "BN": 64, "stages": 2}
    assert best.time_s == pytest.approx(time_of(best.config))
    assert (best.measured, len(measured)) == (12, 12)
    again = Study("my matmul", TILES, **asked)  # as another process would
    assert again.optimize(measure) == again.best() == best
    assert len(measured) == 12
    assert len(store.studies.list()) == 1
    with pytest.raises((IdempotencyConflict, Refused), match="DB807"):
        Study("my matmul", TILES, **asked | {"seed": 3}).optimize(measure)


def test_listed_configurations_and_no_others(place):
    listed = [
        {"tile": 64, "warps": 4, "layout": "row"},
        {"warps": 8, "layout": "row", "tile": 128},
        {"tile": 256, "warps": 8, "layout": "column"},
    ]
    measured = []
    study = Study("listed", configurations=listed, service=place, default=listed[1])
    best = study.optimize(lambda config: measured.append(config) or 1.0 / config["tile"])
    assert measured[0] == listed[1]
    assert sorted(c["tile"] for c in measured) == [64, 128, 256]
    assert all(config in listed for config in measured)
    assert best.config == listed[2]


def test_failures_are_no_times(place, store):
    def measure(config):
        if config["BM"] == 32:
            raise MemoryError("too much shared memory")
        return float("inf") if config["BM"] == 64 else time_of(config)

    study = Study("fails", TILES, service=place)
    assert study.optimize(measure).config["BM"] == 128
    details = {t.config["BM"]: t.detail for t in store.studies.trials(store.studies.list()[0])}
    assert details[32] == "MemoryError: too much shared memory"
    assert details[64] == "measured inf s"
    with pytest.raises(NothingMeasured, match="18 without one; last: measured nan s"):
        Study("never", TILES, service=place).optimize(lambda config: float("nan"))


@pytest.mark.parametrize("text", ["15", b"15"])
def test_a_text_is_no_time(place, text):
    """Every letter, or byte, of what a program had printed was one: 1 and 5 s, 49 and 53 s."""
    study = Study("printed", TILES, service=place)
    with pytest.raises(InvalidRequest, match="expected seconds, or a sequence of them"):
        study.optimize(lambda config: text)


def test_numbers_of_numpy_and_torch_are_times(place):
    for number in (np.float32(0.5), np.array(0.5), torch.tensor(0.5), torch.tensor([0.5, 0.5])):
        study = Study("numbers", {"a": [1]}, service=place, max_trials=1, warm_start=False)
        assert study.optimize(lambda config, number=number: number).time_s == 0.5


def test_a_time_that_no_call_takes_is_none(place):
    """1e-300 s was the best time of a study for ever."""
    study = Study("too fast", TILES, service=place, default={"BM": 32, "BN": 32, "stages": 2})
    assert study.add([({"BM": 64, "BN": 32, "stages": 2}, 9e-11)]) == 1
    found = study.optimize(lambda c: 1e-300 if c["BM"] == 32 else time_of(c))
    assert found.time_s == pytest.approx(time_of(found.config))
    assert found.measured == 18
    once = Study("fast", {"a": [1]}, service=place, warm_start=False)
    assert once.optimize(lambda config: 1e-10).time_s == 1e-10


@pytest.mark.parametrize(
    "told", ["x", b"x", 5, None, {"BM": 32}, ["xy"], [{"BM": 32, "BN": 32}], [(1,)], [("a", 1e-6)]]
)
def test_what_is_no_pair_is_told(place, told):
    """A text was a ValueError of Python's: not enough values to unpack."""
    with pytest.raises(InvalidRequest, match=r"SV901.*expected pairs of a configuration and its"):
        Study("pairs", TILES, service=place).add(told)


def test_what_is_not_caught_is_measured_again(place):
    study = Study("stops", TILES, service=place, default={"BM": 64, "BN": 64, "stages": 2})
    seen = []

    def stop(config):
        seen.append(config)
        raise KeyError("a fault of the caller's")

    with pytest.raises(KeyError):
        study.optimize(stop, catch=(RuntimeError,))
    with pytest.raises(InvalidRequest, match="found None"):
        study.optimize(lambda config: seen.append(config))
    study.optimize(lambda config: seen.append(config) or time_of(config))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen) == 18 + 2


def test_processes_share_a_study(place):
    measured, lock, found = [], threading.Lock(), []

    def measure(config):
        with lock:
            measured.append(tuple(config.values()))
        return time_of(config)

    def work():
        study = Study("shared", TILES, key="one", service=place)
        found.append(study.optimize(measure).config)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(measured) == len(set(measured)) == 18
    assert found == [{"BM": 128, "BN": 64, "stages": 2}] * 3


def test_a_closed_study_gives_what_it_has(place, store):
    study = Study("closed", TILES, service=place)
    times = iter([3.0, 1.0, 2.0])

    def measure(config):
        found = next(times)
        if found == 1.0:
            store.studies.close(store.studies.list()[0].public_id)
        return found

    assert study.optimize(measure).time_s == 1.0


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, InvalidRequest),
        ({"parameters": TILES, "configurations": [{"a": 1}]}, InvalidRequest),
        ({"configurations": [{"a": 1}], "conditions": ["a > 0"]}, InvalidRequest),
        ({"parameters": TILES, "strategy": "magic"}, InvalidRequest),
        ({"parameters": TILES, "max_trials": 0}, InvalidRequest),
        ({"parameters": TILES, "default": {"BM": 1}}, InvalidExternalSpace),
        ({"parameters": {"a": 1}}, InvalidExternalSpace),
        ({"parameters": {"order": "rc"}}, InvalidExternalSpace),  # its letters were the values
        ({"parameters": {1: [1, 2]}}, InvalidExternalSpace),
        ({"configurations": []}, InvalidExternalSpace),
        ({"configurations": [{"a": 1}, {"b": 1}]}, InvalidExternalSpace),
        ({"configurations": [{"a": 1}, {"a": 1}]}, InvalidExternalSpace),
        ({"configurations": [{"a": [1]}]}, InvalidExternalSpace),
        ({"configurations": [{"a": 1}, {"a": "x"}]}, InvalidExternalSpace),
        ({"configurations": [{"a": 1}], "default": {"a": 2}}, InvalidExternalSpace),
        # These were errors of Python's, or of the database's, some after the first measurement.
        ({"parameters": [1, 2]}, InvalidExternalSpace),
        ({"parameters": "ab"}, InvalidExternalSpace),
        ({"configurations": "ab"}, InvalidExternalSpace),
        ({"configurations": {"a": 1}}, InvalidExternalSpace),
        ({"configurations": [1, 2]}, InvalidExternalSpace),
        ({"parameters": TILES, "conditions": "BM < BN"}, InvalidExternalSpace),
        ({"parameters": TILES, "conditions": 5}, InvalidExternalSpace),
        ({"parameters": TILES, "conditions": [lambda config: True]}, InvalidExternalSpace),
        ({"parameters": TILES, "default": [32, 32, 2]}, InvalidExternalSpace),
        ({"parameters": TILES, "name": ""}, InvalidRequest),
        ({"parameters": TILES, "problem": [1]}, InvalidRequest),
        ({"parameters": TILES, "problem": {"m": 1.5}}, InvalidRequest),
        ({"parameters": TILES, "hardware": None}, InvalidRequest),
        ({"parameters": TILES, "max_trials": "5"}, InvalidRequest),
        ({"parameters": TILES, "max_trials": 2.5}, InvalidRequest),
        ({"parameters": TILES, "seed": -1}, InvalidRequest),
        ({"parameters": TILES, "seed": 10**30}, InvalidRequest),
        ({"parameters": TILES, "strategy": ["model"]}, InvalidRequest),
        ({"parameters": TILES, "key": 5}, InvalidRequest),
        ({"parameters": TILES, "service": 5}, InvalidRequest),
    ],
)
def test_what_is_no_study_is_told_at_once(given, error):
    with pytest.raises(error, match="expected"):
        Study(**{"name": "bad"} | given)


@pytest.mark.parametrize(
    ("measure", "given"),
    [
        (None, {}), (time_of, {"lease_s": 0}), (time_of, {"lease_s": float("inf")}),
        (time_of, {"lease_s": "long"}), (time_of, {"catch": [5]}), (lambda config: True, {}),
    ],
)  # fmt: skip
def test_what_cannot_measure_is_told_at_once(place, measure, given):
    with pytest.raises(InvalidRequest, match=r"SV901.*expected"):
        Study("bad", TILES, service=place).optimize(measure, **given)


def test_values_of_numpy_are_numbers(place):
    """A list of them was no list of numbers, a size no JSON."""
    study = Study(
        "numpy", {"a": np.array([1, 2]), "b": [np.float32(0.5)], "c": [np.str_("x")]},
        problem={"m": np.int64(5)}, default={"a": np.int64(2), "b": 0.5, "c": "x"}, service=place,
    )  # fmt: skip
    assert study.optimize(lambda c: 1e-3 * c["a"]).config == {"a": 1, "b": 0.5, "c": "x"}
    failing = Study("fails", TILES, service=place, max_trials=1)
    with pytest.raises(NothingMeasured, match="division by zero"):
        failing.optimize(lambda c: 1 / 0, catch=[ZeroDivisionError])


def test_a_study_begins_with_what_was_fast_for_like_problems(place, store):
    """What was fast for few rows is slow for many; the nearest problem tells."""
    tall, wide = {"m": 4096, "n": 4096}, {"m": 16, "n": 4096}

    def time_for(m):
        return lambda config: 1e-6 * (10 + abs(config["BM"] - (128 if m > 1000 else 32)))

    for problem in (wide, tall):
        Study("products", TILES, problem=problem, service=place).optimize(time_for(problem["m"]))
    for _ in range(7):  # newer ones, far away
        Study("products", TILES, problem={"m": 8, "n": 64}, service=place).optimize(time_for(8))
    first = []

    def measure(config):
        first.append(config["BM"])
        return time_for(2048)(config)

    Study("products", TILES, problem={"m": 2048, "n": 4096}, service=place).optimize(measure)
    assert first[0] == 128
    learned = store.studies.list()[0].space["learns_from"]
    assert len(learned) == 8
    assert store.studies.get(learned[0]).space["problem"] == tall


def test_a_recording_is_told_to_a_study(place, tmp_path):
    """Who had a cache of Kernel Tuner measured all of it again."""
    path = tmp_path / "old.csv"
    path.write_text(
        "BM,BN,stages,device,status,time_ms\n128,64,2,x,OK,0.012\n32,32,3.0,x,ok,0.5\n"
        "64,64,2,x,CompileError,\n999,64,2,x,ok,1\n"
    )
    study = Study("my matmul", TILES, max_trials=4, key="told", service=place)
    assert study.add_recorded(path) == 3
    assert study.best().config == {"BM": 128, "BN": 64, "stages": 2}
    assert study.add([({"BM": 64, "BN": 32, "stages": 3}, [3e-6, 2e-6, 4e-6]),
                      ({"BM": 64, "BN": 32, "stages": 2}, "wrong result")]) == 2  # fmt: skip
    measured = []
    found = study.optimize(lambda config: measured.append(config) or time_of(config))
    assert (len(measured), found.measured) == (4, 9)
    assert not any(c in measured for c in ({"BM": 128, "BN": 64, "stages": 2},
                                           {"BM": 64, "BN": 64, "stages": 2}))  # fmt: skip
    path.write_text("BM,BN,time_ms\n128,64,1\n")
    with pytest.raises(InvalidRecording, match="expected columns BM, BN, stages"):
        study.add_recorded(path)
    with pytest.raises((InvalidExternalSpace, Refused), match="RC610"):
        study.add([({"BM": 1}, 1e-6)])
