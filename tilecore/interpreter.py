"""The tile IR in NumPy: the oracle that says what a program means.

Slow and literal on purpose: blocks run one by one in any order asked for, tiles start undefined
(NaN, or a pattern for integers), loads outside a global tensor give 0 and stores there are
skipped, and an index outside a tile is an error. Parallel nests are evaluated for all iterations at
once where their body allows, else one by one in a shuffled order.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from tilecore.errors import ArgumentError, AssertionFailed, ScopeError, ShapeMismatch, TileError
from tilecore.ir import nodes
from tilecore.ir.analysis import is_elementwise, output_positions, pads, written_buffers
from tilecore.ir.barrier import arrival, deadlock, is_over
from tilecore.ir.dims import solve
from tilecore.ir.evaluate import Evaluator, Mask, Value, convert
from tilecore.ir.expr import Expr, Load, Var
from tilecore.ir.fold import accumulator_dtype, reducer_update
from tilecore.ir.fold_values import fold_values, scan_values, updated_value
from tilecore.ir.indexing import format_shape
from tilecore.ir.nodes import Buffer, PrimFunc, Region, Stmt
from tilecore.ir.packed import (
    PackedArray,
    as_array,
    at_address,
    bytes_of,
    empty_packed,
    measures,
    memory_of,
)
from tilecore.ir.visitor import buffers_of, walk_expr

Array = Any  # a NumPy array, or a PackedArray
UNDEFINED_INT = 0x55  # every byte of an undefined integer tile


def run(
    func: PrimFunc,
    *arguments: Any,
    seed: int | None = None,
    values: Mapping[Var, int] | None = None,
) -> list[Array]:
    """Run ``func`` and return its outputs.

    Args:
        func: the program.
        arguments: one array or number per parameter; outputs may be left out, then they are
            allocated (undefined). Arrays given are changed in place.
        seed: order of blocks and of Parallel iterations: None as written, else shuffled.
        values: values of symbolic knobs, if the program has any.

    Returns:
        The output tensors in parameter order: those marked as outputs, else those that the program
        writes and (if they were passed in) may also read.

    Raises:
        ArgumentError: a wrong number of arguments, rank, extent or dtype (TC402).
        ShapeMismatch: an index outside a shared, fragment or local tile (TC201).
        ScopeError: a symbol has no value (TC104).
    """
    machine = _Machine(func, None if seed is None else np.random.default_rng(seed))
    for var, value in (values or {}).items():
        machine.evaluate.set(var, value)
    outputs = machine.bind(arguments)
    with np.errstate(all="ignore"):
        machine.run(func.body)
    return [memory_of(machine.memory[id(b)]) for b in outputs]


class _Jump(Exception):
    """Ends an iteration (``continue``) or a loop (``break``)."""

    def __init__(self, word: str) -> None:
        self.word = word


class _Machine:
    """Memory and variables of one run."""

    def __init__(self, func: PrimFunc, rng: np.random.Generator | None) -> None:
        self.func = func
        self.rng = rng
        self.memory: MutableMapping[int, Array] = {}
        self.outside: dict[int, Value] = {}  # what loads outside a tensor give, where not 0
        self.evaluate = Evaluator(load=self.load)
        self.threads: tuple[Expr, ...] = ()  # of the launch that runs

    # --- arguments ------------------------------------------------------------------------

    def bind(self, arguments: Sequence[Any]) -> list[Buffer]:
        """Give the parameters their values; return the outputs."""
        params = self.func.params
        positions = output_positions(self.func)
        if len(arguments) == len(params):
            given = list(range(len(params)))
            written = {id(b) for b in written_buffers(self.func.body)}
            returned = [i for i, p in enumerate(params) if id(p) in written or i in positions]
        else:
            given = [i for i in range(len(params)) if i not in positions]
            returned = list(positions)
        if len(arguments) != len(given):
            raise ArgumentError(
                position=len(arguments),
                name=self.func.name,
                expected=f"{len(given)} arguments (or {len(params)} with the outputs)",
                found=len(arguments),
            )
        self._bind_dimensions(zip(given, arguments, strict=True))
        for position, argument in zip(given, arguments, strict=True):
            self._bind_one(position, argument)
        for position in returned:
            buffer = params[position]
            if isinstance(buffer, Buffer) and id(buffer) not in self.memory:
                self.memory[id(buffer)] = self.undefined(buffer)
        return [p for i, p in enumerate(params) if i in returned and isinstance(p, Buffer)]

    def _bind_dimensions(self, arguments: Iterable[tuple[int, Any]]) -> None:
        """Give scalar parameters and dimensions their values."""
        found: list[tuple[Expr, int]] = []
        absent: list[Var] = []
        for position, argument in arguments:
            param = self.func.params[position]
            if isinstance(param, Var):
                self.evaluate.set(param, argument)
                continue
            if argument is None:
                absent += [v for e in param.shape for v in walk_expr(e) if isinstance(v, Var)]
                continue
            shape, steps = measures(np.asarray(argument), param.dtype)
            found += zip(param.shape, shape, strict=False)
            found += zip(param.strides or (), steps, strict=False)
        for is_alone in (True, False):
            for extent, actual in found:
                solved = solve(extent)
                if solved is None or (is_alone and not isinstance(extent, Var)):
                    continue
                if id(solved.symbol) not in self.evaluate.values:
                    self.evaluate.set(solved.symbol, (actual - solved.rest) // solved.factor)
        for symbol in absent:
            self.evaluate.values.setdefault(id(symbol), 0)

    def _bind_one(self, position: int, argument: Any) -> None:
        param = self.func.params[position]
        if isinstance(param, Var):
            return
        if argument is None and param not in {b.root for b in buffers_of(self.func.body)}:
            return  # a tensor that is not used may be absent
        array = np.asarray(argument)

        def fail(expected: object, found: object) -> ArgumentError:
            return ArgumentError(position=position, name=param.name, expected=expected, found=found)

        found = as_array(array, param.dtype)
        if found is None:
            raise fail(param.dtype.storage, array.dtype)
        if found.ndim != param.ndim:
            raise fail(f"shape {format_shape(param.shape)}", f"shape {found.shape}")
        for extent, actual in zip(param.shape, found.shape, strict=True):
            if int(self.evaluate(extent)) != actual:
                raise fail(f"shape {format_shape(param.shape)}", f"shape {found.shape}")
        self.memory[id(param)] = found

    def undefined(self, buffer: Buffer) -> Array:
        """Return a new array with contents that show when they are used."""
        shape = tuple(int(self.evaluate(e)) for e in buffer.shape)
        if buffer.dtype.is_packed:
            return empty_packed(shape, buffer.dtype, UNDEFINED_INT)
        if buffer.dtype.is_float:
            return np.full(shape, np.nan, np.float32).astype(buffer.dtype.numpy)
        pattern = np.full(buffer.dtype.itemsize, UNDEFINED_INT, np.uint8)
        if buffer.dtype == "bool":
            return np.ones(shape, np.bool_)
        return np.full(shape, pattern.view(buffer.dtype.numpy)[0])

    def view(self, buffer: Buffer, base: Array) -> Array:
        """Return the memory of a tile or tensor with another shape or element type."""
        shape = tuple(int(self.evaluate(e)) for e in buffer.shape)
        flat = memory_of(base).reshape(-1)
        if buffer.dtype.is_packed:
            return PackedArray(flat.view(np.uint8).reshape(*shape[:-1], -1), buffer.dtype, shape)
        return flat.view(buffer.dtype.numpy).reshape(shape)

    def at_address(self, buffer: Buffer, address: int) -> Array:
        """Return the memory at an address as an array."""
        shape = [int(self.evaluate(e)) for e in buffer.shape]
        steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        if buffer.strides is not None:
            steps = [int(self.evaluate(e)) for e in buffer.strides]
        if buffer.dtype.is_packed:
            memory = at_address(address, *bytes_of(shape, steps), np.dtype(np.uint8))
            return PackedArray(memory, buffer.dtype, tuple(shape))
        return at_address(address, shape, steps, buffer.dtype.numpy)

    # --- memory ---------------------------------------------------------------------------

    def array(self, buffer: Buffer) -> Array:
        """Return the contents of ``buffer``."""
        if id(buffer) not in self.memory:
            raise ScopeError(message=f"`{buffer.name}` does not exist here")
        return self.memory[id(buffer)]

    def locate(
        self, buffer: Buffer, indices: Sequence[Value], mask: Mask
    ) -> tuple[tuple[Any, ...], Any]:
        """Return (indices clipped into the buffer, which of them were inside)."""
        array = self.array(buffer)
        inside: Any = np.asarray(True)
        clipped = []
        for axis, (index, extent) in enumerate(zip(indices, array.shape, strict=True)):
            good = np.logical_and(np.greater_equal(index, 0), np.less(index, extent))
            if buffer.scope != "global" and np.any(np.logical_and(mask, np.logical_not(good))):
                bad = np.asarray(index)[...].ravel()
                worst = bad[np.argmax(np.abs(bad - extent / 2))]
                raise ShapeMismatch(
                    what=f"index of `{buffer.name}`, axis {axis}",
                    expected=f"0 to {extent - 1}",
                    found=int(worst),
                )
            inside = np.logical_and(inside, good)
            clipped.append(np.clip(index, 0, extent - 1))
        return tuple(clipped), inside

    def load(self, expr: Load, indices: tuple[Value, ...], mask: Mask) -> Value:
        """Return elements; 0 (or what it is padded with) outside a global tensor."""
        array = self.array(expr.buffer)
        if 0 in array.shape:
            return self._pad(expr.buffer)[()]
        place, inside = self.locate(expr.buffer, indices, mask)
        return np.where(inside, array[place], self._pad(expr.buffer))[()]

    def _pad(self, buffer: Buffer) -> Array:
        return np.asarray(self.outside.get(id(buffer), 0)).astype(buffer.dtype.numpy)

    def store(self, stmt: nodes.Store, mask: Mask) -> None:
        """Write elements where ``mask`` holds; skipped outside a global tensor."""
        update = reducer_update(stmt)
        if update is not None:
            self._update(update[0], stmt, update[1], mask)
            return
        indices = tuple(self.evaluate(i, mask) for i in stmt.indices)
        value = convert(self.evaluate(stmt.value, mask), stmt.buffer.dtype.numpy)
        array = self.array(stmt.buffer)
        if 0 in array.shape:
            return
        place, inside = self.locate(stmt.buffer, indices, mask)
        active = np.logical_and(mask, inside)
        *full, value, active = np.broadcast_arrays(*place, value, active)
        if not full:  # a tensor without axes
            array[()] = value if active else array[()]
            return
        array[tuple(p[active] for p in full)] = value[active]

    def read(self, region: Region) -> Array:
        """Return a copy of a region without its axes of size 1; padded outside a tensor."""
        grids, shape = self._box(region)
        array = self.array(region.buffer)
        found = self._pad(region.buffer)
        if 0 not in array.shape:
            place, inside = self.locate(region.buffer, grids, True)
            found = np.where(inside, array[place], found)
        return np.broadcast_to(found, shape).reshape([n for n in shape if n != 1])

    def write(self, region: Region, value: Array) -> None:
        """Set a region; skipped outside a global tensor."""
        grids, shape = self._box(region)
        array = self.array(region.buffer)
        if 0 in array.shape:
            return
        place, inside = self.locate(region.buffer, grids, True)
        wide = np.broadcast_to(value, [n for n in shape if n != 1]).reshape(shape)
        *full, active = np.broadcast_arrays(*place, np.broadcast_to(inside, shape))
        array[tuple(p[active] for p in full)] = convert(wide, array.dtype)[active]

    def _box(self, region: Region) -> tuple[list[Array], list[int]]:
        offsets = [int(self.evaluate(o)) for o in region.offsets]
        shape = [int(self.evaluate(e)) for e in region.extents]
        grids = []
        for axis, (offset, extent) in enumerate(zip(offsets, shape, strict=True)):
            ones = [1] * len(shape)
            ones[axis] = extent
            grids.append((offset + np.arange(extent)).reshape(ones))
        return grids, shape

    # --- statements -----------------------------------------------------------------------

    def run(self, stmt: Stmt, mask: Mask = True) -> None:
        """Run one statement in the lanes where ``mask`` holds."""
        try:
            _HANDLERS[type(stmt)](self, stmt, mask)
        except TileError as error:
            raise error.at(stmt.span) from None

    def seq(self, stmt: nodes.Seq, mask: Mask) -> None:
        for child in stmt.stmts:
            self.run(child, mask)

    def launch(self, stmt: nodes.KernelLaunch, mask: Mask) -> None:
        from tilecore.interpreter_threads import run_threads

        grid = [int(self.evaluate(e)) for e in stmt.grid]
        is_per_thread = bool(stmt.thread_vars)
        self.threads = stmt.threads
        for buffer, value in pads(stmt).items():
            self.outside[id(buffer)] = self.evaluate(value)
        for block in self.order(itertools.product(*(range(n) for n in grid))):
            for var, index in zip(stmt.block_vars, block, strict=True):
                self.evaluate.set(var, index)
            if is_per_thread:
                run_threads(self, stmt)
            else:
                self.run(stmt.body)
        self.outside.clear()

    def order(self, items: Iterator[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return ``items`` as a list, shuffled if the run has a seed."""
        listed = list(items)
        if self.rng is not None:
            self.rng.shuffle(listed)
        return [tuple(int(i) for i in item) for item in listed]

    def alloc(self, stmt: nodes.Alloc, mask: Mask) -> None:
        buffer = stmt.buffer
        if buffer.base is not None:
            self.memory[id(buffer)] = self.view(buffer, self.array(buffer.base))
        elif buffer.address is not None:
            self.memory[id(buffer)] = self.at_address(buffer, int(self.evaluate(buffer.address)))
        else:
            self.memory[id(buffer)] = self.undefined(buffer)

    def copy(self, stmt: nodes.Copy, mask: Mask) -> None:
        self.write(stmt.dst, self.read(stmt.src))

    def fill(self, stmt: nodes.Fill, mask: Mask) -> None:
        self.write(stmt.dst, np.asarray(self.evaluate(stmt.value)))

    def gemm(self, stmt: nodes.Gemm, mask: Mask) -> None:
        dtype = stmt.c.buffer.dtype
        c_shape = [int(self.evaluate(e)) for e in stmt.c.extents][-2:]
        a, b = (self._matrix(r) for r in (stmt.a, stmt.b))
        a, b = (a.T if stmt.transpose_a else a), (b.T if stmt.transpose_b else b)
        # NumPy has no 16-bit matrix product: those accumulate in float32 and round once.
        wide = np.dtype(np.float32) if dtype.is_float and dtype.bits < 32 else dtype.numpy
        total = convert(a, dtype.numpy).astype(wide) @ convert(b, dtype.numpy).astype(wide)
        if not bool(self.evaluate(stmt.clear_accum)):
            total = total + self.read(stmt.c).reshape(c_shape).astype(wide)
        self.write(stmt.c, convert(total, dtype.numpy).reshape([n for n in c_shape if n != 1]))

    def reduce(self, stmt: nodes.Reduce, mask: Mask) -> None:
        dtype = stmt.dst.buffer.dtype
        kind = accumulator_dtype(stmt.op, stmt.src.buffer.dtype, dtype).numpy
        values = convert(self._whole(stmt.src), kind)
        total = fold_values(stmt.op, values, stmt.axes, stmt.nan_propagate)
        total = total.reshape([n for n in total.shape if n != 1])
        if not stmt.clear:
            pair = np.stack([convert(self.read(stmt.dst), kind), total])
            total = fold_values(stmt.op.removeprefix("abs"), pair, (0,), stmt.nan_propagate)
        self.write(stmt.dst, convert(total, dtype.numpy))

    def scan(self, stmt: nodes.Scan, mask: Mask) -> None:
        dtype = stmt.dst.buffer.dtype
        kind = accumulator_dtype(stmt.op, stmt.src.buffer.dtype, dtype).numpy
        values = convert(self._whole(stmt.src), kind)
        result = scan_values(stmt.op, values, stmt.axis, stmt.reverse)
        result = result.reshape([n for n in result.shape if n != 1])
        self.write(stmt.dst, convert(result, dtype.numpy))

    def _whole(self, region: Region) -> Array:
        return self.read(region).reshape([int(self.evaluate(e)) for e in region.extents])

    def _matrix(self, region: Region) -> Array:
        shape = [int(self.evaluate(e)) for e in region.extents][-2:]
        return self.read(region).reshape(shape)

    def atomic(self, stmt: nodes.Atomic, mask: Mask) -> None:
        old = self._update(stmt.op, stmt, stmt.value, mask)
        if stmt.prev is not None:
            self.array(stmt.prev)[0] = old

    def _update(self, op: str, stmt: nodes.Atomic | nodes.Store, expr: Expr, mask: Mask) -> Value:
        """Update elements one after the other; return what the last one held before."""
        indices = tuple(self.evaluate(i, mask) for i in stmt.indices)
        array = self.array(stmt.buffer)
        value = convert(self.evaluate(expr, mask), array.dtype)
        place, inside = self.locate(stmt.buffer, indices, mask)
        *full, value, active = np.broadcast_arrays(*place, value, np.logical_and(mask, inside))
        old = np.zeros((), array.dtype)[()]
        for lane in zip(*(p[active] for p in full), value[active], strict=True):
            old = array[lane[:-1]]
            array[lane[:-1]] = updated_value(op, old, lane[-1])
        return old

    def for_loop(self, stmt: nodes.For, mask: Mask) -> None:
        bounds = [int(self.evaluate(e)) for e in (stmt.start, stmt.stop, stmt.step)]
        for index in range(*bounds):
            self.evaluate.set(stmt.loop_var, index)
            if self.leaves(stmt.body, mask):
                break

    def while_loop(self, stmt: nodes.While, mask: Mask) -> None:
        while bool(self.evaluate(stmt.cond)):
            if self.leaves(stmt.body, mask):
                break

    def leaves(self, body: Stmt, mask: Mask) -> bool:
        """Run one iteration; return whether it ended the loop."""
        try:
            self.run(body, mask)
        except _Jump as jump:
            return jump.word == "break"
        return False

    def arrive(self, stmt: nodes.Arrive, mask: Mask) -> None:
        """Let all threads of the block arrive, which are one here."""
        threads = math.prod(int(self.evaluate(e)) for e in self.threads)
        self.store(arrival(stmt, 1 if stmt.once else threads), mask)

    def wait(self, stmt: nodes.Wait, mask: Mask) -> None:
        if not bool(self.evaluate(is_over(stmt))):
            raise ScopeError(message=deadlock(stmt))

    def jump(self, stmt: nodes.Jump, mask: Mask) -> None:
        raise _Jump(stmt.word)

    def if_stmt(self, stmt: nodes.If, mask: Mask) -> None:
        cond = np.asarray(self.evaluate(stmt.cond, mask))
        if cond.ndim == 0:
            body = stmt.then_body if cond else stmt.else_body
            if body is not None:
                self.run(body, mask)
            return
        self.run(stmt.then_body, np.logical_and(mask, cond))
        if stmt.else_body is not None:
            self.run(stmt.else_body, np.logical_and(mask, np.logical_not(cond)))

    def parallel(self, stmt: nodes.Parallel, mask: Mask) -> None:
        extents = [max(0, int(self.evaluate(e))) for e in stmt.extents]
        if mask is True and is_elementwise(stmt.body):
            for axis, (var, extent) in enumerate(zip(stmt.loop_vars, extents, strict=True)):
                shape = [1] * len(extents)
                shape[axis] = extent
                self.evaluate.set(var, np.arange(extent).reshape(shape))
            self.run(stmt.body, np.ones(extents, np.bool_))
            return
        for item in self.order(itertools.product(*(range(n) for n in extents))):
            for var, index in zip(stmt.loop_vars, item, strict=True):
                self.evaluate.set(var, index)
            self.run(stmt.body, mask)

    def let(self, stmt: nodes.Let, mask: Mask) -> None:
        self.evaluate.set(stmt.var, self.evaluate(stmt.value, mask))

    def check(self, stmt: nodes.Assert, mask: Mask) -> None:
        holds = np.logical_or(np.logical_not(mask), self.evaluate(stmt.cond, mask))
        if not np.all(holds):
            raise AssertionFailed(message=stmt.message or f"`{stmt.cond}` does not hold")

    def write_line(self, stmt: nodes.Print, mask: Mask) -> None:
        """Write one line for each lane where ``mask`` holds."""
        values = [np.asarray(self.evaluate(a, mask)) for a in stmt.args]
        *lanes, active = np.broadcast_arrays(*values, mask)
        for place in np.argwhere(active):
            chosen = [v[tuple(place)] for v in lanes]
            shown = (str(int(v)) if v.dtype.kind in "iub" else f"{float(v):g}" for v in chosen)
            sys.stdout.write(stmt.text.format(*shown) + "\n")

    def skip(self, stmt: Stmt, mask: Mask) -> None:
        """Annotations change no meaning; padding is known when the launch starts; a single thread
        waits for nobody.
        """


_Handler = Callable[[_Machine, Any, Mask], None]
_HANDLERS: Mapping[type[Stmt], _Handler] = {
    nodes.Seq: _Machine.seq,
    nodes.KernelLaunch: _Machine.launch,
    nodes.Alloc: _Machine.alloc,
    nodes.Copy: _Machine.copy,
    nodes.Fill: _Machine.fill,
    nodes.Gemm: _Machine.gemm,
    nodes.Parallel: _Machine.parallel,
    nodes.For: _Machine.for_loop,
    nodes.While: _Machine.while_loop,
    nodes.If: _Machine.if_stmt,
    nodes.Reduce: _Machine.reduce,
    nodes.Scan: _Machine.scan,
    nodes.Store: _Machine.store,
    nodes.Atomic: _Machine.atomic,
    nodes.Let: _Machine.let,
    nodes.Annotate: _Machine.skip,
    nodes.Sync: _Machine.skip,
    nodes.Assert: _Machine.check,
    nodes.Print: _Machine.write_line,
    nodes.Pad: _Machine.skip,
    nodes.Jump: _Machine.jump,
    nodes.Arrive: _Machine.arrive,
    nodes.Wait: _Machine.wait,
}
