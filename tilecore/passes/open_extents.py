"""open_extents: nests of extents that nothing bounds run in pieces of known size.

On a GPU the points of a nest are spread over threads when it is compiled. What is known only when
the kernel runs is therefore cut into pieces, with a condition on each point of them.
"""

from __future__ import annotations

import dataclasses

from tilecore.inference.uses import Context, enter
from tilecore.ir import nodes
from tilecore.ir.expr import Expr, Var, binary, const, int_value
from tilecore.ir.nodes import Copy, Fill, For, If, Parallel, PrimFunc, Seq, Stmt
from tilecore.ir.plain.nests import copy_nest, fill_nest
from tilecore.ir.substitute import substitute_stmt
from tilecore.ir.visitor import children, with_body

LAST, OTHER = 128, 8  # points of a piece along the last loop, and along others
BOUNDED = 1 << 16


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with nests of known extents."""
    return with_body(func, _Pieces().visit(func.body, Context()))


class _Pieces:
    def visit(self, stmt: Stmt, context: Context) -> Stmt:
        """Return a statement with its nests cut."""
        match stmt:
            case Copy() | Fill():
                region = stmt.dst
                if all(_is_bounded(e, context) for e in region.extents):
                    return stmt
                return self._cut(copy_nest(stmt) if isinstance(stmt, Copy) else fill_nest(stmt))
            case Parallel() if stmt.loop_vars:
                bounded = all(_is_bounded(e, context) for e in stmt.extents)
                return stmt if bounded else self._cut(stmt)
            case Seq(stmts=stmts):
                made = []
                for child in stmts:
                    made.append(self.visit(child, context))
                    if isinstance(child, nodes.Let):
                        lets = {**context.lets, child.var: child.value}
                        context = dataclasses.replace(context, lets=lets)
                same = all(a is b for a, b in zip(made, stmts, strict=True))
                return stmt if same else Seq(tuple(made), stmt.span)
            case If(then_body=then, else_body=other):
                inner = enter(stmt, context)
                after = None if other is None else self.visit(other, inner)
                return dataclasses.replace(stmt, then_body=self.visit(then, inner), else_body=after)
            case nodes.KernelLaunch() | For() | nodes.While():
                (body,) = children(stmt)
                changed = self.visit(body, enter(stmt, context))
                return stmt if changed is body else dataclasses.replace(stmt, body=changed)
            case _:
                return stmt

    def _cut(self, nest: Parallel) -> Stmt:
        """Return loops over pieces of a nest."""
        last = len(nest.loop_vars) - 1
        names: list[Var] = []
        sizes: list[Expr] = []
        values: dict[Var, Expr] = {}
        loops: list[tuple[Var, Expr, int]] = []
        inside: Expr = const(True)
        for position, (name, extent) in enumerate(zip(nest.loop_vars, nest.extents, strict=True)):
            if int_value(extent) is not None:
                names.append(name)
                sizes.append(extent)
                continue
            size = LAST if position == last else OTHER
            piece, point = Var(f"{name.name}_piece", name.dtype), Var(name.name, name.dtype)
            place = piece * size + point
            loops.append((piece, extent, size))
            names.append(point)
            sizes.append(const(size))
            values[name] = place
            inside = binary("and", inside, binary("lt", place, extent))
        body = If(inside, substitute_stmt(nest.body, values), span=nest.span)
        made: Stmt = dataclasses.replace(
            nest, loop_vars=tuple(names), extents=tuple(sizes), body=body
        )
        for piece, extent, size in reversed(loops):
            count = binary("floordiv", extent + (size - 1), size)
            made = For(piece, const(0), count, const(1), "serial", made, span=nest.span)
        return made


def _is_bounded(extent: Expr, context: Context) -> bool:
    if int_value(extent) is not None:
        return True
    bounds = context.bounds(extent)
    return bounds is not None and 0 < bounds[1] <= BOUNDED
