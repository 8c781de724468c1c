"""TVM's runtime library in this process: found without importing TVM, loaded once."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilecore.errors import ArtifactError, ToolchainMissing
from tilecore.runtime import threads

HINT = "install it: `make venv`, or pip install apache-tvm"
_asked: list[int] = []  # threads, once somebody has said how many


@functools.cache
def runtime_api() -> Any:
    """Return tvm_ffi after TVM's runtime library was loaded."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or spec.origin is None:
        raise ToolchainMissing(
            tool="libtvm_runtime (package apache-tvm)", purpose="CPU kernels", hint=HINT
        )
    library = Path(spec.origin).parent / "lib" / "libtvm_runtime.so"
    if not library.is_file():
        raise ToolchainMissing(tool=str(library.name), purpose="CPU kernels", hint=HINT)
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
        # TVM takes UTF-8; Python spells a name in other ways where the locale has another encoding.
        module = api.load_module(os.fsencode(path).decode())
        return module, module[entry]
    except (RuntimeError, AttributeError, OSError, UnicodeDecodeError) as error:
        raise ArtifactError(path=path, reason=str(error).splitlines()[-1]) from error


def join_threads(library: Path) -> None:
    """Let a loaded library run its grids on this process's threads, and know how many."""
    if threads.join(library, _most()):
        _fork_apart()


def share_threads(is_shared: bool) -> None:
    """Let kernels run on torch's threads (the default where torch is), or on their own.

    Without torch there is nothing to share.
    """
    threads.share(is_shared=is_shared)


def set_num_threads(count: int) -> None:
    """Let parallel loops of all kernels in this process use ``count`` cores, all if it has less.

    Otherwise they use as many as torch's operations do (``torch.set_num_threads``), or without
    torch as OMP_NUM_THREADS says, or all that the process may use.
    """
    if count < 1:
        raise ValueError(f"expected at least 1 thread, found {count}")
    _asked[:] = [count]
    threads.resize(num_threads())


def pin_own_threads(cpus: Sequence[int]) -> None:
    """Let kernels' own threads that start from now on stay on a CPU each, in turn.

    From now on no launch goes to other threads because one had to be waited for.

    Args:
        cpus: logical CPUs; the first one is left to the calling thread, which is not pinned.
    """
    threads.pin(cpus)


def num_threads() -> int:
    """Return how many cores parallel loops use."""
    most = _most()
    return min(most, threads.of_torch() or most)


def _most() -> int:
    """Return how many cores they use where torch asks for no fewer."""
    cores = len(os.sched_getaffinity(0))
    if _asked:
        return min(_asked[0], cores)
    return cores if threads.of_torch() else min(_of_environment() or cores, cores)


def _of_environment() -> int | None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    asked = getenv(b"OMP_NUM_THREADS") or b""
    return int(asked) if asked.isdigit() else None


@functools.cache
def _fork_apart() -> None:
    """Let children that are forked start threads of their own."""
    os.register_at_fork(after_in_child=threads.forget)
