"""Pinning: each thread that kernels have of their own on a core of its own.

Left alone, they meet on a core while another one has nothing to do, or on two hyperthreads of one.
"""

from __future__ import annotations

import os

from workers.host import one_per_core


def set_threads(threads: int) -> None:
    """Set the number of cores that the runtime's parallel loops use in this process.

    They are threads of their own, each on a core of its own: those of torch's reference spin, and
    lose the core to whatever else a busy machine runs. The calling thread takes part, on whichever
    of the cores is free: what it starts later (torch's threads) may use all of them.
    """
    from tilecore.runtime import pin_own_threads, set_num_threads, share_threads

    share_threads(False)
    set_num_threads(threads)
    pin_own_threads(one_per_core(os.sched_getaffinity(0)))
