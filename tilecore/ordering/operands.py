"""Operands of instructions: pointers, and the shared memory that a matrix descriptor describes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecore.ordering.program import Array, Env, Expression, Lanes, Value, Wait

if TYPE_CHECKING:
    from tilecore.ordering.machine import Machine

CHUNK = 16  # bytes that no swizzle takes apart
ROW_BYTES = 32  # of an operand of one instruction along K


@dataclass(frozen=True, slots=True, eq=False)
class Pointer:
    """An address.

    Attributes:
        space: "shared", "local", "global" or "map".
        slot: of the local array or tensor.
        offset: bytes (of a local array: elements) from the begin of the space.
        rank: the block of the cluster, where it is another one's.
        size: bytes of the box, of a tensor map.
        is_assumed: whether it follows from elements that were taken for something: one that lies
            outside of the memory says nothing.
    """

    space: str
    slot: int = 0
    offset: Expression = lambda env: 0
    rank: Expression | None = None
    size: int = 0
    is_assumed: bool = False

    def shared(self, machine: Machine, env: Env) -> Array | None:
        """Return for each thread that runs the byte in the shared memory of the cluster."""
        lanes: Lanes = env[0]
        offset = self.offset(env)
        if offset is None:
            return None
        here = lanes.of(offset)
        if self.rank is not None:
            rank = self.rank(env)
            return None if rank is None else here + lanes.of(rank) * machine.program.shared_bytes
        if machine.program.blocks > 1:
            here = here + machine.origin[lanes.ids]
        return here


Operand = Pointer | Expression | None
Run = Callable[[Any, Env], Wait | None]


class FollowsFromData(Exception):
    """An address or argument that follows from data: nobody can say what is touched."""


def addresses(machine: Machine, pointer: Pointer, env: Env) -> Array:
    """Return the bytes in shared memory that a pointer means, by thread that runs.

    Raises:
        FollowsFromData: it follows from data.
    """
    found = pointer.shared(machine, env)
    if found is None:
        raise FollowsFromData
    return found


def number_of(value: Operand, env: Env) -> int:
    """Return an argument that all threads give alike.

    Raises:
        FollowsFromData: it follows from data.
    """
    assert not isinstance(value, Pointer)
    found = value(env) if value is not None else None
    if found is None:
        raise FollowsFromData
    return int(found[env[0].ids[0]]) if isinstance(found, np.ndarray) else int(found)


def numbers_of(value: Operand, env: Env) -> Array:
    """Return an argument of each thread that runs.

    Raises:
        FollowsFromData: it follows from data.
    """
    assert not isinstance(value, Pointer)
    found = value(env) if value is not None else None
    if found is None:
        raise FollowsFromData
    each: Array = env[0].of(found)
    return each


def masks_of(mask: Operand, env: Env) -> list[int]:
    """Return the blocks that each thread means, a bit each; 0: its own."""
    assert not isinstance(mask, Pointer)
    if mask is None:
        return [0] * len(env[0].ids)
    given = mask(env)
    if given is None:
        raise FollowsFromData
    found: list[int] = env[0].of(given).tolist()
    return found


def blocks_of(machine: Machine, thread: int, mask: int) -> list[int]:
    """Return how far the shared memory of the blocks of a mask is from that of a thread."""
    own, size = int(machine.block_of[thread]), machine.program.shared_bytes
    if not mask:
        return [0]
    return [(b - own) * size for b in range(machine.program.blocks) if mask >> b & 1]


def pair_of(machine: Machine, thread: int) -> tuple[int, int]:
    """Return the blocks of the pair that a thread's block is in: the first one, the other."""
    first = int(machine.block_of[thread]) // 2 * 2
    return first, first + 1


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A descriptor of a matrix in shared memory; adding to it moves its start by 16 bytes."""

    start: Value
    swizzle: int
    leading: int
    stride: int

    def __add__(self, other: Value) -> Descriptor:
        return Descriptor(self.start + other * CHUNK, self.swizzle, self.leading, self.stride)

    __radd__ = __add__


@functools.lru_cache(4096)
def chunks_of(
    start: int, swizzle: int, leading: int, stride: int, extent: int, itemsize: int, across_k: bool
) -> Array:
    """Return where the 16-byte pieces of an operand lie.

    Args:
        start: byte of the first element.
        swizzle: bytes that repeat, or 0.
        leading: bytes of the descriptor's first step.
        stride: bytes from 8 rows to the next 8.
        extent: rows along M or N.
        itemsize: bytes of an element.
        across_k: whether the operand is contiguous along M or N.

    Source: PTX ISA 9.0, section 9.7.15.5.1.2 (shared memory matrix layout).
    """
    if across_k:
        x, k = np.arange(0, extent, CHUNK // itemsize), np.arange(ROW_BYTES // itemsize)
    else:
        x, k = np.arange(extent), np.arange(0, ROW_BYTES // itemsize, CHUNK // itemsize)
    x, k = x[:, None], k[None, :]
    if not swizzle:
        byte = k * itemsize
        at = start + x // 8 * stride + byte // CHUNK * leading + x % 8 * CHUNK
        return np.unique(at // CHUNK)
    along, across = ((x if across_k else k) * itemsize, k if across_k else x)
    at = start + across // 8 * stride + across % 8 * swizzle
    at = at + (along // swizzle * leading + along % swizzle if across_k else along)
    at = at ^ (at >> 3 & (swizzle - CHUNK))
    return np.unique(at // CHUNK)
