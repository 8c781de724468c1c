"""Lowering loads and stores of elements, under what is known of the loops around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.storage import Storage, TensorStorage
from tilecore.ir.arithmetic.bounds import Interval, Known, begins_anew, step_of, variables
from tilecore.ir.arithmetic.lane_offsets import Offsets, lane_offsets
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Load, Var, binary, cast, const, holds
from tilecore.ir.nodes import Buffer
from tilecore.lowering.cpu import gather, tables
from tilecore.lowering.cpu.functions.wrapping import PLAIN, wrapped
from tilecore.lowering.cpu.place import (
    SHUFFLED,
    LaneMask,
    Place,
    load_lanes,
    load_values,
    masked_raw,
    picked,
    store_values,
)
from tilecore.lowering.cpu.scalar import (
    Scope,
    convert,
    from_memory,
    kept,
    lower,
    memory_type,
    value_type,
)
from tilecore.lowering.llvm_text import LLVM_TYPES
from tilecore.lowering.tir import (
    TirBuilder,
    add,
    broadcast,
    index,
    typed,
)
from tilecore.target import Target

INT32_MAX = 2**31 - 1
Extent = Expr | int


@dataclass(frozen=True, slots=True)
class MaskedLanes:
    """How the lanes of a load may leave a tensor: by one index, element by element.

    Attributes:
        index: that index.
        extent: of its axis.
        apart: how far from the first lane's element those of the lanes lie.
        uniform: the other (index, extent) pairs that may leave it, in all lanes alike.
    """

    index: Expr
    extent: Extent
    apart: Offsets
    uniform: Sequence[tuple[Expr, Extent]]


class Accessor:
    """Lowers element accesses under the ranges of the loops around them."""

    def __init__(self, builder: TirBuilder, target: Target) -> None:
        self.builder = builder
        self.register_lanes = target.lanes("float32")
        self.places: dict[Buffer, Place] = {}
        self.values: dict[Var, Any] = {}
        self.ranges: dict[Var, Interval] = {}
        self.lets: dict[Var, Expr] = {}
        self.lengths: dict[Var, int] = {}  # of what stands in the place of names
        self.of_index: set[Var] = set()  # what indices, counts and conditions are sums of
        self.pads: dict[Buffer, Expr] = {}  # what loads outside a tensor give, where not 0
        self.tops: dict[Var, Expr] = {}
        self.held: Mapping[int, Any] = {}  # values of loads (their id) that registers hold
        self.masks = False  # whether lanes that leave a tensor are loaded as what is outside of it
        self.box: tuple[Var, int] | None = None  # what counts blocks (steps of a loop), by how much
        self.tile_shape: tuple[int, int] | None = None  # rows and groups AMX is set up for

    def scope(self, vector: Var | None = None, lanes: int = 1) -> Scope:
        """Return the naming scope for expressions here."""
        return Scope(self.values, self.load, self._computed, None, vector, lanes)

    def of_places(self, scope: Scope | None = None) -> Scope:
        """Return the naming scope for indices and conditions: signed ones do not wrap around."""
        if scope is None:
            return Scope(self.values, self.load, self._counted, self._residue)
        return replace(scope, integers=self._counted)

    def scalar(self, expr: Expr) -> Any:
        """Lower a scalar index, count or condition."""
        return lower(expr, self.of_places())

    def value(self, expr: Expr) -> Any:
        """Lower a scalar that is computed with, and may wrap around."""
        return lower(expr, self.scope())

    def _computed(self, op: str, expr: Expr, a: Any, b: Any, lanes: int) -> Any:
        if self._stays(expr):
            return PLAIN[op](a, b)
        return wrapped(self.builder, op, str(expr.dtype), a, b, lanes)

    def _counted(self, op: str, expr: Expr, a: Any, b: Any, lanes: int) -> Any:
        return PLAIN[op](a, b) if expr.dtype.is_signed else self._computed(op, expr, a, b, lanes)

    def _residue(self, expr: Expr, value: Any) -> Any:
        """Return the value of an index, or part of one, as LLVM may know it."""
        if expr.dtype not in LLVM_TYPES or not begins_anew(expr, self.known):
            return value
        return self.builder.hidden(value, str(expr.dtype))

    def _stays(self, expr: Expr) -> bool:
        """Return whether the value of an expression surely is within its type."""
        bounds = self.bounds(expr) if expr.dtype.is_signed else None
        return bounds is not None and all(holds(expr.dtype, end) for end in bounds)

    def assign(self, var: Var, value: Any) -> None:
        """Give a loop or block variable its value, an int32 index."""
        self.values[var] = self.builder.bind(
            value if var.dtype == "int32" else typed(value, str(var.dtype))
        )

    def count(self, expr: Expr, most: int) -> Any:
        """Return an integer expression as int32; a wider one is limited to ``most`` first."""
        if expr.dtype == "int32":
            return self.scalar(expr)
        return self.scalar(cast(binary("min", expr, most), "int32"))

    def step(self, place: Place, axis: int) -> Any:
        """Return the elements from one index of ``axis`` to the next, as an int or in TIR."""
        size = place.storage.step(axis)
        return self.builder.bind(self.scalar(size)) if isinstance(size, Expr) else size

    @property
    def known(self) -> Known:
        """What is known of the variables here."""
        return Known(self.ranges, self.tops, self.lets)

    def bounds(self, expr: Expr) -> Interval | None:
        """Return inclusive bounds of an integer expression, or None."""
        return self.known.bounds(expr)

    # --- guards -------------------------------------------------------------------------------

    def open_ends(self, place: Place, indices: Sequence[Expr]) -> list[tuple[Expr, Extent]]:
        """Return the (index, extent) pairs that are not known to stay inside a global tensor."""
        if not place.guarded:
            return []
        found: list[tuple[Expr, Extent]] = []
        for at, extent in zip(indices, place.storage.shape, strict=True):
            bounds = self.bounds(at)
            if bounds is None or bounds[0] < 0 or not self.known.is_below(at, extent):
                found.append((at, extent))
        return found

    def inside(self, at: Expr, extent: Extent, scope: Scope, last: Expr | None = None) -> Any:
        """Return the TIR condition 0 <= at and (last or at) < extent."""
        scope = self.of_places(scope)
        if at.dtype.bits < 32:
            at = cast(at, "int32")
        end = last if last is not None else at
        if isinstance(extent, int) and extent <= INT32_MAX:
            upper = tir.LT(index(lower(end, scope)), tir.IntImm(str(end.dtype), extent))
        else:
            wide = cast(end, "int64") if isinstance(extent, int) else end
            upper = lower(binary("lt", wide, extent), scope)
        bounds = self.bounds(at)
        if bounds is not None and bounds[0] >= 0:
            return upper
        return tir.And(tir.GE(index(lower(at, scope)), tir.IntImm(str(at.dtype), 0)), upper)

    def guard(self, pairs: Sequence[tuple[Expr, Extent]], scope: Scope) -> Any | None:
        """Return the conjunction of all bounds conditions, or None where there are none."""
        cond = None
        for at, extent in pairs:
            one = self.inside(at, extent, scope)
            cond = one if cond is None else tir.And(cond, one)
        return cond

    # --- elements -----------------------------------------------------------------------------

    def load(self, expr: Load, scope: Scope) -> Any:
        """Return an element (or one per lane); outside a global tensor it is padded."""
        if id(expr) in self.held:
            return self.held[id(expr)]
        place = self.places[expr.buffer]
        indices = place.indices(expr.indices)
        lanes = scope.lanes if scope.is_vector(expr) else 1
        apart = None
        if lanes > 1 and self._distance(expr, scope) is None:
            apart = self._known_offsets(expr, scope)
            if apart is None:
                if self.is_table(expr):
                    return self._looked_up(expr, scope)
                return gather.gathered(self, expr, scope)
        if lanes > 1 and self.masks:
            found = self.masked_lanes(expr, scope)
            if found is not None:
                return self._masked(expr, found, scope)
        flat = self.of_places()
        uniform = [p for p in self.open_ends(place, indices) if not scope.is_vector(p[0])]
        cond = self.guard(uniform, flat)
        if apart is None:
            offset, stride = self.offset(place, indices, scope.vector if lanes > 1 else None)
            value = load_values(self.builder, place, offset, lanes, stride)
        else:
            offset, _ = self.offset(place, indices, of_vector=True)
            cond = None if cond is None else self.builder.bind(cond)
            value = load_lanes(self.builder, place, offset, apart, cond)
        value = convert(value, place.storage.dtype, expr.dtype, lanes)
        if cond is None:
            return value
        pad = self.pads.get(expr.buffer, const(0, expr.dtype))
        return tir.if_then_else(cond, value, broadcast(lower(pad, flat), lanes))

    def store(
        self, buffer: Buffer, indices: Sequence[Expr], value: Any, dtype: str, scope: Scope
    ) -> None:
        """Store a computed value of ``dtype``; outside a global tensor nothing happens."""
        place = self.places[buffer]
        at = place.indices(indices)
        lanes = scope.lanes if scope.vector is not None else 1
        uniform = [p for p in self.open_ends(place, at) if not scope.is_vector(p[0])]
        vector = scope.vector
        if vector is not None and self.stride_of(buffer, indices, vector) is None:
            offset, stride = self.offset(place, at, of_vector=True)[0], 1
        else:
            offset, stride = self.offset(place, at, scope.vector)
        result = kept(value, dtype, buffer.dtype, place.storage.dtype, lanes)
        cond = self.guard(uniform, self.of_places())
        if cond is None:
            store_values(self.builder, place, result, offset, lanes, stride)
        else:
            with self.builder.when(cond):
                store_values(self.builder, place, result, offset, lanes, stride)

    def is_table(self, load: Load) -> bool:
        """Return whether registers hold what is loaded from: lanes may differ by any distance."""
        place = self.places[load.buffer]
        shape = load.buffer.static_shape
        is_plain = isinstance(place.storage, Storage) and not place.shift and not place.is_own
        if not is_plain or shape is None or len(shape) != 1 or shape[0] not in tables.SIZES:
            return False
        bounds = self.bounds(load.indices[0])
        inside = bounds is not None and bounds[0] >= 0 and bounds[1] < shape[0]
        stored, dtype = place.storage.dtype, load.buffer.dtype
        is_float = value_type(dtype) in ("float32", "float16") and not dtype.is_packed
        return inside and is_float and stored in ("float32", dtype)

    def _distance(self, load: Load, scope: Scope) -> int | None:
        """Return the elements between lanes; None: lanes pick entries of a table."""
        bound = variables(load.indices[0]) & scope.vector_lets if len(load.indices) == 1 else None
        if bound or scope.vector is None:
            return None
        return self.stride_of(load.buffer, load.indices, scope.vector)

    def masked_lanes(self, load: Load, scope: Scope) -> MaskedLanes | None:
        """Return how lanes that may leave a tensor are loaded; None: they do not, or not so."""
        place, vector = self.places[load.buffer], scope.vector
        indices = place.indices(load.indices)
        ends = self.open_ends(place, indices)
        varying = [pair for pair in ends if scope.is_vector(pair[0])]
        if len(varying) != 1 or load.buffer in self.pads or vector is None:
            return None
        (at, extent), lanes = varying[0], scope.lanes
        apart = self.offsets_of(load.buffer, load.indices, vector, lanes)
        if apart is None or apart != lane_offsets(at, vector, lanes):
            return None
        is_short = max(apart) - min(apart) < SHUFFLED * lanes
        is_int = isinstance(extent, int) and extent <= INT32_MAX and at.dtype == "int32"
        uniform = [pair for pair in ends if pair is not varying[0]]
        return MaskedLanes(at, extent, apart, uniform) if is_short and is_int else None

    def _masked(self, load: Load, found: MaskedLanes, scope: Scope) -> Any:
        """Return lanes of a tensor, 0 for those outside of it."""
        builder, place, flat = self.builder, self.places[load.buffer], self.of_places()
        stored, lanes, least = place.storage.dtype, scope.lanes, min(found.apart)
        offset, _ = self.offset(place, place.indices(load.indices), of_vector=True)
        first = lower(found.index, replace(flat, residue=None))
        limit: Any = index(found.extent)
        cond = self.guard(found.uniform, flat)
        if cond is not None:
            limit = tir.Select(cond, limit, index(0))
        limit = builder.bind(limit)
        parts, count = [], max(found.apart) - least + 1
        for start in (least,) if count <= lanes else (least, least + count - lanes):
            mask = LaneMask(builder.bind(add(first, start)), limit, lanes, is_two_sided=True)
            raw = masked_raw(place, add(offset, start), mask)
            parts.append(raw if count <= lanes else builder.bind(raw))
        raw = parts[0]
        if found.apart != tuple(range(least, least + lanes)):
            raw = picked(builder, parts, memory_type(stored), lanes, count, found.apart)
        value = from_memory(raw, stored, lanes)
        return convert(value, stored, load.dtype, lanes)

    def _known_offsets(self, load: Load, scope: Scope) -> Offsets | None:
        """Return how far from the first lane's element those of the lanes lie."""
        if scope.vector is None or any(variables(i) & scope.vector_lets for i in load.indices):
            return None
        return self.offsets_of(load.buffer, load.indices, scope.vector, scope.lanes)

    def _looked_up(self, load: Load, scope: Scope) -> Any:
        place, (size,) = self.places[load.buffer], load.buffer.static_shape or (0,)
        offset, _ = self.offset(place, (const(0),))
        table = load_values(self.builder, place, offset, size)
        if value_type(place.storage.dtype) == "float16":
            table = convert(table, "float16", "float32", size)
        entry = lower(cast(load.indices[0], "int32"), self.of_places(scope))
        found = tables.pick(self.builder, table, size, entry, scope.lanes, self.register_lanes)
        is_half = value_type(load.dtype) == "float16"
        return convert(found, "float32", "float16", scope.lanes) if is_half else found

    def offset(
        self,
        place: Place,
        indices: Sequence[Expr],
        vector: Var | None = None,
        *,
        of_vector: bool = False,
    ) -> tuple[Any, int]:
        """Return (TIR offset of the first lane, elements between lanes).

        Args:
            place: what is accessed.
            indices: of the element, or of the first lane's.
            vector: what runs over lanes.
            of_vector: whether a vector lies there whose lanes are next to each other.
        """
        if place.is_own:
            return 0, 1
        scope = self.of_places()
        if of_vector or vector is not None:  # LLVM makes no vectors of a loop that has some
            scope = replace(scope, residue=None)
        storage = place.storage
        if isinstance(storage, TensorStorage):
            offset = storage.offset(indices)
            lanes_apart = storage.lane_distance(indices, vector) if vector is not None else 1
            assert lanes_apart is not None  # checked by stride_of before vector code is chosen
            return add(place.base, lower(offset, scope)), lanes_apart
        offset = storage.offset([cast(i, "int32") for i in indices])
        stride = 1
        if vector is not None and storage.kind == "rows":
            found = step_of(offset, vector)
            assert found is not None  # checked by stride_of before vector code is chosen
            stride = found
        return add(place.base, lower(offset, scope)), stride

    def stride_of(self, buffer: Buffer, indices: Sequence[Expr], vector: Var) -> int | None:
        """Return the distance between lanes if ``vector`` runs over lanes; None: not constant."""
        place = self.places[buffer]
        at = place.indices(indices)
        if isinstance(place.storage, TensorStorage):
            return place.storage.lane_distance(at, vector)
        if place.storage.kind == "panels":
            axis = place.storage.axis
            along = at[axis] is vector
            is_lane = along and place.storage.group == 1
            return 1 if is_lane and step_of(at[1 - axis], vector) == 0 else None
        return step_of(place.storage.offset(at), vector)

    def offsets_of(
        self, buffer: Buffer, indices: Sequence[Expr], vector: Var, lanes: int
    ) -> Offsets | None:
        """Return how far from the first lane's element those of all lanes lie.

        They lie so in every vector; None: not at known distances, or in no rows of whole bytes.
        """
        place = self.places[buffer]
        storage = place.storage
        if place.is_own or DType(storage.dtype).is_packed or storage.dtype == "bool":
            return None
        at = place.indices(indices)
        if isinstance(storage, Storage):
            is_rows = storage.kind == "rows"
            return lane_offsets(storage.offset(at), vector, lanes) if is_rows else None
        total = [0] * lanes
        for one, stride in zip(at, storage.strides, strict=True):
            apart = lane_offsets(one, vector, lanes)
            if apart is None or (any(apart) and not isinstance(stride, int)):
                return None
            if isinstance(stride, int):
                total = [t + x * stride for t, x in zip(total, apart, strict=True)]
        return tuple(total)
