"""Element types as names: T.float16, T.float32, ..., T.dtype."""

from __future__ import annotations

import importlib
from typing import Any

from tilecore.ir.dtype import BITS
from tilecore.ir.dtype import DType as dtype
from tilecore.ir.vector import VectorType

DataType = dtype  # by TVM's name
bool_ = dtype("bool")
int8, int16, int32, int64 = dtype("int8"), dtype("int16"), dtype("int32"), dtype("int64")
uint8, uint16, uint32, uint64 = dtype("uint8"), dtype("uint16"), dtype("uint32"), dtype("uint64")
float16, bfloat16 = dtype("float16"), dtype("bfloat16")
float32, float64 = dtype("float32"), dtype("float64")
float8_e4m3fn, float8_e4m3 = dtype("float8_e4m3fn"), dtype("float8_e4m3fn")
float8_e5m2 = dtype("float8_e5m2")
float8_e4m3fnuz, float8_e5m2fnuz = dtype("float8_e4m3fnuz"), dtype("float8_e5m2fnuz")
float8_e8m0fnu = dtype("float8_e8m0fnu")
int4, uint4, float4_e2m1fn = dtype("int4"), dtype("uint4"), dtype("float4_e2m1fn")
tfloat32 = float32  # the matrix units of GPUs drop bits of its fraction; a CPU keeps them
# Names of C and of TileLang for the same types; `T.int`, `T.float` and `T.bool` shadow Python's
# only inside the namespace of the language.
ALIASES = {
    "bool": bool_, "boolean": bool_, "int": int32, "long": int64, "short": int16, "char": int8,
    "uint": uint32, "half": float16, "float": float32, "double": float64,
}  # fmt: skip

_STORAGE = {"int4": "int8", "uint4": "uint8"}


def resolve_torch_storage_dtype(value: Any) -> dtype | VectorType:
    """Return the type of the elements of torch tensors that carry elements of a type."""
    kind = dtype(value)
    if kind == "float4_e2m1fn":
        return VectorType(kind, 2)
    return dtype(_STORAGE.get(kind, kind))


def torch_names() -> dict[Any, str]:
    """Return the name of each element type of torch; torch must be installed."""
    torch = importlib.import_module("torch")
    return {getattr(torch, name): name for name in BITS if hasattr(torch, name)}


__all__ = [
    "ALIASES", "DataType", "bfloat16", "dtype", "float16", "float32", "float4_e2m1fn", "float64",
    "float8_e4m3",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "resolve_torch_storage_dtype", "torch_names",
    "int16", "int32", "int4", "int64", "int8", "tfloat32", "uint16", "uint32", "uint4", "uint64",
    "uint8",
]  # fmt: skip
