"""Groups: blocks of a cluster that read the same boxes, which are loaded once for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilecore.inference.gpu.copies.pipelining import leads_to
from tilecore.inference.gpu.plan import Group
from tilecore.ir import nodes
from tilecore.ir.expr import Expr, Load, Var
from tilecore.ir.nodes import Copy, For, KernelLaunch, Stmt
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.visitor import children, walk, walk_expr


def group_of(copy: Copy, loop: For, launch: KernelLaunch) -> Group | None:
    """Return the blocks of a cluster that ``copy``, of a pipelined loop, brings the same; or None.

    They differ along axes of the grid on which neither what is copied nor how often depends.
    """
    lets = {s.var: s.value for s in walk(launch.body) if isinstance(s, nodes.Let)}
    control = [e for s in _above(launch.body, loop) for e in _decides(s)]
    sizes = [*launch.cluster, *(1 for _ in launch.block_vars[len(launch.cluster) :])]
    axes = tuple(
        size > 1 and not _depends((*control, *copy.src.offsets), var, lets)
        for var, size in zip(launch.block_vars, sizes, strict=False)
    )
    if not any(axes):
        return None
    offsets, stride = [0], 1
    for is_shared, size in zip(axes, sizes, strict=False):
        if is_shared:
            offsets = [o + stride * n for n in range(size) for o in offsets]
        stride *= size
    return Group(axes, tuple(sorted(offsets)))


def _above(stmt: Stmt, loop: For) -> Iterator[Stmt]:
    """Yield the statements around ``loop``, itself, and those that may leave a loop around it."""
    if leads_to(stmt, loop):
        yield stmt
        for child in children(stmt) if stmt is not loop else ():
            yield from _above(child, loop)


def _decides(stmt: Stmt) -> tuple[Expr, ...]:
    """Return the expressions that say how often the body of a statement runs."""
    match stmt:
        case For(start=start, stop=stop, step=step):
            return start, stop, step
        case nodes.If(cond=cond) | nodes.While(cond=cond):
            return (cond,)
        case _:
            return ()


def _depends(exprs: tuple[Expr, ...], block: Var, lets: Mapping[Var, Expr]) -> bool:
    """Return whether an expression may differ between blocks that differ in ``block``."""
    for expr in exprs:
        for _ in range(len(lets) + 1):  # a name stands for an expression with earlier names
            resolved = substitute_expr(expr, lets)
            if resolved is expr:
                break
            expr = resolved
        if any(n is block or isinstance(n, Load) for n in walk_expr(expr)):
            return True
    return False
