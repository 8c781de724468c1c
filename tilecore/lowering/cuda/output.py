"""What kernels say: T.print, and assertions that stop the launch."""

from __future__ import annotations

import string
from typing import Any

from tvm import tirx as tir

from tilecore.ir.expr import Expr
from tilecore.ir.nodes import Assert, Print
from tilecore.lowering.cuda.access import Accessor
from tilecore.lowering.cuda.instructions.base import Instruction
from tilecore.lowering.cuda.scalar import convert


def emit_print(accessor: Accessor, stmt: Print) -> None:
    """Emit one line on standard output of each thread that comes by."""
    types = [_type(arg) for arg in stmt.args]
    values = [
        convert(accessor.scalar(arg), str(arg.dtype), kind)
        for arg, (kind, _, _) in zip(stmt.args, types, strict=True)
    ]
    formats = iter(text for _, _, text in types)
    line = "".join(
        literal.replace("%", "%%") + ("" if field is None else next(formats))
        for literal, field, _, _ in string.Formatter().parse(f"{stmt.text}\n")
    )
    names = [f"v{i}" for i in range(len(values))]
    parameters = ", ".join(f"{ctype} {n}" for (_, ctype, _), n in zip(types, names, strict=True))
    arguments = "".join(f", {n}" for n in names)
    body = f'printf("{_quoted(line)}"{arguments});'
    _call(accessor, "tc_print", parameters, body, values)


def emit_assert(accessor: Accessor, stmt: Assert) -> None:
    """Emit a stop of the launch, with a message, where a condition does not hold."""
    said = f"{stmt.span.file}:{stmt.span.line}: assertion failed: {stmt.message}"
    text = _quoted(said.replace("%", "%%"))
    with accessor.builder.when(tir.Not(accessor.scalar(stmt.cond))):
        body = f'printf("{text}\\n");\n__trap();'
        _call(accessor, "tc_fail", "", body, [], f'emu::fail("{text}");')


def _call(
    accessor: Accessor, name: str, parameters: str, body: str, values: list[Any],
    emulated: str | None = None,
) -> None:  # fmt: skip
    unique = accessor.builder.name(name + "_")
    made = Instruction(unique, parameters, body, emulated)
    accessor.builder.evaluate(made.call(*values))


def _type(arg: Expr) -> tuple[str, str, str]:
    """Return (type of the value, C type, format) as which an argument is printed."""
    if arg.dtype.is_float:
        return "float64", "double", "%g"
    if arg.dtype == "uint64":
        return "uint64", "unsigned long long", "%llu"
    return "int64", "long long", "%lld"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
