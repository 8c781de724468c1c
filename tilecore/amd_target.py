"""AMD GPUs: the limits that every legal program must keep.

Limits of an architecture: LLVM's "User Guide for AMDGPU Backend" (registers, waves, LDS), the
"AMD Instinct MI200" and "MI300 Instruction Set Architecture" guides (wavefronts of 64, 512 vector
registers a lane, 64 KiB of LDS), the "CDNA 4 Architecture" whitepaper (160 KiB of LDS). Compute
units: the data sheets named in DEVICES. Nothing here has
run on an AMD device.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilecore.gpu_target import KB, GpuTarget

if TYPE_CHECKING:
    from tilecore.gpu_target import Counts

NAMES = ("hip", "rocm")  # of TileLang's users; they mean DEFAULT_ARCH where none is given
DEFAULT_ARCH = "gfx942"
NODES = Path("/sys/class/kfd/kfd/topology/nodes")  # where Linux describes AMD's devices
SIMDS = 4  # of a compute unit; each has registers of its own
WAVES_PER_SIMD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdTarget(GpuTarget):
    """An AMD GPU, or all GPUs of one architecture; a multiprocessor is a compute unit.

    ``registers_per_thread`` are those that code may use without accumulation registers beside
    them; a wavefront may have 512 of both kinds together.
    """

    shared_per_block: int = 64 * KB
    shared_per_multiprocessor: int = 64 * KB
    threads_per_multiprocessor: int = SIMDS * WAVES_PER_SIMD * 64
    blocks_per_multiprocessor: int = 16
    shared_reserved: int = 0
    shared_static_limit: int = 64 * KB
    registers_per_multiprocessor: int = SIMDS * 512 * 64
    registers_per_thread: int = 512
    registers_per_block: int = SIMDS * 512 * 64
    register_unit: int = 8 * 64
    threads_per_warp: int = 64
    threads_along_z: int = 1024
    lds_unit: int = 512  # bytes that local data share is handed out in (LLVM: 128 words on GFX9)
    blocks_per_cluster: int = 1

    kind = "rocm"

    @property
    def capability(self) -> int:
        """0: older than every NVIDIA architecture, none of whose instructions there are."""
        return 0

    def has(self, arch: str) -> bool:
        """Return whether code for ``arch`` runs."""
        return self.arch == arch

    @property
    def has_wide_int8(self) -> bool:
        """Whether matrix instructions of int8 sum up 32 products instead of 16."""
        return self.arch in ("gfx942", "gfx950")

    @property
    def has_wide_products(self) -> bool:
        """Whether there are others that sum up twice as many of 8 and 16 bits, in as much time."""
        return self.arch == "gfx950"

    @property
    def float8_products(self) -> tuple[str, ...]:
        """The 8-bit floats that matrix instructions multiply; these mix.

        Source: HIP's documentation, "FP8 Numbers" (gfx942: FNUZ, gfx950: OCP); AMD's matrix
        instruction calculator (FP8 and BF8 of CDNA 3, in all four pairs; none of CDNA 2).
        """
        return {
            "gfx942": ("float8_e4m3fnuz", "float8_e5m2fnuz"),
            "gfx950": ("float8_e4m3fn", "float8_e5m2"),
        }.get(self.arch, ())

    @property
    def flushes_subnormals(self) -> bool:
        """Whether matrix instructions of 16-bit floats take subnormal numbers, also sums, for zero.

        Source: MIOpen's documentation, "MI200 matrix fused multiply-add (MFMA) behavior specifics".
        """
        return self.arch == "gfx90a"

    def resident(self, threads: Counts, registers: Counts, shared_bytes: Counts) -> Counts:
        """Return the ``occupancy`` of many kinds of blocks.

        Args:
            threads: of a block.
            registers: vector registers of a lane, those for accumulation included.
            shared_bytes: LDS of a block.
        """
        import numpy as np

        waves = -(-threads // self.threads_per_warp)
        each = np.maximum(1, -(-registers // 8)) * 8
        by_waves = SIMDS * np.minimum(WAVES_PER_SIMD, 512 // each) // waves
        shared = -(-shared_bytes // self.lds_unit) * self.lds_unit
        by_shared = self.shared_per_multiprocessor // np.maximum(shared, 1)
        blocks = np.minimum(by_waves, self.blocks_per_multiprocessor)
        blocks = np.where(shared > 0, np.minimum(blocks, by_shared), blocks)
        fits = (shared_bytes <= self.shared_per_block) & (threads <= self.threads_per_block)
        return np.where(fits, blocks, 0)


GFX90A = AmdTarget(arch="gfx90a", device="mi250", multiprocessors=104)
GFX942 = AmdTarget(arch="gfx942", device="mi300x", multiprocessors=304)
GFX950 = AmdTarget(
    arch="gfx950", device="mi355x", multiprocessors=256, shared_per_block=160 * KB,
    shared_per_multiprocessor=160 * KB, shared_static_limit=160 * KB, lds_unit=1280,
)  # fmt: skip
# Device, compute units, source.
DEVICES: tuple[tuple[str, int, AmdTarget, str], ...] = (
    ("mi250", 104, GFX90A, "AMD Instinct MI250 data sheet: 208 compute units in two dies, each of "
     "which is a device"),
    ("mi250x", 110, GFX90A, "AMD Instinct MI250X data sheet: 220 compute units in two dies"),
    ("mi210", 104, GFX90A, "AMD Instinct MI210 data sheet: 104 compute units"),
    ("mi300a", 228, GFX942, "AMD Instinct MI300A data sheet: 228 compute units"),
    ("mi300x", 304, GFX942, "AMD Instinct MI300X data sheet: 304 compute units"),
    ("mi325x", 304, GFX942, "AMD Instinct MI325X data sheet: 304 compute units"),
    ("mi350x", 256, GFX950, "AMD Instinct MI350X data sheet: 256 compute units"),
    ("mi355x", 256, GFX950, "AMD Instinct MI355X data sheet: 256 compute units"),
)  # fmt: skip


@functools.cache
def amd_targets() -> Mapping[str, AmdTarget]:
    """Return the targets by name: devices, and architectures that mean all their devices."""
    known = {n: replace(base, device=n, multiprocessors=m) for n, m, base, _ in DEVICES}
    for base in (GFX90A, GFX942, GFX950):
        known[base.arch] = replace(base, device=base.arch)
    return known


def find_amd_target(name: str, arch: str | None = None) -> AmdTarget | None:
    """Return the target of a name, or None.

    Args:
        name: "rocm", "hip", "mi300x", "AMD Instinct MI300X", "gfx942".
        arch: architecture that "rocm" stands for; default: that of the first device of this
            machine, else DEFAULT_ARCH.
    """
    known = amd_targets()
    text = name.strip().lower()
    if text in NAMES:
        return known.get(arch) if arch else local_amd_device() or known[DEFAULT_ARCH]
    plain = re.sub(r"[^a-z0-9]", "", text.removeprefix("amd/"))
    return known.get(plain.removeprefix("amd").removeprefix("instinct"))


@functools.cache
def local_amd_device(nodes: Path = NODES) -> AmdTarget | None:
    """Return the target of this machine's first AMD device that has one, or None.

    Asks Linux: whoever opens the device itself can no longer fork.

    Args:
        nodes: a folder per processor, numbered, with a file ``properties`` ("simd_count 1216").
    """
    if not nodes.is_dir():
        return None
    numbers = sorted(int(found.name) for found in nodes.iterdir() if found.name.isdigit())
    for number in numbers:
        try:
            lines = (nodes / str(number) / "properties").read_text().splitlines()
        except OSError:
            continue  # a device that this process may not use
        values = dict(line.split(maxsplit=1) for line in lines if " " in line)
        found = _of_properties(values)
        if found is not None:
            return found
    return None


def _of_properties(values: Mapping[str, str]) -> AmdTarget | None:
    """Return the target of a processor as Linux describes it, None where it is no known GPU.

    ``gfx_target_version`` has two decimal digits each for minor version and stepping, which names
    have in hexadecimal: 90010 is gfx90a.
    """
    version, units = (int(values.get(name, "0")) for name in ("gfx_target_version", "simd_count"))
    arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    found = amd_targets().get(arch)
    if found is None:
        return None
    multiprocessors = units // (int(values.get("simd_per_cu", "0")) or SIMDS)
    exact = (
        t for t in amd_targets().values()
        if (t.arch, t.multiprocessors) == (arch, multiprocessors) and t.device != arch
    )  # fmt: skip
    return next(exact, replace(found, multiprocessors=multiprocessors or found.multiprocessors))
