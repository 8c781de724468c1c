"""Sums, differences and products of integers that wrap around, as those of NumPy and torch do.

TVM tells LLVM that arithmetic of 32 bits and more never leaves its type. Of indices that is true,
and LLVM needs it for their addresses; of what a program computes with elements (hashes, random
numbers, checksums) it is not, and LLVM makes 0 of ``-x`` and ``x`` of ``x * 4 // 4``.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.lowering.llvm_text import LLVM_TYPES, LlvmFunction
from tilecore.lowering.tir import TirBuilder, vector_type

PLAIN = {"add": tir.Add, "sub": tir.Sub, "mul": tir.Mul}
FLAGGED = ("int32", "int64", "uint32", "uint64")  # types of whose arithmetic TVM promises it


def wrapped(builder: TirBuilder, op: str, dtype: str, a: Any, b: Any, lanes: int) -> Any:
    """Return ``a op b``, an operation of PLAIN, of integers that may wrap around."""
    element = LLVM_TYPES[dtype]
    name = f"tilecore_{op}_{element}_x{lanes}"
    f = LlvmFunction(lanes)
    result = f.line(f"{op} {f.kind(element)} %x, %y")
    builder.define_llvm(name, f.text(name, element, element, result, ("%x", "%y")))
    return tir.call_pure_extern(vector_type(dtype, lanes), name, a, b)
