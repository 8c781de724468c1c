"""What a kernel call needs to know of a torch or NumPy tensor, without importing either."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor's memory. ``strides`` are in elements; ``handle`` is what the kernel is given."""

    handle: Any
    device: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    address: int
    is_contiguous: bool
    is_readonly: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements (of a contiguous tensor: of its memory)."""
        return math.prod(self.shape) * self.itemsize

    @property
    def end(self) -> int:
        """Address after the last byte."""
        if self.is_contiguous or 0 in self.shape:
            return self.address + self.size_bytes
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.address + (last + 1) * self.itemsize


def view(tensor: Any) -> TensorView | None:
    """Return a view of a torch or NumPy tensor, or None for anything else."""
    if isinstance(tensor, np.ndarray):
        return _numpy_view(tensor)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _torch_view(tensor)
    return None


def _numpy_view(array: np.ndarray[Any, Any]) -> TensorView:
    readonly = not array.flags.writeable
    return TensorView(
        handle=_numpy_handle(array, readonly),
        device="cpu",
        dtype=array.dtype.name,
        shape=array.shape,
        strides=tuple(s // max(1, array.itemsize) for s in array.strides),
        itemsize=array.itemsize,
        address=array.ctypes.data,
        is_contiguous=array.flags.c_contiguous,
        is_readonly=readonly,
    )


def _numpy_handle(array: np.ndarray[Any, Any], readonly: bool) -> Any:
    """Return the object passed to the kernel; DLPack knows no ml_dtypes and no read-only memory."""
    if array.dtype.name.startswith("float8"):
        array = array.view(np.uint8)  # kernels take the bytes
    if array.dtype.name == "bfloat16" or readonly:
        import torch

        kind = f"int{8 * array.itemsize}"
        bits = np.ndarray(array.shape, kind, _writable(array), strides=array.strides)
        return torch.from_numpy(bits).view(getattr(torch, array.dtype.name))
    return array


def _writable(array: np.ndarray[Any, Any]) -> Any:
    """Return the array's memory as a writable buffer (the kernel only reads it)."""
    import ctypes

    last = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
    size = last + array.itemsize if array.size else 0
    return (ctypes.c_byte * size).from_address(array.ctypes.data)


def _torch_view(tensor: Any) -> TensorView:
    dtype = str(tensor.dtype).removeprefix("torch.")
    handle = tensor.detach() if tensor.requires_grad else tensor
    if dtype.startswith("float8"):
        handle = handle.view(sys.modules["torch"].uint8)  # kernels take the bytes
    return TensorView(
        handle=handle,
        device=tensor.device.type,
        dtype=dtype,
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        itemsize=tensor.element_size(),
        address=tensor.data_ptr() if tensor.device.type == "cpu" else 0,
        is_contiguous=tensor.is_contiguous(),
    )
