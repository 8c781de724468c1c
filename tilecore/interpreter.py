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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tilecore.errors import AssertionFailed, ScopeError, TileError
from tilecore.interpreter_memory import Array, Memory
from tilecore.ir import nodes
from tilecore.ir.analysis import is_elementwise, pads
from tilecore.ir.arithmetic.collisions import updates_in_turn
from tilecore.ir.barrier import arrival, deadlock, is_over
from tilecore.ir.clusters import refuse_clusters
from tilecore.ir.expr import Expr, Var
from tilecore.ir.fold import fold_dtype
from tilecore.ir.nodes import PrimFunc, Region, Stmt
from tilecore.ir.plain.scaled_gemm import without_factors
from tilecore.ir.values.conversion import convert
from tilecore.ir.values.evaluate import Mask
from tilecore.ir.values.fold_values import fold_values, scan_values
from tilecore.ir.values.packed import (
    memory_of,
)
from tilecore.ir.vendor import refuse_cuda_source


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
        UnknownPrimitive: a block reaches into another one of its cluster (TC102).
        UnsupportedOnTarget: it launches CUDA source (TC302).
    """
    refuse_clusters(func)
    refuse_cuda_source(func, "interpreter (NumPy)")
    func = without_factors(func)
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


class _Machine(Memory):
    """One run: statements over memory."""

    def __init__(self, func: PrimFunc, rng: np.random.Generator | None) -> None:
        super().__init__(func)
        self.rng = rng
        self.threads: tuple[Expr, ...] = ()  # of the launch that runs

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
        kind = fold_dtype(stmt.src.buffer.dtype, dtype).numpy
        values = convert(self._whole(stmt.src), kind)
        total = fold_values(stmt.op, values, stmt.axes, stmt.nan_propagate)
        total = total.reshape([n for n in total.shape if n != 1])
        if not stmt.clear:
            pair = np.stack([convert(self.read(stmt.dst), kind), total])
            total = fold_values(stmt.op.removeprefix("abs"), pair, (0,), stmt.nan_propagate)
        self.write(stmt.dst, convert(total, dtype.numpy))

    def scan(self, stmt: nodes.Scan, mask: Mask) -> None:
        dtype = stmt.dst.buffer.dtype
        kind = fold_dtype(stmt.src.buffer.dtype, dtype).numpy
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
        old = self.update(stmt.op, stmt, stmt.value, mask)
        if stmt.prev is not None:
            self.array(stmt.prev)[0] = old

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
        at_once = mask is True and is_elementwise(stmt.body)
        if at_once and not updates_in_turn(stmt, extents):
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
