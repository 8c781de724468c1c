"""TVM's runtime library in this process: found without importing TVM, loaded once."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

from tilecore.errors import ArtifactError, ToolchainMissing

SPIN, THREADS = b"TVM_THREAD_POOL_SPIN_COUNT", b"TVM_NUM_THREADS"


@functools.cache
def runtime_api() -> Any:
    """Return tvm_ffi after TVM's runtime library was loaded.

    The workers of TVM's thread pool sleep instead of spinning unless the user's environment says
    otherwise: spinning ones slow torch's pool (and torch's slow ours) by 2-5x.
    Source: shared/research/cpu-lowering.md section 6, measured. The pool has one thread per usable
    core; left alone TVM takes half of them, assuming hyperthreads.
    """
    libc = ctypes.CDLL(None)
    libc.setenv(SPIN, b"0", 0)
    libc.setenv(THREADS, str(len(os.sched_getaffinity(0))).encode(), 0)
    spec = importlib.util.find_spec("tvm")
    if spec is None or spec.origin is None:
        raise ToolchainMissing(tool="libtvm_runtime (package apache-tvm)", purpose="CPU kernels")
    library = Path(spec.origin).parent / "lib" / "libtvm_runtime.so"
    if not library.is_file():
        raise ToolchainMissing(tool=str(library.name), purpose="CPU kernels")
    import tvm_ffi

    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    return tvm_ffi


def load_library(path: Path, entry: str) -> tuple[Any, Any]:
    """Return (module, function) of a kernel library; the module must outlive the function.

    Raises:
        ArtifactError: the library cannot be loaded or lacks the function (TC401).
    """
    api = runtime_api()
    try:
        module = api.load_module(str(path))
        return module, module[entry]
    except (RuntimeError, AttributeError, OSError) as error:
        raise ArtifactError(path=path, reason=str(error).splitlines()[-1]) from error


def set_num_threads(threads: int) -> None:
    """Let parallel loops of all kernels in this process use ``threads`` cores."""
    if threads < 1:
        raise ValueError(f"expected at least 1 thread, found {threads}")
    runtime_api().get_global_func("runtime.config_threadpool")(1, threads)


def num_threads() -> int:
    """Return how many cores parallel loops use."""
    return int(runtime_api().get_global_func("runtime.NumThreads")())
