"""On which threads kernels run their grids: torch's, where there is a torch, else their own.

OpenMP's threads spin for some milliseconds after each of torch's operations, and others would run
beside them, two to a core. On torch's threads a kernel waits for nobody, and what follows it in
torch finds them awake.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OPENMP = ("libgomp", "libiomp5", "libomp")  # all have the entries of GNU's
ENTRIES = ("GOMP_parallel", "omp_get_thread_num")
LIMIT = "_ZN2at15get_num_threadsEv"  # at::get_num_threads() in C++: of the calling thread
SLOT, LAUNCH, JOIN = "__TVMBackendParallelLaunch", "tilecore_launch", "tilecore_pool"
JOBS, JOB_BYTES = 4, 64 + 128 * 4  # as in launch.ll
MASK_BYTES = 128  # of CPUs, one bit each
_wanted = [True]  # whether to share torch's
apart = [False]  # whether the last call had arrays of NumPy
_chosen = [False]  # whether somebody has said how many threads kernels use


class Pool(ctypes.Structure):
    """What ``launch.ll`` reads (no ``parallel``: own threads) and keeps of its own threads.

    A launch asks for ``cores`` threads, or less where ``limit`` says so.
    """

    _fields_ = (
        ("parallel", ctypes.c_void_p), ("limit", ctypes.c_void_p), ("cores", ctypes.c_int32),
        ("key", ctypes.c_uint32), ("number", ctypes.c_void_p), ("masks", ctypes.c_void_p),
        ("cpus", ctypes.c_int32), ("own", ctypes.c_int32 * 8),
        ("jobs", ctypes.c_int64 * (JOBS * JOB_BYTES // 8)),
    )  # fmt: skip


@dataclass(slots=True)
class Shared:
    """How torch's OpenMP runtime starts threads, and who says how many torch uses."""

    parallel: int
    number: int | None
    limit: int | None


def join(library: Path, cores: int) -> bool:
    """Let a loaded kernel library run its grids on this process's threads; return whether it can.

    Args:
        library: loaded in this process, and to stay so.
        cores: that kernels use; later ``resize`` says how many.
    """
    handle = ctypes.CDLL(str(library))
    try:
        slot, launch = ctypes.c_void_p.in_dll(handle, SLOT), handle[LAUNCH]
        handle[JOIN](ctypes.byref(_pool()))
    except (AttributeError, ValueError):  # it has no grid
        return False
    _pool().cores = cores
    _meet_torch()
    slot.value = ctypes.cast(launch, ctypes.c_void_p).value
    return True


def resize(cores: int) -> None:
    """Set how many threads kernels use, whatever torch uses."""
    _chosen[:] = [True]
    _pool().cores, _pool().limit = cores, None


def of_torch() -> int | None:
    """Return how many threads torch uses where that is what kernels follow."""
    if _openmp() is None or _chosen[0] or not _pool().limit:
        return None
    count: int = sys.modules["torch"].get_num_threads()
    return count


def share(*, is_shared: bool) -> None:
    """Let kernels run on torch's threads (the default where torch is), or on their own."""
    _wanted[:] = [is_shared]
    _meet_torch()


def follow(*, of_numpy: bool) -> None:
    """Choose the threads for calls with arrays of NumPy, or with tensors of torch.

    The threads of NumPy's BLAS spin for many milliseconds and would keep torch's from their cores.
    """
    apart[:] = [of_numpy]
    _meet_torch()


def is_shared() -> bool:
    """Return whether kernels run on torch's threads, given tensors of torch."""
    return _wanted[0] and _openmp() is not None


def pin(cpus: Sequence[int]) -> None:
    """Let own threads that are not started yet stay on CPUs, in turn, the first one for callers."""
    pool, memory = _pool(), _lasting(len(cpus) * MASK_BYTES)
    for i, cpu in enumerate(cpus):
        mask = (1 << cpu).to_bytes(MASK_BYTES, "little")
        ctypes.memmove(memory + i * MASK_BYTES, mask, MASK_BYTES)
    pool.masks, pool.cpus = memory, len(cpus)


def forget() -> None:
    """Begin anew in a process that was forked: it has none of its parent's threads."""
    own = Pool.own.offset
    ctypes.memset(ctypes.addressof(_pool()) + own, 0, ctypes.sizeof(Pool) - own)
    share(is_shared=False)


def _meet_torch() -> None:
    found, pool = _openmp(), _pool()
    if found is not None:
        is_shared = _wanted[0] and not apart[0]
        pool.parallel, pool.number = (found.parallel if is_shared else None), found.number
        pool.limit = None if _chosen[0] else found.limit


@functools.cache
def _pool() -> Pool:
    """Return what all kernels share; threads look at it until the process has ended."""
    pool = Pool.from_address(_lasting(ctypes.sizeof(Pool)))
    pool.cores, pool.key = 1, _key()
    return pool


def _lasting(size_bytes: int) -> int:
    """Return the address of cleared memory that stays to the end of the process."""
    calloc = ctypes.CDLL(None).calloc
    calloc.restype = ctypes.c_void_p
    address: int = calloc(1, size_bytes)
    return address


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


def _openmp() -> Shared | None:
    return _openmp_of_torch() if _has_torch() else None


@functools.cache
def _openmp_of_torch() -> Shared | None:
    """Return the threads of torch's OpenMP runtime; None: it has none."""
    for path in _runtimes():
        library = ctypes.CDLL(str(path))
        try:
            entries = [ctypes.cast(library[name], ctypes.c_void_p).value for name in ENTRIES]
        except AttributeError:
            continue
        parallel, number = entries
        if parallel is not None:
            return Shared(parallel, number, _limit())
    return None


def _runtimes() -> Iterator[Path]:
    """Yield the OpenMP runtimes of this process, those that come with torch first."""
    maps = Path("/proc/self/maps")
    lines = os.fsdecode(maps.read_bytes()).splitlines() if maps.exists() else []
    paths = {Path(line[line.index("/") :]) for line in lines if "/" in line}
    found = sorted(p for p in paths if p.name.startswith(OPENMP))
    home = str(Path(getattr(sys.modules.get("torch"), "__file__", None) or "/").parent)
    yield from sorted(found, key=lambda p: not str(p).startswith(home))
