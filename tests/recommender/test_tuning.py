from __future__ import annotations

import random
from dataclasses import replace

import pytest

from recommender.measurement import MeasureStatus, Protocol
from recommender.tuning import Budget, Proposal, TuningResult, TuningSession, kernel_session
from tests.recommender.support import GEMM, HOST, MemoryStore, SimulatedDevice, measured, workload

WORK = workload(1000, 512, 768)
BUDGET = Budget(max_trials=20, confirm_top=4, warm_start=4)


def session(store=None, budget=BUDGET, **kw) -> TuningSession:
    device = SimulatedDevice(WORK)
    return kernel_session(
        WORK, GEMM, HOST, device.space, store=store or MemoryStore(), budget=budget, **kw
    )


def drive(s: TuningSession, device: SimulatedDevice, slots: int = 4, seed: int = 0) -> list:
    """Run a session with results in random order; return (proposal, measurement) as told."""
    rng, running, told = random.Random(seed), [], []
    while not s.done:
        running += s.ask(slots - len(running))
        if not running:
            continue
        proposal = running.pop(rng.randrange(len(running)))
        measurement = device.measure(proposal.config, proposal.protocol)
        s.tell(proposal, measurement)
        told.append((proposal, measurement))
    return told


def test_a_run_from_start_to_end() -> None:
    device, s = SimulatedDevice(WORK), session()
    first = s.ask(2)
    assert [p.purpose for p in first] == ["default", "recommended"]
    assert all(p.protocol is Protocol.SCREEN and p.predicted_s > 0 for p in first)
    for p in first:
        s.tell(p, device.measure(p.config, p.protocol))
    told = drive(s, device)
    screens = [p for p, _ in told if p.protocol is Protocol.SCREEN]
    confirms = [p for p, _ in told if p.protocol is Protocol.CONFIRM]
    assert len(screens) == BUDGET.max_trials - 2
    assert len({p.config for p in screens}) == len(screens)
    assert 4 <= len(confirms) <= 6
    result = s.result()
    assert result.best.protocol is Protocol.CONFIRM
    assert result.best.time_s <= result.default.time_s
    assert result.gain_over_default >= 1
    assert 0 < result.recommendation_ratio <= 1
    assert result.by_status == {"OK": result.trials}
    assert device.best_s(2) / result.best.time_s > 0.88
    assert s.ask(4) == []


def test_confirmations_come_in_one_batch_after_all_screens() -> None:
    device, s = SimulatedDevice(WORK), session(budget=Budget(max_trials=4, confirm_top=3))
    batch = s.ask(10)
    assert len(batch) == 4
    for p in batch[:-1]:
        s.tell(p, device.measure(p.config, p.protocol))
        assert s.ask(10) == []
    s.tell(batch[-1], device.measure(batch[-1].config, Protocol.SCREEN))
    finalists = s.ask(1)
    assert {p.protocol for p in finalists} == {Protocol.CONFIRM}
    assert {GEMM.default_config(), batch[1].config} <= {p.config for p in finalists}
    assert not s.done


@pytest.mark.few(1)
@pytest.mark.parametrize("cut", [0, 1, 19, 21, 23])
def test_restarted_anywhere_it_finishes_with_nothing_lost_or_doubled(cut: int) -> None:
    device, store = SimulatedDevice(WORK), MemoryStore()
    s, told, running = session(store), [], []
    rng = random.Random(cut)
    while len(told) < cut and not s.done:
        running += s.ask(4 - len(running))
        p = running.pop(rng.randrange(len(running)))
        m = device.measure(p.config, p.protocol)
        s.tell(p, m)
        told.append((p, m))
        store.all.append(m)  # the history that the new session will see has grown
    again = session(store)
    for p, m in told:
        again.tell(p, m)
    again.restore(running)
    while running and not again.done:
        p = running.pop()
        m = device.measure(p.config, p.protocol)
        again.tell(p, m)
        told.append((p, m))
    told += drive(again, device)
    keys = [(p.config, p.protocol) for p, _ in told]
    assert len(set(keys)) == len(keys)
    assert sum(protocol is Protocol.SCREEN for _, protocol in keys) == BUDGET.max_trials
    recommended = [p.config for p, _ in told if p.purpose == "recommended"]
    assert len(recommended) == 1
    assert again.result().recommended.config == recommended[0]
    assert again.result().best.time_s <= again.result().default.time_s


def test_failures_are_counted_and_avoided() -> None:
    s = session(budget=Budget(max_trials=32))
    favoured = s.ask(2)[1].config["pack_a"]  # what the model believes in fails
    s = session(budget=Budget(max_trials=32))
    device = SimulatedDevice(WORK, failing=str(favoured))
    told = drive(s, device)
    result = s.result()
    assert set(result.by_status) == {"WRONG_RESULT", "OK"}
    assert sum(result.by_status.values()) == result.trials
    late = [m.status for p, m in told[20:] if p.protocol is Protocol.SCREEN]
    assert late.count(MeasureStatus.OK) >= len(late) / 2
    assert result.best.config["pack_a"] != favoured


def test_when_everything_fails_the_run_ends_without_a_winner() -> None:
    s = session(budget=Budget(max_trials=6))
    while not s.done:
        for p in s.ask(3):
            status = MeasureStatus.COMPILE_ERROR
            s.tell(p, measured(WORK, p.config, None, protocol=p.protocol, status=status))
    assert s.result().best is None
    assert s.result().default.status is MeasureStatus.COMPILE_ERROR


def test_time_limit_ends_the_search_but_not_the_confirmation() -> None:
    now = [0.0]
    s = session(budget=Budget(max_trials=1000, time_limit_s=10), clock=lambda: now[0])
    device = SimulatedDevice(WORK)
    for p in s.ask(12):
        s.tell(p, device.measure(p.config, p.protocol))
    now[0] = 11.0
    assert {p.protocol for p in s.ask(4)} == {Protocol.CONFIRM}


def test_patience_ends_a_search_that_found_its_optimum() -> None:
    s = session(budget=Budget(max_trials=2000, patience=15, confirm_top=2))
    drive(s, SimulatedDevice(WORK, noise=0.0))
    assert s.result().trials < 400


def test_second_outcome_of_a_trial_is_ignored() -> None:
    device, s = SimulatedDevice(WORK), session()
    p = s.ask(1)[0]
    s.tell(p, device.measure(p.config, p.protocol))
    s.tell(p, measured(WORK, p.config, 1e-9))
    assert s.result().default.time_s > 1e-6
    assert s.result().trials == 1
    assert isinstance(p, Proposal)


def test_times_of_two_moments_are_not_compared() -> None:
    """A finalist that was timed apart was told as so much faster than the default."""
    device = SimulatedDevice(WORK)
    first, second = (measured(WORK, device.space.config(i), 1e-3, protocol=Protocol.CONFIRM)
                     for i in (0, 1))  # fmt: skip
    apart = replace(second, metrics={"is_apart": 1.0})

    def ratios(default, best):
        found = TuningResult(default=default, recommended=best, best=best, trials=2,
                             by_status={"OK": 2}, space_size=2)  # fmt: skip
        return found.gain_over_default, found.recommendation_ratio

    assert ratios(first, second) == (1.0, 1.0)
    assert ratios(first, apart) == (None, 1.0)
    assert ratios(apart, first) == (None, 1.0)
