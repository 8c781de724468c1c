"""Sums, differences and products of integers that wrap around, as those of NumPy and torch do.

TVM tells LLVM that arithmetic of 32 bits and more never leaves its type. Of indices that is true,
and LLVM needs it for their addresses; of what a program computes with elements (hashes, random
numbers, checksums) it is not, and LLVM makes 0 of ``-x`` and ``x`` of ``x * 4 // 4``.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.lowering.cpu.llvm_text import LLVM_TYPES, LlvmFunction
from tilecore.lowering.cpu.tir import TirBuilder, vector_type

# Memory that LLVM takes for any number.
ZERO = "@tilecore_zero = linkonce_odr hidden global i64 0\n"
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


def hidden(builder: TirBuilder, dtype: str, value: Any) -> Any:
    """Return an integer, a remainder or what is left of a wider one, that LLVM cannot take apart.

    LLVM 22 makes vectors of a loop whose index grows by 1 but for where it begins anew, under a
    condition to be tested when the loop runs. That the narrow index does not wrap around it takes
    for implied where a wider one does not (``SCEVWrapPredicate::implies``), and reads on.
    """
    element = LLVM_TYPES[dtype]
    name = f"tilecore_hidden_{element}"
    f = LlvmFunction(1)
    zero = f.line(f"load {element}, ptr @tilecore_zero")
    result = f.line(f"or {element} %x, {zero}")
    builder.define_llvm("tilecore_zero", ZERO)
    builder.define_llvm(name, f.text(name, element, element, result))
    return tir.call_pure_extern(dtype, name, value)
