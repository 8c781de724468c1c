"""CUDA C++ to a cubin: NVRTC through ctypes, from its wheel or a CUDA toolkit; else nvcc.

No GPU and no driver are needed. NVRTC takes 0.2 s for a kernel for which nvcc takes 1.5 s.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilecore.errors import CompileFailed, ToolchainMissing
from tilecore.gpu_target import capability

TOOLKITS = (Path("/usr/local/cuda"), Path("/opt/cuda"), Path("/usr/lib/cuda"))
HINT = "pip install 'tilecore[cuda]', or install a CUDA toolkit (12.8 or newer)"
OLDER = "pip install 'tilecore[cuda-volta]', beside a newer one"
NVCC_TIMEOUT_S = 300
UNKNOWN_ARCH = ("invalid value for --gpu-architecture", "Unsupported gpu architecture")
OPTIONS = ("--std=c++17", "--ptxas-options=-v")
FAST_MATH = "--use_fast_math"
# Where there is a driver, NVRTC keeps machine code, and says nothing of what ptxas said of it.
NO_CACHE, CACHES = "-no-cache", (12, 9)
_USED = re.compile(r"Used (\d+) registers")
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class Usage:
    """What ptxas says about one kernel."""

    registers: int = 0
    frame_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of a GPU.

    Attributes:
        data: the ELF file.
        log: what the compiler said.
        kernels: what each entry uses, by name.
    """

    data: bytes
    log: str
    kernels: Mapping[str, Usage]

    @property
    def registers(self) -> int:
        """The most registers per thread that one of the kernels uses."""
        return max((u.registers for u in self.kernels.values()), default=0)

    @property
    def frame_bytes(self) -> int:
        """The most local memory of a thread that one of the kernels uses."""
        return max((u.frame_bytes for u in self.kernels.values()), default=0)

    @property
    def spills(self) -> int:
        """Bytes of registers that all kernels store to memory for want of room."""
        return sum(u.spill_store_bytes for u in self.kernels.values())


def compile_cuda(
    source: str, arch: str, compiler: str = "auto", *, fast_math: bool = False
) -> Cubin:
    """Return the machine code of CUDA C++ text.

    Args:
        source: the text.
        arch: "sm_80", "sm_90a".
        compiler: "auto" (NVRTC, or nvcc where that is missing), "nvrtc" or "nvcc".
        fast_math: whether functions and divisions of float32 may be approximate, denormals 0.

    Raises:
        ToolchainMissing: neither NVRTC nor nvcc is installed (TC306).
        CompileFailed: the compiler rejects the text, or does not know the architecture (TC305).
    """
    library = None if compiler == "nvcc" else load_nvrtc(arch)
    if library is None and compiler == "nvrtc":
        raise ToolchainMissing(tool="NVRTC", purpose="CUDA kernels", hint=HINT)
    compiled = _nvcc if library is None else library.compile
    data, log = compiled(source, arch, (FAST_MATH,) if fast_math else ())
    return Cubin(data, log, parse_log(log))


def parse_log(log: str) -> Mapping[str, Usage]:
    """Return what ptxas said about each kernel."""
    found: dict[str, Usage] = {}
    for part in re.split(r"(?=ptxas info\s*: Compiling entry function)", log):
        name, used, spills = _ENTRY.search(part), _USED.search(part), _SPILLS.search(part)
        if name is not None and used is not None:
            frame, stores, loads = map(int, spills.groups()) if spills else (0, 0, 0)
            found[name.group(1)] = Usage(int(used.group(1)), frame, stores, loads)
    return found


def _wheel_folders() -> Iterator[Path]:
    """Yield the folders of NVIDIA's wheels, which hold ``lib`` and ``include``, newest first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in (spec.submodule_search_locations or ())] if spec is not None else []
    yield from sorted((p for r in roots for p in r.glob("cu[0-9]*")), reverse=True)
    for name in ("cuda_nvrtc", "cuda_runtime"):  # up to CUDA 12
        yield from (r / name for r in roots if (r / name).is_dir())


def _toolkits() -> Iterator[Path]:
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        yield Path(nvcc).resolve().parent.parent
    yield from TOOLKITS


@functools.cache
def include_folder() -> Path:
    """Return the folder of cuda_fp16.h.

    Raises:
        ToolchainMissing: no such file is installed (TC306).
    """
    for root in (*_wheel_folders(), *_toolkits()):
        for folder in (root / "include", root / "targets" / "x86_64-linux" / "include"):
            if (folder / "cuda_fp16.h").is_file():
                return folder
    raise ToolchainMissing(tool="cuda_fp16.h (CUDA's headers)", purpose="CUDA kernels", hint=HINT)


def load_nvrtc(arch: str | None = None) -> Nvrtc | None:
    """Return the newest NVRTC that is installed, or None; wheels go before toolkits.

    Args:
        arch: what it shall know, as an older one may (CUDA 13 dropped sm_70); where none does, the
            newest is returned, which says so.
    """
    return choose_library((_open(path) for path in _libraries()), arch)


def choose_library(libraries: Iterable[Nvrtc], arch: str | None) -> Nvrtc | None:
    """Return the first library that knows ``arch``, else the first of all, or None."""
    first: Nvrtc | None = None
    for library in libraries:
        if arch is None or capability(arch) in library.architectures:
            return library
        first = first or library
    return first


def _libraries() -> Iterator[Path]:
    for root in (*_wheel_folders(), *_toolkits()):
        for folder in (root / "lib", root / "lib64", root / "targets" / "x86_64-linux" / "lib"):
            found = [p for p in folder.glob("libnvrtc.so*") if p.exists()]
            yield from sorted(found, reverse=True)[:1]


@functools.cache
def _open(path: Path) -> Nvrtc:
    return Nvrtc(path)


class Nvrtc:
    """The library; ``version`` is (major, minor), ``architectures`` are 75, 80, ..."""

    def __init__(self, path: Path) -> None:
        for builtins in sorted(path.parent.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)  # NVRTC opens it by name alone
        self._library = ctypes.CDLL(str(path))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        count = ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(known)
        self.architectures = frozenset(known)

    def compile(self, source: str, arch: str, more: Sequence[str] = ()) -> tuple[bytes, str]:
        """Return (cubin, log), ``more`` options given; raises CompileFailed (TC305)."""
        options = [
            f"--gpu-architecture={arch}", *OPTIONS, *more, "-default-device", "-w",
            f"-I{include_folder()}", *([NO_CACHE] if self.version >= CACHES else []),
        ]  # fmt: skip
        program = ctypes.c_void_p()
        lib = self._library
        lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
        try:
            array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
            status = lib.nvrtcCompileProgram(program, len(options), array)
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                lib.nvrtcGetErrorString.restype = ctypes.c_char_p
                reason = log or lib.nvrtcGetErrorString(status).decode()
                raise _rejected("NVRTC", reason, arch)
            return self._read(program, "CUBIN"), log
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: Any, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw


def _nvcc(source: str, arch: str, more: Sequence[str]) -> tuple[bytes, str]:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise ToolchainMissing(tool="NVRTC (or nvcc)", purpose="CUDA kernels", hint=HINT)
    with tempfile.TemporaryDirectory(prefix="tilecore-") as folder:
        text, cubin = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        text.write_text(source, encoding="utf-8")
        command = [
            nvcc,
            "-cubin",
            f"-arch={arch}",
            *OPTIONS,
            *more,
            "-w",
            "-o",
            str(cubin),
            str(text),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=NVCC_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise _rejected("nvcc", done.stderr, arch)
        return cubin.read_bytes(), done.stderr


def _rejected(stage: str, log: str, arch: str) -> CompileFailed:
    is_arch = any(words in log for words in UNKNOWN_ARCH)
    newer = (
        f"CUDA 12 (CUDA 13 dropped it): {OLDER}" if capability(arch) < 75 else "CUDA 12.8 or newer"
    )
    hint = f"this compiler does not know {arch}: install {newer}" if is_arch else ""
    return CompileFailed(stage=f"{stage} ({arch})", detail=log.strip()[:2000], hint=hint)
