"""Tile IR to JSON: the canonical form, so that one program has one text and one digest."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tilecore.errors import InvalidDocument, SourceSpan
from tilecore.ir.document.grammar import MOST_NODES, NAMES, SCHEMA, STATEMENTS, usual
from tilecore.ir.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Pointer,
    Select,
    Unary,
    Var,
)
from tilecore.ir.fragment import Fragment
from tilecore.ir.layout import Layout
from tilecore.ir.nodes import Buffer, PrimFunc, Region, SourceLaunch, Stmt

FLAT_MEMBERS = (  # of a buffer: what JSON takes as it is
    "scope", "is_output", "is_var", "reducer", "in_tensor_memory", "lanes", "of_cluster",
)  # fmt: skip
_BARE = {"int32": int, "float32": float, "bool": bool}
_PATTERN = re.compile(r"[A-Za-z0-9_.<>-]+")


def write(
    func: PrimFunc, symbols: Sequence[Var] = (), *, with_places: bool = True
) -> dict[str, Any]:
    """Return the document of ``func``.

    Args:
        func: a traced program.
        symbols: open knobs and sizes; they get the first places in ``vars``.
        with_places: keep where in the source each statement stands.

    Raises:
        InvalidDocument: a hint holds a value that has no form in JSON (TC205).
    """
    return _Writer(with_places).func(func, symbols)


def canonical_bytes(document: Mapping[str, Any]) -> bytes:
    """Return the one text of a document: members in order, no spaces, ASCII."""
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def digest(func: PrimFunc, symbols: Sequence[Var] = ()) -> str:
    """Return 32 hex digits that identify a program wherever its source stands."""
    return hashlib.sha256(canonical_bytes(write(func, symbols, with_places=False))).hexdigest()[:32]


class _Writer:
    def __init__(self, with_places: bool) -> None:
        self.with_places = with_places
        self.vars: list[list[str]] = []
        self.buffers: list[dict[str, Any]] = []
        self.files: dict[str, int] = {}
        self.nodes = 0
        self._vars: dict[int, tuple[int, Var]] = {}
        self._buffers: dict[int, tuple[int, Buffer]] = {}

    def func(self, func: PrimFunc, symbols: Sequence[Var]) -> dict[str, Any]:
        for symbol in symbols:
            self.var(symbol)
        params = [
            {"buffer": self.buffer(p)} if isinstance(p, Buffer) else {"var": self.var(p)}
            for p in func.params
        ]
        body = self.stmt(func.body)
        found = {
            "schema": SCHEMA,
            "name": func.name,
            "params": params,
            "body": body,
            "vars": self.vars,
            "buffers": self.buffers,
            **self.place(func.span),
        }
        if func.attrs:
            found["attrs"] = self.notes(func.attrs)
        if self.files:
            found["files"] = list(self.files)
        return found

    def place(self, span: SourceSpan) -> dict[str, Any]:
        """Return where a node stands, as its member ``at``."""
        if not self.with_places or not span.is_known:
            return {}
        name = _file_name(span.file)
        at = [self.files.setdefault(name, len(self.files)), span.line, span.column]
        return {"at": at if span.end_column is None else [*at, span.end_column]}

    def var(self, var: Var) -> int:
        known = self._vars.get(id(var))
        if known is None:
            described = [var.name, str(var.dtype)]
            if isinstance(var, Pointer):
                described.append("" if var.target is None else str(var.target))
            known = self._vars[id(var)] = (len(self.vars), var)
            self.vars.append(described)
        return known[0]

    def buffer(self, buffer: Buffer) -> int:
        known = self._buffers.get(id(buffer))
        if known is not None:
            return known[0]
        described = self._described(buffer)  # what it refers to gets its place first
        number = len(self.buffers)
        self._buffers[id(buffer)] = (number, buffer)
        self.buffers.append(described)
        return number

    def _described(self, buffer: Buffer) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": buffer.name,
            "shape": self.exprs(buffer.shape),
            "dtype": str(buffer.dtype),
        }
        usually = usual(Buffer)
        for name in FLAT_MEMBERS:
            value = getattr(buffer, name)
            if value != usually[name]:
                found[name] = value
        if buffer.strides is not None:
            found["strides"] = self.exprs(buffer.strides)
        if buffer.base is not None:
            found["base"] = self.buffer(buffer.base)
        if buffer.address is not None:
            found["address"] = self.expr(buffer.address)
        if buffer.arrive_counts is not None:
            found["arrive_counts"] = list(buffer.arrive_counts)
        return found | self.place(buffer.span)

    # --- statements -----------------------------------------------------------------------

    def stmt(self, stmt: Stmt) -> dict[str, Any]:
        if isinstance(stmt, SourceLaunch):
            raise InvalidDocument(
                path="program",
                expected="tile operations, which whoever receives the program can check",
                found=f"the CUDA source of kernel `{stmt.entry}`",
                hint="compile and measure this program where it is written",
            ).at(stmt.span)
        name = NAMES[type(stmt)]
        found: dict[str, Any] = {"node": name}
        usually = usual(type(stmt))
        for field, kind in STATEMENTS[name].fields.items():
            value = getattr(stmt, field)
            if field in usually and _is_usual(value, usually[field]):
                continue
            found[field] = self.field(kind, value)
        return found | self.place(stmt.span)

    def field(self, kind: str, value: Any) -> Any:  # noqa: C901 - one case per kind of value
        match kind:
            case "expr":
                return self.expr(value)
            case "exprs":
                return self.exprs(value)
            case "var":
                return self.var(value)
            case "vars":
                return [self.var(v) for v in value]
            case "buffer":
                return self.buffer(value)
            case "region":
                return self.region(value)
            case "regions":
                return [self.region(r) for r in value]
            case "load":
                return [self.buffer(value.buffer), self.exprs(value.indices)]
            case "stmt" | "copy":
                return self.stmt(value)
            case "stmts":
                return [self.stmt(s) for s in value]
            case "notes":
                return self.notes(value)
            case "value":
                return self.value(value)
            case "ints":
                return [int(v) for v in value]
            case "int":
                return int(value)
            case "flag":
                return bool(value)
            case _:
                return str(value)

    def region(self, region: Region) -> list[Any]:
        return [self.buffer(region.buffer), self.exprs(region.offsets), self.exprs(region.extents)]

    # --- expressions ----------------------------------------------------------------------

    def exprs(self, exprs: Sequence[Expr]) -> list[Any]:
        return [self.expr(e) for e in exprs]

    def expr(self, expr: Expr) -> Any:
        self.nodes += 1  # what the program shares is written out each time
        if self.nodes > MOST_NODES:
            raise InvalidDocument(
                path="program", expected=f"at most {MOST_NODES} expressions", found="more"
            )
        match expr:
            case Var():
                return ["var", self.var(expr)]
            case Const():
                return _const(expr)
            case Binary():
                return [expr.op, self.expr(expr.a), self.expr(expr.b)]
            case Unary():
                return [expr.op, self.expr(expr.a)]
            case Select():
                return ["select", self.expr(expr.cond), self.expr(expr.a), self.expr(expr.b)]
            case Cast():
                return ["cast", str(expr.dtype), self.expr(expr.a)]
            case Load():
                return ["load", self.buffer(expr.buffer), self.exprs(expr.indices)]
            case Call(name="reinterpret"):
                return ["reinterpret", str(expr.dtype), self.expr(expr.args[0])]
            case Call():
                return ["call", expr.name, self.exprs(expr.args)]
            case _:
                raise InvalidDocument(
                    path="program", expected="an expression", found=type(expr).__name__
                )

    # --- hints ----------------------------------------------------------------------------

    def notes(self, notes: Mapping[str, Any]) -> dict[str, Any]:
        return {str(name): self.value(value) for name, value in notes.items()}

    def value(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": _words(value)}
        if isinstance(value, Expr):
            return {"expr": self.expr(value)}
        if isinstance(value, Buffer):
            return {"buffer": self.buffer(value)}
        if isinstance(value, Layout):
            return {"layout": self.layout(value)}
        if isinstance(value, Mapping):
            return {"map": [[self.value(k), self.value(v)] for k, v in value.items()]}
        if isinstance(value, tuple | list):
            return [self.value(v) for v in value]
        raise InvalidDocument(
            path="hint",
            expected="numbers, texts, expressions, tiles, layouts, or lists and mappings of them",
            found=type(value).__name__,
        )

    def layout(self, layout: Layout) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": layout.name,
            "shape": list(layout.shape),
            "variables": [self.var(v) for v in layout.variables],
            "coordinates": self.exprs(layout.coordinates),
        }
        if isinstance(layout, Fragment):
            found["replicate"] = layout.replicate
        return found


def _is_usual(value: Any, usually: Any) -> bool:
    if isinstance(usually, Mapping):
        return not value
    return type(value) is type(usually) and value == usually


def _const(value: Const) -> Any:
    number = value.value
    if value.dtype.is_float and not math.isfinite(number):
        return ["const", str(value.dtype), _words(float(number))]
    if type(number) is _BARE.get(str(value.dtype)):
        return number
    return ["const", str(value.dtype), number]


def _words(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _file_name(path: str) -> str:
    """Return the name of a source file, made of harmless characters, without its folder."""
    name = os.path.basename(path.replace("\\", "/")).strip("<>") or "program"
    return "".join(_PATTERN.findall(name))[-100:] or "program"
