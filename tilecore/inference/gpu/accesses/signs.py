"""Which index expressions of a launch cannot be negative, whatever its sizes are."""

from __future__ import annotations

from tilecore.ir import nodes
from tilecore.ir.arithmetic.bounds import NON_NEGATIVE, Interval, interval
from tilecore.ir.expr import Binary, Cast, Const, Expr, Select, Var, int_value
from tilecore.ir.nodes import For, KernelLaunch, Let
from tilecore.ir.visitor import buffers_of, walk, walk_expr

KEEPING = ("add", "mul", "floordiv", "mod", "min", "shr", "bitand")  # of two that are not negative


class Signs:
    """What is known of the signs of a launch's variables; loads and arguments may be anything."""

    def __init__(self, launch: KernelLaunch) -> None:
        self._known: set[Var] = {*launch.block_vars, *launch.thread_vars}
        tensors = {b.root for b in buffers_of(launch.body)}
        sizes = [n for b in tensors for e in b.shape for n in walk_expr(e)]
        self._known |= {n for n in sizes if isinstance(n, Var)}
        self._ranges: dict[Var, Interval] = {}
        self._lets: dict[Var, Expr] = {}
        for var, extent in (
            *zip(launch.block_vars, launch.grid, strict=True),
            *zip(launch.thread_vars, launch.threads, strict=False),
        ):
            size = int_value(extent)
            self._ranges[var] = NON_NEGATIVE if size is None else (0, max(0, size - 1))
        for stmt in walk(launch.body):
            if isinstance(stmt, Let):
                self._lets[stmt.var] = stmt.value
            elif isinstance(stmt, For):
                self._enter(stmt)
            elif isinstance(stmt, nodes.Parallel):
                self._known.update(stmt.loop_vars)

    def _enter(self, loop: For) -> None:
        step, last = int_value(loop.step) or 0, int_value(loop.stop)
        if step > 0 and self.never_negative(loop.start):
            self._known.add(loop.loop_var)
            start = int_value(loop.start) or 0
            high = NON_NEGATIVE[1] if last is None else max(start, last - 1)
            self._ranges[loop.loop_var] = (start, high)

    def never_negative(self, expr: Expr) -> bool:
        """Return whether an index is known to be 0 or more."""
        if expr.dtype.is_integer and not expr.dtype.is_signed:
            return True
        match expr:
            case Const(value=value):
                return int(value) >= 0
            case Var() if expr in self._known:
                return True
            case Var() if expr in self._lets:
                return self.never_negative(self._lets[expr])
            case Cast(a=a) if a.dtype.is_integer:
                return self.never_negative(a)
            case Select(a=a, b=b):
                return self.never_negative(a) and self.never_negative(b)
            case Binary(op="max", a=a, b=b):
                return self.never_negative(a) or self.never_negative(b)
            case Binary(op="mod", b=b) if (int_value(b) or 0) > 0:
                return True  # floored
            case Binary(op=op, a=a, b=b) if op in KEEPING and self.never_negative(a):
                if self.never_negative(b):
                    return True
            case _:
                pass
        bounds = interval(expr, self._ranges, self._lets)
        return bounds is not None and bounds[0] >= 0
