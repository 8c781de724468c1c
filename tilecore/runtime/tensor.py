"""What a kernel call needs to know of a torch or NumPy tensor, without importing either."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

# What tensors of two elements per byte are passed as.
_PAIRS = {
    "int4": ("int8", "uint8"), "uint4": ("int8", "uint8"),
    "float4_e2m1fn": ("int8", "uint8", "float4_e2m1fn_x2"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor's memory. ``strides`` are in elements; ``handle`` is what the kernel is given.

    ``itemsize`` bytes hold ``per_item`` elements. One that is not dense has no strides, and a
    ``dtype`` of its own.
    """

    handle: Any
    device: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    address: int
    is_contiguous: bool
    is_readonly: bool = False
    per_item: int = 1
    is_dense: bool = True

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements (of a contiguous tensor: of its memory)."""
        return math.prod(self.shape) * self.itemsize // self.per_item

    @property
    def end(self) -> int:
        """Address after the last byte."""
        if self.is_contiguous or 0 in self.shape:
            return self.address + self.size_bytes
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.address + (last // self.per_item + 1) * self.itemsize


def view(tensor: Any, dtype: str = "") -> TensorView | None:
    """Return a view of a torch or NumPy tensor, or None for anything else.

    Bytes given for elements ``dtype`` of 4 bits are seen as those: the last axis is twice as long.
    """
    torch = sys.modules.get("torch")
    if isinstance(tensor, np.ndarray):
        found = _numpy_view(tensor)
    elif torch is not None and _is_of_torch(tensor, torch):
        found = _torch_view(tensor)
    else:
        return None
    return _pairs(found, dtype) if found.dtype in _PAIRS.get(dtype, ()) else found


def _is_of_torch(tensor: Any, torch: Any) -> bool:
    """Return whether a value is a tensor of torch: not one that a computation is read with."""
    return isinstance(tensor, torch.Tensor) and not getattr(tensor, "is_read", False)


def _pairs(found: TensorView, dtype: str) -> TensorView:
    handle, byte = found.handle, np.uint8
    if not isinstance(handle, np.ndarray):
        byte = sys.modules["torch"].uint8
    shape = (*found.shape[:-1], *(2 * n for n in found.shape[-1:]))
    strides = (*(2 * s for s in found.strides[:-1]), *found.strides[-1:])
    return replace(
        found, handle=handle.view(byte), dtype=dtype, shape=shape, strides=strides, per_item=2
    )


def _numpy_view(array: np.ndarray[Any, Any]) -> TensorView:
    readonly = not array.flags.writeable
    return TensorView(
        handle=_numpy_handle(array, readonly),
        device="cpu",
        dtype=array.dtype.name if array.dtype.isnative else array.dtype.str,
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
    if str(tensor.layout) != "torch.strided":
        return TensorView(
            handle=tensor, device=tensor.device.type, dtype=f"{dtype} in {tensor.layout}",
            shape=tuple(tensor.shape), strides=(0,) * tensor.ndim, itemsize=tensor.element_size(),
            address=0, is_contiguous=False, is_dense=False,
        )  # fmt: skip
    handle = tensor.detach() if tensor.requires_grad else tensor
    if dtype.startswith("float8"):
        handle = handle.view(sys.modules["torch"].uint8)  # kernels take the bytes
    return TensorView(
        handle=handle,
        device="cpu" if tensor.is_cpu else tensor.device.type,
        dtype=dtype,
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        itemsize=tensor.element_size(),
        address=tensor.data_ptr(),
        is_contiguous=tensor.is_contiguous(),
    )
