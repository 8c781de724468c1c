"""Tracing: running a rewritten kernel and returning the PrimFunc it built."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

from tilecore.errors import ScopeError, SourceSpan, TileError, TypeMismatch, program_error
from tilecore.frontend import source
from tilecore.frontend.builder import Builder, building, current
from tilecore.frontend.hints import hint_of
from tilecore.frontend.scope import Scope, is_symbolic
from tilecore.frontend.signature import ParamSlot, TensorSpec, scalar, scalar_type
from tilecore.ir.cuda_source import with_arguments
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Load, Var, const
from tilecore.ir.nodes import Buffer, KernelLaunch, PrimFunc, Seq, Stmt
from tilecore.ir.plain.negative_index import with_negative_indices
from tilecore.ir.plain.unused_views import without_unused_views
from tilecore.ir.visitor import has_loads

PACKAGE = Path(__file__).parent.parent
MACRO_DEPTH = 32


@contextmanager
def placing_errors(builder: Builder) -> Iterator[None]:
    """Give errors raised while tracing the place of the statement that was being traced.

    Errors of tilecore get it as their span; those of the program's own Python become a
    ProgramError, which is also an error of their class. Faults inside tilecore stay what they are.
    """
    try:
        yield
    except TileError as error:
        error.at(builder.span)
        raise
    except Exception as error:
        if not _raised_inside(error):
            if isinstance(error, KeyError) and error.args and isinstance(error.args[0], Expr):
                raise _unknown_key(error.args[0], builder.span) from error
            raise program_error(error, builder.span, hint_of(error)) from error
        raise


def _unknown_key(key: Expr, span: SourceSpan) -> TypeMismatch:
    """Return the error of a dict of Python that is asked for a value of the kernel."""
    return TypeMismatch(
        expected="a key known while the program is traced",
        found=f"`{key}`, known only when the kernel runs",
        hint="choose by `if` or T.if_then_else, or index a tensor or tile",
        span=span,
    )


def _raised_inside(error: Exception) -> bool:
    """Return whether tilecore's own code raised ``error``."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return Path(last.filename).is_relative_to(PACKAGE)


def definition_span(fn: FunctionType) -> SourceSpan:
    """Return the place of a function's ``def``."""
    return SourceSpan(fn.__code__.co_filename, fn.__code__.co_firstlineno)


def run_body(fn: FunctionType, args: Mapping[str, Any], scope: Scope) -> Any:
    """Run the rewritten body of ``fn`` with ``args`` and return what it returns."""
    code = source.load(fn)
    scope.spans = code.spans
    return code.bind(fn, scope)(**args)


def outputs_of(result: Any, builder: Builder) -> tuple[Buffer, ...]:
    """Return the output tensors in the order a program returns them.

    Raises:
        TypeMismatch: it returns something else, or not all that T.empty made (TC202).
    """
    items = () if result is None else result if isinstance(result, (tuple, list)) else (result,)
    made = {id(b) for b in builder.outputs}
    for item in items:
        if id(item) not in made:
            name = item.name if isinstance(item, Buffer) else type(item).__name__
            raise TypeMismatch(expected="tensors made by T.empty in `return`", found=f"`{name}`")
    lost = [b.name for b in builder.outputs if not any(b is i for i in items)]
    if lost:
        raise TypeMismatch(
            expected="every tensor made by T.empty to be returned",
            found=f"`{'`, `'.join(lost)}` not returned",
        )
    return tuple(items)


def parameter(name: str, annotation: Any) -> Buffer | Var:
    """Return the parameter that an annotation declares.

    Raises:
        TypeMismatch: the annotation is neither a tensor nor an element type (TC202).
    """
    if isinstance(annotation, TensorSpec):
        return annotation.buffer(name)
    kind = scalar_type(annotation)
    if kind is not None:
        return scalar(name, kind)
    raise TypeMismatch(
        expected=f"parameter `{name}` annotated with T.Tensor(shape, dtype) or an element type",
        found="no annotation" if annotation is inspect.Parameter.empty else repr(annotation),
    )


def trace_prim_func(fn: FunctionType, annotations: Mapping[str, Any]) -> PrimFunc:
    """Return the program that ``fn`` describes (the lazy style).

    Raises:
        TileError: whatever the program does wrong, at the place where it does it.
    """
    place = definition_span(fn)
    builder = Builder()
    builder.span = place
    with placing_errors(builder), building(builder):
        names = inspect.signature(fn).parameters
        empty = inspect.Parameter.empty
        params: dict[str, Buffer | Var] = {}
        arguments: dict[str, Any] = {}
        for name in names:
            if annotations.get(name, empty) is empty:
                arguments[name] = ParamSlot(name)  # annotated in the body
                continue
            found = parameter(name, annotations[name])
            params[name] = replace(found, span=place) if isinstance(found, Buffer) else found
        scope = Scope(builder, ())

        def declare(slot: ParamSlot, annotation: Any) -> Buffer | Var:
            found = parameter(slot.name, annotation)
            place = builder.span
            params[slot.name] = replace(found, span=place) if isinstance(found, Buffer) else found
            return params[slot.name]

        scope.declared = declare
        outputs = outputs_of(run_body(fn, {**arguments, **params}, scope), builder)
        for name in names:
            if name not in params:
                parameter(name, empty)  # says what is missing
    ordered = [params[n] for n in names]
    return finish(fn.__name__, (*ordered, *outputs), builder, place)


def finish(
    name: str, params: tuple[Buffer | Var, ...], builder: Builder, place: SourceSpan
) -> PrimFunc:
    """Return the PrimFunc of a finished trace.

    A program that needs a T.Kernel and has none is one block of one thread, but for the axes that
    it binds by name (T.launch_thread).

    Raises:
        ScopeError: a T.Kernel without `with` (TC104).
    """
    for error in builder.unopened.values():
        raise error
    body = builder.frames[0].body()
    if builder.loose is not None:
        launch, one = builder.frames[0].launch, (const(1),)
        alone: list[Stmt] = [KernelLaunch((Var("bx"),), one, one, body, place)]
        body = Seq(tuple(alone if launch is None else launch.around(body)), place)
    func = PrimFunc(name, params, body, dict(builder.attrs), span=place)
    return with_arguments(without_unused_views(with_negative_indices(func)))


def resolve_annotations(
    fn: FunctionType, local_names: Mapping[str, Any], strict: bool = True
) -> dict[str, Any]:
    """Return the annotations of ``fn`` as values, also under postponed evaluation.

    Args:
        fn: the function.
        local_names: the names visible where it is defined.
        strict: raise NameError for an annotation that cannot be evaluated, else keep its text.
    """
    values = dict(fn.__annotations__)
    for name, annotation in values.items():
        if isinstance(annotation, str) and not isinstance(annotation, DType):
            try:
                values[name] = eval(annotation, fn.__globals__, dict(local_names))
            except NameError:
                if strict:
                    raise
    return values


class Ref:
    """``x: T.Ref`` in a macro: the argument is a variable or element, assigned in place."""

    def __class_getitem__(cls, item: Any) -> type[Ref]:
        return cls


class Macro:
    """A function whose body is traced in the place where it is called.

    Arguments go by value, but tiles and parameters annotated with ``T.Ref`` (or ``T.Var``).
    """

    def __init__(self, fn: FunctionType) -> None:
        self.fn = fn
        functools.update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the body into the current program and return what it returns.

        Raises:
            ScopeError: macros call each other without end (TC104).
        """
        builder = current()
        outside = builder.span, builder.hint
        if builder.depth == MACRO_DEPTH:
            raise ScopeError(
                message=f"macro `{self.fn.__name__}` is called inside {MACRO_DEPTH} others",
                hint="a macro is traced where it is called: recursion must end on a Python value",
            )
        bound = inspect.signature(self.fn).bind(*args, **kwargs)
        bound.apply_defaults()
        scope = Scope(builder, ())
        annotations = resolve_annotations(self.fn, {}, strict=False)
        for name, value in bound.arguments.items():
            bound.arguments[name] = _argument(scope, name, value, annotations.get(name))
        code = source.load(self.fn)
        scope.spans = code.spans
        builder.depth += 1
        with placing_errors(builder):
            result = code.bind(self.fn, scope)(*bound.args, **bound.kwargs)
        builder.depth -= 1
        builder.span, builder.hint = outside
        return result


def _argument(scope: Scope, name: str, value: Any, annotation: Any) -> Any:
    """Return what a macro parameter is bound to.

    Raises:
        TypeMismatch: ``T.Ref`` got a value instead of a variable or element (TC202).
    """
    if annotation is Ref or annotation is Var or str(annotation) in ("T.Ref", "T.Var"):
        if not isinstance(value, Load):
            raise TypeMismatch(
                expected=f"a variable (T.alloc_var) or an element for `{name}: T.Ref`",
                found=f"the value {value}",
            )
        scope.refer(name, value)
        return value
    is_late = is_symbolic(value) and has_loads(value)
    return scope.builder.let(name, value) if is_late else value


def macro(fn: Callable[..., Any] | None = None) -> Any:
    """Return ``fn`` as a macro (``@T.macro`` or ``@T.macro()``)."""
    if fn is None:
        return macro
    assert isinstance(fn, FunctionType)
    return Macro(fn)
