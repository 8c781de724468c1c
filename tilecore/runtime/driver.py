"""The CUDA driver as the runtime needs it, through cuda-bindings; tests put another one in."""

from __future__ import annotations

import ctypes
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tilecore.errors import ArtifactError, LaunchFailed, ToolchainMissing

HINT = (
    "pip install cuda-bindings (torch for CUDA brings it), on a machine with NVIDIA's driver;"
    " without one `kernel.emulated()` takes CPU tensors"
)
# CUtensorMap of CUDA 13's cuda.h; the driver asks for a multiple of 64 bytes.
MAP_BYTES, MAP_ALIGNMENT = 128, 128
MAP_AXES = 5
ENCODE_TILED, ENCODE_VERSION = b"cuTensorMapEncodeTiled", 12000
# Names of CUtensorMapDataType behind CU_TENSOR_MAP_DATA_TYPE_.
MAP_TYPES = {
    "float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT32", "float64": "FLOAT64",
    "int8": "UINT8", "uint8": "UINT8", "float8_e4m3fn": "UINT8", "float8_e5m2": "UINT8",
    "bool": "UINT8", "int16": "UINT16", "uint16": "UINT16", "int32": "INT32", "uint32": "UINT32",
    "int64": "INT64", "uint64": "UINT64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MapShape:
    """What a tensor map says, innermost axis first; strides in bytes, without the innermost."""

    dtype: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int


class Driver(Protocol):
    """Loads machine code and launches kernels."""

    device_type: str  # of the tensors it takes, as torch names it

    def check_arch(self, path: Any, arch: str, device: int) -> None:
        """Check that a device runs the machine code of an architecture.

        Raises:
            ArtifactError: it does not (TC401).
        """

    def stream(self, device: int) -> int:
        """Return the handle of torch's current stream."""

    def on(self, device: int) -> AbstractContextManager[Any] | None:
        """Return a context in which this thread launches on a device, None where it does now."""

    def load(self, code: bytes) -> Any:
        """Return a library of the kernels in machine code."""

    def kernel(self, library: Any, name: str, device: int, shared_bytes: int) -> Any:
        """Return a kernel that may be launched with that much dynamic shared memory."""

    def encode_map(self, target: int, address: int, shape: MapShape) -> None:
        """Write the tensor map of a tensor at ``address`` to host memory at ``target``."""

    def launcher(
        self, kernel: Any, grid: Sequence[int], block: Sequence[int], cluster: Sequence[int],
        shared_bytes: int, parameters: int, is_chained: bool,
    ) -> Callable[[int], None]:  # fmt: skip
        """Return what launches a kernel on a stream, which it is given.

        ``parameters`` is the address of an array of addresses, read at each launch;
        ``is_chained``: it may begin before the launches before have ended.
        """


class TorchDevices:
    """Devices and streams as torch has them, for NVIDIA's GPUs and AMD's alike."""

    device_type = "cuda"

    def __init__(self, torch: Any) -> None:
        self._torch: Any = torch
        torch.cuda.init()
        inner = getattr(torch, "_C", None)
        self.stream: Callable[[int], int] = (
            getattr(inner, "_cuda_getCurrentRawStream", None) or self._stream
        )
        self._device: Any = getattr(inner, "_cuda_getDevice", None) or torch.cuda.current_device

    def _stream(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    def on(self, device: int) -> AbstractContextManager[Any] | None:
        """Return a context in which this thread launches on a device, None where it does now."""
        if self._device() == device:
            return None
        found: AbstractContextManager[Any] = self._torch.cuda.device(device)
        return found


class _Thread(threading.local):
    has_context = False


class CudaDriver(TorchDevices):
    """The driver of this machine.

    Args:
        api: cuda.bindings.driver, imported where it is not given.
        torch: the module, which knows devices and streams.

    Raises:
        ToolchainMissing: cuda-bindings or the driver is not installed (TC306).
    """

    def __init__(self, api: Any = None, torch: Any = None) -> None:
        try:
            self._api: Any = api or importlib.import_module("cuda.bindings.driver")
            torch = torch or importlib.import_module("torch")
        except ImportError as error:
            raise ToolchainMissing(
                tool=str(error.name), purpose="running CUDA kernels", hint=HINT
            ) from error
        if not torch.cuda.is_available():
            raise ToolchainMissing(tool="a CUDA device", purpose="CUDA kernels", hint=HINT)
        super().__init__(torch)
        self._thread = _Thread()
        self._encode: Any = None

    def on(self, device: int) -> AbstractContextManager[Any] | None:
        """Return a context in which this thread launches on a device, None where it does now."""
        if not self._thread.has_context:
            self._enter_context(device)
            self._thread.has_context = True
        return super().on(device)

    def _enter_context(self, device: int) -> None:
        """Give this thread the device's primary context, which torch uses, if it has none."""
        api = self._api
        if int(self._done("cuCtxGetCurrent", api.cuCtxGetCurrent())):
            return
        handle = self._done("cuDeviceGet", api.cuDeviceGet(device))
        primary = self._done("cuDevicePrimaryCtxRetain", api.cuDevicePrimaryCtxRetain(handle))
        self._done("cuCtxSetCurrent", api.cuCtxSetCurrent(primary))

    def _done(self, call: str, result: tuple[Any, ...]) -> Any:
        status = result[0]
        if int(status) != 0:
            _, text = self._api.cuGetErrorString(status)
            raise LaunchFailed(call=call, detail=f"{status.name}: {bytes(text or b'').decode()}")
        return result[1] if len(result) == 2 else None

    def check_arch(self, path: Any, arch: str, device: int) -> None:
        """Check that a device runs the machine code of an architecture.

        Raises:
            ArtifactError: it does not (TC401).
        """
        major, minor = self._torch.cuda.get_device_capability(device)
        check_capability(path, arch, 10 * int(major) + int(minor))

    def load(self, code: bytes) -> Any:
        """Return a library of kernels, for all devices that its code runs on."""
        api = self._api
        result = api.cuLibraryLoadData(code, [], [], 0, [], [], 0)
        return self._done("cuLibraryLoadData", result)

    def kernel(self, library: Any, name: str, device: int, shared_bytes: int) -> Any:
        """Return a kernel that may be launched with that much dynamic shared memory."""
        api = self._api
        found = self._done("cuLibraryGetKernel", api.cuLibraryGetKernel(library, name.encode()))
        handle = self._done("cuDeviceGet", api.cuDeviceGet(device))
        limit = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        result = api.cuKernelSetAttribute(limit, shared_bytes, found, handle)
        self._done(f"cuKernelSetAttribute ({shared_bytes} bytes of shared memory)", result)
        return api.CUfunction(int(found))  # a launch takes kernels of libraries as functions

    def encode_map(self, target: int, address: int, shape: MapShape) -> None:
        """Write the tensor map of a tensor at ``address`` to host memory at ``target``.

        The driver writes there itself: the CUtensorMap objects of cuda-bindings lie at multiples of
        16 bytes, cuTensorMapEncodeTiled asks for 64 (cuda-python, pull request 1692).
        """
        api, rank = self._api, len(shape.extents)
        if self._encode is None:
            self._encode = self._encoder()
        kind = getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{MAP_TYPES[shape.dtype]}")
        status = self._encode(
            target, int(kind), rank, address,
            (ctypes.c_uint64 * MAP_AXES)(*shape.extents),
            (ctypes.c_uint64 * MAP_AXES)(*shape.strides),
            (ctypes.c_uint32 * MAP_AXES)(*shape.box),
            (ctypes.c_uint32 * MAP_AXES)(*[1] * rank),
            int(api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            {0: 0, 32: 1, 64: 2, 128: 3}[shape.swizzle_bytes],
            int(api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
            int(api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )  # fmt: skip
        self._done(f"cuTensorMapEncodeTiled ({shape})", (api.CUresult(status),))

    def _encoder(self) -> Any:
        """Return the driver's cuTensorMapEncodeTiled."""
        call = ENCODE_TILED.decode()
        found = self._api.cuGetProcAddress(ENCODE_TILED, ENCODE_VERSION, 0)
        self._done(f"cuGetProcAddress ({call})", found[:2])
        pointer, number = ctypes.c_void_p, ctypes.c_int
        make = ctypes.CFUNCTYPE(
            number, pointer, number, ctypes.c_uint32, *[pointer] * 5, *[number] * 4
        )
        return make(int(found[1]))

    def launcher(
        self, kernel: Any, grid: Sequence[int], block: Sequence[int], cluster: Sequence[int],
        shared_bytes: int, parameters: int, is_chained: bool = False,
    ) -> Callable[[int], None]:  # fmt: skip
        """Return what launches a kernel on a stream, which it is given.

        ``parameters`` is the address of an array of addresses, read at each launch;
        ``is_chained``: it may begin before the launches before have ended.
        """
        done = self._done
        attributes = list(self._attributes(cluster, is_chained))
        if attributes:
            return self._launcher_with(attributes, kernel, grid, block, shared_bytes, parameters)
        start = functools.partial(self._api.cuLaunchKernel, kernel, *grid, *block, shared_bytes)

        def launch(stream: int) -> None:
            result = start(stream, parameters, 0)
            if result[0]:
                done("cuLaunchKernel", result)

        return launch

    def _attributes(self, cluster: Sequence[int], is_chained: bool) -> Iterator[Any]:
        """Yield what a launch asks for beside its grid."""
        api = self._api
        names = api.CUlaunchAttributeID
        if tuple(cluster) != (1, 1, 1):
            attribute = api.CUlaunchAttribute()
            attribute.id = names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = attribute.value.clusterDim
            value.x, value.y, value.z = cluster
            yield attribute
        if is_chained:
            attribute = api.CUlaunchAttribute()
            attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            yield attribute

    def _launcher_with(
        self, attributes: Sequence[Any], kernel: Any, grid: Sequence[int], block: Sequence[int],
        shared_bytes: int, parameters: int,
    ) -> Callable[[int], None]:  # fmt: skip
        api, done = self._api, self._done
        config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = shared_bytes
        config.attrs, config.numAttrs = list(attributes), len(attributes)
        start = api.cuLaunchKernelEx

        def launch(stream: int) -> None:
            config.hStream = api.CUstream(stream)
            result = start(config, kernel, parameters, 0)
            if result[0]:
                done("cuLaunchKernelEx", result)

        return launch


def check_capability(path: Any, arch: str, capability: int) -> None:
    """Check that a device runs the machine code of an architecture.

    Raises:
        ArtifactError: it does not (TC401).
    """
    needed = int(arch.removeprefix("sm_").rstrip("af"))
    is_exact = arch[-1] in "af"
    same_major = capability // 10 == needed // 10 and capability >= needed
    if capability == needed if is_exact else same_major:
        return
    raise ArtifactError(
        path=path,
        reason=f"compiled for {arch}, the device has sm_{capability}",
        hint=f'compile it for target "sm_{capability}"',
    )
