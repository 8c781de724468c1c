"""Elements of 4 bits in NumPy: arrays whose bytes hold two of them, the first in the low half."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilecore.ir.dtype import DType

Array = npt.NDArray[Any]
PER_BYTE = 2


def codes(values: Array) -> Array:
    """Return the bits of 4-bit values, one per byte."""
    if values.dtype.name == "float4_e2m1fn":
        return values.view(np.uint8) & 0xF
    return values.astype(np.int8).view(np.uint8) & 0xF


def from_codes(bits: Array, dtype: DType) -> Array:
    """Return the 4-bit values with these bits."""
    if dtype.is_float:
        return bits.view(dtype.numpy)
    if dtype.is_signed:
        return ((bits << 4).view(np.int8) >> 4).astype(dtype.numpy)
    return bits.astype(dtype.numpy)


def reinterpreted(values: Array, dtype: DType) -> Array:
    """Return the bits of values as values of another type of the same width."""
    if dtype.is_packed:
        return from_codes(codes(values), dtype)
    return values.view(dtype.numpy)


class PackedArray:
    """Bytes seen as an array of 4-bit values, with as much of NumPy's indexing as is needed.

    The last axis has two elements per byte; a row of odd length ends with half a byte unused.
    """

    def __init__(self, memory: Array, dtype: DType, shape: tuple[int, ...]) -> None:
        self.memory, self._bytes = memory, memory.view(np.uint8)
        self.kind, self.dtype, self.shape = dtype, dtype.numpy, shape
        self.ndim = len(shape)

    def __getitem__(self, place: tuple[Any, ...]) -> Any:
        byte, shift = self._at(place)
        return from_codes(np.asarray(self._bytes[byte] >> shift) & np.uint8(0xF), self.kind)[()]

    def __setitem__(self, place: tuple[Any, ...], value: Any) -> None:
        byte, shift = self._at(place)
        bits = codes(np.asarray(value).astype(self.dtype))
        for half in (0, 4):  # the two halves of one byte must not lose each other's update
            chosen = np.broadcast_to(shift == half, np.broadcast(*byte, bits).shape)
            where = tuple(np.broadcast_to(b, chosen.shape)[chosen] for b in byte)
            new = np.broadcast_to(bits, chosen.shape)[chosen] << np.uint8(half)
            self._bytes[where] = self._bytes[where] & np.uint8(0xF0 >> half) | new

    def _at(self, place: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        *rows, last = (np.asarray(p) for p in place)
        return (*rows, last // PER_BYTE), np.asarray(last % PER_BYTE * 4).astype(np.uint8)


def empty_packed(shape: tuple[int, ...], dtype: DType, pattern: int) -> PackedArray:
    """Return a new packed array, every byte set to ``pattern``."""
    *rows, last = shape
    return PackedArray(np.full((*rows, -(-last // PER_BYTE)), pattern, np.uint8), dtype, shape)


def as_array(memory: Array, dtype: DType) -> Array | PackedArray | None:
    """Return a caller's array as one of elements of ``dtype``; None if it has others."""
    if not dtype.is_packed:
        return memory if memory.dtype == dtype.numpy else None
    if memory.dtype not in (np.int8, np.uint8) or not memory.ndim:
        return None
    return PackedArray(memory, dtype, measures(memory, dtype)[0])


def memory_of(array: Array | PackedArray) -> Array:
    """Return the NumPy array that holds the elements."""
    return array.memory if isinstance(array, PackedArray) else array


def measures(memory: Array, dtype: DType) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides of an array in elements of ``dtype``."""
    steps = tuple(s // max(1, memory.itemsize) for s in memory.strides)
    if not dtype.is_packed or not steps:
        return memory.shape, steps
    *rows, last = memory.shape
    return (*rows, last * PER_BYTE), (*(s * PER_BYTE for s in steps[:-1]), steps[-1])


def bytes_of(shape: Sequence[int], steps: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return shape and strides of packed elements in bytes."""
    return [*shape[:-1], shape[-1] // PER_BYTE], [*(s // PER_BYTE for s in steps[:-1]), steps[-1]]


def at_address(
    address: int, shape: Sequence[int], steps: Sequence[int], dtype: np.dtype[Any]
) -> Array:
    """Return the memory at an address as an array; ``steps`` are strides in elements."""
    if 0 in shape:
        return np.zeros(shape, dtype)
    last = sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    memory = (ctypes.c_byte * ((last + 1) * dtype.itemsize)).from_address(address)
    strides = [s * dtype.itemsize for s in steps]
    return np.ndarray(shape, dtype, memory, strides=strides)  # type: ignore[arg-type]  # a buffer


def packed(values: Array, dtype: DType) -> Array:
    """Return numbers, converted to ``dtype``, two per byte; the last axis becomes half as long."""
    bits = codes(values.astype(dtype.numpy))
    result: Array = np.bitwise_or(bits[..., 0::2], bits[..., 1::2] << np.uint8(4))
    return result
