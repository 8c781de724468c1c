"""The HIP runtime as ``CudaKernel`` needs it: the library that torch for ROCm has loaded.

A process must not have two of them, so the one that torch brought comes first. Modules belong to a
device. Source: HIP 6.4, hip_runtime_api.h. It has run on no AMD device yet, only on a library that
notes what it is asked for (tests/tilecore/rocm/test_driver.py).
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilecore.errors import ArtifactError, LaunchFailed, ToolchainMissing
from tilecore.runtime.driver import MapShape, TorchDevices

LIBRARY = "libamdhip64.so"
HINT = (
    'install torch for ROCm on a machine with an AMD GPU, or compile for target="llvm";'
    " without a device `kernel.emulated()` takes CPU tensors"
)
MOST_THREADS = 1 << 32  # along an axis of a grid (hipModuleLaunchKernel)
MAPS = Path("/proc/self/maps")


@dataclass(slots=True)
class Modules:
    """A code object, and the module that each device made of it."""

    code: bytes
    of_device: dict[int, ctypes.c_void_p] = field(default_factory=dict)


class HipDriver(TorchDevices):
    """The HIP runtime of this process.

    Args:
        api: the library, found where it is not given.
        torch: the module, which knows devices and streams.

    Raises:
        ToolchainMissing: torch is not one for ROCm, or finds no device or library (TC306).
    """

    def __init__(self, api: Any = None, torch: Any = None) -> None:
        try:
            torch = torch or importlib.import_module("torch")
        except ImportError as error:
            raise _missing("torch") from error
        if torch.version.hip is None or not torch.cuda.is_available():
            raise _missing("a device of torch for ROCm")
        super().__init__(torch)
        self._api: Any = api or _library(torch)
        self._api.hipGetErrorString.restype = ctypes.c_char_p
        self._api.hipModuleLaunchKernel.argtypes = [
            ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3,
        ]  # fmt: skip

    def check_arch(self, path: Any, arch: str, device: int) -> None:
        """Check that a device runs the machine code of an architecture.

        Raises:
            ArtifactError: it does not (TC401).
        """
        found = str(self._torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
        if found != arch:
            raise ArtifactError(
                path=path, reason=f"compiled for {arch}, the device has {found}",
                hint=f'compile it for target "{found}"',
            )  # fmt: skip

    def load(self, code: bytes) -> Modules:
        """Return a code object of kernels, which devices load when they are asked for one."""
        return Modules(code)

    def kernel(self, library: Modules, name: str, device: int, shared_bytes: int) -> Any:
        """Return a kernel on a device; how much shared memory it has is in its code."""
        _ = shared_bytes
        with self._torch.cuda.device(device):
            if device not in library.of_device:
                module = ctypes.c_void_p()
                self._done("hipModuleLoadData", ctypes.byref(module), library.code)
                library.of_device[device] = module
            found = ctypes.c_void_p()
            module = library.of_device[device]
            self._done("hipModuleGetFunction", ctypes.byref(found), module, name.encode())
        return found

    def encode_map(self, target: int, address: int, shape: MapShape) -> None:
        """Raise LaunchFailed (TC405): no kernel of an AMD GPU takes a tensor map."""
        raise LaunchFailed(call="a tensor map", detail=f"AMD GPUs have none ({shape} at {address})")

    def launcher(
        self, kernel: Any, grid: Sequence[int], block: Sequence[int], cluster: Sequence[int],
        shared_bytes: int, parameters: int, is_chained: bool = False,
    ) -> Callable[[int], None]:  # fmt: skip
        """Return what launches a kernel on a stream, which it is given."""
        # No program for an AMD GPU has clusters or chains; its code says how much is shared.
        _ = cluster, shared_bytes, is_chained
        call = "hipModuleLaunchKernel"
        if any(
            blocks * threads >= MOST_THREADS for blocks, threads in zip(grid, block, strict=True)
        ):
            detail = (
                f"{tuple(grid)} blocks of {tuple(block)}: expected fewer than 2^32 threads an axis"
            )
            raise LaunchFailed(call=call, detail=detail)
        start = functools.partial(self._api.hipModuleLaunchKernel, kernel, *grid, *block, 0)

        def launch(stream: int) -> None:
            status = start(stream, parameters, None)
            if status:
                self._fail(call, status)

        return launch

    def _done(self, call: str, *arguments: Any) -> None:
        status = getattr(self._api, call)(*arguments)
        if status:
            self._fail(call, status)

    def _fail(self, call: str, status: int) -> None:
        text = (self._api.hipGetErrorString(status) or b"").decode()
        raise LaunchFailed(call=call, detail=f"hipError {status}: {text}")


def _missing(tool: str) -> ToolchainMissing:
    return ToolchainMissing(tool=tool, purpose="running kernels of AMD GPUs", hint=HINT)


def _library(torch: Any) -> Any:
    """Return the HIP runtime: torch's where that is loaded or beside it, else the system's.

    Raises:
        ToolchainMissing: there is none (TC306).
    """
    loaded = re.search(rf"\S+/{re.escape(LIBRARY)}\S*", os.fsdecode(MAPS.read_bytes()))
    beside = Path(torch.__file__).parent / "lib" / LIBRARY
    for place in ([loaded[0]] if loaded else []) + ([str(beside)] if beside.exists() else []):
        return ctypes.CDLL(place)
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise _missing(LIBRARY) from error
