"""What every Measurer does, whatever it runs on: subclassed once per implementation."""

from __future__ import annotations

import time

import psutil
import pytest

from recommender.measurement import MeasureStatus, Protocol
from recommender.ports import Measurer, MeasureRequest
from recommender.workload import Workload
from tests.workers.fault_toolbox import HARDWARE, ORPHAN, WORKLOAD, config
from workers.pool import wait_for_all

WAIT_S = 900.0  # only reached when something is lost; a busy machine starts processes slowly
S = MeasureStatus

FAULTS = [
    ("compile-segfault", S.COMPILE_ERROR, "SIGSEGV"),
    ("compile-refuse", S.COMPILE_ERROR, "TC305"),
    ("compile-unpicklable", S.COMPILE_ERROR, "Unpicklable"),
    ("compile-hang", S.COMPILE_TIMEOUT, "killed after"),
    ("compile-invalid", S.INVALID_CONFIG, "TC303"),
    ("compile-toolchain", S.TOOLCHAIN_MISSING, "TC306"),
    ("compile-without-room", S.WORKER_LOST, "No space left on device"),  # no candidate's fault
    ("compile-orphan", S.COMPILE_ERROR, "left processes behind: sh"),
    ("segfault", S.LAUNCH_ERROR, "SIGSEGV"),
    ("abort", S.LAUNCH_ERROR, "free(): invalid pointer"),
    ("exit", S.LAUNCH_ERROR, "exited with code 3"),
    ("unpicklable", S.LAUNCH_ERROR, "Unpicklable"),
    ("reserve", S.LAUNCH_ERROR, "out of memory"),
    ("output", S.LAUNCH_ERROR, "SIGXFSZ"),
    ("orphan", S.LAUNCH_ERROR, "left processes behind: sh"),
    ("daemons", S.LAUNCH_ERROR, "left processes behind: sh, sh"),
    ("daemons-crash", S.LAUNCH_ERROR, "SIGSEGV"),
    ("kill-parent", S.WORKER_LOST, "WK701"),
    ("hang", S.RUN_TIMEOUT, "killed after"),
    ("wrong", S.WRONG_RESULT, "output 0[3]"),
    ("unwritten", S.WRONG_RESULT, "never written"),
    ("input", S.WRONG_RESULT, "input 0 was written to"),
    ("beyond", S.WRONG_RESULT, "beyond its ends"),
    ("stray", S.OK, ""),  # whoever comes after them suffers
    ("heap", S.OK, ""),
]


def screen(token: str, fault: str = "none", **knobs: int) -> MeasureRequest:
    return MeasureRequest(
        token=token, workload=WORKLOAD, config=config(fault, **knobs), protocol=Protocol.SCREEN
    )


def confirm(token: str, fault: str = "none", **knobs: int) -> MeasureRequest:
    return MeasureRequest(
        token=token, workload=WORKLOAD, config=config(fault, **knobs), protocol=Protocol.CONFIRM
    )


def orphans() -> list[psutil.Process]:
    """Return the processes that candidates left behind."""
    return [p for p in psutil.process_iter(["cmdline"]) if ORPHAN in (p.info["cmdline"] or ())]


class MeasurerContract:
    """Subclasses give the fixture ``measurer``: over FaultToolbox, run timeout of some seconds."""

    def test_a_good_candidate_has_times(self, measurer: Measurer) -> None:
        found = wait_for_all(measurer, [screen("a", delay_us=500)], WAIT_S)["a"]
        assert found.status is S.OK, found.detail
        assert found.time_s == pytest.approx(500e-6, rel=0.5)
        assert len(found.times_s) >= 3
        assert found.reference_times_s == ()
        assert (found.threads, found.hardware, found.workload) == (1, HARDWARE, WORKLOAD)
        assert found.max_error is not None
        assert found.max_error <= 1
        assert len(found.program_digest) == 32
        assert found.compile_s is not None

    def test_each_fault_has_its_status_and_the_next_candidate_is_fine(
        self, measurer: Measurer
    ) -> None:
        requests = []
        for fault, _, _ in FAULTS:
            requests.append(screen(fault, fault, delay_us=100))  # steady on a busy machine
            requests.append(screen(f"after {fault}", delay_us=101))
        found = wait_for_all(measurer, requests, WAIT_S)
        for fault, status, detail in FAULTS:
            assert found[fault].status is status, (fault, found[fault].detail)
            assert detail in found[fault].detail, fault
            assert found[f"after {fault}"].status is S.OK, (fault, found[f"after {fault}"].detail)
        assert orphans() == []

    def test_confirm_interleaves_with_the_rival_and_survives_faults(
        self, measurer: Measurer
    ) -> None:
        requests = [
            confirm("fast", delay_us=1_000),
            confirm("slow", delay_us=60_000),
            confirm("bad", "segfault"),
            confirm("late", "crash-later"),
            confirm("wrong", "wrong"),
            confirm("none", "compile-refuse"),
        ]
        found = wait_for_all(measurer, requests, WAIT_S)
        assert found["bad"].status is S.LAUNCH_ERROR
        assert found["late"].status is S.LAUNCH_ERROR, found["late"]
        assert found["wrong"].status is S.WRONG_RESULT
        assert found["none"].status is S.COMPILE_ERROR
        fast, slow = found["fast"], found["slow"]
        assert (fast.threads, slow.threads) == (2, 2)
        if S.UNSTABLE in (fast.status, slow.status):
            pytest.skip(f"the machine is too busy to time on, and says so: {fast.detail}")
        for one in (fast, slow):
            assert one.status is S.OK, one.detail
            assert len(one.times_s) >= 5
        assert fast.time_s < slow.time_s
        assert "machine_busy" in fast.metrics

    def test_equal_code_is_measured_once(self, measurer: Measurer) -> None:
        twins = [screen("a", delay_us=50), screen("b", delay_us=50)]
        found = wait_for_all(measurer, twins, WAIT_S)
        assert found["a"].times_s == found["b"].times_s

    def test_what_waits_is_told_and_may_be_withdrawn(self, measurer: Measurer) -> None:
        measurer.submit([screen(f"t{i}", delay_us=10_000 + i) for i in range(8)])
        assert measurer.waiting() <= {f"t{i}" for i in range(8)}
        assert measurer.waiting() >= {"t6", "t7"}  # two compilers at most have begun
        measurer.withdraw({"t1", "t5", "t6", "t7", "never heard of"})
        found: dict[str, MeasureStatus] = {}
        deadline = time.monotonic() + WAIT_S
        while len(found) < 4:
            found |= {r.token: m.status for r, m in measurer.collect(1.0)}
            assert time.monotonic() < deadline
        assert found == dict.fromkeys(("t0", "t2", "t3", "t4"), S.OK)
        assert measurer.waiting() == set()
        assert measurer.collect(1.0) == []

    def test_a_confirmation_goes_on_without_what_is_withdrawn(self, measurer: Measurer) -> None:
        measurer.submit([confirm(f"c{i}", delay_us=1_000 + i) for i in range(4)])
        measurer.withdraw({"c3"})
        found: set[str] = set()
        deadline = time.monotonic() + WAIT_S
        while len(found) < 3:
            found |= {r.token for r, _ in measurer.collect(1.0)}
            assert time.monotonic() < deadline
        assert found == {"c0", "c1", "c2"}

    def test_an_unknown_kernel_fails_without_a_digest(self, measurer: Measurer) -> None:
        request = MeasureRequest(
            token="x",
            workload=Workload.of("no-such-kernel", {"n": 1}),
            config=config(),
            protocol=Protocol.SCREEN,
        )
        found = wait_for_all(measurer, [request], WAIT_S)["x"]
        assert found.status in (S.COMPILE_ERROR, S.LAUNCH_ERROR)
        assert "TC501" in found.detail
        assert found.program_digest == ""

    def test_collect_waits_no_longer_than_asked(self, measurer: Measurer) -> None:
        start = time.monotonic()
        assert measurer.collect(0.1) == []
        assert time.monotonic() - start < 2.0
