"""Statements whose points the threads of a block share out: nests, copies, fills and folds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilecore.inference.uses import Context, enter
from tilecore.ir import nodes
from tilecore.ir.analysis import kept_axes, written_buffers
from tilecore.ir.arithmetic.bounds import linear, step_of
from tilecore.ir.arithmetic.length import LONGEST, length
from tilecore.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Unary, Var, int_value
from tilecore.ir.nodes import Buffer, Copy, Fill, Parallel, Reduce, Scan, Stmt
from tilecore.ir.plain.nests import copy_nest, fill_nest, shifted
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.visitor import children, distinct, expressions, loads, walk, walk_expr

TILE_STATEMENTS = (
    nodes.Copy, nodes.ChunkCopy, nodes.Fill, nodes.Gemm, nodes.Reduce, nodes.Scan, nodes.Parallel,
)  # fmt: skip
MAX_OPEN = 1 << 16  # points along a loop whose extent is known only when the kernel runs


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """A condition under which something is done.

    Attributes:
        written: the expression that the program has there.
        meaning: the same without the names that the nest gives to values.
        holds: whether it is to hold or not.
    """

    written: Expr
    meaning: Expr
    holds: bool


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """An element that each point reads or writes.

    Attributes:
        buffer: what it is of.
        indices: where.
        is_store: whether it is written.
        always: whether each point does so for which ``under`` holds.
        under: conditions on the indices of points.
        meaning: the indices without the names that the nest gives to values; (): they have none.
        is_added: whether something is added there atomically, and nobody asks what was there.
        is_free: whether points may read it that do not ask for it: it surely lies in a shared tile.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    is_store: bool
    always: bool
    under: tuple[Condition, ...] = ()
    meaning: tuple[Expr, ...] = ()
    is_added: bool = False
    is_free: bool = False

    @property
    def place(self) -> tuple[Expr, ...]:
        """The indices by what is known outside of the nest."""
        return self.meaning or self.indices


@dataclass(frozen=True, eq=False)
class Points:
    """A statement as loops over independent points.

    ``folded``: the loops (by position) along which points are folded into one. ``limits``: the
    extents that are known only when the kernel runs; ``shape`` has what they do not exceed.
    ``in_shared``: fragments that are kept in shared memory. ``added_bytes``: how many bytes of
    neighbours one instruction adds to, by their type.
    """

    stmt: Stmt
    names: tuple[Var, ...]
    shape: tuple[int, ...]
    accesses: tuple[Access, ...]
    context: Context
    folded: tuple[int, ...] = ()
    nest: Parallel | None = None
    limits: Mapping[int, Expr] = field(default_factory=dict)
    in_shared: frozenset[Buffer] = frozenset()
    added_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def asked_width(self) -> int:
        """How many neighbours along the last loop a thread is to have, 0 where nobody says."""
        notes = self.stmt.annotations if isinstance(self.stmt, nodes.Parallel) else {}
        asked = notes.get(nodes.COALESCED_WIDTH, 0)
        return asked if isinstance(asked, int) and asked > 1 else 0


def axes_of(access: Access, points: Points) -> dict[int, tuple[int, int]] | None:
    """Return (loop, divisor) of each axis of a buffer, or None where that is not all.

    Axis ``a`` is indexed by its loop plus a constant, or by ``loop // divisor``. Axes that no loop
    indexes are left out.
    """
    found: dict[int, tuple[int, int]] = {}
    for axis, index in enumerate(access.indices):
        parts = set(distinct(index))
        used = [p for p, n in enumerate(points.names) if n in parts]
        if not used:
            continue
        part, size = index, 1
        if isinstance(index, Binary) and index.op == "floordiv" and isinstance(index.b, Const):
            part, size = index.a, int(index.b.value)
        form = linear(part)
        if form is None or len(used) > 1 or form.coefficient(points.names[used[0]]) != 1:
            return None
        if size < 1 or (size > 1 and (form.constant or len(form.coefficients) > 1)):
            return None
        if any(used[0] == loop for loop, _ in found.values()):
            return None
        found[axis] = (used[0], size)
    return found


def is_contiguous(access: Access, name: Var) -> bool:
    """Return whether an access of memory moves by one element with ``name``."""
    buffer, indices = access.buffer, access.indices
    if not indices:
        return False
    if buffer.strides is not None and int_value(buffer.strides[-1]) != 1:
        return False
    return step_of(indices[-1], name) == 1 and all(step_of(i, name) == 0 for i in indices[:-1])


def is_barrier_setup(stmt: Stmt) -> bool:
    """Return whether a statement sets mbarriers to what they are when a kernel begins."""
    return isinstance(stmt, Fill) and stmt.dst.buffer.arrive_counts is not None


def points_of(stmt: Stmt, context: Context) -> Points | None:
    """Return the points of a statement; None: it has none, or they are not known."""
    match stmt:
        case Copy():
            return _nest(stmt, copy_nest(stmt), context)
        case Fill():
            return _nest(stmt, fill_nest(stmt), context)
        case Parallel():
            return _nest(stmt, stmt, context)
        case Reduce() | Scan():
            return _fold(stmt, context)
        case _:
            return None


def _nest(stmt: Stmt, nest: Parallel, context: Context) -> Points | None:
    known = _extents(nest.extents, context)
    if known is None:
        return None
    names: dict[Var, Expr] = {}
    for inner in walk(nest.body):
        if isinstance(inner, nodes.Let):
            names[inner.var] = substitute_expr(inner.value, names)
    stored = frozenset(b.root for b in written_buffers(nest.body))
    where = _Where(names, enter(nest, context), stored=stored)
    accesses = tuple(_accesses(nest.body, where))
    return Points(stmt, nest.loop_vars, known[0], accesses, context, (), nest, known[1])


def _extents(
    extents: Iterable[Expr], context: Context
) -> tuple[tuple[int, ...], dict[int, Expr]] | None:
    """Return (the most that each extent is, those that may be less), or None without bounds."""
    shape: list[int] = []
    limits: dict[int, Expr] = {}
    for position, extent in enumerate(extents):
        size = int_value(extent)
        if size is None:
            bounds = context.bounds(extent)
            if bounds is None or not 0 < bounds[1] <= MAX_OPEN:
                return None
            size, limits[position] = bounds[1], extent
        shape.append(size)
    return tuple(shape), limits


def _fold(stmt: Reduce | Scan, context: Context) -> Points | None:
    axes = kept_axes(stmt.src)
    sizes = _extents([stmt.src.extents[a] for a in axes], context)
    if sizes is None or (sizes[1] and isinstance(stmt, Scan)):
        return None
    names = tuple(Var(f"f{a}") for a in axes)
    gone = stmt.axes if isinstance(stmt, Reduce) else ()
    kept = tuple(n for a, n in zip(axes, names, strict=True) if a not in gone)
    result = tuple(Access(stmt.dst.buffer, i, True, True) for i in [shifted_to(stmt.dst, kept)])
    source = Access(stmt.src.buffer, shifted(stmt.src, names), False, True)
    folded = stmt.axes if isinstance(stmt, Reduce) else (stmt.axis,)
    positions = tuple(p for p, a in enumerate(axes) if a in folded)
    accesses = (source, *result)
    return Points(stmt, names, sizes[0], accesses, context, positions, None, sizes[1])


def shifted_to(region: nodes.Region, names: tuple[Var, ...]) -> tuple[Expr, ...]:
    """Return the indices at ``names``; a region of fewer kept axes has them at its offsets."""
    if len(kept_axes(region)) == len(names):
        return shifted(region, names)
    return region.offsets


@dataclass(frozen=True, slots=True)
class _Where:
    """Which points come to a place in a nest.

    Attributes:
        names: what the nest gives names to.
        always: whether all do for which ``under`` holds (``Access``).
        under: conditions of indices, and of what memory holds that the nest does not write.
        stored: the memory that the nest writes.
        context: what is known of variables, those of the nest among them.
    """

    names: Mapping[Var, Expr]
    context: Context
    always: bool = True
    under: tuple[Condition, ...] = ()
    stored: frozenset[Buffer] = frozenset()

    def within(self, cond: Expr, *, holds: bool) -> _Where:
        """Return the points for which a condition holds or not, as far as indices say so."""
        meaning = substitute_expr(cond, self.names)
        is_long = length(meaning, {}) > LONGEST  # of a hash, say: nobody reads anything off that
        if is_long or not all(map(self.is_known, walk_expr(meaning))):
            return replace(self, always=False)
        return replace(self, under=(*self.under, Condition(cond, meaning, holds)))

    def is_known(self, part: Expr) -> bool:
        """Return whether a part of a condition may be looked at before the points are run.

        Other conditions need not hold then: of a tensor that is guarded, of a tile the element has
        to be inside.
        """
        if not isinstance(part, Load):
            return not isinstance(part, Call)
        buffer = part.buffer
        if buffer.root in self.stored:
            return False
        return buffer.scope == "global" or (
            buffer.scope == "shared" and self._is_inside(buffer, part.indices)
        )

    def _is_inside(self, buffer: Buffer, indices: Sequence[Expr]) -> bool:
        """Return whether an element surely lies in its tile."""
        shape = buffer.static_shape
        found = [self.context.bounds(index) for index in indices]
        return shape is not None and all(
            bounds is not None and bounds[0] >= 0 and bounds[1] < extent
            for bounds, extent in zip(found, shape, strict=True)
        )

    def access(self, buffer: Buffer, indices: tuple[Expr, ...], *, is_store: bool) -> Access:
        """Return an access of these points."""
        meaning = tuple(substitute_expr(i, self.names) for i in indices) if self.names else ()
        is_free = not is_store and buffer.scope == "shared" and self._is_inside(buffer, indices)
        return Access(buffer, indices, is_store, self.always, self.under, meaning, is_free=is_free)


def _accesses(stmt: Stmt, where: _Where) -> Iterator[Access]:
    for expr in expressions(stmt):
        yield from _loads(expr, where)
    nowhere = replace(where, always=False)
    match stmt:
        case nodes.Store(buffer=buffer, indices=indices):
            yield where.access(buffer, indices, is_store=True)
        case nodes.Atomic(buffer=buffer, indices=indices, prev=prev):
            is_plain = prev is None and stmt.op == "add" and stmt.order == "relaxed"
            found = (where if is_plain else nowhere).access(buffer, indices, is_store=True)
            yield replace(found, is_added=is_plain)
            if prev is not None:
                yield Access(prev, (), True, False)
        case nodes.If(cond=cond, then_body=then, else_body=other):
            yield from _accesses(then, where.within(cond, holds=True))
            if other is not None:
                yield from _accesses(other, where.within(cond, holds=False))
        case nodes.Seq(stmts=stmts):
            for child in stmts:
                yield from _accesses(child, where)
        case _:
            for child in children(stmt):
                yield from _accesses(child, nowhere)


def _loads(expr: Expr, where: _Where) -> Iterator[Access]:
    match expr:
        case Load(buffer=buffer, indices=indices):
            yield where.access(buffer, indices, is_store=False)
            for index in indices:
                yield from _loads(index, where)
        case Select(cond=cond, a=a, b=b):
            yield from _loads(cond, where)
            yield from _loads(a, where.within(cond, holds=True))
            yield from _loads(b, where.within(cond, holds=False))
        case Binary(a=a, b=b):
            yield from _loads(a, where)
            yield from _loads(b, where)
        case Unary(a=a) | Cast(a=a):
            yield from _loads(a, where)
        case Call(args=args):
            for arg in args:
                yield from _loads(arg, where)
        case _:
            pass


def divisor(expr: Expr, lets: Mapping[Var, Expr]) -> int:
    """Return a number that divides the integer ``expr`` whatever its variables are (0: it is 0)."""
    match expr:
        case Const(value=value):
            return abs(int(value))
        case Var():
            return divisor(lets[expr], lets) if expr in lets else 1
        case Cast(a=a) if a.dtype.is_integer:
            return divisor(a, lets)
        case Unary(op="neg", a=a):
            return divisor(a, lets)
        case Binary(op="add" | "sub" | "min" | "max" | "mod", a=a, b=b):
            return math.gcd(divisor(a, lets), divisor(b, lets))
        case Binary(op="mul", a=a, b=b):
            return divisor(a, lets) * divisor(b, lets)
        case Select(a=a, b=b):
            return math.gcd(divisor(a, lets), divisor(b, lets))
        case Binary(op="floordiv" | "shr" | "shl"):
            # ``start`` calls 0 what is a multiple of a power of two: no quotient may take it for 0.
            named = {v: e for v, e in lets.items() if int_value(e) is None}
            form = linear(expr, named)
            return 1 if form is None else divisor(form.to_expr(), lets)
        case _:
            return 1


def accessed_outside_points(body: Stmt) -> set[Buffer]:
    """Return the buffers whose elements statements outside of nests read or write one by one."""
    found: set[Buffer] = set()
    _outside(body, found)
    return found


def _outside(stmt: Stmt, found: set[Buffer]) -> None:
    if isinstance(stmt, Parallel) and stmt.loop_vars:
        return
    found |= {load.buffer for load in loads(stmt)}
    if isinstance(stmt, (nodes.Store, nodes.Atomic)):
        found.add(stmt.buffer)
    if isinstance(stmt, nodes.Exchange):
        found.add(stmt.dst)
    for child in children(stmt):
        _outside(child, found)
