"""CudaKernel: launches the kernels of a cubin from torch tensors, on torch's current stream.

Nothing but torch and cuda-bindings is needed: no TVM, no CUDA toolkit. What depends on shapes
(grids, scalars, the shapes of tensor maps) is computed at the first call with these shapes; later
calls exchange addresses. A call allocates through torch alone and waits for nothing, so that CUDA
graphs capture it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilecore.artifact import Artifact
from tilecore.device_code import DeviceCode, KernelEntry, TensorMapRecipe, Workspace
from tilecore.errors import ArgumentError, ArtifactError, LaunchFailed
from tilecore.gpu_target import MOST_BLOCKS
from tilecore.ir.dtype import DType
from tilecore.runtime import dims
from tilecore.runtime.driver import (
    MAP_ALIGNMENT,
    MAP_BYTES,
    CudaDriver,
    Driver,
    MapShape,
    check_arch,
)
from tilecore.runtime.kernel import check

SCALARS = {
    "bool": ctypes.c_bool, "int8": ctypes.c_int8, "int16": ctypes.c_int16,
    "int32": ctypes.c_int32, "int64": ctypes.c_int64, "uint8": ctypes.c_uint8,
    "uint16": ctypes.c_uint16, "uint32": ctypes.c_uint32, "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float, "float64": ctypes.c_double,
}  # fmt: skip
MOST_SIGNATURES = 256  # shapes and scalars that a kernel is kept prepared for


@dataclass(slots=True)
class _Launch:
    """One launch with the parameters of the last call, which it owns."""

    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared_bytes: int
    parameters_at: int  # an array of addresses
    kept: Any  # what these are the addresses of


@dataclass(slots=True)
class _Bound:
    """A kernel for arguments of one signature: what a call changes in it."""

    device: int
    nbytes: list[int]  # of the tensors
    launches: list[_Launch] = field(default_factory=list)
    # Tensors go by number: those of the call, then workspaces.
    addresses: list[tuple[Any, int]] = field(default_factory=list)  # parameter, tensor
    maps: list[tuple[int, int, MapShape]] = field(default_factory=list)  # where to, tensor
    encoded: list[int] = field(default_factory=list)  # the address that each map has
    workspaces: list[Callable[[], Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A call that was looked at closely, and what another one must be to be like it.

    Attributes:
        tensors: position, element type, shape, strides and device.
        numbers: position, Python type and value.
        apart: pairs of tensors of which the first is written, with their bytes.
    """

    bound: _Bound
    count: int
    alignment: int
    tensors: Sequence[tuple[int, Any, Any, Any, Any]]
    numbers: Sequence[tuple[int, type, Any]]
    apart: Sequence[tuple[int, int, int, int]]

    def addresses(self, arguments: Sequence[Any]) -> list[int] | None:
        """Return the addresses of a call's tensors, None where it must be looked at."""
        if len(arguments) != self.count:
            return None
        found = []
        try:
            for i, dtype, shape, strides, device in self.tensors:
                t = arguments[i]
                if t.dtype is not dtype or t.shape != shape or t.device != device:
                    return None
                if t.stride() != strides:
                    return None
                address = t.data_ptr()
                if address % self.alignment:
                    return None
                found.append(address)
        except (AttributeError, TypeError):
            return None
        for i, kind, value in self.numbers:
            if type(arguments[i]) is not kind or arguments[i] != value:
                return None
        for one, other, size, its in self.apart:
            if found[one] < found[other] + its and found[other] < found[one] + size:
                return None
        return found


class CudaKernel:
    """A GPU artifact in this process; call it with all arguments in parameter order.

    Raises:
        ArtifactError: the artifact is not a GPU's (TC401).
        ToolchainMissing: there is no driver, device or cuda-bindings (TC306).
    """

    def __init__(self, artifact: Artifact, driver: Driver | None = None) -> None:
        if artifact.manifest.device is None:
            raise ArtifactError(path=artifact.path, reason="it holds no code of a GPU")
        self.artifact = artifact
        self.parameters = artifact.manifest.parameters
        self._code: DeviceCode = artifact.manifest.device
        self._driver: Driver = CudaDriver() if driver is None else driver
        self.device_type = self._driver.device_type
        self._library = self._driver.load(artifact.library.read_bytes())
        self._tensors = [(i, p) for i, p in enumerate(self.parameters) if p.kind == "tensor"]
        self._numbers = [(i, p) for i, p in enumerate(self.parameters) if p.kind != "tensor"]
        self._names = [p.name for _, p in self._tensors]
        self._names += [w.name for w in self._code.workspaces]
        self._positions = [i for i, _ in self._tensors]
        self._scalars = [i for i, _ in self._numbers]
        self._written = [n for n, (_, p) in enumerate(self._tensors) if p.is_written]
        self._bound: dict[Any, _Bound] = {}
        self._last: _Accepted | None = None
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> None:
        """Run the kernel on torch's current stream; output tensors are written in place.

        Raises:
            ArgumentError: wrong number of arguments, a scalar of the wrong type, or a tensor of the
                wrong device, dtype, rank, shape, strides or alignment (TC402).
            AliasError: a written tensor shares memory with another one (TC403).
            LaunchFailed: the driver refused the launch (TC405).
        """
        last = self._last
        if last is not None:
            addresses = last.addresses(arguments)
            if addresses is not None:
                self._launch(last.bound, addresses)
                return
        self._first_call(arguments)

    def unchecked(self, *arguments: Any) -> None:
        """Run the kernel with arguments that a call has accepted before (for timing loops)."""
        addresses = None if self._last is None else self._last.addresses(arguments)
        if self._last is None or addresses is None:
            bound = self._find(arguments, self._signature(arguments))
            self._launch(bound, self._addresses(arguments))
        else:
            self._launch(self._last.bound, addresses)

    # --- arguments --------------------------------------------------------------------------------

    def _signature(self, arguments: Sequence[Any]) -> Any:
        """Return what the launch depends on, or None where an argument is of no known kind."""
        if len(arguments) != len(self.parameters):
            return None
        try:
            shapes = [
                None if (t := arguments[i]) is None else (t.dtype, t.shape, t.stride(), t.device)
                for i in self._positions
            ]
        except (AttributeError, TypeError):
            return None
        return (*shapes, *[arguments[i] for i in self._scalars])

    def _addresses(self, arguments: Sequence[Any]) -> list[int]:
        return [0 if (t := arguments[i]) is None else t.data_ptr() for i in self._positions]

    def _first_call(self, arguments: Sequence[Any]) -> None:
        """Check the arguments closely, then run the kernel."""
        given = check(self.parameters, arguments, self._driver.device_type)
        for position, spec in self._tensors:
            tensor = given[position]
            if tensor is not None and tensor.data_ptr() % self._code.alignment and tensor.nbytes:
                raise ArgumentError(
                    position=position, name=spec.name,
                    expected=f"memory aligned to {self._code.alignment} bytes",
                    found=f"address {tensor.data_ptr():#x}", hint="call .clone()",
                )  # fmt: skip
        bound = self._find(given, self._signature(given))
        self._launch(bound, self._addresses(given))
        self._last = self._as_before(arguments, bound)

    def _as_before(self, arguments: Sequence[Any], bound: _Bound) -> _Accepted | None:
        """Return what tells calls like this one; None: each is looked at closely."""
        tensors = [arguments[i] for i in self._positions]
        if any(t is None or not hasattr(t, "data_ptr") for t in tensors):
            return None
        apart = [
            (one, other, bound.nbytes[one], bound.nbytes[other])
            for one in self._written
            for other in range(len(tensors))
            if one != other
        ]
        return _Accepted(
            bound, len(arguments), self._code.alignment,
            [
                (i, t.dtype, t.shape, t.stride(), t.device)
                for i, t in zip(self._positions, tensors, strict=True)
            ],
            [(i, type(arguments[i]), arguments[i]) for i in self._scalars], apart,
        )  # fmt: skip

    def _find(self, arguments: Sequence[Any], signature: Any) -> _Bound:
        """Return the launches for a signature, made at its first call."""
        bound = self._bound.get(signature)
        if bound is None:
            bound = self._bind(arguments)
            if len(self._bound) >= MOST_SIGNATURES:
                self._bound.clear()
            self._bound[signature] = bound
        return bound

    # --- launches ---------------------------------------------------------------------------------

    def _launch(self, bound: _Bound, addresses: Sequence[int]) -> None:
        driver = self._driver
        with self._lock, driver.on(bound.device):
            held = list(addresses)
            # Kept until the launch; then torch's allocator keeps the order of the stream.
            kept = [make() for make in bound.workspaces]
            held += [workspace.data_ptr() for workspace in kept]
            for slot, index in bound.addresses:
                slot.value = held[index]
            for number, (target, index, map_) in enumerate(bound.maps):
                if bound.encoded[number] != held[index]:
                    if held[index] and all(map_.extents):  # no map describes what is not there
                        driver.encode_map(target, held[index], map_)
                    bound.encoded[number] = held[index]
            stream = driver.stream(bound.device)
            for launch in bound.launches:
                driver.launch(
                    launch.kernel, launch.grid, launch.block, launch.cluster,
                    launch.shared_bytes, stream, launch.parameters_at,
                )  # fmt: skip

    def _workspace(self, workspace: Workspace, sizes: Mapping[str, int], device: int) -> Any:
        """Return a function that allocates a workspace."""
        torch = importlib.import_module("torch")
        kind = self._driver.device_type
        return functools.partial(
            torch.zeros if workspace.is_zeroed else torch.empty,
            tuple(dims.evaluate(e, sizes) for e in workspace.shape),
            dtype=DType(workspace.dtype).as_torch(),
            device=torch.device(kind, device) if kind == "cuda" else torch.device(kind),
        )

    def _bind(self, arguments: Sequence[Any]) -> _Bound:
        """Return the launches for the shapes and scalars of a call."""
        tensors = [arguments[i] for i in self._positions]
        device = next((int(t.device.index or 0) for t in tensors if t is not None), 0)
        check_arch(self.artifact.path, self._code.arch, self._driver.capability(device))
        values: dict[str, Any] = {
            **dims.with_absent(
                self.parameters, arguments, dims.bind(self.parameters, list(arguments))
            ),
            **{spec.name: arguments[i] for i, spec in self._numbers},
        }
        sizes = {k: int(v) for k, v in values.items() if not isinstance(v, float)}
        bound = _Bound(device, [0 if t is None else t.nbytes for t in tensors])
        for workspace in self._code.workspaces:
            make = self._workspace(workspace, sizes, device)
            bound.workspaces.append(make)
        for entry in self._code.entries:
            self._bind_entry(bound, entry, values, sizes)
        return bound

    def _bind_entry(
        self, bound: _Bound, entry: KernelEntry, values: Mapping[str, Any],
        sizes: Mapping[str, int],
    ) -> None:  # fmt: skip
        def three(extents: Sequence[int | str]) -> tuple[int, ...]:
            return tuple(dims.evaluate(e, sizes) for e in extents)

        grid = three(entry.grid)
        if 0 in grid:
            return
        check_grid(entry.name, grid, three(entry.cluster))
        recipes = {m.name: m for m in self._code.maps}
        kept: list[Any] = []
        addresses = []
        for argument in entry.arguments:
            if argument.kind == "tensor":
                slot: Any = ctypes.c_void_p()
                bound.addresses.append((slot, self._names.index(argument.name)))
            elif argument.kind == "tensor_map":
                recipe = recipes[argument.name]
                slot = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
                address = ctypes.addressof(slot) + -ctypes.addressof(slot) % MAP_ALIGNMENT
                tensor = self._names.index(recipe.tensor)
                bound.maps.append((address, tensor, map_shape(recipe, sizes)))
                bound.encoded.append(-1)
                kept.append(slot)
                addresses.append(address)
                continue
            else:
                slot = SCALARS[argument.dtype](values[argument.name])
            kept.append(slot)
            addresses.append(ctypes.addressof(slot))
        shared = dims.evaluate(entry.shared_bytes, sizes)
        parameters = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        kernel = self._driver.kernel(self._library, entry.name, bound.device, shared)
        bound.launches.append(
            _Launch(
                kernel=kernel,
                grid=grid,
                block=three(entry.block),
                cluster=three(entry.cluster),
                shared_bytes=shared,
                parameters_at=ctypes.addressof(parameters),
                kept=(parameters, *kept),
            )
        )


def check_grid(name: str, grid: Sequence[int], cluster: Sequence[int] = (1, 1, 1)) -> None:
    """Check that a launch may have so many blocks, and that clusters can be made of them.

    Source: CUDA C++ Programming Guide 13.0, technical specifications per compute capability.

    Raises:
        LaunchFailed: it does not (TC405).
    """
    if any(n > most for n, most in zip(grid, MOST_BLOCKS, strict=True)):
        raise LaunchFailed(
            call=f"launch of {name}",
            detail=f"expected at most {MOST_BLOCKS[0]} blocks along x and {MOST_BLOCKS[1]} along y"
            f" and z, found {' x '.join(map(str, grid))}; put the longest axis of T.Kernel first",
        )
    if any(n % size for n, size in zip(grid, cluster, strict=True)):
        raise LaunchFailed(
            call=f"launch of {name}",
            detail=f"expected whole clusters of {' x '.join(map(str, cluster))} blocks, found "
            f"{' x '.join(map(str, grid))} blocks; round the grid of T.Kernel up to a multiple",
        )


def map_shape(recipe: TensorMapRecipe, sizes: Mapping[str, int]) -> MapShape:
    """Return what a tensor map says for tensors of certain sizes."""
    shape = [dims.evaluate(e, sizes) for e in recipe.shape]
    if recipe.strides is None:
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    else:
        strides = [dims.evaluate(e, sizes) for e in recipe.strides]
    itemsize = DType(recipe.dtype).itemsize
    return MapShape(
        recipe.dtype, tuple(shape[::-1]), tuple(s * itemsize for s in strides[-2::-1]),
        recipe.box[::-1], recipe.swizzle_bytes,
    )  # fmt: skip
