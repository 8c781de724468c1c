"""rows_in_turn: statements over the rows of tiles run row by row, all of them on one row in turn.

``copy(X, x); reduce_sum(x, s); y = x / s`` of tiles of 16 rows of 4096 columns goes through all of
``x`` before ``y`` begins: what it reads again lies in L2 by then. One row of everything that is
handed on stays in L1, and where nothing else reads a tile, it has one row.

Sums along columns take one row after the other, as they did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilecore.inference.cpu.fusion import PASSABLE
from tilecore.inference.cpu.handed_on import sets_whole
from tilecore.ir.analysis import kept_axes, read_buffers, written_buffers
from tilecore.ir.arithmetic.bounds import linear, mentions
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Load, Var, binary, cast, const, int_value, select
from tilecore.ir.fold import STEPS, fold_dtype, identity, magnitude
from tilecore.ir.nodes import (
    Annotate,
    Buffer,
    Copy,
    Fill,
    For,
    Gemm,
    KernelLaunch,
    Let,
    Parallel,
    PrimFunc,
    Reduce,
    Region,
    Seq,
    Stmt,
    Store,
)
from tilecore.ir.plain.nests import shifted
from tilecore.ir.substitute import Rebuilder, substitute_stmt
from tilecore.ir.visitor import (
    Rewriter,
    buffers_of,
    flat,
    has_loads,
    loads,
    per_launch,
    regions,
    walk,
)
from tilecore.passes.split_tiles import users

L1_BYTES = 32 << 10  # of Zen 2 to 5; Intel's have 48 KiB
LEAST_ROW_BYTES = 1 << 10  # of the widest tile: the sums of shorter rows are closed together
ADDED = ("add", "max", "min")


def run(func: PrimFunc, *, always: bool = False) -> PrimFunc:
    """Return ``func`` with rows in turn where that keeps them in L1 (``always``: where it may)."""
    return per_launch(func, lambda launch: _in_turn(launch, always=always))


def _in_turn(launch: KernelLaunch, *, always: bool) -> Stmt:
    if launch.thread_vars:
        return launch
    turns = _Turns(launch, always=always)
    found = turns.rebuild(launch)
    return _Shorter(turns.shorter).stmt(found) if turns.shorter else found


@dataclass(frozen=True, slots=True)
class _Access:
    """Elements that one row of a statement reads or writes: where they begin."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    is_write: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """A statement as what it does before all rows, and with each of them."""

    stmt: Stmt
    count: int
    before: tuple[Stmt, ...]
    row: Stmt
    accesses: tuple[_Access, ...]
    sums: Buffer | None = None  # what rows are added to


class _Run:
    """Statements one after the other, of which ``members`` may run row by row after the others."""

    def __init__(self) -> None:
        self.row = Var("row")
        self.stmts: list[Stmt] = []
        self.members: list[_Member] = []

    def takes(self, member: _Member) -> bool:
        """Return whether a statement may do its rows in turn with the members."""
        return not self.members or _follows(member, self.members, self.row)

    def is_passed_by(self, stmt: Stmt) -> bool:
        """Return whether a statement may run before the members."""
        if not isinstance(stmt, PASSABLE):
            return False
        written = {b.root for m in self.members for b in written_buffers(m.stmt)}
        touched = written | {b.root for m in self.members for b in read_buffers(m.stmt)}
        if {b.root for b in read_buffers(stmt)} & written:
            return False
        return not {b.root for b in written_buffers(stmt)} & touched


class _Turns(Rewriter):
    """Finds statements of a launch that may run row by row, and lets them."""

    def __init__(self, launch: KernelLaunch, *, always: bool) -> None:
        self.launch, self.always = launch, always
        found = list(walk(launch))
        self.viewed = {b.base for b in buffers_of(launch) if b.base is not None}
        hints = [s.value for s in found if isinstance(s, Annotate) and s.key == "layout"]
        self.kept = {b for layouts in hints for b in layouts}
        for gemm in found:
            if isinstance(gemm, Gemm):
                self.kept.update(region.buffer for region in (gemm.a, gemm.b, gemm.c))
        self.shorter: dict[Buffer, tuple[Buffer, int]] = {}

    def visit_parallel(self, nest: Parallel) -> Stmt:
        """Return a nest as it is: its statements run element by element."""
        return nest

    def visit_seq(self, stmt: Seq) -> Stmt:
        """Return statements with those in one loop that run row by row."""
        stmts = [self.visit(s) for s in flat(stmt.stmts)]
        found: list[Stmt] = []
        run = _Run()
        for child in stmts:
            member = self._member(child, run.row)
            if member is not None and run.takes(member):
                run.stmts.append(child)
                run.members.append(member)
            elif run.members and run.is_passed_by(child):
                run.stmts.append(child)
            else:
                found += self._closed(run)
                run = _Run()
                member = self._member(child, run.row)
                run.stmts.append(child)
                run.members += [] if member is None else [member]
        found += self._closed(run)
        is_same = len(found) == len(stmt.stmts) and all(
            a is b for a, b in zip(found, stmt.stmts, strict=True)
        )
        return stmt if is_same else replace(stmt, stmts=tuple(found))

    def _closed(self, run: _Run) -> list[Stmt]:
        """Return statements as they are, or as what comes before a loop over rows, and that."""
        members, row = run.members, run.row
        if len(members) < 2 or not (self.always or _pays(members)):
            return run.stmts
        for tile in dict.fromkeys(a.buffer for m in members for a in m.accesses):
            axis = self._handed_on(tile, members, row)
            if axis is not None:
                shape = (*tile.shape[:axis], const(1), *tile.shape[axis + 1 :])
                self.shorter[tile] = replace(tile, shape=shape), axis
        body = Seq(tuple(m.row for m in members))
        extent, span = const(members[0].count), members[0].stmt.span
        loop = For(row, const(0), extent, const(1), "serial", body, span=span)
        inside = {m.stmt for m in members}
        passed = [s for s in run.stmts if s not in inside]
        return [*passed, *(s for m in members for s in m.before), loop]

    def _handed_on(self, tile: Buffer, members: Sequence[_Member], row: Var) -> int | None:
        """Return the axis along which one row of a tile is enough; None: it is kept whole."""
        if tile.scope == "global" or tile in self.viewed | self.kept or tile.base is not None:
            return None
        own = [m for m in members if any(a.buffer is tile for a in m.accesses)]
        is_known_elsewhere = users(self.launch, tile) != sum(users(m.stmt, tile) for m in own)
        if is_known_elsewhere or not sets_whole(own[0].stmt, tile):
            return None
        axes = {
            tuple(n for n, index in enumerate(a.indices) if mentions(index, row))
            for m in own for a in m.accesses if a.buffer is tile
        }  # fmt: skip
        (along,) = axes if len(axes) == 1 else ((),)
        return along[0] if along else None

    # --- members --------------------------------------------------------------------------------

    def _member(self, stmt: Stmt, row: Var) -> _Member | None:
        match stmt:
            case Copy(barrier=None):
                found = _copied(stmt, row)
            case Fill():
                found = _filled(stmt, row)
            case Reduce():
                found = _reduced(stmt, row)
            case Parallel():
                found = _nest(stmt, row)
            case _:
                found = None
        if found is None or found.count < 2 or self._is_kept(found):
            return None
        return found

    def _is_kept(self, member: _Member) -> bool:
        """Return whether a statement touches what has a place of its own."""
        buffers = {access.buffer for access in member.accesses}
        is_view = any(b.base is not None or b.reducer is not None for b in buffers)
        return is_view or bool(buffers & (self.viewed | self.kept))


def _first_axis(region: Region) -> tuple[int, int] | None:
    """Return the first axis of a region that is longer than 1, and how long it is."""
    axes = kept_axes(region)
    extent = int_value(region.extents[axes[0]]) if axes else None
    return None if extent is None else (axes[0], extent)


def _row_of(region: Region, axis: int, row: Var) -> Region:
    offsets, extents = list(region.offsets), list(region.extents)
    offsets[axis] = binary("add", offsets[axis], row)
    extents[axis] = const(1)
    return Region(region.buffer, tuple(offsets), tuple(extents))


def _copied(copy: Copy, row: Var) -> _Member | None:
    source, target = _first_axis(copy.src), _first_axis(copy.dst)
    if source is None or target is None or source[1] != target[1]:
        return None
    if len(kept_axes(copy.src)) != len(kept_axes(copy.dst)):
        return None
    src, dst = _row_of(copy.src, source[0], row), _row_of(copy.dst, target[0], row)
    accesses = (_Access(src.buffer, src.offsets, False), _Access(dst.buffer, dst.offsets, True))
    return _Member(copy, source[1], (), replace(copy, src=src, dst=dst), accesses)


def _filled(fill: Fill, row: Var) -> _Member | None:
    target = _first_axis(fill.dst)
    if target is None or has_loads(fill.value):
        return None
    dst = _row_of(fill.dst, target[0], row)
    accesses = (_Access(dst.buffer, dst.offsets, True),)
    return _Member(fill, target[1], (), replace(fill, dst=dst), accesses)


def _reduced(fold: Reduce, row: Var) -> _Member | None:
    source = _first_axis(fold.src)
    if source is None:
        return None
    axis, count = source
    if axis in fold.axes:
        return _added(fold, axis, count, row)
    target = _first_axis(fold.dst)
    if target is None or target[1] != count:
        return None
    src, dst = _row_of(fold.src, axis, row), _row_of(fold.dst, target[0], row)
    accesses = [_Access(src.buffer, src.offsets, False), _Access(dst.buffer, dst.offsets, True)]
    if not fold.clear:
        accesses.append(_Access(dst.buffer, dst.offsets, False))
    return _Member(fold, count, (), replace(fold, src=src, dst=dst), tuple(accesses))


def _added(fold: Reduce, axis: int, count: int, row: Var) -> _Member | None:
    """Return a fold along columns: each row is added to what there is."""
    dtype, (is_size, step) = fold.dst.buffer.dtype, STEPS[fold.op]
    if [a for a in fold.axes if a in kept_axes(fold.src)] != [axis] or fold.nan_propagate:
        return None
    is_plain = dtype != "bool" and step in ADDED
    if not is_plain or fold_dtype(fold.src.buffer.dtype, dtype) != dtype:
        return None
    src = _row_of(fold.src, axis, row)
    extents = tuple(src.extents[a] for a in kept_axes(src))
    names = tuple(Var(f"i{number}") for number in range(len(extents)))
    if not names or len(kept_axes(fold.dst)) != len(names):
        return None
    at, source = shifted(fold.dst, names), shifted(src, names)
    value: Expr = cast(Load(src.buffer, source, src.buffer.dtype), dtype)
    value = magnitude(value) if is_size else value
    old = Load(fold.dst.buffer, at, dtype)
    if step == "add":
        total = binary("add", old, value)
    else:
        total = select(binary("gt" if step == "max" else "lt", value, old), value, old)
    store = Store(fold.dst.buffer, at, total, fold.span)
    nest = Parallel(names, extents, store, span=fold.span)
    start = const(identity(fold.op, dtype), dtype)
    before = (Fill(fold.dst, start, fold.span),) if fold.clear else ()
    accesses = (_Access(src.buffer, source, False),)
    return _Member(fold, count, before, nest, accesses, fold.dst.buffer)


def _nest(nest: Parallel, row: Var) -> _Member | None:
    stmts = flat([nest.body])
    if not nest.loop_vars or not all(isinstance(s, (Let, Store)) for s in stmts):
        return None
    first, *rest = nest.loop_vars
    count = int_value(nest.extents[0])
    if count is None or first.dtype != row.dtype:
        return None
    body = substitute_stmt(nest.body, {first: row})
    if rest:
        changed: Stmt = replace(nest, loop_vars=tuple(rest), extents=nest.extents[1:], body=body)
    else:
        changed = body
    accesses = [_Access(x.buffer, x.indices, False) for s in walk(changed) for x in loads(s)]
    accesses += [_Access(s.buffer, s.indices, True) for s in walk(changed) if isinstance(s, Store)]
    return _Member(nest, count, (), changed, tuple(accesses))


# --- legality -------------------------------------------------------------------------------------


def _follows(member: _Member, group: Sequence[_Member], row: Var) -> bool:
    """Return whether a statement may do its rows in turn with those before it."""
    if member.count != group[0].count:
        return False
    together = (*group, member)
    written = {a.buffer.root for m in together for a in m.accesses if a.is_write}
    sums = [m.sums for m in together if m.sums is not None]
    touched = {a.buffer.root for m in together for a in m.accesses}
    if len(set(sums)) < len(sums) or {b.root for b in sums} & touched:
        return False
    mine = {a.buffer.root for a in member.accesses} & written
    places: dict[Buffer, set[_Place | None]] = {}
    for access in (a for m in together for a in m.accesses if a.buffer.root in mine):
        places.setdefault(access.buffer.root, set()).add(_place(access.indices, row))
    names = {v for m in together for s in walk(m.row) for v in _bound(s)}
    return all(len(found) == 1 and _is_apart(found.pop(), names) for found in places.values())


def _bound(stmt: Stmt) -> tuple[Var, ...]:
    """Return the variables that a statement gives values to what is inside or after it."""
    match stmt:
        case Parallel(loop_vars=names):
            return names
        case Let(var=name):
            return (name,)
        case _:
            return ()


_Place = tuple[int, frozenset[tuple[Var, int]], int]  # an axis, and the index along it


def _place(indices: Iterable[Expr], row: Var) -> _Place | None:
    """Return where along one axis the rows of an access lie; None: not one after the other."""
    along = [(n, linear(index)) for n, index in enumerate(indices) if mentions(index, row)]
    if len(along) != 1 or along[0][1] is None:
        return None
    axis, form = along[0]
    assert form is not None
    return axis, frozenset(form.coefficients.items()), form.constant


def _is_apart(place: _Place | None, names: set[Var]) -> bool:
    """Return whether no row has what another one has; ``names`` differ from element to element."""
    return place is not None and not names & {name for name, _ in place[1]}


# --- profit ---------------------------------------------------------------------------------------


def _pays(members: Sequence[_Member]) -> bool:
    """Return whether rows are read again after what lies between no longer fits L1."""
    folds = [m for m in members if isinstance(m.stmt, Reduce)]
    if len({m.sums is None for m in folds}) < 2 and not _reads_again(members):
        return False
    tiles = {a.buffer for m in members for a in m.accesses if a.buffer.scope != "global"}
    sizes = [_size_bytes(tile) for tile in tiles]
    widest = max(sizes, default=0) // members[0].count
    return sum(sizes) > L1_BYTES and widest >= LEAST_ROW_BYTES


def _reads_again(members: Sequence[_Member]) -> bool:
    """Return whether whole rows are computed from what rows before were folded into."""
    results: set[Buffer] = set()
    for member in members:
        read = {a.buffer for a in member.accesses if not a.is_write}
        if read & results and _is_long(member.row):
            return True
        if read & results or isinstance(member.stmt, Reduce):
            results |= {a.buffer for a in member.accesses if a.is_write}
    return False


def _is_long(row: Stmt) -> bool:
    return isinstance(row, Parallel) or any(kept_axes(region) for region in regions(row))


def _size_bytes(tile: Buffer) -> int:
    shape = tile.static_shape
    return 0 if shape is None else math.prod(shape) * DType(tile.dtype).bits // 8


class _Shorter(Rebuilder):
    """Gives tiles one row."""

    def __init__(self, tiles: Mapping[Buffer, tuple[Buffer, int]]) -> None:
        super().__init__()
        self.tiles = tiles

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return the tile of one row for a tile."""
        return self.tiles[buffer][0] if buffer in self.tiles else buffer

    def expr(self, expr: Expr) -> Expr:
        """Return an element, of the only row."""
        if isinstance(expr, Load) and expr.buffer in self.tiles:
            indices = self._placed(expr.buffer, expr.indices)
            return Load(self.buffer(expr.buffer), tuple(map(self.expr, indices)), expr.dtype)
        return super().expr(expr)

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return a statement that stores to the only row."""
        if isinstance(stmt, Store) and stmt.buffer in self.tiles:
            stmt = replace(stmt, indices=self._placed(stmt.buffer, stmt.indices))
        return super().stmt(stmt)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Region) and value.buffer in self.tiles:
            offsets = self._placed(value.buffer, value.offsets)
            return Region(self.buffer(value.buffer), offsets, value.extents)
        return super()._value(value)

    def _placed(self, tile: Buffer, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        axis = self.tiles[tile][1]
        return (*indices[:axis], const(0), *indices[axis + 1 :])
