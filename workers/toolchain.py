"""The toolchain that makes the code, described without loading it."""

from __future__ import annotations

from recommender.measurement import Toolchain
from tilecore.artifact import compiler_versions


def current_toolchain() -> Toolchain:
    """Return versions and the digest of tilecore's own source; imports no TVM.

    TVM's wheel brings its LLVM along, so the wheel's version names both. ``Toolchain.on`` says what
    of it makes code for a device.
    """
    found = compiler_versions()
    return Toolchain(
        tilecore=found["tilecore"],
        tvm=f"{found['tvm']} (ffi {found['tvm_ffi']})",
        llvm=f"of apache-tvm {found['tvm']}",
        nvrtc=found["nvrtc"],
    )
