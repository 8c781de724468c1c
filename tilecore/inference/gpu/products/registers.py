"""Registers of a thread: what fragments take, what warpgroups of sm_90 hand to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.distribution import Distribution
from tilecore.ir.nodes import Buffer

REGISTER_BITS = 32
MOST = 255  # of a thread (CUDA C++ Programming Guide, compute capabilities)
OF_MULTIPROCESSOR = 64 * 1024  # of sm_90 (the same table)
PRODUCER_THREADS = 128
# Threads that compute -> registers of a thread that computes, of one that issues copies. Together
# they have what the multiprocessor gives a block at its launch (64 K).
TRADED = {256: (240, 24), 384: (160, 32)}
MANY = 96  # of a thread's fragments
SPILLED = "are kept in memory for want of room"
NAMED = 4  # fragments, the largest ones


def held(fragments: Mapping[Buffer, Distribution]) -> int:
    """Return the registers that the fragments of a thread take."""
    return sum(
        -(-d.slots * max(b.dtype.bits, 8) // REGISTER_BITS)
        for b, d in fragments.items()
        if b.base is None
    )


def traded(threads: int, fragments: Mapping[Buffer, Distribution]) -> tuple[int, int] | None:
    """Return the registers that threads take over from those that issue copies, if they must.

    Where threads hold little, more blocks are resident without.
    """
    own = [(b, d) for b, d in fragments.items() if b.base is None]
    kept = sum(d.slots * max(1, b.dtype.itemsize // 4) for b, d in own)
    return TRADED.get(threads) if kept >= MANY else None


def of_thread(threads: int, fragments: Mapping[Buffer, Distribution]) -> int:
    """Return the registers that a thread has which computes with boxes that others ask for."""
    trade = traded(threads, fragments)
    usual = OF_MULTIPROCESSOR // (threads + PRODUCER_THREADS) // 8 * 8
    return min(MOST, usual if trade is None else trade[0])


def excesses(
    fragments: Mapping[Buffer, Distribution], threads: int, target: GpuTarget
) -> Iterator[str]:
    """Yield which fragments alone are more than a thread has registers, and what holds them."""
    for buffer, spread in fragments.items():
        mine = held({buffer: spread})
        most = _limit(threads, target)
        if mine <= most:
            continue
        fits = _holding(mine, threads, target)
        hint = f"threads={fits} can hold them" if fits else f"1/{-(-mine // most)} of the tile fits"
        yield (
            f"{buffer.name}: {mine} registers a thread, of at most {most} on "
            f"{target.name}: the rest is kept in memory, which is slow ({hint})"
        )


def spilled(
    kernel: str,
    size: int,
    fragments: Mapping[Buffer, Distribution],
    threads: int,
    target: GpuTarget,
) -> str:
    """Return which fragments are in registers where the assembler found too few of them.

    Args:
        kernel: its name.
        size: bytes of a thread's registers that it keeps in memory.
        fragments: of the launch.
        threads: of a block, those included that only copy.
        target: the GPU.
    """
    all_of = held(fragments)
    each = {b.name: held({b: spread}) for b, spread in fragments.items() if b.base is None}
    most = sorted(each.items(), key=lambda item: -item[1])[:NAMED]
    names = ", ".join(f"{name} {count}" for name, count in most)
    fits = _holding(all_of, threads, target) if all_of > _limit(threads, target) else None
    hint = f"; threads={fits} can hold them" if fits else ""
    return (
        f"{kernel}: {size} B of registers a thread {SPILLED}, which is slow: at most "
        f"{_limit(threads, target)} with {threads} threads on {target.name}, fragments take "
        f"{all_of} ({names}{hint})"
    )


def fill_multiprocessor(
    fragments: Mapping[Buffer, Distribution], threads: int, target: GpuTarget
) -> bool:
    """Return whether fragments of a block leave no registers for a second block."""
    return held(fragments) >= _limit(2 * threads, target)


def _limit(threads: int, target: GpuTarget) -> int:
    """Return the registers that each thread of a block may have."""
    return min(target.registers_per_thread, target.registers_per_block // threads // 8 * 8)


def _holding(registers: int, threads: int, target: GpuTarget) -> int | None:
    """Return how many threads hold what so many have in more registers than they may, or None."""
    more = (threads * factor for factor in (2, 4, 8))
    fits = (
        t for t in more
        if t <= target.threads_per_block and registers * threads // t <= _limit(t, target)
    )  # fmt: skip
    return next(fits, None)
