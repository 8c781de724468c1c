"""Elements of a nest that are entries of a table, named by 4 bits of a word: decoded weights."""

from __future__ import annotations

from tilecore.ir.expr import Binary, Cast, Expr, Load, const, int_value
from tilecore.ir.nodes import Let, Parallel, Seq, Store
from tilecore.ir.substitute import substitute_expr

TABLE = 16


def entry(nest: Parallel) -> tuple[Load, Load, Expr] | None:
    """Return table, word and shift where a nest stores ``table[(word >> shift) & 15]``."""
    body = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
    store = body[-1]
    if not isinstance(store, Store):
        return None
    value: Expr = store.value
    for stmt in reversed(body[:-1]):
        if not isinstance(stmt, Let):
            return None
        value = substitute_expr(value, {stmt.var: stmt.value})
    if not isinstance(value, Load) or len(value.indices) != 1:
        return None
    if value.buffer.static_shape != (TABLE,) or value.buffer.dtype != "bfloat16":
        return None
    found = _nibble(value.indices[0])
    return None if found is None else (value, *found)


def _nibble(index: Expr) -> tuple[Load, Expr] | None:
    """Return the word and the shift of ``(word >> shift) & 15``."""
    masked = index.a if isinstance(index, Cast) else index
    if not isinstance(masked, Binary) or masked.op != "bitand":
        return None
    if int_value(masked.b) != TABLE - 1:
        return None
    value = masked.a
    shift: Expr = const(0)
    if isinstance(value, Binary) and value.op == "shr":
        shift = value.b
        value = value.a
    if not isinstance(value, Load) or value.buffer.dtype not in ("int32", "uint32"):
        return None
    return value, shift
