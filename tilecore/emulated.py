"""EmulatedKernel: a program as the code of a GPU, called with CPU tensors on the emulator."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilecore.artifact import ParameterSpec
from tilecore.compiler import parameters
from tilecore.device_code import TensorMapRecipe
from tilecore.emulator.arguments import TensorMap
from tilecore.emulator.launch import LATE, Schedule, build, emulate
from tilecore.errors import UnsupportedOnTarget
from tilecore.gpu_compiler import lower_gpu, tensor_maps, workspaces
from tilecore.gpu_target import GpuTarget
from tilecore.ir.expr import Pointer
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.visitor import buffers_of
from tilecore.runtime import dims
from tilecore.runtime.kernel import check
from tilecore.target import Target
from tilecore.tile_config import KnobValue

# Blocks that run at a time: more than one, for programs in which blocks wait for each other.
RESIDENT = 8
# What stands for the types that NumPy lacks.
BITS = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}


class EmulatedKernel:
    """A program lowered for a GPU and run on the emulator; called as a LoadedKernel is.

    Races in shared memory, accesses outside the tensors (unless the program computes addresses
    itself), misalignment, deadlocks and results that differ between schedules are errors.
    """

    device_type = "cpu"

    def __init__(
        self, func: PrimFunc, target: Target | GpuTarget, schedules: Sequence[Schedule] = (LATE,),
        knobs: Mapping[str, KnobValue] | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(target, GpuTarget):
            raise UnsupportedOnTarget(
                what=f"emulating `{func.name}`", target=target, reason="it is no GPU",
                hint='compile for a GPU first (target="h100")',
            )  # fmt: skip
        self.parameters = parameters(func)
        self._schedules = tuple(schedules)
        _, self._program, source = lower_gpu(func, target, knobs=knobs)
        self._kernels = build(source)
        self._workspaces = workspaces(self._program)
        self._knows_memory = not _computes_addresses(func)

    def __call__(self, *arguments: Any) -> None:
        """Run the kernels; output tensors are written in place.

        Raises:
            ArgumentError, AliasError: as LoadedKernel (TC402, TC403).
            EmulationError: the code does what a GPU does not define, or waits forever (TC307).
        """
        given = check(self.parameters, arguments)
        values: dict[str, Any] = dims.with_absent(
            self.parameters, arguments, dims.bind(self.parameters, arguments)
        )
        for spec, value in zip(self.parameters, given, strict=True):
            values[spec.name] = _array(spec, value) if spec.kind == "tensor" else value
        for workspace in self._workspaces:
            shape = [dims.evaluate(e, values) for e in workspace.shape]
            dtype = BITS.get(workspace.dtype, workspace.dtype)
            values[workspace.name] = np.zeros(shape, dtype)
        for recipe in tensor_maps(self._program):
            array = _seen_as(values[recipe.tensor], recipe, values)
            values[recipe.name] = TensorMap(array, recipe.box, recipe.swizzle_bytes)
        emulate(
            self._kernels, values, self._schedules, resident=RESIDENT,
            checks_bounds=self._knows_memory,
        )  # fmt: skip


def _array(spec: ParameterSpec, tensor: Any) -> Any:
    """Return an array over the memory of a tensor that ``check`` has returned."""
    if tensor is None:
        return np.empty(0, np.uint8)
    if isinstance(tensor, np.ndarray):
        return tensor.view(np.uint16) if tensor.dtype.name == "bfloat16" else tensor
    torch = importlib.import_module("torch")
    with torch._C.DisableTorchFunction():  # programs may be told that it is on a GPU
        bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        return bits.numpy().view(BITS[spec.dtype]) if spec.dtype in BITS else bits.numpy()


def _seen_as(array: Any, recipe: TensorMapRecipe, values: Mapping[str, Any]) -> Any:
    """Return the array that a tensor map shows."""
    shape = [dims.evaluate(e, values) for e in recipe.shape]
    kind = BITS.get(recipe.dtype, recipe.dtype)
    if recipe.strides is not None:  # of the tensor itself
        return array.view(kind)
    seen = array.reshape(-1).view(kind)
    is_seen = seen.size == math.prod(shape)  # otherwise it is of a version that does not run
    return seen.reshape(shape) if is_seen else seen


def _computes_addresses(func: PrimFunc) -> bool:
    """Return whether a program reaches memory by address, which no parameter bounds."""
    return any(isinstance(p, Pointer) for p in func.params) or any(
        b.root.address is not None for b in buffers_of(func.body)
    )
