"""CudaKernel: launches the kernels of a GPU from torch tensors, on torch's current stream.

Nothing but torch and cuda-bindings is needed, on AMD's GPUs torch alone (``hip``): no TVM, no
toolkit. What depends on shapes
(grids, the shapes of tensor maps) is computed at the first call with these shapes; later calls
exchange addresses and numbers (``launcher``). A call allocates through torch alone and waits for
nothing, so that CUDA graphs capture it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilecore.artifact import Artifact
from tilecore.device_code import (
    DeviceCode,
    KernelArgument,
    KernelEntry,
    TensorMapRecipe,
    Workspace,
)
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
)
from tilecore.runtime.kernel import check
from tilecore.runtime.launcher import SCALARS, Bound, Call, TensorMap, call_of

MOST_SIGNATURES = 1024  # shapes and sizes that a kernel is kept prepared for, 8 KiB each
PLAIN = frozenset((int, float, bool))  # numbers that a launch takes as they are


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
        sizes = dims.names_in(self._code.extents).union(*map(dims.names, self.parameters))
        self._sizes = [i for i, p in self._numbers if p.name in sizes]
        self._free = {p.name: i for i, p in self._numbers if p.name not in sizes}
        self._count = len(self.parameters)
        self._calls: dict[Any, Call] = {}
        self._last: Call | None = None

    def __call__(self, *arguments: Any) -> None:
        """Run the kernel on torch's current stream; output tensors are written in place.

        Raises:
            ArgumentError: wrong number of arguments, a scalar of the wrong type, or a tensor of the
                wrong device, dtype, rank, shape, strides or alignment (TC402).
            AliasError: a written tensor shares memory with another one (TC403).
            LaunchFailed: the driver refused the launch (TC405).
        """
        last = self._last
        if last is None or len(arguments) != self._count or not last(*arguments):
            self._other_call(arguments)

    def unchecked(self, *arguments: Any) -> None:
        """Run the kernel with arguments that a call has accepted before (for timing loops)."""
        last = self._last
        if last is None or len(arguments) != self._count or not last(*arguments):
            self._run(arguments, self._signature(arguments))

    # --- arguments --------------------------------------------------------------------------------

    def _other_call(self, arguments: Sequence[Any]) -> None:
        """Run the kernel for arguments that are not like those of the last call."""
        signature = self._signature(arguments)
        known = self._calls.get(signature)
        if known is not None and known(*arguments):
            self._last = known
            return
        given = check(self.parameters, arguments, self._driver.device_type)
        for position, spec in self._tensors:
            tensor = given[position]
            if tensor is not None and tensor.data_ptr() % self._code.alignment and tensor.nbytes:
                raise ArgumentError(
                    position=position, name=spec.name,
                    expected=f"memory aligned to {self._code.alignment} bytes",
                    found=f"address {tensor.data_ptr():#x}", hint="call .clone()",
                )  # fmt: skip
        # Later calls are compared with this one as its caller wrote it, where that can be run.
        is_plain = all(type(arguments[i]) in PLAIN for i, _ in self._numbers)
        self._run(*((arguments, signature) if is_plain else (given, self._signature(given))))

    def _run(self, arguments: Sequence[Any], signature: Any) -> None:
        """Run the kernel for accepted arguments of a signature."""
        call = self._calls.get(signature)
        if call is None or not call(*arguments):
            call = self._prepared(arguments)
            if not call(*arguments):
                raise AssertionError("arguments that no call has accepted")
            if signature is not None:
                if len(self._calls) >= MOST_SIGNATURES:
                    del self._calls[next(iter(self._calls))]
                self._calls[signature] = call
        self._last = call

    def _signature(self, arguments: Sequence[Any]) -> Any:
        """Return what the launch depends on, or None where an argument is of no known kind."""
        if len(arguments) != self._count:
            return None
        try:
            shapes = [
                None if (t := arguments[i]) is None else (t.dtype, t.shape, t.stride(), t.device)
                for i in self._positions
            ]
        except (AttributeError, TypeError):
            return None
        kinds = [type(arguments[i]) for i, _ in self._numbers]
        if not PLAIN.issuperset(kinds):
            return None
        return (*shapes, *kinds, *[arguments[i] for i in self._sizes])

    # --- launches ---------------------------------------------------------------------------------

    def _prepared(self, arguments: Sequence[Any]) -> Call:
        """Return what runs the kernel for the shapes and sizes of a call."""
        tensors = [arguments[i] for i in self._positions]
        device = next((int(t.device.index or 0) for t in tensors if t is not None), 0)
        self._driver.check_arch(self.artifact.path, self._code.arch, device)
        values: dict[str, Any] = {
            **dims.with_absent(
                self.parameters, arguments, dims.bind(self.parameters, list(arguments))
            ),
            **{spec.name: arguments[i] for i, spec in self._numbers},
        }
        sizes = {k: int(v) for k, v in values.items() if not isinstance(v, float)}
        bound = Bound(device, (ctypes.c_uint64 * max(1, len(self._names)))())
        bound.numbers = {i: [] for i in self._free.values()}
        bound.workspaces = [self._workspace(w, sizes, device) for w in self._code.workspaces]
        for entry in self._code.entries:
            self._bind_entry(bound, entry, values, sizes)
        return call_of(bound, self.parameters, arguments, self._driver, self._code.alignment)

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

    def _bind_entry(
        self, bound: Bound, entry: KernelEntry, values: Mapping[str, Any],
        sizes: Mapping[str, int],
    ) -> None:  # fmt: skip
        def three(extents: Sequence[int | str]) -> tuple[int, ...]:
            return tuple(dims.evaluate(e, sizes) for e in extents)

        grid = three(entry.grid)
        if 0 in grid:
            return
        check_grid(entry.name, grid, three(entry.cluster))
        addresses = [self._parameter(bound, a, values, sizes) for a in entry.arguments]
        shared = dims.evaluate(entry.shared_bytes, sizes)
        parameters = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        bound.kept.append(parameters)
        kernel = self._driver.kernel(self._library, entry.name, bound.device, shared)
        bound.launches.append(
            self._driver.launcher(
                kernel, grid, three(entry.block), three(entry.cluster), shared,
                ctypes.addressof(parameters), entry.is_chained,
            )
        )  # fmt: skip

    def _parameter(
        self, bound: Bound, argument: KernelArgument, values: Mapping[str, Any],
        sizes: Mapping[str, int],
    ) -> int:  # fmt: skip
        """Return the address of what a launch passes for a parameter of a CUDA kernel."""
        if argument.kind == "tensor":
            word = ctypes.sizeof(ctypes.c_uint64)
            return ctypes.addressof(bound.words) + word * self._names.index(argument.name)
        if argument.kind == "tensor_map":
            recipe = next(m for m in self._code.maps if m.name == argument.name)
            memory = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
            bound.kept.append(memory)
            at = ctypes.addressof(memory) + -ctypes.addressof(memory) % MAP_ALIGNMENT
            tensor = self._names.index(recipe.tensor)
            bound.maps.append(TensorMap(at, tensor, map_shape(recipe, sizes)))
            return at
        slot: Any = SCALARS[argument.dtype](values[argument.name])
        bound.kept.append(slot)
        if argument.name in self._free:
            bound.numbers[self._free[argument.name]].append(slot)
        return ctypes.addressof(slot)


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
