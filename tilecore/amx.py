"""Leave to use the tiles of AMX: Linux asks every process for it once (arch_prctl(2))."""

from __future__ import annotations

import ctypes
import functools
import platform

ARCH_PRCTL = 158  # the call's number on x86-64
GET_SUPPORTED, REQUEST = 0x1021, 0x1023  # ARCH_GET_XCOMP_SUPP, ARCH_REQ_XCOMP_PERM
TILE_DATA = 18  # XFEATURE_XTILEDATA


@functools.cache
def is_available() -> bool:
    """Return whether processor and kernel have tiles that processes may ask for."""
    supported = ctypes.c_uint64(0)
    done = _arch_prctl(GET_SUPPORTED, ctypes.byref(supported))
    return done and bool(supported.value >> TILE_DATA & 1)


@functools.cache
def request() -> bool:
    """Ask for this process's leave to use tiles; return whether it was given."""
    return is_available() and _arch_prctl(REQUEST, ctypes.c_ulong(TILE_DATA))


def _arch_prctl(code: int, argument: object) -> bool:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return bool(call(ctypes.c_long(ARCH_PRCTL), ctypes.c_long(code), argument) == 0)
