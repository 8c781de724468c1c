"""Measure a pack: check and time its candidates on a device of this machine, without TVM.

    python run.py --results results.jsonl              # this machine's first NVIDIA device
    python run.py --results more.jsonl --known results.jsonl --time-limit 1500

The best promise of every workload comes first, so that what a time limit cuts off is worth least.
Every result is on disk before the next candidate starts; the same command goes on where one ended.
A candidate that hangs or crashes costs itself: it runs in a child process under a time limit.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol
from tilecore.errors import TileError
from workers.devices import devices_of, gpu_devices
from workers.errors import DeviceMissing, WorkerError
from workers.measure_worker import MeasureWorker
from workers.outcome import Compiled, Failure, Timed
from workers.pack_results import Header, ResultLog
from workers.packs import Pack, PackedCandidate, PackedWorkload
from workers.rig import Rig

ATTEMPTS = 3  # of a candidate whose worker failed
LOST_IN_A_ROW = 3  # candidates without a worker, after which there is none
CONFIRM_SHARE = 0.15  # of the time limit: what confirming may need


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a pack is measured.

    Attributes:
        chunk: candidates of a workload before the next workload has its turn.
        confirm: finalists of a workload besides the default and the recommendation.
        time_limit_s: no candidate starts after so many seconds; infinity: none is left out.
        candidate_timeout_s: a candidate may take so long.
    """

    chunk: int = 64
    confirm: int = 8
    time_limit_s: float = float("inf")
    candidate_timeout_s: float = 20.0


class PackRun:
    """Measures the workloads of a pack in turns."""

    def __init__(
        self, pack: Pack, hardware: HardwareProfile, worker: MeasureWorker, log: ResultLog,
        plan: Plan, place: Path, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._pack, self._hardware, self._worker = pack, hardware, worker
        self._log, self._plan, self._place, self._clock = log, plan, place, clock
        self._start = clock()
        self._lost = 0  # candidates in a row
        self._screened: dict[tuple[str, str], Measurement] = {}  # by workload and code
        self._candidates: dict[str, Sequence[PackedCandidate]] = {}

    def run(self) -> int:
        """Measure what is not measured yet; return how many candidates are left."""
        for packed in self._pack.workloads:
            key = packed.workload.key
            self._candidates[key] = self._pack.unpack(packed, self._place / key)
            for candidate in self._candidates[key]:
                found = self._found(packed, candidate, Protocol.SCREEN)
                if found is not None and found.status is not MeasureStatus.WORKER_LOST:
                    self._screened[key, candidate.digest] = found
        reserve_s = 0.0 if self._plan.confirm < 1 else CONFIRM_SHARE * self._plan.time_limit_s
        left = self._screen_all(reserve_s)
        for packed in self._pack.workloads:
            if self._is_over():
                break
            self._confirm(packed)
        return left

    def _screen_all(self, reserve_s: float) -> int:
        longest = max((len(c) for c in self._candidates.values()), default=0)
        for first in range(0, longest, self._plan.chunk):
            for packed in self._pack.workloads:
                chunk = self._candidates[packed.workload.key][first : first + self._plan.chunk]
                for candidate in chunk:
                    if self._is_over(reserve_s):
                        return sum(1 for _ in self._missing())
                    self._screen(packed, candidate)
                if chunk:
                    self._report(packed)
        return 0

    def _missing(self) -> Iterator[PackedCandidate]:
        for packed in self._pack.workloads:
            for candidate in self._candidates[packed.workload.key]:
                if not self._is_known(packed, candidate, Protocol.SCREEN):
                    yield candidate

    def _screen(self, packed: PackedWorkload, candidate: PackedCandidate) -> None:
        if self._is_known(packed, candidate, Protocol.SCREEN):
            return
        twin = self._screened.get((packed.workload.key, candidate.digest))
        if not candidate.digest:
            status, detail = MeasureStatus(candidate.status), candidate.detail
            outcome: Timed | Failure = Failure(status=status, detail=detail)
        elif twin is not None:  # equal code is measured once
            self._log.add(replace(twin, config=candidate.config, measured_at=datetime.now(UTC)))
            return
        else:
            outcome = self._measure(packed, candidate)
        made = self._add(packed, candidate, Protocol.SCREEN, outcome)
        if candidate.digest and made.status is not MeasureStatus.WORKER_LOST:
            self._screened[packed.workload.key, candidate.digest] = made

    def _measure(self, packed: PackedWorkload, candidate: PackedCandidate) -> Timed | Failure:
        compiled = self._compiled(packed, candidate)
        why = ""
        for _ in range(ATTEMPTS):
            try:
                found = self._worker.screen(packed.workload, compiled)
            except WorkerError as error:
                why = f"{error.code} {error.message}"
                if self._lost + 1 >= LOST_IN_A_ROW:
                    raise
            else:
                self._lost = 0
                return found
        self._lost += 1
        return Failure(status=MeasureStatus.WORKER_LOST, detail=why)

    def _confirm(self, packed: PackedWorkload) -> None:
        """Time the finalists of a workload in turn with torch, unless all have been."""
        finalists = self._finalists(packed)
        if all(self._is_known(packed, c, Protocol.CONFIRM) for c in finalists):
            return
        batch = [self._compiled(packed, c) for c in finalists]
        try:
            outcomes = self._worker.confirm(packed.workload, batch)
        except WorkerError as error:
            why = f"{error.code} {error.message}"
            outcomes = [Failure(status=MeasureStatus.WORKER_LOST, detail=why)] * len(batch)
        for candidate, outcome in zip(finalists, outcomes, strict=True):
            self._add(packed, candidate, Protocol.CONFIRM, outcome)
        self._report(packed)

    def _finalists(self, packed: PackedWorkload) -> list[PackedCandidate]:
        if self._plan.confirm < 1:
            return []
        candidates = self._candidates[packed.workload.key]
        times = {c.config: self._time(packed, c, Protocol.SCREEN) for c in candidates}
        ranked = sorted(
            (c for c in candidates if times[c.config] is not None),
            key=lambda c: times[c.config] or 0.0,
        )
        first = [c for c in candidates if c in ranked and c.purpose != "search"]
        chosen: dict[str, PackedCandidate] = {}
        for candidate in [*first, *ranked]:
            if len(chosen) < self._plan.confirm + len(first):
                chosen.setdefault(candidate.digest, candidate)
        return list(chosen.values())

    # --- details ----------------------------------------------------------------------------------

    def _is_over(self, reserve_s: float = 0.0) -> bool:
        return self._clock() - self._start > self._plan.time_limit_s - reserve_s

    def _compiled(self, packed: PackedWorkload, candidate: PackedCandidate) -> Compiled:
        return Compiled(
            path=str(self._place / packed.workload.key / candidate.digest),
            digest=candidate.digest,
            compile_s=candidate.compile_s or 0.0,
            metrics=candidate.metrics,
        )

    def _found(
        self, packed: PackedWorkload, candidate: PackedCandidate, protocol: Protocol
    ) -> Measurement | None:
        key = (packed.workload.key, candidate.config.key, protocol.value)
        return self._log.known.get(key)

    def _is_known(
        self, packed: PackedWorkload, candidate: PackedCandidate, protocol: Protocol
    ) -> bool:
        found = self._found(packed, candidate, protocol)
        return found is not None and found.status is not MeasureStatus.WORKER_LOST

    def _time(
        self, packed: PackedWorkload, candidate: PackedCandidate, protocol: Protocol
    ) -> float | None:
        found = self._found(packed, candidate, protocol)
        return None if found is None else found.time_s

    def _add(
        self, packed: PackedWorkload, candidate: PackedCandidate, protocol: Protocol,
        outcome: Timed | Failure,
    ) -> Measurement:  # fmt: skip
        """Write a result down and return it."""
        timed = outcome if isinstance(outcome, Timed) else None
        failure = outcome if isinstance(outcome, Failure) else None
        made = Measurement(
            workload=packed.workload,
            config=candidate.config,
            hardware=self._hardware,
            toolchain=self._pack.toolchain,
            program_digest=packed.program_digest,
            protocol=protocol,
            threads=self._hardware.cores,
            status=failure.status if failure else MeasureStatus.OK,
            times_s=timed.times_s if timed else (),
            reference_times_s=timed.reference_times_s if timed else (),
            detail=failure.detail if failure else "",
            compile_s=candidate.compile_s,
            max_error=outcome.max_error,
            driver=self._hardware.driver,
            measured_at=datetime.now(UTC),
            metrics={**candidate.metrics, **(timed.metrics if timed else {})},
        )
        self._log.add(made)
        return made

    def _report(self, packed: PackedWorkload) -> None:
        key = packed.workload.key
        found = [m for (workload, _, _), m in self._log.known.items() if workload == key]
        counts: dict[str, int] = {}
        for m in found:
            counts[m.status.value] = counts.get(m.status.value, 0) + 1
        best = min((m.time_s for m in found if m.time_s is not None), default=None)
        shown = "nothing ran yet" if best is None else f"best {best * 1e6:.1f} us"
        statuses = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
        elapsed_s = self._clock() - self._start
        sys.stdout.write(f"[{elapsed_s:7.1f} s] {packed.workload}: {statuses}; {shown}\n")
        sys.stdout.flush()


def device_for(pack: Pack) -> HardwareProfile:
    """Return the device of this machine that a pack's code runs on.

    Raises:
        DeviceMissing: there is none (WK708).
    """
    if pack.hardware.is_emulated:
        return pack.hardware
    found = gpu_devices()
    for device in found:
        if device.hardware.arch == pack.hardware.arch:
            return device.hardware
    names = ", ".join(d.name for d in found) or "no NVIDIA device"
    expected = f"a device of {pack.hardware.arch} (packed for {pack.hardware.name})"
    raise DeviceMissing(expected=expected, found=names)


def about(hardware: HardwareProfile) -> Mapping[str, Any]:
    """Return what else is worth knowing of the machine: versions and driver."""
    import numpy as np
    import torch

    drivers = [] if hardware.is_emulated else [d.driver for d in devices_of(hardware)[:1]]
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "driver": drivers[0] if drivers else "",
    }


def measure(folder: Path, results: Path, plan: Plan, known: Sequence[Path] = ()) -> int:
    """Measure a pack into a file; return how many candidates are left.

    What the file, or one of ``known``, has is not measured again.

    Raises:
        InvalidPack: pack or file is damaged (WK709).
        DeviceMissing: this machine does not have the device (WK708).
    """
    pack = Pack.open(folder)
    hardware = device_for(pack)
    zygote, worker = Rig.of(hardware, plan.candidate_timeout_s).build()
    header = Header(hardware, pack.toolchain, f"pack:{pack.id}")
    log = ResultLog(results, header, about(hardware))
    log.learn(known)
    try:
        with tempfile.TemporaryDirectory(prefix="tilecore-pack-") as place:
            return PackRun(pack, hardware, worker, log, plan, Path(place)).run()
    finally:
        log.close()
        worker.close()
        zygote.close()


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--results", type=Path, required=True, help="JSON lines; grows")
    parser.add_argument(
        "--known", type=Path, action="append", default=[], help="results of earlier runs"
    )
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--candidate-timeout", type=float, default=20.0, help="seconds")
    parser.add_argument("--chunk", type=int, default=64, help="candidates in a row")
    parser.add_argument("--confirm", type=int, default=8, help="finalists of a workload; 0: none")
    given = parser.parse_args(arguments)
    if given.chunk < 1 or given.time_limit <= 0 or given.candidate_timeout <= 0:
        parser.error("expected --chunk, --time-limit and --candidate-timeout above 0")
    plan = Plan(
        chunk=given.chunk, confirm=given.confirm, time_limit_s=given.time_limit,
        candidate_timeout_s=given.candidate_timeout,
    )  # fmt: skip
    try:
        left = measure(given.folder, given.results, plan, given.known)
    except TileError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{left} candidates left; results in {given.results}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
