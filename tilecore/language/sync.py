"""Threads that wait for each other: T.sync_threads, T.sync_warp, T.sync_grid and TVM's spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilecore.errors import ScopeError, TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import Sync
from tilecore.ir.plain.named_barriers import ALL, ANY, ARRIVES, MEETS, MOST, WARP


def sync_threads(barrier_id: Any = None, arrive_count: Any = None) -> None:
    """Make all threads of the block wait for each other.

    Args:
        barrier_id: names a barrier of its own, at which only the threads that come there meet. A
            GPU has 15; for a branch, all of whose threads meet, it may be any number.
        arrive_count: how many those are; without it, all threads of the block. In a branch that
            not all threads take, both must be numbers that are known when the program is traced.

    Raises:
        TypeMismatch: a number that no barrier has, or not even one thread (TC202).
    """
    builder = current()
    number, count = int_value(barrier_id), int_value(arrive_count)
    if number is not None and number < 0:
        raise TypeMismatch(
            expected=f"a barrier from 1 to {MOST} (or 0, that of all threads) for T.sync_threads",
            found=str(number),
        )
    if count is not None and count < 1:
        raise TypeMismatch(
            expected="at least one thread at a barrier of T.sync_threads", found=str(count)
        )
    if barrier_id is None:
        builder.emit(Sync("block", builder.span))
    else:
        known = ANY if number is None else number
        builder.emit(Sync(MEETS, builder.span, known, ALL if count is None else count))


def named_barrier_arrive(barrier_id: Any, thread_count: Any) -> None:
    """Arrive at a named barrier without waiting; T.sync_threads(barrier_id, thread_count) waits.

    Args:
        barrier_id: 1 to 15; 0 is the barrier of all threads (T.sync_threads()).
        thread_count: how many threads fill the barrier, those that wait included; whole warps.

    Raises:
        TypeMismatch: the barrier or the count is no number known here, or out of range (TC202).
    """
    builder = current()
    number, count = int_value(barrier_id), int_value(thread_count)
    if number is None or not 0 < number <= MOST:
        raise TypeMismatch(
            expected=f"a barrier from 1 to {MOST}, known when the program is traced, for "
            "T.named_barrier_arrive", found=str(barrier_id),
        )  # fmt: skip
    if count is None or count < 1 or count % WARP:
        raise TypeMismatch(
            expected=f"a multiple of {WARP} threads, known when the program is traced, for "
            "T.named_barrier_arrive", found=str(thread_count),
        )  # fmt: skip
    builder.emit(Sync(ARRIVES, builder.span, number, count))


def sync_grid() -> None:
    """Make all blocks of the grid wait for each other.

    Tensors, tiles and what is private to a thread keep their values.

    Raises:
        ScopeError: inside a loop other than a single T.Parallel, or a branch (TC104).
    """
    builder = current()
    inner, outer = builder.frame, builder.frames[-2].kind
    if inner.kind != "kernel" and (inner.kind, outer) != ("parallel", "kernel"):
        raise ScopeError(
            message="T.sync_grid stands inside a loop or branch",
            hint="blocks run one after the other here; launch a T.Kernel per step instead",
        )
    builder.emit(Sync("grid", builder.span))


def sync_warp(mask: Any = None) -> None:
    """Make the threads of a warp wait for each other."""
    _ = mask
    builder = current()
    builder.emit(Sync("warp", builder.span))


def tvm_storage_sync(storage_scope: str, *_: Any) -> None:
    """Make threads wait for each other (TVM's spelling).

    Args:
        storage_scope: the memory through which they then see each other's writes: "warp",
            "shared" or "shared.dyn" (of a block), or "global" (of the grid).

    Raises:
        TypeMismatch: another memory (TC202).
        ScopeError: the grid, inside a loop or branch (TC104).
    """
    waits: dict[str, Callable[[], None]] = {
        "warp": sync_warp, "shared": sync_threads, "shared.dyn": sync_threads, "global": sync_grid
    }  # fmt: skip
    if storage_scope not in waits:
        expected = ", ".join(f'"{name}"' for name in waits)
        raise TypeMismatch(
            expected=f"one of {expected} for T.tvm_storage_sync", found=repr(storage_scope)
        )
    waits[storage_scope]()
