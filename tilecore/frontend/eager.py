"""The eager style: a function that is its own kernel, with T.const, T.empty and in-body tensors.

Tracing has two phases. The first runs the body only until every tensor parameter has been
annotated, with T.const names as symbols; the shapes of the actual tensors then give their values.
The second traces the whole body with those values as plain ints.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.frontend import source
from tilecore.frontend.builder import Builder, building
from tilecore.frontend.scope import Scope
from tilecore.frontend.signature import (
    ParamSlot,
    PointerSpec,
    TensorSpec,
    scalar,
    scalar_type,
)
from tilecore.frontend.trace import definition_span, finish, outputs_of, placing_errors, run_body
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Var
from tilecore.ir.nodes import Buffer, PrimFunc


class _SignatureKnown(BaseException):
    """Ends the first phase; not an Exception, so that no handler of user code catches it."""


@dataclass(frozen=True, slots=True)
class EagerSignature:
    """What the first phase finds: the tensor parameters, and the symbols of the T.const names."""

    params: tuple[Buffer | Var, ...]
    constants: Mapping[str, Var] = field(default_factory=dict)


class _Trace:
    """One run of an eager body."""

    def __init__(
        self, fn: FunctionType, static: Mapping[str, Any], constants: Mapping[str, int] | None
    ) -> None:
        self.fn = fn
        self.static = static
        self.values = constants
        self.symbols: dict[str, Var] = {}
        self.params: dict[str, Buffer | Var] = {}
        self.open: set[str] = set()
        self.builder = Builder()
        self.builder.span = definition_span(fn)
        self.builder.constants = self.constant

    def constant(self, name: str, dtype: DType) -> Any:
        """Return the value of a T.const name: an int once known, or a symbol that stands for it."""
        if self.values is None:
            return self.symbols.setdefault(name, Var(name, dtype))
        if name not in self.values:
            lists = [f"the list `{n}`" for n, v in self.static.items() if isinstance(v, list)]
            raise TypeMismatch(
                expected=f"a value of T.const name `{name}`: `.compile({name}=...)` or tensors",
                found=f"values of {', '.join(self.values) or 'nothing'}",
                hint=f"give tensors of torch or NumPy for {' and '.join(lists)}" if lists else "",
            )
        value: Any = self.values[name]
        return value if isinstance(value, Expr) else int(value)

    def declare(self, slot: ParamSlot, annotation: Any) -> Any:
        """Return the tensor or scalar that an annotation makes of a parameter."""
        self.params[slot.name] = self.parameter(slot.name, annotation)
        self.open.discard(slot.name)
        if self.values is None and not self.open:
            raise _SignatureKnown
        return self.params[slot.name]

    def parameter(self, name: str, annotation: Any) -> Buffer | Var:
        """Return the parameter that an annotation declares."""
        kind = scalar_type(annotation)
        if kind is not None:
            return scalar(name, kind)
        if not isinstance(annotation, TensorSpec):
            raise TypeMismatch(
                expected=f"`{name}` annotated with T.Tensor[[...], dtype] or an element type",
                found=repr(annotation),
            )
        return replace(annotation.buffer(name), span=self.builder.span)

    def run(self, annotations: Mapping[str, Any]) -> PrimFunc:
        """Run the body and return the program."""
        fn, place = self.fn, self.builder.span
        arguments: dict[str, Any] = {}
        for name in parameter_names(fn):
            spec = annotations.get(name)
            if name in self.static:
                arguments[name] = self.static[name]
            elif isinstance(spec, (TensorSpec, DType, PointerSpec)):
                arguments[name] = self.params[name] = self.parameter(name, spec)
            else:
                arguments[name] = ParamSlot(name)
                self.open.add(name)
        with placing_errors(self.builder), building(self.builder):
            if self.values is None and not self.open:
                raise _SignatureKnown
            scope = Scope(self.builder, ())
            scope.declared = self.declare
            outputs = outputs_of(run_body(fn, arguments, scope), self.builder)
            if self.open:
                raise ParamSlot(sorted(self.open)[0]).unannotated()
        ordered = [self.params[n] for n in parameter_names(fn) if n in self.params]
        return finish(fn.__name__, (*ordered, *outputs), self.builder, place)


def parameter_names(fn: FunctionType) -> tuple[str, ...]:
    """Return the names of the parameters in order."""
    code = fn.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def eager_signature(
    fn: FunctionType, static: Mapping[str, Any], annotations: Mapping[str, Any]
) -> EagerSignature:
    """Return the tensor parameters of an eager function, extents in terms of its T.const names.

    Args:
        fn: the function.
        static: the arguments that are not tensors.
        annotations: the annotations of its signature, as values.

    Raises:
        TileError: whatever the program does wrong before its last tensor annotation.
    """
    trace = _Trace(fn, static, None)
    try:
        trace.run(annotations)
    except _SignatureKnown:
        ordered = [trace.params[n] for n in parameter_names(fn) if n in trace.params]
        return EagerSignature(tuple(ordered), dict(trace.symbols))
    return EagerSignature(tuple(trace.params.values()), dict(trace.symbols))


def trace_eager(
    fn: FunctionType,
    static: Mapping[str, Any],
    annotations: Mapping[str, Any],
    constants: Mapping[str, int],
) -> PrimFunc:
    """Return the program of an eager function for known T.const values.

    Raises:
        TileError: whatever the program does wrong, at the place where it does it.
    """
    return _Trace(fn, static, constants).run(annotations)


def is_eager(fn: FunctionType, annotations: Mapping[str, Any]) -> bool:
    """Return whether ``fn`` is itself a kernel, as opposed to a function that returns one.

    A kernel has a tensor in its signature, or in its own body (not that of an inner function) a
    ``with``, an annotation without a value, or a call of ``const`` or ``empty``.
    """
    if any(isinstance(a, (TensorSpec, PointerSpec)) for a in annotations.values()):
        return True
    return _is_written_eagerly(fn.__code__, fn.__code__.co_name, fn.__code__.co_filename)


@lru_cache(maxsize=1024)
def _is_written_eagerly(code: CodeType, name: str, file: str) -> bool:
    # `file` is part of the key: equal functions of two files have equal code objects.
    found = False

    def visit(node: ast.AST, look: Callable[[ast.AST], bool]) -> bool:
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            return False
        return look(node) or any(visit(c, look) for c in ast.iter_child_nodes(node))

    def speaks(node: ast.AST) -> bool:
        if isinstance(node, ast.With) or (isinstance(node, ast.AnnAssign) and node.value is None):
            return True
        is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        return is_method and node.func.attr in ("const", "empty")  # type: ignore[attr-defined]

    for stmt in source.parse_function(code, name).body:
        found = found or visit(stmt, speaks)
    return found
