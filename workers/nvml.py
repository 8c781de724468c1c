"""Clocks, temperature and power of a device, where NVIDIA's management library is installed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from typing import Any


def readings(uuid: str) -> Mapping[str, float]:
    """Return what the device says of itself now; empty without nvidia-ml-py or the driver."""
    try:
        api: Any = importlib.import_module("pynvml")
        api.nvmlInit()
    except Exception:  # noqa: BLE001  its errors are classes of the module that may be missing
        return {}
    try:
        handle = api.nvmlDeviceGetHandleByUUID(uuid)
    except api.NVMLError:
        return {}
    ask: dict[str, Callable[[], Any]] = {
        "sm_clock_hz": lambda: 1e6 * api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM),
        "memory_clock_hz": lambda: 1e6 * api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_MEM),
        "temperature_c": lambda: api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU),
        "power_w": lambda: 1e-3 * api.nvmlDeviceGetPowerUsage(handle),
        "throttle_reasons": lambda: api.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    }
    found: dict[str, float] = {}
    for name, question in ask.items():
        with contextlib.suppress(api.NVMLError):  # devices and drivers differ in what they tell
            found[name] = float(question())
    return found
