"""TableMeasurer: times that follow from the config alone. Implements recommender.ports.Measurer."""

import functools
import time
from collections import deque
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from recommender.ports import MeasureRequest
from recommender.workload import Workload, digest_of
from tilecore import kernels

TOOLCHAIN = Toolchain(tilecore="table", tvm="none", llvm="none")
HARDWARE = HardwareProfile(
    name="table CPU",
    kind="cpu",
    arch="x86-64-avx512",
    cores=2,
    l3_bytes=32 << 20,
    peak_flop_per_s={"float32": 1e11},
    source="measured 2026-11-20",
)


@functools.cache
def _program_digest(workload: Workload) -> str:
    sent = digest_of(workload.kernel)
    return sent or kernels.get(workload.kernel).program_digest(dict(workload.problem))


class TableMeasurer:
    """Answers requests one by one, each after ``delay_s``; every execution is noted in ``log``."""

    def __init__(
        self,
        hardware: HardwareProfile = HARDWARE,
        *,
        delay_s: float = 0.0,
        log: Path | None = None,
        lost_attempts: int = 0,
        broken_block_m: int | None = None,
        toolchain: Toolchain = TOOLCHAIN,
        devices: int = 1,
        compilers: int = 1,
    ) -> None:
        self.hardware = hardware
        self.devices, self.compilers = devices, compilers
        self._delay_s = delay_s
        self._log = log
        self._lost_attempts = lost_attempts
        self._broken_block_m = broken_block_m
        self._toolchain = toolchain
        self._queue: deque[MeasureRequest] = deque()
        self.largest_confirm = 0
        self.is_closed = False

    def submit(self, requests: Sequence[MeasureRequest]) -> None:
        self._queue.extend(requests)
        confirms = [r for r in requests if r.protocol is Protocol.CONFIRM]
        self.largest_confirm = max(self.largest_confirm, len(confirms))

    def collect(self, timeout_s: float) -> list[tuple[MeasureRequest, Measurement]]:
        if not self._queue:
            time.sleep(min(timeout_s, 0.01))
            return []
        time.sleep(self._delay_s)
        request = self._queue.popleft()
        if self._log is not None:
            with self._log.open("a") as log:
                log.write(f"{request.token}\n")
        return [(request, self._measure(request))]

    def waiting(self) -> set[str]:
        return {request.token for request in [*self._queue][1:]}  # the first is worked on

    def withdraw(self, tokens: Collection[str]) -> None:
        self._queue = deque(request for request in self._queue if request.token not in tokens)

    def close(self) -> None:
        self.is_closed = True

    def _measure(self, request: MeasureRequest) -> Measurement:
        attempt = int(request.token.split(":")[1])
        status, times, detail = MeasureStatus.OK, self._times(request), ""
        if attempt <= self._lost_attempts:
            status, times, detail = MeasureStatus.WORKER_LOST, (), "the node went away"
        elif request.config.get("block_M") == self._broken_block_m is not None:
            status, times, detail = MeasureStatus.WRONG_RESULT, (), "element 3 is off by 0.5"
        confirmed = request.protocol is Protocol.CONFIRM and status is MeasureStatus.OK
        return Measurement(
            workload=request.workload,
            config=request.config,
            hardware=self.hardware,
            toolchain=self._toolchain,
            program_digest=_program_digest(request.workload),
            protocol=request.protocol,
            threads=1 if request.protocol is Protocol.SCREEN else self.hardware.cores,
            status=status,
            times_s=times,
            reference_times_s=(5e-5, 6e-5) if confirmed else (),
            detail=detail,
            worker="table",
            measured_at=datetime.now(UTC),
        )

    def _times(self, request: MeasureRequest) -> tuple[float, ...]:
        spread = int(request.config.key[:4], 16) / 0xFFFF
        base = 1e-4 * (0.5 + spread) / (1 if request.protocol is Protocol.SCREEN else 2)
        return (base, base * 1.02, base * 0.99)
