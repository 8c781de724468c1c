"""The common call in half a microsecond: the kernel's own entry looks at tensors and arrays.

``codegen/accept.ll`` reads the table that is made here. What it does not accept is not refused:
``runtime.kernel.check`` looks again, closely, and says what is wrong.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from tilecore.artifact import ParameterSpec
from tilecore.ir.dtype import DType
from tilecore.runtime.quick import AS_THEY_ARE

ENTRY = "checked"
TENSOR, INTEGER, BOOL, FLOAT = 0, 1, 2, 3  # kinds of parameters, but for tensors TVM's numbers
MOST = 32  # tensors, and numbers that the call decides
FIELDS = 8  # of a parameter
INT64_MAX = (1 << 63) - 1
CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}  # DLPack's


def table_of(parameters: Sequence[ParameterSpec]) -> Any | None:
    """Return what the arguments of a kernel must be, as its entry reads it.

    Returns:
        An array of 64-bit numbers, to be kept as long as the kernel; None where an extent is an
        expression or the entry knows no such parameters.
    """
    table = _Table(len(parameters))
    found = [table.parameter(spec) for spec in parameters]
    tensors = sum(spec.kind == "tensor" for spec in parameters)
    if None in found or max(tensors, len(table.names)) > MOST:
        return None
    fields = [field for record in found if record is not None for field in record]
    values = [len(parameters), *fields, *table.rest]
    return (ctypes.c_int64 * len(values))(*values)


class _Table:
    """The parts of a table: the names that stand for numbers, and what follows the parameters."""

    def __init__(self, count: int) -> None:
        self.names: dict[str, int] = {}
        self.rest: list[int] = []
        self._begin = 1 + FIELDS * count

    def parameter(self, spec: ParameterSpec) -> tuple[int, ...] | None:
        """Return the fields of a parameter."""
        if spec.dtype not in AS_THEY_ARE:
            return None
        place = self._begin + len(self.rest)
        if spec.kind == "scalar":
            return self._scalar(spec, place)
        if spec.kind != "tensor":
            return None
        numbers = [self._number(extent) for extent in (*spec.shape, *(spec.strides or ()))]
        if any(number is None for number in numbers):
            return None
        self.rest += [number for number in numbers if number is not None]
        kind = DType(spec.dtype)
        is_strided = int(spec.strides is not None)
        written = int(spec.is_written)
        return (
            TENSOR, _type_word(spec.dtype), len(spec.shape), place, is_strided, kind.itemsize,
            written, -1,
        )  # fmt: skip

    def _scalar(self, spec: ParameterSpec, place: int) -> tuple[int, ...]:
        if spec.dtype == "bool":
            return (BOOL, 0, 0, place, 0, 0, 0, -1)
        if "float" in spec.dtype:
            return (FLOAT, 0, 0, place, 0, 0, 0, -1)
        low, high = DType(spec.dtype).ends
        # The least of all stands for a number that no argument has told yet (accept.ll).
        self.rest += [max(low, -INT64_MAX), min(high, INT64_MAX)]
        return (INTEGER, 0, 0, place, 0, 0, 0, self._named(spec.name))

    def _number(self, extent: int | str) -> int | None:
        """Return an extent as the table has it; None: it is an expression."""
        if isinstance(extent, int):
            return extent if extent >= 0 else None
        return ~self._named(extent) if extent.isidentifier() else None

    def _named(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))


def _type_word(dtype: str) -> int:
    """Return an element type as DLPack has it in memory: code, bits, one lane."""
    name = dtype.rstrip("0123456789")
    bits = 8 * DType(dtype).itemsize
    return CODES[name] | bits << 8 | 1 << 16
