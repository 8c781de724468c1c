"""Outputs that a kernel's caller leaves out: allocated in the shapes that the inputs give them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilecore.artifact import ParameterSpec
from tilecore.errors import ArgumentError
from tilecore.ir.dtype import DType
from tilecore.runtime import dims


def with_outputs(
    specs: Sequence[ParameterSpec],
    positions: Sequence[int],
    inputs: Sequence[Any],
    device: str = "cpu",
) -> list[Any]:
    """Return all arguments of a call: the inputs, and new outputs at ``positions``.

    Outputs lie where the inputs do; ``device`` is where they lie if no input is a tensor.

    Raises:
        ArgumentError: the inputs do not say how large an output is (TC402).
    """
    arguments: list[Any] = list(inputs)
    for position in sorted(positions):
        arguments.insert(position, None)
    values = dims.bind(specs, arguments)
    for position in positions:
        spec = specs[position]
        missing = dims.missing(spec, values)
        if missing:
            raise ArgumentError(
                position=position,
                name=spec.name,
                expected=f"its size: no input has an axis {', '.join(missing)}",
                found="an output left out",
            )
        shape = tuple(dims.evaluate(e, values) for e in spec.shape)
        arguments[position] = _empty(shape, DType(spec.dtype), inputs, device)
    return arguments


def _empty(shape: tuple[int, ...], dtype: DType, inputs: Sequence[Any], device: str) -> Any:
    """Return an uninitialised output, of torch if an input is, or if torch is loaded at all."""
    torch = sys.modules.get("torch")
    is_numpy = any(isinstance(i, np.ndarray) for i in inputs)
    if dtype.is_packed:
        shape = (*shape[:-1], shape[-1] // 2)
    if torch is None or (is_numpy and not any(isinstance(i, torch.Tensor) for i in inputs)):
        return np.empty(shape, np.uint8 if dtype.is_packed else dtype.numpy)
    tensors = [i for i in inputs if isinstance(i, torch.Tensor)]
    if device != "cpu":
        place = next((t.device for t in tensors), torch.device(device))
        return torch.empty(shape, dtype=dtype.as_torch(), device=place)
    return torch.empty(shape, dtype=dtype.as_torch())
