"""Networks of shuffles on as many vectors as one has lanes: transposition, folds of all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx as tir

from tilecore.lowering.llvm_text import LLVM_TYPES, shuffle_order
from tilecore.lowering.tir import TirBuilder, vector_type


def transpose(builder: TirBuilder, rows: list[Any], lanes: int) -> list[Any]:
    """Return the columns of a lanes x lanes block: log2(lanes) stages of perfect shuffles."""
    current = rows
    for _ in range(lanes.bit_length() - 1):
        current = [half for pair in _interleaved(builder, current, lanes) for half in pair]
    return current


def fold_rows(
    builder: TirBuilder,
    rows: list[Any],
    lanes: int,
    dtype: str,
    combine: Callable[[Any, Any], Any],
) -> Any:
    """Return a vector of the folds of each row of a lanes x lanes block.

    What is folded passes through a register's memory: TVM would look through names, and the terms
    that it then compares grow with every stage.
    """
    current = rows
    while len(current) > 1:
        folded = []
        for low, high in _interleaved(builder, current, lanes):
            (register,) = builder.registers(1, lanes, dtype)
            builder.store(register, combine(low, high), 0, lanes)
            folded.append(builder.bind(builder.load(register, 0, lanes)))
        current = folded
    return current[0]


def spread(
    builder: TirBuilder, given: Sequence[Any], dtype: str, count: int, chosen: Sequence[int]
) -> Any:
    """Return of the elements of a vector or two, ``count`` each, one per lane.

    TVM's shuffles have no more lanes than what they are given.
    """
    element, lanes = LLVM_TYPES[dtype], len(chosen)
    kind, result = f"<{count} x {element}>", f"<{lanes} x {element}>"
    name = f"tilecore_spread{len(given)}_{element}x{count}_{'_'.join(map(str, chosen))}"
    other, names = ("%w", ("%v", "%w")) if len(given) > 1 else ("poison", ("%v",))
    arguments = ", ".join(f"{kind} {argument}" for argument in names)
    text = f"""define linkonce_odr hidden {result} @{name}({arguments}) alwaysinline {{
  %r = shufflevector {kind} %v, {kind} {other}, {shuffle_order(chosen)}
  ret {result} %r
}}"""
    return builder.call_llvm(vector_type(dtype, lanes), name, text, *given)


def _interleaved(builder: TirBuilder, vectors: list[Any], lanes: int) -> list[tuple[Any, Any]]:
    """Return the lower and the upper halves of vectors half the list apart, lanes in turn."""
    low = [i for k in range(lanes // 2) for i in (k, lanes + k)]
    high = [i + lanes // 2 for i in low]
    half = len(vectors) // 2
    return [
        (builder.bind(_shuffle(pair, low)), builder.bind(_shuffle(pair, high)))
        for pair in zip(vectors[:half], vectors[half:], strict=True)
    ]


def _shuffle(pair: tuple[Any, Any], lanes: list[int]) -> Any:
    return tir.Shuffle(list(pair), [tir.IntImm("int32", i) for i in lanes])
