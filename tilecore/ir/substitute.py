"""Replacing symbols: rebuilding a program, its buffers and expressions, with constants folded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tilecore.ir.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    ExprLike,
    Load,
    Select,
    Unary,
    Var,
    as_expr,
    binary,
    cast,
    select,
    unary,
)
from tilecore.ir.nodes import Buffer, PrimFunc, Region, Stmt
from tilecore.ir.visitor import expr_children

PLAIN = frozenset({bool, int, float, str, type(None)})


class Rebuilder:
    """Rebuilds a program bottom-up; override ``expr``, ``buffer`` or ``stmt`` to change nodes.

    Nodes that do not change are returned as they are, so an unchanged program stays identical.
    Expressions are rebuilt through the folding constructors.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, tuple[Buffer, Buffer]] = {}

    def func(self, func: PrimFunc) -> PrimFunc:
        """Return ``func`` rewritten."""
        params = tuple(self.buffer(p) if isinstance(p, Buffer) else p for p in func.params)
        return dataclasses.replace(func, params=params, body=self.stmt(func.body))

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return the buffer that stands for ``buffer`` (one object for one object)."""
        if id(buffer) not in self._buffers:
            changes = {
                name: new
                for name in ("shape", "strides", "base", "address")
                if (new := self._value(old := getattr(buffer, name))) is not old
            }
            new = dataclasses.replace(buffer, **changes) if changes else buffer
            self._buffers[id(buffer)] = (buffer, new)
        return self._buffers[id(buffer)][1]

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` rewritten."""
        old = expr_children(expr)
        new = tuple(self.expr(c) for c in old)
        buffer = self.buffer(expr.buffer) if isinstance(expr, Load) else None
        unchanged = all(a is b for a, b in zip(old, new, strict=True))
        if unchanged and (buffer is None or buffer is expr.buffer):  # type: ignore[attr-defined]
            return expr
        return _rebuild(expr, new, buffer)

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return ``stmt`` rewritten."""
        changes: dict[str, Any] = {}
        for field in dataclasses.fields(stmt):  # type: ignore[arg-type]
            if field.name == "span":
                continue
            old = getattr(stmt, field.name)
            new = self._value(old)
            if new is not old:
                changes[field.name] = new
        return dataclasses.replace(stmt, **changes) if changes else stmt  # type: ignore[type-var]

    def _value(self, value: Any) -> Any:
        if type(value) in PLAIN:  # most of the fields there are
            return value
        if isinstance(value, Expr):
            return self.expr(value)
        if isinstance(value, Stmt):
            return self.stmt(value)
        if isinstance(value, Buffer):
            return self.buffer(value)
        if isinstance(value, Region):
            parts = (
                self.buffer(value.buffer),
                self._value(value.offsets),
                self._value(value.extents),
            )
            same = parts[0] is value.buffer and parts[1] is value.offsets
            return value if same and parts[2] is value.extents else Region(*parts)
        if isinstance(value, tuple):
            new = tuple(self._value(v) for v in value)
            return value if all(a is b for a, b in zip(new, value, strict=True)) else new
        if isinstance(value, Mapping):
            items = {self._value(k): self._value(v) for k, v in value.items()}
            pairs = zip(items.items(), value.items(), strict=True)
            if all(a is c and b is d for (a, b), (c, d) in pairs):
                return value
            # A knob that has become known is a plain number again, as if traced with it.
            return {k: v.value if isinstance(v, Const) else v for k, v in items.items()}
        return value


def _rebuild(expr: Expr, new: tuple[Expr, ...], buffer: Buffer | None) -> Expr:
    if isinstance(expr, Binary):
        return binary(expr.op, *new)
    if isinstance(expr, Unary):
        return unary(expr.op, *new)
    if isinstance(expr, Cast):
        return cast(new[0], expr.dtype)
    if isinstance(expr, Select):
        return select(*new)
    if isinstance(expr, Call):
        return dataclasses.replace(expr, args=new)
    assert isinstance(expr, Load)
    assert buffer is not None
    return Load(buffer, new, expr.dtype)


class Substitution(Rebuilder):
    """Rebuilds a program with Vars replaced and constants folded."""

    def __init__(self, values: Mapping[Var, ExprLike]) -> None:
        super().__init__()
        self.values = {id(v): as_expr(x, v.dtype) for v, x in values.items()}
        self._exprs: dict[int, tuple[Expr, Expr]] = {}

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` with its Vars replaced: what stands in several places, once."""
        if isinstance(expr, Var):
            return self.values.get(id(expr), expr)
        if isinstance(expr, Const):
            return expr
        if id(expr) not in self._exprs:
            self._exprs[id(expr)] = (expr, super().expr(expr))
        return self._exprs[id(expr)][1]


def substitute_expr(expr: Expr, values: Mapping[Var, ExprLike]) -> Expr:
    """Return ``expr`` with Vars replaced and constants folded."""
    return Substitution(values).expr(expr)


def substitute_stmt(stmt: Stmt, values: Mapping[Var, ExprLike]) -> Stmt:
    """Return ``stmt`` with Vars replaced and constants folded."""
    return Substitution(values).stmt(stmt)


def substitute(func: PrimFunc, values: Mapping[Var, ExprLike]) -> PrimFunc:
    """Return ``func`` with Vars (dynamic dims, symbolic knobs) replaced and constants folded."""
    return Substitution(values).func(func)
