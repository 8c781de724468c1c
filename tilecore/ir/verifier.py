"""The verifier: says whether a tile program is well formed, and lists every fault it has."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tilecore.errors import (
    InvalidConfig,
    InvalidProgram,
    ScopeError,
    ShapeMismatch,
    SourceSpan,
    TileError,
    TypeMismatch,
)
from tilecore.ir import nodes
from tilecore.ir.analysis import reads, sets
from tilecore.ir.arithmetic.polynomial import is_equal, product
from tilecore.ir.cuda_source import launch_faults
from tilecore.ir.dims import dimensions, extents_of, unbound
from tilecore.ir.expr import Binary, Const, Expr, Load, Var, int_value
from tilecore.ir.fold import check_fold
from tilecore.ir.gemm_shape import check_gemm_shape
from tilecore.ir.indexing import format_shape, same_extents
from tilecore.ir.lane_matrix import fault_of
from tilecore.ir.nodes import Buffer, PrimFunc, Region, Stmt
from tilecore.ir.packed_rules import param_faults, stmt_faults
from tilecore.ir.plain.scaled_gemm import check_chunks
from tilecore.ir.visitor import expressions, regions, walk, walk_expr

_TILE_OPS = (nodes.Copy, nodes.ChunkCopy, nodes.Fill, nodes.Gemm, nodes.Reduce, nodes.Scan)
UNBOUND = "symbols get their values from shapes of tensors, or are parameters (n: T.int32)"
MOST_TURNS = 2**31 - 1
_DIVISIONS, _SHIFTS = ("div", "floordiv", "mod"), ("shl", "shr")
_IN_KERNEL = (
    nodes.Parallel, nodes.Store, nodes.Atomic, nodes.Sync, *nodes.EXCHANGES, nodes.Arrive,
    nodes.Wait,
)  # fmt: skip


def faults(
    func: PrimFunc, symbols: Collection[Var] = (), *, has_versions: bool = False
) -> list[TileError]:
    """Return every fault of ``func`` in program order, each placed at its source line.

    Args:
        func: the program.
        symbols: symbolic knobs that may stay open.
        has_versions: launches may stand in versions (``ir.versions``), as the passes make them.
    """
    checker = _Checker(func, symbols, has_versions)
    checker.check_params(func)
    checker.check_dimensions(func)
    checker.visit(func.body)
    checker.check_undefined_tiles(func)
    return checker.found


def verify(
    func: PrimFunc, symbols: Collection[Var] = (), *, has_versions: bool = False
) -> PrimFunc:
    """Return ``func`` if it is well formed; arguments as ``faults`` takes them.

    Raises:
        TileError: the fault, of its own class, if there is one.
        InvalidProgram: the list of faults, if there are several (TC203).
    """
    found = faults(func, symbols, has_versions=has_versions)
    if len(found) == 1:
        raise found[0]
    if found:
        lines = [f"  {e.code} {e.message}" + (f" ({e.span})" if e.span else "") for e in found]
        raise InvalidProgram(
            count=len(found), name=func.name, faults="\n".join(lines), span=found[0].span
        )
    return func


class _Checker:
    def __init__(self, func: PrimFunc, symbols: Collection[Var], has_versions: bool) -> None:
        self.has_versions = has_versions
        self.found: list[TileError] = []
        self.span: SourceSpan = func.span
        self.context: list[Stmt] = []
        self.ended: set[int] = set()  # what went out of scope
        self.live: set[int] = {id(s) for s in symbols} | {id(p) for p in func.params}
        for buffer in func.buffers:
            for extent in extents_of(buffer):
                self.live |= {id(v) for v in walk_expr(extent) if isinstance(v, Var)}
        self.dimensions = {id(s) for s in symbols} | {id(v) for v in dimensions(func)}

    def fault(self, error: TileError) -> None:
        """Record a fault at the current statement."""
        self.found.append(error.at(self.span))

    @contextmanager
    def scope(self, *items: Var) -> Iterator[None]:
        """Make ``items`` known inside; what is declared inside ends with it."""
        before = set(self.live)
        self.live |= {id(i) for i in items}
        yield
        self.ended |= self.live - before
        self.live = before

    def check_params(self, func: PrimFunc) -> None:
        """Report parameters that cannot be passed."""
        self.found += [e.at(func.span) for p in func.params for e in param_faults(p)]

    def check_dimensions(self, func: PrimFunc) -> None:
        """Report symbols in shapes that no axis of a tensor parameter gives a value."""
        known = self.dimensions | {id(p) for p in func.params}
        for buffer in func.buffers:
            for symbol in unbound(buffer, known):
                known.add(id(symbol))
                self.found.append(
                    ScopeError(
                        message=f"dimension `{symbol.name}` in the shape of `{buffer.name}` "
                        "follows from no axis of a tensor",
                        hint=f"give a tensor the axis `{symbol.name}`, or pass it as a scalar",
                        span=buffer.span,
                    )
                )

    # --- statements -----------------------------------------------------------------------

    def visit(self, stmt: Stmt) -> None:
        """Check ``stmt`` and what is inside it."""
        if isinstance(stmt, nodes.Seq):
            for child in stmt.stmts:
                self.visit(child)
            return
        self.span = stmt.span if stmt.span.is_known else self.span
        self.check_place(stmt)
        for expr in expressions(stmt):
            self.check_expr(expr)
        for region in regions(stmt):
            self.check_region(region)
        for error in stmt_faults(stmt):
            self.fault(error)
        handler = _CHECKS.get(type(stmt))
        if handler is not None:
            handler(self, stmt)

    def inside(self, stmt: Any, *items: Var) -> None:
        """Check the body of a compound statement."""
        self.context.append(stmt)
        with self.scope(*items):
            self.visit(stmt.body)
        self.context.pop()

    def launch(self, stmt: nodes.KernelLaunch) -> None:
        for extent in (*stmt.grid, *stmt.threads):
            self.check_integer(extent, "grid extent or thread count")
        for extent in stmt.grid:
            blocks = int_value(extent)
            if blocks is not None and not 0 <= blocks <= MOST_TURNS:
                self.fault(
                    InvalidConfig(
                        knob="grid", value=f"{blocks} blocks", expected=f"0 to {MOST_TURNS} blocks",
                        hint="let a block do more" if blocks > 0 else "",
                    )
                )  # fmt: skip
        self.check_pairs(stmt)
        self.inside(stmt, *stmt.block_vars, *stmt.thread_vars)

    def source_launch(self, stmt: nodes.SourceLaunch) -> None:
        for extent in (*stmt.grid, *stmt.threads):
            self.check_integer(extent, "grid extent or thread count")
        for argument in stmt.arguments:
            if isinstance(argument, Buffer):
                self.check_buffer(argument)
        for error in launch_faults(stmt):
            self.fault(error)

    def alloc(self, stmt: nodes.Alloc) -> None:
        buffer = stmt.buffer
        if buffer.base is not None:
            self.check_buffer(buffer.base)
            self.check_view(buffer, buffer.base)
        if buffer.address is not None:
            self.check_integer(buffer.address, f"address of `{buffer.name}`")
        self.live.add(id(buffer))

    def check_view(self, view: Buffer, base: Buffer) -> None:
        """Check that a view covers just the memory of its base."""
        own, whole = (product((*b.shape, b.dtype.bits)) for b in (view, base))
        if view.scope != base.scope or base.strides is not None or not is_equal(own, whole):
            self.fault(
                ShapeMismatch(
                    what=f"view `{view.name}` of `{base.name}`",
                    expected=f"the size of {base.dtype}{format_shape(base.shape)}, contiguous",
                    found=f"{view.dtype}{format_shape(view.shape)}",
                )
            )

    def let(self, stmt: nodes.Let) -> None:
        if stmt.var.dtype != stmt.value.dtype:
            self.fault(TypeMismatch(expected=f"a {stmt.var.dtype} value", found=stmt.value.dtype))
        self.live.add(id(stmt.var))

    def parallel(self, stmt: nodes.Parallel) -> None:
        for extent in stmt.extents:
            self.check_integer(extent, "loop extent")
            self.check_count(extent)
        self.inside(stmt, *stmt.loop_vars)

    def for_loop(self, stmt: nodes.For) -> None:
        for bound in (stmt.start, stmt.stop, stmt.step):
            self.check_integer(bound, "loop bound")
            self.check_count(bound)
        if int_value(stmt.step) == 0:
            self.fault(TypeMismatch(expected="a step other than 0", found=0))
        self.inside(stmt, stmt.loop_var)

    def check_count(self, bound: Expr) -> None:
        """Report a bound that generated code, which counts in int32, never gets to."""
        found = int_value(bound)
        if found is not None and abs(found) > MOST_TURNS:
            self.fault(
                TypeMismatch(
                    expected=f"a loop bound that an int32 can count to (at most {MOST_TURNS})",
                    found=found,
                    hint="share its turns out among loops in each other, or blocks",
                )
            )

    def while_loop(self, stmt: nodes.While) -> None:
        self.check_bool(stmt.cond)
        self.inside(stmt)

    def if_stmt(self, stmt: nodes.If) -> None:
        self.check_bool(stmt.cond)
        self.context.append(stmt)
        for body in (stmt.then_body, stmt.else_body):
            if body is not None:
                with self.scope():
                    self.visit(body)
        self.context.pop()

    def copy(self, stmt: nodes.Copy) -> None:
        if not same_extents(stmt.src.extents, stmt.dst.extents):
            self.fault(
                ShapeMismatch(
                    what=f"copy from `{stmt.src.buffer.name}` to `{stmt.dst.buffer.name}`",
                    expected=format_shape(stmt.src.extents),
                    found=format_shape(stmt.dst.extents),
                )
            )

    def cluster_copy(self, stmt: nodes.ClusterCopy) -> None:
        self.visit(stmt.copy)

    def chunk_copy(self, stmt: nodes.ChunkCopy) -> None:
        try:
            check_chunks(stmt)
        except (ShapeMismatch, TypeMismatch) as error:
            self.fault(error)

    def fill(self, stmt: nodes.Fill) -> None:
        if stmt.value.dtype == "bool" and stmt.dst.buffer.dtype.is_float:
            self.fault(TypeMismatch(expected=f"a {stmt.dst.buffer.dtype} value", found="a bool"))

    def gemm(self, stmt: nodes.Gemm) -> None:
        try:
            check_gemm_shape(
                stmt.a, stmt.b, stmt.c, stmt.transpose_a, stmt.transpose_b, in_pair=stmt.in_pair
            )
        except ShapeMismatch as error:
            self.fault(error)
        a, b, c = (r.buffer for r in (stmt.a, stmt.b, stmt.c))
        if stmt.factors:
            self.factors(stmt)
        else:
            self.operands(a, b, c)
        if c.scope == "global":
            self.fault(
                ScopeError(
                    message=f"T.gemm accumulates into the global tensor `{c.name}`",
                    hint="accumulate into T.alloc_fragment(...) and T.copy it out",
                )
            )
        self.check_bool(stmt.clear_accum)

    def factors(self, stmt: nodes.Gemm) -> None:
        for factors, sharing in zip(stmt.factors, stmt.sharing, strict=True):
            tile = factors.buffer
            if tile.dtype != "uint32" or len(factors.extents) < 2:
                what = f"rows of uint32 words in `{tile.name}`, the factors of a product"
                found = f"{tile.dtype} {format_shape(factors.extents)}"
                self.fault(TypeMismatch(expected=what, found=found))
            if sharing < 16 or sharing % 16:
                what = "a multiple of 16 elements that share a factor"
                self.fault(TypeMismatch(expected=what, found=sharing))

    def operands(self, a: Buffer, b: Buffer, c: Buffer) -> None:
        both_fp8 = a.dtype.startswith("float8") and b.dtype.startswith("float8")
        both_bytes = {a.dtype, b.dtype} == {"int8", "uint8"}
        if a.dtype != b.dtype and not both_fp8 and not both_bytes:
            what = f"one element type for `{a.name}` and `{b.name}` in T.gemm"
            self.fault(TypeMismatch(expected=what, found=f"{a.dtype} and {b.dtype}"))
        if a.dtype.is_float != c.dtype.is_float or c.dtype == "bool":
            what = f"an accumulator `{c.name}` of the kind of {a.dtype}"
            self.fault(TypeMismatch(expected=what, found=c.dtype))

    def reduce(self, stmt: nodes.Reduce) -> None:
        try:
            check_fold(stmt.op, stmt.src, stmt.dst, stmt.axes)
        except (ShapeMismatch, TypeMismatch) as error:
            self.fault(error)

    def scan(self, stmt: nodes.Scan) -> None:
        if "bool" in (stmt.src.buffer.dtype, stmt.dst.buffer.dtype):
            self.fault(TypeMismatch(expected="numbers for a running fold", found="bool"))
        if not same_extents(stmt.src.extents, stmt.dst.extents):
            self.fault(
                ShapeMismatch(
                    what=f"running fold of `{stmt.src.buffer.name}` in `{stmt.dst.buffer.name}`",
                    expected=format_shape(stmt.src.extents),
                    found=format_shape(stmt.dst.extents),
                )
            )

    def store(self, stmt: nodes.Store | nodes.Atomic) -> None:
        self.check_buffer(stmt.buffer)
        self.check_indices(stmt.buffer, stmt.indices)
        if isinstance(stmt, nodes.Atomic) and stmt.prev is not None:
            self.check_buffer(stmt.prev)

    def pad(self, stmt: nodes.Pad) -> None:
        self.check_buffer(stmt.buffer)
        if stmt.buffer.scope != "global":
            message = f"`{stmt.buffer.name}` is a tile; only tensors have values outside"
            self.fault(ScopeError(message=message))
        if stmt.value.dtype != stmt.buffer.dtype:
            self.fault(TypeMismatch(expected=f"a {stmt.buffer.dtype}", found=stmt.value.dtype))
        if not isinstance(stmt.value, Const):
            self.fault(TypeMismatch(expected="a number known while tracing", found=stmt.value))

    def check(self, stmt: nodes.Assert) -> None:
        self.check_bool(stmt.cond)

    def exchange(self, stmt: nodes.Exchange) -> None:
        self.check_buffer(stmt.dst)
        if stmt.op not in (*nodes.SHUFFLES, *nodes.COMBINERS):
            known = ", ".join((*nodes.SHUFFLES, *nodes.COMBINERS))
            self.fault(TypeMismatch(expected=f"an exchange {known}", found=stmt.op))
        if stmt.op in nodes.SHUFFLES:
            self.check_integer(stmt.args[1], "lane or distance")
        if stmt.op in ("any", "all", "ballot", "count"):
            self.check_bool(stmt.args[0])

    def lane_gemm(self, stmt: nodes.LaneGemm) -> None:
        for region in regions(stmt):
            self.check_buffer(region.buffer)
            if region.buffer.scope != "local" or region.buffer.ndim != 1:
                name = region.buffer.name
                self.fault(TypeMismatch(expected="an array of T.alloc_local", found=f"`{name}`"))
        found = fault_of(stmt)
        if found is not None:
            self.fault(TypeMismatch(expected=found[0], found=found[1]))

    def barrier(self, stmt: nodes.Arrive | nodes.Wait) -> None:
        self.check_buffer(stmt.buffer)
        self.check_indices(stmt.buffer, (stmt.index,))
        if stmt.buffer.arrive_counts is None:
            name = stmt.buffer.name
            self.fault(TypeMismatch(expected="a barrier of T.alloc_barrier", found=f"`{name}`"))
        if any(isinstance(s, nodes.Parallel) for s in self.context):
            self.fault(
                ScopeError(
                    message=f"barrier `{stmt.buffer.name}` is used inside T.Parallel",
                    hint="threads arrive and wait outside of it",
                )
            )
        if isinstance(stmt, nodes.Wait):
            self.check_integer(stmt.parity, "parity")

    def check_pairs(self, launch: nodes.KernelLaunch) -> None:
        """Check that the blocks of a cluster are pairs where two of them work together."""
        both = (nodes.Gemm, nodes.Arrive)
        first = next((s for s in walk(launch.body) if isinstance(s, both) and s.in_pair), None)
        if first is None or math.prod(launch.cluster) % 2 == 0:
            return
        error = InvalidConfig(
            knob="cluster_dims", value=launch.cluster or 1,
            expected="an even number of blocks in a cluster, for products of two of them together",
            hint="T.ClusterKernel(..., cluster_dims=2); use_2cta=False multiplies block by block",
        )  # fmt: skip
        self.found.append(error.at(first.span))

    def jump(self, stmt: nodes.Jump) -> None:
        kinds = (nodes.For, nodes.While, nodes.Parallel, nodes.KernelLaunch)
        around = next((s for s in reversed(self.context) if isinstance(s, kinds)), None)
        if not isinstance(around, (nodes.For, nodes.While)):
            self.fault(
                ScopeError(
                    message=f"`{stmt.word}` stands outside a serial loop",
                    hint="T.Parallel has no order to break; use T.serial or `if`",
                )
            )

    # --- parts ----------------------------------------------------------------------------

    def check_place(self, stmt: Stmt) -> None:
        """Check that the statement may stand where it stands."""
        kinds = [type(s) for s in self.context]
        name = type(stmt).__name__
        around = [k for k in kinds if not (self.has_versions and k is nodes.If)]
        if isinstance(stmt, (nodes.KernelLaunch, nodes.SourceLaunch)) and around:
            self.fault(ScopeError(message="a kernel launch stands inside another statement"))
        is_tile = isinstance(stmt, nodes.Alloc) and stmt.buffer.scope != "global"
        needs_kernel = is_tile or isinstance(stmt, (*_TILE_OPS, *_IN_KERNEL))
        if needs_kernel and nodes.KernelLaunch not in kinds:
            self.fault(ScopeError(message=f"{name} stands outside T.Kernel"))
        is_pipeline = isinstance(stmt, nodes.For) and stmt.kind == "pipelined"
        if nodes.Parallel in kinds and (isinstance(stmt, _TILE_OPS) or is_pipeline):
            self.fault(
                ScopeError(
                    message=f"{'T.Pipelined' if is_pipeline else name} stands inside T.Parallel",
                    hint="tile operations are parallel themselves; put them outside T.Parallel",
                )
            )

    def check_expr(self, expr: Expr) -> None:
        for node in walk_expr(expr):
            if isinstance(node, Var) and id(node) not in self.live:
                ended = id(node) in self.ended
                if ended:
                    self.fault(
                        ScopeError(message=f"`{node.name}` is used after its scope has ended")
                    )
                else:
                    self.fault(ScopeError(message=f"`{node.name}` has no value here", hint=UNBOUND))
            elif isinstance(node, Load):
                self.check_buffer(node.buffer)
                self.check_indices(node.buffer, node.indices)
            elif isinstance(node, Binary) and node.dtype.is_integer:
                self.check_second(node)

    def check_second(self, node: Binary) -> None:
        """Check a known divisor or number of bits, which no hardware gives a meaning to.

        Nor do targets raise integers to a power.
        """
        second, bits = int_value(node.b), node.dtype.bits
        if node.op == "pow":
            what, hint = f"the {node.dtype} `{node.a}`", "multiply, or convert it first"
            self.fault(TypeMismatch(expected="a float for `**`", found=what, hint=hint))
        if node.op in _DIVISIONS and second == 0:
            self.fault(TypeMismatch(expected=f"a divisor of `{node.a}` other than 0", found=0))
        elif node.op in _SHIFTS and second is not None and not 0 <= second < bits:
            expected = f"a shift of the {node.dtype} `{node.a}` by 0 to {bits - 1} bits"
            self.fault(TypeMismatch(expected=expected, found=second))

    def check_buffer(self, buffer: Buffer) -> None:
        if id(buffer) not in self.live:
            ended = id(buffer) in self.ended
            reason = "is used after its scope has ended" if ended else "does not exist here"
            self.fault(ScopeError(message=f"`{buffer.name}` ({buffer.scope}) {reason}"))

    def check_indices(self, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
        if len(indices) != buffer.ndim:
            what = f"indices of `{buffer.name}`"
            self.fault(ShapeMismatch(what=what, expected=buffer.ndim, found=len(indices)))
            return
        for axis, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            self.check_integer(index, f"index of `{buffer.name}`")
            self.check_inside(buffer, axis, int_value(index), 1, int_value(extent))

    def check_region(self, region: Region) -> None:
        buffer = region.buffer
        self.check_buffer(buffer)
        if len(region.offsets) != buffer.ndim or len(region.extents) != buffer.ndim:
            what = f"axes of the region of `{buffer.name}`"
            self.fault(ShapeMismatch(what=what, expected=buffer.ndim, found=len(region.offsets)))
            return
        parts = zip(region.offsets, region.extents, buffer.shape, strict=True)
        for axis, (offset, extent, size) in enumerate(parts):
            self.check_integer(offset, f"offset into `{buffer.name}`")
            self.check_inside(
                buffer, axis, int_value(offset), int_value(extent) or 1, int_value(size)
            )

    def check_inside(
        self, buffer: Buffer, axis: int, start: int | None, extent: int, size: int | None
    ) -> None:
        """Check a known index against a known extent; only global tensors have safe edges."""
        if buffer.scope == "global" or start is None or size is None:
            return
        if start < 0 or start + extent > size:
            self.fault(
                ShapeMismatch(
                    what=f"index of `{buffer.name}`, axis {axis}",
                    expected=f"0 to {size - 1}",
                    found=str(start) if extent == 1 else f"{start} to {start + extent - 1}",
                )
            )

    def check_integer(self, expr: Expr, what: str) -> None:
        if not expr.dtype.is_integer:
            self.fault(
                TypeMismatch(expected=f"an integer {what}", found=f"`{expr}` ({expr.dtype})")
            )

    def check_bool(self, expr: Expr) -> None:
        if expr.dtype != "bool":
            self.fault(TypeMismatch(expected="a condition", found=f"`{expr}` ({expr.dtype})"))

    def check_undefined_tiles(self, func: PrimFunc) -> None:
        """Report tiles that are read although nothing ever gives them a value."""
        written: set[int] = {id(b) for b in func.buffers}
        written |= {
            id(s.buffer)
            for s in walk(func.body)
            if isinstance(s, nodes.Alloc) and s.buffer.address is not None
        }
        readers: dict[int, tuple[Buffer, SourceSpan]] = {}
        for stmt in walk(func.body):
            written.update(id(b.root) for b in sets(stmt))
            for buffer in reads(stmt):
                readers.setdefault(id(buffer), (buffer, stmt.span))
        for key, (buffer, span) in readers.items():
            if key not in written and id(buffer.root) not in written:
                self.span = span
                message = f"`{buffer.name}` is read but nothing ever sets it"
                self.fault(ScopeError(message=message, hint="T.clear or T.copy into it first"))


_CHECKS: Mapping[type[Stmt], Callable[[_Checker, Any], None]] = {
    nodes.KernelLaunch: _Checker.launch,
    nodes.SourceLaunch: _Checker.source_launch,
    nodes.Alloc: _Checker.alloc,
    nodes.Let: _Checker.let,
    nodes.Parallel: _Checker.parallel,
    nodes.For: _Checker.for_loop,
    nodes.While: _Checker.while_loop,
    nodes.If: _Checker.if_stmt,
    nodes.Copy: _Checker.copy,
    nodes.ClusterCopy: _Checker.cluster_copy,
    nodes.ChunkCopy: _Checker.chunk_copy,
    nodes.Fill: _Checker.fill,
    nodes.Gemm: _Checker.gemm,
    nodes.Reduce: _Checker.reduce,
    nodes.Scan: _Checker.scan,
    nodes.Store: _Checker.store,
    nodes.Atomic: _Checker.store,
    nodes.Assert: _Checker.check,
    nodes.Exchange: _Checker.exchange,
    nodes.LaneGemm: _Checker.lane_gemm,
    nodes.Pad: _Checker.pad,
    nodes.Jump: _Checker.jump,
    nodes.Arrive: _Checker.barrier,
    nodes.Wait: _Checker.barrier,
}
