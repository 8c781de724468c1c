"""TIR of the probes that measure a machine's limits: FMA rate, memory bandwidth, fork and join.

Operands come from memory, so that nothing can be folded; every chain is a multiply-add of its own
value (``r = r * b + c``), so that no part of it is loop-invariant.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

from tilecore.inference.cpu.dots import TILE_ROWS, Dot
from tilecore.ir.dtype import DType
from tilecore.lowering.cpu.gemm import amx
from tilecore.lowering.tir import TirBuilder, vector_type
from tilecore.target import Target

# Enough independent chains for 2 ports x 4-5 cycles of latency, few enough to stay in registers:
# 24 of 32 with AVX-512, 12 of 16 with AVX2.
CHAINS_PER_REGISTER = 0.75
STREAM_UNROLL = 4
TILE_WORDS = TILE_ROWS * TILE_ROWS
DOT_DEPTH = 4  # tiles along K
DOT_WORDS = 4 * DOT_DEPTH * TILE_WORDS  # two tiles of each operand at every depth


def fma_chains(target: Target) -> int:
    """Return how many independent accumulators the FMA probe keeps."""
    return int(target.vector_registers * CHAINS_PER_REGISTER)


def fma_probe(dtype: str, target: Target) -> tuple[Any, int]:
    """Return (TIR, FLOP per step) of a loop of nothing but vector multiply-adds.

    Parameters of the function: values[chains * lanes] (start and result), operands[2 * lanes],
    steps[1] (int32).
    """
    lanes, chains = target.lanes(dtype), fma_chains(target)
    builder = TirBuilder()
    values = _param("values", chains * lanes, dtype)
    operands = _param("operands", 2 * lanes, dtype)
    steps = _param("steps", 1, "int32")
    b = builder.bind(builder.load(operands, 0, lanes))
    c = builder.bind(builder.load(operands, lanes, lanes))
    registers = builder.registers(chains, lanes, dtype)
    for i, register in enumerate(registers):
        builder.store(register, builder.load(values, i * lanes, lanes), 0, lanes)
    kind = vector_type(dtype, lanes)
    with builder.loop(builder.load(steps, 0)):
        for register in registers:
            r = builder.load(register, 0, lanes)
            product = tir.call_llvm_pure_intrin(kind, "llvm.fma", r, b, c)
            builder.store(register, product, 0, lanes)
    for i, register in enumerate(registers):
        builder.store(values, builder.load(register, 0, lanes), i * lanes, lanes)
    return builder.finish("main", [values, operands, steps]), 2 * chains * lanes


def dot_probe(dot: Dot) -> tuple[Any, int]:
    """Return (TIR, FLOP per step) of products on tiles whose operands stay in the L1 cache.

    Parameters of the function: operands (words, ``DOT_WORDS`` of them), out[1024], steps[1].
    """
    builder = TirBuilder()
    operands = _param("operands", DOT_WORDS, "int32")
    out, steps = _param("out", 4 * TILE_WORDS, "int32"), _param("steps", 1, "int32")
    amx.emit_products(builder, dot, operands, out, builder.load(steps, 0), DOT_DEPTH)
    rows = 2 * TILE_ROWS
    return (
        builder.finish("main", [operands, out, steps]),
        2 * rows * rows * TILE_ROWS * dot.group * DOT_DEPTH,
    )


def stream_probe(elements: int, tasks: int, target: Target) -> Any:
    """Return TIR of ``target[i] = factor * source[i]`` over float32, in ``tasks`` parallel parts.

    Parameters of the function: source[elements], target[elements], factor[1].
    """
    lanes = target.lanes("float32")
    step = lanes * STREAM_UNROLL
    if elements % (tasks * step):
        raise ValueError(f"expected a multiple of {tasks * step} elements, found {elements}")
    builder = TirBuilder()
    source = _param("source", elements, "float32")
    result = _param("target", elements, "float32")
    factor = _param("factor", 1, "float32")
    part = elements // tasks
    with builder.shared_loop(tasks, tasks) as task:
        scale = builder.bind(tir.Broadcast(builder.load(factor, 0), lanes))
        with builder.loop(part // step) as i:
            for u in range(STREAM_UNROLL):
                place = task * part + i * step + u * lanes
                builder.store(result, builder.load(source, place, lanes) * scale, place, lanes)
    return builder.finish("main", [source, result, factor])


def reading_probe(elements: int, rows: int, piece: int, target: Target) -> Any:
    """Return TIR that adds up float32 numbers, of ``rows`` parts a piece of each in turn.

    Parameters of the function: source[elements], out[STREAM_UNROLL * lanes].
    """
    lanes = target.lanes("float32")
    step = lanes * STREAM_UNROLL
    if piece % step or elements % (rows * piece):
        raise ValueError(f"expected {rows} parts of pieces of {piece}, found {elements} elements")
    builder = TirBuilder()
    source = _param("source", elements, "float32")
    out = _param("out", step, "float32")
    sums = builder.registers(STREAM_UNROLL, lanes, "float32")
    for u, register in enumerate(sums):
        builder.store(register, builder.load(out, u * lanes, lanes), 0, lanes)
    part = elements // rows
    with builder.loop(part // piece) as number, builder.loop(rows) as row:
        first = builder.bind(row * part + number * piece)
        with builder.loop(piece // step) as i:
            for u, register in enumerate(sums):
                value = builder.load(source, first + i * step + u * lanes, lanes)
                builder.store(register, builder.load(register, 0, lanes) + value, 0, lanes)
    for u, register in enumerate(sums):
        builder.store(out, builder.load(register, 0, lanes), u * lanes, lanes)
    return builder.finish("main", [source, out])


def launch_probe(tasks: int) -> Any:
    """Return TIR of a parallel loop that does next to nothing: its time is fork and join.

    Parameter of the function: out[16 * tasks] (int32), one cache line per task.
    """
    builder = TirBuilder()
    out = _param("out", 16 * tasks, "int32")
    with builder.shared_loop(tasks, tasks) as task:
        builder.store(out, task, task * 16)
    return builder.finish("main", [out])


def _param(name: str, size: int, dtype: str) -> Any:
    return tir.decl_buffer((size,), dtype, name, data_alignment=DType(dtype).itemsize)
