"""Loops of the tile language: what ``T.serial(...)`` and its kin return, and how they open."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.frontend.builder import Builder, current
from tilecore.frontend.launches import iterations, launches_kernels
from tilecore.ir.expr import Expr, ExprLike, Var, as_expr, binary, cast, ceildiv, const, int_value
from tilecore.ir.nodes import For, If, Let, Parallel, read_only

DEFAULT_NAMES = ("i", "j", "k", "l", "m", "n")


@dataclass(frozen=True, slots=True, eq=False)
class LoopSpec:
    """A loop that is about to open: ``for names in spec`` inside a tile program.

    ``kind`` is "parallel" (one nest over all axes) or one of ir.nodes.LOOP_KINDS (one For per
    axis, the last innermost).
    """

    kind: str
    starts: tuple[Expr, ...]
    stops: tuple[Expr, ...]
    steps: tuple[Expr, ...]
    annotations: Mapping[str, Any] = field(default_factory=lambda: read_only({}))

    def open(self, names: Sequence[str] = ()) -> Iterator[Any]:
        """Open the loop, yield its variable (a tuple if several) once, and close it.

        Raises:
            ShapeMismatch: the number of loop variables is not the number of axes (TC201).
        """
        rank = len(self.stops)
        if names and len(names) != rank and not (len(names) == 1 and rank > 1):
            raise ShapeMismatch(
                what="loop variables", expected=f"{rank}, one per extent", found=len(names)
            )
        used = tuple(names) if len(names) == rank else DEFAULT_NAMES[:rank]
        loop_vars = tuple(Var(n, e.dtype) for n, e in zip(used, self.stops, strict=True))
        value = loop_vars[0] if rank == 1 else loop_vars
        builder = current()
        if self.kind == "parallel":
            yield from self._parallel(builder, loop_vars, value)
        else:
            yield from self._nest(builder, loop_vars, value, 0)

    def __iter__(self) -> Iterator[Any]:
        return self.open()

    def _parallel(self, builder: Builder, loop_vars: tuple[Var, ...], value: Any) -> Iterator[Any]:
        with builder.open("parallel") as frame:
            frame.axes = tuple(zip(loop_vars, self.stops, strict=True))
            yield value
        body = frame.body()
        builder.emit(Parallel(loop_vars, self.stops, body, self.annotations, frame.span))

    def _nest(
        self, builder: Builder, loop_vars: tuple[Var, ...], value: Any, axis: int
    ) -> Iterator[Any]:
        with builder.open("loop") as frame:
            if axis + 1 == len(loop_vars):
                yield value
            else:
                yield from self._nest(builder, loop_vars, value, axis + 1)
        bounds = (self.starts[axis], self.stops[axis], self.steps[axis])
        body, notes = frame.body(), self.annotations
        loop = For(loop_vars[axis], *bounds, self.kind, body, notes, frame.span)
        for stmt in iterations(loop) if launches_kernels(loop) else (loop,):
            builder.emit(stmt)


@dataclass(frozen=True, slots=True, eq=False)
class PersistentLoop(LoopSpec):
    """A loop over the tiles of a domain (``stops``) that fall to one of ``wave_size`` blocks."""

    wave_size: Expr = field(default_factory=lambda: const(1))
    index: Expr = field(default_factory=lambda: const(0))

    def _nest(
        self, builder: Builder, loop_vars: tuple[Var, ...], value: Any, axis: int
    ) -> Iterator[Any]:
        total = functools.reduce(lambda a, b: binary("mul", a, b), self.stops)
        wave = Var("wave")
        with builder.open("loop") as frame:
            number = builder.let("tile", binary("add", wave * self.wave_size, self.index))
            with builder.open("then") as inner:
                rest: Expr = number
                for position in reversed(range(len(loop_vars))):
                    var, extent = loop_vars[position], self.stops[position]
                    last = position == 0
                    own = rest if last else binary("mod", rest, extent)
                    builder.emit(Let(var, cast(own, var.dtype), builder.span))
                    rest = binary("floordiv", rest, extent)
                yield value
            builder.emit(If(binary("lt", number, total), inner.body(), None, frame.span))
        waves = as_expr(ceildiv(total, self.wave_size))
        bounds = (const(0), waves, const(1))
        builder.emit(For(wave, *bounds, "serial", frame.body(), self.annotations, frame.span))


def persistent(
    domain: Sequence[ExprLike],
    wave_size: ExprLike,
    index: ExprLike,
    annotations: Mapping[str, Any] | None = None,
) -> PersistentLoop:
    """Return a loop over the tiles of ``domain`` that fall to block ``index`` of ``wave_size``.

    Raises:
        TypeMismatch: no axis, or an extent that is not an integer (TC202).
    """
    if not domain:
        raise TypeMismatch(expected="at least one extent", found="none")
    stops = tuple(integer(e, "number of tiles") for e in domain)
    zeros, ones = tuple(const(0) for _ in stops), tuple(const(1) for _ in stops)
    notes = read_only(annotations or {})
    wave, number = integer(wave_size, "number of blocks"), integer(index, "block index")
    return PersistentLoop("serial", zeros, stops, ones, notes, wave, number)


def integer(value: ExprLike, what: str) -> Expr:
    """Return ``value`` as an integer expression.

    Raises:
        TypeMismatch: it is not an integer (TC202).
    """
    expr = as_expr(value)
    if not expr.dtype.is_integer:
        raise TypeMismatch(expected=f"an integer {what}", found=f"{value} ({expr.dtype})")
    return expr


def loop(
    kind: str,
    start: ExprLike,
    stop: ExprLike | None = None,
    step: ExprLike = 1,
    annotations: Mapping[str, Any] | None = None,
) -> LoopSpec:
    """Return a loop over ``range(start, stop, step)`` (``range(start)`` without ``stop``).

    Raises:
        TypeMismatch: a bound or the step is not an integer, or the step is 0 (TC202).
    """
    first, last = (const(0), start) if stop is None else (start, stop)
    size = integer(step, "step")
    if int_value(size) == 0:
        raise TypeMismatch(expected="a step other than 0", found=f"{size}")
    bounds = (integer(first, "loop start"), integer(last, "loop end"))
    notes = read_only(annotations or {})
    return LoopSpec(kind, (bounds[0],), (bounds[1],), (size,), notes)


def nest(
    kind: str, extents: Sequence[ExprLike], annotations: Mapping[str, Any] | None = None
) -> LoopSpec:
    """Return a loop nest from 0 over ``extents``.

    Raises:
        TypeMismatch: no extent is given, or one is not an integer (TC202).
    """
    if not extents:
        raise TypeMismatch(expected="at least one loop extent", found="none")
    stops = tuple(integer(e, "loop extent") for e in extents)
    zeros, ones = tuple(const(0) for _ in stops), tuple(const(1) for _ in stops)
    return LoopSpec(kind, zeros, stops, ones, read_only(annotations or {}))
