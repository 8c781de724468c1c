"""Rewrites the Python AST of a kernel so that running it builds tile IR.

Each statement first tells the scope its place. ``if``, ``while``, ``for``, assignments, ``and``,
``or``, ``not``, chained comparisons and conditional expressions become calls of the scope
(frontend.scope), which decides by the values it sees: Python values keep their Python meaning,
expressions become IR. All other Python stays as it is.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from tilecore.errors import SourceSpan, UnsupportedSyntax

SCOPE = "__tb"
_REJECTED: dict[type[ast.AST], str] = {
    ast.Try: "try", ast.Delete: "del", ast.Global: "global", ast.Nonlocal: "nonlocal",
    ast.ClassDef: "a class definition", ast.AsyncFunctionDef: "async def", ast.Match: "match",
    ast.AsyncFor: "async for", ast.AsyncWith: "async with", ast.Yield: "yield",
    ast.YieldFrom: "yield from", ast.Await: "await", ast.NamedExpr: "an assignment expression",
}  # fmt: skip
_OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^", ast.MatMult: "@", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=",
    ast.Gt: ">", ast.GtE: ">=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in",
    ast.NotIn: "not in",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The rewritten definition and the places its statements refer to by number."""

    definition: ast.FunctionDef
    spans: tuple[SourceSpan, ...]


def rewrite(definition: ast.FunctionDef, file: str) -> Rewritten:
    """Return ``definition`` rewritten: decorators, annotations and defaults are dropped.

    Raises:
        UnsupportedSyntax: it uses Python that has no meaning in a tile program (TC101).
    """
    worker = _Rewriter(file, rebound_names(definition))
    body = worker.block(definition.body) or [ast.Pass()]
    args = ast.arguments(
        posonlyargs=[ast.arg(a.arg) for a in definition.args.posonlyargs],
        args=[ast.arg(a.arg) for a in definition.args.args],
        kwonlyargs=[ast.arg(a.arg) for a in definition.args.kwonlyargs],
        kw_defaults=[None for _ in definition.args.kwonlyargs],
        defaults=[],
        vararg=ast.arg(definition.args.vararg.arg) if definition.args.vararg else None,
        kwarg=ast.arg(definition.args.kwarg.arg) if definition.args.kwarg else None,
    )
    new = ast.FunctionDef(name=definition.name, args=args, body=body, decorator_list=[])
    ast.copy_location(new, definition)
    return Rewritten(new, tuple(worker.spans))


def rebound_names(definition: ast.FunctionDef) -> frozenset[str]:
    """Return the names assigned inside a loop or branch: only their reads need checking."""
    found: set[str] = set()

    def visit(node: ast.AST, nested: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.Lambda)):
                continue
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store) and nested:
                found.add(child.id)
            visit(child, nested or isinstance(child, (ast.If, ast.For, ast.While)))

    visit(definition, False)
    return frozenset(found)


def _call(method: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(SCOPE, ast.Load()), method, ast.Load()), list(args), [])


def _thunk(body: ast.expr) -> ast.Lambda:
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(empty, body)


def _text(value: Any) -> ast.Constant:
    return ast.Constant(value)


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


class _Rewriter(ast.NodeTransformer):
    def __init__(self, file: str, checked: frozenset[str]) -> None:
        self.file = file
        self.checked = checked
        self.spans: list[SourceSpan] = []
        self.temporaries = 0
        self.has_with_ahead = False  # whether a `with` follows what is visited: maybe a launch

    # --- places ---------------------------------------------------------------------------

    def span(self, node: ast.stmt | ast.expr) -> SourceSpan:
        end = node.end_col_offset if node.end_lineno == node.lineno else None
        return SourceSpan(
            self.file, node.lineno, node.col_offset + 1, None if end is None else end + 1
        )

    def block(self, stmts: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        ahead = self.has_with_ahead
        for number, stmt in enumerate(stmts, 1):
            self.has_with_ahead = ahead or any(isinstance(s, ast.With) for s in stmts[number:])
            new = self.visit(stmt)
            made = new if isinstance(new, list) else [new]
            self.spans.append(self.span(stmt))
            where = [_text(len(self.spans) - 1)]
            if isinstance(stmt, (ast.Assign, ast.AnnAssign)):
                target = stmt.targets[0] if isinstance(stmt, ast.Assign) else stmt.target
                if isinstance(target, ast.Name):
                    where.append(_text(target.id))
            for node in (place := ast.Expr(_call("at", *where)), *made):
                _locate(node, stmt)
            result += [place, *made]
        self.has_with_ahead = ahead
        return result

    def fresh(self) -> str:
        self.temporaries += 1
        return f"__t{self.temporaries}"

    def generic_visit(self, node: ast.AST) -> ast.AST:
        reason = _REJECTED.get(type(node))
        if reason is not None:
            place = self.span(node) if isinstance(node, (ast.stmt, ast.expr)) else None
            raise UnsupportedSyntax(
                expected="statements of the tile language", found=f"`{reason}`", span=place
            )
        return super().generic_visit(node)

    # --- statements -----------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # plain Python; a T.macro inside is rewritten when it is called

    def visit_Return(self, node: ast.Return) -> ast.AST:
        value = self.visit(node.value) if node.value is not None else _text(None)
        return ast.Return(_call("ret", value))

    def visit_Assign(self, node: ast.Assign) -> Any:
        value = self.visit(node.value)
        if len(node.targets) == 1:
            return self.assign(node.targets[0], value)
        name = self.fresh()
        made: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], value)]
        for target in node.targets:
            made += self.assign(target, _load(name))
        return made

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if not isinstance(node.target, ast.Name):
            return self.assign(node.target, self.visit(node.value)) if node.value else ast.Pass()
        name, annotation = node.target.id, self.visit(node.annotation)
        if node.value is None:
            # The old value is read lazily: the name may be new.
            value = _call("declare", _text(name), annotation, _thunk(_load(name)))
        else:
            given = (annotation, self.visit(node.value), _text(self.has_with_ahead))
            value = _call("typed", _text(name), *given)
        return ast.Assign([ast.Name(name, ast.Store())], value)

    def assign(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """Return statements that assign ``value`` (already rewritten) to ``target``."""
        if isinstance(target, ast.Name):
            bound = _call("bind", _text(target.id), value)
            return [ast.Assign([ast.Name(target.id, ast.Store())], bound)]
        if isinstance(target, ast.Subscript):
            key = self.key(target.slice)
            return [ast.Expr(_call("store", self.visit(target.value), key, value))]
        if isinstance(target, (ast.Tuple, ast.List)):
            return self.unpack(target, _call("snapshot", value), "bind")
        return [ast.Assign([self.visit(target)], value)]

    def unpack(self, target: ast.expr, value: ast.expr, method: str) -> list[ast.stmt]:
        """Return statements that take ``value`` apart into temporaries and then into targets."""
        leaves: list[tuple[str, ast.expr]] = []

        def mirror(node: ast.expr) -> ast.expr:
            if isinstance(node, (ast.Tuple, ast.List)):
                return ast.Tuple([mirror(e) for e in node.elts], ast.Store())
            if isinstance(node, ast.Starred):
                return ast.Starred(mirror(node.value), ast.Store())
            name = self.fresh()
            leaves.append((name, node))
            return ast.Name(name, ast.Store())

        made: list[ast.stmt] = [ast.Assign([mirror(target)], value)]
        for name, leaf in leaves:
            if isinstance(leaf, ast.Name):
                bound = _call(method, _text(leaf.id), _load(name))
                made.append(ast.Assign([ast.Name(leaf.id, ast.Store())], bound))
            else:
                made += self.assign(leaf, _load(name))
        return made

    def key(self, node: ast.expr) -> ast.expr:
        """Return the index of a subscript as a value (slices become slice objects)."""
        if isinstance(node, ast.Slice):
            parts = [
                self.visit(p) if p else _text(None) for p in (node.lower, node.upper, node.step)
            ]
            return _call("slice_", *parts)
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self.key(e) for e in node.elts], ast.Load())
        value: ast.expr = self.visit(node)
        return value

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        op, value = _text(_OPERATORS[type(node.op)]), self.visit(node.value)
        if isinstance(node.target, ast.Name):
            name = node.target.id
            old = _call("read", _text(name), _load(name))
            made = _call("bind", _text(name), _call("augment", op, old, value))
            return ast.Assign([ast.Name(name, ast.Store())], made)
        if isinstance(node.target, ast.Subscript):
            key = self.key(node.target.slice)
            return ast.Expr(_call("augment_item", op, self.visit(node.target.value), key, value))
        return ast.AugAssign(self.visit(node.target), node.op, value)

    def visit_For(self, node: ast.For) -> Any:
        if node.orelse:
            raise self.rejected(node, "`for ... else`")
        names = _target_names(node.target)
        loop = _call("loop", self.iterable(node.iter), _text(names))
        return ast.For(*self.opened(node.target, loop, node.body), [])

    def opened(
        self, target: ast.expr, value: ast.expr, stmts: list[ast.stmt]
    ) -> tuple[ast.expr, ast.expr, list[ast.stmt]]:
        """Return (temporary, value, body that first assigns the temporary to ``target``)."""
        name = self.fresh()
        if isinstance(target, ast.Name):
            bound = _call("bind_new", _text(target.id), _load(name))
            first: list[ast.stmt] = [ast.Assign([ast.Name(target.id, ast.Store())], bound)]
        else:
            first = self.unpack(target, _call("unpack", _load(name)), "bind_new")
        return ast.Name(name, ast.Store()), value, [*first, *self.block(stmts)]

    def iterable(self, node: ast.expr) -> ast.expr:
        is_range = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if is_range and node.func.id == "range" and not node.keywords:  # type: ignore[attr-defined]
            args = [self.visit(a) for a in node.args]  # type: ignore[attr-defined]
            return _call("range_", _load("range"), *args)
        value: ast.expr = self.visit(node)
        return value

    def visit_While(self, node: ast.While) -> Any:
        if node.orelse:
            raise self.rejected(node, "`while ... else`")
        endless = isinstance(node.test, ast.Constant) and node.test.value in (True, 1)
        loop = _call("while_", _thunk(self.visit(node.test)), _text(endless))
        return ast.For(ast.Name(self.fresh(), ast.Store()), loop, self.block(node.body), [])

    def visit_Break(self, node: ast.Break) -> Any:
        return ast.If(_call("jump", _text("break")), [node], [])

    def visit_Continue(self, node: ast.Continue) -> Any:
        return ast.If(_call("jump", _text("continue")), [node], [])

    def visit_If(self, node: ast.If) -> Any:
        name = self.fresh()
        made: list[ast.stmt] = [
            ast.Assign([ast.Name(name, ast.Store())], _call("branch", self.visit(node.test)))
        ]
        for side, stmts in (("then", node.body), ("else", node.orelse)):
            if stmts:
                take = ast.Call(ast.Attribute(_load(name), "takes", ast.Load()), [_text(side)], [])
                body = ast.Call(ast.Attribute(_load(name), "body", ast.Load()), [_text(side)], [])
                inside = ast.With([ast.withitem(body)], self.block(stmts))
                made.append(ast.If(take, [inside], []))
        close = ast.Call(ast.Attribute(_load(name), "close", ast.Load()), [], [])
        return [*made, ast.Expr(close)]

    def visit_With(self, node: ast.With) -> Any:
        body = node.body
        items: list[ast.withitem] = []
        first: list[ast.stmt] = []
        for item in node.items:
            if item.optional_vars is None:
                items.append(ast.withitem(_call("enter", self.visit(item.context_expr), _text(()))))
                continue
            names = _text(_target_names(item.optional_vars))
            opened = _call("enter", self.visit(item.context_expr), names)
            target, value, assigned = self.opened(item.optional_vars, opened, [])
            items.append(ast.withitem(value, target))
            first += assigned
        return ast.With(items, [*first, *self.block(body)])

    def visit_Assert(self, node: ast.Assert) -> Any:
        message = self.visit(node.msg) if node.msg else _text("")
        return ast.Expr(_call("check", self.visit(node.test), _thunk(message)))

    def rejected(self, node: ast.stmt, found: str) -> UnsupportedSyntax:
        return UnsupportedSyntax(
            expected="statements of the tile language", found=found, span=self.span(node)
        )

    # --- expressions ----------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self.checked:
            return ast.copy_location(_call("read", _text(node.id), node), node)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        own = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        return self.inner(node, own)

    def comprehension(self, node: Any) -> ast.expr:
        own = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        return self.inner(node, own)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comprehension

    def inner(self, node: ast.expr, own: set[str]) -> ast.expr:
        outside, self.checked = self.checked, self.checked - own
        new = self.generic_visit(node)
        self.checked = outside
        assert isinstance(new, ast.expr)
        return new

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        sides = (_thunk(self.visit(node.body)), _thunk(self.visit(node.orelse)))
        return _call("choose", self.visit(node.test), *sides)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        op = "and" if isinstance(node.op, ast.And) else "or"
        return _call("logic", _text(op), *(_thunk(self.visit(v)) for v in node.values))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        return (
            _call("not_", operand)
            if isinstance(node.op, ast.Not)
            else ast.UnaryOp(node.op, operand)
        )

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        operands = [self.visit(node.left), *(self.visit(c) for c in node.comparators)]
        if len(node.ops) == 1:
            return ast.Compare(operands[0], node.ops, operands[1:])
        ops = ast.Tuple([_text(_OPERATORS[type(o)]) for o in node.ops], ast.Load())
        return _call("chain", ops, *operands)


def _target_names(target: ast.expr) -> tuple[str, ...]:
    """Return the names of a flat target, or () if it is not one."""
    items = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    return (
        tuple(i.id for i in items if isinstance(i, ast.Name))
        if all(isinstance(i, ast.Name) for i in items)
        else ()
    )


def _locate(node: ast.AST, place: ast.stmt) -> None:
    """Give ``node`` and what is new below it the place of ``place``; old nodes keep theirs."""
    for child in ast.walk(node):
        if isinstance(child, (ast.stmt, ast.expr)) and not hasattr(child, "lineno"):
            ast.copy_location(child, place)
