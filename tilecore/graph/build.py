"""build(): PrimFunc -> TileGraph, by one walk over the statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilecore.errors import TypeMismatch
from tilecore.graph.closed_form import ceildiv, free_vars, product, size_bytes, substitute, total
from tilecore.graph.describe import Touched, describe
from tilecore.graph.graph import Launch, TileGraph
from tilecore.graph.lengths import expected_trips
from tilecore.graph.nodes import Access, Loop, TileOp
from tilecore.ir.expr import Expr, Var, as_expr, binary, const, int_value
from tilecore.ir.nodes import (
    Alloc,
    Atomic,
    Buffer,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    KernelLaunch,
    Let,
    Parallel,
    PrimFunc,
    Reduce,
    Scan,
    Seq,
    SourceLaunch,
    Stmt,
    Store,
    While,
)
from tilecore.ir.plain.scaled_gemm import without_factors
from tilecore.ir.visitor import has_loads

LIVE_SCOPES = ("shared", "fragment", "local")


def build(func: PrimFunc) -> TileGraph:
    """Return the fused tile graph of ``func``.

    Every quantity is a closed form of the knobs and dynamic dims that ``func`` was traced with.
    Loop bounds that depend on the block (causal attention) are taken at the block in the middle of
    the grid, those that depend on data at what its tensors leave room for; a While counts as one
    trip.

    Raises:
        TypeMismatch: it launches CUDA source (TC202).
    """
    func = without_factors(func)
    for stmt in _flatten(func.body):
        if isinstance(stmt, SourceLaunch):
            raise TypeMismatch(
                expected="launches of tile operations, whose work and traffic are known",
                found=f"the CUDA source of kernel `{stmt.entry}`",
                hint="a program with T.CUDASourceCodeKernel can be compiled and timed, but not "
                "recommended for",
            ).at(stmt.span)
    launches = [s for s in _flatten(func.body) if isinstance(s, KernelLaunch)]
    return TileGraph(func, tuple(_build_launch(launch) for launch in launches))


def _flatten(stmt: Stmt) -> tuple[Stmt, ...]:
    if isinstance(stmt, Seq):
        return tuple(s for child in stmt.stmts for s in _flatten(child))
    return (stmt,)


def _build_launch(launch: KernelLaunch) -> Launch:
    walker = _Walker(launch)
    for stmt in _flatten(launch.body):
        walker.outermost = stmt
        walker.visit(stmt, ())
    return Launch(
        block_vars=launch.block_vars,
        grid=launch.grid,
        threads=launch.threads,
        ops=tuple(walker.ops),
        tiles=tuple(walker.tiles),
        live_bytes={scope: _live_bytes(launch.body, scope) for scope in LIVE_SCOPES},
    )


@dataclass(slots=True)
class _Walker:
    launch: KernelLaunch
    outermost: Stmt = field(init=False)
    ops: list[TileOp] = field(default_factory=list)
    tiles: list[Buffer] = field(default_factory=list)
    lets: dict[Var, Expr] = field(default_factory=dict)
    middles: dict[Var, Expr] = field(default_factory=dict)  # of loops, where trip counts ask

    def visit(self, stmt: Stmt, loops: tuple[Loop, ...]) -> None:
        """Record the tile ops of ``stmt``, which runs inside ``loops``."""
        if isinstance(stmt, Seq):
            for child in stmt.stmts:
                self.visit(child, loops)
        elif isinstance(stmt, For):
            self.visit(stmt.body, (*loops, self._loop(stmt)))
        elif isinstance(stmt, While):
            self.visit(stmt.body, loops)
        elif isinstance(stmt, If):
            self.visit(stmt.then_body, loops)
            if stmt.else_body is not None:
                self.visit(stmt.else_body, loops)
        elif isinstance(stmt, Alloc):
            self.tiles.append(stmt.buffer)
        elif isinstance(stmt, Let):
            self.lets[stmt.var] = substitute(stmt.value, self.lets)
        elif isinstance(stmt, (Copy, Fill, Gemm, Reduce, Scan, Parallel, Store, Atomic)):
            self._record(stmt, loops)

    def _loop(self, stmt: For) -> Loop:
        span = binary("sub", stmt.stop, stmt.start)
        middle = self.middles | {
            var: binary("floordiv", size, 2)
            for var, size in zip(self.launch.block_vars, self.launch.grid, strict=True)
        }
        trips = substitute(substitute(ceildiv(span, stmt.step), self.lets), middle)
        expected = expected_trips(stmt, self.launch, self.lets) if has_loads(trips) else None
        trips = trips if expected is None else expected
        half = binary("mul", binary("floordiv", trips, 2), stmt.step)
        first = substitute(substitute(stmt.start, self.lets), middle)
        self.middles[stmt.loop_var] = binary("add", first, half)
        stages = as_expr(stmt.annotations.get("num_stages", 1))
        ends = [substitute(e, self.lets) for e in (stmt.start, stmt.stop)]
        varies = expected is not None or bool(free_vars(*ends) & {*self.launch.block_vars})
        return Loop(
            stmt.loop_var, trips, stmt.kind, stages, expected is not None, stmt.span, varies
        )

    def _record(self, stmt: Stmt, loops: tuple[Loop, ...]) -> None:
        kind, reads, writes, work = describe(stmt)
        op = TileOp(
            index=len(self.ops),
            kind=kind,
            stmt=stmt,
            outermost=self.outermost,
            loops=loops,
            reads=tuple(self._access(r, loops) for r in reads),
            writes=tuple(self._access(w, loops) for w in writes),
            work=tuple(work),
        )
        self.ops.append(op)

    def _access(self, touched: Touched, loops: tuple[Loop, ...]) -> Access:
        region = touched.region
        offsets = tuple(substitute(o, self.lets) for o in region.offsets)
        used = free_vars(*offsets)
        sizes: dict[Var, Expr] = dict(
            zip(self.launch.block_vars, self.launch.grid, strict=True)
        ) | {loop.var: loop.trip_count for loop in loops}
        return Access(
            buffer=region.buffer,
            offsets=offsets,
            extents=region.extents,
            block_axes=frozenset(i for i, v in enumerate(self.launch.block_vars) if v in used),
            loops=tuple(loop for loop in loops if loop.var in used),
            axis_steps=tuple(_steps(o, sizes) for o in offsets),
            most=touched.most,
        )


def _steps(offset: Expr, sizes: Mapping[Var, Expr]) -> Expr:
    return product(sizes[v] for v in sizes if v in free_vars(offset))


def _live_bytes(stmt: Stmt, scope: str) -> Expr:
    """Return the most bytes of ``scope`` alive at once inside ``stmt``."""
    if isinstance(stmt, Alloc):
        buffer = stmt.buffer
        own = size_bytes(buffer.shape, buffer.dtype)
        return own if buffer.scope == scope else const(0)
    if isinstance(stmt, Seq):
        own_bytes = total(_live_bytes(s, scope) for s in stmt.stmts if isinstance(s, Alloc))
        inner: Expr = const(0)
        for s in stmt.stmts:
            if not isinstance(s, Alloc):
                inner = _larger(inner, _live_bytes(s, scope))
        return binary("add", own_bytes, inner)
    if isinstance(stmt, If):
        other = const(0) if stmt.else_body is None else _live_bytes(stmt.else_body, scope)
        return _larger(_live_bytes(stmt.then_body, scope), other)
    if isinstance(stmt, (For, While)):
        return _live_bytes(stmt.body, scope)
    return const(0)


def _larger(a: Expr, b: Expr) -> Expr:
    if int_value(a) == 0:
        return b
    return a if int_value(b) == 0 else binary("max", a, b)
