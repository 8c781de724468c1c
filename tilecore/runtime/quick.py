"""The common call in a few microseconds: of kernels that have no table (native) or keep weights.

What is not accepted here is not refused: ``check`` looks again, closely, and says what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilecore.artifact import ParameterSpec
from tilecore.ir.dtype import DType
from tilecore.runtime import dims
from tilecore.runtime.memo import Memo, strides_of

AS_THEY_ARE = (  # the others are handed over as bytes
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
NUMPY = tuple(name for name in AS_THEY_ARE if name != "bfloat16")  # DLPack does not know NumPy's


def quick_check(
    parameters: Sequence[ParameterSpec], torch: Any | None
) -> QuickCheck | QuickChecks | None:
    """Return the quick check of a kernel, None where every call needs the close one."""
    if not all(p.kind in ("tensor", "scalar") and p.dtype in AS_THEY_ARE for p in parameters):
        return None
    is_static = all(_is_fixed(p) for p in parameters)
    return QuickCheck(parameters, torch) if is_static else QuickChecks(parameters, torch)


class QuickCheck:
    """Accepts calls whose arguments can be handed over as they are, at sizes that are known."""

    def __init__(self, parameters: Sequence[ParameterSpec], torch: Any | None) -> None:
        assert all(_is_fixed(p) for p in parameters)
        self._tensor = None if torch is None else torch.Tensor
        self._count = len(parameters)
        tensors = [(i, p) for i, p in enumerate(parameters) if p.kind == "tensor"]
        self._tensors = [(i, *_expected(p, torch)) for i, p in tensors]
        self._numbers = [(i, *_range(p)) for i, p in enumerate(parameters) if p.kind == "scalar"]
        self._apart = [
            (one, other)
            for one, (_, p) in enumerate(tensors)
            for other, (_, q) in enumerate(tensors)
            if p.is_written and one != other and not (q.is_written and other < one)
        ]

    def accepts(self, arguments: Sequence[Any]) -> bool:
        """Return whether the arguments are what the kernel was compiled for."""
        if len(arguments) != self._count:
            return False
        spans = []
        for i, torch_dtype, dtype, shape, strides, itemsize, size in self._tensors:
            tensor = arguments[i]
            if type(tensor) is self._tensor:
                if not (
                    tensor.dtype is torch_dtype
                    and tensor.shape == shape
                    and tensor.is_cpu
                    and (tensor.is_contiguous() if strides is None else tensor.stride() == strides)
                    and not tensor.requires_grad
                ):
                    return False
                address = tensor.data_ptr()
            elif type(tensor) is np.ndarray:
                flags = tensor.flags
                if not (
                    tensor.dtype is dtype
                    and tensor.shape == shape
                    and (flags.c_contiguous if strides is None else _steps(tensor) == strides)
                    and flags.writeable
                ):
                    return False
                address = tensor.ctypes.data
            else:
                return False
            if address % itemsize:
                return False
            spans.append((address, address + size))
        for i, kind, low, high in self._numbers:
            if type(arguments[i]) is not kind or not low <= arguments[i] <= high:
                return False
        for one, other in self._apart:  # no written tensor shares memory with another one
            start, end = spans[one]
            begin, stop = spans[other]
            if start < stop and begin < end:
                return False
        return True


class QuickChecks:
    """Accepts calls of the sizes that a kernel of dynamic sizes was called with before."""

    def __init__(self, parameters: Sequence[ParameterSpec], torch: Any | None) -> None:
        self._parameters, self._torch = parameters, torch
        self._known: Memo[QuickCheck] = Memo()
        tensors = [i for i, p in enumerate(parameters) if p.kind == "tensor"]
        self._shaped = [i for i in tensors if parameters[i].strides is None]
        self._strided = [i for i in tensors if parameters[i].strides is not None]
        self._numbers = [i for i, p in enumerate(parameters) if p.kind == "scalar"]

    def accepts(self, arguments: Sequence[Any]) -> bool:
        """Return whether the arguments are what the kernel takes, of sizes known by ``learn``."""
        known = self._known.get(self._sizes(arguments))
        return known is not None and known.accepts(arguments)

    def learn(self, arguments: Sequence[Any]) -> None:
        """Remember the sizes of arguments that ``check`` has accepted."""
        sizes = self._sizes(arguments)
        if sizes is None or sizes in self._known:
            return
        values = dims.bind(self._parameters, arguments)
        fixed = [_at(p, values) for p in self._parameters]
        self._known.keep(sizes, QuickCheck(fixed, self._torch))

    def _sizes(self, arguments: Sequence[Any]) -> Any:
        """Return what the dimensions of a call follow from, None of arguments of other kinds."""
        try:
            sizes = [arguments[i].shape for i in self._shaped]
            for i in self._strided:
                sizes += [arguments[i].shape, strides_of(arguments[i])]
            if self._numbers:  # only integers are sizes
                sizes += [a if type(a := arguments[i]) is int else None for i in self._numbers]
            return tuple(sizes)
        except (AttributeError, IndexError):
            return None


def _is_fixed(spec: ParameterSpec) -> bool:
    numbers = (*spec.shape, *(spec.strides or ()))
    return all(isinstance(n, int) for n in numbers)


def _at(spec: ParameterSpec, values: Mapping[str, int]) -> ParameterSpec:
    """Return a parameter of known sizes."""
    strides = spec.strides
    if strides is not None:
        strides = tuple(dims.evaluate(e, values) for e in strides)
    return replace(spec, shape=tuple(dims.evaluate(e, values) for e in spec.shape), strides=strides)


def _expected(spec: ParameterSpec, torch: Any | None) -> tuple[Any, ...]:
    """Return the types, shape, strides and sizes in bytes of one element and of all memory."""
    shape = tuple(int(extent) for extent in spec.shape)
    strides = None if spec.strides is None else tuple(int(s) for s in spec.strides)
    itemsize, count = DType(spec.dtype).itemsize, math.prod(shape)
    if strides is not None and count:
        count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return (
        None if torch is None else getattr(torch, spec.dtype),
        DType(spec.dtype).numpy if spec.dtype in NUMPY else None,
        shape, strides, itemsize, count * itemsize,
    )  # fmt: skip


def _range(spec: ParameterSpec) -> tuple[type, Any, Any]:
    """Return the type that a number must have, the least and the largest value."""
    if spec.dtype == "bool":
        return bool, False, True
    if "float" in spec.dtype:
        return float, -np.inf, np.inf
    return int, *DType(spec.dtype).ends


def _steps(array: Any) -> tuple[int, ...]:
    """Return the strides of a NumPy array in elements."""
    return tuple(s // array.itemsize for s in array.strides)
