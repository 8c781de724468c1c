"""What compiled kernels say: printed lines, through the printf of libc, and failed assertions."""

from __future__ import annotations

import string
from typing import Any

import tvm
from tvm import tirx as tir

from tilecore.assertion import failure_text
from tilecore.ir.expr import Expr
from tilecore.ir.nodes import Assert, KernelLaunch, Print
from tilecore.ir.visitor import walk
from tilecore.lowering.cpu.access import Accessor
from tilecore.lowering.cpu.scalar import convert
from tilecore.lowering.tir import TirBuilder, index

_DECLARATIONS = "declare i32 @printf(ptr, ...)\ndeclare i32 @fflush(ptr)"


def emit_print(accessor: Accessor, stmt: Print) -> None:
    """Emit one line, written at once so that lines of different cores do not mix."""
    types = [_type(arg) for arg in stmt.args]
    values = [
        convert(accessor.scalar(arg), arg.dtype, kind, 1)
        for arg, (kind, _) in zip(stmt.args, types, strict=True)
    ]
    formats = iter(text for _, text in types)
    line = "".join(
        literal.replace("%", "%%") + ("" if field is None else next(formats))
        for literal, field, _, _ in string.Formatter().parse(f"{stmt.text}\n")
    )
    kinds = ["double" if a.dtype.is_float else "i64" for a in stmt.args]
    name = "tilecore_print_" + "".join(k[0] for k in kinds)
    builder = accessor.builder
    builder.define_llvm("printf", _DECLARATIONS)
    builder.call_llvm("int32", name, _text(name, kinds), tvm.ir.StringImm(line), *values)


def _type(arg: Expr) -> tuple[str, str]:
    if arg.dtype.is_float:
        return "float64", "%g"
    return ("uint64", "%llu") if arg.dtype == "uint64" else ("int64", "%lld")


def _text(name: str, kinds: list[str]) -> str:
    """Return a function that passes its arguments as C passes variable ones."""
    args = "".join(f", {kind} %v{i}" for i, kind in enumerate(kinds))
    return f"""define linkonce_odr hidden i32 @{name}(ptr %line{args}) {{
  %written = call i32 (ptr, ...) @printf(ptr %line{args})
  %flushed = call i32 @fflush(ptr null)
  ret i32 %written
}}"""


class Assertions:
    """The assertions of one launch: a block where one fails notes its number and ends.

    The caller's thread looks at the note once all blocks have ended: a pool of threads may lose the
    error of one (TVM's does, thread_pool.cc, SignalJobError; ``codegen/launch.ll`` does not).
    """

    def __init__(self, builder: TirBuilder, launch: KernelLaunch) -> None:
        self.builder = builder
        self.stmts = [s for s in walk(launch) if isinstance(s, Assert)]
        self.failed: Any = None
        if self.stmts:
            self.failed = builder.alloc(1, "int32", "failed")
            builder.store(self.failed, index(0), 0)

    def emit(self, accessor: Accessor, stmt: Assert) -> None:
        """Emit the check of one assertion in a block."""
        holds = self.builder.bind(accessor.scalar(stmt.cond))
        with self.builder.when(tir.Not(holds)):
            self.builder.store(self.failed, index(self._number(stmt)), 0)
        _check(self.builder, holds, stmt)

    def finish(self) -> None:
        """Emit the look at the note, after all blocks."""
        for stmt in self.stmts:
            noted = self.builder.load(self.failed, 0)
            _check(self.builder, tir.NE(noted, index(self._number(stmt))), stmt)

    def _number(self, stmt: Assert) -> int:
        return next(i for i, s in enumerate(self.stmts, 1) if s is stmt)


def emit_assert(accessor: Accessor, stmt: Assert) -> None:
    """Emit the check of an assertion outside the launches, where the caller's thread is alone."""
    _check(accessor.builder, accessor.scalar(stmt.cond), stmt)


def _check(builder: TirBuilder, holds: Any, stmt: Assert) -> None:
    message = stmt.message or f"`{stmt.cond}` does not hold"
    builder.check(holds, failure_text(message, stmt.span))
