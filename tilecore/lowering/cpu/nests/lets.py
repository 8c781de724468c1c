"""Let bindings: in the body of a parallel nest that is to run in vectors, and of places.

What indices are made of, and conditions, are put in the place of their names: accesses are judged
by their indices, and LLVM cannot bind a vector of truth values. The rest is bound, lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilecore.ir.analysis import written_buffers
from tilecore.ir.arithmetic.bounds import variables
from tilecore.ir.arithmetic.length import LONGEST, length
from tilecore.ir.expr import COMPARISONS, LOGICAL, Binary, Cast, Expr, Load, Unary, Var
from tilecore.ir.nodes import Atomic, Let, Parallel, Seq, Stmt, Store
from tilecore.ir.substitute import substitute_stmt
from tilecore.ir.visitor import expressions, has_loads, walk, walk_expr


def inlined(nest: Parallel, *, loads: bool = False) -> Parallel:
    """Return ``nest`` with its indices and conditions free of bindings, where they can be.

    ``loads``: of bindings to elements, too, that the nest does not change.
    """
    stmts = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
    if not any(isinstance(s, Let) for s in stmts):
        return nest
    if not all(isinstance(s, (Let, Store)) for s in stmts):
        return nest
    needed = _needed(stmts)
    values: dict[Var, Expr] = {}
    lengths: dict[Var, int] = {}
    kept: list[Stmt] = []
    for stmt in stmts:
        found = substitute_stmt(stmt, values) if values else stmt
        size = length(stmt.value, lengths) if isinstance(stmt, Let) else 0
        is_needed = isinstance(found, Let) and found.var in needed and size <= LONGEST
        if is_needed and isinstance(found, Let) and _stays(found.value, nest, loads=loads):
            values[found.var], lengths[found.var] = found.value, size
        else:
            kept.append(found)
    return replace(nest, body=kept[0] if len(kept) == 1 else Seq(tuple(kept)))


def _stays(value: Expr, nest: Parallel, *, loads: bool) -> bool:
    """Return whether a value is the same wherever it stands in a nest."""
    read = {node.buffer.root for node in walk_expr(value) if isinstance(node, Load)}
    if not read:
        return True
    return loads and not read & {buffer.root for buffer in written_buffers(nest)}


def has_vector_form(lets: list[Let], indices: list[Expr]) -> bool:
    """Return whether bindings that are left can be bound lane by lane."""
    bound = {let.var for let in lets}
    is_plain = all(let.var.dtype != "bool" for let in lets)
    return is_plain and not any(variables(index) & bound for index in indices)


def is_uniform(expr: Expr, varying: set[Var]) -> bool:
    """Return whether an expression mentions no element and none of the variables."""
    return not has_loads(expr) and not variables(expr) & varying


def indices_of(stmt: Stmt, skips: Callable[[Load], bool] = lambda _: False) -> list[Expr]:
    """Return the indices of all accesses of a statement but the loads that ``skips`` tells."""
    nodes = [n for e in expressions(stmt) for n in walk_expr(e)]
    found = [i for n in nodes if isinstance(n, Load) and not skips(n) for i in n.indices]
    return [*found, *stmt.indices] if isinstance(stmt, Store) else found


def _needed(stmts: tuple[Stmt, ...]) -> set[Var]:
    """Return the variables that indices and conditions are made of, directly or not."""
    lets = {s.var: s.value for s in stmts if isinstance(s, Let)}
    found = {v for v in lets if v.dtype == "bool"}
    found |= {v for s in stmts for i in indices_of(s) for v in variables(i) if v in lets}
    waiting = list(found)
    while waiting:
        for var in variables(lets[waiting.pop()]) & lets.keys() - found:
            found.add(var)
            waiting.append(var)
    return found


LINEAR = ("add", "sub", "mul", "min", "max", *COMPARISONS, *LOGICAL)


def lets_of_places(body: Stmt) -> set[Var]:
    """Return the variables, let-bound ones too, that indices, counts and conditions are sums of."""
    lets = {s.var: s.value for s in walk(body) if isinstance(s, Let)}
    found: set[Var] = set()
    waiting = [e for s in walk(body) for e in _of_places(s)]
    while waiting:
        match waiting.pop():
            case Binary(op=op, a=a, b=b) if op in LINEAR:
                waiting += [a, b]
            case Unary(a=a) | Cast(a=a):
                waiting.append(a)
            case Var() as var if var not in found:
                found.add(var)
                waiting += [lets[var]] if var in lets else []
            case _:
                pass
    return found


def _of_places(stmt: Stmt) -> list[Expr]:
    """Return the expressions of a statement that no value of an element is computed by."""
    match stmt:
        case Let():
            return indices_of(stmt)
        case Store() | Atomic():
            return [*indices_of(stmt), *stmt.indices]
        case _:
            return [*indices_of(stmt), *expressions(stmt)]
