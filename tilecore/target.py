"""Targets: what code is generated for, and the limits that every legal program must keep."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from tilecore.errors import UnknownTarget
from tilecore.ir.dtype import DType

CPU_NAMES = ("llvm", "cpu", "c", "auto")
GPU_NAMES = ("cuda", "hip", "rocm", "cutedsl")
_GPU_PROGRAMS_ON_CPU: ContextVar[bool] = ContextVar("gpu_programs_on_cpu", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A code generation target.

    Attributes:
        kind: "llvm" (x86-64 CPU).
        isa: "avx512" or "avx2": the vector instructions that may be used.
        mcpu: LLVM's name of the processor family, chosen by feature so that code runs here.
        vector_bytes: width of one vector register.
        vector_registers: architectural vector registers.
    """

    kind: str
    isa: str
    mcpu: str
    vector_bytes: int
    vector_registers: int

    def lanes(self, dtype: str) -> int:
        """Return how many elements of ``dtype`` one vector register holds."""
        return self.vector_bytes // DType(dtype).itemsize

    def micro_tile_fits(self, micro_m: int, micro_n: int) -> bool:
        """Return whether a register tile of micro_m rows x micro_n vectors stays in registers.

        micro_m * micro_n accumulators, micro_n operand vectors and one broadcast. Beyond this
        budget throughput halves (shared/research/cpu-lowering.md section 3, measured).
        """
        return micro_m * micro_n + micro_n + 1 <= self.vector_registers

    def __str__(self) -> str:
        return f"{self.kind} ({self.isa})"


AVX512 = Target(
    kind="llvm", isa="avx512", mcpu="skylake-avx512", vector_bytes=64, vector_registers=32
)
AVX2 = Target(kind="llvm", isa="avx2", mcpu="haswell", vector_bytes=32, vector_registers=16)


def host_features() -> frozenset[str]:
    """Return the CPU feature flags of this machine as Linux names them (empty elsewhere)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def cpu_target(features: Iterable[str] | None = None) -> Target:
    """Return the widest CPU target that a machine with ``features`` (default: this one) can run.

    Raises:
        UnknownTarget: the machine is not x86-64 with AVX2 and FMA (TC304).
    """
    flags = host_features() if features is None else frozenset(features)
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return AVX512
    if {"avx2", "fma"} <= flags:
        return AVX2
    raise UnknownTarget(
        known="x86-64 with AVX2 and FMA, x86-64 with AVX-512",
        found=f"{platform.machine()} without them",
    )


@contextlib.contextmanager
def gpu_programs_on_cpu() -> Iterator[None]:
    """Let programs that ask for a GPU target get the CPU's inside the block."""
    token = _GPU_PROGRAMS_ON_CPU.set(True)
    try:
        yield
    finally:
        _GPU_PROGRAMS_ON_CPU.reset(token)


def runs_gpu_programs() -> bool:
    """Return whether ``gpu_programs_on_cpu`` is active: what runs was written for TileLang."""
    return _GPU_PROGRAMS_ON_CPU.get()


def parse_target(target: str | Target | Mapping[str, object] | None) -> Target:
    """Return the Target for a name as TileLang users write it ("llvm", "cpu", "auto").

    A target of TVM stands for the name of its kind.

    Raises:
        UnknownTarget: the name is not one this version generates code for (TC304).
    """
    if isinstance(target, Target):
        return target
    if isinstance(target, Mapping):
        target = str(target.get("kind", target))
    kind = getattr(target, "kind", None)
    if kind is not None:
        target = str(getattr(kind, "name", kind))
    name = "llvm" if target is None else str(target).split()[0].lower()
    if name in CPU_NAMES or (name in GPU_NAMES and _GPU_PROGRAMS_ON_CPU.get()):
        return cpu_target()
    for known in (AVX512, AVX2):
        if name in (known.isa, known.mcpu, f"llvm-{known.isa}"):
            return known
    raise UnknownTarget(
        known="llvm, cpu, auto, avx512, avx2",
        found=str(target),
        hint="this version generates CPU code; CUDA and ROCm come with the CUDA backend issue",
    )
