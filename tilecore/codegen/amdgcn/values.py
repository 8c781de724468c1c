"""Values of LLVM IR text, with constants folded, and the types they have."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from tilecore.errors import UnsupportedOnTarget
from tilecore.ir.dtype import DType

LLVM_TYPES = {
    "bool": "i1", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "int32": "i32",
    "uint32": "i32", "int64": "i64", "uint64": "i64", "float16": "half", "float32": "float",
    "float64": "double", "void": "void",
}  # fmt: skip
GLOBAL, LOCAL_DATA_SHARE, PRIVATE = 1, 3, 5  # address spaces
SPACES = {"global": GLOBAL, "shared": LOCAL_DATA_SHARE, "shared.dyn": LOCAL_DATA_SHARE,
          "local": PRIVATE, "": GLOBAL}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """An operand.

    Attributes:
        dtype: TIR's name of the type; "ptr" for a pointer.
        text: as LLVM writes it, without its type.
        number: of an integer that is known.
        space: address space of a pointer.
    """

    dtype: str
    text: str
    number: int | None = None
    space: int = 0

    @property
    def type(self) -> str:
        """LLVM's name of the type."""
        return f"ptr addrspace({self.space})" if self.dtype == "ptr" else llvm_type(self.dtype)

    @property
    def typed(self) -> str:
        """The operand with its type."""
        return f"{self.type} {self.text}"


def llvm_type(dtype: str) -> str:
    """Return LLVM's name of a scalar type.

    Raises:
        UnsupportedOnTarget: there is none (TC302).
    """
    if dtype not in LLVM_TYPES:
        raise UnsupportedOnTarget(
            what=f"the type {dtype}", target="rocm", reason=f"expected {', '.join(LLVM_TYPES)}"
        )
    return LLVM_TYPES[dtype]


def memory_type(dtype: str) -> str:
    """Return LLVM's name of the type that an element has in memory."""
    return "i8" if dtype == "bool" else llvm_type(dtype)


def integer(number: int, dtype: str = "int32") -> Value:
    """Return a known integer."""
    if dtype == "bool":
        return Value(dtype, "true" if number else "false", int(bool(number)))
    return Value(dtype, str(number), number)


def floating(number: float, dtype: str) -> Value:
    """Return a literal; LLVM writes float32 by the bits of the same float64."""
    if dtype == "float16":
        return Value(dtype, f"0xH{np.float16(number).view(np.uint16):04X}")
    exact = float(np.float32(number)) if dtype == "float32" else number
    return Value(dtype, "0x" + struct.pack(">d", exact).hex().upper())


def is_float(dtype: str) -> bool:
    """Return whether a type is floating."""
    return dtype.startswith("float")


def is_unsigned(dtype: str) -> bool:
    """Return whether a type is an unsigned integer."""
    return dtype.startswith("uint") or dtype == "bool"


def bits_of(dtype: str) -> int:
    """Return the width of a type."""
    return 1 if dtype == "bool" else DType(dtype).bits
