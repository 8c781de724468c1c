"""Parallel nests that decode 4-bit codes into a tile of float32, by shuffles of bytes (AVX2).

A register of words has four codes per word in the lower halves of its bytes and four in the upper
ones. One shuffle looks up the lower bytes of the bfloat16 entries of 32 codes, another one the
upper bytes; two entries of a word are put together at a time, of which each is half a float32.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.entries import TABLE
from tilecore.inference.cpu.storage import Storage
from tilecore.ir.expr import Load, Var, const, int_value
from tilecore.ir.nodes import Let, Parallel, Seq, Stmt, Store
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.nests.codes import PERIOD, find_lookup, last_store
from tilecore.lowering.cpu.nests.nest import NestLowering
from tilecore.lowering.cpu.place import store_values
from tilecore.lowering.cpu.scalar import Scope, lower
from tilecore.lowering.llvm_text import shuffle_order, splat
from tilecore.lowering.tir import add, mul, vector_type

LANES = 8
DECODE = "tilecore_decode_bf16x16_"
SHUFFLE = "llvm.x86.avx2.pshuf.b"


class CodeNestLowering(NestLowering):
    """Emits one nest over (K, N) whose elements a table of bfloat16 gives, kept as float32."""

    def emit(self, nest: Parallel) -> None:
        """Emit loops over words of codes: rows in periods, columns in vectors."""
        found = find_lookup(nest, self.accessor)
        assert found is not None
        self.lookup = found
        self.row, column = nest.loop_vars
        rows, columns = (int_value(e) or 0 for e in nest.extents)
        for var, size in ((self.row, rows), (column, columns)):
            self.accessor.tops[var] = const(size)
        self.accessor.ranges[self.row] = (0, rows - 1)
        self.table = self._table(found.table)
        self.builder.define_llvm(SHUFFLE, f"declare <32 x i8> @{SHUFFLE}(<32 x i8>, <32 x i8>)")
        with self.builder.loop(rows // PERIOD) as q, self.builder.loop(columns // LANES) as j:
            self.first = self.builder.bind(mul(q, PERIOD))
            start = self.builder.bind(mul(j, LANES))
            self._vector(nest, column, start, LANES, (0, columns - 1))
        self.accessor.ranges.pop(self.row)

    def _table(self, table: Load) -> Any:
        place = self.accessor.places[table.buffer]
        offset, _ = self.accessor.offset(place, place.indices((const(0),)))
        return self.builder.bind(self.builder.load(place.memory, offset, TABLE))

    def _scalar(self, body: Stmt, var: Var, start: Any, count: Any) -> None:
        for i in range(PERIOD):
            self.accessor.values[self.row] = add(self.first, i)
            super()._scalar(body, var, start, count)

    def _vector_body(self, nest: Parallel, scope: Scope) -> None:
        accessor, store = self.accessor, last_store(nest)
        accessor.values[self.row] = self.first
        kind = vector_type("uint32", LANES)
        words = self.builder.bind(tir.reinterpret(kind, lower(self.lookup.word, scope)))
        place = accessor.places[store.buffer]
        for i, shift in enumerate(self.lookup.shifts):
            accessor.values[self.row] = add(self.first, i)
            name = f"{DECODE}{shift}"
            value = self.builder.call_llvm(
                vector_type("float32", LANES), name, _text(name, shift), self.table, words
            )
            offset, _ = accessor.offset(place, store.indices, of_vector=True)
            store_values(self.builder, place, value, offset, LANES)


def decodes(nest: Parallel, accessor: Accessor) -> bool:
    """Return whether a nest is one that this module lowers."""
    body = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
    if len(nest.loop_vars) != 2 or not isinstance(body[-1], Store):
        return False
    if not all(isinstance(s, Let) for s in body[:-1]) or accessor.register_lanes != LANES:
        return False
    store, column = body[-1], nest.loop_vars[1]
    place = accessor.places[store.buffer]
    rows, columns = (int_value(e) or 0 for e in nest.extents)
    if not isinstance(place.storage, Storage) or place.storage.dtype != "float32" or place.guarded:
        return False
    whole = rows % PERIOD == 0 and columns % LANES == 0 and rows > 0 and columns > 0
    is_row = accessor.stride_of(store.buffer, store.indices, column) == 1
    found = find_lookup(nest, accessor) if whole and is_row else None
    return found is not None and found.together == PERIOD


def _text(name: str, shift: int) -> str:
    """Return the function that gives the entries of the codes at bit ``shift`` of 8 words.

    What the functions of several codes of a word have in common, LLVM computes once.
    """
    byte, half = divmod(shift, 8)
    words, octets, halves = "<8 x i32>", "<32 x i8>", "<16 x i16>"
    if byte % 2 == 0:  # of each half word the lower byte
        low = f"and {halves} %l16, {splat('i16', 16, 255)}"
        high = f"shl {halves} %h16, {splat('i16', 16, 8)}"
    else:
        low = f"lshr {halves} %l16, {splat('i16', 16, 8)}"
        high = f"and {halves} %h16, {splat('i16', 16, -256)}"
    if byte < 2:
        taken = f"shl {words} %p32, {splat('i32', 8, 16)}"
    else:
        taken = f"and {words} %p32, {splat('i32', 8, -65536)}"
    given = f"{halves} %t, {words} %w"
    return f"""define linkonce_odr hidden <8 x float> @{name}({given}) alwaysinline {{
  %t8 = bitcast {halves} %t to {octets}
  %tl = shufflevector {octets} %t8, {octets} poison, {_bytes(0)}
  %th = shufflevector {octets} %t8, {octets} poison, {_bytes(1)}
  %u = lshr {words} %w, {splat("i32", 8, half)}
  %x = and {words} %u, {splat("i32", 8, 0x0F0F0F0F)}
  %x8 = bitcast {words} %x to {octets}
  %l = call {octets} @{SHUFFLE}({octets} %tl, {octets} %x8)
  %h = call {octets} @{SHUFFLE}({octets} %th, {octets} %x8)
  %l16 = bitcast {octets} %l to {halves}
  %h16 = bitcast {octets} %h to {halves}
  %k = {low}
  %m = {high}
  %p = or {halves} %k, %m
  %p32 = bitcast {halves} %p to {words}
  %f = {taken}
  %r = bitcast {words} %f to <8 x float>
  ret <8 x float> %r
}}"""


def _bytes(which: int) -> str:
    """Return the order that takes the lower (0) or upper (1) bytes of 16 entries twice."""
    return shuffle_order([2 * (i % TABLE) + which for i in range(2 * TABLE)])
