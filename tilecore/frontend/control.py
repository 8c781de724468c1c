"""Control flow of traced programs: each construct is Python's or the IR's by the value it meets."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tilecore.errors import TypeMismatch, UnsupportedSyntax
from tilecore.frontend.builder import Builder, Frame
from tilecore.frontend.loops import LoopSpec
from tilecore.frontend.loops import loop as make_loop
from tilecore.ir.expr import Const, Expr, as_bool, const
from tilecore.ir.nodes import Alloc, Buffer, If, Jump, While
from tilecore.ir.visitor import has_jump

MOST_UNROLLED = 10_000  # iterations of a `while` whose test Python knows


class Branch:
    """An ``if``: one side where the test is a Python bool, both sides where it is an expression."""

    def __init__(self, builder: Builder, test: Expr | bool) -> None:
        self.builder = builder
        self.test = test
        self.span = builder.span
        self.frames: dict[str, Frame] = {}

    def takes(self, side: str) -> bool:
        """Return whether the body of ``side`` ("then" or "else") is to be traced."""
        return isinstance(self.test, Expr) or self.test == (side == "then")

    def body(self, side: str) -> AbstractContextManager[Any]:
        """Return the context in which the body of ``side`` runs."""
        return self._open(side) if isinstance(self.test, Expr) else nullcontext()

    def _open(self, side: str) -> AbstractContextManager[Frame]:
        self.builder.span = self.span
        context = self.builder.open(side)
        frames = self.frames

        class Remember(AbstractContextManager[Frame]):
            def __enter__(self) -> Frame:
                frames[side] = context.__enter__()
                return frames[side]

            def __exit__(self, *error: Any) -> bool | None:
                return context.__exit__(*error)

        return Remember()

    def close(self) -> None:
        """Emit the If statement of a test that is an expression."""
        if isinstance(self.test, Expr):
            other = self.frames.get("else")
            then_body = self.frames["then"].body()
            else_body = None if other is None else other.body()
            self.builder.emit(If(self.test, then_body, else_body, self.span))


def range_loop(function: Any, *args: Any) -> Any:
    """Return what ``range(...)`` means as the iterable of a ``for``: a serial loop."""
    return make_loop("serial", *args) if function is builtins.range else function(*args)


def loop(builder: Builder, iterable: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield what a ``for`` loop binds: once for a tile loop, each item of a Python iterable.

    Raises:
        TypeMismatch: the iterable is an expression or no iterable (TC202).
    """
    if isinstance(iterable, LoopSpec):
        yield from iterable.open(names)
        return
    if isinstance(iterable, Expr) or not hasattr(iterable, "__iter__") or iterable.__iter__ is None:
        raise TypeMismatch(
            expected="a loop (T.serial, T.Parallel, T.Pipelined, range, ...) or a Python iterable",
            found=f"{type(iterable).__name__}",
        )
    with builder.open("python"):
        yield from iterable


def while_loop(builder: Builder, test: Callable[[], Any], endless: bool) -> Iterator[None]:
    """Yield once for a loop decided when the kernel runs, else as Python would.

    ``while True`` (``endless``) is a loop of the kernel, left by ``break``.

    Raises:
        TypeMismatch: the test is a buffer (TC202).
        UnsupportedSyntax: a test that is an operation with jumps in the body, or one of known
            values that stays true (TC101).
    """
    span = builder.span
    before = len(builder.stmts)
    cond = const(True) if endless else test()
    if isinstance(cond, Buffer):  # to Python it is true for ever, and so would be the trace
        raise TypeMismatch(
            expected="a condition after `while`", found=f"the buffer `{cond.name}`",
            hint=f"test an element of it: `{cond.name}[...]`",
        )  # fmt: skip
    if endless or (isinstance(cond, Expr) and not isinstance(cond, Const)):
        # What the test does (T.any_of, T.atomic_load) happens again before each iteration.
        again = [s for s in builder.stmts[before:] if not isinstance(s, Alloc)]
        with builder.open("while") as frame:
            yield None
            if again and has_jump(frame.body()):
                raise UnsupportedSyntax(
                    expected="a while whose test is a condition",
                    found="a test that is an operation, with break or continue in the body",
                    hint="keep the test's result in a T.alloc_var and test that",
                )
            frame.stmts += again
        builder.emit(While(as_bool(cond), frame.body(), frame.span))
        return
    with builder.open("python"):
        for _ in range(MOST_UNROLLED):
            if not cond:
                return
            yield None
            cond = test()
    raise UnsupportedSyntax(
        expected="a `while` that ends, or one whose test the kernel computes",
        found=f"a test of values known while tracing, true {MOST_UNROLLED} times",
        hint="what it tests must be a T.alloc_var to change while the kernel runs",
        span=span,
    )


def jump(builder: Builder, word: str) -> bool:
    """Return whether ``break`` or ``continue`` acts while tracing; emit it for a tile loop.

    Raises:
        UnsupportedSyntax: a Python loop would end by a test known only at run time, or there is no
            serial loop (TC101).
    """
    late = False
    for frame in reversed(builder.frames):
        if frame.kind in ("loop", "while"):
            builder.emit(Jump(word, builder.span))
            return False
        if frame.kind == "python" and not late:
            return True
        if frame.kind in ("python", "parallel", "kernel", "func"):
            break
        late = True  # inside an `if` of the kernel
    raise UnsupportedSyntax(
        expected=f"`{word}` in T.serial, range or while",
        found=f"`{word}` of a loop that has no end at run time",
        hint="a loop over a Python iterable is unrolled; T.Parallel has no order",
    )
