"""How Triton's kernels of gpu_peers.py are launched, and compiled without a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

Launches = Iterator[tuple[str, Sequence["Launch"]]]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its grid, arguments and options."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    warps: int
    stages: int = 2

    def __call__(self) -> None:
        """Run it."""
        self.kernel[self.grid](*self.arguments, num_warps=self.warps, num_stages=self.stages)

    def signature(self) -> tuple[Any, ...]:
        """Return what its machine code depends on."""
        kinds = []
        for parameter, value in zip(self.kernel.params, self.arguments, strict=True):
            if parameter.is_constexpr or isinstance(value, bool):
                kinds.append(value)
            elif isinstance(value, int):
                kinds.append((value == 1, value % 16 == 0))
            else:
                of_map = getattr(value, "base", None)
                kinds.append(
                    (str(value.base.dtype), tuple(value.block_shape))
                    if isinstance(of_map, torch.Tensor) and isinstance(value, TensorDescriptor)
                    else str(getattr(value, "dtype", type(value)))
                )
        return (self.kernel.__name__, *kinds, self.warps, self.stages)

    def compile(self) -> Any:
        """Return the compiled kernel, which Triton keeps on disk."""
        return self.kernel.warmup(
            *self.arguments, grid=self.grid, num_warps=self.warps, num_stages=self.stages
        )
