"""Walking and rewriting tile IR. Rewriters return the same object where nothing changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from tilecore.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Unary, Var
from tilecore.ir.nodes import (
    Alloc,
    Arrive,
    Assert,
    Atomic,
    Buffer,
    ChunkCopy,
    ClusterCopy,
    Copy,
    Exchange,
    Fill,
    For,
    Gemm,
    If,
    Jump,
    KernelLaunch,
    LaneGemm,
    Let,
    Pad,
    Parallel,
    PrimFunc,
    Print,
    Reduce,
    Region,
    Scan,
    Seq,
    SourceLaunch,
    Stmt,
    Store,
    Wait,
    While,
)


def children(stmt: Stmt) -> tuple[Stmt, ...]:
    """Return the statements directly inside ``stmt``."""
    match stmt:
        case Seq(stmts=stmts):
            return stmts
        case KernelLaunch(body=body) | Parallel(body=body) | For(body=body) | While(body=body):
            return (body,)
        case If(then_body=then, else_body=other):
            return (then,) if other is None else (then, other)
        case ClusterCopy(copy=copy):
            return (copy,)
        case _:
            return ()


def flat(stmts: Iterable[Stmt]) -> list[Stmt]:
    """Return the statements of a list of which some are sequences themselves."""
    found: list[Stmt] = []
    for stmt in stmts:
        found += flat(stmt.stmts) if isinstance(stmt, Seq) else [stmt]
    return found


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """Yield ``stmt`` and every statement inside it, in program order."""
    yield stmt
    for child in children(stmt):
        yield from walk(child)


def regions(stmt: Stmt) -> tuple[Region, ...]:
    """Return the regions that a tile op names (not those of nested statements)."""
    match stmt:
        case Copy() | ChunkCopy() | Reduce() | Scan():
            return (stmt.src, stmt.dst)
        case Fill(dst=dst):
            return (dst,)
        case Gemm(a=a, b=b, c=c, factors=factors):
            return (a, b, c, *factors)
        case LaneGemm(a=a, b=b, c=c):
            return (a, b, c)
        case _:
            return ()


def expressions(stmt: Stmt) -> tuple[Expr, ...]:  # noqa: C901 - one case per node
    """Return the expressions that a statement holds itself (region offsets and extents too)."""
    found: list[Expr] = [e for r in regions(stmt) for e in (*r.offsets, *r.extents)]
    match stmt:
        case KernelLaunch(grid=grid, threads=threads):
            found += [*grid, *threads]
        case SourceLaunch(grid=grid, threads=threads, arguments=arguments):
            found += [*grid, *threads, *(a for a in arguments if isinstance(a, Var))]
        case Copy(barrier=Load(indices=indices)):
            found += indices
        case Fill(value=value) | Let(value=value) | Pad(value=value):
            found.append(value)
        case Alloc(buffer=buffer):
            found += [*buffer.shape, *(buffer.strides or ())]
            found += [] if buffer.address is None else [buffer.address]
        case Gemm(clear_accum=clear, start=start):
            found += [clear] if start is None else [clear, start]
        case Parallel(extents=extents):
            found += extents
        case For(start=start, stop=stop, step=step):
            found += [start, stop, step]
        case While(cond=cond) | If(cond=cond) | Assert(cond=cond):
            found.append(cond)
        case Print(args=args) | Exchange(args=args):
            found += args
        case Store(indices=indices, value=value) | Atomic(indices=indices, value=value):
            found += [*indices, value]
        case ClusterCopy(block=block, barrier=barrier):
            found += [] if block is None else [block]
            found += [] if barrier is None else barrier.indices
        case Arrive(index=index, rank=rank):
            found += [index] if rank is None else [index, rank]
        case Wait(index=index, parity=parity):
            found += [index, parity]
        case _:
            pass
    return tuple(found)


def has_jump(stmt: Stmt) -> bool:
    """Return whether ``stmt``, the body of a loop, may leave an iteration of that loop early."""
    if isinstance(stmt, Jump):
        return True
    return not isinstance(stmt, (For, While)) and any(has_jump(s) for s in children(stmt))


def expr_children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands of ``expr``."""
    if isinstance(expr, (Var, Const)):  # most are
        return ()
    if isinstance(expr, Binary):
        return (expr.a, expr.b)
    if isinstance(expr, (Unary, Cast)):
        return (expr.a,)
    if isinstance(expr, Select):
        return (expr.cond, expr.a, expr.b)
    if isinstance(expr, Load):
        return expr.indices
    return expr.args if isinstance(expr, Call) else ()


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """Yield ``expr`` and every expression inside it."""
    yield expr
    for part in expr_children(expr):
        yield from walk_expr(part)


def distinct(expr: Expr) -> Iterator[Expr]:
    """Yield ``expr`` and every expression inside it, each once, wherever it stands again.

    What names stand for is shared: of a hash of some rounds there are more paths than nodes.
    """
    seen: set[int] = set()
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(expr_children(node))


def loads(stmt: Stmt) -> Iterator[Load]:
    """Yield the element loads of a statement's own expressions."""
    for expr in expressions(stmt):
        for node in walk_expr(expr):
            if isinstance(node, Load):
                yield node


def has_loads(expr: Expr, lets: Mapping[Var, Expr] = MappingProxyType({})) -> bool:
    """Return whether ``expr``, or a variable in it that ``lets`` binds, loads from memory."""
    return any(
        isinstance(e, Load) or (isinstance(e, Var) and e in lets and has_loads(lets[e], lets))
        for e in walk_expr(expr)
    )


def buffers_of(stmt: Stmt) -> set[Buffer]:
    """Return every buffer that ``stmt`` or a statement inside it reads, writes or allocates."""
    found: set[Buffer] = set()
    for node in walk(stmt):
        found.update(r.buffer for r in regions(node))
        found.update(load.buffer for load in loads(node))
        if isinstance(node, Exchange):
            found.add(node.dst)
        if isinstance(node, SourceLaunch):
            found.update(a for a in node.arguments if isinstance(a, Buffer))
        if isinstance(node, (Store, Alloc, Atomic, Arrive, Wait)):
            found.update((node.buffer, node.buffer.root))
        if isinstance(node, Atomic) and node.prev is not None:
            found.add(node.prev)
        if isinstance(node, ClusterCopy) and node.barrier is not None:
            found.add(node.barrier.buffer)
    return found


def roots_of(stmt: Stmt) -> set[Buffer]:
    """Return the buffers whose memory ``stmt`` or a statement inside it is about, no views."""
    return {buffer.root for buffer in buffers_of(stmt)}


class Rewriter:
    """Rebuilds statements bottom-up; override ``visit_<class name in lower case>``."""

    def visit(self, stmt: Stmt) -> Stmt:
        """Return the rewritten statement."""
        method = getattr(self, f"visit_{type(stmt).__name__.lower()}", None)
        if method is not None:
            result: Stmt = method(stmt)
            return result
        return self.rebuild(stmt)

    def rebuild(self, stmt: Stmt) -> Stmt:
        """Return ``stmt`` with its nested statements rewritten."""
        match stmt:
            case Seq(stmts=stmts):
                new = tuple(self.visit(s) for s in stmts)
                same = all(a is b for a, b in zip(new, stmts, strict=True))
                return stmt if same else dataclasses.replace(stmt, stmts=new)
            case KernelLaunch(body=body) | Parallel(body=body) | For(body=body) | While(body=body):
                changed = self.visit(body)
                return stmt if changed is body else dataclasses.replace(stmt, body=changed)
            case If(then_body=then, else_body=other):
                new_then = self.visit(then)
                new_else = None if other is None else self.visit(other)
                if new_then is then and new_else is other:
                    return stmt
                return dataclasses.replace(stmt, then_body=new_then, else_body=new_else)
            case _:
                return stmt


def with_body(func: PrimFunc, body: Stmt) -> PrimFunc:
    """Return ``func`` with another body; itself where that is the body it has."""
    return func if body is func.body else dataclasses.replace(func, body=body)


def per_launch(func: PrimFunc, change: Callable[[KernelLaunch], Stmt]) -> PrimFunc:
    """Return ``func`` with what ``change`` makes of each launch; itself where it changes none."""
    return with_body(func, _Launches(change).visit(func.body))


class _Launches(Rewriter):
    def __init__(self, change: Callable[[KernelLaunch], Stmt]) -> None:
        self.change = change

    def visit_kernellaunch(self, launch: KernelLaunch) -> Stmt:
        return self.change(launch)
