"""Parallel nests whose elements follow from 4 bits of a byte, and else from what many share.

``(code(i, j) - zero[i, j // group]) * scale[i, j // group]`` has sixteen values in a group. They
are computed once for all codes, rounded as the tile has them; then an instruction looks up as many
elements as a register holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.storage import Storage
from tilecore.ir.arithmetic.bounds import mentions
from tilecore.ir.arithmetic.lane_offsets import lane_offsets, lane_values
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Binary, Cast, Expr, Load, Var, cast, int_value
from tilecore.ir.nodes import Let, Parallel, Store
from tilecore.ir.substitute import Rebuilder, substitute_expr, substitute_stmt
from tilecore.ir.visitor import distinct, expr_children, flat
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.nests.nest import NestLowering, computes, unrounded
from tilecore.lowering.cpu.place import raw_of
from tilecore.lowering.cpu.scalar import kept, lower, memory_type, widen
from tilecore.lowering.llvm_text import splat
from tilecore.lowering.tir import add, mul, vector_type

CODES = 16
REGISTER_BYTES = 64
LEAST_VECTORS = 1  # that share a table: to compute one takes as long as to decode some of them
ORDERS = {(0, 4): "low", (4, 0): "high"}  # which half of a byte comes first, by its shifts


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A nest whose last axis is decoded.

    Attributes:
        store: what it does, ``value`` what it stores in terms of ``code``, a variable.
        word: the byte of the first lane.
        order: which half of a byte comes first.
        run: so many neighbours share all but their codes.
    """

    store: Store
    value: Expr
    code: Var
    word: Load
    order: str
    run: int


def coded(nest: Parallel, accessor: Accessor) -> Coded | None:
    """Return what a nest decodes; None: it is of another kind."""
    store, extent = _only_store(nest), int_value(nest.extents[-1])
    if store is None or extent is None or accessor.register_lanes * 4 != REGISTER_BYTES:
        return None
    place, var = accessor.places.get(store.buffer), nest.loop_vars[-1]
    if place is None or place.guarded or place.is_own or place.memory is None:
        return None
    if not isinstance(place.storage, Storage) or place.storage.kind != "rows":
        return None
    size = DType(memory_type(place.storage.dtype)).itemsize
    is_row = accessor.stride_of(store.buffer, store.indices, var) == 1
    if size not in (2, 4) or not is_row or DType(place.storage.dtype).is_packed:
        return None
    lanes = REGISTER_BYTES // size
    for node in _nibbles(store.value, var):
        found = _bytes(node, accessor, var, lanes)
        if found is None:
            continue
        code = Var("code")
        value = _Named(node, code).expr(store.value)
        run = _run(value, var, extent, lanes)
        if run >= LEAST_VECTORS * lanes and computes(accessor, value, code, CODES):
            return Coded(store, value, code, *found, run)
    return None


class EntryNestLowering(NestLowering):
    """Emits such a nest."""

    def _axis(self, nest: Parallel, axis: int) -> None:
        if axis < len(nest.loop_vars) - 1:
            super()._axis(nest, axis)
            return
        found = coded(nest, self.accessor)
        assert found is not None
        accessor, builder, var = self.accessor, self.builder, nest.loop_vars[-1]
        extent = int_value(nest.extents[-1]) or 0
        accessor.ranges[var] = (0, extent - 1)
        with builder.loop(extent // found.run) as number:
            self.emit_run(found, var, builder.bind(mul(number, found.run)))
        accessor.values.pop(var)
        accessor.ranges.pop(var)

    def emit_run(self, found: Coded, var: Var, first: Any) -> None:
        """Emit the elements of neighbours along ``var`` that share a table."""
        self.accessor.assign(var, first)
        self._look_up(found, var, first, self._table(found))

    def _table(self, found: Coded) -> Any:
        """Return the elements of all codes, as memory has them, in a register."""
        accessor, store = self.accessor, found.store
        place = accessor.places[store.buffer]
        stored = place.storage.dtype
        accessor.values[found.code] = 0
        accessor.ranges[found.code] = (0, CODES - 1)
        scope = accessor.scope(found.code, CODES)
        given = unrounded(replace(store, value=found.value), accessor).value
        value = widen(lower(given, scope), given, scope, CODES)
        value = kept(value, given.dtype, store.buffer.dtype, stored, CODES)
        raw = self.builder.bind(raw_of(self.builder, place, value, CODES))
        del accessor.values[found.code], accessor.ranges[found.code]
        if DType(memory_type(stored)).itemsize == 4:
            return self.builder.bind(tir.reinterpret(vector_type("float32", CODES), raw))
        words = self.builder.bind(tir.reinterpret(vector_type("uint16", CODES), raw))
        twice = [tir.IntImm("int32", i % CODES) for i in range(2 * CODES)]
        return self.builder.bind(tir.Shuffle([words, words], twice))

    def _look_up(self, found: Coded, var: Var, first: Any, table: Any) -> None:
        accessor, builder, store = self.accessor, self.builder, found.store
        source, dest = accessor.places[found.word.buffer], accessor.places[store.buffer]
        kind = memory_type(dest.storage.dtype)
        lanes = REGISTER_BYTES // DType(kind).itemsize
        element = "float32" if DType(kind).itemsize == 4 else "uint16"
        name = f"tilecore_entries_{element}_{found.order}"
        with builder.loop(found.run // lanes) as number:
            accessor.assign(var, add(first, mul(number, lanes)))
            at, _ = accessor.offset(source, source.indices(found.word.indices), of_vector=True)
            codes = tir.reinterpret(
                vector_type("int8", lanes // 2), builder.load(source.memory, at, lanes // 2)
            )
            entries = builder.call_llvm(
                vector_type(element, lanes), name, _TEXTS[element](name, found.order), table, codes
            )
            goal, _ = accessor.offset(dest, dest.indices(store.indices), of_vector=True)
            raw = entries if element == kind else tir.reinterpret(vector_type(kind, lanes), entries)
            builder.store(dest.memory, raw, goal, lanes)


class _Named(Rebuilder):
    """Puts a variable in the place of a node, in indices as it is: it is small in any type."""

    def __init__(self, node: Expr, code: Var) -> None:
        super().__init__()
        self.node, self.code = node, code
        self.new = cast(code, node.dtype)

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` rewritten."""
        if expr is self.node:
            return self.new
        if not isinstance(expr, Load) or self.new is self.code:
            return super().expr(expr)
        before, self.new = self.new, self.code
        found = super().expr(expr)
        self.new = before
        return found


def _only_store(nest: Parallel) -> Store | None:
    """Return the store that a nest does, names in the place of what they are bound to."""
    *lets, store = flat([nest.body])
    values: dict[Var, Expr] = {}
    for let in lets:
        if not isinstance(let, Let):
            return None
        values[let.var] = substitute_expr(let.value, values)
    return substitute_stmt(store, values) if isinstance(store, Store) else None  # type: ignore[return-value]


def _nibbles(value: Expr, var: Var) -> list[Binary]:
    """Return what keeps 4 bits of something that differs along ``var``."""
    return [
        n for n in distinct(value)
        if isinstance(n, Binary) and n.op == "bitand" and int_value(n.b) == CODES - 1
        and mentions(n, var)
    ]  # fmt: skip


def _bytes(node: Binary, accessor: Accessor, var: Var, lanes: int) -> tuple[Load, str] | None:
    """Return the byte of the first lane, and the order of its halves, of two codes to a byte."""
    shifted = _plain(node.a)
    if not isinstance(shifted, Binary) or shifted.op != "shr":
        return None
    word = _plain(shifted.a)
    if not isinstance(word, Load) or word.dtype not in ("uint8", "int8"):
        return None
    place = accessor.places.get(word.buffer)
    if place is None or place.guarded or place.is_own or place.memory is None:
        return None
    apart = accessor.offsets_of(word.buffer, word.indices, var, lanes)
    shifts = lane_values(_plain(shifted.b), var, lanes)
    if shifts is None or apart != tuple(i // 2 for i in range(lanes)):
        return None
    order = ORDERS.get((shifts[0], shifts[1]))
    return (word, order) if order and shifts == shifts[:2] * (lanes // 2) else None


def _plain(expr: Expr) -> Expr:
    """Return what is converted to another type of integers."""
    while isinstance(expr, Cast) and expr.dtype.is_integer and expr.a.dtype.is_integer:
        expr = expr.a
    return expr


def _run(value: Expr, var: Var, extent: int, lanes: int) -> int:
    """Return how many neighbours at most share a value, 0: fewer than a vector."""
    run = extent
    while run >= lanes and run % lanes == 0:
        if extent % run == 0 and _is_shared(value, var, run):
            return run
        run //= 2
    return 0


def _is_shared(value: Expr, var: Var, run: int) -> bool:
    """Return whether a value is the same for ``run`` neighbours, the first a multiple of that."""
    if not mentions(value, var):
        return True
    if value.dtype.is_integer and not isinstance(value, Load):
        apart = lane_offsets(value, var, run)
        if apart is not None:
            return not any(apart)
    parts = expr_children(value)
    return bool(parts) and all(_is_shared(part, var, run) for part in parts)


def _text_of_words(name: str, order: str) -> str:
    """Return the function that looks up 32 entries of 16 bits by 16 bytes.

    The instruction heeds 5 bits of an index: of the last one the table, which it has twice, makes
    nothing.
    """
    kind, words, permute = "<16 x i32>", "<32 x i16>", "llvm.x86.avx512.permvar.hi.512"
    low, high = (("or", 0), 12) if order == "low" else (("lshr", 4), 16)
    return f"""declare {words} @{permute}({words}, {words})
define linkonce_odr hidden {words} @{name}({words} %t, <16 x i8> %b) alwaysinline {{
  %d = zext <16 x i8> %b to {kind}
  %l = {low[0]} {kind} %d, {splat("i32", 16, low[1])}
  %h = shl {kind} %d, {splat("i32", 16, high)}
  %i = or {kind} %l, %h
  %w = bitcast {kind} %i to {words}
  %r = call {words} @{permute}({words} %t, {words} %w)
  ret {words} %r
}}"""


def _text_of_floats(name: str, order: str) -> str:
    """Return the function that looks up 16 entries of 32 bits by 8 bytes: it heeds 4 bits."""
    kind, floats, permute = "<8 x i64>", "<16 x float>", "llvm.x86.avx512.permvar.sf.512"
    low, high = (("or", 0), 28) if order == "low" else (("lshr", 4), 32)
    return f"""declare {floats} @{permute}({floats}, <16 x i32>)
define linkonce_odr hidden {floats} @{name}({floats} %t, <8 x i8> %b) alwaysinline {{
  %d = zext <8 x i8> %b to {kind}
  %l = {low[0]} {kind} %d, {splat("i64", 8, low[1])}
  %h = shl {kind} %d, {splat("i64", 8, high)}
  %i = or {kind} %l, %h
  %w = bitcast {kind} %i to <16 x i32>
  %r = call {floats} @{permute}({floats} %t, <16 x i32> %w)
  ret {floats} %r
}}"""


_TEXTS = {"uint16": _text_of_words, "float32": _text_of_floats}
