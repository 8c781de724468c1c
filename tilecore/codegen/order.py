"""TIR of GPU kernels in the event language of tilecore.ordering.

What is read is the TIR that code is generated from, instruction by instruction: an order that the
lowering forgets is missing here, too. Values that follow from data are not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx as tir
from tvm.tirx.buffer import is_buffer_var

from tilecore.codegen.order_values import (
    BINARY,
    CALLS,
    Known,
    binary,
    choice,
    expression,
    negated,
    unary,
)
from tilecore.errors import SourceSpan
from tilecore.ir.dtype import DType
from tilecore.ordering import effects as do
from tilecore.ordering.instructions import act_of
from tilecore.ordering.matrix_effects import descriptor
from tilecore.ordering.operands import Operand, Pointer
from tilecore.ordering.program import (
    Act,
    Env,
    If,
    Jump,
    Lanes,
    Let,
    Loop,
    Node,
    OrderProgram,
    Seq,
    Site,
    Value,
    While,
)

CALL = "tirx.cuda.func_call"
ALIGNMENT = 1024
OPEN_SIZE = 300  # what a dimension is taken for that is not known: ragged for all tiles
WARP = 32
INTEGERS = ("int", "uint", "bool")


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a buffer lies.

    Attributes:
        space: "shared", "local" or "global".
        slot: number of the array or tensor.
        base: its first byte in shared memory.
        itemsize: bytes of an element.
        shape: of the buffer.
    """

    space: str
    slot: int
    base: int
    itemsize: int
    shape: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What is assumed to read a kernel.

    Attributes:
        boxes: bytes of the boxes of tensor maps, by the name of the parameter.
        scalars: values of scalar parameters and dimensions, by name.
        is_last: whether the last block (cluster) of the grid is read, or the first.
    """

    boxes: Mapping[str, int]
    scalars: Mapping[str, int]
    is_last: bool = True


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


class KernelReader:
    """Reads one kernel."""

    def __init__(self, params: Mapping[int, Any], reading: Reading) -> None:
        self.reading = reading
        self.slots = 1  # 0: the threads that run
        self.variables: dict[int, Known] = {}
        self.setup: dict[int, Value] = {}
        self.memories: dict[int, Memory] = {}
        self.pointers: dict[int, Pointer] = {}
        self.sites: list[Site] = []
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.shared_bytes = 0
        self.widths: set[int] = set()
        self.of_products: set[int] = set()  # arrays whose registers products use
        self.addressed: set[int] = set()  # arrays that instructions get the address of
        self.global_ways: dict[int, set[str]] = {}
        self.global_sizes: dict[int, int] = {}
        self.unread: list[int] = []
        self.span: Any = None
        for key, param in params.items():
            self._parameter(key, param)

    def _parameter(self, key: int, param: Any) -> None:
        if is_buffer_var(param):
            self._memory(param, "global")
        elif str(param.name) in self.reading.boxes:
            self.pointers[key] = Pointer("map", size=self.reading.boxes[str(param.name)])
        elif str(getattr(param, "ty", "")).startswith(INTEGERS):
            self.variables[key] = self.reading.scalars.get(str(param.name), OPEN_SIZE)

    # --- the kernel ---------------------------------------------------------------------------

    def read(self, nest: Any, before: Sequence[Any]) -> OrderProgram:
        """Return a nest of thread bindings as a program."""
        extents: dict[str, tuple[int, Any]] = {}
        while isinstance(nest, tir.AttrStmt):
            if nest.attr_key == "thread_extent":
                size = self._number(nest.value)
                extents[str(nest.node.thread_tag)] = (size, nest.node.var)
            nest = nest.body
        counts = [extents.get(f"threadIdx.{a}", (1, None)) for a in "xyz"]
        clusters = [extents.get(f"clusterCtaIdx.{a}", (1, None))[0] for a in "xyz"]
        threads, blocks = math.prod(c for c, _ in counts), math.prod(clusters)
        self.threads, self.blocks = threads, blocks
        number = np.arange(threads * blocks)
        self._digits(number % threads, counts)
        self.thread, self.rank = number % threads, number // threads
        self._blocks(extents, clusters)
        self._survey(nest)
        body = Seq((*(self.statement(s) for s in before), self.statement(nest)))
        granule = min(self.widths, default=16)
        both = {s for s, ways in self.global_ways.items() if len(ways) > 1}
        return OrderProgram(
            body=body, sites=tuple(self.sites), threads=threads, blocks=blocks, setup=self.setup,
            slots=self.slots, shared_bytes=-(-self.shared_bytes // ALIGNMENT) * ALIGNMENT,
            granule=granule, globals={s: self.global_sizes[s] for s in both},
            unread=tuple(self.sites[n] for n in self.unread),
        )  # fmt: skip

    def _digits(self, number: Any, extents: Sequence[tuple[int, Any]]) -> None:
        """Give variables the digits of a number."""
        for extent, var in extents:
            if var is not None:
                self.variables[hash(var)] = self._constant(number % extent if extent > 1 else 0)
            number = number // extent

    def _constant(self, value: Value) -> Known:
        if not isinstance(value, np.ndarray):
            return value
        slot = self._slot()
        self.setup[slot] = value
        return lambda env: env[slot]

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
                        if name.startswith("tc_wgmma_") and "keep" not in name and place < 2:
                            self.of_products.add(key)

        tvm_ffi.structural_walk(nest, (tvm.ir.Call, visit))

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _number(self, expr: Any) -> int:
        value = self.value(expr)
        return int(value) if isinstance(value, int) else OPEN_SIZE

    def site(self, text: str) -> int:
        """Return the number of an instruction of the statement that is read."""
        span = self.span
        key = (text, *((span.source_name.name, span.line, span.column) if span else ()))
        if key not in self.numbers:
            place = None
            if span is not None:
                place = SourceSpan(str(span.source_name.name), int(span.line), int(span.column))
            self.numbers[key] = len(self.sites)
            self.sites.append(Site(text, place))
        return self.numbers[key]

    # --- memory -------------------------------------------------------------------------------

    def _memory(self, buffer: Any, space: str, base: int = 0) -> Memory:
        shape = tuple(self._extent(e) for e in buffer.shape)
        dtype = str(buffer.dtype)
        bits = DType(dtype).bits if dtype != "bool" else 8
        found = Memory(space, self._slot(), base, max(1, bits // 8), shape)
        self.memories[hash(buffer)] = found
        return found

    def _extent(self, expr: Any) -> int:
        return int(expr) if isinstance(expr, (int, tir.IntImm)) else self._number(expr)

    def _allocate(self, buffer: Any) -> None:
        scope = str(buffer.ty.storage_scope)
        if not scope.startswith("shared"):
            self._memory(buffer, "local")
            return
        base = -(-self.shared_bytes // ALIGNMENT) * ALIGNMENT
        made = self._memory(buffer, "shared", base)
        self.shared_bytes = base + math.prod(made.shape) * made.itemsize

    def _declare(self, buffer: Any, data: Any) -> None:
        """Let a buffer mean the memory of another one."""
        source = data
        while isinstance(source, tvm.ir.Call) and source.args:
            source = source.args[0]
        owner = self.memories.get(hash(source))
        if owner is None:
            self._memory(buffer, "global")
            return
        made = self._memory(buffer, owner.space, owner.base)
        if owner.space != "shared":
            self.memories[hash(buffer)] = Memory(
                owner.space, owner.slot, 0, made.itemsize, made.shape
            )

    def _place(self, memory: Memory, indices: Sequence[Any]) -> tuple[Known, int]:
        """Return (the first element of an access, elements side by side)."""
        lanes, total = 1, 0
        for index, extent in zip(indices, memory.shape, strict=False):
            if isinstance(index, tir.Ramp):
                lanes, index = int(index.lanes), index.base
            total = binary(BINARY[tir.Mul], total, extent)
            total = binary(BINARY[tir.Add], total, self.value(index))
        return total, lanes

    def _access(self, load: Any, memory: Memory, indices: Sequence[Any], way: str) -> list[Node]:
        """Return the act of an access by an index."""
        if memory.space == "local":
            if hash(load) not in self.of_products:
                return []
            site = self.site(f"{way} of registers")
            return [Act(do.touch(site, memory.slot, writes=way == "write"), site)]
        start, lanes = self._place(memory, indices)
        if memory.space == "global":
            return self._global(memory, start, lanes, way)
        size = lanes * memory.itemsize
        site = self.site(f"{way} of shared memory")
        if start is None:
            self.unread.append(site)
            return []
        self.widths.add(size & -size)
        offset = binary(BINARY[tir.Mul], start, memory.itemsize)
        offset = binary(BINARY[tir.Add], offset, memory.base)
        return [Act(do.access(site, Pointer("shared", offset=expression(offset)), size, way), site)]

    def _global(self, memory: Memory, start: Known, lanes: int, way: str) -> list[Node]:
        self.global_ways.setdefault(memory.slot, set()).add(way)
        self.global_sizes[memory.slot] = math.prod(memory.shape)
        if start is None:
            return []
        site = self.site(f"{way} of a tensor")
        run = do.access_global(site, memory.slot, expression(start), lanes, way)
        return [Act(run, site)]

    # --- expressions --------------------------------------------------------------------------

    def value(self, expr: Any) -> Known:
        """Return the value of an expression: a number, a function of threads, or None."""
        kind = type(expr)
        if kind is int or isinstance(expr, tir.IntImm):
            return int(expr)
        if isinstance(expr, tir.Var):
            return self.variables.get(hash(expr))
        operate = BINARY.get(kind)
        if operate is not None:
            return binary(operate, self.value(expr.a), self.value(expr.b))
        if kind is tir.Cast:
            return self._cast(expr)
        if kind is tir.Not:
            return unary(negated, self.value(expr.a))
        if kind is tir.Select:
            return choice(*map(self.value, (expr.condition, expr.true_value, expr.false_value)))
        if kind is tvm.ir.TensorLoad:
            return self._loaded(expr)
        return self._called(expr) if kind is tvm.ir.Call else None

    def _cast(self, expr: Any) -> Known:
        if not str(expr.ty).startswith(INTEGERS) or not str(expr.value.ty).startswith(INTEGERS):
            return None
        inner = self.value(expr.value)
        if not str(expr.value.ty).startswith("bool"):
            return inner
        return unary(lambda x: x.astype(np.int64) if isinstance(x, np.ndarray) else int(x), inner)

    def _loaded(self, load: Any) -> Known:
        memory = self.memories.get(hash(load.source))
        if memory is None or not str(load.ty).startswith(INTEGERS):
            return None
        if memory.space == "local" and hash(load.source) not in self.addressed:
            start, _ = self._place(memory, load.indices)
            if start is None:
                return None
            index, slot = expression(start), memory.slot
            return lambda env: env.machine.load_local(slot, index(env), env[0])
        if memory.space == "shared" and memory.itemsize == 4:
            start, _ = self._place(memory, load.indices)
            if isinstance(start, int):
                at = start * 4 + memory.base
                return lambda env: env.machine.words.get(at)
        return None

    def _called(self, call: Any) -> Known:
        name = str(call.op.name).split(".")[-1]
        if name == "if_then_else":
            return choice(*(self.value(a) for a in call.args))
        if name in CALLS:
            return binary(CALLS[name], *(self.value(a) for a in call.args))
        if name == "likely":
            return self.value(call.args[0])
        if str(call.op.name) != CALL:
            return None
        return self._told(str(call.args[0].value).removeprefix("tc_"), call.args[1:])

    def _told(self, name: str, args: Sequence[Any]) -> Known:
        """Return the result of a device function, where it does not follow from data."""
        if name.startswith("warp_index"):
            return self._constant(self.thread // WARP)
        if name == "lane_index":
            return self._constant(self.thread % WARP)
        if name == "cluster_rank":
            return self._constant(self.rank) if self.blocks > 1 else 0
        if name == "elect":
            return _elected
        if "descriptor_" in name:
            swizzle, leading, stride = (int(n) for n in name.split("_")[-3:])
            pointer = self.operand(args[0])
            assert isinstance(pointer, Pointer)
            return descriptor(pointer, swizzle, leading, stride)
        if name.startswith("shuffle_idx_int32_32"):
            given, lane = self.value(args[0]), self.value(args[1])
            return _shuffled(given, lane) if given is not None and isinstance(lane, int) else None
        return None

    def operand(self, expr: Any) -> Operand:
        """Return an argument of a device function."""
        if isinstance(expr, tir.Var) and hash(expr) in self.pointers:
            return self.pointers[hash(expr)]
        if isinstance(expr, tvm.ir.Call):
            name = str(expr.op.name)
            if name == "tirx.address_of":
                return self._pointer(expr.args[0])
            if name == CALL and str(expr.args[0].value) == "tc_cluster_address":
                there = self.operand(expr.args[1])
                assert isinstance(there, Pointer)
                rank = expression(self.value(expr.args[2]))
                return Pointer("shared", offset=there.offset, rank=rank)
        found = self.value(expr)
        return None if found is None else expression(found)

    def _pointer(self, inner: Any) -> Operand:
        if isinstance(inner, tir.Var):
            return self.pointers.get(hash(inner))
        memory = self.memories.get(hash(inner.source))
        if memory is None:
            return Pointer("global")
        start, _ = self._place(memory, inner.indices)
        if memory.space != "shared":
            return Pointer(memory.space, memory.slot, expression(start))
        if start is None:
            return Pointer("nowhere")
        offset = binary(BINARY[tir.Mul], start, memory.itemsize)
        return Pointer("shared", offset=expression(binary(BINARY[tir.Add], offset, memory.base)))

    # --- what expressions do ------------------------------------------------------------------

    def acts(self, expr: Any) -> Iterator[Node]:
        """Yield what evaluating an expression does, in order."""
        kind = type(expr)
        if kind is tvm.ir.TensorLoad:
            for index in expr.indices:
                yield from self.acts(index)
            memory = self.memories.get(hash(expr.source))
            if memory is not None:
                yield from self._access(expr.source, memory, expr.indices, "read")
        elif kind is tvm.ir.Call:
            yield from self._call(expr)
        elif kind in BINARY:
            yield from self.acts(expr.a)
            yield from self.acts(expr.b)
        elif kind is tir.Cast:
            yield from self.acts(expr.value)
        elif kind is tir.Select:
            for part in (expr.condition, expr.true_value, expr.false_value):
                yield from self.acts(part)
        elif kind is tir.Not:
            yield from self.acts(expr.a)
        elif kind is tir.Broadcast:
            yield from self.acts(expr.value)
        elif kind is tir.Shuffle:
            for part in expr.vectors:
                yield from self.acts(part)

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
            raise NotImplementedError(f"what `tc_{name}` orders or touches is not known")
        self._widths(name, args)
        yield from found

    def _registers(self, name: str, place: int, given: Operand, expr: Any) -> Iterator[Node]:
        """Yield the use of an array that products use, by another instruction."""
        if not isinstance(given, Pointer) or given.space != "local" or "keep" in name:
            return
        if name.startswith("wgmma_") or hash(expr.args[0].source) not in self.of_products:
            return
        writes = place == 0 and not name.startswith(("stmatrix", "tensor_store"))
        site = self.site(name)
        yield Act(do.touch(site, given.slot, writes=writes), site)

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
            raise NotImplementedError(f"a TIR statement {kind.__name__}")
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
        if value is None or not callable(value):
            self.variables[hash(stmt.var)] = value
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
        if _is_empty(then) and (other is None or _is_empty(other)):
            return Seq(acts)
        return Seq((*acts, If(expression(cond), then, other)))

    def _for(self, stmt: Any) -> Node:
        acts = (*self.acts(stmt.min), *self.acts(stmt.extent))
        start, extent = self.value(stmt.min), self.value(stmt.extent)
        slot = self._slot()
        self.variables[hash(stmt.loop_var)] = lambda env: env[slot]
        body = self.statement(stmt.body)
        if _is_empty(body):
            return Seq(acts)
        if _uses_registers_alone(body):
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


def _is_empty(node: Node) -> bool:
    return isinstance(node, Seq) and all(_is_empty(p) for p in node.parts)


def _uses_registers_alone(node: Node) -> bool:
    """Return whether all that a statement does is the same in each turn of a loop."""
    match node:
        case Seq(parts=parts):
            return all(_uses_registers_alone(p) for p in parts)
        case Loop(body=body):
            return _uses_registers_alone(body)
        case Act(run=run):
            return run.__qualname__.startswith("touch.")
        case Let():
            return True
        case _:
            return False


def _local_store(slot: int, start: Known, value: Known, site: int) -> Act:
    index, given = expression(start), expression(value)

    def run(machine: Any, env: Env) -> None:
        machine.store_local(slot, index(env), given(env), env[0])

    return Act(run, site)


def _elected(env: Env) -> Value:
    """Return 1 in the first lane that runs of each warp."""
    lanes: Lanes = env[0]
    made = np.zeros(len(lanes.bits), np.int64)
    _, first = np.unique(lanes.ids // WARP, return_index=True)
    made[lanes.ids[first]] = 1
    return made


def _shuffled(given: Known, lane: int) -> Known:
    if not callable(given):
        return given

    def run(env: Env) -> Value:
        value = given(env)
        if not isinstance(value, np.ndarray) or len(value) % WARP:
            return value
        return np.repeat(value.reshape(-1, WARP)[:, lane], WARP)

    return run


STATEMENTS: dict[type, Callable[[KernelReader, Any], Node]] = {
    tir.Evaluate: KernelReader._evaluate, tir.Bind: KernelReader._bind,
    tir.BufferStore: KernelReader._store, tir.IfThenElse: KernelReader._if,
    tir.For: KernelReader._for, tir.While: KernelReader._while,
    tir.AllocBuffer: KernelReader._alloc, tir.DeclBuffer: KernelReader._decl,
    tir.AttrStmt: KernelReader._attr,
}  # fmt: skip
