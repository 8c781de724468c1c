"""TIR of GPU kernels in the event language of tilecore.ordering.

What is read is the TIR that code is generated from, instruction by instruction: an order that the
lowering forgets is missing here, too. Values that follow from data are not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx as tir

from tilecore.codegen.order_memory import (
    ALIGNMENT,
    CALL,
    INTEGERS,
    MOST_SLOTS,
    PARTS,
    Expressions,
    Memory,
    Reading,
)
from tilecore.codegen.order_values import BINARY, Known, binary, expression
from tilecore.errors import SourceSpan, UnsupportedOnTarget
from tilecore.ordering import effects as do
from tilecore.ordering.instructions import act_of
from tilecore.ordering.operands import Operand, Pointer
from tilecore.ordering.products import WARPGROUP
from tilecore.ordering.program import (
    Act,
    Env,
    If,
    Jump,
    Let,
    Loop,
    Node,
    OrderProgram,
    Seq,
    Value,
    While,
    goes_on,
    is_empty,
    uses_registers_alone,
)

UNROLLED = 3  # of TVM's kinds of loops
UNDER_WAY = ("tc_wgmma_", "tc_tensor_load_")  # instructions whose registers are not at once free

__all__ = ["KernelReader", "Reading", "read_kernels"]


def read_kernels(func: Any, reading: Reading) -> list[OrderProgram]:
    """Return the kernels of a PrimFunc in the event language, in order."""
    body = func.body
    nests = list(body.seq) if isinstance(body, tir.SeqStmt) else [body]
    params = {hash(p): p for p in func.params}
    found = []
    shared: list[Any] = []
    for nest in nests:
        if isinstance(nest, tir.AttrStmt):
            found.append(KernelReader(params, reading).read(nest, shared))
        else:
            shared.append(nest)
    return found


def conjuncts(cond: Any) -> list[Any]:
    """Return the conditions that all hold where one does.

    Each is looked at by itself: what is known keeps threads out, whatever data says.
    """
    if not isinstance(cond, tir.And):
        return [cond]
    return [*conjuncts(cond.a), *conjuncts(cond.b)]


class KernelReader(Expressions):
    """Reads one kernel."""

    # --- the kernel ---------------------------------------------------------------------------

    def read(self, nest: Any, before: Sequence[Any]) -> OrderProgram:
        """Return a nest of thread bindings as a program."""
        extents: dict[str, tuple[int, Any]] = {}
        of_grid: set[int] = set()
        while isinstance(nest, tir.AttrStmt):
            if nest.attr_key == "thread_extent":
                size = self._number(nest.value)
                of_grid |= {hash(var) for var in _variables(nest.value)}
                extents[str(nest.node.thread_tag)] = (size, nest.node.var)
            nest = nest.body
        self.open &= _of_loops(nest) - of_grid
        if self.reading.is_idle:
            self.variables |= dict.fromkeys(self.open, 0)
        counts = [extents.get(f"threadIdx.{a}", (1, None)) for a in "xyz"]
        clusters = [extents.get(f"clusterCtaIdx.{a}", (1, None))[0] for a in "xyz"]
        threads, blocks = math.prod(c for c, _ in counts), math.prod(clusters)
        self.threads, self.blocks = threads, blocks
        step = threads if blocks == 1 else -(-threads // WARPGROUP) * WARPGROUP
        number = np.arange(step * blocks)
        self._digits(number % step, counts)
        self.thread, self.rank = number % step, number // step
        self._blocks(extents, clusters)
        self._survey(nest)
        body = Seq((*(self.statement(s) for s in before), self.statement(nest)))
        granule = min(self.widths, default=16)
        both = {s for s, ways in self.global_ways.items() if len(ways) > 1}
        return OrderProgram(
            body=body, sites=tuple(self.sites), threads=threads, step=step, blocks=blocks,
            setup=self.setup, slots=self.slots,
            shared_bytes=-(-self.shared_bytes // ALIGNMENT) * ALIGNMENT,
            granule=granule, period=self._period(), globals={s: self.global_sizes[s] for s in both},
            unread=tuple(self.sites[n] for n in self.unread),
            is_open=bool(self.open) or self.has_assumed,
        )  # fmt: skip

    def _period(self) -> int:
        """Return after how many iterations slots and parities recur."""
        slots = [m for m in self.moduli if m <= MOST_SLOTS]
        return 2 * math.lcm(*slots)

    def _digits(self, number: Any, extents: Sequence[tuple[int, Any]]) -> None:
        """Give variables the digits of a number."""
        for extent, var in extents:
            if var is not None:
                self.variables[hash(var)] = self._constant(number % extent if extent > 1 else 0)
            number = number // extent

    def _blocks(self, extents: Mapping[str, tuple[int, Any]], clusters: Sequence[int]) -> None:
        rank: Any = self.rank
        for axis, size in zip("xyz", clusters, strict=True):
            grid, var = extents.get(f"blockIdx.{axis}", (1, None))
            first = max(0, grid - size) // size * size if self.reading.is_last else 0
            place: Value = first + rank % size if size > 1 else first
            rank = rank // size
            if var is not None:
                self.variables[hash(var)] = self._constant(place)

    def _survey(self, nest: Any) -> None:
        """Find the arrays that instructions use by address."""

        def visit(call: Any) -> None:
            if str(call.op.name) != CALL:
                return
            name = str(call.args[0].value)
            for place, given in enumerate(call.args[1:]):
                if isinstance(given, tvm.ir.Call) and str(given.op.name) == "tirx.address_of":
                    inner = given.args[0]
                    if isinstance(inner, tvm.ir.TensorLoad):
                        key = hash(inner.source)
                        self.addressed.add(key)
                        if place < (2 if name.startswith(UNDER_WAY[0]) else 1) and (
                            name.startswith(UNDER_WAY) and "keep" not in name
                        ):
                            self.of_products.add(key)

        tvm_ffi.structural_walk(nest, (tvm.ir.Call, visit))

    def _access(self, load: Any, memory: Memory, indices: Sequence[Any], way: str) -> list[Node]:
        """Return the act of an access by an index."""
        if memory.space == "local":
            if hash(load) not in self.of_products:
                return []
            site = self.site(f"{way} of registers")
            return [Act(do.touch(site, memory.slot, writes=way == "write"), site, kind="use")]
        start, lanes = self._place(memory, indices)
        if memory.space == "global":
            return self._global(memory, start, lanes, way)
        site = self.site(f"{way} of shared memory")
        if start is None and way == "read" and len(indices) == 1:  # all that it may read
            start, lanes = self._range(indices[0])
        if start is None:
            self.unread.append(site)
            return []
        size = lanes * memory.itemsize
        self.widths.add(size & -size)
        offset = binary(BINARY[tir.Mul], start, memory.itemsize)
        offset = binary(BINARY[tir.Add], offset, memory.base)
        is_assumed = any(map(self.is_assumed, indices))
        pointer = Pointer("shared", offset=expression(offset), is_assumed=is_assumed)
        return [Act(do.access(site, pointer, size, way), site)]

    def _global(self, memory: Memory, start: Known, lanes: int, way: str) -> list[Node]:
        self.global_ways.setdefault(memory.slot, set()).add(way)
        self.global_sizes[memory.slot] = math.prod(memory.shape)
        if start is None:
            return []
        site = self.site(f"{way} of a tensor")
        run = do.access_global(site, memory.slot, expression(start), lanes, way)
        return [Act(run, site)]

    # --- what expressions do ------------------------------------------------------------------

    def acts(self, expr: Any) -> Iterator[Node]:
        """Yield what evaluating an expression does, in order."""
        kind = type(expr)
        if kind is tvm.ir.Call:
            yield from self._call(expr)
        elif kind is tvm.ir.TensorLoad:
            for index in expr.indices:
                yield from self.acts(index)
            memory = self.memories.get(hash(expr.source))
            if memory is not None:
                yield from self._access(expr.source, memory, expr.indices, "read")
        elif kind is tir.Shuffle:
            for part in expr.vectors:
                yield from self.acts(part)
        else:
            for name in ("a", "b") if kind in BINARY else PARTS.get(kind, ()):
                yield from self.acts(getattr(expr, name))

    def _call(self, call: Any) -> Iterator[Node]:
        name = str(call.op.name)
        if name == CALL:
            yield from self._function(call)
        elif name.endswith(".if_then_else"):
            cond, then, other = call.args
            yield from self.acts(cond)
            one, two = Seq(tuple(self.acts(then))), Seq(tuple(self.acts(other)))
            if one.parts or two.parts:
                yield If(expression(self.value(cond)), one, two if two.parts else None)
        elif name.endswith("address_of"):
            inner = call.args[0]
            if isinstance(inner, tvm.ir.TensorLoad):
                for index in inner.indices:
                    yield from self.acts(index)
        else:
            for argument in call.args:
                yield from self.acts(argument)

    def _function(self, call: Any) -> Iterator[Node]:
        name = str(call.args[0].value).removeprefix("tc_")
        for argument in call.args[1:]:
            yield from self.acts(argument)
        args = [self.operand(a) for a in call.args[1:]]
        site = self.site(name)
        for place, argument in enumerate(args):
            yield from self._registers(name, place, argument, call.args[1 + place])
        if any(isinstance(a, Pointer) and a.space == "nowhere" for a in args):
            self.unread.append(site)
            return
        found = act_of(name, args, site)
        if found is None:
            raise unread(f"the device function tc_{name}", self.sites[site].span)
        self._widths(name, args)
        yield from found

    def _registers(self, name: str, place: int, given: Operand, expr: Any) -> Iterator[Node]:
        """Yield the use of an array that products use, by another instruction."""
        if not isinstance(given, Pointer) or given.space != "local" or "keep" in name:
            return
        if (
            name.startswith(("wgmma_", "tensor_load_"))
            or hash(expr.args[0].source) not in self.of_products
        ):
            return
        writes = place == 0 and not name.startswith(("stmatrix", "tensor_store"))
        site = self.site(name)
        yield Act(do.touch(site, given.slot, writes=writes), site, kind="use")

    def _widths(self, name: str, args: Sequence[Operand]) -> None:
        """Note how many bytes an instruction touches at least."""
        if not any(isinstance(a, Pointer) and a.space == "shared" for a in args):
            return
        if name.startswith(("barrier", "tensor_commit", "descriptor", "tensor_descriptor")):
            return
        digits = name.replace("_zfill", "").replace("_trans", "").split("_")[-1]
        size = 16
        if name.startswith(("copy_", "cp_async_c")):
            size = int(digits)
        elif name.startswith("tensor_allocate"):
            size = 4
        elif name.startswith(("atomic", "update", "load_", "store_", "cluster_")):
            size = 1 if "8" in digits or "byte" in name else 2 if "16" in digits else 4
        self.widths.add(size)

    # --- statements ---------------------------------------------------------------------------

    def statement(self, stmt: Any) -> Node:
        """Return a statement in the event language."""
        if stmt.span is not None:
            self.span = stmt.span
        kind = type(stmt)
        if kind is tir.SeqStmt:
            parts = [self.statement(s) for s in stmt.seq]
            return Seq(tuple(p for p in parts if not isinstance(p, Seq) or p.parts))
        make = STATEMENTS.get(kind)
        if make is None:
            raise unread(f"the TIR statement {kind.__name__}", None)
        return make(self, stmt)

    def _evaluate(self, stmt: Any) -> Node:
        name = str(getattr(getattr(stmt.value, "op", None), "name", ""))
        for word in ("break", "continue"):
            if name.endswith(f"{word}_loop"):
                return Jump(word)
        return Seq(tuple(self.acts(stmt.value)))

    def _bind(self, stmt: Any) -> Node:
        acts = tuple(self.acts(stmt.value))
        given = stmt.value
        if isinstance(given, tvm.ir.Call):
            found = self.operand(given)
            if isinstance(found, Pointer):
                self.pointers[hash(stmt.var)] = found
                return Seq(acts)
        value = self.value(given)
        if self._turns(given):
            self.turning.add(hash(stmt.var))
        if self.is_uniform(given):
            self.uniform.add(hash(stmt.var))
        if self.is_assumed(given):
            self.assumed.add(hash(stmt.var))
        if value is None or not callable(value):
            self.variables[hash(stmt.var)] = value
            if value is None:
                self.definitions[hash(stmt.var)] = given
            return Seq(acts)
        slot = self._slot()
        self.variables[hash(stmt.var)] = lambda env: env[slot]
        return Seq((*acts, Let(slot, value)))

    def _store(self, stmt: Any) -> Node:
        memory = self.memories.get(hash(stmt.buffer))
        acts = [*self.acts(stmt.value)]
        for index in stmt.indices:
            acts += self.acts(index)
        if memory is None:
            return Seq(tuple(acts))
        acts += self._access(stmt.buffer, memory, stmt.indices, "write")
        is_integer = str(stmt.buffer.dtype).startswith(INTEGERS)
        if memory.space == "local" and is_integer and hash(stmt.buffer) not in self.addressed:
            start, lanes = self._place(memory, stmt.indices)
            if self.is_assumed(stmt.value):
                self.assumed_slots.add(memory.slot)
            if lanes == 1:
                acts.append(_local_store(memory.slot, start, self.value(stmt.value), self.site("")))
        return Seq(tuple(acts))

    def _if(self, stmt: Any) -> Node:
        acts = tuple(self.acts(stmt.condition))
        cond = self.value(stmt.condition)
        then = self.statement(stmt.then_case)
        other = self.statement(stmt.else_case) if stmt.else_case is not None else None
        if cond is not None and not callable(cond):
            taken = then if cond else other
            return Seq((*acts, *((taken,) if taken is not None else ())))
        if is_empty(then) and (other is None or is_empty(other)):
            return Seq(acts)
        parts = conjuncts(stmt.condition)
        after: tuple[Node, ...] = ()
        if other is not None and len(parts) > 1 and goes_on(then) and goes_on(other):
            after, other = (If(expression(cond), Seq(()), other),), None
        for part in reversed(parts) if other is None else [stmt.condition]:
            given = self.value(part)
            then = If(expression(given), then, other, given is None and self.is_uniform(part))
        return Seq((*acts, then, *after))

    def _for(self, stmt: Any) -> Node:
        acts = (*self.acts(stmt.min), *self.acts(stmt.extent))
        start, extent = self.value(stmt.min), self.value(stmt.extent)
        slot = self._slot()
        self.variables[hash(stmt.loop_var)] = lambda env: env[slot]
        if int(stmt.kind) != UNROLLED:
            self.turning.add(hash(stmt.loop_var))
        if self.is_uniform(stmt.min):
            self.uniform.add(hash(stmt.loop_var))
        if self.is_assumed(stmt.min) or self.is_assumed(stmt.extent):
            self.assumed.add(hash(stmt.loop_var))
        body = self.statement(stmt.body)
        if is_empty(body):
            return Seq(acts)
        if uses_registers_alone(body):
            extent = binary(BINARY[tir.Min], extent, 1)
        return Seq((*acts, Loop(slot, expression(start), expression(extent), body)))

    def _while(self, stmt: Any) -> Node:
        acts = tuple(self.acts(stmt.condition))
        cond = expression(self.value(stmt.condition))
        return Seq((*acts, While(cond, Seq((self.statement(stmt.body), *acts)))))

    def _alloc(self, stmt: Any) -> Node:
        self._allocate(stmt.buffer)
        return Seq(())

    def _decl(self, stmt: Any) -> Node:
        self._declare(stmt.buffer, stmt.data)
        return Seq(())

    def _attr(self, stmt: Any) -> Node:
        return self.statement(stmt.body)


def _variables(expr: Any) -> list[Any]:
    """Return the variables of an expression."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (tir.Var, found.append))
    return found


def _of_loops(nest: Any) -> set[int]:
    """Return the variables that the lengths of loops follow from."""
    given: dict[int, Any] = {}
    found: set[int] = set()

    def bind(stmt: Any) -> None:
        given[hash(stmt.var)] = stmt.value

    def add(expr: Any) -> None:
        for var in _variables(expr):
            key = hash(var)
            if key not in found:
                found.add(key)
                if key in given:
                    add(given[key])

    tvm_ffi.structural_walk(nest, (tir.Bind, bind))
    tvm_ffi.structural_walk(nest, (tir.For, lambda loop: add(loop.extent)))
    tvm_ffi.structural_walk(nest, (tir.While, lambda loop: add(loop.condition)))
    return found


def unread(what: str, span: SourceSpan | None) -> UnsupportedOnTarget:
    """Return the error of something that the proof does not know."""
    reason = "the proof of order does not know what it does (compile without check_order)"
    return UnsupportedOnTarget(what=what, target="cuda", reason=reason, span=span)


def _local_store(slot: int, start: Known, value: Known, site: int) -> Act:
    index, given = expression(start), expression(value)

    def run(machine: Any, env: Env) -> None:
        machine.locals.store(slot, index(env), given(env), env[0])

    return Act(run, site)


STATEMENTS: dict[type, Callable[[KernelReader, Any], Node]] = {
    tir.Evaluate: KernelReader._evaluate, tir.Bind: KernelReader._bind,
    tir.BufferStore: KernelReader._store, tir.IfThenElse: KernelReader._if,
    tir.For: KernelReader._for, tir.While: KernelReader._while,
    tir.AllocBuffer: KernelReader._alloc, tir.DeclBuffer: KernelReader._decl,
    tir.AttrStmt: KernelReader._attr,
}  # fmt: skip
