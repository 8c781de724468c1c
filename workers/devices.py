"""The GPUs of this machine, asked of nvidia-smi, or of torch in a process of its own.

A process that has opened the driver can no longer fork, and the coordinator never loads torch.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recommender.errors import UnknownHardware
from recommender.hardware import HardwareProfile, load_profile, nearest_profile
from workers.driver import driver as driver_of
from workers.errors import DeviceMissing

LOG = logging.getLogger(__name__)
TOOL = "nvidia-smi"
FIELDS = ("uuid", "name", "driver_version")
TIMEOUT_S = 60.0
DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))  # NVIDIA's, AMD's
# In the order of FIELDS; devices of ROCm go by their number.
BY_TORCH = """
import torch
for index in range(torch.cuda.device_count()):
    device = torch.cuda.get_device_properties(index)
    if torch.version.hip is None:
        print(f"GPU-{device.uuid}, {device.name}, CUDA {torch.version.cuda}")
    else:
        print(f"{index}, {device.name}, ROCm {torch.version.hip}")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """One device.

    Attributes:
        uuid: its name where processes are told which devices they see; of AMD's its number.
        name: as the driver spells it.
        driver: its version, or that of torch's toolkit.
        hardware: its profile.
    """

    uuid: str
    name: str
    driver: str
    hardware: HardwareProfile

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process has in its environment that sees no other device."""
        if self.hardware.kind == "rocm":
            return {"HIP_VISIBLE_DEVICES": self.uuid}
        return {"CUDA_VISIBLE_DEVICES": self.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    @property
    def lock(self) -> str:
        """The name of what a process holds that measures on the device."""
        return f"amd-{self.uuid}" if self.hardware.kind == "rocm" else self.uuid


def gpu_devices() -> Sequence[GpuDevice]:
    """Return the devices of this machine that are known, in the driver's order."""
    tool = shutil.which(TOOL)
    if tool is not None:
        return _ask([tool, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader"])
    is_there = any(driver.exists() for driver in DRIVERS)
    return ask_torch() if is_there else ()  # a container may lack the tool


def ask_torch() -> Sequence[GpuDevice]:
    """Return the devices that torch sees; takes seconds."""
    return _ask([sys.executable, "-c", BY_TORCH])


def _ask(command: Sequence[str]) -> Sequence[GpuDevice]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        LOG.warning("%s does not say which devices there are: %s", command[0], error)
        return ()
    return parse_devices(done.stdout)


def parse_devices(text: str) -> Sequence[GpuDevice]:
    """Return the devices that lines of FIELDS name; those that nobody knows are left out."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(FIELDS):
            continue
        uuid, name, driver = fields
        try:
            hardware = profile_of(name)
        except UnknownHardware as error:
            LOG.warning("a device is not used: %s", error.message)
            continue
        is_known = driver[:1].isdigit()  # nvidia-smi has said so
        version = f"NVIDIA {driver}" if is_known else driver_of(hardware.kind)
        seen = replace(hardware, driver=version)
        found.append(GpuDevice(uuid=uuid, name=name, driver=driver, hardware=seen))
    return found


def profile_of(name: str) -> HardwareProfile:
    """Return the profile of a device by the name that its driver gives it.

    One that no profile has, of a kind that the compiler knows, gets the rates of the one most like
    it and a key of its own.

    Raises:
        UnknownHardware: nobody knows the device (RC601).
    """
    try:
        return load_profile(name)
    except UnknownHardware:
        like = nearest_profile(name)
        if like is None or like.kind == "cpu" or "mig" in name.lower().split():
            raise
        return replace(like, name=name, aliases=(), source=f"as {like.name}: {like.source}")


def devices_of(hardware: HardwareProfile) -> Sequence[GpuDevice]:
    """Return the devices of one kind.

    Raises:
        DeviceMissing: this machine has none (WK708).
    """
    found = gpu_devices()
    ours = [device for device in found if device.hardware.key == hardware.key]
    if not ours:
        names = ", ".join(device.name for device in found) or "no GPU"
        raise DeviceMissing(expected=hardware.name, found=names)
    return ours
