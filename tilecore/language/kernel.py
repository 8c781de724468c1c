"""Programs and launches: T.prim_func, T.macro, T.Kernel."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, overload

from tilecore.errors import (
    InvalidConfig,
    ScopeError,
    ShapeMismatch,
    SourceUnavailable,
    TypeMismatch,
)
from tilecore.frontend.builder import Builder, Frame, current
from tilecore.frontend.loops import integer
from tilecore.frontend.trace import Ref, macro, resolve_annotations, trace_prim_func
from tilecore.ir.expr import INT32, Expr, ExprLike, Var, as_expr, const, int_value
from tilecore.ir.nodes import Alloc, KernelLaunch, PrimFunc, Seq, Stmt
from tilecore.ir.plain.early_return import without_returns
from tilecore.ir.plain.grid_sync import parts_between_syncs
from tilecore.ir.plain.kept_tiles import Places
from tilecore.ir.plain.named_barriers import with_groups
from tilecore.ir.plain.private import with_private_fragments
from tilecore.ir.plain.private_nests import with_private_nests

__all__ = ["Kernel", "KernelFrame", "Ref", "macro", "prim_func"]
BLOCK_NAMES = ("bx", "by", "bz")
THREAD_NAMES = ("tx", "ty", "tz")
DEFAULT_THREADS = 128


@overload
def prim_func(fn: Callable[..., Any], **options: Any) -> PrimFunc: ...
@overload
def prim_func(fn: None = None, **options: Any) -> Callable[[Callable[..., Any]], PrimFunc]: ...
def prim_func(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Return the program that the decorated function describes, traced at once.

    Args:
        fn: a function whose parameters are annotated with T.Tensor(shape, dtype) or an element
            type and whose body holds one or more ``with T.Kernel(...)``.
        options: accepted for compatibility (``private``), without effect.

    Raises:
        SourceUnavailable: the source of the function cannot be read (TC103).
        TileError: whatever the program does wrong, at the place where it does it.
    """
    local_names = sys._getframe(1).f_locals
    if fn is None:
        return lambda f: _trace(f, local_names)
    return _trace(fn, local_names)


def _trace(fn: Callable[..., Any], local_names: Mapping[str, Any]) -> PrimFunc:
    if not isinstance(fn, FunctionType):
        raise SourceUnavailable(name=repr(fn), hint="decorate a function written with `def`")
    return trace_prim_func(fn, resolve_annotations(fn, local_names))


class KernelFrame:
    """``with T.Kernel(...) as (bx, by)``: the statements inside run once per block."""

    def __init__(
        self,
        grid: tuple[Expr, ...],
        threads: tuple[Expr, ...],
        cluster_dims: tuple[int, ...] = (),
    ) -> None:
        self.grid = grid
        self.threads = threads
        self.cluster_dims = cluster_dims
        self.names: tuple[str, ...] = BLOCK_NAMES[: len(grid)]
        self.block_vars: tuple[Var, ...] = ()
        self.thread_vars: tuple[Var, ...] = ()  # empty until the program asks for its thread
        self.reducer: Any = None  # of the enclosing T.attr(T.comm_reducer(...), ...)
        self.random: Any = None  # the stream that T.rng_init has chosen
        self._open: tuple[Builder, AbstractContextManager[Frame], Frame] | None = None

    def with_names(self, names: Sequence[str]) -> KernelFrame:
        """Return this launch with its block indices named as the program names them."""
        if len(names) == len(self.grid):
            self.names = tuple(names)
        elif len(names) > 1:
            raise ShapeMismatch(
                what="block indices of T.Kernel",
                expected=f"{len(self.grid)}, one per grid axis",
                found=len(names),
            )
        return self

    def __enter__(self) -> Any:
        builder = current()
        if builder.find("kernel", "parallel", "while", "then", "else") is not None:
            raise ScopeError(
                message="T.Kernel stands inside another T.Kernel, a while or a branch",
                hint="launch kernels one after the other at the top of the program",
            )
        if builder.loose is not None:
            raise builder.loose
        builder.unopened.pop(self, None)
        block_vars = tuple(Var(n, e.dtype) for n, e in zip(self.names, self.grid, strict=True))
        builder.block_vars = block_vars
        context = builder.open("kernel")
        frame = context.__enter__()
        frame.launch, self.block_vars, self.thread_vars = self, block_vars, ()
        self._open = (builder, context, frame)
        return block_vars[0] if len(block_vars) == 1 else block_vars

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._open is not None
        builder, context, frame = self._open
        context.__exit__(kind, error, trace)
        builder.block_vars = ()
        if kind is None:
            for stmt in self.around(frame.body()):
                builder.emit(stmt)

    def around(self, body: Seq) -> list[Stmt]:
        """Return the launches that run ``body``: one more for each T.sync_grid in it.

        Before them stand the workspaces of tiles that keep their content meanwhile.
        """
        whole: Stmt = body
        if self.thread_vars:
            whole = with_private_fragments(with_private_nests(body))
        sizes = [int_value(t) for t in self.threads]
        whole = with_groups(whole, self.thread_vars, sizes)
        assert isinstance(whole, Seq)
        places = Places(self.block_vars, self.grid, self.thread_vars, self.threads)
        workspaces, parts = parts_between_syncs(whole, places)
        found: list[Stmt] = [Alloc(buffer, buffer.span) for buffer in workspaces]
        for part in parts:
            cluster = self.cluster_dims if self.cluster_size > 1 else ()
            own, names = without_returns(part), (self.block_vars, self.grid, self.threads)
            found.append(KernelLaunch(*names, own, body.span, self.thread_vars, cluster))
        return found

    @property
    def cluster_size(self) -> int:
        """The number of blocks in a cluster."""
        return math.prod(self.cluster_dims)

    def widen(self, axis: int, extent: Expr, is_thread: bool) -> None:
        """Set the extent of an axis; those before it that have none have 1."""
        old = self.threads if is_thread else self.grid
        sizes = [*old, *(const(1) for _ in range(axis + 1 - len(old)))]
        sizes[axis] = extent
        if not is_thread:
            missing = BLOCK_NAMES[len(self.block_vars) : len(sizes)]
            self.grid = tuple(sizes)
            self.block_vars += tuple(Var(name, INT32) for name in missing)
            return
        self.threads = tuple(sizes)
        if self.thread_vars:
            missing = THREAD_NAMES[len(self.thread_vars) : len(sizes)]
            self.thread_vars += tuple(Var(name, INT32) for name in missing)

    def thread_var(self, dim: int) -> Var:
        """Return threadIdx of an axis; from now on the program is one written per thread."""
        if not self.thread_vars:
            names = THREAD_NAMES[: len(self.threads)]
            self.thread_vars = tuple(Var(name, INT32) for name in names)
        return self.thread_vars[dim]


def Kernel(
    *blocks: ExprLike,
    threads: ExprLike | Sequence[ExprLike] | None = None,
    prelude: str | None = None,
    cluster_dims: Any = None,
) -> KernelFrame:
    """Launch a grid of 1 to 3 axes of independent blocks.

    Args:
        blocks: number of blocks along x, y, z; without any, one block.
        threads: GPU threads per block (default 128); a hint on a CPU.
        prelude: accepted for compatibility; C text has no meaning on this target.
        cluster_dims: blocks of a cluster along x, y, z, which run together on sm_90 and later;
            what reaches into other blocks of it is rejected elsewhere.

    Returns:
        A context manager that gives the block index variables (one Var for one axis).

    Raises:
        ShapeMismatch: more than 3 axes (TC201).
        TypeMismatch: an axis is not an integer (TC202).
        InvalidConfig: an axis of the block has no thread (TC303).
        ScopeError: outside of a tile program (TC104).
    """
    _ = prelude
    if len(blocks) > 3:
        raise ShapeMismatch(what="grid of T.Kernel", expected="1 to 3 axes", found=len(blocks))
    grid = tuple(integer(b, "number of blocks") for b in blocks or (1,))
    count = DEFAULT_THREADS if threads is None else threads
    shape = tuple(as_expr(t) for t in (count if isinstance(count, (tuple, list)) else (count,)))
    known = [n for n in map(int_value, shape) if n is not None]
    if min(known, default=1) < 1:
        raise InvalidConfig(
            knob="threads", value=count, expected="at least one thread along each axis"
        )
    builder, launch = current(), KernelFrame(grid, shape, cluster_of(cluster_dims))
    builder.unopened[launch] = ScopeError(
        message="T.Kernel stands without `with`", span=builder.span,
        hint="write `with T.Kernel(...) as bx:`, and what blocks do inside of it",
    )  # fmt: skip
    return launch


def ClusterKernel(
    *blocks: ExprLike, cluster_dims: Any, threads: Any = None, prelude: str | None = None
) -> KernelFrame:
    """Launch a grid whose blocks form clusters; see ``Kernel``."""
    return Kernel(*blocks, threads=threads, prelude=prelude, cluster_dims=cluster_dims)


def cluster_of(dims: Any) -> tuple[int, ...]:
    """Return the blocks of a cluster along x, y, z, as numbers."""
    given = dims if isinstance(dims, (tuple, list)) else (1,) if dims is None else (dims,)
    sizes = [int_value(d) for d in given]
    if any(s is None or s < 1 for s in sizes) or len(sizes) > 3:
        raise TypeMismatch(
            expected="cluster_dims as positive numbers, along at most 3 axes", found=repr(dims)
        )
    return tuple(s for s in sizes if s is not None)


def launch_of(what: str) -> KernelFrame:
    """Return the launch that is open.

    Raises:
        ScopeError: there is none (TC104).
    """
    frame = current().find("kernel") or current().frames[0]
    if frame.launch is None:
        raise ScopeError(
            message=f"T.{what} stands outside T.Kernel", hint="call it inside `with T.Kernel(...)`"
        )
    launch: KernelFrame = frame.launch
    return launch


def bind_axis(tag: str, extent: ExprLike) -> Var:
    """Return the index along an axis of the grid or block, as TVM binds it by name.

    Outside T.Kernel the axis becomes one of the launch that the rest of the program is.

    Args:
        tag: "blockIdx.x", "threadIdx.y", ...
        extent: blocks or threads along it; those of T.Kernel inside of one.

    Raises:
        TypeMismatch: no such axis, or another extent than it has (TC202).
        ScopeError: the program has a T.Kernel, and this stands outside (TC104).
    """
    builder, size = current(), integer(extent, f"extent of {tag}")
    kind, _, letter = tag.partition(".")
    if kind not in ("blockIdx", "threadIdx") or letter not in ("x", "y", "z"):
        raise TypeMismatch(expected="blockIdx or threadIdx with .x, .y or .z", found=repr(tag))
    axis, is_thread = "xyz".index(letter), kind == "threadIdx"
    if builder.find("kernel") is not None:
        launch = launch_of("launch_thread")
    else:
        builder.needs_kernel(f"T.launch_thread({tag!r}) stands outside T.Kernel", "move it inside")
        launch = builder.frames[0].launch or KernelFrame((), (const(1),))
        builder.frames[0].launch = launch
        launch.widen(0, launch.grid[0] if launch.grid else const(1), is_thread=False)
        launch.widen(axis, size, is_thread)
    extents = launch.threads if is_thread else launch.grid
    if axis >= len(extents):
        axes = ", ".join(f"{kind}.{known}" for known in "xyz"[: len(extents)])
        raise TypeMismatch(expected=f"an axis of the launch ({axes})", found=repr(tag))
    if int_value(extents[axis]) != int_value(size):
        raise TypeMismatch(expected=f"the extent {extents[axis]} of {tag}", found=str(size))
    return launch.thread_var(axis) if is_thread else launch.block_vars[axis]
