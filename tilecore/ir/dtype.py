"""Element types: names, widths, promotion, and their NumPy counterparts."""

from __future__ import annotations

import importlib
from typing import Any

import ml_dtypes
import numpy as np

from tilecore.errors import TypeMismatch

BITS = {
    "bool": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64,
    "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8, "int4": 4, "uint4": 4, "float4_e2m1fn": 4,
}  # fmt: skip
_NUMPY = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in BITS}
# What torch and NumPy keep pairs of 4-bit elements in; NumPy has bytes for all of them.
_TORCH_STORAGE = {"int4": "int8", "uint4": "uint8", "float4_e2m1fn": "float4_e2m1fn_x2"}
_ALIASES = {
    "float": "float32", "half": "float16", "double": "float64", "int": "int32", "long": "int64",
    "short": "int16", "char": "int8", "boolean": "bool", "uint": "uint32", "f16": "float16",
    "bf16": "bfloat16", "f32": "float32", "f64": "float64", "fp16": "float16", "fp32": "float32",
    "i8": "int8", "i32": "int32", "i64": "int64", "e4m3_float8": "float8_e4m3fn",
    "e5m2_float8": "float8_e5m2", "float8_e4m3": "float8_e4m3fn", "tfloat32": "float32",
}  # fmt: skip


_MADE: dict[str, DType] = {}  # by names and aliases that were asked for


class DType(str):
    """An element type; equal to its canonical name, so ``DType("float") == "float32"``.

    Accepts names, aliases, NumPy dtypes and torch dtypes. Called with a value inside a tile
    program it converts the value: ``T.float32(x)``.

    Raises:
        TypeMismatch: the name is not an element type that tilecore knows.
    """

    __slots__ = ()

    def __new__(cls, name: Any) -> DType:
        """Return the element type of that name."""
        if isinstance(name, DType):
            return name
        if type(name) is str and name in _MADE:
            return _MADE[name]
        text = str(name).removeprefix("torch.")
        if isinstance(name, (type, np.dtype)):
            text = np.dtype(name).name
        text = _ALIASES.get(text, text)
        if text.partition("x")[0] in BITS and text.rpartition("x")[2].isdigit():
            element, _, lanes = text.rpartition("x")
            raise TypeMismatch(
                expected="an element type; vectors are values, variables (T.alloc_var) and "
                "elements of tiles (T.alloc_local and its kin), but no tensor's",
                found=text,
                hint=f"use {element} and one more axis of {lanes}",
            )
        if text not in BITS:
            raise TypeMismatch(
                expected=f"an element type ({', '.join(sorted(BITS))})", found=repr(name)
            )
        found = super().__new__(cls, text)
        if type(name) is str:
            _MADE[name] = found
        return found

    def __call__(self, *value: Any) -> Any:
        """Return a value converted to this type; without one, a variable for T.let to bind.

        Raises:
            TypeMismatch: several values, or a Python integer that the type does not hold (TC202).
        """
        from tilecore.ir.expr import Var, cast, holds

        if len(value) > 1:
            raise TypeMismatch(expected=f"one value of {self}", found=f"{len(value)} values")
        if value and type(value[0]) is int and self != "bool" and not holds(self, value[0]):
            raise TypeMismatch(expected=f"a number that {self} holds", found=value[0])
        return cast(value[0], self) if value else Var("v", self)

    def as_torch(self) -> Any:
        """Return torch's dtype of this name (of 4 bits: of its pairs); torch must be installed."""
        torch = importlib.import_module("torch")
        return getattr(torch, _TORCH_STORAGE.get(str(self), str(self)))

    def storage_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the tensor that holds elements of ``shape``: of 4 bits, of bytes."""
        return (*shape[:-1], shape[-1] // 2) if self.is_packed else shape

    @property
    def bits(self) -> int:
        """Width of one element in memory."""
        return BITS[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory; of two elements of 4 bits."""
        return max(1, self.bits // 8)

    @property
    def bytes(self) -> int:
        """``itemsize``, by TileLang's name."""
        return self.itemsize

    @property
    def is_packed(self) -> bool:
        """Whether a byte of a tensor holds two elements, the first in its low half."""
        return self.bits < 8

    @property
    def storage(self) -> str:
        """The type in words, with what tensors of it are passed as."""
        return f"{self}, two per byte of int8 or uint8" if self.is_packed else str(self)

    @property
    def computed(self) -> DType:
        """The type that arithmetic on values takes place in: that of C for less than 8 bits."""
        if not self.is_packed:
            return self
        return DType("float32" if self.is_float else "int32")

    @property
    def is_float(self) -> bool:
        """Whether values are floating point."""
        return "float" in self

    @property
    def is_integer(self) -> bool:
        """Whether values are integers (bool is not)."""
        return not self.is_float and self != "bool"

    @property
    def is_signed(self) -> bool:
        """Whether values can be negative."""
        return not self.startswith("uint") and self != "bool"

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest value of an integer type."""
        low = -(1 << (self.bits - 1)) if self.is_signed else 0
        return low, low + (1 << self.bits) - 1

    def wrapped(self, value: int) -> int:
        """Return the number of an integer type that has the low bits of ``value``."""
        low, _ = self.ends
        return (value - low) % (1 << self.bits) + low

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype (bfloat16 and float8 from ml_dtypes)."""
        return _NUMPY[self]


def promote(a: str, b: str) -> DType:
    """Return the common type of two operands: float beats int, wider beats narrower."""
    x, y = DType(a), DType(b)
    if x == y:
        return x
    if x.is_float != y.is_float:
        return x if x.is_float else y
    if x == "bool" or y == "bool":
        return y if x == "bool" else x
    if x.bits != y.bits:
        return x if x.bits > y.bits else y
    if x.is_float:  # float16 with bfloat16, or the two float8 types: neither holds the other
        return DType("float32")
    return x if not x.is_signed else y
