"""LocalPool: candidates compiled and measured by processes of this machine, without a cluster."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement
from recommender.ports import Measurer, MeasureRequest
from workers.compile_worker import CompileWorker, compile_zygote, compilers_of
from workers.gate import Gate
from workers.host import own_cores
from workers.measure_pool import MeasurePool
from workers.rig import Rig
from workers.spares import Spares
from workers.toolbox import Toolbox


class LocalPool(MeasurePool):
    """Measurer with processes of this machine: a compile pool and an exclusive meter per device."""

    def __init__(
        self,
        hardware: HardwareProfile,
        *,
        artifact_dir: Path,
        compile_workers: int | None = None,
        compile_timeout_s: float = 60.0,
        run_timeout_s: float = 60.0,
        toolbox: Toolbox | None = None,
        devices: int = 1,
        gate: Gate | None = None,
        spares: Spares | None = None,
    ) -> None:
        """Start processes for ``devices`` devices of a kind.

        Those that candidates are forked from come from and go to ``spares``, where there are any.
        ``compile_workers`` candidates are compiled at once (None: as many as suits this machine).

        Raises:
            DeviceMissing: this machine does not have them (WK708).
        """
        rig = Rig.of(hardware, run_timeout_s, toolbox=toolbox)
        tools = rig.toolbox
        built = [replace(rig, index=i).build() for i in range(devices)]
        artifact_dir.mkdir(parents=True, exist_ok=True)
        compiling = compile_zygote(tools)
        self._zygotes = (compiling, *(zygote for zygote, _ in built))
        for zygote in self._zygotes:  # side by side: each imports for seconds
            zygote.spares = spares
            zygote.warm_up()
        super().__init__(hardware, toolbox=tools)
        compilers = [
            CompileWorker(compiling, tools, artifact_dir, compile_timeout_s)
            for _ in range(compile_workers or compilers_of(own_cores(), devices, hardware.kind))
        ]
        meters = [meter for _, meter in built]
        self.add_node("local", f"local:{platform.node()}", compilers, meters, gate)

    def close(self) -> None:
        """Stop all processes; what is queued or running has no result any more."""
        super().close()
        for zygote in self._zygotes:
            zygote.close()


def wait_for_all(
    pool: Measurer, requests: Iterable[MeasureRequest], timeout_s: float
) -> dict[str, Measurement]:
    """Submit requests and return their measurements by token.

    Raises:
        TimeoutError: not all have finished after ``timeout_s``.
    """
    wanted = list(requests)
    results = gather(pool, wanted, timeout_s)
    missing = [r.token for r in wanted if r.token not in results]
    if missing:
        raise TimeoutError(f"no result for {missing} after {timeout_s} s")
    return results


def gather(
    pool: Measurer, requests: Iterable[MeasureRequest], timeout_s: float
) -> dict[str, Measurement]:
    """Submit requests and return the measurements by token that there are after ``timeout_s``."""
    wanted = list(requests)
    pool.submit(wanted)
    results: dict[str, Measurement] = {}
    deadline = time.monotonic() + timeout_s
    while len(results) < len(wanted):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        results.update((request.token, m) for request, m in pool.collect(left_s))
    return results
