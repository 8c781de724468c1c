"""Which products of a gemm a mask hides, in TIR (inference/cpu/masks.py finds the masks)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.plan import Mask
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.tir import add, index, maximum, minimum, mul


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of a mask: what it is at row and column 0, and what each row and column adds.

    ``ends_rows``: it hides all columns of a row from some column on; each adds 1.
    """

    start: Any
    row: int
    column: int
    ends_rows: bool


class MaskLowering:
    """What a mask hides of parts of its tile; what is the same for all of them is computed once."""

    def __init__(self, accessor: Accessor, mask: Mask) -> None:
        builder = accessor.builder
        self.cond = None if mask.cond is None else builder.bind(accessor.scalar(mask.cond))
        self.terms = [
            _Term(
                builder.bind(accessor.scalar(t.without(mask.row).without(mask.column).to_expr())),
                t.coefficient(mask.row), t.coefficient(mask.column), mask.ends_rows(t),
            )
            for t in mask.terms
        ]  # fmt: skip

    def hides(self, row: Any, rows: int, column: Any, columns: int) -> Any:
        """Return whether all of a box is hidden: its first row, rows, first column and columns."""
        found = None
        for term in self.terms:
            least = add(_least(term, row, rows), _part(term.column, column, columns))
            one = tir.GE(index(least), index(0))
            found = one if found is None else tir.Or(found, one)
        return found if self.cond is None else tir.And(self.cond, found)

    def end(self, row: Any, rows: int, columns: Any) -> Any:
        """Return from which column on all of some rows is hidden, at most ``columns``."""
        end = columns
        for term in self.terms:
            if term.ends_rows:
                end = minimum(end, mul(_least(term, row, rows), -1))
        end = maximum(0, end)
        return end if self.cond is None else tir.Select(self.cond, index(end), index(columns))


def _least(term: _Term, row: Any, rows: int) -> Any:
    """Return the least value of a term in some rows, at column 0."""
    return add(term.start, _part(term.row, row, rows))


def _part(factor: int, first: Any, count: int) -> Any:
    """Return the least that an index of a range adds to a term."""
    return mul(first if factor > 0 else add(first, count - 1), factor)
