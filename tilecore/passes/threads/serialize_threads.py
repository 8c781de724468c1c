"""serialize_threads: a program written per thread becomes one that a single thread can run.

The body of a launch splits where threads wait for each other: at barriers, exchanges and tile
operations. What stands between two such points runs for all threads in a loop; what is private to a
thread (tiles of scope local, values bound by Let) gets one copy per thread. A loop with a barrier
inside stays outside the thread loops: a barrier is only legal where all threads run it alike. A
branch with a barrier inside becomes a predicate of everything in it.

Programs need not write the barriers between threads that meet in shared memory: TileLang inserts
them. So the body splits as well where a tile that all threads share is read after it was written,
or written after it was read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tilecore.errors import ScopeError
from tilecore.inference.gpu.threads.torn import share_memory
from tilecore.ir import nodes
from tilecore.ir.arithmetic.uniform import Uniform
from tilecore.ir.barrier import arrival, deadlock, is_over
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    Expr,
    Load,
    Var,
    as_bool,
    binary,
    cast,
    const,
    int_value,
    unary,
)
from tilecore.ir.nodes import Buffer, PrimFunc, Seq, Stmt
from tilecore.ir.plain import named_barriers
from tilecore.ir.visitor import (
    Rewriter,
    children,
    expr_children,
    expressions,
    flat,
    has_jump,
    loads,
    per_launch,
    regions,
    walk,
    walk_expr,
)  # fmt: skip
from tilecore.passes.threads.conflict import conflict, has_conflict
from tilecore.passes.threads.exchange import exchange
from tilecore.passes.threads.per_thread import PerThread
from tilecore.passes.threads.roles import Roles, thread_parts
from tilecore.passes.threads.schedule import settle
from tilecore.passes.threads.uneven import uneven_loop

INLINE_NODES = 32  # a longer pure value is kept per thread instead of being computed again
MEETINGS = (nodes.Sync, nodes.Parallel, nodes.Arrive, nodes.Wait)
Predicate = tuple[tuple[Buffer, bool], ...]  # flags per thread, and what they must be


def run(func: PrimFunc) -> PrimFunc:
    """Return the function without thread indices, barriers and exchanges.

    Raises:
        ScopeError: the number of threads is not known, or private data meets T.Parallel (TC104).
    """
    func = named_barriers.run(func)
    return per_launch(func, _one_thread)


def _one_thread(stmt: nodes.KernelLaunch) -> Stmt:
    if stmt.thread_vars or any(isinstance(s, nodes.EXCHANGES) for s in walk(stmt)):
        settled = Serializer(stmt, fuses=True).settled() if _waits(stmt) else None
        return Serializer(stmt).launch() if settled is None else settled
    return _OneThread(stmt).rebuild(stmt)


def _waits(stmt: Stmt) -> bool:
    return any(isinstance(s, nodes.Wait) for s in walk(stmt))


def _uses_barriers(stmt: Stmt) -> bool:
    return any(isinstance(s, (nodes.Wait, nodes.Arrive)) for s in walk(stmt))


def _outside_nests(stmt: Stmt) -> Iterator[Stmt]:
    """Yield a statement and those below, but for what each point of a T.Parallel has for itself."""
    yield stmt
    if not isinstance(stmt, nodes.Parallel):
        for child in children(stmt):
            yield from _outside_nests(child)


def _no_jump(where: str) -> ScopeError:
    return ScopeError(
        message=f"`break` or `continue` in {where}, of a loop in which threads wait for each other",
        hint="put what follows under a condition instead",
    )


class _OneThread(Rewriter):
    """Drops barriers of a program that has one thread per block as far as it can tell."""

    def __init__(self, launch: nodes.KernelLaunch | None = None) -> None:
        self.launch = launch

    def visit_sync(self, stmt: nodes.Sync) -> Stmt:
        return Seq((), stmt.span)

    def visit_arrive(self, stmt: nodes.Arrive) -> Stmt:
        assert self.launch is not None
        threads = [int_value(e) for e in self.launch.threads]
        if None in threads and not stmt.once:
            raise unknown_threads().at(stmt.span)
        return arrival(stmt, 1 if stmt.once else math.prod(t or 1 for t in threads))

    def visit_wait(self, stmt: nodes.Wait) -> Stmt:
        message = deadlock(stmt)
        if stmt.buffer.name == named_barriers.NAME:
            message += (
                "; branches that a variable or data chooses run one after the other on a CPU: "
                "let the thread index choose those that meet"
            )
        return nodes.Assert(is_over(stmt), message, stmt.span)


def unknown_threads() -> ScopeError:
    """Return the error for a launch that must know its threads and does not."""
    return ScopeError(
        message="a program written per thread needs a known number of threads",
        hint="give T.Kernel(..., threads=...) numbers",
    )


class Serializer:
    """Rewrites one launch."""

    def __init__(self, launch: nodes.KernelLaunch, fuses: bool = False) -> None:
        self.source = launch
        self.fuses = fuses  # whether roles get one order of their statements, or take turns
        extents = [int_value(e) for e in launch.threads]
        if any(e is None for e in extents):
            raise unknown_threads().at(launch.span)
        self.extents = [e for e in extents if e is not None]
        self.count = math.prod(self.extents)
        self.active = range(self.count)  # the threads that run the code being rewritten
        self.thread = Var("thread", const(0).dtype)
        self.allocs: list[Stmt] = []
        self.private: dict[Buffer, Buffer] = {}
        for stmt in _outside_nests(launch):  # tiles come before their views
            if isinstance(stmt, nodes.Alloc) and stmt.buffer.scope == "local":
                self.private[stmt.buffer] = self.per_thread(stmt.buffer)
        self.values: dict[Var, Expr | Buffer] = {}  # what a Let is: an expression, or kept
        self.lets = {s.var: s.value for s in walk(launch) if isinstance(s, nodes.Let)}
        self.each = PerThread(self, self.thread)
        self.uniform = Uniform(launch.body, launch.thread_vars, self.extents)

    @property
    def first(self) -> PerThread:
        """The rewriter of what the active threads do together."""
        return PerThread(self, const(self.active.start))

    def launch(self) -> nodes.KernelLaunch:
        """Return the launch as one thread runs it."""
        return self.finished([_OneThread().visit(s) for s in self.body()])

    def settled(self) -> nodes.KernelLaunch | None:
        """Return the launch without waits, if an order is found in which none has to wait."""
        body = settle(Seq(tuple(self.body()), self.source.span), self.source)
        return None if body is None else self.finished([body])

    def body(self) -> list[Stmt]:
        """Return the statements of all threads, with waits."""
        return self.sequence([self.source.body], ())

    def finished(self, body: Sequence[Stmt]) -> nodes.KernelLaunch:
        """Return the launch with the statements of all threads as its body."""
        stmts = Seq((*self.allocs, *body), self.source.span)
        return dataclasses.replace(self.source, body=stmts, thread_vars=(), threads=(const(1),))

    # --- names --------------------------------------------------------------------------------

    def per_thread(self, buffer: Buffer) -> Buffer:
        """Return (and allocate) a tile with one copy of ``buffer`` per thread."""
        shape = (const(self.count), *buffer.shape)
        base = self.private.get(buffer.root)
        made = dataclasses.replace(buffer, shape=shape, is_var=False, base=base)
        self.allocs.append(nodes.Alloc(made, buffer.span))
        return made

    def kept(self, name: str, dtype: Any, size: int = 0) -> Buffer:
        """Return a new tile with one element per thread, or with ``size`` elements."""
        shape = (const(size or self.count),)
        made = Buffer(name, shape, DType(dtype), "local", span=self.source.span)
        self.allocs.append(nodes.Alloc(made, self.source.span))
        return made

    def value(self, var: Var, index: Expr, rewriter: PerThread) -> Expr:
        """Return what ``var`` is for thread ``index``."""
        axes = [i for i, v in enumerate(self.source.thread_vars) if v is var]
        if axes:
            axis = axes[0]
            inner = math.prod(self.extents[:axis])
            outermost = axis == len(self.extents) - 1
            found = binary("floordiv", index, inner) if inner > 1 else index
            found = found if outermost else binary("mod", found, self.extents[axis])
            return cast(found, var.dtype)
        known = self.values.get(var)
        if isinstance(known, Buffer):
            return Load(known, (index,), known.dtype)
        return var if known is None else rewriter.expr(known)

    def bind(self, stmt: nodes.Let, index: Expr, rewriter: PerThread) -> Stmt:
        """Return the statement that a Let becomes: none where its value can be repeated."""
        if self.is_repeatable(stmt):
            self.values[stmt.var] = stmt.value
            return Seq((), stmt.span)
        value = rewriter.expr(stmt.value)
        known = self.values.get(stmt.var)
        kept = known if isinstance(known, Buffer) else self.kept(stmt.var.name, stmt.var.dtype)
        self.values[stmt.var] = kept
        return nodes.Store(kept, (index,), value, stmt.span)

    @staticmethod
    def is_repeatable(stmt: nodes.Let) -> bool:
        """Return whether the value may be computed again wherever it is used."""
        parts = list(walk_expr(stmt.value))
        return len(parts) <= INLINE_NODES and not any(isinstance(p, Load) for p in parts)

    # --- splitting ----------------------------------------------------------------------------

    def splits(self, stmt: Stmt) -> bool:
        """Return whether threads wait for each other, or act as one, anywhere in ``stmt``."""
        if any(self.is_point(s) for s in walk(stmt)):
            return True
        varies = self.loops_vary(stmt)
        if has_conflict(stmt) and not varies:
            return True
        if share_memory(stmt, self.source, self.extents, self.lets):
            return True
        if varies:
            return False
        lets = {s.var: s.value for s in walk(stmt) if isinstance(s, nodes.Let)}
        jumps = any(isinstance(s, nodes.Jump) for s in walk(stmt))
        return not jumps and any(self.is_alike(s, lets) for s in walk(stmt))

    def is_alike(self, stmt: Stmt, lets: Mapping[Var, Expr] = MappingProxyType({})) -> bool:
        """Return whether all threads store one value in one place: then one of them does.

        Args:
            stmt: any statement.
            lets: values of names that are bound between here and ``stmt``.
        """
        if not isinstance(stmt, nodes.Store) or stmt.buffer in self.private:
            return False
        return not any(self.differs(e, lets) for e in (*stmt.indices, stmt.value))

    def differs(self, expr: Expr, lets: Mapping[Var, Expr]) -> bool:
        """Return whether the value of ``expr`` may differ between threads."""
        if self.uniform.holds(expr):
            return False
        if isinstance(expr, Var) and expr in lets:
            return self.differs(lets[expr], lets)
        if isinstance(expr, Var) or (isinstance(expr, Load) and expr.buffer in self.private):
            return any(part is self.thread for part in walk_expr(self.each.expr(expr)))
        return any(self.differs(child, lets) for child in expr_children(expr))

    def loops_vary(self, stmt: Stmt) -> bool:
        """Return whether threads may run the loops of ``stmt`` a different number of times."""
        heads = [
            e
            for s in walk(stmt)
            if isinstance(s, (nodes.For, nodes.While))
            for e in ((s.cond,) if isinstance(s, nodes.While) else (s.start, s.stop, s.step))
        ]
        return any(self.differs(e, {}) for e in heads)

    def is_uneven(self, stmt: nodes.For | nodes.While) -> bool:
        """Return whether threads of one role may run a loop a different number of times."""
        return not _uses_barriers(stmt) and not self.uniform.holds(*expressions(stmt))

    def is_point(self, stmt: Stmt) -> bool:
        """Return whether ``stmt`` itself is done by all threads together."""
        if isinstance(stmt, (*nodes.EXCHANGES, *MEETINGS)):
            return True
        if isinstance(stmt, nodes.Alloc):
            return stmt.buffer.scope != "local"
        touched = regions(stmt)
        return bool(touched) and not any(r.buffer in self.private for r in touched)

    def sequence(self, stmts: Sequence[Stmt], predicate: Predicate) -> list[Stmt]:
        """Return ``stmts`` as thread loops and what stands between them."""
        done: list[Stmt] = []
        group: list[Stmt] = []
        roles = Roles(self)
        for stmt in flat(stmts):
            if isinstance(stmt, nodes.Alloc) and stmt.buffer in self.private:
                continue
            leaves = has_jump(stmt)
            is_split = not predicate and not leaves and self.splits(stmt)
            parts = thread_parts(self, stmt) if is_split else None
            if parts is not None:
                done += [*self.loop(group, predicate), *roles.add(parts)]
                group = []
                continue
            if not (isinstance(stmt, nodes.Let) and self.is_repeatable(stmt)):
                done += roles.end()
            is_compound = not isinstance(stmt, (nodes.Store, nodes.Let, nodes.Atomic))
            if is_compound or conflict(Seq(tuple(group), stmt.span), stmt):
                done += self.loop(group, predicate)
                group = []
            if leaves or (is_compound and self.splits(stmt)):
                done += self.point(stmt, predicate)
            elif self.is_alike(stmt):
                done += [*self.loop(group, predicate), *self.point(stmt, predicate)]
                group = []
            else:
                group.append(stmt)
        return done + roles.end() + self.loop(group, predicate)

    def loop(self, group: Sequence[Stmt], predicate: Predicate) -> list[Stmt]:
        """Return ``group`` run by every thread for which ``predicate`` holds."""
        made = (self.each.stmt(s) for s in group)
        body = [s for s in made if not (isinstance(s, Seq) and not s.stmts)]
        return [self.for_each(body, predicate)] if body else []

    def for_each(self, body: Sequence[Stmt], predicate: Predicate = ()) -> Stmt:
        """Return a loop over the threads."""
        span = body[0].span
        inner: Stmt = Seq(tuple(body), span)
        if predicate:
            inner = nodes.If(self.holds(predicate), inner, None, span)
        bounds = (const(self.active.start), const(self.active.stop), const(1))
        return nodes.For(self.thread, *bounds, nodes.THREADS, inner, span=span)

    def holds(self, predicate: Predicate) -> Expr:
        """Return whether the thread of the enclosing loop is active."""
        terms = []
        for flags, wanted in predicate:
            flag = as_bool(Load(flags, (self.thread,), flags.dtype))
            terms.append(flag if wanted else unary("not", flag))
        return functools.reduce(lambda a, b: binary("and", a, b), terms)

    def point(self, stmt: Stmt, predicate: Predicate) -> list[Stmt]:
        """Return a statement with a barrier inside, or one that is a barrier."""
        match stmt:
            case nodes.Sync():
                return []
            case nodes.Exchange() | nodes.LaneGemm():
                return exchange(self, stmt, predicate)
            case nodes.Arrive(once=False):
                return [self.arrive(stmt, predicate)]
            case nodes.For() | nodes.While() if has_jump(stmt.body) and _uses_barriers(stmt):
                raise _no_jump("a loop in which threads wait at barriers").at(stmt.span)
            case nodes.Jump():
                return [stmt]
            case nodes.For() | nodes.While() if self.is_uneven(stmt):
                if has_jump(stmt.body):
                    raise _no_jump("a loop that threads run differently often").at(stmt.span)
                return uneven_loop(self, stmt, predicate)
            case nodes.For():
                start, stop, step = (self.first.expr(e) for e in (stmt.start, stmt.stop, stmt.step))
                body = Seq(tuple(self.sequence([stmt.body], predicate)), stmt.span)
                return [dataclasses.replace(stmt, start=start, stop=stop, step=step, body=body)]
            case nodes.While():
                body = Seq(tuple(self.sequence([stmt.body], predicate)), stmt.span)
                return [dataclasses.replace(stmt, cond=self.first.expr(stmt.cond), body=body)]
            case nodes.If():
                return self.branch(stmt, predicate)
            case nodes.Alloc():
                return [stmt]
            case _:
                return self.together(stmt, predicate)

    def branch(self, stmt: nodes.If, predicate: Predicate) -> list[Stmt]:
        """Return a branch with a barrier inside: as it is where all threads take it alike."""
        cond = self.each.expr(stmt.cond)
        bodies: list[tuple[Stmt, bool]] = [(stmt.then_body, True)]
        if stmt.else_body is not None:
            bodies.append((stmt.else_body, False))
        is_alike = self.uniform.holds(stmt.cond) and not predicate
        if has_jump(stmt) and not is_alike:
            raise _no_jump("a branch that threads may take differently").at(stmt.span)
        if is_alike or not any(node is self.thread for node in walk_expr(cond)):
            cond = self.first.expr(stmt.cond)
            made = [Seq(tuple(self.sequence([b], predicate)), stmt.span) for b, _ in bodies]
            other = made[1] if len(made) > 1 else None
            return [nodes.If(cond, made[0], other, stmt.span)]
        flags = self.kept("active", "int32")
        store = nodes.Store(flags, (self.thread,), cast(cond, "int32"), stmt.span)
        done: list[Stmt] = [self.for_each([store])]
        for body, wanted in bodies:
            done += self.sequence([body], (*predicate, (flags, wanted)))
        return done

    def together(self, stmt: Stmt, predicate: Predicate) -> list[Stmt]:
        """Return a tile operation, done once if any thread is active."""
        if isinstance(stmt, nodes.Parallel):
            self.check_parallel(stmt)
        if not predicate:
            made = self.first.stmt(stmt)
            return [arrival(made) if isinstance(made, nodes.Arrive) else made]
        anyone = self.kept("anyone", "int32")  # the number after that of a thread; 0: none
        zero = (const(0),)
        found = Load(anyone, zero, anyone.dtype)
        made = PerThread(self, binary("sub", found, 1)).stmt(stmt)
        made = arrival(made) if isinstance(made, nodes.Arrive) else made
        clear = nodes.Store(anyone, zero, const(0), stmt.span)
        mark = nodes.Store(anyone, zero, binary("add", self.thread, 1), stmt.span)
        cond = as_bool(found)
        return [clear, self.for_each([mark], predicate), nodes.If(cond, made, None, stmt.span)]

    def arrive(self, stmt: nodes.Arrive, predicate: Predicate) -> Stmt:
        """Return the arrivals of the active threads, counted at once where they are alike."""
        made = self.each.stmt(stmt)
        assert isinstance(made, nodes.Arrive)
        varies = any(node is self.thread for node in walk_expr(made.index))
        if predicate or varies:
            return self.for_each([arrival(made)], predicate)
        return arrival(made, len(self.active))

    def check_parallel(self, stmt: nodes.Parallel) -> None:
        """Refuse T.Parallel over what every thread has for itself, but for its scalars."""
        axes = {id(v) for s in walk(stmt) if isinstance(s, nodes.Parallel) for v in s.loop_vars}
        for node in walk(stmt):
            written = isinstance(node, nodes.Store) and node.buffer in self.private
            indexed = any(
                load.buffer in self.private
                and any(id(e) in axes for index in load.indices for e in walk_expr(index))
                for load in loads(node)
            )
            if written or indexed:
                raise ScopeError(
                    message="T.Parallel uses a tile of T.alloc_local in a program that asks for "
                    "its thread",
                    hint="whose elements are meant depends on how points are spread: loop over it "
                    "with T.serial or T.vectorized, or make it a fragment",
                ).at(node.span)
