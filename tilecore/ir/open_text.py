"""The canonical text of a program at many sizes: only lines that depend on sizes are written again.

A program keeps its statements whatever its sizes are, so its text keeps its lines; what changes are
numbers in some of them, and whether a region is all of its buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tilecore.ir import nodes
from tilecore.ir.expr import Expr, Var, int_value
from tilecore.ir.nodes import Buffer, PrimFunc, Region, Stmt
from tilecore.ir.printer import (
    WITH_BODY,
    Namer,
    format_head,
    format_signature,
    func_lines,
    text_of,
)
from tilecore.ir.substitute import Substitution
from tilecore.ir.visitor import walk_expr


@dataclass(frozen=True, slots=True)
class OpenLine:
    """A line that sizes change: its statement, and the fields of this that have symbols."""

    indent: str
    stmt: Stmt
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenText:
    """The text of a program whose sizes are symbols.

    Attributes:
        func: the program.
        names: of its variables and buffers, by their ids.
        lines: behind the first one; a text, or what has to be written at each size.
    """

    func: PrimFunc
    names: Mapping[int, str]
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
                found.append(OpenLine(indent, stmt, is_open))
        return cls(func, {id(item): namer.name(item) for item in namer.named}, tuple(found))

    def at(self, values: Mapping[Var, int]) -> str:
        """Return what ``printer.format_func`` does of the program with sizes in place of symbols.

        Args:
            values: of all symbols.
        """
        sizes = _Heads(values, dict(self.names))
        namer = _KnownNames(sizes.names)
        params = tuple(sizes.buffer(p) if isinstance(p, Buffer) else p for p in self.func.params)
        first = format_signature(replace(self.func, params=params), namer)
        rest = (
            line if isinstance(line, str) else line.indent + format_head(sizes.head(line), namer)
            for line in self.lines
        )
        return text_of((first, *rest))


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


class _Heads(Substitution):
    """Puts sizes into the heads of statements; their bodies have lines of their own.

    Attributes:
        names: by ids; those of buffers at the sizes are added.
    """

    def __init__(self, values: Mapping[Var, int], names: dict[int, str]) -> None:
        super().__init__(values)
        self.names = names

    def head(self, line: OpenLine) -> Stmt:
        """Return the statement of a line with its own expressions at the sizes."""
        new = {name: self._value(getattr(line.stmt, name)) for name in line.fields}
        return replace(line.stmt, **new)  # type: ignore[type-var]

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return a buffer at the sizes."""
        found = super().buffer(buffer)
        self.names[id(found)] = self.names[id(buffer)]
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
