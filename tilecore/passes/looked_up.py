"""looked_up: updates of elements that a nest looks up in data become atomic.

Iterations of ``h[bin[i]] += x[i]`` may have one element; threads that load and store it lose
updates of each other. Where the data never meets twice, an atomic update does the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilecore.ir import nodes
from tilecore.ir.arithmetic.collisions import Place, place_of
from tilecore.ir.arithmetic.length import is_same
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Binary, Cast, Expr, Load, binary, cast, const, int_value
from tilecore.ir.nodes import Atomic, Buffer, Parallel, PrimFunc, Stmt, Store
from tilecore.ir.visitor import Rewriter, buffers_of, loads, walk, walk_expr, with_body

OPS = {"add": "add", "sub": "add", "max": "max", "min": "min", "bitor": "or"}
# Types of which GPUs of both vendors update elements atomically.
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with such updates as ``T.atomic_add`` and its kin make them."""
    return with_body(func, _Updated().visit(func.body))


class _Updated(Rewriter):
    def visit_parallel(self, nest: Parallel) -> Stmt:
        """Return a nest in which what can be is updated atomically."""
        found = {id(store): update for store, update in _updates(nest)}
        return _Replaced(found).rebuild(nest) if found else nest


class _Replaced(Rewriter):
    def __init__(self, found: dict[int, Atomic]) -> None:
        self.found = found

    def visit_store(self, stmt: Store) -> Stmt:
        """Return the atomic update that a store becomes."""
        return self.found.get(id(stmt), stmt)


def _updates(nest: Parallel) -> Iterator[tuple[Store, Atomic]]:
    shape = [int_value(e) for e in nest.extents]
    stmts = list(walk(nest.body))
    for stmt in stmts:
        if not isinstance(stmt, Store) or stmt.buffer.scope not in ("global", "shared"):
            continue
        place = place_of(nest, stmt.indices)
        if not place.is_looked_up or not _may_collide(place, shape):
            continue
        if _touches(nest, stmt.buffer) != 1 + sum(b is stmt.buffer for b in _loaded(stmt)):
            continue  # something else looks at the element, or sets it
        update = _update(nest, stmt, place)
        if update is not None:
            yield stmt, update


def _may_collide(place: Place, shape: list[int | None]) -> bool:
    return None in shape or place.may_collide([n for n in shape if n is not None])


def _loaded(stmt: Stmt) -> list[Buffer]:
    return [load.buffer for load in loads(stmt)]


def _touches(nest: Parallel, buffer: Buffer) -> int:
    """Return how often a nest names the memory of a buffer."""
    count = 0
    for stmt in walk(nest.body):
        count += sum(b.root is buffer.root for b in _loaded(stmt))
        if isinstance(stmt, Store):
            count += stmt.buffer.root is buffer.root
        elif isinstance(stmt, (nodes.Atomic, nodes.Alloc)):
            count += sum(b.root is buffer.root for b in buffers_of(stmt))
    return count


def _update(nest: Parallel, store: Store, place: Place) -> Atomic | None:
    """Return the atomic update that does what a store does; None: there is none."""
    dtype = store.buffer.dtype
    if dtype not in (*FLOATS, *INTEGERS):
        return None
    value, wraps = store.value, False
    if isinstance(value, Cast) and _is_whole(dtype) and _is_whole(value.a.dtype):
        value, wraps = value.a, True  # sums of wider integers, cut off
    if not isinstance(value, Binary) or value.op not in OPS or (wraps and value.op != "add"):
        return None
    old, operand = value.a, value.b
    if not _is_element(nest, old, store, place) and value.op != "sub":
        old, operand = operand, old
    if not _is_element(nest, old, store, place) or store.buffer in _buffers(operand):
        return None
    if value.op == "sub":
        operand = binary("sub", const(0, operand.dtype), operand)
    number = cast(operand, dtype)
    return Atomic(OPS[value.op], store.buffer, store.indices, number, None, store.span)


def _is_whole(dtype: DType) -> bool:
    return dtype.is_integer and dtype != "bool"


def _is_element(nest: Parallel, expr: Expr, store: Store, place: Place) -> bool:
    """Return whether an expression is the element that is stored to, or that as a wider integer."""
    while isinstance(expr, Cast) and _is_whole(expr.dtype) and _is_whole(expr.a.dtype):
        expr = expr.a
    if not isinstance(expr, Load) or expr.buffer is not store.buffer:
        return False
    read = place_of(nest, expr.indices).indices
    return all(is_same(*pair) for pair in zip(read, place.indices, strict=True))


def _buffers(expr: Expr) -> set[Buffer]:
    return {e.buffer for e in walk_expr(expr) if isinstance(e, Load)}
