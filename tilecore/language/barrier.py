"""Barriers in shared memory (mbarriers): threads arrive, threads wait for a phase to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, ExprLike, Load, as_expr, cast, const, int_value
from tilecore.ir.indexing import whole
from tilecore.ir.nodes import Arrive, Buffer, Fill, Wait
from tilecore.language.kernel import launch_of

MOST_ARRIVALS = 2**20 - 1  # that a phase of an mbarrier counts (PTX ISA, mbarrier.init)


def alloc_barrier(arrive_count: int | Sequence[int]) -> Buffer:
    """Return an array of barriers: one, or one per entry of a list.

    Args:
        arrive_count: how many arrivals end a phase of each barrier.

    Raises:
        ScopeError: outside ``with T.Kernel(...)`` (TC104).
        TypeMismatch: not a positive number or a list of them (TC202).
    """
    return _barriers(arrive_count, of_cluster=False)


def alloc_cluster_barrier(arrive_count: int | Sequence[int]) -> Buffer:
    """Return an array of barriers that the blocks of a cluster can reach; see ``alloc_barrier``.

    In a launch with products of two blocks together (``T.tcgen05_gemm(use_2cta=True)``)
    ``T.tma_copy`` tells the barrier of the first block of the pair, which begins the products, of
    the bytes of both.
    """
    return _barriers(arrive_count, of_cluster=True)


def _barriers(arrive_count: int | Sequence[int], *, of_cluster: bool) -> Buffer:
    given: Any = arrive_count if isinstance(arrive_count, (list, tuple)) else [arrive_count]
    counts = [int_value(c) for c in given]
    if not counts or any(c is None or not 1 <= c <= MOST_ARRIVALS for c in counts):
        raise TypeMismatch(
            expected=f"a number of arrivals from 1 to {MOST_ARRIVALS}, or a list of them",
            found=arrive_count,
        )
    builder = current()
    buffer = Buffer(
        builder.take_hint("barrier"), (const(len(counts)),), DType("int32"), "shared",
        span=builder.span, arrive_counts=tuple(c for c in counts if c is not None),
        of_cluster=of_cluster,
    )  # fmt: skip
    builder.allocate(buffer)
    builder.emit(Fill(whole(buffer), const(0), builder.span))
    return buffer


def barrier_place(barrier: Any, what: str) -> tuple[Buffer, Expr]:
    """Return the array and the index that a barrier argument names.

    Raises:
        TypeMismatch: it is no barrier (TC202).
    """
    buffer = barrier.buffer if isinstance(barrier, Load) else barrier
    if not isinstance(buffer, Buffer) or buffer.arrive_counts is None:
        name = getattr(buffer, "name", repr(buffer))
        raise TypeMismatch(expected=f"a barrier of T.alloc_barrier for T.{what}", found=name)
    return buffer, barrier.indices[0] if isinstance(barrier, Load) else const(0)


def barrier_element(barrier: Any, what: str) -> Load:
    """Return the barrier that an argument names, as an element of its array.

    Raises:
        TypeMismatch: it is no barrier (TC202).
    """
    buffer, index = barrier_place(barrier, what)
    return Load(buffer, (index,), buffer.dtype)


def arrive(
    barrier: Any, what: str, once: bool, *, after_products: bool = False, in_pair: bool = False
) -> None:
    """Emit an arrival: of every thread that runs it, or one for all of them.

    ``in_pair``: one of the first block of a pair for all, at that barrier of both.
    """
    builder = current()
    buffer, index = barrier_place(barrier, what)
    builder.emit(Arrive(buffer, index, once, builder.span, after_products, in_pair=in_pair))


def mbarrier_wait_parity(mbarrier: Any, parity: ExprLike) -> None:
    """Wait until the phase of this parity that ran last is over.

    Phases are numbered from 0. A wait for parity 1 on a new barrier does not wait.

    Raises:
        TypeMismatch: not a barrier (TC202).
    """
    builder = current()
    buffer, index = barrier_place(mbarrier, "mbarrier_wait_parity")
    builder.emit(Wait(buffer, index, cast(as_expr(parity), "int32"), builder.span))


def barrier_wait(mbarrier: Any, parity: ExprLike = 0) -> None:
    """Wait until the phase of this parity that ran last is over."""
    mbarrier_wait_parity(mbarrier, parity)


def mbarrier_arrive(mbarrier: Any, cta_id: Any = None) -> None:
    """Arrive at a barrier, each thread that runs this once.

    Args:
        mbarrier: the barrier.
        cta_id: rank of the block of the cluster whose barrier it is; default: the own block.

    Raises:
        TypeMismatch: not a barrier (TC202).
    """
    rank = None if cta_id is None else cast(as_expr(cta_id), "int32")
    if launch_of("mbarrier_arrive").cluster_size == 1:
        rank = None
    buffer, index = barrier_place(mbarrier, "mbarrier_arrive")
    builder = current()
    builder.emit(Arrive(buffer, index, False, builder.span, rank=rank))


def barrier_arrive(mbarrier: Any) -> None:
    """Arrive at a barrier, each thread that runs this once."""
    arrive(mbarrier, "barrier_arrive", once=False)


def mbarrier_expect_tx(mbarrier: Any, tx: Any) -> None:
    """Announce bytes that a transfer will bring; transfers are complete at once here."""
    _ = tx
    barrier_place(mbarrier, "mbarrier_expect_tx")


def mbarrier_arrive_expect_tx(mbarrier: Any, tx: Any) -> None:
    """Arrive at a barrier and announce bytes."""
    _ = tx
    arrive(mbarrier, "mbarrier_arrive_expect_tx", once=False)


def cp_async_barrier_noinc(barrier: Any) -> None:
    """Arrive at a barrier once the copies of T.ptx_cp_async by this thread are complete."""
    arrive(barrier, "cp_async_barrier_noinc", once=False)


def tcgen05_mma_arrive(mbar: Any, arrive_2cta: bool = False) -> None:
    """Arrive at a barrier, once, when the products of T.tcgen05_gemm so far are complete.

    Args:
        mbar: the barrier.
        arrive_2cta: of products of two blocks: at this barrier of both. The first one arrives.

    Raises:
        TypeMismatch: not a barrier (TC202).
    """
    in_pair = bool(arrive_2cta)
    arrive(mbar, "tcgen05_mma_arrive", once=True, after_products=True, in_pair=in_pair)
