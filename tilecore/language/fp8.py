"""The float8 types that programs choose by the format they want."""

from __future__ import annotations

from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.ir.dtype import DType

__all__ = ["determine_fp8_type", "determine_torch_fp8_type"]
_TYPES = {"e4m3": DType("float8_e4m3fn"), "e5m2": DType("float8_e5m2")}


def determine_fp8_type(fp8_format: str = "e4m3") -> DType:
    """Return the type of this target with that format.

    Raises:
        TypeMismatch: another format than "e4m3" or "e5m2" (TC202).
    """
    if fp8_format not in _TYPES:
        raise TypeMismatch(expected='"e4m3" or "e5m2"', found=repr(fp8_format))
    return _TYPES[fp8_format]


def determine_torch_fp8_type(fp8_format: str = "e4m3") -> Any:
    """Return the same as a dtype of torch."""
    return determine_fp8_type(fp8_format).as_torch()
