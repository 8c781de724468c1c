"""The course of a pack: order, time limit, finalists, lost workers; measuring is stood in for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from recommender.measurement import MeasureStatus, Protocol, Toolchain
from recommender.workload import Workload
from tests.workers.emulated_faults import HARDWARE, WORKLOAD, config
from workers.errors import WorkerLost
from workers.measure_pack import PackRun, Plan
from workers.outcome import Compiled, Failure, Timed
from workers.pack_results import Header, ResultLog, read_results
from workers.packs import Pack, PackedCandidate, PackWriter

TOOLCHAIN = Toolchain(tilecore="t", tvm="v", llvm="l")
OTHER = Workload.of("gemm", {**dict(WORKLOAD.problem), "m": 128})
S = MeasureStatus


@dataclass
class Device:
    """Measures a code in as many microseconds as its digest says; each takes a second."""

    log: list[str] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)  # how often a code's worker gets lost
    seconds: float = 0.0

    def screen(self, workload: Workload, compiled: Compiled) -> Timed | Failure:
        self.seconds += 1
        self.log.append(f"{dict(workload.problem)['m']}:{compiled.digest}")
        if self.lost.get(compiled.digest, 0) > 0:
            self.lost[compiled.digest] -= 1
            raise WorkerLost(worker="device", reason="it fell off the bus")
        if compiled.digest == "d3":
            return Failure(status=S.WRONG_RESULT, detail="output 0[0]: ...")
        return Timed(times_s=(1e-6 * (1 + int(compiled.digest[1:])),), max_error=0.5)

    def confirm(self, workload: Workload, batch: Sequence[Compiled]) -> list[Timed | Failure]:
        self.log.append(f"confirm {' '.join(c.digest for c in batch)}")
        return [Timed(times_s=(2e-6,), reference_times_s=(3e-6,)) for _ in batch]


def candidates() -> list[PackedCandidate]:
    """Five that run, two of equal code and one that did not compile among them."""
    codes = ["d4", "d2", "d3", "d2", "", "d0"]
    return [
        PackedCandidate(
            config=config(i),
            purpose=("default", "recommended")[i] if i < 2 else "search",
            predicted_s=None,
            digest=code,
            status="OK" if code else "COMPILE_ERROR",
            detail="" if code else "ptxas said no",
        )
        for i, code in enumerate(codes)
    ]


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    (artifact / "manifest.json").write_text("{}")
    writer = PackWriter(tmp_path / "pack", HARDWARE, TOOLCHAIN, 16 << 20)
    for workload in (WORKLOAD, OTHER):
        writer.add(workload, "p", candidates(), {c.digest: artifact for c in candidates()[:1]})
    writer.close()
    return Pack.open(tmp_path / "pack")


def run(pack: Pack, path: Path, device: Device, known: Sequence[Path] = (), **plan: float) -> int:
    log = ResultLog(path, Header(HARDWARE, TOOLCHAIN, "pack:1"), {})
    log.learn(known)
    made = PackRun(
        pack, HARDWARE, device, log, replace(Plan(chunk=3, confirm=1), **plan),
        path.with_suffix(".place"), clock=lambda: device.seconds,
    )  # fmt: skip
    try:
        return made.run()
    finally:
        log.close()


def test_the_best_promise_of_every_workload_comes_first(pack: Pack, tmp_path: Path) -> None:
    device, path = Device(), tmp_path / "r.jsonl"
    assert run(pack, path, device) == 0
    assert device.log == [
        "64:d4", "64:d2", "64:d3", "128:d4", "128:d2", "128:d3",  # a chunk of each
        "64:d0", "128:d0",  # equal code is measured once
        "confirm d4 d2 d0", "confirm d4 d2 d0",  # default, recommendation and the fastest
    ]  # fmt: skip
    found = [m for m in read_results(path) if m.workload == OTHER]
    screened = {m.config: m for m in found if m.protocol is Protocol.SCREEN}
    statuses = [screened[config(i)].status for i in range(6)]
    assert statuses == [S.OK, S.OK, S.WRONG_RESULT, S.OK, S.COMPILE_ERROR, S.OK]
    assert screened[config(1)].times_s == screened[config(3)].times_s
    assert screened[config(4)].detail == "ptxas said no"
    confirmed = [m for m in found if m.protocol is Protocol.CONFIRM]
    assert [m.reference_times_s for m in confirmed] == [(3e-6,)] * 3


def test_what_a_time_limit_leaves_is_measured_by_the_next_run(pack: Pack, tmp_path: Path) -> None:
    device, path = Device(), tmp_path / "r.jsonl"
    assert run(pack, path, device, time_limit_s=5.5) == 7  # of 12; the rest is for finalists
    assert device.log[-1].startswith("confirm")
    first = len([line for line in device.log if ":" in line])
    device.seconds = 0.0
    more = tmp_path / "more.jsonl"  # another file, as a machine that is lent again has it
    assert run(pack, more, device, known=[path]) == 0
    assert not {m.config for m in read_results(path)} & {
        m.config for m in read_results(more) if m.protocol is Protocol.SCREEN
        and m.workload == WORKLOAD
    }  # fmt: skip
    measured = [line for line in device.log if ":" in line]
    assert len(measured) == len(set(measured)) == 8
    assert first == 5


def test_a_candidate_whose_worker_got_lost_is_tried_again(pack: Pack, tmp_path: Path) -> None:
    device, path = Device(lost={"d2": 2, "d0": 3}), tmp_path / "r.jsonl"
    assert run(pack, path, device, confirm=0) == 0
    by_config = {
        m.config: m for m in read_results(path)
        if m.protocol is Protocol.SCREEN and m.workload == WORKLOAD
    }  # fmt: skip
    assert by_config[config(1)].status is S.OK  # at the third attempt
    assert by_config[config(5)].status is S.WORKER_LOST
    assert "fell off the bus" in by_config[config(5)].detail
    device.log.clear()
    assert run(pack, path, device, confirm=0) == 0
    assert device.log == ["64:d0"]  # what is lost is nobody's result


def test_a_device_that_stays_away_ends_the_run(pack: Pack, tmp_path: Path) -> None:
    device = Device(lost=dict.fromkeys(("d0", "d2", "d3", "d4"), 99))
    with pytest.raises(WorkerLost, match=r"WK701.*fell off the bus"):
        run(pack, tmp_path / "r.jsonl", device)
    assert len(list(read_results(tmp_path / "r.jsonl"))) == 2
