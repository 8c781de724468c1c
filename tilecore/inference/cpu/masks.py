"""Products that a mask makes pointless: sums that it replaces, and weights that it makes zero.

A causal or windowed attention computes whole blocks of scores and then hides some of them. Scores
that the program replaces right after their gemm are never seen, so that the gemm may leave them
out, register tile by register tile. Hidden scores of minus infinity become weights of zero; what
these are multiplied by changes nothing unless it is NaN or infinite, so that the second gemm leaves
them out only where the program says that what is masked counts nothing (``skips_masked``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilecore.inference.cpu.plan import Mask
from tilecore.inference.cpu.regions import gemm_extents
from tilecore.inference.uses import Context
from tilecore.ir.analysis import covers_whole, written_buffers
from tilecore.ir.arithmetic.bounds import Linear, interval, linear, variables
from tilecore.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Unary, Var, int_value
from tilecore.ir.nodes import Buffer, Copy, Gemm, If, Let, Parallel, Seq, Stmt, Store
from tilecore.ir.plain.nests import copy_nest
from tilecore.ir.visitor import buffers_of, flat, has_jump, has_loads, walk, walk_expr

OPPOSITES = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@dataclass(frozen=True, slots=True)
class Masked:
    """What gemms may leave out.

    Attributes:
        sums: elements of c that are not looked at.
        weights: elements of a, by the rows and columns of op(a), that count nothing.
    """

    sums: Mapping[Gemm, Mask]
    weights: Mapping[Gemm, Mask]


def find(
    body: Stmt,
    contexts: Mapping[Gemm, Context],
    viewed: Collection[Buffer],
    *,
    skips_masked: bool,
) -> Masked:
    """Return what the gemms below a statement may leave out.

    Args:
        body: of a kernel launch.
        contexts: what surrounds each gemm.
        viewed: tiles that other tiles are views of.
        skips_masked: what is masked counts nothing, whatever it is multiplied by.
    """
    sums: dict[Gemm, Mask] = {}
    weights: dict[Gemm, Mask] = {}
    places = Counter(walk(body))  # a condition of a while stands before and in its body
    for seq in places:
        if not isinstance(seq, Seq) or places[seq] > 1:
            continue
        stmts = flat(seq.stmts)
        for at, gemm in enumerate(stmts):
            if not isinstance(gemm, Gemm) or not _is_plain_tile(gemm, viewed):
                continue
            after = _mask_after(stmts, at)
            before = _mask_before(stmts, at) if skips_masked else None
            mask = after or before
            if mask is None or not _may_hide(mask.found, gemm, contexts[gemm]):
                continue
            sums[gemm] = mask.found
            if skips_masked and mask.is_infinite:
                weights.update(_weights(stmts, mask, max(at, mask.place), gemm.c.buffer))
    return Masked(sums, weights)


def _is_plain_tile(gemm: Gemm, viewed: Collection[Buffer]) -> bool:
    tile = gemm.c.buffer
    is_tile = tile.scope != "global" and tile.base is None and tile not in viewed
    return is_tile and len(tile.shape) == 2 and covers_whole(gemm.c)


def _may_hide(mask: Mask, gemm: Gemm, context: Context) -> bool:
    """Return whether a term of a mask of a gemm's sums can hold."""
    rows, columns = gemm_extents(gemm.c)
    ranges = {**context.ranges, mask.row: (0, rows - 1), mask.column: (0, columns - 1)}
    ends = [interval(term.to_expr(), ranges, context.lets) for term in mask.terms]
    return any(end is None or end[1] >= 0 for end in ends)


# --- masks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """A mask, which statement of its sequence it is, and whether it hides by minus infinity."""

    found: Mask
    place: int
    is_infinite: bool


def _mask_after(stmts: Sequence[Stmt], at: int) -> _Found | None:
    """Return the mask by which the first statement to touch a gemm's sums replaces some."""
    gemm = stmts[at]
    assert isinstance(gemm, Gemm)
    lets: dict[Var, Expr] = {}
    for place in range(at + 1, len(stmts)):
        stmt = stmts[place]
        if isinstance(stmt, Let):
            lets[stmt.var] = stmt.value
        if _touches(stmt, gemm.c.buffer):
            return _mask(stmt, place, gemm.c.buffer, lets)
        if has_jump(stmt):
            return None
    return None


def _mask_before(stmts: Sequence[Stmt], at: int) -> _Found | None:
    """Return the mask whose minus infinities a gemm adds finite products to."""
    gemm = stmts[at]
    assert isinstance(gemm, Gemm)
    if not isinstance(gemm.clear_accum, Const) or gemm.clear_accum.value:
        return None
    for place in range(at - 1, -1, -1):
        if _touches(stmts[place], gemm.c.buffer):
            found = _mask(stmts[place], place, gemm.c.buffer, {})
            return found if found is not None and found.is_infinite else None
    return None


def _mask(stmt: Stmt, place: int, tile: Buffer, lets: Mapping[Var, Expr]) -> _Found | None:
    """Return the mask of a nest over a whole tile, which may stand under a condition.

    ``lets``: names bound between the gemm and the nest, which the gemm does not know.
    """
    cond, nest = None, stmt
    if isinstance(stmt, If) and stmt.else_body is None:
        inner = flat([stmt.then_body])
        cond, nest = stmt.cond, inner[0] if len(inner) == 1 else stmt
    if not isinstance(nest, Parallel):
        return None
    *names, store = flat([nest.body])
    bindings = dict(lets)
    for let in names:
        if not isinstance(let, Let):
            return None
        bindings[let.var] = let.value
    if not isinstance(store, Store) or not _runs_over(nest, store, tile):
        return None
    if cond is not None and (has_loads(cond) or variables(cond) & set(lets)):
        return None
    row, column = nest.loop_vars
    choices = _replacing(store, tile)
    for hidden, value in sorted(choices, key=lambda choice: not _is_minus_infinity(choice[1])):
        terms = tuple(_terms(hidden, bindings, is_negated=False))
        terms = tuple(t for t in terms if not set(t.coefficients) & set(bindings))
        if terms:
            mask = Mask(row, column, terms, cond, nest.span)
            return _Found(mask, place, _is_minus_infinity(value))
    return None


def _runs_over(nest: Parallel, store: Store, tile: Buffer) -> bool:
    """Return whether a store of a nest visits each element of a tile at its own iteration."""
    if store.buffer is not tile or len(nest.loop_vars) != 2 or store.buffer.reducer is not None:
        return False
    sizes = [int_value(e) for e in nest.extents]
    in_order = all(i is v for i, v in zip(store.indices, nest.loop_vars, strict=True))
    return in_order and sizes == [int_value(e) for e in tile.shape]


def _replacing(store: Store, tile: Buffer) -> Iterator[tuple[Expr, Expr]]:
    """Yield when a store replaces an element, whatever it is, and by which value."""
    value = store.value
    if not isinstance(value, Select) or _reads(value.cond, tile):
        return
    if not _reads(value.a, tile):
        yield value.cond, value.a
    if not _reads(value.b, tile):
        yield Unary("not", value.cond, value.cond.dtype), value.b


def _terms(cond: Expr, lets: Mapping[Var, Expr], *, is_negated: bool) -> Iterator[Linear]:
    """Yield linear forms of which each makes a condition hold where it is not negative."""
    match cond:
        case Unary(op="not", a=a):
            yield from _terms(a, lets, is_negated=not is_negated)
        case Binary(op=op, a=a, b=b) if op == ("and" if is_negated else "or"):
            yield from _terms(a, lets, is_negated=is_negated)
            yield from _terms(b, lets, is_negated=is_negated)
        case Binary(op=op, a=a, b=b) if op in OPPOSITES and a.dtype == "int32":
            op = OPPOSITES[op] if is_negated else op
            low, high = (b, a) if op in ("gt", "ge") else (a, b)
            one, other = linear(high, lets), linear(low, lets)
            if one is not None and other is not None:
                yield one.plus(other, -1).plus(Linear({}, -1 if op in ("gt", "lt") else 0))


# --- weights --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tiles:
    """What hidden elements of tiles are: minus infinity, or 0."""

    infinite: set[Buffer]
    zero: set[Buffer]

    def after(self, stmt: Stmt) -> _Tiles:
        """Return what they are after a statement."""
        changed = {b.root for b in written_buffers(stmt)}
        infinite, zero = (
            {t for t in x if t.root not in changed} for x in (self.infinite, self.zero)
        )
        made = _elementwise(stmt)
        if made is not None:
            tile, value, place = made
            if _falls(value, self.infinite, place):
                infinite.add(tile)
            if _vanishes(value, self, place):
                zero.add(tile)
        return _Tiles(infinite, zero)


def _weights(
    stmts: Sequence[Stmt], mask: _Found, last: int, scores: Buffer
) -> Iterator[tuple[Gemm, Mask]]:
    """Yield the gemms whose weights a mask makes zero.

    ``last``: the later one of the gemm that computes ``scores`` and the mask.
    """
    if not any(map(mask.found.ends_rows, mask.found.terms)):
        return
    tiles = _Tiles({scores}, set())
    for stmt in stmts[last + 1 :]:
        if isinstance(stmt, Gemm) and _are_weights(stmt, tiles.zero):
            yield stmt, mask.found
        tiles = tiles.after(stmt)


def _are_weights(gemm: Gemm, zero: Collection[Buffer]) -> bool:
    return gemm.a.buffer in zero and covers_whole(gemm.a) and not gemm.transpose_a


def _elementwise(stmt: Stmt) -> tuple[Buffer, Expr, Sequence[Var]] | None:
    """Return a tile, and the value that a statement gives each element, at these variables."""
    nest = stmt
    if isinstance(stmt, Copy):
        if not covers_whole(stmt.src) or not covers_whole(stmt.dst):
            return None
        nest = copy_nest(stmt)
    if not isinstance(nest, Parallel):
        return None
    *names, store = flat([nest.body])
    if names or not isinstance(store, Store) or not _runs_over(nest, store, store.buffer):
        return None
    return store.buffer, store.value, nest.loop_vars


def _vanishes(value: Expr, tiles: _Tiles, place: Sequence[Var]) -> bool:
    """Return whether a value is 0 at hidden elements, if what it is multiplied by is finite."""
    match value:
        case Load(buffer=buffer, indices=indices):
            return buffer in tiles.zero and _is_at(indices, place)
        case Cast(a=a) if a.dtype.is_float:
            return _vanishes(a, tiles, place)
        case Binary(op="mul", a=a, b=b):
            return _vanishes(a, tiles, place) or _vanishes(b, tiles, place)
        case Binary(op="div", a=a):
            return _vanishes(a, tiles, place)
        case Call(name="exp" | "exp2", args=(exponent,)):
            return _falls(exponent, tiles.infinite, place)
    return False


def _falls(value: Expr, infinite: Collection[Buffer], place: Sequence[Var]) -> bool:
    """Return whether a value is minus infinity where a tile is, if the rest is finite."""
    match value:
        case Load(buffer=buffer, indices=indices):
            return buffer in infinite and _is_at(indices, place)
        case Cast(a=a) if a.dtype.is_float:
            return _falls(a, infinite, place)
        case Binary(op="mul" | "div", a=a, b=Const(value=factor)) if factor > 0:
            return _falls(a, infinite, place)
        case Binary(op="mul", a=Const(value=factor), b=b) if factor > 0:
            return _falls(b, infinite, place)
        case Binary(op="add", a=a, b=b):
            return _falls(a, infinite, place) or _falls(b, infinite, place)
        case Binary(op="sub", a=a):
            return _falls(a, infinite, place)
    return False


def _is_at(indices: Sequence[Expr], place: Sequence[Var]) -> bool:
    return len(indices) == 2 and all(i is v for i, v in zip(indices, place, strict=True))


def _is_minus_infinity(value: Expr) -> bool:
    return isinstance(value, Const) and value.value == -math.inf


def _reads(expr: Expr, tile: Buffer) -> bool:
    return any(isinstance(e, Load) and e.buffer.root is tile for e in walk_expr(expr))


def _touches(stmt: Stmt, tile: Buffer) -> bool:
    return any(b.root is tile for b in buffers_of(stmt))
