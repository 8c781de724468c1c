"""Outputs that a kernel's caller leaves out: allocated in the shapes that the inputs give them."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilecore.artifact import ParameterSpec
from tilecore.ir.dtype import DType
from tilecore.runtime import dims, pages
from tilecore.runtime.memo import Memo, strides_of

OF_NUMPY = {np.ndarray, int, float, bool}  # types of which no argument makes outputs torch's
MANY = pages.FRESH_BYTES // 16  # elements: of fewer no tensor lies in fresh memory, of any type


class OutputMaker:
    """Makes the outputs that calls of one kernel leave out.

    They lie where the inputs do, on ``device`` if no input is a tensor; they are tensors of torch
    if an input is, or if torch is loaded and no input is an array of NumPy.
    """

    def __init__(
        self, specs: Sequence[ParameterSpec], positions: Sequence[int], device: str = "cpu"
    ) -> None:
        self._specs, self._positions, self._device = specs, sorted(positions), device
        self._dtypes = [DType(specs[p].dtype) for p in self._positions]
        self._numpy_dtypes = [np.uint8 if d.is_packed else d.numpy for d in self._dtypes]
        self._torch_dtypes: list[Any] = []
        is_static = all(specs[p].is_static for p in self._positions)
        self._static_shapes = self._shapes({}) if is_static else None
        self._is_strided = any(spec.strides is not None for spec in specs)
        self._known: Memo[list[tuple[int, ...]]] = Memo()

    def complete(self, inputs: Sequence[Any]) -> list[Any]:
        """Return all arguments of a call: the inputs, and uninitialised outputs.

        Raises:
            ArgumentError: the inputs do not say how large an output is (TC402).
        """
        arguments: list[Any] = list(inputs)
        for position in self._positions:
            arguments.insert(position, None)
        shapes = self._static_shapes or self._shapes_for(inputs, arguments)
        for position, output in zip(self._positions, self._made(shapes, inputs), strict=True):
            arguments[position] = output
        return arguments

    def _shapes_for(self, inputs: Sequence[Any], arguments: Sequence[Any]) -> list[tuple[int, ...]]:
        """Return the shapes for inputs, those of sizes seen before without looking closely."""
        sizes = tuple([getattr(i, "shape", i if type(i) is int else None) for i in inputs])
        if self._is_strided:  # strides are dimensions, too
            sizes += tuple([strides_of(i) for i in inputs if hasattr(i, "shape")])
        shapes = self._known.get(sizes)
        if shapes is None:
            shapes = self._shapes(dims.bind(self._specs, arguments))
            self._known.keep(sizes, shapes)
        return shapes

    def _shapes(self, values: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Return the shapes of the tensors that hold the outputs."""
        return [
            dtype.storage_shape(dims.output_shape(p, self._specs[p], values))
            for p, dtype in zip(self._positions, self._dtypes, strict=True)
        ]

    def _made(self, shapes: Sequence[tuple[int, ...]], inputs: Sequence[Any]) -> list[Any]:
        types = set(map(type, inputs))
        is_numpy = np.ndarray in types and types <= OF_NUMPY
        torch = None if is_numpy else sys.modules.get("torch")
        like = None if torch is None else _first(inputs, torch.Tensor)
        if torch is None or (like is None and any(isinstance(i, np.ndarray) for i in inputs)):
            return [np.empty(s, k) for s, k in zip(shapes, self._numpy_dtypes, strict=True)]
        if not self._torch_dtypes:
            self._torch_dtypes = [d.as_torch() for d in self._dtypes]
        pairs = zip(shapes, self._torch_dtypes, strict=True)
        if self._device == "cpu":
            return [_on_cpu(shape, dtype) for shape, dtype in pairs]
        place = self._device if like is None else like.device
        return [torch.empty(shape, dtype=dtype, device=place) for shape, dtype in pairs]


def _on_cpu(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a tensor of torch on the CPU."""
    strides, size = _lying(shape)
    found = _maker()(shape, strides, dtype)
    if size >= MANY:
        pages.ask_for_large(found)
    return found


@functools.cache
def _maker() -> Callable[..., Any]:
    """Return what makes a tensor of a shape, strides and an element type on the CPU.

    What torch.compile's own backend calls takes half the time; it is not torch's public interface.
    """
    import torch

    with contextlib.suppress(AttributeError):
        fast: Callable[..., Any] = torch._C._dynamo.guards._empty_strided_cpu
        return fast
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)


@functools.lru_cache(1024)
def _lying(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the strides of a tensor whose elements lie one after the other, and their number."""
    found, step = [], 1
    for extent in reversed(shape):
        found.append(step)
        step *= max(extent, 1)
    return tuple(reversed(found)), step


def _first(values: Sequence[Any], kind: type) -> Any:
    """Return the first value of a kind, or None."""
    for value in values:
        if isinstance(value, kind):
            return value
    return None
