"""Memory and values of a TIR kernel: what is known of them before anything runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
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
from tilecore.ordering.matrix_effects import descriptor
from tilecore.ordering.operands import Operand, Pointer
from tilecore.ordering.program import Env, Expression, Lanes, Site, Value

CALL = "tirx.cuda.func_call"
ALIGNMENT = 1024
OPEN_SIZE = 300  # what a dimension is taken for that is not known: ragged for all tiles
ASSUMED = (70, 90)  # the first element of a tensor that decides where threads go, and the step
WARP = 32
DIVISIONS = (tir.Mod, tir.FloorMod, tir.Div, tir.FloorDiv)
MOST_SLOTS = 16  # of tiles that a loop uses in turn
INTEGERS = ("int", "uint", "bool")
COMPARISON = re.compile(r"tc_compare_(lt|le|gt|ge|eq|ne)_")  # of what TIR does not compare
PURE = ("if_then_else", "likely", "reinterpret")  # of TIR's own functions
PARTS: dict[type, tuple[str, ...]] = {
    tir.Cast: ("value",), tir.Not: ("a",), tir.Broadcast: ("value",),
    tir.Select: ("condition", "true_value", "false_value"),
}  # fmt: skip


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
        is_idle: whether sizes that the grid does not follow from, and elements that decide where
            threads go, are all 0: loops over them have no turns.
    """

    boxes: Mapping[str, int]
    scalars: Mapping[str, int]
    is_last: bool = True
    is_idle: bool = False


class Expressions:
    """What is known of the memory and the values of a kernel.

    Attributes:
        of_products: arrays whose registers products of warpgroups use.
        addressed: arrays that instructions get the address of.
        unread: sites whose address follows from data.
    """

    def __init__(self, params: Mapping[int, Any], reading: Reading) -> None:
        self.reading = reading
        self.slots = 1  # 0: the threads that run
        self.variables: dict[int, Known] = {}
        self.setup: dict[int, Value] = {}
        self.memories: dict[int, Memory] = {}
        self.pointers: dict[int, Pointer] = {}
        self.definitions: dict[int, Any] = {}  # of variables whose values follow from data
        self.sites: list[Site] = []
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.threads = self.blocks = 1
        self.thread = self.rank = np.zeros(1, np.int64)
        self.shared_bytes = 0
        self.widths: set[int] = set()
        self.of_products: set[int] = set()  # arrays whose registers products use
        self.addressed: set[int] = set()  # arrays that instructions get the address of
        self.global_ways: dict[int, set[str]] = {}
        self.global_sizes: dict[int, int] = {}
        self.unread: list[int] = []
        self.open: set[int] = set()  # parameters whose values are taken for something
        self.has_assumed = False  # whether elements are
        self.assumed: set[int] = set()  # variables that follow from such elements
        self.assumed_slots: set[int] = set()  # arrays of registers that hold what follows from them
        self.span: Any = None
        self.uniform: set[int] = set()  # variables that are the same in all threads
        self.turning: set[int] = set()  # variables that follow from where loops are
        self.moduli: set[int] = set()  # numbers by which such values are divided
        for key, param in params.items():
            self._parameter(key, param)

    def _parameter(self, key: int, param: Any) -> None:
        if is_buffer_var(param):
            self._memory(param, "global")
        elif str(param.name) in self.reading.boxes:
            self.pointers[key] = Pointer("map", size=self.reading.boxes[str(param.name)])
        elif str(getattr(param, "ty", "")).startswith(INTEGERS):
            if str(param.name) not in self.reading.scalars:
                self.open.add(key)
            self.variables[key] = self.reading.scalars.get(str(param.name), OPEN_SIZE)

    def _constant(self, value: Value) -> Known:
        if not isinstance(value, np.ndarray):
            return value
        slot = self._slot()
        self.setup[slot] = value
        return lambda env: env[slot]

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

    def _range(self, expr: Any) -> tuple[Known, int]:
        """Return (the least value, the count of values) of an index that follows from data."""
        known = self.value(expr)
        kind = type(expr)
        if known is not None:
            return known, 1
        if kind is tir.Add:
            (a, width), (b, more) = self._range(expr.a), self._range(expr.b)
            return binary(BINARY[tir.Add], a, b), width + more - 1
        if kind is tir.Mul and isinstance(expr.b, tir.IntImm) and int(expr.b) > 0:
            start, width = self._range(expr.a)
            return binary(BINARY[tir.Mul], start, int(expr.b)), (width - 1) * int(expr.b) + 1
        if kind is tir.Mod and isinstance(expr.b, tir.IntImm):
            return 0, int(expr.b)
        if kind is tvm.ir.Call and str(expr.op.name).endswith("bitwise_and"):
            ends = [int(a) for a in expr.args if isinstance(a, tir.IntImm)]
            return (0, min(ends) + 1) if ends else (None, 1)
        if kind is tir.BitwiseAnd:
            ends = [int(a) for a in (expr.a, expr.b) if isinstance(a, tir.IntImm)]
            return (0, min(ends) + 1) if ends else (None, 1)
        if kind is tir.Cast:
            if str(expr.value.ty) == "uint8":
                return 0, 256
            return self._range(expr.value)
        if kind is tir.Var and hash(expr) in self.definitions:
            return self._range(self.definitions[hash(expr)])
        return None, 1

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
            if kind in DIVISIONS and isinstance(expr.b, tir.IntImm) and self._turns(expr.a):
                self.moduli.add(int(expr.b))
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

    def is_uniform(self, expr: Any) -> bool:
        """Return whether a value is the same in all threads of the block, known or not."""
        kind = type(expr)
        if isinstance(expr, tir.Var):
            known = self.variables.get(hash(expr))
            return hash(expr) in self.uniform or (known is not None and not callable(known))
        if kind is tvm.ir.TensorLoad:
            memory = self.memories.get(hash(expr.source))
            is_common = memory is not None and memory.space in ("global", "shared")
            return is_common and all(map(self.is_uniform, expr.indices))
        if kind is tvm.ir.Call:
            name, args = str(expr.op.name), list(expr.args)
            is_pure = name.endswith(PURE)
            if name == CALL:
                is_pure = COMPARISON.match(str(args[0].value)) is not None
                args = args[1:-1]  # between its name and its text
            return is_pure and all(map(self.is_uniform, args))
        parts = ("a", "b") if kind in BINARY else PARTS.get(kind)
        if parts is None:
            return isinstance(expr, (int, tir.IntImm, tir.FloatImm))
        return all(self.is_uniform(getattr(expr, name)) for name in parts)

    def _turns(self, expr: Any) -> bool:
        """Return whether a value follows from where loops are that are kept as loops."""
        kind = type(expr)
        if isinstance(expr, tir.Var):
            return hash(expr) in self.turning
        if kind is tvm.ir.TensorLoad:
            memory = self.memories.get(hash(expr.source))
            return memory is not None and memory.space == "local"
        if kind is tir.Cast:
            return self._turns(expr.value)
        return kind in BINARY and (self._turns(expr.a) or self._turns(expr.b))

    def is_assumed(self, expr: Any) -> bool:
        """Return whether a value follows from elements that were taken for something."""
        found: list[bool] = []

        def see(var: Any) -> None:
            found.append(hash(var) in self.assumed)

        def load(part: Any) -> None:
            memory = self.memories.get(hash(part.source))
            if memory is not None and str(part.ty).startswith(INTEGERS):
                found.append(memory.space == "global" or memory.slot in self.assumed_slots)

        if not isinstance(expr, int):
            tvm_ffi.structural_walk(expr, (tir.Var, see))
            tvm_ffi.structural_walk(expr, (tvm.ir.TensorLoad, load))
        return any(found)

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
            return lambda env: env.machine.locals.load(slot, index(env), env[0])
        if memory.space == "global":
            start, _ = self._place(memory, load.indices)
            self.has_assumed = True
            if start is None or self.reading.is_idle:
                return None if start is None else 0
            return _assumed(expression(start), memory.itemsize)
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
        offset = binary(BINARY[tir.Add], offset, memory.base)
        is_assumed = any(map(self.is_assumed, inner.indices))
        return Pointer("shared", offset=expression(offset), is_assumed=is_assumed)


def _assumed(index: Expression, itemsize: int) -> Expression:
    """Return what an element of a tensor is taken for that all threads of a block read alike.

    Lengths, offsets and flags: they grow with the index, and none is 0. From block to block of a
    cluster it is by little.
    """

    def run(env: Env) -> Value:
        at = index(env)
        if at is None or (isinstance(at, np.ndarray) and not env.machine.is_alike_in_blocks(at)):
            return None
        first = int(np.min(at))
        return 1 if itemsize == 1 else ASSUMED[0] + ASSUMED[1] * first + (at - first)

    return run


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
