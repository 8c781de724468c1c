"""Elements of neighbouring points that move between memory and arrays of a thread at once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import tirx as tir

from tilecore.inference.gpu.loops import Access, Condition
from tilecore.inference.gpu.plan import NestPlan, WideAccess
from tilecore.ir.expr import Expr, binary
from tilecore.ir.nodes import Buffer
from tilecore.lowering.cuda.access import AccessKey, Accessor, access_key, half, halves
from tilecore.lowering.cuda.instructions.atomic import add_neighbours
from tilecore.lowering.cuda.memory import SharedPlace, TensorPlace
from tilecore.lowering.cuda.nests.vector import copy_bytes
from tilecore.lowering.cuda.scalar import memory_type, to_memory
from tilecore.lowering.tir import add, mul


@dataclass(frozen=True, slots=True)
class _Moved:
    """What moves, and which accesses ask for it."""

    wide: WideAccess
    accesses: tuple[Access, ...]

    @property
    def buffer(self) -> Buffer:
        return self.accesses[0].buffer

    @property
    def is_store(self) -> bool:
        return self.accesses[0].is_store

    @property
    def per_byte(self) -> int:
        """Elements that share a place in memory: two to a byte of a tensor of 4-bit elements."""
        return 2 if self.buffer.scope == "global" and self.buffer.dtype.is_packed else 1


class WideMoves:
    """Emits what a nest moves for all lanes at once, and lets the lanes find it."""

    def __init__(self, accessor: Accessor, plan: NestPlan) -> None:
        self.accessor, self.builder, self.lanes = accessor, accessor.builder, plan.lanes
        accesses = plan.points.accesses
        self.moved = [_Moved(w, tuple(accesses[n] for n, _ in w.parts)) for w in plan.wide]
        self.arrays: list[Any] = []

    def conditions(self) -> dict[int, Expr]:
        """Return the meaning of the conditions under which elements move, by the id of each."""
        asked = [m for m in self.moved if not m.wide.for_all]
        under = (c for m in asked for access in m.accesses for c in access.under)
        return {id(c.written): c.meaning for c in under}

    def declare(self) -> None:
        """Declare the arrays."""
        in_place: dict[Buffer, Any] = {}
        for moved in self.moved:
            count = self.lanes * moved.wide.step // moved.per_byte
            dtype, name = memory_type(str(moved.buffer.dtype)), moved.buffer.name
            array = in_place.get(moved.buffer)
            if array is None:
                array = self.builder.local(count, dtype, name)
            if moved.wide.in_place:
                in_place[moved.buffer] = array
            self.arrays.append(array)

    def load(self) -> None:
        """Emit what is read."""
        for moved, array in zip(self.moved, self.arrays, strict=True):
            if not moved.is_store:
                self._load(moved, array)

    @contextlib.contextmanager
    def staged(self, lane: Any) -> Iterator[None]:
        """Let the accesses of a lane find their elements in the arrays."""
        found: dict[AccessKey, tuple[Any, Any]] = {}
        for moved, array in zip(self.moved, self.arrays, strict=True):
            wide = moved.wide
            for access, (_, which) in zip(moved.accesses, wide.parts, strict=True):
                found[access_key(access)] = (array, add(mul(lane, wide.step), which))
        self.accessor.staged.update(found)
        yield
        for key in found:
            del self.accessor.staged[key]

    def store(self) -> None:
        """Emit what is written."""
        for moved, array in zip(self.moved, self.arrays, strict=True):
            if moved.is_store:
                self._store(moved, array)

    def _store(self, moved: _Moved, array: Any) -> None:
        accessor, builder = self.accessor, self.builder
        place, under = accessor.places[moved.buffer], self._asked(moved)
        rows = list(self._rows(moved))
        with contextlib.ExitStack() as stack:
            if under is not None:
                stack.enter_context(builder.when(under))
            for indices, moves in rows:
                with accessor.storing(place, indices):
                    for first, there in moves:
                        self._move(moved, there, builder.address(array, first // moved.per_byte))

    def _load(self, moved: _Moved, array: Any) -> None:
        accessor, builder = self.accessor, self.builder
        place, under = accessor.places[moved.buffer], self._asked(moved)
        for indices, moves in self._rows(moved):
            inside = accessor.guard(place, indices) if isinstance(place, TensorPlace) else None
            conds = [c for c in (under, inside) if c is not None]
            with contextlib.ExitStack() as stack:
                if conds:
                    stack.enter_context(builder.when(functools.reduce(tir.And, conds)))
                for first, there in moves:
                    self._move(moved, builder.address(array, first // moved.per_byte), there)
            if not conds:
                continue
            with builder.otherwise():
                start = moves[0][0] // moved.per_byte
                count = len(moves) * moved.wide.per_move // moved.per_byte
                with builder.turns(count) as lane:
                    builder.store(array, self._pad(moved.buffer), add(start, lane))

    def _pad(self, buffer: Buffer) -> Any:
        """Return what lies outside of a tensor."""
        dtype, pad = str(buffer.dtype), self.accessor.pads.get(buffer)
        if pad is None:
            return self.accessor.zero(dtype)
        value = to_memory(self.accessor.scalar(pad), dtype)
        return halves(value, value) if buffer.dtype.is_packed else value

    def _move(self, moved: _Moved, to: Any, source: Any) -> None:
        size = moved.wide.per_move * moved.buffer.dtype.itemsize // moved.per_byte
        if moved.accesses[0].is_added:
            add_all = add_neighbours(str(moved.buffer.dtype), moved.wide.per_move)
            self.builder.evaluate(add_all.call(to, source))
            return
        self.builder.evaluate(copy_bytes(size).call(to, source))

    def _rows(self, moved: _Moved) -> Iterator[tuple[tuple[Expr, ...], list[tuple[int, Any]]]]:
        """Yield (indices, moves): if those are inside a tensor, all these moves are.

        A move is (its first element in the array, the address in memory).
        """
        wide, accessor, builder = moved.wide, self.accessor, self.builder
        place = accessor.places[moved.buffer]
        starts = range(0, self.lanes * wide.step, wide.per_move)
        # Chunks that follow each other in a row do not in swizzled memory.
        is_swizzled = isinstance(place, SharedPlace) and place.layout.swizzle_bytes
        memory, offset = accessor.locate(moved.buffer, wide.place)
        if moved.per_byte > 1:  # one that is a multiple of it
            offset = offset // moved.per_byte if isinstance(offset, int) else half(offset)
        offset = builder.bind(offset) if not isinstance(offset, int) else offset

        def address(first: int) -> Any:
            if not (first and is_swizzled):
                return builder.address(memory, add(offset, first // moved.per_byte))
            there = accessor.locate(moved.buffer, _element(wide, first))[1]
            there = builder.bind(there) if not isinstance(there, int) else there
            return builder.address(memory, there)

        moves = [(first, address(first)) for first in starts]
        if wide.in_rows:
            yield wide.place, moves
            return
        for first, there in moves:
            yield _element(wide, first), [(first, there)]

    def _asked(self, moved: _Moved) -> Any | None:
        """Return the condition under which elements are asked for, None: they always are."""
        places = {tuple((id(c.written), c.holds) for c in a.under): a.under for a in moved.accesses}
        if () in places or moved.wide.for_all:
            return None
        return functools.reduce(tir.Or, [self._hold(under) for under in places.values()])

    def _hold(self, under: tuple[Condition, ...]) -> Any:
        values = [(self.accessor.decided[id(c.written)], c.holds) for c in under]
        return functools.reduce(tir.And, [v if holds else tir.Not(v) for v, holds in values])


def _element(wide: WideAccess, first: int) -> tuple[Expr, ...]:
    """Return the indices of an element, by its number among those that move."""
    place = list(wide.place)
    if wide.axis == len(place) - 1:
        place[-1] = binary("add", place[-1], first)
    else:
        place[wide.axis] = binary("add", place[wide.axis], first // wide.step)
        place[-1] = binary("add", place[-1], first % wide.step)
    return tuple(place)
