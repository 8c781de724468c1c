"""Asynchronous copies from global to shared memory: cp.async (sm_80) and cp.async.bulk (sm_90)."""

from __future__ import annotations

import functools

from tilecore.errors import UnsupportedOnTarget
from tilecore.lowering.cuda.instructions.base import Instruction, asm, shared

DST, SRC, BAR = f'"r"({shared("dst")})', '"l"(src)', f'"r"({shared("barrier")})'
SHARED_TO_GLOBAL = "cp.async.bulk.global.shared::cta.bulk_group"


@functools.cache
def cp_async(size: int, bypasses_l1: bool | None = None, has_size: bool = False) -> Instruction:
    """Return ``(void* dst, const void* src[, int bytes])``: a copy of ``size`` bytes, not awaited.

    Args:
        size: 4, 8 or 16; both addresses are multiples of it.
        bypasses_l1: cached in L2 only, which takes 16 bytes; default: where that is possible.
        has_size: with the number of bytes that are read; the others become zero (0: nothing is
            read, ``src`` may be any address).
    """
    bypasses = size == 16 if bypasses_l1 is None else bypasses_l1
    if size not in (4, 8, 16) or (bypasses and size != 16):
        raise UnsupportedOnTarget(
            what=f"cp.async of {size} bytes", target="cuda",
            reason="expected 4, 8 or 16 bytes (16 to bypass the L1 cache)",
        )  # fmt: skip
    cache = "cg" if bypasses else "ca"
    extra, operand = (", int bytes", ", %2") if has_size else ("", "")
    inputs = [DST, SRC] + (['"r"(bytes)'] if has_size else [])
    return Instruction(
        f"tc_cp_async_{cache}_{size}{'_zfill' if has_size else ''}",
        f"void* dst, const void* src{extra}",
        asm(f"cp.async.{cache}.shared.global [%0], [%1], {size}{operand};", (), inputs),
        f"emu::cp_async(dst, src, {size}, {'bytes' if has_size else size});",
        arch="sm_80",
    )


@functools.cache
def cp_async_commit() -> Instruction:
    """Return ``()``: the copies since the last commit become a group."""
    return Instruction(
        "tc_cp_async_commit", "", asm("cp.async.commit_group;"), "emu::cp_async_commit();",
        arch="sm_80",
    )  # fmt: skip


@functools.cache
def cp_async_wait(pending: int) -> Instruction:
    """Return ``()``: wait until all but the last ``pending`` groups of this thread arrived."""
    return Instruction(
        f"tc_cp_async_wait_{pending}", "", asm(f"cp.async.wait_group {pending};"),
        f"emu::cp_async_wait({pending});", arch="sm_80",
    )  # fmt: skip


@functools.cache
def cp_async_arrive(counts: bool = False) -> Instruction:
    """Return ``(void* barrier)``: arrive once all earlier copies of this thread have arrived.

    ``counts``: the arrival is added to those that the barrier expects.
    """
    form = "" if counts else ".noinc"
    return Instruction(
        f"tc_cp_async_arrive{'_counted' if counts else ''}", "void* barrier",
        asm(f"cp.async.mbarrier.arrive{form}.shared.b64 [%0];", (), [BAR]),
        f"emu::cp_async_arrive(barrier, {str(counts).lower()});", arch="sm_80",
    )  # fmt: skip


@functools.cache
def bulk_load() -> Instruction:
    """Return ``(void* dst, const void* src, int bytes, void* barrier)``: a copy by the TMA unit.

    Addresses and size are multiples of 16; the barrier is told the bytes.
    """
    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    return Instruction(
        "tc_bulk_load", "void* dst, const void* src, int bytes, void* barrier",
        asm(text, (), [DST, SRC, '"r"(bytes)', BAR]),
        "emu::bulk_load(dst, src, bytes, barrier);", arch="sm_90",
    )  # fmt: skip


@functools.cache
def bulk_store() -> Instruction:
    """Return ``(void* dst, const void* src, int bytes)``: shared to global, in a bulk group."""
    source = f'"r"({shared("src")})'
    return Instruction(
        "tc_bulk_store", "void* dst, const void* src, int bytes",
        asm(f"{SHARED_TO_GLOBAL} [%0], [%1], %2;", (), ['"l"(dst)', source, '"r"(bytes)']),
        "emu::bulk_store(dst, src, bytes);", arch="sm_90",
    )  # fmt: skip


@functools.cache
def bulk_commit() -> Instruction:
    """Return ``()``: the bulk (and TMA) stores since the last commit become a group."""
    return Instruction(
        "tc_bulk_commit", "", asm("cp.async.bulk.commit_group;"), "emu::bulk_commit();",
        arch="sm_90",
    )  # fmt: skip


@functools.cache
def bulk_wait(pending: int, only_reads: bool = False) -> Instruction:
    """Return ``()``: wait for all but the last ``pending`` bulk groups of this thread.

    ``only_reads``: only until their source in shared memory may be written again.
    """
    form = ".read" if only_reads else ""
    return Instruction(
        f"tc_bulk_wait{'_read' if only_reads else ''}_{pending}", "",
        asm(f"cp.async.bulk.wait_group{form} {pending};"),
        f"emu::bulk_wait({pending}, {str(only_reads).lower()});", arch="sm_90",
    )  # fmt: skip
