"""The tensor memory accelerator (sm_90): boxes of a tensor by a tensor map."""

from __future__ import annotations

import functools

from tilecore.errors import UnsupportedOnTarget
from tilecore.lowering.cuda.instructions.base import Instruction, asm, shared

MAP = '"l"(map)'
LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
PAIR_LOAD = LOAD.replace("d.shared", "d.cta_group::2.shared")
# The barrier at the same place in the first block of the pair: the one of even rank.
FIRST = (
    "mov.u32 first, %%cluster_ctarank; and.b32 first, first, 0xfffffffe; "
    "mapa.shared::cluster.u32 first, %2, first; "
)
MAX_RANK = 5


def _coordinates(rank: int, first: int) -> tuple[str, str, list[str], str]:
    """Return C parameters, PTX operands, inline-assembly operands, and a C array's elements."""
    if not 1 <= rank <= MAX_RANK:
        raise UnsupportedOnTarget(
            what=f"a tensor map of rank {rank}", target="cuda", reason="expected 1 to 5 axes"
        )
    names = [f"c{i}" for i in range(rank)]
    ptx = "{" + ", ".join(f"%{first + i}" for i in range(rank)) + "}"
    return ", ".join(f"int {n}" for n in names), ptx, [f'"r"({n})' for n in names], ", ".join(names)


@functools.cache
def prefetch_map() -> Instruction:
    """Return ``(map)``: the tensor map is fetched ahead of its first use."""
    return Instruction(
        "tc_prefetch_map", "unsigned long long map",
        asm("prefetch.tensormap [%0];", (), [MAP]), "", arch="sm_90",
    )  # fmt: skip


@functools.cache
def tma_load(rank: int, multicast: bool = False, *, stays: bool = False) -> Instruction:
    """Return ``(void* dst, map, void* barrier, int c0, ...[, int mask])``.

    Copies the map's box at coordinates ``c0`` (innermost) ... to shared memory; one thread calls
    it, and the barrier is told the bytes. Elements outside the tensor become 0.

    Args:
        rank: axes of the tensor map, 1 to 5.
        multicast: with a mask of the blocks of the cluster that get the box (and the bytes), each
            at the same place in its shared memory.
        stays: the addresses are those of the block's own shared memory, not of its cluster's (PTX
            ISA 8.6).
    """
    c_params, coords, operands, values = _coordinates(rank, 3)
    text = LOAD.format(rank=rank)
    params = f"void* dst, unsigned long long map, void* barrier, {c_params}"
    inputs = [f'"r"({shared("dst")})', MAP, f'"r"({shared("barrier")})', *operands]
    name, tail, mask = f"tc_tma_load_{rank}d", "", "0"
    if stays:
        text, name = text.replace("shared::cluster", "shared::cta"), name + "_own"
    if multicast:
        text += ".multicast::cluster"
        tail = f", %{len(inputs)}"
        inputs.append('"h"((unsigned short)mask)')
        params, name, mask = params + ", int mask", name + "_multicast", "mask"
    return Instruction(
        name, params, asm(f"{text} [%0], [%1, {coords}], [%2]{tail};", (), inputs),
        f"int c[] = {{{values}}};\nemu::tma_load(dst, map, barrier, {rank}, c, {mask});",
        arch="sm_90",
    )  # fmt: skip


@functools.cache
def tma_load_pair(rank: int) -> Instruction:
    """Return ``(void* dst, map, void* barrier, int c0, ...)``: ``tma_load`` in a pair of blocks.

    The bytes go to the own shared memory; of them the barrier at this place in the first block of
    the pair is told, on which a product of both blocks waits (sm_100).
    Source: PTX ISA 9.0, section 9.7.9.27.1.2 (``.cta_group``); CUTLASS 7107b055,
    cute/arch/copy_sm100_tma.hpp (``SM100_TMA_2SM_LOAD_2D``).
    """
    c_params, coords, operands, values = _coordinates(rank, 3)
    load = f"{PAIR_LOAD.format(rank=rank)} [%0], [%1, {coords}], [first];"
    text = f"{{ .reg .b32 first; {FIRST}{load} }}"
    inputs = [f'"r"({shared("dst")})', MAP, f'"r"({shared("barrier")})', *operands]
    return Instruction(
        f"tc_tma_load_{rank}d_pair",
        f"void* dst, unsigned long long map, void* barrier, {c_params}",
        asm(text, (), inputs),
        f"int c[] = {{{values}}};\nemu::tma_load_pair(dst, map, barrier, {rank}, c);",
        arch="sm_100a",
    )  # fmt: skip


@functools.cache
def tma_store(rank: int) -> Instruction:
    """Return ``(map, const void* src, int c0, ...)``: a box from shared memory, in a bulk group.

    Elements outside the tensor are not written. Before it, threads that wrote the box call
    ``fence_async`` and meet the calling thread at a barrier.
    """
    c_params, coords, operands, values = _coordinates(rank, 2)
    text = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [%0, {coords}], [%1];"
    return Instruction(
        f"tc_tma_store_{rank}d", f"unsigned long long map, const void* src, {c_params}",
        asm(text, (), [MAP, f'"r"({shared("src")})', *operands]),
        f"int c[] = {{{values}}};\nemu::tma_store(map, src, {rank}, c);", arch="sm_90",
    )  # fmt: skip


@functools.cache
def tma_reduce(rank: int, op: str = "add") -> Instruction:
    """Return ``(map, const void* src, int c0, ...)``: tensor elements op= those of a box.

    ``op``: add, min, max, inc, dec, and, or, xor.
    """
    if op not in REDUCTIONS:
        raise UnsupportedOnTarget(
            what=f"TMA reduction {op}", target="cuda", reason=f"expected {', '.join(REDUCTIONS)}"
        )
    c_params, coords, operands, values = _coordinates(rank, 2)
    form = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{op}.tile.bulk_group"
    return Instruction(
        f"tc_tma_{op}_{rank}d", f"unsigned long long map, const void* src, {c_params}",
        asm(f"{form} [%0, {coords}], [%1];", (), [MAP, f'"r"({shared("src")})', *operands]),
        f'int c[] = {{{values}}};\nemu::tma_reduce(map, src, {rank}, c, "{op}");', arch="sm_90",
    )  # fmt: skip
