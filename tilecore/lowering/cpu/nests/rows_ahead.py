"""Fetching the rows that a nest reads next, where it reads short pieces of a tensor's rows.

The fetchers of a core follow a stream of neighbours; a block that is narrower than its tensor
begins a new one in every row, and waits for memory there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.storage import CACHE_LINE_BYTES, Storage
from tilecore.ir.arithmetic.bounds import step_of
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Var
from tilecore.ir.nodes import Buffer
from tilecore.lowering.cpu import prefetch
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.place import Place
from tilecore.lowering.tir import add, index, quotient, remainder

AHEAD_BYTES = 16 << 10  # fetched before they are read, by whole pieces
LONGEST_BYTES = 8 << 10  # of pieces: a stream that begins this rarely costs little
SHARED = 16  # lanes that tell whether neighbouring columns read one element
LEAST_BYTES = 1 << 20  # of tensors: smaller ones stay in a cache


@dataclass(frozen=True, slots=True)
class _Line:
    """The piece of a tensor that is read some rows later: its memory and its first element."""

    place: Place
    first: Any
    share: int  # columns to an element


class RowsAhead:
    """Fetches pieces of rows for one nest, whose last two loop variables count rows and columns.

    ``updated`` tiles are in a cache: what the nest stores was stored before.
    """

    def __init__(
        self,
        accessor: Accessor,
        names: Sequence[Var],
        extents: Sequence[int | None],
        reads: Iterable[tuple[Buffer, Sequence[Expr]]],
        updated: Collection[Buffer],
    ) -> None:
        self.accessor, self.builder = accessor, accessor.builder
        self.reads: list[tuple[Buffer, tuple[Expr, ...], int]] = []
        self.lines: list[_Line] = []
        if len(names) < 2 or extents[-2] in (None, 1) or extents[-1] is None:
            return
        self.row, self.column = names[-2:]
        self.rows, self.width = int(extents[-2] or 1), extents[-1]
        self.reads = list(self._short_pieces(reads, updated))

    def _short_pieces(
        self, reads: Iterable[tuple[Buffer, Sequence[Expr]]], updated: Collection[Buffer]
    ) -> Iterator[tuple[Buffer, tuple[Expr, ...], int]]:
        seen: set[tuple[int, ...]] = set()
        for buffer, indices in reads:
            place = self.accessor.places[buffer]
            key = tuple(map(id, (buffer, *indices)))
            is_tensor = buffer.root.scope == "global" or place.shift
            if key in seen or not is_tensor or buffer in updated:
                continue
            seen.add(key)
            is_far = self._is_far(buffer, indices, place)
            share = self._share(buffer, indices)
            piece_bytes = self._piece_bytes(place, share) if share else 0
            is_short = 0 < piece_bytes <= LONGEST_BYTES
            if is_far and is_short and _is_large(place):
                yield buffer, tuple(indices), share

    def _share(self, buffer: Buffer, indices: Sequence[Expr]) -> int:
        """Return how many neighbouring columns read one element, 0 where they read others."""
        if self.accessor.stride_of(buffer, indices, self.column) == 1:
            return 1
        apart = self.accessor.offsets_of(buffer, indices, self.column, SHARED)
        shares = (s for s in (2, 4, 8) if apart == tuple(i // s for i in range(SHARED)))
        return next(shares, 0)

    def _piece_bytes(self, place: Place, share: int) -> int:
        return self.width // share * DType(place.storage.dtype).itemsize

    def _is_far(self, buffer: Buffer, indices: Sequence[Expr], place: Place) -> bool:
        """Return whether the next row is known to begin beyond the end of this one."""
        steps = [step_of(index, self.row) for index in place.indices(indices)]
        if None in steps or steps[-1] or not any(steps):
            return False
        across = self.accessor.stride_of(buffer, indices, self.row)
        return across is None or abs(across) > self.width  # None: of a stride not known yet

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Begin the row at the loop variables: tell where what it fetches begins."""
        self.lines = [self._line(*read) for read in self.reads]
        yield
        self.lines = []

    def _line(self, buffer: Buffer, indices: tuple[Expr, ...], share: int) -> _Line:
        accessor, values = self.accessor, self.accessor.values
        place = accessor.places[buffer]
        ahead = min(math.ceil(AHEAD_BYTES / self._piece_bytes(place, share)), self.rows)
        row, box = values[self.row], accessor.box
        at = place.indices(indices)
        with self._as(self.column, 0):
            with self._as(self.row, add(row, ahead)):
                same, _ = accessor.offset(place, at)
            if box is None:
                return _Line(place, self.builder.bind(same), share)
            var, step = box
            next_row, next_box = add(row, ahead - self.rows), add(values[var], step)
            with self._as(self.row, next_row), self._as(var, next_box):
                other, _ = accessor.offset(place, at)
        is_same = tir.LT(row, self.rows - ahead)
        return _Line(place, self.builder.bind(tir.Select(is_same, same, other)), share)

    @contextmanager
    def _as(self, var: Var, value: Any) -> Iterator[None]:
        values = self.accessor.values
        before = values.get(var)
        values[var] = value
        yield
        if before is None:
            del values[var]
        else:
            values[var] = before

    def fetch(self, at: Any) -> None:
        """Fetch the lines of the vector that begins at column ``at`` of the row begun."""
        for line in self.lines:
            element = add(line.first, quotient(at, line.share))
            itemsize = DType(line.place.storage.dtype).itemsize
            columns = line.share * CACHE_LINE_BYTES // itemsize
            first = tir.EQ(index(remainder(at, columns)), 0)  # vectors share a line
            with self.builder.when(first) if line.share > 1 else nullcontext():
                prefetch.fetch(self.builder, line.place.memory, element, prefetch.L2)


def _is_large(place: Place) -> bool:
    """Return whether a tensor is too large for a cache, or of a size not known yet."""
    storage = place.storage
    if not isinstance(storage, Storage):
        return True
    return storage.size * DType(storage.dtype).itemsize >= LEAST_BYTES
