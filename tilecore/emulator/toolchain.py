"""g++ for the emulator: its runtime, compiled once per machine, and kernels against it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tilecore.errors import CompileFailed, ToolchainMissing

RUNTIME = Path(__file__).parent / "runtime"
COMPILER = "g++"
# The sanitizer's calls report every access of a kernel to the runtime (memory.cpp); its library is
# not linked. Scalar replacement would split vectors into elements, whose addresses are all aligned.
KERNEL_OPTIONS = (
    "-std=c++17", "-O1", "-w", "-Wno-psabi", "-fPIC", "-fno-strict-aliasing", "-fno-exceptions",
    "-fno-rtti", "-fno-tree-sra", "-fsanitize=thread", "--param",
    "tsan-instrument-func-entry-exit=0",
)  # fmt: skip
# What else a kernel calls is there with the runtime: nobody need look for it at each kernel.
LINK_OPTIONS = ("-shared", "-nostdlib", "-fno-use-linker-plugin")
RUNTIME_OPTIONS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing")
LIBRARY, HEADER = "libemu.so", "emu.h"
TIMEOUT_S = 300
UNUSED_S = 30 * 86400  # after which the runtime of another version of this package is removed


def run_compiler(*arguments: str) -> None:
    """Run g++.

    Raises:
        ToolchainMissing: it is not installed (TC306).
        CompileFailed: it rejects what it is given (TC305).
    """
    found = shutil.which(COMPILER)
    if found is None:
        raise ToolchainMissing(
            tool=COMPILER, purpose="the emulator", hint="Debian: apt-get install g++"
        )
    done = subprocess.run(
        [found, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise CompileFailed(stage="g++ for the emulator", detail=done.stderr.strip()[:3000])


def cache_folder() -> Path:
    """Return where the compiled runtime is kept."""
    return Path.home() / ".cache" / "tilecore" / "emulator"


@functools.cache
def runtime_folder() -> Path:
    """Return the folder of the compiled runtime and of its precompiled header.

    They are made at the first use on a machine (10 s), by one process while others wait.

    Raises:
        ToolchainMissing: g++ is not installed (TC306).
    """
    headers, sources = sorted(RUNTIME.glob("*.h")), sorted(RUNTIME.glob("*.cpp"))

    def make(folder: Path) -> None:
        for header in headers:
            shutil.copy(header, folder)
        run_compiler(*RUNTIME_OPTIONS, "-o", str(folder / LIBRARY), *map(str, sources))
        header_path = str(folder / HEADER)
        run_compiler(*KERNEL_OPTIONS, "-x", "c++-header", header_path, "-o", f"{header_path}.gch")

    return made_once(digest((*sources, *headers), (*RUNTIME_OPTIONS, *KERNEL_OPTIONS)), make)


def digest(files: Sequence[Path], options: Sequence[str]) -> str:
    """Return what is another one where files or options of the compiler differ (16 hex digits)."""
    code = hashlib.sha256(" ".join(options).encode())
    for file in files:
        code.update(file.read_bytes())
    return code.hexdigest()[:16]


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder ``name`` in the cache, filled by one process while others wait.

    It appears complete or not at all; those that nobody used for long go away.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        with contextlib.suppress(OSError):  # a cache that others own
            os.utime(folder)
        return folder
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fill(folder, make)
    return folder


def _fill(folder: Path, make: Callable[[Path], None]) -> None:
    made = Path(tempfile.mkdtemp(prefix=".staging-", dir=folder.parent))
    try:
        make(made)
        made.rename(folder)
        for other in folder.parent.iterdir():
            if other.is_dir() and time.time() - other.stat().st_mtime > UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)
    finally:
        shutil.rmtree(made, ignore_errors=True)


@functools.cache
def load_runtime() -> ctypes.CDLL:
    """Return the runtime's library; raises ToolchainMissing (TC306)."""
    return ctypes.CDLL(str(runtime_folder() / LIBRARY), mode=ctypes.RTLD_GLOBAL)


@functools.lru_cache(maxsize=1024)
def shared_kernel(text: str) -> ctypes.CDLL:
    """Return the library of a text that keeps nothing from one launch to the next: one for all.

    Raises:
        CompileFailed: g++ rejects the text (TC305).
    """
    return load_kernel(text)


def load_kernel(text: str) -> ctypes.CDLL:
    """Return a library of its own of a kernel's C++ text.

    Raises:
        CompileFailed: g++ rejects the text (TC305).
    """
    load_runtime()
    headers = f"-I{runtime_folder()}"
    with tempfile.TemporaryDirectory(prefix="tilecore-emu-") as folder:
        source, obj, library = (Path(folder) / f"kernel.{e}" for e in ("cpp", "o", "so"))
        source.write_text(text, encoding="utf-8")
        run_compiler(*KERNEL_OPTIONS, "-c", headers, "-o", str(obj), str(source))
        run_compiler(*LINK_OPTIONS, "-o", str(library), str(obj), "-lgcc")
        return ctypes.CDLL(str(library))
