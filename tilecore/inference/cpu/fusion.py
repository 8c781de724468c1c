"""Which statements over one domain run in one loop nest.

A tile that one statement writes and the next one reads then stays in registers from one to the
other. Statements may share a nest where every element that one of them writes and another one
touches is touched in the same iteration; reductions of one nest fold the same axes, and nothing
else in it sees their results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilecore.inference.cpu.handed_on import handed_on
from tilecore.inference.cpu.plan import FusedNest
from tilecore.inference.cpu.storage import Storage
from tilecore.inference.names import without_names
from tilecore.ir.analysis import kept_axes, read_buffers, written_buffers
from tilecore.ir.arithmetic.bounds import linear, variables
from tilecore.ir.expr import Expr, Load, Var, int_value
from tilecore.ir.nodes import (
    Alloc,
    Annotate,
    Buffer,
    Copy,
    Fill,
    Gemm,
    KernelLaunch,
    Let,
    Parallel,
    Reduce,
    Scan,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.plain.nests import copy_nest, fill_nest, shifted
from tilecore.ir.substitute import substitute_stmt
from tilecore.ir.visitor import expressions, flat, loads, walk, walk_expr

# A member moves up past these if it has nothing to do with them.
PASSABLE = (Alloc, Annotate, Copy, Fill, Gemm, Let, Parallel, Reduce, Scan, Store)


@dataclass(frozen=True, slots=True)
class _Access:
    buffer: Buffer
    indices: tuple[Expr, ...]
    is_write: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """A statement as the steps of one iteration over ``extents``."""

    stmt: Stmt
    loop_vars: tuple[Var, ...]
    extents: tuple[int, ...]
    steps: tuple[Store | Reduce, ...]
    accesses: tuple[_Access, ...]
    folded: frozenset[int] = frozenset()

    @property
    def crosses(self) -> bool:
        """Whether it only moves elements, from neighbours along one axis to those along another.

        By itself it does so in blocks (lowering/cpu/nests/transposed.py).
        """
        if len(self.steps) > 1 or len(self.loop_vars) < 2:
            return False
        (step,) = self.steps
        if not isinstance(step, Store) or not isinstance(step.value, Load):
            return False
        read, written = (
            variables(i[-1]) & {*self.loop_vars} for i in (step.value.indices, step.indices)
        )
        return bool(written) and bool(read) and not read & written


def fuse(
    launch: KernelLaunch, elided: Collection[Stmt], storages: Mapping[Buffer, Storage]
) -> list[FusedNest]:
    """Return the nests that take the place of two or more statements each."""
    found: list[FusedNest] = []
    places = Counter(walk(launch.body))  # a condition of a while stands before and in its body
    for seq in places:
        if isinstance(seq, Seq):
            stmts = [s for s in seq.stmts if s not in elided]
            members = [_member(s, storages) if places[s] == 1 else None for s in stmts]
            nests = _fuse(stmts, [None if m is None or m.crosses else m for m in members])
            found += [replace(n, handed_on=handed_on(launch, seq, n)) for n in nests]
    return found


def alone(stmt: Stmt, storages: Mapping[Buffer, Storage]) -> FusedNest | None:
    """Return a statement as a nest of its own, None where it has no such form."""
    member = _member(stmt, storages)
    if member is None:
        return None
    return FusedNest((stmt,), member.loop_vars, member.extents, member.steps, member.folded)


def together(launch: KernelLaunch, stmts: Sequence[Stmt]) -> FusedNest | None:
    """Return all of the statements of a launch as one nest, in their order, None where they differ.

    Statements that share nothing may stand in it, too.
    """
    group: list[_Member] = []
    for stmt in stmts:
        member = _member(stmt, {})
        if member is None or (group and member.extents != group[0].extents):
            return None
        if not all(a.agrees(b) for a, b in _shared_places(member, group)):
            return None
        group.append(member)
    nest = _nest(group)
    return replace(nest, handed_on=handed_on(launch, Seq(tuple(stmts)), nest))


def _nest(group: Sequence[_Member]) -> FusedNest:
    names, extents = group[0].loop_vars, group[0].extents
    steps = tuple(step for m in group for step in _renamed(m, names))
    folded = frozenset[int]().union(*(m.folded for m in group))
    return FusedNest(tuple(m.stmt for m in group), names, extents, steps, folded)


def _fuse(stmts: Sequence[Stmt], members: Sequence[_Member | None]) -> list[FusedNest]:
    found: list[FusedNest] = []
    taken: set[int] = set()
    for first, member in enumerate(members):
        if member is None or first in taken:
            continue
        group, passed = [member], []
        for position in range(first + 1, len(stmts)):
            other = members[position]
            if position in taken:
                passed.append(stmts[position])
            elif other is not None and _joins(other, group) and _moves(other, passed):
                group.append(other)
                taken.add(position)
            elif isinstance(stmts[position], PASSABLE):
                passed.append(stmts[position])
            else:
                break
        if len(group) > 1:
            found.append(_nest(group))
    return found


# --- members ------------------------------------------------------------------------------------


def _member(stmt: Stmt, storages: Mapping[Buffer, Storage]) -> _Member | None:
    """Return a statement as a member of a nest, or None."""
    match stmt:
        case Copy(src=src, dst=dst):
            kinds = {storages[b].kind for b in (src.buffer, dst.buffer) if b in storages}
            nest = copy_nest(stmt) if "panels" not in kinds else None
        case Fill():
            nest = fill_nest(stmt)
        case Parallel():
            nest = stmt
        case Reduce():
            return _reduction(stmt)
        case _:
            return None
    return None if nest is None else _stores(stmt, nest)


def _stores(stmt: Stmt, nest: Parallel) -> _Member | None:
    sizes = {v: int_value(e) for v, e in zip(nest.loop_vars, nest.extents, strict=True)}
    extents = {v: size for v, size in sizes.items() if size is not None and size > 1}
    single = {v: 0 for v, size in sizes.items() if size == 1}
    if not extents or len(extents) + len(single) < len(sizes):
        return None
    if any(v.dtype != "int32" for v in nest.loop_vars):
        return None
    steps = flat([substitute_stmt(nest.body, single) if single else nest.body])
    stores = without_names(steps)
    if not stores or any(s.buffer.reducer is not None for s in stores):
        return None
    accesses = [_Access(x.buffer, x.indices, False) for s in stores for x in loads(s)]
    accesses += [_Access(s.buffer, s.indices, True) for s in stores]
    return _Member(stmt, (*extents,), (*extents.values(),), stores, tuple(accesses))


def _reduction(stmt: Reduce) -> _Member | None:
    axes = kept_axes(stmt.src)
    sizes = [int_value(stmt.src.extents[a]) for a in axes]
    if not sizes or any(size is None for size in sizes):
        return None
    names = tuple(Var(f"i{axis}") for axis in range(len(axes)))
    folded = frozenset(i for i, axis in enumerate(axes) if axis in stmt.axes)
    kept = tuple(name for i, name in enumerate(names) if i not in folded)
    if not folded or len(kept) != len(kept_axes(stmt.dst)):
        return None
    target = _Access(stmt.dst.buffer, shifted(stmt.dst, kept), True)
    source = _Access(stmt.src.buffer, shifted(stmt.src, names), False)
    extents = tuple(size for size in sizes if size is not None)
    return _Member(stmt, names, extents, (stmt,), (source, target), folded)


def _renamed(member: _Member, names: tuple[Var, ...]) -> Iterator[Store | Reduce]:
    """Yield the steps of a member over the loop variables ``names``."""
    values = dict(zip(member.loop_vars, names, strict=True))
    for step in member.steps:
        changed = substitute_stmt(step, values) if isinstance(step, Store) else step
        assert isinstance(changed, (Store, Reduce))
        yield changed


# --- legality -----------------------------------------------------------------------------------


def _joins(member: _Member, group: Sequence[_Member]) -> bool:
    """Return whether a member shares buffers with a group and may run in one nest with it."""
    together = (*group, member)
    folds = {m.folded for m in together if m.folded}
    if member.extents != group[0].extents or len(folds) > 1:
        return False
    pairs = _shared_places(member, group)
    return bool(pairs) and all(a.agrees(b) for a, b in pairs)


def _shared_places(member: _Member, group: Sequence[_Member]) -> list[tuple[_Place, _Place]]:
    """Return what a member and a group access of the same buffers, pair by pair."""
    return [
        (_Place.of(a, member.loop_vars), _Place.of(b, other.loop_vars))
        for other in group
        for a in member.accesses
        for b in other.accesses
        if a.buffer.root is b.buffer.root
    ]


@dataclass(frozen=True, slots=True)
class _Place:
    """Which element each iteration accesses: positions stand for the loop variables.

    ``terms``: per axis the coefficients and the constant, None where they are not linear.
    """

    buffer: Buffer
    is_write: bool
    rank: int
    terms: tuple[tuple[frozenset[tuple[Var | int, int]], int] | None, ...]

    @staticmethod
    def of(access: _Access, names: tuple[Var, ...]) -> _Place:
        position = {v: i for i, v in enumerate(names)}
        forms = [linear(index) for index in access.indices]
        terms = tuple(
            None
            if form is None
            else (
                frozenset((position.get(v, v), c) for v, c in form.coefficients.items()),
                form.constant,
            )
            for form in forms
        )
        return _Place(access.buffer, access.is_write, len(names), terms)

    def agrees(self, other: _Place) -> bool:
        """Return whether no iteration sees what another one writes."""
        if not (self.is_write or other.is_write):
            return True
        return self.buffer is other.buffer and self.terms == other.terms and self._is_own

    @property
    def _is_own(self) -> bool:
        """Whether every iteration has an element of its own: a loop variable for each axis."""
        found: list[int] = []
        for term in self.terms:
            if term is None:
                return False
            along = [name for name, _ in term[0] if isinstance(name, int)]
            if len(along) > 1:
                return False
            found += along
        return sorted(found) == list(range(self.rank))


def _moves(member: _Member, passed: Sequence[Stmt]) -> bool:
    """Return whether a member may run before the statements it passes."""
    written = {a.buffer.root for a in member.accesses if a.is_write}
    touched = {a.buffer.root for a in member.accesses}
    inside = [e for s in walk(member.stmt) for e in expressions(s)]
    names = {n for e in inside for n in walk_expr(e) if isinstance(n, Var)}
    for stmt in passed:
        if isinstance(stmt, Alloc) and stmt.buffer.root in touched:
            return False
        if isinstance(stmt, Let) and stmt.var in names:
            return False
        changed = {b.root for b in written_buffers(stmt)}
        if changed & touched or written & {b.root for b in read_buffers(stmt)}:
            return False
    return True
