"""Conversions between element types, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilecore.ir.dtype import DType

Value = Any  # a number, a NumPy scalar or array
NIBBLES = ("int4", "uint4")
E4M3FN_MAX, E8M0_MIN = 448.0, 2.0**-127


def convert(value: Value, dtype: np.dtype[Any]) -> Value:
    """Return ``value`` converted as the tile IR converts: float to int truncates toward zero.

    As in torch, where ml_dtypes gives NaN: numbers too large for float8_e4m3fn become its largest,
    and float8_e8m0fnu, which has neither sign nor zero, takes magnitudes, at least its smallest.
    """
    if dtype.name == "float4_e2m1fn":  # its largest, as on a GPU (ml_dtypes gives 0)
        value = np.where(np.isnan(np.asarray(value).astype(np.float64)), 6.0, value)
    if dtype.name == "float8_e4m3fn":
        value = np.clip(np.asarray(value).astype(np.float64), -E4M3FN_MAX, E4M3FN_MAX)
    if dtype.name == "float8_e8m0fnu":
        value = np.maximum(np.abs(np.asarray(value).astype(np.float64)), E8M0_MIN)
    with np.errstate(invalid="ignore", over="ignore"):
        given = np.asarray(value).dtype.name  # NumPy knows no conversion between these:
        if dtype.name in NIBBLES and given in NIBBLES:
            value = np.asarray(value).astype(np.int8)
        if dtype.name.startswith("float8") and given == "float8_e8m0fnu":
            value = np.asarray(value).astype(np.float32)
        return np.asarray(value).astype(dtype)[()]


def nearest(value: float, dtype: str) -> float:
    """Return the number of a float type that a literal of it stands for."""
    return float(convert(value, DType(dtype).numpy))
