"""g++ for the emulator: its runtime, compiled once per machine, and kernels against it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tilecore.errors import CompileFailed, ToolchainMissing

RUNTIME = Path(__file__).parent / "runtime"
COMPILER = "g++"
# The sanitizer's calls report every access of a kernel to the runtime (memory.cpp); its library is
# not linked.
KERNEL_OPTIONS = (
    "-std=c++17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-fno-exceptions", "-fno-rtti",
    "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0",
)  # fmt: skip
RUNTIME_OPTIONS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing")
TIMEOUT_S = 300


def _compiler() -> str:
    found = shutil.which(COMPILER)
    if found is None:
        raise ToolchainMissing(
            tool=COMPILER, purpose="the CUDA emulator", hint="Debian: apt-get install g++"
        )
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise CompileFailed(stage="g++ for the emulator", detail=done.stderr.strip()[:3000])


def cache_folder() -> Path:
    """Return where the compiled runtime is kept."""
    return Path.home() / ".cache" / "tilecore" / "emulator"


@functools.cache
def load_runtime() -> ctypes.CDLL:
    """Return the runtime, which is compiled at the first use on a machine (some seconds).

    Raises:
        ToolchainMissing: g++ is not installed (TC306).
    """
    sources = sorted(RUNTIME.glob("*.cpp"))
    code = hashlib.sha256(" ".join(RUNTIME_OPTIONS).encode())
    for file in (*sources, *sorted(RUNTIME.glob("*.h"))):
        code.update(file.read_bytes())
    path = cache_folder() / f"libemu-{code.hexdigest()[:16]}.so"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(suffix=".so", dir=path.parent)
        os.close(handle)
        _run([_compiler(), *RUNTIME_OPTIONS, "-o", made, *map(str, sources)])
        Path(made).rename(path)
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def load_kernel(text: str) -> ctypes.CDLL:
    """Return the library of a kernel's C++ text.

    Raises:
        CompileFailed: g++ rejects the text (TC305).
    """
    load_runtime()
    with tempfile.TemporaryDirectory(prefix="tilecore-emu-") as folder:
        source, obj, library = (Path(folder) / f"kernel.{e}" for e in ("cpp", "o", "so"))
        source.write_text(text)
        _run([_compiler(), *KERNEL_OPTIONS, "-c", f"-I{RUNTIME}", "-o", str(obj), str(source)])
        _run([_compiler(), "-shared", "-o", str(library), str(obj)])
        return ctypes.CDLL(str(library))
