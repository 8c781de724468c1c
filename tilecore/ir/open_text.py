"""The canonical text of a program at many sizes: only lines that depend on sizes are written again.

A program keeps its statements whatever its sizes are, so its text keeps its lines; what changes are
numbers in some of them, and whether a region is all of its buffer. Where it is numbers alone that
stand for themselves (extents of grids, loops and tensors), the text around them is made once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from tilecore.ir import nodes
from tilecore.ir.expr import Const, Expr, Var, int_value
from tilecore.ir.nodes import Buffer, PrimFunc, Region, Stmt
from tilecore.ir.printer import (
    WITH_BODY,
    Namer,
    format_expr,
    format_head,
    format_signature,
    func_lines,
    text_of,
)
from tilecore.ir.substitute import Substitution, substitute_expr
from tilecore.ir.visitor import has_loads, walk_expr

Sizes = Mapping[Var, int]
# Fields whose expressions stand for themselves.
STAND_ALONE: Mapping[type[Stmt], tuple[str, ...]] = {
    nodes.KernelLaunch: ("grid", "threads"),
    nodes.For: ("start", "stop"),
    nodes.Parallel: ("extents",),
}
MARK = re.compile("\0([0-9]+)\0")
MOST_KEPT = 4096  # numbers, and lines, of all programs


@dataclass(frozen=True, slots=True, eq=False)
class Hole:
    """A place in a line for a number: the value of an expression of symbols."""

    expr: Expr
    symbols: tuple[Var, ...]

    def text_at(self, values: Sizes) -> str | None:
        """Return the number as text, None where it is none."""
        if type(self.expr) is Var:
            return str(values[self.expr])
        return _number(self, tuple(values[v] for v in self.symbols))


@lru_cache(maxsize=MOST_KEPT)
def _number(hole: Hole, values: tuple[int, ...]) -> str | None:
    found = substitute_expr(hole.expr, dict(zip(hole.symbols, values, strict=True)))
    return format_expr(found) if isinstance(found, Const) else None


Pieces = tuple[str | Hole, ...]


def _filled(pieces: Pieces, values: Sizes) -> str | None:
    """Return a line with its numbers in place, None where one is no number."""
    texts = [p if isinstance(p, str) else p.text_at(values) for p in pieces]
    return None if None in texts else "".join(texts)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False)
class OpenLine:
    """A line that sizes change: its statement, and the fields of this that have symbols.

    Attributes:
        symbols: that change it.
        pieces: the line without indent, with places for numbers; None: it is written anew.
    """

    indent: str
    stmt: Stmt
    fields: tuple[str, ...]
    symbols: tuple[Var, ...]
    pieces: Pieces | None


@dataclass(frozen=True, slots=True, eq=False)
class OpenText:
    """The text of a program whose sizes are symbols.

    Attributes:
        func: the program.
        names: of its variables and buffers, by their ids.
        first: the first line in pieces; None: it is written anew.
        lines: behind the first one; a text, or what has to be written at each size.
    """

    func: PrimFunc
    names: Mapping[int, str]
    first: Pieces | None
    lines: tuple[str | OpenLine, ...]

    @classmethod
    def of(cls, func: PrimFunc, symbols: frozenset[Var]) -> OpenText | None:
        """Return the text of ``func``, None where a line depends on more than its own statement.

        That is where something has its name from a line that does not bind it: it may be gone from
        there at some sizes. Also where a statement holds others that are not its body.
        """
        namer = _OpenNamer(symbols)
        _, *lines = func_lines(func, namer)
        heads = [stmt for _, stmt in lines if stmt is not None]
        if any(map(_holds_others, heads)) or not _are_named_where_bound(func, heads, symbols):
            return None
        found: list[str | OpenLine] = []
        for text, stmt in lines:
            is_open = () if stmt is None else _open_fields(stmt, symbols)
            if stmt is None or not is_open:
                found.append(text)
            else:
                indent = text[: len(text) - len(text.lstrip(" "))]
                used = tuple(v for v in symbols if _open_fields(stmt, frozenset((v,))))
                pieces = _Holes(namer, symbols).of_head(stmt, is_open)
                found.append(OpenLine(indent, stmt, is_open, used, pieces))
        names = {id(item): namer.name(item) for item in namer.named}
        return cls(func, names, _Holes(namer, symbols).of_first(func), tuple(found))

    def at(self, values: Sizes) -> str:
        """Return what ``printer.format_func`` does of the program with sizes in place of symbols.

        Args:
            values: of all symbols.
        """
        first = None if self.first is None else _filled(self.first, values)
        rest = (line if isinstance(line, str) else self._line(line, values) for line in self.lines)
        return text_of((first or _Written(self, values).first(self.func), *rest))

    def _line(self, line: OpenLine, values: Sizes) -> str:
        found = None if line.pieces is None else _filled(line.pieces, values)
        if found is None:
            found = _written(self, line, tuple(values[v] for v in line.symbols))
        return line.indent + found


@lru_cache(maxsize=MOST_KEPT)
def _written(text: OpenText, line: OpenLine, values: tuple[int, ...]) -> str:
    return _Written(text, dict(zip(line.symbols, values, strict=True))).head(line)


class _OpenNamer(Namer):
    """Names all but symbols, which take nobody's name: at sizes they are numbers."""

    def __init__(self, symbols: frozenset[Var]) -> None:
        super().__init__()
        self._symbols = symbols

    def name(self, item: Var | Buffer) -> str:
        """Return the unique name of ``item``."""
        return item.name if item in self._symbols else super().name(item)


class _KnownNames(Namer):
    """Gives the names that are known, by ids."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self._known = names

    def name(self, item: Var | Buffer) -> str:
        """Return the name of ``item``."""
        return self._known[id(item)]


class _Entangled(Exception):
    """A number does not stand for itself."""


class _Holes(Namer):
    """Makes a line with places for numbers: expressions of symbols become variables named so."""

    def __init__(self, namer: Namer, symbols: frozenset[Var]) -> None:
        super().__init__()
        self._namer, self._symbols = namer, symbols
        self._found: list[Hole] = []
        self._own: dict[int, str] = {}  # names by ids
        self._kept: list[Var | Buffer] = []  # whose ids these are

    def of_head(self, stmt: Stmt, names: tuple[str, ...]) -> Pieces | None:
        """Return the line of a statement whose fields ``names`` have symbols; None: entangled."""
        try:
            if isinstance(stmt, nodes.Alloc):
                stmt = replace(stmt, buffer=self._buffer(stmt.buffer))
            elif set(names) <= set(STAND_ALONE.get(type(stmt), ())):
                new = {name: self._numbers(getattr(stmt, name)) for name in names}
                stmt = replace(stmt, **new)  # type: ignore[type-var]
            else:
                return None
        except _Entangled:
            return None
        return self._pieces(format_head(stmt, self))

    def of_first(self, func: PrimFunc) -> Pieces | None:
        """Return the first line of a program; None: entangled."""
        try:
            params = tuple(self._buffer(p) if isinstance(p, Buffer) else p for p in func.params)
        except _Entangled:
            return None
        return self._pieces(format_signature(replace(func, params=params), self))

    def name(self, item: Var | Buffer) -> str:
        """Return the name of a hole or of what the program names."""
        return self._own.get(id(item)) or self._namer.name(item)

    def _buffer(self, buffer: Buffer) -> Buffer:
        if buffer.base is not None or buffer.address is not None:
            raise _Entangled
        strides = None if buffer.strides is None else self._numbers(buffer.strides)
        found = replace(buffer, shape=self._numbers(buffer.shape), strides=strides)
        self._call(found, self._namer.name(buffer))
        return found

    def _numbers(self, value: Any) -> Any:
        """Return an expression, or a tuple of them, with holes in place of numbers."""
        if isinstance(value, tuple):
            return tuple(self._numbers(v) for v in value)
        if _is_fixed(value, self._symbols):
            return value
        used = tuple({v: None for v in walk_expr(value) if isinstance(v, Var)})
        if has_loads(value) or not self._symbols.issuperset(used):
            raise _Entangled
        mark = Var(f"\0{len(self._found)}\0", value.dtype)
        self._call(mark, mark.name)
        self._found.append(Hole(value, used))
        return mark

    def _call(self, item: Var | Buffer, name: str) -> None:
        self._own[id(item)] = name
        self._kept.append(item)

    def _pieces(self, text: str) -> Pieces:
        parts = MARK.split(text)  # texts, and between them numbers of holes
        return tuple(self._found[int(p)] if i % 2 else p for i, p in enumerate(parts))


class _Written(Substitution):
    """Writes lines anew: puts sizes into heads of statements, whose bodies have their own lines."""

    def __init__(self, text: OpenText, values: Sizes) -> None:
        super().__init__(values)
        self._names = dict(text.names)

    def first(self, func: PrimFunc) -> str:
        """Return the first line."""
        params = tuple(self.buffer(p) if isinstance(p, Buffer) else p for p in func.params)
        return format_signature(replace(func, params=params), _KnownNames(self._names))

    def head(self, line: OpenLine) -> str:
        """Return another line, without indent."""
        new = {name: self._value(getattr(line.stmt, name)) for name in line.fields}
        head: Stmt = replace(line.stmt, **new)  # type: ignore[type-var]
        return format_head(head, _KnownNames(self._names))

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return a buffer at the sizes; it keeps its name."""
        found = super().buffer(buffer)
        self._names[id(found)] = self._names[id(buffer)]
        return found


def _are_named_where_bound(func: PrimFunc, heads: list[Stmt], symbols: frozenset[Var]) -> bool:
    """Return whether every line names what its statement binds first, and nothing else first."""
    namer = _OpenNamer(symbols)
    format_signature(func, namer)
    if not {id(x) for x in namer.named} <= {id(x) for x in _bases(func.params)}:
        return False
    for stmt in heads:
        before = len(namer.named)
        format_head(stmt, namer)
        bound = {id(x) for value in _values(stmt) for x in _bases(_plain(value))}
        if not all(id(x) in bound for x in namer.named[before:]):
            return False
    return True


def _plain(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _bases(values: tuple[Any, ...]) -> Iterator[Var | Buffer]:
    """Yield the variables and buffers among some values, and what they are views of."""
    for value in values:
        if isinstance(value, (Var, Buffer)):
            yield value
        if isinstance(value, Buffer) and value.base is not None:
            yield value.base


def _holds_others(stmt: Stmt) -> bool:
    """Return whether the line of a statement tells of another statement."""
    if isinstance(stmt, (*WITH_BODY, nodes.If)):
        return False
    return any(isinstance(value, Stmt) for value in _values(stmt))


def _values(stmt: Stmt) -> list[Any]:
    return [getattr(stmt, name) for name in _field_names(stmt)]


def _field_names(stmt: Stmt) -> list[str]:
    return [f.name for f in fields(stmt) if f.name != "span"]  # type: ignore[arg-type]


def _open_fields(stmt: Stmt, symbols: frozenset[Var]) -> tuple[str, ...]:
    """Return the fields of a statement that make its line another one at other sizes."""
    if isinstance(stmt, nodes.Alloc):  # the only one that tells more of a buffer than its name
        return ("buffer",) if _has_symbols(stmt.buffer, symbols) else ()
    return tuple(n for n in _field_names(stmt) if not _is_fixed(getattr(stmt, n), symbols))


def _is_fixed(value: Any, symbols: frozenset[Var]) -> bool:
    if isinstance(value, Expr):
        return not any(isinstance(e, Var) and e in symbols for e in walk_expr(value))
    if isinstance(value, Region):
        if not all(_is_fixed(e, symbols) for e in (*value.offsets, *value.extents)):
            return False
        is_part = any(int_value(offset) != 0 for offset in value.offsets)
        return is_part or not _has_symbols(value.buffer, symbols)
    if isinstance(value, Mapping):
        return all(_is_fixed(v, symbols) for item in value.items() for v in item)
    if isinstance(value, tuple):
        return all(_is_fixed(v, symbols) for v in value)
    return True  # names, flags, buffers by their names, bodies


def _has_symbols(buffer: Buffer, symbols: frozenset[Var]) -> bool:
    own = (buffer.shape, buffer.strides, buffer.address)
    has_own = not all(_is_fixed(value, symbols) for value in own)
    return has_own or (buffer.base is not None and _has_symbols(buffer.base, symbols))
