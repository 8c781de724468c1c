"""What threads do one by one or with each other: atomic updates, shuffles, votes, mbarriers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tvm import tirx as tir

from tilecore.errors import UnsupportedOnTarget
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.products.matrix_units import operand_kind
from tilecore.ir import nodes
from tilecore.ir.expr import Binary, Cast, Const, Expr, Load, binary, cast, const, int_value
from tilecore.ir.fold import reducer_update
from tilecore.ir.lane_matrix import LANES
from tilecore.ir.nodes import Arrive, Atomic, Exchange, LaneGemm, Wait
from tilecore.lowering.cuda.access import Accessor
from tilecore.lowering.cuda.instructions import barrier
from tilecore.lowering.cuda.instructions.atomic import (
    NARROW,
    ORDERED,
    atomic,
    atomic_narrow,
    load_ordered,
)
from tilecore.lowering.cuda.instructions.base import Instruction
from tilecore.lowering.cuda.instructions.matrix import mma
from tilecore.lowering.cuda.memory import SharedPlace, TensorPlace
from tilecore.lowering.cuda.scalar import (
    constant,
    convert,
    exchanged_type,
    from_memory,
    operate,
    value_type,
)
from tilecore.lowering.tir import add, index, mul, remainder

SHUFFLES = {"shfl": "idx", "shfl_xor": "xor", "shfl_up": "up", "shfl_down": "down"}
FOLDS = {
    "sum": "add", "prod": "mul", "max": "max", "min": "min", "bitand": "bitand",
    "bitor": "bitor", "bitxor": "bitxor", "count": "add", "all": "bitand", "any": "bitor",
}  # fmt: skip
VOTES = ("any", "all")
# Orders with a fence before the update, and with one behind it.
RELEASING = ("release", "acq_rel", "seq_cst")
ACQUIRING = ("consume", "acquire", "acq_rel", "seq_cst")
ATOMICS = {"add": "add", "max": "max", "min": "min", "or": "or", "store": "exchange"}


def emit_atomic(accessor: Accessor, stmt: Atomic) -> None:
    """Emit one atomic update; outside a tensor nothing is updated and the old value is 0."""
    builder, buffer, prev = accessor.builder, stmt.buffer, stmt.prev
    place, dtype = accessor.places[buffer], str(stmt.buffer.dtype)
    if not isinstance(place, (TensorPlace, SharedPlace)):
        raise UnsupportedOnTarget(
            what=f"an atomic {stmt.op} of `{buffer.name}`", target="cuda",
            reason="atomic updates are of tensors and shared tiles", span=stmt.span,
        )  # fmt: skip
    value = builder.bind(accessor.scalar(cast(stmt.value, dtype)))
    if (buffer, tuple(id(i) for i in stmt.indices), True) in accessor.staged:
        accessor.store(buffer, stmt.indices, value, dtype)
        return
    if prev is not None:
        accessor.store(prev, (const(0),), constant(0, dtype), dtype)
    with accessor.storing(place, stmt.indices):
        memory, offset = accessor.locate(buffer, stmt.indices)
        address = builder.address(memory, offset)
        is_load = stmt.op == "load" and dtype in ORDERED  # which acquires
        if stmt.order in RELEASING and not is_load:
            builder.evaluate(barrier.thread_fence().call())
        if is_load:
            old = from_memory(load_ordered(dtype).call(address), dtype)
        else:
            op = "or" if stmt.op == "load" and dtype in NARROW else stmt.op  # with 0: as it is
            old = _updated(ATOMICS.get(op, op), dtype, address, value)
        if prev is None:
            builder.evaluate(old)
        else:
            accessor.store(prev, (const(0),), builder.bind(old), dtype)
        if stmt.order in ACQUIRING and not is_load:
            builder.evaluate(barrier.thread_fence().call())


def emit_update(accessor: Accessor, stmt: nodes.Store) -> None:
    """Emit an update of a reducer, which all points may make: atomic, in shared memory."""
    found = reducer_update(stmt)
    assert found is not None
    op, value = found
    names = {"sum": "add", "bitand": "and", "bitor": "or", "bitxor": "xor"}
    builder, dtype, place = accessor.builder, str(stmt.buffer.dtype), accessor.places[stmt.buffer]
    raw = builder.bind(accessor.scalar(cast(value, dtype)))
    with accessor.storing(place, stmt.indices):
        address = builder.address(*accessor.locate(stmt.buffer, stmt.indices))
        builder.evaluate(_updated(names.get(op, op), dtype, address, raw))


def _updated(op: str, dtype: str, address: Any, value: Any) -> Any:
    """Return the old value of an element that is updated, as it is computed with."""
    if dtype == "bfloat16":
        return update_bfloat16(op).call(address, value)
    if dtype in NARROW:
        return tir.Cast(dtype, atomic_narrow(op, dtype).call(address, tir.Cast("int32", value)))
    return atomic(op, dtype).call(address, value)


@functools.cache
def update_bfloat16(op: str) -> Instruction:
    """Return ``float32 (void* address, float32 value)``: an update by compare-and-swap."""
    steps = {"add": "old + value", "max": "fmaxf(old, value)", "min": "fminf(old, value)",
             "exchange": "value", "load": "old"}  # fmt: skip
    if op not in steps:
        raise UnsupportedOnTarget(
            what=f"an atomic {op} of bfloat16", target="cuda", reason=f"expected {', '.join(steps)}"
        )
    body = f"""unsigned short* word = (unsigned short*)address;
unsigned short seen = *(volatile unsigned short*)word, expected;
float old;
do {{
  expected = seen;
  old = __uint_as_float((unsigned)expected << 16);
  float made = {steps[op]};
  unsigned bits = __float_as_uint(made);
  unsigned rounded = made != made ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  seen = atomicCAS(word, expected, (unsigned short)rounded);
}} while (seen != expected);
return old;"""
    return Instruction(
        f"tc_update_bf16_{op}", "void* address, float value", body, returns="float32"
    )


def emit_exchange(accessor: Accessor, stmt: Exchange | LaneGemm, target: GpuTarget) -> None:
    """Emit a shuffle, a combination of the values of lanes (a power of two), or a product."""
    if isinstance(stmt, LaneGemm):
        _multiply(accessor, stmt, target)
        return
    builder, isa, width = accessor.builder, accessor.isa, stmt.width
    given = stmt.args[0]
    kind = exchanged_type(str(given.dtype))
    carrier = value_type(kind)
    value = builder.bind(convert(accessor.scalar(given), str(given.dtype), kind))
    if stmt.op in SHUFFLES:
        lane = accessor.scalar(cast(stmt.args[1], "int32"))
        if stmt.op != "shfl" and int_value(stmt.args[1]) is None:
            lane = builder.bind(tir.if_then_else(_is_within(lane, width), lane, index(0)))
        if accessor.thread_count % width:
            lane = _where_there(accessor, stmt, lane)
        lanes = [accessor.scalar(m) for m in stmt.args[2:]]
        shuffle = isa.shuffle(SHUFFLES[stmt.op], carrier, width, is_masked=bool(lanes))
        result = shuffle.call(*lanes, value, lane)
    elif stmt.op == "ballot" or (stmt.op in VOTES and stmt.args[1:]):
        lanes = [accessor.scalar(m) for m in stmt.args[1:]]
        result = isa.vote(stmt.op, is_masked=bool(lanes)).call(*lanes, value)
        kind = "uint32" if stmt.op == "ballot" else "int32"
    else:
        result = _folded(accessor, stmt, value, kind)
    zeros = tuple(const(0) for _ in stmt.dst.shape)
    accessor.store(stmt.dst, zeros, builder.bind(result), kind)


def _multiply(accessor: Accessor, stmt: LaneGemm, target: GpuTarget) -> None:
    """Emit a product of matrices that the lanes of a warp hold in pieces: an mma instruction."""
    size = "".join(f"{name}{extent}" for name, extent in zip("mnk", stmt.shape, strict=True))
    if target.kind != "cuda" or accessor.thread_count % LANES:
        raise UnsupportedOnTarget(
            what=f"a product {size} of what lanes hold", target=target.name, span=stmt.span,
            reason=f"expected warps of {LANES} threads of an NVIDIA GPU",
        )  # fmt: skip
    kinds = [operand_kind(str(region.dtype)) for region in (stmt.a, stmt.b)]
    instruction = mma(size, *kinds, str(stmt.c.dtype))
    if not target.has(instruction.arch):
        raise UnsupportedOnTarget(
            what=f"mma {size} of {kinds[0]}", target=target.name, span=stmt.span,
            reason=f"it comes with {instruction.arch}",
        )  # fmt: skip
    places = (accessor.locate(r.buffer, r.offsets) for r in (stmt.c, stmt.a, stmt.b))
    builder = accessor.builder
    builder.evaluate(instruction.call(*(builder.address(*place) for place in places)))


def _is_within(distance: Any, width: int) -> Any:
    """Return whether a distance is one between lanes of a group."""
    return tir.And(tir.GE(distance, index(0)), tir.LT(distance, index(width)))


def _where_there(accessor: Accessor, stmt: Exchange, lane: Any) -> Any:
    """Return the lane or distance of a shuffle, that of the own lane where no thread is.

    The last group of a block may have fewer lanes; what others give is not defined.
    """
    thread, width = index(accessor.thread), stmt.width
    match stmt.op:
        case "shfl":
            own = remainder(thread, width)
            there = thread - own + tir.FloorMod(lane, index(width))
        case "shfl_xor":
            own, there = index(0), tir.bitwise_xor(thread, lane)
        case "shfl_down":
            own, there = index(0), thread + lane
        case _:
            return lane
    is_there = tir.LT(there, index(accessor.thread_count))
    return accessor.builder.bind(tir.if_then_else(is_there, lane, own))


def _folded(accessor: Accessor, stmt: Exchange, value: Any, kind: str) -> Any:
    """Return what the values of all lanes of a group make together, in each of them.

    Where the last group has fewer lanes, its first one collects those that are there.
    """
    builder, isa, width = accessor.builder, accessor.isa, stmt.width
    carrier, result, distance = value_type(kind), value, stmt.width // 2
    short = accessor.thread_count % width
    while distance:
        shuffle = isa.shuffle("down" if short else "xor", carrier, width)
        last = index(accessor.thread_count - distance)
        is_there = tir.LT(index(accessor.thread), last)
        there = tir.if_then_else(is_there, index(distance), index(0)) if short else index(distance)
        other = builder.bind(shuffle.call(result, there))
        folded = operate(FOLDS[stmt.op], result, other, kind)
        folded = tir.if_then_else(is_there, folded, result) if short else folded
        result = builder.bind(folded)
        distance //= 2
    return isa.shuffle("idx", carrier, width).call(result, index(0)) if short else result


Scratch = Callable[[str], tuple[Any, int]]


def broadcast(
    accessor: Accessor, held: nodes.Buffer, scratch: Scratch, sync: Callable[[], None]
) -> None:
    """Let all threads have what the first one has in a variable."""
    builder, dtype = accessor.builder, str(held.dtype)
    kind = value_type(dtype)
    memory, start = scratch(kind)
    zeros = tuple(const(0) for _ in held.shape)
    with builder.when(tir.EQ(index(accessor.thread), index(0))):
        builder.store(memory, accessor.load(Load(held, zeros, held.dtype)), start)
    sync()
    accessor.store(held, zeros, builder.bind(builder.load(memory, start)), dtype)
    sync()


def exchange_widely(
    accessor: Accessor, stmt: Exchange, scratch: Scratch, sync: Callable[[], None]
) -> None:
    """Emit an exchange among more or other threads than the lanes of a shuffle, by memory.

    All threads of the block come by, as T.sync_threads wants them to.
    """
    builder, given = accessor.builder, stmt.args[0]
    count = accessor.thread_count
    width = min(stmt.width or count, count)
    kind = "int32" if given.dtype == "bool" else value_type(str(given.dtype))
    memory, start = scratch(kind)
    value = convert(accessor.scalar(given), str(given.dtype), kind)
    builder.store(memory, builder.bind(value), add(start, accessor.thread))
    sync()
    lane = remainder(accessor.thread, width)
    base = add(index(accessor.thread), mul(lane, -1))
    if stmt.op in SHUFFLES:
        there = _source(stmt.op, lane, accessor.scalar(cast(stmt.args[1], "int32")), width)
        last = index(count - 1)
        result = builder.load(memory, add(start, tir.Min(add(base, there), last)))
    else:
        total = builder.local(1, kind, "total")
        builder.store(total, builder.load(memory, add(start, base)), 0)
        with builder.turns(width - 1, unrolled=False) as other:
            told = builder.load(memory, add(add(start, base), add(other, 1)))
            folded = operate(FOLDS[stmt.op], builder.load(total, 0), told, kind)
            builder.store(total, folded, 0)
        result = builder.load(total, 0)
    zeros = tuple(const(0) for _ in stmt.dst.shape)
    accessor.store(stmt.dst, zeros, builder.bind(result), kind)
    sync()


def _source(op: str, lane: Any, given: Any, width: int) -> Any:
    """Return the lane that a shuffle reads: the own one where it points outside the group."""
    if op == "shfl":
        return tir.FloorMod(given, index(width))
    there = {"shfl_xor": tir.bitwise_xor, "shfl_up": tir.Sub, "shfl_down": tir.Add}[op](
        index(lane), given
    )
    inside = tir.And(_is_within(given, width), _is_within(there, width))
    return tir.if_then_else(inside, there, index(lane))


def is_barrier(buffer: nodes.Buffer) -> bool:
    """Return whether a tile is an array of mbarriers."""
    return buffer.arrive_counts is not None


def init_barriers(accessor: Accessor, buffers: list[nodes.Buffer], target: GpuTarget) -> None:
    """Emit what makes memory mbarriers: by one thread, seen by all."""
    builder = accessor.builder
    if not target.has("sm_80"):
        raise UnsupportedOnTarget(
            what=f"the barrier `{buffers[0].name}`", target=target.name,
            reason="mbarriers come with sm_80", span=buffers[0].span,
            hint="T.sync_threads() between threads, T.Pipelined for copies that run ahead",
        )  # fmt: skip
    with builder.when(tir.EQ(index(accessor.thread), index(0))):
        for buffer in buffers:
            for number, count in enumerate(buffer.arrive_counts or ()):
                place = accessor.locate(buffer, (const(number),))
                builder.evaluate(barrier.barrier_init().call(builder.address(*place), index(count)))
    if target.has("sm_90"):
        builder.evaluate(barrier.fence_barrier_init().call())
    builder.evaluate(barrier.sync_threads().call())


def emit_arrive(accessor: Accessor, stmt: Arrive) -> None:
    """Emit an arrival of each thread here, or of one for all."""
    builder = accessor.builder
    place = accessor.locate(stmt.buffer, (stmt.index,))
    call = barrier.barrier_arrive().call(builder.address(*place))
    if not stmt.once:
        builder.evaluate(call)
        return
    with builder.when(tir.EQ(index(accessor.thread), index(0))):
        builder.evaluate(call)


def _is_bit(value: Expr) -> bool:
    """Return whether a parity is surely 0 or 1: hardware takes no other."""
    match value:
        case Const(value=known):
            return known in (0, 1)
        case Cast(a=inner):
            return inner.dtype == "bool" or _is_bit(inner)
        case Binary(op="mod", b=Const(value=2)) | Binary(op="bitand", b=Const(value=1)):
            return True
        case Binary(op="bitxor" | "bitand" | "bitor", a=a, b=b):
            return _is_bit(a) and _is_bit(b)
        case _:
            return False


def emit_wait(accessor: Accessor, stmt: Wait, target: GpuTarget, of_cluster: bool) -> None:
    """Emit a wait for the last phase of a parity; ``of_cluster``: other blocks arrive too."""
    place = accessor.locate(stmt.buffer, (stmt.index,))
    given = cast(stmt.parity, "int32")
    parity = accessor.scalar(given if _is_bit(given) else binary("bitand", given, 1))
    arch = f"sm_{target.capability}"
    call = barrier.barrier_wait(arch, of_cluster=of_cluster).call(
        accessor.builder.address(*place), parity
    )
    accessor.builder.evaluate(call)
