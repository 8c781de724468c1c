"""What of this machine besides the toolchain decides how fast code runs: its driver.

On a GPU that is the kernel driver, on a CPU the operating system's kernel and the microcode.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path

NVIDIA = Path("/proc/driver/nvidia/version")
AMD = Path("/sys/module/amdgpu/version")
CPU_INFO = Path("/proc/cpuinfo")


def driver(
    kind: str,
    *,
    nvidia: Path = NVIDIA,
    amd: Path = AMD,
    cpu_info: Path = CPU_INFO,
    kernel: str | None = None,
) -> str:
    """Return the driver of this machine's devices of one kind, "" where it cannot be read.

    Args:
        kind: "cuda", "rocm" or "cpu".
        nvidia: where NVIDIA's driver tells its version.
        amd: where AMD's driver tells its version.
        cpu_info: /proc/cpuinfo, which names the microcode.
        kernel: release of the operating system's kernel; None: the running one.
    """
    release = f"{platform.system()} {kernel or platform.release()}"
    if kind == "cuda":
        found = re.search(r"Kernel Module\s.*?(\d+\.\d+(?:\.\d+)?)", _read(nvidia))
        return f"NVIDIA {found[1]}" if found else ""
    if kind == "rocm":  # the driver that comes with Linux has no version of its own
        version = _read(amd).strip()
        return f"amdgpu {version}" if version else release if amd.parent.exists() else ""
    found = re.search(r"^microcode\s*:\s*(\S+)", _read(cpu_info), re.MULTILINE)
    return f"{release}, microcode {found[1]}" if found else release


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
