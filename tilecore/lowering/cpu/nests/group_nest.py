"""Parallel nests that compute a vector operand of bfloat16 straight into its panels of groups.

Two neighbours along K make one 32-bit word, so a step computes two rows of the operand. An element
that is a table's entry at 4 bits of a word is looked up by one permutation for both rows, where
the bits of the second row lie 16 above those of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.entries import TABLE
from tilecore.inference.cpu.storage import Storage, panels
from tilecore.ir.expr import Cast, Expr, Var, binary, const, int_value
from tilecore.ir.nodes import Let, Parallel, Seq, Stmt, Store
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.functions import float8
from tilecore.lowering.cpu.nests.codes import PERIOD, Lookup, find_lookup, last_store
from tilecore.lowering.cpu.nests.lets import has_vector_form, indices_of, inlined
from tilecore.lowering.cpu.nests.nest import NestLowering
from tilecore.lowering.cpu.place import Place
from tilecore.lowering.cpu.scalar import Scope, convert, lower, to_memory, widen
from tilecore.lowering.tir import add, broadcast, mul, vector_type
from tilecore.target import Target

GROUP, LANES = 2, 16
PERMUTE = "tilecore_permute_u16x32"


class GroupNestLowering(NestLowering):
    """Emits one nest over (K, N) that fills a tile of panels of pairs."""

    def emit(self, nest: Parallel) -> None:
        """Emit loops over pairs of rows and vectors of columns."""
        nest = inlined(nest)
        if not self._looks_up(nest) and not self._is_vector(nest, nest.loop_vars[1]):
            NestLowering(self.accessor, self.target, self.statement).emit(nest)
            return
        with self._prepared(nest) as (rows, columns):
            step = PERIOD if rows % PERIOD == 0 else GROUP
            with self.builder.loop(rows // step) as q, self.builder.loop(columns // LANES) as j:
                first, start = self.builder.bind(mul(q, step)), self.builder.bind(mul(j, LANES))
                for offset in range(0, step, GROUP):
                    self.first, self.offset = add(first, offset), offset
                    self._vector(nest, nest.loop_vars[1], start, LANES, (0, columns - 1))

    def _looks_up(self, nest: Parallel) -> bool:
        """Find whether elements are looked up two rows at a time."""
        found = find_lookup(nest, self.accessor)
        self.lookup = found if found is not None and found.is_paired else None
        return self.lookup is not None

    @contextmanager
    def _prepared(self, nest: Parallel) -> Iterator[tuple[int, int]]:
        """Make the bounds of rows and columns known, and the table's entries; give both sizes."""
        self.row, column = nest.loop_vars
        rows, columns = (int_value(e) or 0 for e in nest.extents)
        for var, size in ((self.row, rows), (column, columns)):
            self.accessor.tops[var] = const(size)
        self.accessor.ranges[self.row] = (0, rows - 1)
        self.entries = None if self.lookup is None else self._entries(self.lookup)
        yield rows, columns
        self.accessor.ranges.pop(self.row)

    def _is_vector(self, nest: Parallel, column: Var) -> bool:
        body = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
        lets = [s for s in body if isinstance(s, Let)]
        indices = [index for s in body for index in indices_of(s)]
        return has_vector_form(lets, indices) and self._values_vectorise(body, column, LANES)

    def _scalar(self, body: Stmt, var: Var, start: Any, count: Any) -> None:
        for half in range(GROUP):
            self.accessor.values[self.row] = add(self.first, half)
            super()._scalar(body, var, start, count)

    def _vector_body(self, nest: Parallel, scope: Scope) -> None:
        self.accessor.values[self.row] = self.first
        store = last_store(nest)
        place = self.accessor.places[store.buffer]
        storage = place.storage
        assert isinstance(storage, Storage)
        if self.lookup is not None:
            words = self._looked_up(self.lookup, scope)
        elif _is_widened(store.value):
            words = _upper_halves(*(self._row(nest, scope, half) for half in range(GROUP)))
        else:
            words = self._words([self._row(nest, scope, half) for half in range(GROUP)])
        self.accessor.values[self.row] = self.first
        offset, _ = self.accessor.offset(place, place.indices(store.indices), of_vector=True)
        value = tir.reinterpret(vector_type("uint16", LANES * GROUP), words)
        self.builder.store(place.memory, value, offset, LANES * GROUP)

    def _row(self, nest: Parallel, scope: Scope, half: int) -> Any:
        """Return the elements of one row as uint16, or as float32 where that loses nothing."""
        self.accessor.values[self.row] = self.builder.bind(add(self.first, half))
        body = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
        for stmt in body:
            if isinstance(stmt, Let):
                scope = self._bind(stmt, scope)
        value = last_store(nest).value
        if _is_widened(value):
            assert isinstance(value, Cast)
            return widen(lower(value.a, scope), value.a, scope, scope.lanes)
        if isinstance(value, Cast) and value.dtype == "bfloat16" and value.a.dtype == "float32":
            value = value.a  # rounded once, below
        lowered = widen(lower(value, scope), value, scope, scope.lanes)
        if value.dtype != "float32":
            lowered = convert(lowered, value.dtype, "bfloat16", LANES)
        return to_memory(lowered, "bfloat16", LANES)

    def _words(self, rows: list[Any]) -> Any:
        kind = vector_type("uint32", LANES)
        low, high = (tir.Cast(kind, row) for row in rows)
        return tir.bitwise_or(low, tir.shift_left(high, broadcast(tir.IntImm("uint32", 16), LANES)))

    # --- tables -------------------------------------------------------------------------------

    def _entries(self, lookup: Lookup) -> Any:
        """Return the table twice, as the permutation wants it."""
        place = self.accessor.places[lookup.table.buffer]
        zeros = [const(0)] * len(lookup.table.indices)
        offset, _ = self.accessor.offset(place, place.indices(tuple(zeros)), of_vector=True)
        once = self.builder.bind(self.builder.load(place.memory, offset, TABLE))
        order = [tir.IntImm("int32", i % TABLE) for i in range(2 * TABLE)]
        return self.builder.bind(tir.Shuffle([once, once], order))

    def _looked_up(self, lookup: Lookup, scope: Scope) -> Any:
        self.builder.define_llvm(PERMUTE, _PERMUTE_TEXT)
        kind = vector_type("uint16", LANES * GROUP)
        codes = tir.reinterpret(kind, lower(lookup.word, scope))
        shift = lookup.shifts[self.offset]
        if shift:
            by = broadcast(tir.IntImm("uint16", shift), LANES * GROUP)
            codes = tir.shift_right(codes, by)
        return tir.call_pure_extern(kind, PERMUTE, self.entries, codes)


def _is_widened(value: Expr) -> bool:
    """Return whether an element is one of 8 bits, which bfloat16 holds without rounding."""
    if not isinstance(value, Cast) or value.dtype != "bfloat16":
        return False
    return str(value.a.dtype) in float8.FORMATS


def _upper_halves(low: Any, high: Any) -> Any:
    """Return the upper 16 bits of two rows of float32 as pairs."""
    kind = vector_type("uint32", LANES)
    low, high = (tir.reinterpret(kind, row) for row in (low, high))
    below = tir.shift_right(low, broadcast(tir.IntImm("uint32", 16), LANES))
    mask = broadcast(tir.IntImm("uint32", 0xFFFF0000), LANES)
    return tir.bitwise_or(below, tir.bitwise_and(high, mask))


class GroupVectors(GroupNestLowering):
    """Computes single vectors of such a tile, for the one who multiplies them."""

    def __init__(
        self,
        accessor: Accessor,
        target: Target,
        statement: Callable[[Stmt], None],
        nest: Parallel,
    ) -> None:
        super().__init__(accessor, target, statement)
        self.nest, self.tile = inlined(nest), last_store(nest).buffer
        self.is_vector = self._looks_up(self.nest) or self._is_vector(self.nest, nest.loop_vars[1])
        self.corner = Var("k0"), Var("n0")  # of the vector, in the tile

    @property
    def groups_at_once(self) -> int:
        """Return after how many groups of rows the code of a vector is the same again."""
        rows = int_value(self.nest.extents[0]) or 0
        return (PERIOD if rows % PERIOD == 0 else GROUP) // GROUP

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Open what vectors are computed in."""
        with self._prepared(self.nest):
            yield

    def words(self, first: Any, offset: int, start: Any) -> Any:
        """Return the pairs of rows ``first + offset`` and the next, 16 columns from ``start`` on.

        ``first`` begins ``groups_at_once`` groups.
        """
        builder, accessor = self.builder, self.accessor
        memory = builder.alloc(GROUP * LANES, "uint16", "pairs")
        self.first, self.offset = add(first, offset), offset
        start = builder.bind(start)
        for var, value in zip(self.corner, (self.first, start), strict=True):
            accessor.assign(var, value)
        shift = tuple(binary("mul", var, -1) for var in self.corner)
        storage = panels((GROUP, LANES), "bfloat16", 1, LANES, GROUP)
        tile = accessor.places[self.tile]
        accessor.places[self.tile] = Place(memory, storage, shift=shift, axes=(0, 1))
        column, columns = self.nest.loop_vars[1], int_value(self.nest.extents[1]) or 0
        if self.is_vector:
            self._vector(self.nest, column, start, LANES, (0, columns - 1))
        else:
            self._scalar(self.nest.body, column, start, LANES)
        accessor.places[self.tile] = tile
        for var in self.corner:
            del accessor.values[var]
        words = builder.load(memory, 0, GROUP * LANES)
        return tir.reinterpret(vector_type("int32", LANES), words)


def fills_groups(nest: Parallel, accessor: Accessor) -> bool:
    """Return whether a nest is one that this module lowers."""
    body = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
    if len(nest.loop_vars) != 2 or not isinstance(body[-1], Store):
        return False
    if not all(isinstance(s, Let) for s in body[:-1]):
        return False
    storage = accessor.places[body[-1].buffer].storage
    if not isinstance(storage, Storage) or storage.group != GROUP or storage.axis != 1:
        return False
    rows, columns = (int_value(e) or 0 for e in nest.extents)
    at_vars = all(i is v for i, v in zip(body[-1].indices, nest.loop_vars, strict=True))
    whole = rows % GROUP == 0 and columns % LANES == 0 and rows > 0 and columns > 0
    return at_vars and whole and storage.dtype == "bfloat16"


_PERMUTE_TEXT = f"""declare <32 x i16> @llvm.x86.avx512.permvar.hi.512(<32 x i16>, <32 x i16>)
define linkonce_odr hidden <32 x i16> @{PERMUTE}(<32 x i16> %t, <32 x i16> %i) alwaysinline {{
  %r = call <32 x i16> @llvm.x86.avx512.permvar.hi.512(<32 x i16> %t, <32 x i16> %i)
  ret <32 x i16> %r
}}"""
