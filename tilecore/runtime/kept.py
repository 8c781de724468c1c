"""KeptKernel: a kernel whose weights are packed once and kept from call to call."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilecore.artifact import Artifact
from tilecore.ir.dtype import DType
from tilecore.runtime import dims
from tilecore.runtime.kernel import LoadedKernel, check
from tilecore.runtime.tensor import view

ALIGNMENT = 64  # bytes, a cache line


class KeptKernel(LoadedKernel):
    """A LoadedKernel that was compiled to keep one of its tensors packed.

    It holds the packed form alone: calls pass an untouched tensor in the place of the weights.
    """

    def __init__(self, artifact: Artifact, position: int, weights: Any) -> None:
        """Pack ``weights``, the tensor at ``position`` among the parameters.

        Raises:
            ArgumentError: it is of the wrong device, dtype, rank, shape or strides (TC402).
        """
        super().__init__(artifact)
        self._common = frozenset()  # its entry takes more than a caller passes
        self._memory = [_aligned(size, dtype) for dtype, size in artifact.manifest.kept]
        self._packed = [_handle(array) for array in self._memory]
        arguments: list[Any] = [None] * len(self.parameters)
        arguments[position] = weights
        values = dims.with_absent(self.parameters, arguments, dims.bind(self.parameters, arguments))
        for i, spec in enumerate(self.parameters):
            if i == position:
                continue
            shape = [dims.evaluate(e, values) for e in spec.shape]
            is_tensor = spec.kind == "tensor"
            arguments[i] = np.empty(shape, DType(spec.dtype).numpy) if is_tensor else 0
        given = check(self.parameters, arguments)
        self._function(*given, *self._packed, 1)
        spec = self.parameters[position]
        shape = [dims.evaluate(e, values) for e in spec.shape]
        self.placeholder = np.empty(shape, DType(spec.dtype).numpy)

    def unchecked(self, *tensors: Any) -> None:
        """Run the kernel on checked tensors and the packed weights."""
        super().unchecked(*tensors, *self._packed, 0)


def _aligned(size: int, dtype: str) -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype)
    raw = np.empty(size * kind.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size * kind.itemsize].view(kind)


def _handle(array: np.ndarray[Any, Any]) -> Any:
    found = view(array)
    assert found is not None
    return found.handle
