"""Loads of vectors whose lanes lie anywhere, by the instruction that gathers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tvm import tirx as tir

from tilecore.inference.cpu.storage import Storage
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Call, Cast, Const, Expr, Load, Var, cast
from tilecore.ir.nodes import Stmt
from tilecore.ir.visitor import expressions, walk_expr
from tilecore.lowering.cpu import near
from tilecore.lowering.cpu.functions.vector_math import FUNCTIONS
from tilecore.lowering.cpu.scalar import Scope, convert, from_memory, lower, memory_type, widen
from tilecore.lowering.llvm_text import LLVM_TYPES
from tilecore.lowering.tir import add, broadcast, vector_type

if TYPE_CHECKING:
    from tilecore.lowering.cpu.access import Accessor

GATHERED_BYTES = (4, 8)  # of elements that the instruction has
LARGEST = 1 << 31
WORTH_IT = 4  # operations to a load


def may_gather(accessor: Accessor, load: Load) -> bool:
    """Return whether elements anywhere in a buffer can be loaded as one vector."""
    place = accessor.places.get(load.buffer)
    if place is None or place.memory is None or place.is_own or load.buffer in accessor.pads:
        return False
    storage = place.storage
    if not isinstance(storage, Storage) or storage.kind != "rows" or storage.size >= LARGEST:
        return False
    kind = DType(memory_type(storage.dtype))
    return kind.itemsize in GATHERED_BYTES and not DType(storage.dtype).is_packed


def pays(body: Sequence[Stmt], knows_place: Callable[[Load], bool]) -> bool:
    """Return whether statements compute enough of what they gather for vectors to be worth it.

    To gather lanes takes as long as to load them one by one (AMD Zen 4, 2026-11-27).
    """
    nodes = {id(n): n for s in body for e in expressions(s) for n in walk_expr(e)}
    loads = [n for n in nodes.values() if isinstance(n, Load)]
    moved = {id(n) for x in loads for i in x.indices for n in walk_expr(i)}
    computed = [
        n for n in nodes.values() if not isinstance(n, Load | Var | Const) and id(n) not in moved
    ]
    if any(isinstance(n, Call) and n.name in FUNCTIONS for n in computed):
        return True
    return len(computed) >= WORTH_IT * sum(not knows_place(load) for load in loads)


def gathered(accessor: Accessor, load: Load, scope: Scope) -> Any:
    """Return the elements at the indices of all lanes; 0 for those outside of a tensor."""
    builder, place, lanes = accessor.builder, accessor.places[load.buffer], scope.lanes
    stored, names = place.storage.dtype, accessor.of_places(scope)
    indices = place.indices(load.indices)
    at = cast(place.storage.offset([cast(i, "int32") for i in indices]), "int32")
    offsets = builder.bind(widen(lower(at, names), at, scope, lanes))
    ends = accessor.open_ends(place, indices)
    if not place.guarded:  # lanes that are not chosen may name elements that are not there
        assert isinstance(place.storage, Storage)
        ends = list(zip(indices, place.storage.shape, strict=True))
        ends = [(i, n) for i, n in ends if not _is_inside(accessor, i, n)]
    mask = _mask(accessor, ends, scope)
    kind = memory_type(stored)
    name, element = f"tilecore_gather_{lanes}x{kind}", LLVM_TYPES[kind]
    text = _text(name, element, lanes)
    if lanes == accessor.register_lanes and kind in near.TYPES and _is_rounded(at):
        for known, line in {**near.declarations(element, lanes), name: text}.items():
            builder.define_llvm(known, line)
        name, text = f"{name}_near", near.text(f"{name}_near", name, element, lanes)
    first = tir.address_of(builder.load(place.memory, add(place.base, 0)))
    raw = builder.call_llvm(vector_type(kind, lanes), name, text, first, offsets, mask)
    return convert(from_memory(raw, stored, lanes), stored, load.dtype, lanes)


def _is_rounded(index: Expr) -> bool:
    """Return whether an index comes from floats: those of neighbours in an image are neighbours."""
    return any(
        isinstance(node, Cast) and node.dtype.is_integer and node.a.dtype.is_float
        for node in walk_expr(index)
    )


def _is_inside(accessor: Accessor, index: Expr, extent: Any) -> bool:
    bounds = accessor.bounds(index)
    return bounds is not None and bounds[0] >= 0 and bounds[1] < extent


def _mask(accessor: Accessor, ends: Sequence[tuple[Expr, Any]], scope: Scope) -> Any:
    """Return -1 for the lanes whose indices lie inside, 0 for the others."""
    lanes, uniform = scope.lanes, [end for end in ends if not scope.is_vector(end[0])]
    cond = accessor.guard(uniform, scope)
    ones, none = tir.IntImm("int32", -1), tir.IntImm("int32", 0)
    mask = broadcast(ones if cond is None else tir.Select(cond, ones, none), lanes)
    unsigned = vector_type("uint32", lanes)  # of which numbers below 0 are the largest
    for index, extent in ends:
        if scope.is_vector(index):
            at = lower(cast(index, "int32"), accessor.of_places(scope))
            top = broadcast(tir.IntImm("uint32", extent), lanes)
            cond = tir.LT(tir.reinterpret(unsigned, at), top)
            mask = tir.Select(cond, mask, broadcast(none, lanes))
    return mask


def _text(name: str, element: str, lanes: int) -> str:
    kind, places, bits = f"<{lanes} x {element}>", f"<{lanes} x ptr>", f"<{lanes} x i1>"
    suffix, align = {"float": ("f32", 4), "double": ("f64", 8)}.get(element, (element, 0))
    align = align or int(element[1:]) // 8
    gather, given = f"llvm.masked.gather.v{lanes}{suffix}.v{lanes}p0", f"<{lanes} x i32>"
    arguments = f"{places} align {align} %a, {bits} %c, {kind} zeroinitializer"
    return f"""declare {kind} @{gather}({places}, {bits}, {kind})
define linkonce_odr hidden {kind} @{name}(ptr %p, {given} %i, {given} %m) alwaysinline {{
  %c = icmp slt {given} %m, zeroinitializer
  %a = getelementptr {element}, ptr %p, {given} %i
  %r = call {kind} @{gather}({arguments})
  ret {kind} %r
}}"""
