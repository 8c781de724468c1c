"""How each buffer of a kernel launch is used: one record per access, with its loops and ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from tilecore.ir.analysis import kept_axes
from tilecore.ir.arithmetic.bounds import NON_NEGATIVE, Interval, Known
from tilecore.ir.expr import Expr, Var, binary, const, int_value
from tilecore.ir.nodes import (
    Atomic,
    Buffer,
    Copy,
    Fill,
    For,
    Gemm,
    KernelLaunch,
    Let,
    Parallel,
    Reduce,
    Region,
    Scan,
    Seq,
    Stmt,
    Store,
    While,
)
from tilecore.ir.visitor import children, has_jump, loads

WRITES = ("copy-dst", "fill", "gemm-c", "fold-dst", "store", "atomic")  # roles of uses


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What surrounds a statement: loops, ranges of variables, let bindings."""

    loops: tuple[For, ...] = ()
    ranges: dict[Var, Interval] = field(default_factory=dict)
    lets: dict[Var, Expr] = field(default_factory=dict)
    conditional: bool = False  # under an if or while, or in a loop that may not run as written
    in_while: bool = False
    tops: dict[Var, Expr] = field(default_factory=dict)
    nest: Parallel | None = None  # the innermost parallel nest

    @property
    def known(self) -> Known:
        """What is known of the variables here."""
        return Known(self.ranges, self.tops, self.lets)

    def bounds(self, expr: Expr) -> Interval | None:
        """Return inclusive bounds of an integer expression, or None."""
        return self.known.bounds(expr)


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One access of ``buffer`` by ``stmt``. role: copy-src, copy-dst, fill, gemm-a, gemm-b, gemm-c,
    gemm-factors, fold-src, fold-dst, load, store, atomic.
    """

    buffer: Buffer
    role: str
    stmt: Stmt
    region: Region | None
    context: Context


def loop_range(start: Expr, stop: Expr, context: Context) -> Interval | None:
    """Return the inclusive range of a loop variable, or None where it is unknown."""
    low, high = context.bounds(start), context.bounds(stop)
    return None if low is None or high is None else (low[0], max(low[0], high[1] - 1))


def enter(stmt: Stmt, context: Context) -> Context:
    """Return the context inside ``stmt``."""
    ranges, tops = dict(context.ranges), dict(context.tops)
    match stmt:
        case KernelLaunch(block_vars=block_vars, grid=grid):
            for var, extent in zip(block_vars, grid, strict=True):
                found = loop_range(const(0), extent, context)
                top = NON_NEGATIVE[1] if found is None else min(found[1], NON_NEGATIVE[1])
                ranges[var] = (0, top)
                tops[var] = extent
            return replace(context, ranges=ranges, tops=tops)
        case Parallel(loop_vars=loop_vars, extents=extents):
            for var, extent in zip(loop_vars, extents, strict=True):
                found = loop_range(const(0), extent, context)
                ranges[var] = NON_NEGATIVE if found is None else found
                tops[var] = extent
            return replace(context, ranges=ranges, tops=tops, nest=stmt)
        case For(loop_var=var, start=start, stop=stop, step=step):
            found = loop_range(start, stop, context) if int_value(step) == 1 else None
            if found is not None:
                ranges[var] = found
            if (int_value(step) or 0) > 0:
                tops[var] = stop
            loops, partial = (*context.loops, stmt), context.conditional or has_jump(stmt.body)
            return replace(context, loops=loops, ranges=ranges, tops=tops, conditional=partial)
        case Seq():
            return context
        case _:
            in_while = context.in_while or isinstance(stmt, While)
            return replace(context, conditional=True, in_while=in_while)


def _own_uses(stmt: Stmt) -> Iterator[tuple[Buffer, str, Region | None]]:
    """Yield (buffer, role, region) of every access by ``stmt`` itself."""
    for load in loads(stmt):
        yield load.buffer, "load", None
    match stmt:
        case Copy(src=src, dst=dst):
            yield src.buffer, "copy-src", src
            yield dst.buffer, "copy-dst", dst
        case Fill(dst=dst):
            yield dst.buffer, "fill", dst
        case Gemm(a=a, b=b, c=c):
            yield a.buffer, "gemm-a", a
            yield b.buffer, "gemm-b", b
            yield c.buffer, "gemm-c", c
            for factors in stmt.factors:
                yield factors.buffer, "gemm-factors", factors
        case Reduce(src=src, dst=dst) | Scan(src=src, dst=dst):
            yield src.buffer, "fold-src", src
            yield dst.buffer, "fold-dst", dst
        case Store(buffer=buffer):
            yield buffer, "store", None
        case Atomic(buffer=buffer, prev=prev):
            yield buffer, "atomic", None
            if prev is not None:
                yield prev, "store", None
        case _:
            pass


def uses(stmt: Stmt, context: Context | None = None) -> Iterator[Use]:
    """Yield every use of every buffer below ``stmt``, in program order."""
    context = context or Context()
    for buffer, role, region in _own_uses(stmt):
        yield Use(buffer, role, stmt, region, context)
    if isinstance(stmt, Seq):
        for child in stmt.stmts:
            yield from uses(child, context)
            if isinstance(child, Let):
                context = replace(context, lets={**context.lets, child.var: child.value})
        return
    inner = enter(stmt, context)
    for child in children(stmt):
        yield from uses(child, inner)


def grouped(found: Iterable[Use]) -> dict[Buffer, list[Use]]:
    """Return the uses of each buffer, in their order."""
    by_buffer: dict[Buffer, list[Use]] = {}
    for use in found:
        by_buffer.setdefault(use.buffer, []).append(use)
    return by_buffer


def limit_of(region: Region, axis: int, context: Context) -> Expr | None:
    """Return how many elements of the region along ``axis`` lie inside the buffer; None: all.

    The result may exceed the extent or be negative; callers clamp it.
    """
    shape, offset, extent = region.buffer.shape[axis], region.offsets[axis], region.extents[axis]
    size, last = int_value(shape), context.bounds(binary("add", offset, extent))
    if size is not None and last is not None and last[1] <= size:
        return None
    return binary("sub", shape, offset)


def starts_inside(region: Region, context: Context) -> bool:
    """Return whether every offset is known to be >= 0, and inside the buffer on axes of size 1."""
    kept = kept_axes(region)
    for axis, offset in enumerate(region.offsets):
        bounds = context.bounds(offset)
        if bounds is None or bounds[0] < 0:
            return False
        if axis not in kept and not context.known.is_below(offset, region.buffer.shape[axis]):
            return False
    return True
