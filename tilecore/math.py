"""Small integer helpers as programs find them under ``tilelang.math``."""

from __future__ import annotations

from typing import Any


def next_power_of_2(x: int) -> int:
    """Return the smallest power of two that is at least ``x`` (1 for x <= 1)."""
    return 1 << max(0, int(x) - 1).bit_length()


def cdiv(a: Any, b: Any) -> Any:
    """Return a / b rounded up, for ints, expressions and integer tensors."""
    return (a + b - 1) // b
