"""The common call in a few microseconds: torch tensors of just the static shapes of a kernel.

What is not accepted here is not refused: ``check`` looks again, closely, and says what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilecore.artifact import ParameterSpec

AS_THEY_ARE = (  # the others are handed over as bytes
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip


class QuickCheck:
    """Accepts calls whose arguments can be handed over as they are."""

    def __init__(self, parameters: Sequence[ParameterSpec], torch: Any) -> None:
        self._tensor = torch.Tensor
        self._expected = [
            (getattr(torch, spec.dtype), torch.Size(spec.shape), _size_bytes(spec, torch))
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
        for tensor, (dtype, shape, size) in zip(arguments, self._expected, strict=True):
            if not (
                type(tensor) is self._tensor
                and tensor.dtype is dtype
                and tensor.shape == shape
                and tensor.is_cpu
                and tensor.is_contiguous()
                and not tensor.requires_grad
            ):
                return False
            address = tensor.data_ptr()
            if address % dtype.itemsize:
                return False
            spans.append((address, address + size))
        for i in self._written:
            start, end = spans[i]
            for j, (other, other_end) in enumerate(spans):
                if j != i and start < other_end and other < end:
                    return False
        return True


def _size_bytes(spec: ParameterSpec, torch: Any) -> int:
    return math.prod(int(e) for e in spec.shape) * int(getattr(torch, spec.dtype).itemsize)
