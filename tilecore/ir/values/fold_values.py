"""Folds in NumPy: what reductions, scans and atomic updates do to values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilecore.ir.dtype import DType
from tilecore.ir.fold import identity

Array = npt.NDArray[Any]
_STEPS: dict[str, np.ufunc] = {
    "sum": np.add, "abssum": np.add, "max": np.fmax, "absmax": np.fmax, "min": np.fmin,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
}  # fmt: skip
_KEEPS_NAN: dict[str, np.ufunc] = {"max": np.maximum, "absmax": np.maximum, "min": np.minimum}


def fold_values(op: str, values: Array, axes: tuple[int, ...], keeps_nan: bool) -> Array:
    """Return ``values`` folded along ``axes`` in their own type, from the identity on."""
    step = _KEEPS_NAN.get(op, _STEPS[op]) if keeps_nan else _STEPS[op]
    if op.startswith("abs"):
        values = np.abs(values)
    start = identity(op, DType(values.dtype))
    return np.asarray(step.reduce(values, axis=axes, dtype=values.dtype, initial=start))


def scan_values(op: str, values: Array, axis: int, reverse: bool) -> Array:
    """Return the running fold of ``values`` along ``axis``, from the end if ``reverse``."""
    ordered = np.flip(values, axis) if reverse else values
    result = _STEPS[op].accumulate(ordered, axis=axis, dtype=values.dtype)
    if op == "max" and values.dtype.kind == "f":
        result = np.where(np.isnan(result), values.dtype.type(-np.inf), result)
    return np.flip(result, axis) if reverse else result


_UPDATES: dict[str, np.ufunc] = {
    "add": np.add, "max": np.fmax, "min": np.fmin, "or": np.bitwise_or, "bitor": np.bitwise_or,
    "and": np.bitwise_and, "bitand": np.bitwise_and, "ne": np.bitwise_xor,
    "bitxor": np.bitwise_xor,
}  # fmt: skip


def updated_value(op: str, old: Any, value: Any) -> Any:
    """Return what an update (of an atomic or a reducer) leaves in an element that holds ``old``."""
    if op in ("load", "store"):
        return old if op == "load" else value
    step = _UPDATES[op]
    narrow = old.dtype.itemsize == 2 and old.dtype.kind not in "iub"
    wide = (np.float32(old), np.float32(value)) if narrow else (old, value)
    return np.asarray(step(*wide)).astype(old.dtype)
