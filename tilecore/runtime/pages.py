"""Large pages for outputs: C's allocator takes large ones from the system anew for each call.

The system gives such memory page by page when it is first written, and 4 KiB at a time that takes
longer than most kernels do. NumPy asks the same for its arrays; torch does not.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable
from typing import Any

FRESH_BYTES = 32 << 20  # glibc hands out no memory of this size again, whatever was freed


def ask_for_large(tensor: Any) -> None:
    """Have the system give memory of a tensor of torch, on the CPU, in pages as large as it can.

    It is free not to, and there is nothing to do where it has none.
    """
    size_bytes: int = tensor.nbytes
    advise = _advise()
    if advise is None or size_bytes < FRESH_BYTES:
        return
    first: int = tensor.data_ptr()
    begin = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    advise(begin, (first + size_bytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE)


@functools.cache
def _advise() -> Callable[[int, int], int] | None:
    """Return what tells the system of memory, by address and size; None: it has no such pages."""
    wanted = getattr(mmap, "MADV_HUGEPAGE", None)
    if wanted is None:
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return lambda address, size_bytes: int(madvise(address, size_bytes, wanted))
