"""Pinning: each thread of TVM's pool on a core of its own, of those that this process may use.

Left alone, TVM binds its threads to the CPUs 0, 1, 2, ..., and its caller to all of these: also to
those that the process may not use (``taskset``), and to two that are one core's hyperthreads.
"""

from __future__ import annotations

from collections.abc import Iterable

from workers.host import one_per_core

# threading::ThreadGroup::AffinityMode of TVM: kSpecifyOneCorePerThread
ONE_CORE_PER_THREAD = -2


def pin_threads(threads: int, usable: Iterable[int]) -> None:
    """Let TVM's loops use so many threads of this process, each on a core of its own.

    The calling thread takes part, on whichever of the cores is free: what it starts later (torch's
    threads) may use all of them.

    Args:
        threads: of the pool that take part.
        usable: logical CPUs that the process may run on.
    """
    import tvm_ffi

    cpus = [str(cpu) for cpu in one_per_core(usable)]
    tvm_ffi.get_global_func("runtime.config_threadpool")(ONE_CORE_PER_THREAD, threads, cpus)
