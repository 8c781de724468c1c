"""Copies and matrix products that run asynchronously on a GPU: complete at once on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend.builder import current
from tilecore.frontend.signature import tensor_spec
from tilecore.ir.expr import Expr, ExprLike, Load, Var, as_bool, as_expr, cast, const, int_value
from tilecore.ir.expr import select as if_then_else
from tilecore.ir.nodes import LAUNCHES, RUNS_ON, Annotate, Buffer, ClusterCopy, Copy, For
from tilecore.language.barrier import arrive, barrier_element
from tilecore.language.copy import copy, copy_tile
from tilecore.language.gemm import GemmWarpPolicy, emit_gemm, gemm
from tilecore.language.kernel import launch_of
from tilecore.language.pointer import Pointer

MOST_PENDING = 7  # groups of products that wgmma.wait_group leaves (CUTLASS asks for no more)
MIN_REGISTERS, MAX_REGISTERS = 24, 256  # of setmaxnreg (PTX ISA 9.7.19.5)


def tma_copy(
    src: Any, dst: Any, *, barrier: Any = None, cluster_mask: int | None = None, **options: Any
) -> None:
    """Copy a tile as ``T.copy`` does; it may be under way until the phase of ``barrier`` ends.

    The threads still arrive at the barrier themselves (``T.mbarrier_arrive``), after this; who
    reads the tile waits for the barrier. On sm_90 and later the tensor memory accelerator copies
    where it can, elsewhere the copy is complete at once. To a tensor it may be under way until
    ``T.tma_store_wait``, which the program calls before ``src`` is written again.

    Raises:
        ShapeMismatch: the extents of the two sides differ (TC201).
        TypeMismatch: a side is not a tile, or ``barrier`` is no barrier (TC202).
    """
    _check_hints("tma_copy", options)
    size = launch_of("tma_copy").cluster_size
    place = _place(barrier, "tma_copy")
    if cluster_mask is not None and size > 1:
        _copy_to(src, dst, place, mask=_blocks(cluster_mask, size))
        return
    copy_tile(src, dst, {RUNS_ON: True} if barrier is None else {}, place)


def tma_store_wait(count: Any = 0, read: bool = True) -> None:
    """Wait for all copies of ``T.tma_copy`` to tensors but the last ``count``.

    Args:
        count: how many may still be under way.
        read: until the tiles have been read; else until the tensors have been written.

    Raises:
        TypeMismatch: not a known number, or a negative one (TC202).
    """
    known = int_value(count)
    if known is None or known < 0:
        raise TypeMismatch(
            expected="T.tma_store_wait(number of copies that may still run)", found=count
        )
    builder = current()
    builder.emit(Annotate("wait_stores", (known, bool(read)), builder.span))


def async_copy(src: Any, dst: Any, **options: Any) -> None:
    """Copy a tile as ``T.copy`` does, without a wait; see T.ptx_wait_group.

    Raises:
        ShapeMismatch: the extents of the two sides differ (TC201).
        TypeMismatch: a side is not a tile (TC202).
    """
    _copy_with_hints("async_copy", src, dst, options)


def copy_cluster(
    src: Any,
    dst: Any,
    *,
    dst_block: Any = None,
    cluster_mask: int | None = None,
    remote_barrier: Any = None,
    **options: Any,
) -> None:
    """Copy a tile into other blocks of the cluster.

    Args:
        src: where to read; with ``cluster_mask`` a tensor.
        dst: a shared tile.
        dst_block: rank of the block whose ``dst`` is written.
        cluster_mask: the blocks that get what the one of the lowest rank among them reads, a bit
            each; the others read their own.
        remote_barrier: of ``dst_block``: told, once, when the copy is complete.
        options: hints, which change speed only.

    Raises:
        ShapeMismatch: the extents of the two sides differ (TC201).
        TypeMismatch: a side is not a tile, or a block is not in the cluster (TC202).
    """
    _check_hints("copy_cluster", options)
    size = launch_of("copy_cluster").cluster_size
    if dst_block is not None and cluster_mask is not None:
        raise TypeMismatch(expected="dst_block or cluster_mask", found="both")
    rank = None if dst_block is None else int_value(dst_block)
    if rank is not None and not 0 <= rank < size:
        raise TypeMismatch(expected=f"a block of a cluster of {size}", found=f"block {rank}")
    if size == 1 or (dst_block is None and cluster_mask is None):
        copy(src, dst)
        if remote_barrier is not None:
            arrive(remote_barrier, "copy_cluster", once=True)
        return
    barrier = _place(remote_barrier, "copy_cluster")
    if dst_block is not None:
        _copy_to(src, dst, barrier, block=cast(as_expr(dst_block), "int32"))
    else:
        _copy_to(src, dst, barrier, mask=_blocks(cluster_mask, size))


def _place(barrier: Any, what: str) -> Load | None:
    return None if barrier is None else barrier_element(barrier, what)


def _blocks(mask: Any, size: int) -> int:
    """Return the mask of blocks of a cluster.

    Raises:
        TypeMismatch: not a mask of blocks that there are (TC202).
    """
    value = int_value(mask)
    if value is None or not 0 < value < 1 << size:
        raise TypeMismatch(expected=f"a mask of a cluster of {size} blocks", found=f"{mask}")
    return value


def _copy_to(
    src: Any, dst: Any, barrier: Load | None, block: Expr | None = None, mask: int = 0
) -> None:
    """Emit a copy into blocks of the cluster."""
    builder = current()
    with builder.open("loop") as frame:
        copy(src, dst)
    (made,) = frame.body().stmts
    if not isinstance(made, Copy) or made.dst.buffer.scope != "shared":
        raise TypeMismatch(expected="a shared tile to copy to", found=getattr(dst, "name", dst))
    if block is None and made.src.buffer.scope != "global":
        raise TypeMismatch(expected="a tensor to copy from", found=made.src.buffer.name)
    builder.emit(ClusterCopy(made, block, mask, barrier, builder.span))


_HINTS = (
    "annotations", "coalesced_width", "eviction_policy", "leader_scope_threads", "loop_layout",
)  # fmt: skip


def _copy_with_hints(what: str, src: Any, dst: Any, options: dict[str, Any]) -> None:
    _check_hints(what, options)
    copy(src, dst)


def _check_hints(what: str, options: dict[str, Any]) -> None:
    unknown = sorted(set(options) - set(_HINTS))
    if unknown:
        expected = f"keywords of T.{what} (also accepted: {', '.join(_HINTS)})"
        raise TypeMismatch(expected=expected, found=", ".join(unknown))


# --- element pointers ------------------------------------------------------------------------


def ptx_cp_async(
    dst_access_ptr: Pointer,
    src_access_ptr: Pointer,
    num_elems: Any,
    predicate: ExprLike | None = None,
) -> None:
    """Copy a few elements of a row, each thread its own; zeros where ``predicate`` does not hold.

    Raises:
        TypeMismatch: not two pointers of T.access_ptr, or not a known number (TC202).
    """
    count = int_value(num_elems)
    pointers = (dst_access_ptr, src_access_ptr)
    if count is None or not all(isinstance(p, Pointer) for p in pointers):
        expected = "T.ptx_cp_async(T.access_ptr(...), T.access_ptr(...), number)"
        raise TypeMismatch(expected=expected, found=f"{pointers}, {num_elems}")
    builder, lane = current(), Var("lane")
    value = src_access_ptr.load(lane)
    if predicate is not None:
        value = if_then_else(as_bool(predicate), value, cast(const(0), value.dtype))
    with builder.open("loop") as frame:
        dst_access_ptr.store(lane, value)
    bounds = (const(0), const(count), const(1))
    builder.emit(For(lane, *bounds, "vectorized", frame.body(), span=builder.span))


# --- matrix products -------------------------------------------------------------------------


def wgmma_gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: Any = False,
    **options: Any,
) -> None:
    """Compute what ``T.gemm`` computes, without a wait where warpgroups multiply (sm_90).

    Who reads ``C`` or writes ``A`` or ``B`` waits for it without being told; before the program
    tells other threads that ``A`` or ``B`` may be written again, it calls ``T.wait_wgmma``.

    Raises:
        ShapeMismatch: M, N or K differ between the tiles (TC201).
        TypeMismatch: an argument is not a tile, or a keyword is unknown (TC202).
    """
    options.setdefault("wg_wait", -1)
    gemm(A, B, C, transpose_A, transpose_B, policy, clear_accum, **options)


def wait_wgmma(pending: Any) -> None:
    """Wait for all products of ``T.wgmma_gemm`` but the last ``pending``.

    Raises:
        TypeMismatch: not a known number, or a negative one (TC202).
    """
    count = int_value(pending)
    if count is None or count < 0:
        raise TypeMismatch(
            expected="T.wait_wgmma(number of products that may still run)", found=pending
        )
    builder = current()
    builder.emit(Annotate("wait_products", min(count, MOST_PENDING), builder.span))


warpgroup_wait = wait_wgmma


def tcgen05_gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: Any = False,
    *,
    mbar: Any = None,
    use_2cta: bool = False,
    **options: Any,
) -> None:
    """Compute what ``T.gemm`` computes, then arrive once at the barrier ``mbar``.

    With ``use_2cta`` the blocks of ranks 2 i and 2 i + 1 of a cluster multiply together (sm_100):
    ``A`` and ``C`` hold the rows of the block, 64 or a multiple of 128, ``B`` half of the columns
    of ``C``, those of the first block before those of the other. Both blocks may call it: the first
    one begins the product, when ``T.cluster_sync`` or a barrier of its own tells it that the tiles
    of both are there, and arrives at ``mbar`` of both.

    Raises:
        ShapeMismatch: M, N or K differ between the tiles (TC201).
        TypeMismatch: an argument is not a tile, or ``mbar`` is no barrier (TC202).
    """
    kept = (bool(transpose_A), bool(transpose_B), policy, clear_accum)
    emit_gemm(A, B, C, kept, mbar, options, is_async=True, in_pair=bool(use_2cta))


tcgen05_mma = tcgen05_gemm


def alloc_tmem(shape: Any, dtype: Any) -> Buffer:
    """Return a tile of the tensor memory of a block; its contents are undefined.

    Where there is no tensor memory, or the program uses the tile otherwise than products and copies
    of all its rows do, it is a shared tile.

    Raises:
        ScopeError: outside ``with T.Kernel(...)`` (TC104).
        TypeMismatch: a bad extent or element type (TC202).
    """
    builder = current()
    spec = tensor_spec(shape, dtype, least=1)
    tile = Buffer(
        builder.take_hint("tmem"), spec.shape, spec.dtype, "shared", span=builder.span,
        in_tensor_memory=True,
    )  # fmt: skip
    return builder.allocate(tile)


# --- registers -------------------------------------------------------------------------------


def set_max_nreg(reg_count: Any, is_inc: Any) -> None:
    """Say how many registers each thread of a role of whole warpgroups needs from here on.

    On sm_90 and later the warpgroups hand registers to each other; elsewhere it changes nothing.

    Args:
        reg_count: a multiple of 8 from 24 to 256.
        is_inc: whether these are more than before (1) or fewer (0).

    Raises:
        TypeMismatch: not such numbers (TC202).
    """
    count, grows = int_value(reg_count), int_value(is_inc)
    is_count = count is not None and count % 8 == 0 and MIN_REGISTERS <= count <= MAX_REGISTERS
    if not is_count or grows not in (0, 1):
        raise TypeMismatch(
            expected=f"T.set_max_nreg(multiple of 8 from {MIN_REGISTERS} to {MAX_REGISTERS}, "
            "0 or 1)",
            found=f"{reg_count}, {is_inc}",
        )
    builder = current()
    builder.emit(Annotate("registers", (count, bool(grows)), builder.span))


def inc_max_nreg(reg_count: Any) -> None:
    """Say that each thread of a role needs more registers: ``T.set_max_nreg(reg_count, 1)``."""
    set_max_nreg(reg_count, 1)


def dec_max_nreg(reg_count: Any) -> None:
    """Say that each thread of a role needs fewer registers: ``T.set_max_nreg(reg_count, 0)``."""
    set_max_nreg(reg_count, 0)


def annotate_producer_reg_dealloc(reg_count: Any = 24) -> None:
    """Say that a role that moves tiles needs few registers."""
    set_max_nreg(reg_count, 0)


def annotate_consumer_reg_alloc(reg_count: Any = 240) -> None:
    """Say that a role that computes needs many registers."""
    set_max_nreg(reg_count, 1)


def pdl_trigger() -> None:
    """Let the launch behind this one begin (programmatic dependent launch), where it has pdl_sync.

    It begins once all blocks have come by here, or have ended: from sm_90 on, elsewhere later.
    """
    builder = current()
    builder.emit(Annotate(LAUNCHES, "trigger", builder.span))


def pdl_sync() -> None:
    """Let this launch begin before the ones before have ended; it waits for them at its beginning.

    From sm_90 on; elsewhere launches follow each other. A launch is on its way meanwhile.
    """
    builder = current()
    builder.emit(Annotate(LAUNCHES, "wait", builder.span))


# --- what changes nothing --------------------------------------------------------------------


def _without_effect(name: str, reason: str) -> Callable[..., None]:
    def nothing(*arguments: Any, **options: Any) -> None:
        _ = (arguments, options)
        current()

    nothing.__name__ = nothing.__qualname__ = name
    nothing.__doc__ = f"Do nothing: {reason}."
    return nothing


_COMPLETE = "copies and products are complete when their statement is"
_REGISTERS = "how a GPU divides its registers among warps"
fence_proxy_async = _without_effect("fence_proxy_async", "memory is coherent")
tcgen05_before_thread_sync = _without_effect("tcgen05_before_thread_sync", "memory is coherent")
tcgen05_after_thread_sync = _without_effect("tcgen05_after_thread_sync", "memory is coherent")
warpgroup_fence_operand = _without_effect("warpgroup_fence_operand", "memory is coherent")
warpgroup_arrive = _without_effect("warpgroup_arrive", _COMPLETE)
warpgroup_commit_batch = _without_effect("warpgroup_commit_batch", _COMPLETE)
tma_store_arrive = _without_effect("tma_store_arrive", "every copy is a group of its own")
ptx_commit_group = _without_effect("ptx_commit_group", _COMPLETE)
ptx_wait_group = _without_effect("ptx_wait_group", _COMPLETE)
cp_async_commit = _without_effect("cp_async_commit", _COMPLETE)
cp_async_wait = _without_effect("cp_async_wait", _COMPLETE)
deallocate_tmem = _without_effect("deallocate_tmem", "a tile lives as long as its block")
no_set_max_nreg = _without_effect("no_set_max_nreg", _REGISTERS)
disable_warp_group_reg_alloc = _without_effect("disable_warp_group_reg_alloc", _REGISTERS)
