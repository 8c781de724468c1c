"""On which threads kernels run their grids: torch's, where there is a torch, else TVM's.

OpenMP's threads spin for some milliseconds after each of torch's operations, and TVM's would run
beside them, two to a core. On torch's threads a kernel waits for nobody, and what follows it in
torch finds them awake.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPENMP = ("libgomp", "libiomp5", "libomp")  # all have the entries of GNU's
ENTRIES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
LIMIT = "_ZN2at15get_num_threadsEv"  # at::get_num_threads() in C++: of the calling thread
_wanted = [True]  # whether to share them
_chosen = [False]  # whether somebody has said how many threads kernels use
SLOT, LAUNCH, JOIN = "__TVMBackendParallelLaunch", "tilecore_launch", "tilecore_join"


class Pool(ctypes.Structure):
    """What ``launch.ll`` calls (no ``parallel``: TVM's launch) and how many threads it asks for.

    That is ``cores``, or less where ``limit`` says so.
    """

    _fields_ = (
        ("parallel", ctypes.c_void_p), ("thread_number", ctypes.c_void_p),
        ("team_size", ctypes.c_void_p), ("own", ctypes.c_void_p), ("cores", ctypes.c_int32),
        ("limit", ctypes.c_void_p), ("key", ctypes.c_uint32),
    )  # fmt: skip


_ALONE = Pool(None, None, None, None, 1, None, 0)  # without torch: TVM's launch, how many threads


@dataclass(slots=True)
class Shared:
    """Threads of an OpenMP runtime, and how it starts them."""

    pool: Pool
    parallel: int


def join(library: Path, cores: int) -> bool:
    """Let a loaded kernel library run its grids on torch's threads; return whether it can.

    Where it cannot, it is told how many threads of TVM's there are.

    Args:
        library: loaded in this process, and to stay so.
        cores: that kernels use; later ``resize`` says how many.
    """
    found = _openmp() if _has_torch() else None
    handle = ctypes.CDLL(str(library))
    _ALONE.key = _key()
    try:
        slot, launch = ctypes.c_void_p.in_dll(handle, SLOT), handle[LAUNCH]
        handle[JOIN](ctypes.byref(_ALONE if found is None else found.pool))
    except (AttributeError, ValueError):  # it has no grid
        return False
    if found is None:
        _ALONE.cores = cores
        return False
    address = ctypes.cast(launch, ctypes.c_void_p).value
    if slot.value != address:
        found.pool.own, found.pool.cores, slot.value = slot.value, cores, address
    return True


def resize(cores: int) -> None:
    """Set how many threads kernels use, whatever torch uses."""
    _ALONE.cores, _chosen[:] = cores, [True]
    found = _openmp() if _has_torch() else None
    if found is not None:
        found.pool.cores, found.pool.limit = cores, None


def of_torch() -> int | None:
    """Return how many threads torch uses where that is what kernels follow."""
    found = _openmp() if _has_torch() else None
    if found is None or not found.pool.limit:
        return None
    count: int = sys.modules["torch"].get_num_threads()
    return count


def share(*, is_shared: bool) -> None:
    """Let kernels run on torch's threads (the default where torch is), or on TVM's."""
    _wanted[:] = [is_shared]
    found = _openmp() if _has_torch() else None
    if found is not None:
        found.pool.parallel = found.parallel if is_shared else None


def is_shared() -> bool:
    """Return whether kernels run on torch's threads."""
    found = _openmp() if _has_torch() else None
    return found is not None and found.pool.parallel is not None


def _has_torch() -> bool:
    return hasattr(sys.modules.get("torch"), "Tensor")  # it may be on its way


def _limit() -> int | None:
    """Return the address of torch's function that tells how many threads it uses."""
    path = Path(sys.modules["torch"].__file__ or "").parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.cast(ctypes.CDLL(str(path))[LIMIT], ctypes.c_void_p).value
    except (OSError, AttributeError):  # a build of another shape
        return None


@functools.cache
def _key() -> int:
    """Return the key under which each thread keeps how many threads its next launch is worth.

    Raises:
        OSError: the process has no key left.
    """
    key = ctypes.c_uint32()
    code = ctypes.CDLL(None).pthread_key_create(ctypes.byref(key), None)
    if code:
        raise OSError(code, "pthread_key_create")
    return key.value


@functools.cache
def _openmp() -> Shared | None:
    """Return the threads of torch's OpenMP runtime; None: it has none.

    It is asked for once torch is there.
    """
    for path in _runtimes():
        library = ctypes.CDLL(str(path))
        try:
            entries = [ctypes.cast(library[name], ctypes.c_void_p).value for name in ENTRIES]
        except AttributeError:
            continue
        parallel, number, size = entries
        if parallel is not None:
            limit = None if _chosen[0] else _limit()
            pool = Pool(parallel if _wanted[0] else None, number, size, None, 1, limit, _key())
            return Shared(pool, parallel)
    return None


def _runtimes() -> Iterator[Path]:
    """Yield the OpenMP runtimes of this process, those that come with torch first."""
    maps = Path("/proc/self/maps")
    lines = os.fsdecode(maps.read_bytes()).splitlines() if maps.exists() else []
    paths = {Path(line[line.index("/") :]) for line in lines if "/" in line}
    found = sorted(p for p in paths if p.name.startswith(OPENMP))
    home = str(Path(getattr(sys.modules.get("torch"), "__file__", None) or "/").parent)
    yield from sorted(found, key=lambda p: not str(p).startswith(home))
