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

    def limit(count: int) -> int:
        return min(target.registers_per_thread, target.registers_per_block // count)

    for buffer, spread in fragments.items():
        mine = held({buffer: spread})
        if mine <= limit(threads):
            continue
        more = (threads * factor for factor in (2, 4, 8))
        fits = [
            t for t in more if t <= target.threads_per_block and mine * threads // t <= limit(t)
        ]
        part = -(-mine // limit(threads))
        hint = f"threads={fits[0]} can hold them" if fits else f"1/{part} of the tile fits"
        yield (
            f"{buffer.name}: {mine} registers a thread, of at most {limit(threads)} on "
            f"{target.name}: the rest is kept in memory, which is slow ({hint})"
        )
