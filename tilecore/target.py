"""Targets: what code is generated for, and the limits that every legal program must keep."""

from __future__ import annotations

import contextlib
import importlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from tilecore import amd_target, amx, gpu_target
from tilecore.amd_target import amd_targets, find_amd_target
from tilecore.errors import UnknownTarget, UnsupportedOnTarget, did_you_mean
from tilecore.gpu_target import GpuTarget, find_gpu_target, gpu_targets
from tilecore.ir.dtype import DType

CPU_NAMES = ("llvm", "cpu", "c", "auto")
GPU_NAMES = ("cuda", "hip", "rocm", "cutedsl")
EMULATED = "emulated "  # before the name of a target: its code, run on an emulator
# Instructions beyond AVX2 or AVX-512F/BW/DQ/VL that code may use: Linux's name, LLVM's.
FEATURES = {
    "avx_vnni": "avxvnni",
    "avx512_bf16": "avx512bf16",
    "avx512_vnni": "avx512vnni",
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
}
AVX2_FEATURES = frozenset({"avx_vnni"})  # those that CPUs without AVX-512 may have
IMPLIED = {"amx_bf16": ("avx512_bf16",)}  # a CPU that lacks these is taken to lack the first
# Where programs written for a GPU run: None: there; "": on the CPU; a GPU's name: as its code, on
# the emulator.
_GPU_PROGRAMS: ContextVar[str | None] = ContextVar("gpu_programs", default=None)
# The target that code for this machine's CPU is generated for, in its place.
_CPU: ContextVar[str | None] = ContextVar("cpu", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A code generation target.

    Attributes:
        kind: "llvm" (x86-64 CPU).
        isa: "avx512" or "avx2": the vector instructions that may be used.
        mcpu: LLVM's name of the processor family, chosen by feature so that code runs here.
        vector_bytes: width of one vector register.
        vector_registers: architectural vector registers.
        features: instructions beyond those of ``isa`` (keys of FEATURES) that may be used.
        is_emulated: whether the code is made to run on every machine (tilecore.emulator.x86).
    """

    kind: str
    isa: str
    mcpu: str
    vector_bytes: int
    vector_registers: int
    features: frozenset[str] = frozenset()
    is_emulated: bool = False

    @property
    def name(self) -> str:
        """The name that ``parse_target`` understands: "avx512+avx512_bf16"."""
        return EMULATED * self.is_emulated + "+".join((self.isa, *sorted(self.features)))

    @property
    def attributes(self) -> tuple[str, ...]:
        """LLVM's names of the features."""
        names = self.features | {n for f in self.features for n in IMPLIED.get(f, ())}
        return tuple(f"+{FEATURES[name]}" for name in sorted(names))

    def using(self, features: Iterable[str]) -> Target:
        """Return this target with just these features."""
        return replace(self, features=frozenset(features))

    def runs(self, other: Target) -> bool:
        """Return whether a machine of this target runs code for ``other``."""
        if other.is_emulated:
            return True
        return other.vector_bytes <= self.vector_bytes and other.features <= self.features

    def lanes(self, dtype: str) -> int:
        """Return how many elements of ``dtype`` one vector register holds."""
        return self.vector_bytes // DType(dtype).itemsize

    def micro_tile_fits(self, micro_m: int, micro_n: int) -> bool:
        """Return whether a register tile of micro_m rows x micro_n vectors stays in registers.

        micro_m * micro_n accumulators, micro_n operand vectors and one broadcast. Beyond this
        budget throughput halves (measured: AMD Zen 4, 2026-11-20).
        """
        return micro_m * micro_n + micro_n + 1 <= self.vector_registers

    def __str__(self) -> str:
        return f"{self.kind} ({EMULATED * self.is_emulated}{self.isa})"


AVX512 = Target(
    kind="llvm", isa="avx512", mcpu="skylake-avx512", vector_bytes=64, vector_registers=32
)
AVX2 = Target(kind="llvm", isa="avx2", mcpu="haswell", vector_bytes=32, vector_registers=16)


# Instructions that run, but slower than what they are meant to replace. On Sapphire Rapids
# vdpbf16ps starts 1.66e9 times a second and vfmadd231ps, of half the products, 6.6e9 times.
SLOW_FEATURES = {"GenuineIntel": frozenset({"avx512_bf16"})}


def host_features() -> frozenset[str]:
    """Return the CPU feature flags of this machine as Linux names them (empty elsewhere).

    Those of AMX are among them only where processes get leave to use its tiles.
    """
    flags = frozenset(_cpuinfo("flags").split())
    return flags if amx.is_available() else flags - {f for f in flags if f.startswith("amx_")}


def _cpuinfo(key: str) -> str:
    """Return what Linux says about the first core ("" elsewhere)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == key), "")


def cpu_target(features: Iterable[str] | None = None) -> Target:
    """Return the best CPU target for a machine with ``features``.

    Default: this machine, without instructions that are slow on it, or what ``compiling_for`` says.

    Raises:
        UnknownTarget: the machine is not x86-64 with AVX2 and FMA (TC304).
    """
    if features is not None:
        return widest_target(features)
    given = _CPU.get()
    if given is not None:
        return parse_cpu_target(given)
    widest = widest_target(host_features())
    return widest.using(widest.features - SLOW_FEATURES.get(_cpuinfo("vendor_id"), frozenset()))


def widest_target(features: Iterable[str]) -> Target:
    """Return the CPU target of all instructions that a machine with ``features`` can run.

    Raises:
        UnknownTarget: it is not x86-64 with AVX2 and FMA (TC304).
    """
    flags = frozenset(features)
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        lacking = {name for name, implied in IMPLIED.items() if not flags >= set(implied)}
        return AVX512.using((flags & FEATURES.keys()) - lacking)
    if {"avx2", "fma"} <= flags:
        return AVX2.using(flags & AVX2_FEATURES)
    raise UnknownTarget(
        known="x86-64 with AVX2 and FMA, x86-64 with AVX-512",
        found=f"{platform.machine()} without them",
    )


@contextlib.contextmanager
def compiling_for(target: str) -> Iterator[None]:
    """Let code for this machine's CPU be code for another target inside the block.

    What ``jit`` has compiled before stays as it is.

    Args:
        target: a CPU's; "emulated avx512+avx512_bf16" gives code that runs on every machine.

    Raises:
        UnknownTarget, UnsupportedOnTarget: as ``parse_cpu_target`` (TC304, TC302).
    """
    parse_cpu_target(target)
    token = _CPU.set(target)
    try:
        yield
    finally:
        _CPU.reset(token)


@contextlib.contextmanager
def gpu_programs_on_cpu(emulated: str = "") -> Iterator[None]:
    """Let programs that ask for a GPU target run on the CPU inside the block.

    Args:
        emulated: a GPU, whose code for the programs runs on the emulator; "": they are compiled
            for the CPU.
    """
    token = _GPU_PROGRAMS.set(emulated)
    try:
        yield
    finally:
        _GPU_PROGRAMS.reset(token)


def runs_gpu_programs() -> bool:
    """Return whether ``gpu_programs_on_cpu`` is active: what runs was written for TileLang."""
    return _GPU_PROGRAMS.get() is not None


def emulates_gpus() -> bool:
    """Return whether what is compiled for a GPU runs on the emulator."""
    return bool(_GPU_PROGRAMS.get())


def names_emulator(target: object) -> bool:
    """Return whether a target is a GPU that the emulator stands in for: "emulated h200"."""
    return isinstance(target, str) and target.lower().startswith(EMULATED)


def parse_target(
    target: str | Target | GpuTarget | Mapping[str, object] | None,
) -> Target | GpuTarget:
    """Return the target for a name as TileLang users write it ("llvm", "cpu", "auto", "cuda").

    "avx512" and "avx2" mean these instructions alone; features may follow
    ("avx512+avx512_bf16", "avx2+avx_vnni"). GPUs go by device ("h100") or architecture ("sm_90a",
    "cuda -arch=sm_90a"); "cuda" alone is this machine's first device, or sm_80 where there is none.
    "auto" is the first device where torch can hold tensors on it, else the CPU.
    AMD's likewise ("mi300x", "gfx942", "rocm -arch=gfx90a"; "hip" and "rocm" alone are this
    machine's first device, or gfx942).
    A target of TVM stands for its kind and architecture. "emulated h200" is the target of an H200,
    "emulated avx512+amx_tile" one whose code runs on every CPU (tilecore.emulator).

    Raises:
        UnknownTarget: the name is not one this version generates code for (TC304).
    """
    if isinstance(target, (Target, GpuTarget)):
        return target
    if names_emulator(target):
        return _emulated(str(target)[len(EMULATED) :].strip())
    name, arch = _name_and_arch(target)
    where = _GPU_PROGRAMS.get()
    if name == "auto" and where is None:
        return device_of_torch() or cpu_target()
    if where and arch is None and name in ("auto", *GPU_NAMES):
        name = where
    if name in CPU_NAMES or (name in GPU_NAMES and where == ""):
        return cpu_target()
    cpu = _find_cpu_target(name)
    if cpu is not None:
        return cpu
    gpu = find_gpu_target(name, arch) or find_amd_target(name, arch)
    if gpu is not None:
        return gpu
    raise UnknownTarget(
        known=f"llvm, cpu, auto, avx2 (+ {', '.join(sorted(AVX2_FEATURES))}), "
        f"avx512 (+ {', '.join(f for f in FEATURES if f not in AVX2_FEATURES)}), cuda, rocm, "
        f"{_gpus()}",
        found=str(target) if arch is None else f"{name} -arch={arch}",
        hint=did_you_mean(arch or name, {**gpu_targets(), **amd_targets()}),
    )


def device_of_torch() -> GpuTarget | None:
    """Return this machine's first GPU that torch can hold tensors on, None without one.

    NVIDIA's where torch is built for CUDA, AMD's where it is built for ROCm.
    """
    nvidia, amd = gpu_target.local_device(), amd_target.local_amd_device()
    if nvidia is None and amd is None:
        return None  # nobody imports torch for that
    try:
        version = importlib.import_module("torch").version
    except ImportError:
        return None
    if version.cuda is not None:
        return nvidia
    return None if version.hip is None else amd


def _gpus() -> str:
    """Return the architectures of GPUs, and some of the devices by whose names they go, too."""
    known = [*gpu_targets().values(), *amd_targets().values()]
    architectures = (t.arch for t in known if t.device == t.arch)
    return f"{', '.join(architectures)}, the name of a GPU (t4, h100, rtx5090, mi300x, ...)"


def _find_cpu_target(name: str) -> Target | None:
    """Return the CPU target of a name with features ("avx512+amx_tile"), None if it has none."""
    base, *features = name.split("+")
    for known, legal in ((AVX512, frozenset(FEATURES)), (AVX2, AVX2_FEATURES)):
        is_base = base in (known.isa, known.mcpu, f"llvm-{known.isa}")
        if is_base and legal >= set(features):
            return known.using(features)
    return None


def _emulated(name: str) -> Target | GpuTarget:
    """Return the target of "emulated <name>"; UnknownTarget (TC304) if there is none."""
    cpu = _find_cpu_target(name.lower())
    return parse_gpu_target(name) if cpu is None else replace(cpu, is_emulated=True)


def parse_cpu_target(target: str | Target | GpuTarget | Mapping[str, object] | None) -> Target:
    """Return the CPU target for a name.

    Raises:
        UnknownTarget: the name is not known (TC304).
        UnsupportedOnTarget: it is a GPU's (TC302).
    """
    found = parse_target(target)
    if isinstance(found, GpuTarget):
        raise UnsupportedOnTarget(
            what="this call", target=found, reason="expected a CPU target", hint='use "llvm"'
        )
    return found


def parse_gpu_target(target: str) -> GpuTarget:
    """Return the GPU target for a name.

    Raises:
        UnknownTarget: the name is not known, or a CPU's (TC304).
    """
    found = parse_target(target)
    if not isinstance(found, GpuTarget):
        raise UnknownTarget(known=_gpus(), found=target)
    return found


def _name_and_arch(target: object) -> tuple[str, str | None]:
    """Return the name of a target in lower case and the GPU architecture that goes with it."""
    if target is None:
        return "llvm", None
    if isinstance(target, Mapping):
        arch = target.get("arch") or target.get("mcpu")
        return str(target.get("kind", target)).lower(), None if arch is None else str(arch)
    kind = getattr(target, "kind", None)
    if kind is not None:
        attributes = getattr(target, "attrs", {})
        arch = attributes.get("arch") or attributes.get("mcpu")
        return str(getattr(kind, "name", kind)).lower(), None if arch is None else str(arch)
    first, *options = str(target).split() or [""]
    given = [
        o.partition("=")[2]
        for o in options
        if o.startswith(("-arch=", "--arch=", "-mcpu=", "--mcpu=", "--offload-arch="))
    ]
    if given or not options or first.startswith("-"):
        return first.lower(), given[-1] if given else None
    return (first if first in CPU_NAMES + GPU_NAMES else str(target)).lower(), None
