"""The common call in a few microseconds: tensors of just the static shapes of a kernel.

What is not accepted here is not refused: ``check`` looks again, closely, and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilecore.artifact import ParameterSpec
from tilecore.ir.dtype import DType

AS_THEY_ARE = (  # the others are handed over as bytes
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
NUMPY = tuple(name for name in AS_THEY_ARE if name != "bfloat16")  # DLPack does not know NumPy's


class QuickCheck:
    """Accepts calls whose arguments can be handed over as they are."""

    def __init__(self, parameters: Sequence[ParameterSpec], torch: Any | None) -> None:
        self._tensor = None if torch is None else torch.Tensor
        self._expected = [
            (
                None if torch is None else getattr(torch, spec.dtype),
                DType(spec.dtype).numpy if spec.dtype in NUMPY else None,
                tuple(int(extent) for extent in spec.shape),
                DType(spec.dtype).itemsize,
            )
            for spec in parameters
        ]
        self._written = [i for i, spec in enumerate(parameters) if spec.is_written]

    @staticmethod
    def serves(parameters: Sequence[ParameterSpec]) -> bool:
        """Return whether all parameters are contiguous tensors of static shape."""
        return all(
            spec.kind == "tensor"
            and spec.is_static
            and spec.strides is None
            and spec.dtype in AS_THEY_ARE
            for spec in parameters
        )

    def accepts(self, arguments: Sequence[Any]) -> bool:
        """Return whether the arguments are what the kernel was compiled for."""
        if len(arguments) != len(self._expected):
            return False
        spans = []
        for tensor, (torch_dtype, dtype, shape, itemsize) in zip(
            arguments, self._expected, strict=True
        ):
            if type(tensor) is self._tensor:
                if not (
                    tensor.dtype is torch_dtype
                    and tensor.shape == shape
                    and tensor.is_cpu
                    and tensor.is_contiguous()
                    and not tensor.requires_grad
                ):
                    return False
                address = tensor.data_ptr()
            elif type(tensor) is np.ndarray:
                flags = tensor.flags
                if not (
                    tensor.dtype is dtype
                    and tensor.shape == shape
                    and flags.c_contiguous
                    and flags.writeable
                ):
                    return False
                address = tensor.ctypes.data
            else:
                return False
            if address % itemsize:
                return False
            spans.append((address, address + tensor.nbytes))
        for i in self._written:
            start, end = spans[i]
            for j, (other, other_end) in enumerate(spans):
                if j != i and start < other_end and other < end:
                    return False
        return True
