"""NVIDIA GPUs: what code may use, and the limits that every legal program must keep.

Limits of an architecture: CUDA C++ Programming Guide 13.0, section 20.2, tables "Technical
Specifications per Compute Capability" and "Memory". Multiprocessors of a device: the vendor's
architecture whitepapers and data sheets, named in DEVICES, and so are L2 caches.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]

KB, MB = 1 << 10, 1 << 20
# Whose instructions an "a" has too, but for products of integers (PTX ISA 9.0: family 100f).
FAMILY = {"sm_103a": "sm_100a"}
DEFAULT_ARCH = "sm_80"  # of "cuda" where no device is at hand: also runs on sm_86 and sm_89
PROBE_TIMEOUT_S = 10
MOST_BLOCKS = (2**31 - 1, 65535, 65535)  # of a grid along x, y and z, on every device


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """A GPU, or all GPUs of one architecture.

    Attributes:
        arch: "sm_80", "sm_90a": instructions that code may use, as NVRTC takes it.
        device: name of the device ("h100"), or the architecture where none is meant.
        multiprocessors: of the device; of an architecture: of its data centre device.
        shared_per_block: bytes that a block may ask for.
        shared_per_multiprocessor: bytes that resident blocks share, with ``shared_reserved`` each.
        registers_per_multiprocessor: 32-bit registers that resident threads share.
        l2_bytes: of the L2 cache, of the largest device of the architecture: of some it is half.
    """

    arch: str
    device: str
    multiprocessors: int
    shared_per_block: int
    shared_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_reserved: int = 1 * KB  # per block, since compute capability 8.0
    shared_static_limit: int = 48 * KB  # of arrays whose size is compiled in
    registers_per_multiprocessor: int = 64 * KB
    registers_per_thread: int = 255
    registers_per_block: int = 64 * KB
    local_per_thread: int = 512 * KB
    register_unit: int = 256  # registers are given to a warp in units of these
    threads_per_block: int = 1024
    threads_along_z: int = 64
    threads_per_warp: int = 32
    blocks_per_cluster: int = 8  # that every device grants
    l2_bytes: int = 6 * MB

    kind = "cuda"

    @property
    def name(self) -> str:
        """The name that ``parse_target`` understands."""
        return self.device

    @property
    def capability(self) -> int:
        """Ten times the compute capability: 80, 90, 100."""
        return capability(self.arch)

    def has(self, arch: str) -> bool:
        """Return whether code for ``arch`` runs: "sm_80" on newer ones, "sm_90a" on that alone."""
        if arch[-1] in "af":
            return arch in (self.arch, FAMILY.get(self.arch))
        return self.capability >= capability(arch)

    @property
    def has_cp_async(self) -> bool:
        """Whether threads copy from global to shared memory without waiting."""
        return self.has("sm_80")

    @property
    def has_tma(self) -> bool:
        """Whether there is a tensor memory accelerator, with barriers that count bytes."""
        return self.has("sm_90")

    @property
    def tma_reaches_cluster(self) -> bool:
        """Whether that unit itself brings boxes to other blocks of a cluster: sm_120's does not.

        There ptxas 13.0 asks before each load whose address it is, and has software do the rest.
        """
        return self.has_tma and not self.has("sm_120")

    @property
    def multiplies_by_quads(self) -> bool:
        """Whether tensor cores take mma.m8n8k4 alone (Volta)."""
        return self.kind == "cuda" and not self.has("sm_75")

    @property
    def matrix_moves(self) -> frozenset[str]:
        """How a warp moves matrices between registers and shared memory: "load", "store"."""
        first = {"load": "sm_75", "store": "sm_90"}
        return frozenset(m for m, arch in first.items() if self.kind == "cuda" and self.has(arch))

    @property
    def added_bytes(self) -> Mapping[str, int]:
        """How many bytes of neighbours in a tensor one instruction adds to, by their type."""
        if self.kind != "cuda":
            return {}
        most = {"float32": 16, "float16": 16, "bfloat16": 16}
        return most if self.has("sm_90") else {"float16": 4}

    @property
    def has_wgmma(self) -> bool:
        """Whether warpgroups multiply matrices in shared memory."""
        return self.has("sm_90a")

    @property
    def trades_registers(self) -> bool:
        """Whether warpgroups hand registers to each other (setmaxnreg)."""
        return self.has("sm_90") and self.arch[-1] == "a"

    @property
    def chains_launches(self) -> bool:
        """Whether a launch may begin before the one before has ended, and wait for it itself."""
        return self.kind == "cuda" and self.has("sm_90")

    @property
    def has_clusters(self) -> bool:
        """Whether blocks of a cluster run together and reach each other's shared memory."""
        return self.has("sm_90")

    @property
    def scales_blocks(self) -> bool:
        """Whether a warp multiplies matrices of 4-bit floats times factors (mma .block_scale)."""
        return self.has("sm_120a")

    @property
    def has_tcgen05(self) -> bool:
        """Whether one thread multiplies matrices in shared memory into tensor memory."""
        return self.has("sm_100a")

    @property
    def has_integer_tcgen05(self) -> bool:
        """Whether it multiplies integers (kind::i8)."""
        return self.arch == "sm_100a"

    def occupancy(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Return how many blocks of these resources are resident on a multiprocessor.

        Args:
            threads: of a block.
            registers: of a thread.
            shared_bytes: of a block, static and dynamic.
        """
        import numpy as np

        return int(self.resident(*(np.array(x) for x in (threads, registers, shared_bytes))))

    def resident(self, threads: Counts, registers: Counts, shared_bytes: Counts) -> Counts:
        """Return the ``occupancy`` of many kinds of blocks."""
        import numpy as np  # commands that ask nothing of it do without

        warps = -(-threads // self.threads_per_warp)
        per_warp = -(-registers * self.threads_per_warp // self.register_unit) * self.register_unit
        by_warps = self.threads_per_multiprocessor // self.threads_per_warp // warps
        # Each of four schedulers has a quarter of the registers and of the warps.
        quarter = self.registers_per_multiprocessor // 4
        by_registers = quarter // np.maximum(per_warp, 1) * 4 // warps
        shared = -(-(shared_bytes + self.shared_reserved) // 128) * 128
        by_shared = self.shared_per_multiprocessor // np.maximum(shared, 1)
        blocks = np.minimum(by_warps, self.blocks_per_multiprocessor)
        for kept, limit in ((per_warp, by_registers), (shared, by_shared)):
            blocks = np.where(kept > 0, np.minimum(blocks, limit), blocks)
        fits = (shared_bytes <= self.shared_per_block) & (threads <= self.threads_per_block)
        return np.where(fits, blocks, 0)

    def __str__(self) -> str:
        return self.arch if self.device == self.arch else f"{self.device} ({self.arch})"


def capability(arch: str) -> int:
    """Return ten times the compute capability of "sm_90a": 90."""
    return int(re.sub(r"\D", "", arch))


V100 = GpuTarget(
    arch="sm_70", device="v100", multiprocessors=80, shared_per_block=96 * KB,
    shared_per_multiprocessor=96 * KB, threads_per_multiprocessor=2048,
    blocks_per_multiprocessor=32, shared_reserved=0, l2_bytes=6 * MB,
)  # fmt: skip
RTX_2080 = GpuTarget(
    arch="sm_75", device="rtx2080", multiprocessors=46, shared_per_block=64 * KB,
    shared_per_multiprocessor=64 * KB, threads_per_multiprocessor=1024,
    blocks_per_multiprocessor=16, shared_reserved=0,
)  # fmt: skip
A100 = GpuTarget(
    arch="sm_80", device="a100", multiprocessors=108, shared_per_block=163 * KB,
    shared_per_multiprocessor=164 * KB, threads_per_multiprocessor=2048,
    blocks_per_multiprocessor=32, l2_bytes=40 * MB,
)  # fmt: skip
RTX_3090 = GpuTarget(
    arch="sm_86", device="rtx3090", multiprocessors=82, shared_per_block=99 * KB,
    shared_per_multiprocessor=100 * KB, threads_per_multiprocessor=1536,
    blocks_per_multiprocessor=16,
)  # fmt: skip
RTX_4090 = GpuTarget(
    arch="sm_89", device="rtx4090", multiprocessors=128, shared_per_block=99 * KB,
    shared_per_multiprocessor=100 * KB, threads_per_multiprocessor=1536,
    blocks_per_multiprocessor=24, l2_bytes=72 * MB,
)  # fmt: skip
H100 = GpuTarget(
    arch="sm_90a", device="h100", multiprocessors=132, shared_per_block=227 * KB,
    shared_per_multiprocessor=228 * KB, threads_per_multiprocessor=2048,
    blocks_per_multiprocessor=32, l2_bytes=50 * MB,
)  # fmt: skip
B200 = GpuTarget(
    arch="sm_100a", device="b200", multiprocessors=148, shared_per_block=227 * KB,
    shared_per_multiprocessor=228 * KB, threads_per_multiprocessor=2048,
    blocks_per_multiprocessor=32, l2_bytes=126 * MB,
)  # fmt: skip
B300 = replace(B200, arch="sm_103a", device="b300")
RTX_5090 = GpuTarget(
    arch="sm_120a", device="rtx5090", multiprocessors=170, shared_per_block=99 * KB,
    shared_per_multiprocessor=100 * KB, threads_per_multiprocessor=1536,
    blocks_per_multiprocessor=24, l2_bytes=96 * MB,
)  # fmt: skip
ARCHITECTURES = (V100, RTX_2080, A100, RTX_3090, RTX_4090, H100, B200, B300, RTX_5090)
# Device, multiprocessors, source.
DEVICES: tuple[tuple[str, int, GpuTarget, str], ...] = (
    ("v100", 80, V100, "NVIDIA Tesla V100 GPU Architecture whitepaper, table 1"),
    ("t4", 40, RTX_2080, "NVIDIA T4 data sheet: 2560 CUDA cores, 64 each"),
    ("rtx2080", 46, RTX_2080, "NVIDIA Turing GPU Architecture whitepaper, table 2"),
    (
        "rtx2080ti",
        68,
        RTX_2080,
        "NVIDIA's page of the GeForce RTX 2080 Ti: 4352 CUDA cores, 64 each",
    ),
    ("a100", 108, A100, "NVIDIA A100 Tensor Core GPU Architecture whitepaper, table 4"),
    ("a30", 56, A100, "NVIDIA A30 product brief: 3584 CUDA cores, 64 each"),
    ("rtx3070", 46, RTX_3090, "NVIDIA's page of the GeForce RTX 3070: 5888 CUDA cores, 128 each"),
    ("rtx3080", 68, RTX_3090, "NVIDIA's page of the GeForce RTX 3080 (10 GB): 8704 CUDA cores"),
    ("rtx3090", 82, RTX_3090, "NVIDIA Ampere GA102 GPU Architecture whitepaper, table 9"),
    ("rtxa6000", 84, RTX_3090, "NVIDIA Ampere GA102 GPU Architecture whitepaper, table 10"),
    ("a10", 72, RTX_3090, "NVIDIA A10 product brief: 9216 CUDA cores, 128 each"),
    ("a40", 84, RTX_3090, "NVIDIA A40 data sheet: 10752 CUDA cores, 128 each"),
    ("rtx4070", 46, RTX_4090, "NVIDIA's page of the GeForce RTX 4070: 5888 CUDA cores, 128 each"),
    ("rtx4080", 76, RTX_4090, "NVIDIA's page of the GeForce RTX 4080: 9728 CUDA cores, 128 each"),
    ("rtx4090", 128, RTX_4090, "NVIDIA Ada GPU Architecture whitepaper, table 2"),
    ("rtx6000ada", 142, RTX_4090, "NVIDIA RTX 6000 Ada data sheet: 18176 CUDA cores, 128 each"),
    ("l4", 58, RTX_4090, "CUDA device query of an L4, as quoted by vendors: 7424 CUDA cores"),
    ("l40", 142, RTX_4090, "NVIDIA L40 data sheet: 18176 CUDA cores, 128 each"),
    ("l40s", 142, RTX_4090, "NVIDIA L40S data sheet: 18176 CUDA cores, 128 each"),
    ("h100", 132, H100, "NVIDIA H100 Tensor Core GPU Architecture whitepaper, table 2 (SXM5)"),
    ("h100pcie", 114, H100, "NVIDIA H100 Tensor Core GPU Architecture whitepaper, table 2"),
    ("h20", 78, H100, "CUDA device query of an H20, as quoted by vendors"),
    ("h800", 132, H100, "an H100 (SXM5) with slower links: CUDA device query"),
    ("h200", 132, H100, "NVIDIA H200 data sheet: 16896 CUDA cores, 128 each"),
    ("b200", 148, B200, "CUDA device query of a B200, as quoted by vendors' benchmarks"),
    ("rtx5070", 48, RTX_5090, "NVIDIA's page of the GeForce RTX 5070: 6144 CUDA cores, 128 each"),
    ("rtx5070ti", 70, RTX_5090, "NVIDIA's page of the GeForce RTX 5070 Ti: 8960 CUDA cores"),
    ("rtx5080", 84, RTX_5090, "NVIDIA's page of the GeForce RTX 5080: 10752 CUDA cores"),
    ("rtx5090", 170, RTX_5090, "NVIDIA's page of the GeForce RTX 5090: 21760 CUDA cores"),
    ("rtxpro6000", 188, RTX_5090, "NVIDIA RTX PRO 6000 Blackwell data sheet: 24064 CUDA cores"),
)
RUNS_AS = {"sm_72": "sm_70", "sm_87": "sm_86", "sm_88": "sm_86"}  # code of the older one
BRANDS = ("nvidia", "geforce", "tesla")
ENDINGS = (
    "", "sxm4", "sxm5", "sxm2", "sxm3", "sxm", "hbm3", "nvl", "pcie", "80", "40", "generation",
    "blackwell", "blackwellworkstationedition", "blackwellserveredition",
    "blackwellmaxqworkstationedition",
)  # fmt: skip


@functools.cache
def gpu_targets() -> Mapping[str, GpuTarget]:
    """Return the targets by name: devices, and architectures that mean all their devices."""
    known = {n: replace(base, device=n, multiprocessors=m) for n, m, base, _ in DEVICES}
    for base in ARCHITECTURES:
        known[base.arch] = replace(base, device=base.arch)
    return known


def find_gpu_target(name: str, arch: str | None = None) -> GpuTarget | None:
    """Return the target of a name, or None.

    Args:
        name: "cuda", "h100", "nvidia/nvidia-h100", "NVIDIA H100 PCIe", "sm_90a", "sm_90" (the same:
            every device of capability 9.0, 10.0, ... has the instructions of the "a"), "sm_87"
            (like "sm_86", whose code it runs).
        arch: architecture that "cuda" stands for; default: that of the first device of this
            machine, else DEFAULT_ARCH.
    """
    known = gpu_targets()
    text = name.strip().lower()
    if text == "cuda":
        return find_gpu_target(arch) if arch else local_device() or known[DEFAULT_ARCH]
    if text.startswith("sm_"):
        text = RUNS_AS.get(text, text)
        return known.get(text) or known.get(f"{text}a")
    text = re.sub(r"[\s-]\d+gb.*$", "", text.removeprefix("nvidia/"))
    plain = re.sub(r"[^a-z0-9]", "", text)
    for brand in BRANDS:
        plain = plain.removeprefix(brand)
    for ending in ENDINGS:
        bare = plain.removesuffix(ending)
        found = known.get(bare) or known.get(f"rtx{bare}")
        if plain.endswith(ending) and found is not None:
            return found
    return None


@functools.cache
def local_device() -> GpuTarget | None:
    """Return the target of this machine's first NVIDIA device, or None.

    Asks nvidia-smi: a process that has opened the driver can no longer fork.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    if not lines:
        return None
    device, _, version = lines[0].rpartition(",")
    return find_gpu_target(device) or find_gpu_target("sm_" + version.strip().replace(".", ""))
