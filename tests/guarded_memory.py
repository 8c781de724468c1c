"""A plugin of pytest: kernels for CPUs get tensors in memory that ends where they do.

    make guarded    # python -m pytest -p tests.guarded_memory tests/tilecore

Arguments of torch and NumPy are copied next to pages that nobody may touch, behind them and before
them in turn, and back after the call: what a kernel reads or writes outside of a tensor ends the
process (pytest-xdist tells during which test). Arguments that share memory stay where they are.
Memory that a kernel takes for its tiles ends there too, and is all ones (NaN) at first.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import mmap
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilecore.runtime import kernel, library
from tilecore.runtime.kernel import LoadedKernel

PAGE = mmap.PAGESIZE
MOST_BYTES = 1 << 28  # of an argument that is copied
WORKSPACE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, LINE = 64 };

struct head { uint64_t data, bytes; };  /* in a page of its own, before that of the guard */

void *guarded_alloc(int device, int number, uint64_t bytes, int code, int bits) {
  uint64_t lines = (bytes + (bytes == 0) + LINE - 1) / LINE * LINE;
  uint64_t data = (lines + PAGE - 1) / PAGE * PAGE;
  char *all = mmap(0, data + 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return 0;
  *(struct head *)all = (struct head){data, bytes};
  memset(all + 2 * PAGE, 0xff, data);
  mprotect(all + PAGE, PAGE, PROT_NONE);
  mprotect(all + 2 * PAGE + data, PAGE, PROT_NONE);
  return all + 2 * PAGE + data - lines;
}

int guarded_free(int device, int number, void *memory) {
  char *all = (char *)((uintptr_t)memory / PAGE * PAGE) - 2 * PAGE;
  struct head head = *(struct head *)all;
  for (unsigned char *end = (unsigned char *)memory + head.bytes; (uintptr_t)end % LINE; ++end)
    if (*end != 0xff) abort();  /* written behind the end, within its line */
  return munmap(all, head.data + 3 * PAGE);
}
"""
SLOTS = {
    "__TVMBackendAllocWorkspace": "guarded_alloc", "__TVMBackendFreeWorkspace": "guarded_free",
}  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)
_turn = itertools.count()


class Guarded:
    """Memory between two pages that nobody may touch."""

    def __init__(self, size_bytes: int, *, at_end: bool) -> None:
        pages = -(-size_bytes // PAGE) * PAGE
        self._map = mmap.mmap(-1, pages + 2 * PAGE)
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for page in (0, PAGE + pages):
            self._protect(page, 0)
        start = PAGE + (pages - size_bytes if at_end else 0)
        self.bytes = np.frombuffer(self._map, np.uint8, size_bytes, start)
        self._pages = pages

    def _protect(self, page: int, rights: int) -> None:
        code = _libc.mprotect(ctypes.c_void_p(self._first + page), PAGE, rights)
        assert code == 0, ctypes.get_errno()


def _span(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return the bytes that an array lies in; None: there are none, or too many to copy."""
    low, high = np.lib.array_utils.byte_bounds(array)
    size = high - low
    is_odd = array.ctypes.data % array.itemsize  # a kernel is to refuse it
    if not array.size or size > MOST_BYTES or is_odd:
        return None
    return np.frombuffer((ctypes.c_uint8 * size).from_address(low), np.uint8)


def _array(argument: Any) -> np.ndarray[Any, Any] | None:
    """Return an argument's elements as an array of NumPy; None: it is not on the CPU."""
    if isinstance(argument, np.ndarray):
        return argument
    torch = sys.modules.get("torch")
    if torch is None or type(argument) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if argument.device.type != "cpu" or argument.layout is not torch.strided:
        return None
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    kind = kinds.get(argument.element_size())
    if kind is None:
        return None
    found: np.ndarray[Any, Any] = argument.detach().view(kind).numpy()
    return found


def _moved(argument: Any, array: np.ndarray[Any, Any], memory: Guarded) -> Any:
    """Return an argument as it is, in other memory."""
    low, _ = np.lib.array_utils.byte_bounds(array)
    offset = array.ctypes.data - low
    there = np.ndarray(array.shape, array.dtype, memory.bytes, offset, array.strides)
    if isinstance(argument, np.ndarray):
        there.flags.writeable = argument.flags.writeable
        return there
    import torch

    return torch.from_numpy(there).view(argument.dtype)


def _overlap(spans: Sequence[np.ndarray[Any, Any]]) -> bool:
    ends = sorted((s.ctypes.data, s.ctypes.data + s.size) for s in spans)
    return any(a[1] > b[0] for a, b in itertools.pairwise(ends))


def _guarded(arguments: Sequence[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield each argument as the kernel gets it, its bytes and those of the copy, if it has one."""
    arrays = [_array(a) for a in arguments]
    spans = [None if a is None else _span(a) for a in arrays]
    if _overlap([s for s in spans if s is not None]):
        spans = [None] * len(spans)
    at_end = next(_turn) % 2 == 0
    for argument, array, span in zip(arguments, arrays, spans, strict=True):
        if array is None or span is None:
            yield argument, None, None
            continue
        memory = Guarded(span.size, at_end=at_end)
        memory.bytes[:] = span
        yield _moved(argument, array, memory), span, memory.bytes


_call = LoadedKernel.__call__


def _guarded_call(self: LoadedKernel, *arguments: Any) -> None:
    moved = list(_guarded(arguments))
    try:
        _call(self, *(argument for argument, _, _ in moved))
    finally:
        for argument, span, memory in moved:
            is_open = not isinstance(argument, np.ndarray) or argument.flags.writeable
            if span is not None and is_open:
                span[:] = memory


@functools.cache
def _workspace() -> ctypes.CDLL:
    """Return the functions that take and free the memory of tiles."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "workspace.so"
        command = ["cc", "-O1", "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
        subprocess.run(command, input=WORKSPACE.encode(), check=True)
        return ctypes.CDLL(str(made))


_join = library.join_threads


def _guarded_join(path: Path) -> None:
    _join(path)
    loaded, functions = ctypes.CDLL(str(path)), _workspace()
    for slot, function in SLOTS.items():
        with contextlib.suppress(ValueError):  # it takes no memory
            address = ctypes.cast(functions[function], ctypes.c_void_p).value
            ctypes.c_void_p.in_dll(loaded, slot).value = address


def pytest_configure() -> None:
    LoadedKernel.__call__ = _guarded_call  # type: ignore[method-assign]
    kernel.join_threads = _guarded_join
