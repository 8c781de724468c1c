"""Programs written per thread: thread and block indices, barriers, shuffles, votes.

Once a kernel asks for its thread index, everything in it but tile operations runs once per thread,
and arrays of T.alloc_local and variables of T.alloc_var are private to each thread.
"""

from __future__ import annotations

from typing import Any

from tilecore.errors import PredicateMismatch, TypeMismatch
from tilecore.frontend.builder import Builder, current
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    Expr,
    ExprLike,
    Load,
    as_bool,
    as_expr,
    binary,
    cast,
    const,
    int_value,
)
from tilecore.ir.nodes import Buffer, Exchange, Store
from tilecore.language.kernel import KernelFrame, launch_of

WARP = 32
EVERY_LANE = 0xFFFFFFFF
ALL_LANES = (EVERY_LANE, -1, (1 << 64) - 1)  # -1 of int32, all of a wavefront
WARPGROUP = 128


def thread_kernel(what: str) -> tuple[Builder, KernelFrame]:
    """Return the builder and the launch that ``T.what`` stands in.

    Raises:
        ScopeError: outside T.Kernel (TC104).
    """
    return current(), launch_of(what)


def _axis(items: tuple[Any, ...], dim: int, what: str) -> Any:
    if not 0 <= dim < len(items):
        raise TypeMismatch(expected=f"an axis from 0 to {len(items) - 1} for T.{what}", found=dim)
    return items[dim]


# --- indices ---------------------------------------------------------------------------------


def get_thread_binding(dim: int = 0) -> Expr:
    """Return threadIdx of an axis.

    Raises:
        ScopeError: outside T.Kernel (TC104).
        TypeMismatch: the block has no such axis (TC202).
    """
    _, launch = thread_kernel("get_thread_binding")
    _axis(launch.threads, dim, "get_thread_binding")
    return launch.thread_var(dim)


def get_thread_bindings() -> list[Expr]:
    """Return threadIdx of all axes of the block."""
    _, launch = thread_kernel("get_thread_bindings")
    return [launch.thread_var(dim) for dim in range(len(launch.threads))]


def get_thread_extent(dim: int = 0) -> Any:
    """Return the threads along an axis."""
    _, launch = thread_kernel("get_thread_extent")
    extent = _axis(launch.threads, dim, "get_thread_extent")
    value = int_value(extent)
    return extent if value is None else value


def get_thread_extents() -> list[Any]:
    """Return the threads along all axes."""
    return [
        get_thread_extent(d) for d in range(len(thread_kernel("get_thread_extents")[1].threads))
    ]


def get_block_binding(dim: int = 0) -> Expr:
    """Return blockIdx of an axis."""
    found: Expr = _axis(thread_kernel("get_block_binding")[1].block_vars, dim, "get_block_binding")
    return found


def get_block_bindings() -> list[Expr]:
    """Return blockIdx of all axes."""
    return list(thread_kernel("get_block_bindings")[1].block_vars)


def get_block_extent(dim: int = 0) -> Expr:
    """Return the number of blocks along an axis."""
    found: Expr = _axis(thread_kernel("get_block_extent")[1].grid, dim, "get_block_extent")
    return found


def get_block_extents() -> list[Expr]:
    """Return the number of blocks along all axes."""
    return list(thread_kernel("get_block_extents")[1].grid)


def _linear_thread() -> Expr:
    _, launch = thread_kernel("get_lane_idx")
    total: Expr = const(0)
    for dim in reversed(range(len(launch.threads))):
        total = total * launch.threads[dim] + launch.thread_var(dim)
    return total


def get_lane_idx(warp_size: int = WARP) -> Expr:
    """Return the position of the thread in its warp."""
    return _linear_thread() % warp_size


def get_warp_idx(warp_size: int = WARP) -> Expr:
    """Return the number of the thread's warp in the block."""
    return _linear_thread() // warp_size


get_warp_idx_sync = get_warp_idx


def get_warp_group_idx(warp_size: int = WARP, warps_per_group: int = 4) -> Expr:
    """Return the number of the thread's warpgroup in the block."""
    return _linear_thread() // (warp_size * warps_per_group)


def shuffle_elect(thread_extent: int = 0) -> Expr:
    """Return whether this is the first thread of each ``thread_extent`` threads (0: the block)."""
    thread = _linear_thread()
    return binary("eq", thread % thread_extent if thread_extent else thread, 0)


# --- exchanges -------------------------------------------------------------------------------


def _exchange(op: str, args: tuple[Expr, ...], width: int, dtype: DType) -> Load:
    builder, launch = thread_kernel(op)
    launch.thread_var(0)
    buffer = Buffer(
        builder.take_hint(op), (const(1),), dtype, "local", is_var=True, span=builder.span
    )
    builder.allocate(buffer)
    builder.emit(Exchange(op, buffer, args, width, builder.span))
    return Load(buffer, (const(0),), dtype)


def _shuffle(op: str, value: ExprLike, lane: ExprLike, width: Any, mask: Any) -> Load:
    known = int_value(width)
    if known is None or known < 1:
        raise TypeMismatch(expected=f"a width of 1 or more for T.{op}", found=width)
    given, distance = as_expr(value), int_value(lane)
    if op != "shfl" and distance is not None and not 0 <= distance < known:
        raise TypeMismatch(
            expected=f"a distance from 0 to {known - 1} for T.{op}, within the {known} lanes of a "
            "group", found=distance,
        )  # fmt: skip
    return _exchange(op, (given, as_expr(lane), *_lanes(op, mask)), known, given.dtype)


def _lanes(op: str, mask: Any) -> tuple[Expr, ...]:
    """Return the mask of an exchange, if it names fewer than all lanes.

    Raises:
        TypeMismatch: not a mask of the lanes of a warp (TC202).
    """
    known = None if mask is None else int_value(mask)
    if mask is None or known in ALL_LANES:
        return ()
    if known is not None:
        if not 0 < known < EVERY_LANE:
            raise TypeMismatch(expected=f"a mask of {WARP} lanes for T.{op}", found=mask)
        return (const(known, "uint32"),)
    given = as_expr(mask)
    if not given.dtype.is_integer:
        raise TypeMismatch(expected=f"a mask of {WARP} lanes for T.{op}", found=given.dtype)
    return (cast(given, "uint32"),)


def shfl_xor(value: ExprLike, delta: ExprLike, width: Any = WARP, mask: Any = None) -> Load:
    """Return ``value`` of the thread whose lane differs in the bits of ``delta``.

    Outside of the group it is the own one.
    """
    return _shuffle("shfl_xor", value, delta, width, mask)


def shfl_up(value: ExprLike, delta: ExprLike, width: Any = WARP, mask: Any = None) -> Load:
    """Return ``value`` of the thread ``delta`` lanes below, or the own one."""
    return _shuffle("shfl_up", value, delta, width, mask)


def shfl_down(value: ExprLike, delta: ExprLike, width: Any = WARP, mask: Any = None) -> Load:
    """Return ``value`` of the thread ``delta`` lanes above, or the own one."""
    return _shuffle("shfl_down", value, delta, width, mask)


def shfl_sync(value: ExprLike, src_lane: ExprLike, width: Any = WARP, mask: Any = None) -> Load:
    """Return ``value`` of the thread at a lane."""
    return _shuffle("shfl", value, src_lane, width, mask)


def tvm_warp_shuffle(
    mask: Any, value: ExprLike, lane: ExprLike, width: Any, warp_size: Any = WARP
) -> Load:
    """Return ``value`` of the thread at a lane (TVM's spelling)."""
    _ = warp_size
    return _shuffle("shfl", value, lane, width, mask)


def tvm_warp_shuffle_up(
    mask: Any, value: ExprLike, delta: ExprLike, width: Any, warp_size: Any = WARP
) -> Load:
    """Return ``value`` of the thread ``delta`` lanes below (TVM's spelling)."""
    _ = warp_size
    return _shuffle("shfl_up", value, delta, width, mask)


def tvm_warp_shuffle_down(
    mask: Any, value: ExprLike, delta: ExprLike, width: Any, warp_size: Any = WARP
) -> Load:
    """Return ``value`` of the thread ``delta`` lanes above (TVM's spelling)."""
    _ = warp_size
    return _shuffle("shfl_down", value, delta, width, mask)


def tvm_warp_activemask() -> Expr:
    """Return the mask of the active lanes: all."""
    return const(0xFFFFFFFF, "uint32")


activemask = tvm_warp_activemask


def _vote(
    name: str, op: str, predicate: ExprLike, width: int, dtype: str, mask: Any = None
) -> Load:
    given = as_expr(predicate)
    if given.dtype.is_float:
        raise PredicateMismatch(name=name, found=given.dtype)
    return _exchange(op, (as_bool(given), *_lanes(op, mask)), width, DType(dtype))


def any_sync(predicate: ExprLike, mask: Any = None) -> Load:
    """Return 1 in every thread of a warp where the predicate holds in any of them, else 0."""
    return _vote("any_sync", "any", predicate, WARP, "int32", mask)


def all_sync(predicate: ExprLike, mask: Any = None) -> Load:
    """Return 1 in every thread of a warp where the predicate holds in all of them, else 0."""
    return _vote("all_sync", "all", predicate, WARP, "int32", mask)


def ballot_sync(predicate: ExprLike, mask: Any = None) -> Load:
    """Return the lanes of the warp where the predicate holds, one bit each."""
    return _vote("ballot_sync", "ballot", predicate, WARP, "uint64", mask)


ballot = ballot_sync


def syncthreads_and(predicate: ExprLike) -> Load:
    """Return 1 in every thread of the block if the predicate holds in all of them, else 0."""
    return _vote("syncthreads_and", "all", predicate, 0, "int32")


def syncthreads_or(predicate: ExprLike) -> Load:
    """Return 1 in every thread of the block if the predicate holds in any of them, else 0."""
    return _vote("syncthreads_or", "any", predicate, 0, "int32")


def syncthreads_count(predicate: ExprLike) -> Load:
    """Return in how many threads of the block the predicate holds."""
    return _vote("syncthreads_count", "count", predicate, 0, "int32")


def _warp_reduce(op: str, value: ExprLike) -> Load:
    given = as_expr(value)
    if given.dtype.is_float and op.startswith("bit"):
        raise TypeMismatch(expected=f"integers for T.warp_reduce_{op}", found=given.dtype)
    return _exchange(op, (given,), WARP, given.dtype)


def warp_reduce_sum(value: ExprLike) -> Load:
    """Return the sum over the warp, in every thread of it."""
    return _warp_reduce("sum", value)


def warp_reduce_max(value: ExprLike) -> Load:
    """Return the largest value in the warp."""
    return _warp_reduce("max", value)


def warp_reduce_min(value: ExprLike) -> Load:
    """Return the smallest value in the warp."""
    return _warp_reduce("min", value)


def warp_reduce_bitand(value: ExprLike) -> Load:
    """Return the bits that all values in the warp have."""
    return _warp_reduce("bitand", value)


def warp_reduce_bitor(value: ExprLike) -> Load:
    """Return the bits that any value in the warp has."""
    return _warp_reduce("bitor", value)


# --- TVM's spellings -------------------------------------------------------------------------


def evaluate(value: Any) -> None:
    """Accept an expression that is evaluated for its effect: it has had it."""
    _ = value


def dp4a(a: Any, b: Any, c: Any) -> None:
    """Add the product of four int8 pairs, from ``a`` and ``b`` on, to the int32 ``c``."""
    builder = current()
    first, second, total = (_element(x) for x in (a, b, c))
    value: Expr = total
    for i in range(4):
        value = value + cast(_next(first, i), "int32") * cast(_next(second, i), "int32")
    builder.emit(Store(total.buffer, total.indices, cast(value, total.dtype), builder.span))


def _element(place: Any) -> Load:
    if isinstance(place, Load):
        return place
    if isinstance(place, Buffer):
        return Load(place, tuple(const(0) for _ in place.shape), place.dtype)
    raise TypeMismatch(expected="an array or an element of one", found=repr(place))


def _next(place: Load, distance: int) -> Load:
    *outer, last = place.indices
    return Load(place.buffer, (*outer, last + distance), place.dtype)
