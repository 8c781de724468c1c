"""A device whose times change: its workloads are marked, and tuned again once."""

import pytest

from tests.tuner_service.table_measurer import TableMeasurer
from tests.tuner_service.test_app import GEMM
from tests.tuner_service.test_remeasure import ask
from tuner_service import jobs, questions, wiring
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import HostWorkplace
from tuner_service.drifting import check_after


class ShiftingMeasurer(TableMeasurer):
    """Takes ``factor`` times as long as the table says, and scatters by 1 % from run to run."""

    factor = 1.0

    def _times(self, request):
        scatter = 1 + 0.01 * (int(request.token.split(":")[0]) % 3 - 1)
        return tuple(t * self.factor * scatter for t in super()._times(request))


@pytest.fixture
def tune(settings, store):
    """Tune the workload and whatever else is queued on a device that got slower by a factor."""

    def run(factor=1.0, retune="auto", submit=True):
        host, toolchain = wiring.host_profile(store), wiring.host_toolchain().on("cpu")
        measurer = ShiftingMeasurer(host, toolchain=toolchain)
        measurer.factor = factor
        given = settings.model_copy(update={"retune": retune, "retune_trials": 4})
        if submit:
            question = questions.understand(store, "gemm", GEMM["problem"])
            jobs.submit(store, question, jobs.Effort(max_trials=4, time_limit_s=60.0))
        Coordinator(
            store,
            toolchain=toolchain,
            workplace=HostWorkplace(host, lambda _: measurer),
            limits=Limits(poll_s=0.01),
            until_idle=True,
            after=lambda ended: check_after(store, given, ended),
        ).run()

    return run


def answer(settings, store):
    body = ask(settings, store)
    return body["recommendations"][0], body["remeasurement"]


def test_a_slower_device_is_noticed_tuned_again_once_and_believed(settings, store, tune):
    for _ in range(3):
        tune()
    before, again = answer(settings, store)
    assert (before["source"], before["confidence"], again) == ("measured", 0.98, None)
    for _ in range(2):
        tune(1.5)
        assert answer(settings, store)[1] is None  # one or two runs prove nothing
    tune(1.5, retune="off")
    marked, again = answer(settings, store)
    assert marked["is_stale"]
    assert marked["confidence"] == pytest.approx(0.98 * 0.6)
    assert marked["latency_us"] == pytest.approx(1.5 * before["latency_us"], rel=0.05)
    assert again["cause"] == "drift"
    assert "50% slower" in again["reasons"][0]
    assert again["reasons"][0] in marked["rationale"]
    assert [run.cause for run in store.runs.list()] == [None] * 6
    assert again["state"] == "needed"


@pytest.mark.exhaustive
def test_the_run_after_a_drift_ends_it(settings, store, tune):
    for factor in (1.0, 1.0, 1.0, 1.5, 1.5, 1.5):
        tune(factor)
    tune(1.5, submit=False)
    runs = store.runs.list()
    assert [run.cause for run in runs] == ["drift"] + [None] * 6
    assert runs[0].spec["incumbents"]
    assert (runs[0].state, runs[0].priority) == ("SUCCEEDED", 1)
    first, again = answer(settings, store)
    assert (first["confidence"], first["is_stale"], again) == (0.98, False, None)
    for _ in range(3):  # it stays as it is: no second alarm
        tune(1.5)
    assert len(store.runs.list()) == 10


@pytest.mark.exhaustive
def test_a_steady_device_is_left_alone(store, tune):
    for factor in (1.0, 1.02, 0.98, 1.4, 1.4, 1.01, 0.99, 1.3):
        tune(factor)
    assert [run.cause for run in store.runs.list()] == [None] * 8
