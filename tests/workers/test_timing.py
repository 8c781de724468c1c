from __future__ import annotations

import pytest

from workers.statistics import StoppingRule
from workers.timing import FEW_SAMPLES, MIN_SAMPLE_S, calibrate, interleave, load_metrics, screen


class Machine:
    """A clock that the calls themselves advance."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.log: list[str] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.log.append("sleep")

    def call(self, name: str, *durations_s: float):
        pending = list(durations_s)

        def run() -> None:
            self.now_s += pending.pop(0) if len(pending) > 1 else pending[0]
            self.log.append(name)

        return run


RULE = StoppingRule(min_samples=3, max_samples=5, target=0.0001, unstable=0.5)


@pytest.mark.parametrize("duration_s", [1e-6, 1e-4, 1e-3, 0.5])
def test_a_sample_is_long_enough_for_the_clock(duration_s):
    machine = Machine()
    calls, call_s = calibrate(machine.call("a", duration_s), machine.clock)
    assert calls * duration_s >= MIN_SAMPLE_S
    assert call_s == pytest.approx(duration_s)
    assert calls * duration_s <= max(2 * MIN_SAMPLE_S, duration_s) * 4


def test_screen_takes_more_samples_while_they_disagree():
    machine = Machine()
    steady = screen(machine.call("a", 0.01), RULE, machine.clock)
    assert steady == pytest.approx((0.01,) * 3)
    noisy = screen(machine.call("a", 0.01, 0.01, 0.01, 0.02, 0.03, 0.04, 0.05), RULE, machine.clock)
    assert len(noisy) == 5


def test_participants_take_turns_after_a_pause_and_a_warm_call():
    machine = Machine()
    calls = {"a": machine.call("a", 0.05), "b": machine.call("b", 0.01)}
    times = interleave(
        calls, RULE, machine.clock, machine.sleep,
        begin=lambda name: machine.log.append(f"{name}:"),
    )  # fmt: skip
    assert times["a"] == pytest.approx((0.05,) * 3)
    assert times["b"] == pytest.approx((0.01,) * 3)
    first = machine.log.index("sleep") - 1
    assert machine.log[:first] == ["a:", "a", "b:", "b", "b"]
    turns = ["a:", "sleep", "a", "a", "b:", "sleep", "b", "b", "b"]
    assert machine.log[first : first + len(turns)] == turns
    assert machine.log.count("sleep") == 6


def test_a_budget_ends_the_samples_but_not_before_a_few():
    patient = StoppingRule(min_samples=7, max_samples=9, target=0.0001, unstable=0.5)
    durations = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
    machine = Machine()
    calls = {"a": machine.call("a", *durations)}
    times = interleave(calls, patient, machine.clock, machine.sleep, budget_s=0.1)
    assert len(times["a"]) == FEW_SAMPLES
    screened = screen(machine.call("a", *durations), patient, machine.clock, budget_s=0.1)
    assert screened == pytest.approx((0.6, 0.7, 0.8))
    assert len(screen(machine.call("a", *durations), patient, machine.clock, budget_s=99)) == 9


def test_slow_calls_need_no_warm_call():
    machine = Machine()
    interleave({"a": machine.call("a", 0.6)}, RULE, machine.clock, machine.sleep)
    assert machine.log == ["a", *["sleep", "a"] * 3]


def test_own_work_is_not_a_neighbour():
    alone = load_metrics((0, 0), (100, 200), used_s=2.0, cores=2, wall_s=2.0)
    assert alone == {"machine_busy": 0.5, "neighbour_busy": 0.0}
    crowded = load_metrics((0, 0), (200, 200), used_s=2.0, cores=2, wall_s=2.0)
    assert crowded == {"machine_busy": 1.0, "neighbour_busy": 0.5}
