"""Matrix products: on tensor cores by mma.sync, and by scalar multiply-adds."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.distribution import Distribution
from tilecore.inference.gpu.loops import Access
from tilecore.inference.gpu.plan import GemmPlan, Operand
from tilecore.inference.gpu.products.matrix_units import operand_kind
from tilecore.ir.analysis import kept_axes
from tilecore.ir.expr import Const, Expr, Load, Var, binary, const
from tilecore.ir.nodes import Region
from tilecore.lowering.cuda.access import Accessor
from tilecore.lowering.cuda.memory import (
    FragmentPlace,
    is_first_copy,
    only,
    thread_index,
)
from tilecore.lowering.cuda.nests.nest import PointLoops
from tilecore.lowering.cuda.scalar import constant, convert, memory_type, to_memory, value_type
from tilecore.lowering.tir import add, mul, quotient, remainder

WARP = 32
WARPGROUP = 128
BYTES = 4  # of a register


class ProductLowering(ABC):
    """What all forms of a product share: the accumulators."""

    def __init__(self, accessor: Accessor, plan: GemmPlan) -> None:
        self.accessor, self.builder, self.plan = accessor, accessor.builder, plan
        self.stmt = plan.stmt
        self.dtype = plan.sums
        place = accessor.places[plan.stmt.c.buffer]
        is_same = isinstance(place, FragmentPlace) and place.dtype == self.dtype
        self.in_place = plan.keeps_c and is_same
        self.sums: Any = place.memory if self.in_place else None

    def emit(self) -> None:
        """Emit the product."""
        self.start()
        self.finish()

    def start(self) -> None:
        """Emit the product, but for what moves sums that are not in place."""
        if not self.in_place:
            self.sums = self.builder.local(self.plan.c.slots, self.dtype, "sums")
            if not self._drops_always():
                self._exchange(stores=False)
        self._clear()
        self.multiply()

    def finish(self) -> None:
        """Emit what moves the sums to where they belong."""
        if not self.in_place:
            self._exchange(stores=True)

    def kinds(self) -> tuple[str, str]:
        """Return what the instruction reads A and B as."""
        a, b = (operand_kind(str(region.dtype)) for region in (self.stmt.a, self.stmt.b))
        return a, b

    @abstractmethod
    def multiply(self) -> None:
        """Emit sums += A B."""

    def _drops_always(self) -> bool:
        clear = self.stmt.clear_accum
        return isinstance(clear, Const) and bool(clear.value)

    def _clear(self) -> None:
        clear = self.stmt.clear_accum
        if isinstance(clear, Const) and not clear.value:
            return
        with contextlib.ExitStack() as stack:
            if not isinstance(clear, Const):
                stack.enter_context(self.builder.when(self.accessor.scalar(clear)))
            slot = stack.enter_context(self.builder.turns(self.plan.c.slots))
            self.builder.store(self.sums, constant(0, self.dtype), slot)

    def _exchange(self, *, stores: bool) -> None:
        """Load the sums from C, or store them to it."""
        accessor, region, c = self.accessor, self.stmt.c, self.plan.c
        names = (Var("row"), Var("column"))
        indices = matrix_indices(region, names)
        loops = PointLoops(accessor, c, names)
        loops.find_slots((Access(region.buffer, indices, stores, True),))
        with (
            only(self.builder, is_first_copy(c, accessor.thread)),
            loops.open(unrolled=True) as digits,
            loops.at(digits),
        ):
            slot: Any = 0
            for stride, value in digits.items():
                slot = add(slot, mul(value, stride))
            if stores:
                value = self.builder.load(self.sums, slot)
                accessor.store(region.buffer, indices, value, self.dtype)
            else:
                load = Load(region.buffer, indices, region.dtype)
                value = convert(accessor.load(load), str(region.dtype), self.dtype)
                self.builder.store(self.sums, value, slot)


def matrix_indices(region: Region, pair: tuple[Expr, Expr]) -> tuple[Expr, ...]:
    """Return the indices of an element of a tile that is used as a matrix."""
    axes = kept_axes(region)
    if len(axes) != 2:  # extents of 1 among the two axes of the matrix
        axes = (len(region.extents) - 2, len(region.extents) - 1)
    indices = list(region.offsets)
    for axis, value in zip(axes, pair, strict=True):
        indices[axis] = binary("add", indices[axis], value)
    return tuple(indices)


class MmaLowering(ProductLowering):
    """A product on tensor cores: each warp multiplies its part, step by step along K."""

    def multiply(self) -> None:
        """Emit sums += A B."""
        plan, builder = self.plan, self.builder
        self.lane = builder.bind(remainder(self.accessor.thread, WARP))
        step = plan.shape[2]
        arrays = [
            self._array(operand, region, name)
            for operand, region, name in (
                (plan.a, self.stmt.a, "a"),
                (plan.b, self.stmt.b, "b"),
            )
        ]
        with builder.turns(plan.size[2] // step) as turn:
            depth = mul(turn, step)
            self._load(plan.a, self.stmt.a, arrays[0], depth, plan.shape[0])
            self._load(plan.b, self.stmt.b, arrays[1], depth, plan.shape[1])
            if self._is_converted():
                arrays = [
                    self._converted(operand, array, turn)
                    for operand, array in zip((plan.a, plan.b), arrays, strict=True)
                ]
            self._multiply(arrays, turn)

    def _array(self, operand: Operand, region: Region, name: str) -> Any:
        """Return the registers of an operand: the fragment itself, or those of one step."""
        if operand.source == "registers":
            place = self.accessor.places[region.buffer]
            assert isinstance(place, FragmentPlace)
            return place.memory
        kind = memory_type(str(region.dtype))
        return self.builder.local(operand.distribution.slots, kind, name)

    def _is_converted(self) -> bool:
        """Return whether the unit reads registers as another type than elements have in memory."""
        return self.plan.is_tf32 or self.stmt.a.dtype == "int4"

    def _converted(self, operand: Operand, array: Any, turn: Any) -> Any:
        """Return the registers of a step as the unit reads them: a fragment stays what it is."""
        builder, dtype = self.builder, memory_type(str(self.stmt.a.dtype))
        made, start, count = array, 0, operand.distribution.slots
        if operand.source == "registers":
            count //= self.plan.size[2] // self.plan.shape[2]
            made, start = builder.local(count, dtype, "converted"), mul(turn, count)
        if self.plan.is_tf32:
            with builder.turns(count) as slot:
                value = builder.load(array, add(start, slot))
                builder.store(made, ptx.round_tfloat32().call(value), slot)
            return made
        with builder.turns(count // BYTES) as register:
            slot = mul(register, BYTES)
            source = builder.address(array, add(start, slot))
            builder.evaluate(ptx.extend_nibbles().call(builder.address(made, slot), source))
        return made

    def _multiply(self, arrays: Sequence[Any], turn: Any) -> None:
        plan, builder = self.plan, self.builder
        m, n, k = plan.shape
        instruction = ptx.mma(f"m{m}n{n}k{k}", *self.kinds(), self.dtype)
        rows = plan.size[0] // (m * plan.warps[0])
        columns = plan.size[1] // (n * plan.warps[1])
        a_unit, b_unit = m * k // WARP, n * k // WARP
        keeps = not self._is_converted()  # else the registers are those of one step
        starts = [
            mul(turn, rows * a_unit) if keeps and plan.a.source == "registers" else 0,
            mul(turn, columns * b_unit) if keeps and plan.b.source == "registers" else 0,
        ]
        with builder.turns(rows) as row, builder.turns(columns) as column:
            sums = mul(add(mul(row, columns), column), m * n // WARP)
            builder.evaluate(
                instruction.call(
                    builder.address(self.sums, sums),
                    builder.address(arrays[0], add(starts[0], mul(row, a_unit))),
                    builder.address(arrays[1], add(starts[1], mul(column, b_unit))),
                )
            )

    # --- operands -----------------------------------------------------------------------------

    def _load(self, operand: Operand, region: Region, array: Any, depth: Any, atom: int) -> None:
        if operand.source == "elements":
            self._load_elements(operand, region, array, depth)
        elif operand.source == "ldmatrix":
            self._load_matrices(operand, region, array, depth, atom)

    def _load_elements(self, operand: Operand, region: Region, array: Any, depth: Any) -> None:
        """Load the operand element by element, as its registers want them."""
        accessor, builder = self.accessor, self.builder
        names = (Var("row"), Var("depth"))
        start = Var("start")
        pair: tuple[Expr, Expr] = (names[0], names[1] + start)
        indices = matrix_indices(region, pair[::-1] if operand.is_transposed else pair)
        loops = PointLoops(accessor, operand.distribution, names)
        bounds = (0, self.plan.size[2] - self.plan.shape[2])
        with (
            accessor.bound(start, depth, bounds),
            loops.open(unrolled=True) as digits,
            loops.at(digits),
        ):
            slot: Any = 0
            for stride, value in digits.items():
                slot = add(slot, mul(value, stride))
            value = accessor.load(Load(region.buffer, indices, region.dtype))
            builder.store(array, to_memory(value, str(region.dtype)), slot)

    def _load_matrices(
        self, operand: Operand, region: Region, array: Any, depth: Any, atom: int
    ) -> None:
        """Load 8x8 matrices of 16-byte rows: all of a tile of A, or of two tiles of B, at once."""
        builder, spread = self.builder, operand.distribution
        itemsize = region.dtype.itemsize
        chunk = 16 // itemsize  # elements of a row of a matrix
        halves, high = atom // 8, self.plan.shape[2] // chunk
        unit = halves * high
        tiles = spread.slots // (unit * 4 // itemsize)
        pairs = 2 if atom == 8 and tiles % 2 == 0 and unit <= 2 else 1
        count = unit * pairs
        number = remainder(quotient(self.lane, 8), count)
        within = remainder(self.lane, 8)
        if halves == 2:
            across, along = remainder(number, 2), quotient(number, 2)
        else:
            across, along = quotient(number, high), remainder(number, high)
        # Lanes point at rows: of M or N, of K where the operand is transposed.
        across, along = mul(across, 8), mul(along, chunk)
        if operand.is_transposed:
            along = add(along, within)
        else:
            across = add(across, within)
        across, along = builder.bind(across), builder.bind(along)
        first = self._warp_start(spread)
        load = ptx.ldmatrix(count, operand.is_transposed)
        with builder.turns(tiles // pairs) as tile:
            at = add(first, add(mul(tile, atom * pairs), across))
            pair = (at, add(depth, along))
            memory, offset = self._locate(region, pair[::-1] if operand.is_transposed else pair)
            registers = builder.address(array, mul(tile, unit * pairs * 4 // itemsize))
            builder.evaluate(load.call(registers, builder.address(memory, offset)))

    def _warp_start(self, spread: Distribution) -> Any:
        """Return the first row (of A) or column (of B) of the warp."""
        warp = mul(quotient(self.accessor.thread, WARP), WARP)
        return self.builder.bind(thread_index(spread, 0, warp))

    def _locate(self, region: Region, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return (TIR buffer, offset) of an element given by TIR indices of the matrix."""
        names = (Var("row"), Var("column"))
        with (
            self.accessor.bound(names[0], pair[0], None),
            self.accessor.bound(names[1], pair[1], None),
        ):
            return self.accessor.locate(region.buffer, matrix_indices(region, names))


class FmaLowering(ProductLowering):
    """A product by scalar multiply-adds: each thread has a few rows and columns of C."""

    def multiply(self) -> None:
        """Emit sums += A B."""
        plan, builder = self.plan, self.builder
        kind = value_type(self.dtype)
        sides = [
            (self.stmt.a, plan.a, 0, builder.local(self._count(0), kind, "a")),
            (self.stmt.b, plan.b, 1, builder.local(self._count(1), kind, "b")),
        ]
        steps = plan.size[2]
        with builder.turns(steps, unrolled=steps <= 8) as depth:
            for region, operand, axis, array in sides:
                self._load(region, operand, axis, array, depth)
            self._multiply(sides[0][3], sides[1][3])

    def _digits(self, axis: int) -> list[tuple[int, int]]:
        """Return (stride, extent) of the slots of C along an axis."""
        return [(d.stride, d.extent) for d in self.plan.c.axes[axis] if not d.in_thread]

    def _count(self, axis: int) -> int:
        total = 1
        for _, extent in self._digits(axis):
            total *= extent
        return total

    def _load(self, region: Region, operand: Operand, axis: int, array: Any, depth: Any) -> None:
        accessor, builder, c = self.accessor, self.builder, self.plan.c
        names = (Var("across"), Var("depth"))
        indices = matrix_indices(region, names[::-1] if operand.is_transposed else names)
        start = builder.bind(thread_index(c, axis, accessor.thread))
        with contextlib.ExitStack() as stack:
            place: Any = 0
            value: Any = start
            weights = {d.stride: w for d, w in c.weights(axis) if not d.in_thread}
            for stride, extent in self._digits(axis):
                turn = stack.enter_context(builder.turns(extent))
                place = add(mul(place, extent), turn)
                value = add(value, mul(turn, weights[stride]))
            size = c.shape[axis]
            stack.enter_context(accessor.bound(names[0], value, (0, size - 1), const(size)))
            steps = self.plan.size[2]
            stack.enter_context(accessor.bound(names[1], depth, (0, steps - 1), const(steps)))
            element = accessor.load(Load(region.buffer, indices, region.dtype))
            builder.store(array, convert(element, str(region.dtype), self.dtype), place)

    def _multiply(self, a: Any, b: Any) -> None:
        builder = self.builder
        with contextlib.ExitStack() as stack:
            places: list[Any] = []
            slot: Any = 0
            for axis in (0, 1):
                place: Any = 0
                for stride, extent in self._digits(axis):
                    turn = stack.enter_context(builder.turns(extent))
                    place = add(mul(place, extent), turn)
                    slot = add(slot, mul(turn, stride))
                places.append(place)
            product = builder.load(a, places[0]) * builder.load(b, places[1])
            total = builder.load(self.sums, slot) + product
            builder.store(self.sums, total, slot)
