"""Which toolbox, bench and process measure on a device: CPU, CUDA device or the emulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from recommender.hardware import HardwareProfile
from workers.device_bench import DeviceBench
from workers.device_lock import lock_path
from workers.device_toolbox import DeviceToolbox, EmulatedToolbox
from workers.devices import GpuDevice, devices_of
from workers.errors import DeviceMissing
from workers.measure_bench import MeasureBench
from workers.measure_worker import MeasureWorker, measure_zygote
from workers.sandbox import Zygote
from workers.toolbox import TilecoreToolbox, Toolbox


def toolbox_of(hardware: HardwareProfile) -> Toolbox:
    """Return what compiles and runs candidates for a device."""
    if hardware.kind == "cpu":
        return TilecoreToolbox()
    return EmulatedToolbox(hardware) if hardware.is_emulated else DeviceToolbox(hardware)


def bench_of(hardware: HardwareProfile) -> Callable[..., Any]:
    """Return what checks and times candidates in their process."""
    return MeasureBench if hardware.kind == "cpu" else DeviceBench


@dataclass(frozen=True, slots=True)
class Rig:
    """How one device is measured on; picklable, so that it is built where the device is.

    Attributes:
        hardware: the kind of device.
        toolbox, bench: see ``toolbox_of`` and ``bench_of``.
        timeout_s: of a candidate.
        index: which of the machine's devices of this kind.
    """

    hardware: HardwareProfile
    toolbox: Toolbox
    bench: Callable[..., Any]
    timeout_s: float
    index: int = 0

    @classmethod
    def of(
        cls, hardware: HardwareProfile, timeout_s: float, *, toolbox: Toolbox | None = None,
        bench: Callable[..., Any] | None = None,
    ) -> Rig:  # fmt: skip
        """Return the rig of a kind of device."""
        return cls(
            hardware, toolbox or toolbox_of(hardware), bench or bench_of(hardware), timeout_s
        )

    def build(self) -> tuple[Zygote, MeasureWorker]:
        """Return the process that candidates are forked from, and the worker that measures.

        Raises:
            DeviceMissing: this machine does not have the device (WK708).
        """
        hardware = self.hardware
        if hardware.kind == "cpu" or hardware.is_emulated:
            name = hardware.kind if hardware.kind == "cpu" else f"emulated-{hardware.target}"
            suffix = f"-{self.index}" if self.index else ""
            zygote = measure_zygote(self.toolbox, hardware.cores if hardware.kind == "cpu" else 1)
            return zygote, self._worker(zygote, self.toolbox, f"{name}{suffix}")
        device = self._device()
        zygote = gpu_zygote(self.toolbox, device)
        toolbox = self.toolbox
        if isinstance(toolbox, DeviceToolbox):
            toolbox = replace(toolbox, uuid=device.uuid)
        return zygote, self._worker(zygote, toolbox, device.lock)

    def _worker(self, zygote: Zygote, toolbox: Toolbox, lock: str) -> MeasureWorker:
        return MeasureWorker(
            zygote,
            toolbox,
            cores=self.hardware.cores,
            timeout_s=self.timeout_s,
            lock=lock_path(lock),
            bench=self.bench,
            is_device=self.hardware.kind != "cpu",
        )

    def _device(self) -> GpuDevice:
        devices = devices_of(self.hardware)
        if self.index >= len(devices):
            raise DeviceMissing(
                expected=f"{self.index + 1} x {self.hardware.name}", found=f"{len(devices)}"
            )
        return devices[self.index]


def gpu_zygote(toolbox: Toolbox, device: GpuDevice) -> Zygote:
    """Return the owner of a process whose children see one device.

    Their address space has no limit: drivers reserve far more of it than there is memory.
    """
    return Zygote(
        f"measure worker of {device.name} ({device.uuid})",
        toolbox.run_modules,
        environment=device.environment,
    )
