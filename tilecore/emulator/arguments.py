"""Arguments of an emulated kernel: arrays, scalars and tensor maps as the kernel's parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecore.errors import EmulationError

MAGIC = 0x70616D74
# Numbers of element types: tilecore/emulator/runtime/elements.h.
TYPES = {
    "float16": 0, "bfloat16": 1, "float32": 3, "float64": 4, "float8_e4m3fn": 5,
    "float8_e5m2": 6, "int8": 9, "uint8": 10, "bool": 10, "int32": 13, "uint32": 14,
    # Only copied: what has their width.
    "int16": 1, "uint16": 1, "int64": 4, "uint64": 4,
}  # fmt: skip
MAX_BOX = 256
MAP_ALIGNMENT = 128


class _Map(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64), ("extents", ctypes.c_uint64 * 5),
        ("strides", ctypes.c_uint64 * 4), ("box", ctypes.c_uint16 * 5), ("type", ctypes.c_uint8),
        ("rank", ctypes.c_uint8), ("swizzle", ctypes.c_uint8), ("fills_nan", ctypes.c_uint8),
        ("magic", ctypes.c_uint32),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TensorMap:
    """A tensor map over an array, as cuTensorMapEncodeTiled makes one.

    Attributes:
        array: the tensor, of at most 5 axes; the last one is contiguous.
        box: extents of what one transfer moves, in the array's order of axes.
        swizzle: 0, 32, 64 or 128 bytes.
        fills_nan: elements outside the tensor are NaN instead of 0.
    """

    array: np.ndarray[Any, Any]
    box: Sequence[int]
    swizzle: int = 0
    fills_nan: bool = False

    def faults(self) -> list[str]:
        """Return what the driver would refuse."""
        a, found = self.array, []
        size = a.itemsize
        if not 1 <= a.ndim <= 5 or len(self.box) != a.ndim:
            return [f"expected 1 to 5 axes and as many of the box, found {a.shape} and {self.box}"]
        if a.dtype.name not in TYPES:
            found.append(f"no tensor map has elements of {a.dtype}")
        if a.strides[-1] != size:
            found.append("expected contiguous elements along the last axis")
        if a.ctypes.data % 16:
            found.append("expected a tensor that begins at a multiple of 16 bytes")
        if any(s % 16 or s <= 0 for s in a.strides[:-1]):
            found.append(f"expected strides that are multiples of 16 bytes, found {a.strides[:-1]}")
        if any(not 1 <= e <= MAX_BOX for e in self.box):
            found.append(f"expected a box of 1 to 256 elements along each axis, found {self.box}")
        row = self.box[-1] * size
        if row % 16:
            found.append(f"expected a row of the box of a multiple of 16 bytes, found {row}")
        if self.swizzle not in (0, 32, 64, 128) or (self.swizzle and row > self.swizzle):
            found.append(f"a row of {row} bytes does not fit a swizzle of {self.swizzle}")
        return found

    def encode(self) -> Any:
        """Return the parameter; the array must outlive it.

        Raises:
            EmulationError: the driver would refuse the map (TC307).
        """
        faults = self.faults()
        if faults:
            raise EmulationError(kernel="a tensor map", what="; ".join(faults))
        a = self.array
        return encode_map(
            a.ctypes.data, a.dtype.name, a.shape[::-1], a.strides[-2::-1] if a.ndim > 1 else (),
            tuple(self.box)[::-1], self.swizzle, self.fills_nan,
        )  # fmt: skip


def encode_map(
    address: int, dtype: str, extents: Sequence[int], strides: Sequence[int], box: Sequence[int],
    swizzle: int, fills_nan: bool = False,
) -> Any:  # fmt: skip
    """Return a tensor map as the emulator reads it, aligned; axes go from the innermost on."""
    storage = (ctypes.c_ubyte * (128 + MAP_ALIGNMENT))()
    made = _Map.from_buffer(storage, -ctypes.addressof(storage) % MAP_ALIGNMENT)
    made.address, made.rank, made.type = address, len(extents), TYPES[dtype]
    made.swizzle, made.fills_nan, made.magic = swizzle, int(fills_nan), MAGIC
    for i, (extent, size) in enumerate(zip(extents, box, strict=True)):
        made.extents[i], made.box[i] = extent, size
    for i, stride in enumerate(strides):
        made.strides[i] = stride
    return made


def span(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the first address and the bytes up to the last element of an array."""
    if array.size == 0:
        return array.ctypes.data, 0
    low = sum(min(0, (n - 1) * s) for n, s in zip(array.shape, array.strides, strict=True))
    high = sum(max(0, (n - 1) * s) for n, s in zip(array.shape, array.strides, strict=True))
    return array.ctypes.data + low, high - low + array.itemsize
