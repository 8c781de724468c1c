"""What one tile statement reads, writes and computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilecore.graph.closed_form import ceildiv, free_vars, minimum, product, substitute
from tilecore.graph.nodes import Work
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    BITWISE,
    PAIRED,
    Binary,
    Call,
    Expr,
    Load,
    Unary,
    Var,
    binary,
    const,
    int_value,
)
from tilecore.ir.nodes import (
    Atomic,
    Buffer,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Let,
    Parallel,
    Reduce,
    Region,
    Scan,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.visitor import walk_expr


@dataclass(frozen=True, slots=True, eq=False)
class Touched:
    """What one execution of a statement touches of a buffer: at most ``most`` elements of a box."""

    region: Region
    most: Expr | None = None  # all of the box


Described = tuple[str, list[Touched], list[Touched], list[Work]]


def describe(stmt: Stmt) -> Described:
    """Return kind, regions read, regions written and work of one execution of a tile statement."""
    if isinstance(stmt, Copy):
        work = Work("elementwise", stmt.dst.buffer.dtype, product(stmt.dst.extents))
        return "copy", [Touched(stmt.src)], [Touched(stmt.dst)], [work]
    if isinstance(stmt, Fill):
        work = Work("elementwise", stmt.dst.buffer.dtype, product(stmt.dst.extents))
        return "fill", [], [Touched(stmt.dst)], [work]
    if isinstance(stmt, Gemm):
        m, n, k = gemm_extents(stmt)
        work = Work("fma", stmt.a.buffer.dtype, product((2, m, n, k)))
        reads = [Touched(stmt.a), Touched(stmt.b)]
        if (
            int_value(stmt.clear_accum) is None
            and getattr(stmt.clear_accum, "value", None) is not True
        ):
            reads.append(Touched(stmt.c))
        return "gemm", reads, [Touched(stmt.c)], [work]
    if isinstance(stmt, (Reduce, Scan)):
        work = Work("elementwise", stmt.dst.buffer.dtype, product(stmt.src.extents))
        keeps = isinstance(stmt, Reduce) and not stmt.clear
        kind = "reduce" if isinstance(stmt, Reduce) else "scan"
        read = [stmt.src, stmt.dst] if keeps else [stmt.src]
        return kind, [Touched(r) for r in read], [Touched(stmt.dst)], [work]
    if isinstance(stmt, Parallel):
        extents = dict(zip(stmt.loop_vars, stmt.extents, strict=True))
        return ("parallel", *_describe_nest(stmt.body, extents))
    return ("scalar", *_describe_nest(stmt, {}))


def gemm_extents(stmt: Gemm) -> tuple[Expr, Expr, Expr]:
    """Return M, N, K of one ``T.gemm``; of two blocks together the block's own rows M."""
    a0, a1 = _matrix(stmt.a)
    b0, b1 = _matrix(stmt.b)
    m, k = (a1, a0) if stmt.transpose_a else (a0, a1)
    n = b0 if stmt.transpose_b else b1
    return m, (binary("mul", n, const(2)) if stmt.in_pair else n), k


def _matrix(region: Region) -> tuple[Expr, Expr]:
    kept = [e for e in region.extents if int_value(e) != 1]
    axes = kept if len(kept) == 2 else list(region.extents[-2:])
    return axes[0], axes[1]


def _describe_nest(
    body: Stmt, extents: Mapping[Var, Expr]
) -> tuple[list[Touched], list[Touched], list[Work]]:
    """Return reads, writes and work of scalar code under a parallel nest.

    Arithmetic on pairs (PAIRED) makes two elements at once: neighbours share what it takes and
    makes, and a compiler computes it once.
    """
    reads: list[Touched] = []
    writes: list[Touched] = []
    work: list[Work] = []
    count = product(extents.values())
    for stmt, factor in _scalar_stmts(body, const(1)):
        nodes = [e for expr in _expressions(stmt) for e in walk_expr(expr)]
        is_paired = any(isinstance(e, Call) and e.name in PAIRED for e in nodes)
        amount = product((count, factor))
        amount = ceildiv(amount, const(2)) if is_paired else amount
        for e in nodes:
            if isinstance(e, Load):
                reads.append(_box(e.buffer, e.indices, extents))
            unit = _unit(e)
            if unit is not None:
                work.append(Work(unit, DType(e.dtype), amount))
        if isinstance(stmt, (Store, Atomic)):
            writes.append(_box(stmt.buffer, stmt.indices, extents))
        if isinstance(stmt, Atomic):
            reads.append(writes[-1])
    return reads, writes, work


def _unit(e: Expr) -> str | None:
    """Return the unit that computes a node; whole numbers are mostly places, but for their bits."""
    if isinstance(e, Call):
        paired = "elementwise" if e.name in PAIRED else "special"
        return None if e.name == "reinterpret" else paired
    is_value = isinstance(e, (Binary, Unary)) and (e.dtype.is_float or e.op in BITWISE)
    return "elementwise" if is_value else None


def _scalar_stmts(stmt: Stmt, factor: Expr) -> list[tuple[Stmt, Expr]]:
    if isinstance(stmt, Seq):
        return [x for child in stmt.stmts for x in _scalar_stmts(child, factor)]
    if isinstance(stmt, For):
        trips = ceildiv(binary("sub", stmt.stop, stmt.start), stmt.step)
        return _scalar_stmts(stmt.body, product((factor, trips)))
    if isinstance(stmt, If):
        bodies = [b for b in (stmt.then_body, stmt.else_body) if b is not None]
        return [(stmt, factor), *(x for b in bodies for x in _scalar_stmts(b, factor))]
    return [(stmt, factor)]


def _expressions(stmt: Stmt) -> tuple[Expr, ...]:
    if isinstance(stmt, (Store, Atomic)):
        return (stmt.value, *stmt.indices)
    if isinstance(stmt, Let):
        return (stmt.value,)
    return (stmt.cond,) if isinstance(stmt, If) else ()


def _box(buffer: Buffer, indices: tuple[Expr, ...], extents: Mapping[Var, Expr]) -> Touched:
    """Return the box that ``indices`` cover while the nest runs (unit coefficients assumed).

    A variable that several of them have (the rows of a convolution, by division and remainder)
    counts for the box along each of these axes, but only once for the elements.
    """
    zero = {var: const(0) for var in extents}
    offsets = tuple(substitute(i, zero) for i in indices)
    sizes = tuple(
        minimum(product(extents[v] for v in extents if v in free_vars(i)), size)
        for i, size in zip(indices, buffer.shape, strict=True)
    )
    used = [free_vars(i) & extents.keys() for i in indices]
    together = set().union(*used)
    is_shared = sum(map(len, used)) > len(together)
    most = product(extents[v] for v in extents if v in together) if is_shared else None
    return Touched(Region(buffer, offsets, sizes), most)
