"""Packing into panels whose lanes hold groups of neighbours along K, one 32-bit word per group."""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.storage import Storage
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import Copy
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.copy import PanelPacker
from tilecore.lowering.cpu.place import Place
from tilecore.lowering.cpu.scalar import convert, memory_type
from tilecore.lowering.cpu.shuffles import transpose
from tilecore.lowering.tir import TirBuilder, add, broadcast, index, mul, quotient, vector_type
from tilecore.target import Target


def packer_for(
    accessor: Accessor, copy: Copy, target: Target, place: Place, skips_absent: bool
) -> PanelPacker:
    """Return what fills the panels of ``place``."""
    storage = place.storage
    assert isinstance(storage, Storage)
    kind = PanelPacker if storage.group == 1 else GroupPacker
    return kind(accessor, copy, target, place, skips_absent)


def load_words(builder: TirBuilder, place: Place, offset: Any, words: int) -> Any:
    """Return 32-bit words of elements of 8 or 16 bits, as int32."""
    lanes = words * 4 // DType(place.storage.dtype).itemsize
    return tir.reinterpret(vector_type("int32", words), builder.load(place.memory, offset, lanes))


class GroupPacker(PanelPacker):
    """Fills panels of groups; elements of a group beyond the source are 0."""

    def __init__(
        self, accessor: Accessor, copy: Copy, target: Target, place: Place, skips_absent: bool
    ) -> None:
        super().__init__(accessor, copy, target, place, skips_absent)
        storage = place.storage
        assert isinstance(storage, Storage)
        self.group, self.groups = storage.group, storage.depth // storage.group
        self.kind = memory_type(storage.dtype)
        self.lanes = target.lanes("int32")

    def _raw(self, at: Any, lanes: int) -> Any:
        """Return elements of the source bit by bit, or integers as wider ones."""
        value = self.builder.load(self.source.place.memory, at, lanes)
        given, stored = self.source.place.storage.dtype, self.place.storage.dtype
        return value if given == stored else convert(value, given, stored, lanes)

    def _whole(self, first: Any, start: Any, depth: Any, count: int) -> None:
        builder, done = self.builder, quotient(depth, self.group)
        if self.axis == 0:
            self._transposed(first, start, depth)
            return
        with builder.loop(done) as q:
            self._interleave(first, start, q, None, count)
        if not isinstance(depth, int) or depth % self.group:
            with builder.when(tir.LT(index(mul(done, self.group)), index(depth))):
                self._interleave(first, start, builder.bind(done), depth, count)

    def _interleave(self, first: Any, start: Any, q: Any, depth: Any | None, count: int) -> None:
        """Pack one group of rows of the source; those from ``depth`` on are 0."""
        builder = self.builder
        k = builder.bind(mul(q, self.group))
        wide = 2 * self.lanes if self.width % (2 * self.lanes) == 0 else self.lanes
        for j in range(0, count * self.width, wide):
            panel, lane = divmod(j, self.width)
            rows = []
            for i in range(self.group):
                at = add(self.base, add(mul(add(k, i), self.step), add(first, j)))
                part = self._raw(at, wide)
                if depth is not None and i:
                    zeros = broadcast(tir.IntImm(self.kind, 0), wide)
                    part = tir.if_then_else(tir.LT(index(add(k, i)), index(depth)), part, zeros)
                rows.append(builder.bind(part))
            to = add(start, panel * self.panel_size + mul(lane, self.group))
            to = add(to, mul(mul(q, self.width), self.group))
            size = wide * self.group
            builder.store(self.place.memory, self._zipped(rows, wide), to, size)

    def _zipped(self, rows: list[Any], lanes: int) -> Any:
        """Return the elements of ``rows`` in turn, in one vector."""
        bits = 32 // self.group
        while len(rows) > 1:
            order = [tir.IntImm("int32", i) for k in range(lanes) for i in (k, lanes + k)]
            pairs = zip(rows[::2], rows[1::2], strict=True)
            rows = [self.builder.bind(tir.Shuffle(list(pair), order)) for pair in pairs]
            bits *= 2
            if len(rows) > 1:  # pairs of elements go together from here on
                kind = vector_type(f"uint{bits}", lanes)
                rows = [self.builder.bind(tir.reinterpret(kind, row)) for row in rows]
        return tir.reinterpret(vector_type(self.kind, lanes * self.group), rows[0])

    def _store(self, words: Any, start: Any, q: Any, lane: Any) -> None:
        """Store a vector of words at group ``q``, from ``lane`` of the panel on."""
        count = self.lanes * self.group
        value = tir.reinterpret(vector_type(self.kind, count), words)
        to = add(start, mul(add(mul(q, self.width), lane), self.group))
        self.builder.store(self.place.memory, value, to, count)

    def _transposed(self, first: Any, start: Any, depth: Any) -> None:
        builder, lanes = self.builder, self.lanes
        step = lanes * self.group
        blocks = builder.bind(quotient(depth, step))
        for block, j in self._blocks(blocks, self.width // lanes, step):
            column = builder.bind(mul(j, lanes))
            rows = []
            for i in range(lanes):
                at = add(self.base, mul(add(first, add(column, i)), self.step))
                at = add(at, mul(block, step))
                elements = self._raw(at, step)
                rows.append(builder.bind(tir.reinterpret(vector_type("int32", lanes), elements)))
            for i, words in enumerate(transpose(builder, rows, lanes)):
                self._store(words, start, add(mul(block, lanes), i), column)
        self._elements(first, start, builder.bind(mul(blocks, step)), depth, None)

    def _edge(self, first: Any, start: Any, depth: Any, columns: Any) -> None:
        self._elements(first, start, 0, depth, columns)

    def _elements(
        self, first: Any, start: Any, begin: Any, depth: Any, columns: Any | None
    ) -> None:
        """Pack groups from element ``begin`` to ``depth`` along K one by one."""
        builder = self.builder
        end = self._rounded(depth)
        steps = builder.loop(index(end) - index(begin), start=begin)
        with steps as k, builder.loop(self.width) as n:
            column = add(first, n)
            along, across = (column, k) if self.axis == 0 else (k, column)
            at = add(self.base, add(mul(along, self.step), across))
            inside = tir.LT(k, index(depth))
            if columns is not None:
                inside = tir.And(inside, tir.LT(index(column), index(columns)))
            value = tir.if_then_else(inside, self._raw(at, 1), tir.IntImm(self.kind, 0))
            q, rest = tir.truncdiv(k, index(self.group)), tir.truncmod(k, index(self.group))
            to = add(start, add(mul(add(mul(q, self.width), n), self.group), rest))
            builder.store(self.place.memory, value, to)

    def _rounded(self, depth: Any) -> Any:
        """Return ``depth`` rounded up to whole groups."""
        return mul(quotient(add(depth, self.group - 1), self.group), self.group)

    def _zero(self, start: Any, depth: Any) -> None:
        builder, lanes = self.builder, self.lanes
        done = builder.bind(quotient(add(depth, self.group - 1), self.group))
        with builder.loop(index(self.groups) - index(done), start=done) as q:
            for j in range(self.width // lanes):
                self._store(broadcast(tir.IntImm("int32", 0), lanes), start, q, j * lanes)
