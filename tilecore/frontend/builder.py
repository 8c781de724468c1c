"""The program being traced: open statement lists, the current source place, and name hints.

One Builder exists per traced program. Primitives of the language find it with ``current()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tilecore.errors import ScopeError, SourceSpan
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Load, Var, const
from tilecore.ir.nodes import (
    NO_SPAN,
    Alloc,
    Arrive,
    Atomic,
    Buffer,
    ChunkCopy,
    Copy,
    Exchange,
    Fill,
    Gemm,
    KernelLaunch,
    LaneGemm,
    Let,
    Parallel,
    Reduce,
    Scan,
    Seq,
    SourceLaunch,
    Stmt,
    Store,
    Sync,
    Wait,
)

_CURRENT: ContextVar[Builder | None] = ContextVar("tilecore_builder", default=None)
_IN_KERNEL = (
    Arrive, Atomic, ChunkCopy, Copy, Exchange, Fill, Gemm, LaneGemm, Parallel, Reduce, Scan, Store,
    Sync, Wait,
)  # fmt: skip
INLINE_LIMIT = 64  # nodes: a longer pure expression gets a name instead of being repeated


@dataclass(eq=False)
class Frame:
    """One open statement list.

    ``kind`` is "func", "kernel", "loop", "parallel", "while", "if" (the inside of T.If), "then",
    "else" or "python" (a Python loop, which runs while tracing and makes no statement). ``reads``
    holds the names (scope id, name) that the body of a loop has read from outside so far.
    """

    kind: str
    span: SourceSpan
    stmts: list[Stmt] = field(default_factory=list)
    reads: set[tuple[int, str]] = field(default_factory=set)
    is_open: bool = True
    axes: tuple[tuple[Var, Expr], ...] = ()  # variables and extents of a "parallel" frame
    launch: Any = None  # the KernelFrame of a "kernel" frame, or of a "func" that binds axes itself
    branch: Any = None  # the Branch of an "if" frame

    def body(self) -> Seq:
        """Return the collected statements."""
        return Seq(tuple(self.stmts), self.span)


class Builder:
    """Collects the statements of one program while its Python source runs."""

    def __init__(self) -> None:
        self.span: SourceSpan = NO_SPAN
        self.hint: str | None = None
        self.frames: list[Frame] = [Frame("func", NO_SPAN)]
        self.outputs: list[Buffer] = []
        self.attrs: dict[str, Any] = {}
        self.constants: Callable[[str, DType], Any] | None = None  # T.const, set by the eager style
        self.fresh: dict[int, Load] = {}  # variables not yet bound to a name
        self.block_vars: tuple[Var, ...] = ()  # of the launch that is open
        self.loose: ScopeError | None = None  # about the first statement that needs a kernel
        self.unopened: dict[Any, ScopeError] = {}  # about each T.Kernel that no `with` opened yet
        self.depth = 0  # of nested macros

    @property
    def frame(self) -> Frame:
        """The innermost open frame."""
        return self.frames[-1]

    @property
    def stmts(self) -> list[Stmt]:
        """The innermost open statement list."""
        return next(f.stmts for f in reversed(self.frames) if f.kind != "python")

    def emit(self, stmt: Stmt) -> None:
        """Append ``stmt`` to the innermost frame that holds statements.

        Raises:
            ScopeError: a tile operation outside the T.Kernel of a program that has one (TC104).
        """
        if isinstance(stmt, _IN_KERNEL):
            self.needs_kernel(
                f"a {type(stmt).__name__.lower()} stands outside T.Kernel",
                "put it inside `with T.Kernel(...)`",
            )
        self.stmts.append(stmt)

    def needs_kernel(self, message: str, hint: str) -> None:
        """Note that what is being traced stands in a kernel: a program without one is one block.

        Raises:
            ScopeError: the program has launched kernels, and this is outside of them (TC104).
        """
        if self.find("kernel") is not None:
            return
        self.loose = self.loose or ScopeError(message=message, hint=hint, span=self.span)
        if any(isinstance(s, (KernelLaunch, SourceLaunch)) for s in self.frames[0].stmts):
            raise self.loose

    @contextmanager
    def open(self, kind: str) -> Iterator[Frame]:
        """Open a frame for the statements of a nested body and close it after."""
        frame = Frame(kind, self.span)
        self.frames.append(frame)
        try:
            yield frame
        finally:
            frame.is_open = False
            while self.frames.pop() is not frame:
                pass

    def find(self, *kinds: str) -> Frame | None:
        """Return the innermost open frame of one of ``kinds``."""
        return next((f for f in reversed(self.frames) if f.kind in kinds), None)

    def take_hint(self, default: str) -> str:
        """Return the name on the left of the current assignment (once), else ``default``."""
        name, self.hint = self.hint or default, None
        return name

    def allocate(self, buffer: Buffer) -> Buffer:
        """Emit the allocation of ``buffer``.

        Raises:
            ScopeError: outside the T.Kernel of a program that has one (TC104).
        """
        self.needs_kernel(
            f"`{buffer.name}` ({buffer.scope}) is allocated outside T.Kernel",
            "allocate tiles inside `with T.Kernel(...)`; T.empty makes an output tensor",
        )
        self.emit(Alloc(buffer, self.span))
        return buffer

    def variable(self, buffer: Buffer) -> Load:
        """Allocate the scalar variable ``buffer`` and return the expression that reads it."""
        self.allocate(buffer)
        load = Load(buffer, (const(0),), buffer.dtype)
        self.fresh[id(load)] = load
        return load

    def let(self, name: str, value: Expr) -> Var:
        """Bind ``value`` to a new immutable Var for the rest of the frame."""
        var = Var(name, value.dtype)
        self.emit(Let(var, value, self.span))
        return var


def current() -> Builder:
    """Return the Builder of the program being traced.

    Raises:
        ScopeError: no program is being traced (TC104).
    """
    builder = _CURRENT.get()
    if builder is None:
        raise ScopeError(
            message="a tile primitive is used outside a tile program",
            hint="call it inside a function decorated with @T.prim_func or @tilelang.jit",
        )
    return builder


def active() -> Builder | None:
    """Return the Builder of the program being traced, or None."""
    return _CURRENT.get()


@contextmanager
def building(builder: Builder | None = None) -> Iterator[Builder]:
    """Make ``builder`` (default: a new one) the current one inside the ``with`` block."""
    target = builder or Builder()
    token = _CURRENT.set(target)
    try:
        yield target
    finally:
        _CURRENT.reset(token)
