"""EmulatedDriver: the runtime's driver on the emulator, for artifacts where there is no GPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tilecore.codegen.cuda import CudaSource
from tilecore.emulator.arguments import MAX_BOX, encode_map
from tilecore.emulator.launch import LATE, EmulatedKernels, Schedule, build
from tilecore.errors import LaunchFailed
from tilecore.gpu_target import capability
from tilecore.ir.dtype import DType
from tilecore.runtime.driver import MapShape, check_capability

RUNNING = threading.Lock()  # a library has one machine, which runs one launch at a time


class EmulatedDriver:
    """Runs the kernels of one source on CPU tensors; takes the place of the CUDA driver.

    Nothing is known about the tensors' bounds, which are not checked.
    """

    device_type = "cpu"

    def __init__(self, source: CudaSource, schedule: Schedule = LATE) -> None:
        self._source, self._schedule = source, schedule
        self.launches = 0

    def check_arch(self, path: Any, arch: str, device: int) -> None:
        """Check that the emulator's device runs the machine code of an architecture.

        Raises:
            ArtifactError: it does not (TC401).
        """
        _ = device
        if arch != self._source.arch:
            check_capability(path, arch, capability(self._source.arch))

    def stream(self, device: int) -> int:
        """Return 0: launches run at once."""
        return 0 * device

    def on(self, device: int) -> None:
        """Return None: every thread launches on the emulator."""

    def load(self, code: bytes) -> EmulatedKernels:
        """Return the source's kernels; the machine code is not looked at."""
        _ = code
        return build(self._source)

    def kernel(
        self, library: EmulatedKernels, name: str, device: int, shared_bytes: int
    ) -> tuple[EmulatedKernels, str]:
        """Return a kernel of the library."""
        _ = device
        if shared_bytes > library.target.shared_per_block:
            raise LaunchFailed(call=name, detail=f"{shared_bytes} bytes of shared memory")
        return library, name

    def encode_map(self, target: int, address: int, shape: MapShape) -> None:
        """Write the emulator's tensor map to ``target``, if the driver would take the arguments."""
        faults = map_faults(target, address, shape)
        if faults:
            raise LaunchFailed(call=f"cuTensorMapEncodeTiled ({shape})", detail="; ".join(faults))
        made = encode_map(
            address, shape.dtype, shape.extents, shape.strides, shape.box, shape.swizzle_bytes
        )
        ctypes.memmove(target, ctypes.addressof(made), ctypes.sizeof(made))

    def launcher(
        self, kernel: tuple[EmulatedKernels, str], grid: Sequence[int], block: Sequence[int],
        cluster: Sequence[int], shared_bytes: int, parameters: int, is_chained: bool = False,
    ) -> Callable[[int], None]:  # fmt: skip
        """Return what runs the kernel; that raises EmulationError (TC307)."""
        _ = is_chained  # each launch ends here before the next one begins
        library, name = kernel

        def launch(stream: int) -> None:
            _ = stream
            with RUNNING:
                self.launches += 1
                library.launch(
                    name, (grid, block, cluster), shared_bytes, ctypes.c_void_p(parameters),
                    self._schedule,
                )  # fmt: skip

        return launch


def map_faults(target: int, address: int, shape: MapShape) -> list[str]:
    """Return what cuTensorMapEncodeTiled would refuse (CUDA driver API 13.0, its requirements)."""
    row = shape.box[0] * DType(shape.dtype).itemsize
    checks = (
        (target % 64 == 0, "a map at a multiple of 64 bytes"),
        (address > 0 and address % 16 == 0, "a tensor at a multiple of 16 bytes"),
        (all(1 <= e <= 1 << 32 for e in shape.extents), "extents of 1 to 2^32"),
        (
            all(s > 0 and s % 16 == 0 and s < 1 << 40 for s in shape.strides),
            "strides of a multiple of 16 bytes, below 2^40",
        ),
        (all(1 <= b <= MAX_BOX for b in shape.box), f"a box of 1 to {MAX_BOX} along each axis"),
        (row % 16 == 0, "rows of a box of a multiple of 16 bytes"),
        (not shape.swizzle_bytes or row <= shape.swizzle_bytes, "rows within the swizzle"),
    )
    return [f"expected {what}" for holds, what in checks if not holds]
