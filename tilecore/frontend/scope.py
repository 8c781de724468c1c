"""What rewritten kernels call while they run: names, places, assignments and expressions.

One Scope exists per call of a traced function (a kernel or a macro). Control flow is in
frontend.control.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tilecore.errors import ScopeError, SourceSpan, TypeMismatch, UnsupportedSyntax
from tilecore.frontend import control
from tilecore.frontend.builder import INLINE_LIMIT, Builder, Frame
from tilecore.frontend.signature import ParamSlot, TensorSpec
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Const, Expr, Load, as_bool, as_expr, binary, cast, const, select, unary
from tilecore.ir.indexing import index_buffer, same_extents, whole
from tilecore.ir.nodes import Assert, Buffer, Copy, Fill, Region, Store
from tilecore.ir.vector import Vector, places, vector
from tilecore.ir.visitor import has_loads, walk_expr
from tilecore.target import runs_gpu_programs

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "<<": operator.lshift,
    ">>": operator.rshift, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "@": operator.matmul, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge, "is": operator.is_,
    "is not": operator.is_not, "in": lambda a, b: a in b, "not in": lambda a, b: a not in b,
}  # fmt: skip
_IN_PLACE: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.iadd, "-": operator.isub, "*": operator.imul, "/": operator.itruediv,
    "//": operator.ifloordiv, "%": operator.imod, "**": operator.ipow, "<<": operator.ilshift,
    ">>": operator.irshift, "&": operator.iand, "|": operator.ior, "^": operator.ixor,
    "@": operator.imatmul,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """The value of a name and the frame in which it was bound."""

    value: Any
    frame: Frame


def is_symbolic(value: Any) -> bool:
    """Return whether ``value`` is known only when the kernel runs."""
    return isinstance(value, Expr) and not isinstance(value, Const)


def is_variable(value: Any) -> bool:
    """Return whether ``value`` is what T.alloc_var returned."""
    return isinstance(value, Load) and value.buffer.is_var


class Scope:
    """The names of one traced function, and the operations its rewritten source calls."""

    slice_ = slice

    def __init__(self, builder: Builder, spans: Sequence[SourceSpan]) -> None:
        self.builder = builder
        self.spans = spans
        self.root = builder.frame
        self.bound: dict[str, Binding] = {}
        self.declared: Callable[[ParamSlot, Any], Any] | None = None
        self.references: set[str] = set()

    def refer(self, name: str, place: Load) -> None:
        """Make ``name`` another name of an element: assigning to it stores there."""
        self.bound[name] = Binding(place, self.root)
        self.references.add(name)

    def at(self, place: int, hint: str | None = None) -> None:
        """Record that the statement at ``place`` starts; ``hint`` is the name it assigns."""
        self.builder.span = self.spans[place]
        self.builder.hint = hint

    # --- names ----------------------------------------------------------------------------

    def bind(self, name: str, value: Any) -> Any:
        """Return what ``name = value`` binds; assigning to a T.alloc_var variable is a store."""
        old = self.bound.get(name)
        fresh = isinstance(value, Expr) and self.builder.fresh.pop(id(value), None) is not None
        is_place = old is not None and (is_variable(old.value) or name in self.references)
        if old is not None and is_place and old.frame.is_open and not fresh:
            if isinstance(value, (Expr, int, float)):
                self._store_element(old.value.buffer, old.value.indices, value)
                return old.value
        elif isinstance(value, Expr) and not fresh:
            value = self._settle(name, value)
        elif isinstance(value, Vector) and value.variable is None:
            return self._bind_vector(name, value, None if old is None else old.value)
        return self.bind_new(name, value)

    def _bind_vector(self, name: str, value: Vector, old: Any) -> Any:
        lanes = [self._settle(name, lane) for lane in value.lanes]
        if not isinstance(old, Vector) or old.variable is None:
            return self.bind_new(name, Vector(tuple(lanes)))
        if value.dtype != old.dtype:
            raise TypeMismatch(expected=f"a {old.dtype} for `{name}`", found=str(value.dtype))
        for place, lane in zip(old.lanes, lanes, strict=True):
            assert isinstance(place, Load)
            self._store_element(place.buffer, place.indices, lane)
        return old

    def bind_new(self, name: str, value: Any) -> Any:
        """Bind ``name`` to ``value`` as it is."""
        old = self.bound.get(name)
        before = old.frame if old is not None else self.root
        for frame in self._frames_inside(before):
            if (id(self), name) in frame.reads:
                self._refuse_rebinding(name, frame)
        self.bound[name] = Binding(value, self._frame())
        return value

    def _refuse_rebinding(self, name: str, loop: Frame) -> None:
        """Refuse a name that a loop reads before it binds it; TileLang's programs are warned."""
        error = ScopeError(
            message=f"`{name}` is read and then rebound in a loop at {loop.span}",
            hint=f"a plain name is immutable: use {name} = T.alloc_var(dtype, init)",
        )
        if not runs_gpu_programs():
            raise error
        warnings.warn(
            f"{self.builder.span}: {error.message}; as in TileLang, what is read is always the "
            "value from before the loop",
            stacklevel=2,
        )

    def read(self, name: str, value: Any) -> Any:
        """Return ``value`` after checking that the binding of ``name`` still holds."""
        binding = self.bound.get(name)
        frame = binding.frame if binding is not None else self.root
        if not frame.is_open:
            raise ScopeError(
                message=f"`{name}` was bound inside the body at {frame.span}, which has ended",
                hint=f"use {name} = T.alloc_var(dtype, init) before it, or move the use inside",
            )
        if not is_variable(value) and name not in self.references:
            for inner in self._frames_inside(frame):
                inner.reads.add((id(self), name))
        return value

    def _frame(self) -> Frame:
        return next(f for f in reversed(self.builder.frames) if f.kind != "python")

    def _frames_inside(self, outer: Frame) -> Iterator[Frame]:
        """Yield the open loops inside ``outer``, innermost first."""
        for frame in reversed(self.builder.frames):
            if frame is outer:
                return
            if frame.kind in ("loop", "parallel", "while"):
                yield frame

    def _settle(self, name: str, value: Expr) -> Expr:
        """Return ``value`` fixed at this point of the program."""
        if is_symbolic(value) and (has_loads(value) or _is_long(value)):
            return self.builder.let(name, value)
        return value

    def declare(self, name: str, annotation: Any, old: Callable[[], Any]) -> Any:
        """Return what ``name: annotation`` binds: a tensor parameter of the eager style."""
        try:
            value = old()
        except NameError:
            value = None
        if isinstance(value, ParamSlot) and self.declared is not None:
            return self.bind_new(name, self.declared(value, annotation))
        if isinstance(annotation, TensorSpec) and not isinstance(value, Buffer):
            found = "" if value is None else f", found {type(value).__name__}"
            raise ScopeError(
                message=f"`{name}` is annotated as a tensor but is no tensor parameter{found}",
                hint="give the call a tensor of torch or NumPy for it; of the function, annotate"
                " parameters: T.empty makes outputs, T.alloc_* makes tiles",
            )
        return value

    def typed(self, name: str, annotation: Any, value: Any, is_early: bool) -> Any:
        """Return what ``name: annotation = value`` binds: a variable if it is an element type.

        Early, before a launch, it is a size, which stays the value that it is.
        """
        is_size = is_early and self.builder.find("kernel") is None
        if not isinstance(annotation, DType) or is_size:
            return self.bind(name, value)
        buffer = Buffer(name, (const(1),), annotation, "local", is_var=True)
        variable = self.builder.variable(buffer)
        self._store_element(variable.buffer, variable.indices, value)
        return self.bind(name, variable)

    def snapshot(self, value: Any) -> Any:
        """Return the items of a tuple value, each fixed at this point (``a, b = b, a``)."""
        if isinstance(value, (tuple, list)):
            return type(value)(
                self.builder.let("tmp", v)
                if isinstance(v, Expr) and id(v) not in self.builder.fresh and has_loads(v)
                else v
                for v in value
            )
        return self.unpack(value)

    @staticmethod
    def unpack(value: Any) -> Any:
        """Return ``value`` as something to take apart: a single Var is a tuple of one."""
        return (value,) if isinstance(value, Expr) else value

    # --- buffers --------------------------------------------------------------------------

    def store(self, target: Any, key: Any, value: Any) -> None:
        """Run ``target[key] = value``."""
        if not isinstance(target, Buffer):
            target[key] = value
            return
        place = index_buffer(target, key)
        if isinstance(place, Load):
            self._store_element(target, place.indices, value)
        elif isinstance(place, Vector):
            many = isinstance(value, (Vector, Region))
            lanes = vector(value) if many else Vector((as_expr(value),) * len(place.lanes))
            self._store_vector(target, places(place), lanes)
        elif isinstance(value, (Buffer, Region)):
            source = whole(value) if isinstance(value, Buffer) else value
            if not same_extents(source.extents, place.extents):
                raise TypeMismatch(
                    expected=f"a tile like `{target.name}[...]`", found="another shape"
                )
            self.builder.emit(Copy(source, place, span=self.builder.span))
        elif isinstance(value, Vector):
            self._store_vector(target, places(place), value)
        else:
            self.builder.emit(Fill(place, cast(value, target.dtype), self.builder.span))

    def _store_vector(self, buffer: Buffer, at: list[tuple[Expr, ...]], value: Vector) -> None:
        if len(at) != len(value.lanes):
            raise TypeMismatch(expected=f"{len(at)} lanes", found=str(value.dtype))
        lanes = [self._settle("lane", lane) for lane in value.lanes]
        for indices, lane in zip(at, lanes, strict=True):
            self._store_element(buffer, indices, lane)

    def _store_element(self, buffer: Buffer, indices: tuple[Expr, ...], value: Any) -> None:
        if isinstance(value, (Buffer, Region)):
            raise TypeMismatch(
                expected=f"a scalar for an element of `{buffer.name}`",
                found=f"the tile `{getattr(value, 'name', 'region')}`",
                hint="use T.copy to copy tiles",
            )
        self.builder.emit(Store(buffer, indices, cast(value, buffer.dtype), self.builder.span))

    def augment(self, op: str, old: Any, value: Any) -> Any:
        """Return ``old op= value``: in place for Python objects, a new value for expressions."""
        table = _OPERATORS if isinstance(old, Expr) or isinstance(value, Expr) else _IN_PLACE
        return table[op](old, value)

    def augment_item(self, op: str, target: Any, key: Any, value: Any) -> None:
        """Run ``target[key] op= value``."""
        self.store(target, key, self.augment(op, target[key], value))

    # --- expressions ----------------------------------------------------------------------

    def choose(self, test: Any, a: Callable[[], Any], b: Callable[[], Any]) -> Any:
        """Return ``a() if test else b()``."""
        return select(test, a(), b()) if is_symbolic(test) else (a() if test else b())

    def logic(self, op: str, *operands: Callable[[], Any]) -> Any:
        """Return ``operands`` joined by ``and`` or ``or``, evaluated as far as Python would."""
        result = operands[0]()
        for operand in operands[1:]:
            if is_symbolic(result):
                result = binary(op, as_bool(result), operand())
            elif bool(result) == (op == "or"):
                return result
            else:
                result = operand()
        return result

    def not_(self, value: Any) -> Any:
        """Return ``not value``."""
        return unary("not", value) if is_symbolic(value) else not value

    def chain(self, ops: tuple[str, ...], *operands: Any) -> Any:
        """Return a chained comparison."""
        pairs = zip(ops, operands, operands[1:], strict=False)
        return self.logic("and", *(_late(_OPERATORS[op], a, b) for op, a, b in pairs))

    def check(self, test: Any, message: Callable[[], Any]) -> None:
        """Run ``assert test, message``: now where known, else when the kernel runs."""
        if is_symbolic(test):
            self.builder.emit(Assert(as_bool(test), str(message()), self.builder.span))
        elif not test:
            raise AssertionError(message())

    # --- control flow ---------------------------------------------------------------------

    def branch(self, test: Any) -> control.Branch:
        """Return the two sides of an ``if``."""
        return control.Branch(self.builder, as_bool(test) if is_symbolic(test) else bool(test))

    def loop(self, iterable: Any, names: tuple[str, ...]) -> Iterator[Any]:
        """Yield what a ``for`` loop binds: once for a tile loop, each item of a Python iterable."""
        return control.loop(self.builder, iterable, names)

    range_ = staticmethod(control.range_loop)

    def while_(self, test: Callable[[], Any], endless: bool) -> Iterator[None]:
        """Yield once for a loop decided when the kernel runs, else as Python would."""
        return control.while_loop(self.builder, test, endless)

    def jump(self, word: str) -> bool:
        """Return whether ``break`` or ``continue`` acts on a Python loop; else emit it."""
        return control.jump(self.builder, word)

    def enter(self, context: Any, names: tuple[str, ...]) -> AbstractContextManager[Any]:
        """Return the context manager of a ``with``; a kernel launch learns its names."""
        rename = getattr(context, "with_names", None)
        opened = rename(names) if callable(rename) and names else context
        if not hasattr(opened, "__enter__"):
            raise TypeMismatch(expected="a context manager after `with`", found=repr(opened))
        manager: AbstractContextManager[Any] = opened
        return manager

    def ret(self, value: Any) -> Any:
        """Check that ``return`` stands where it may and return ``value``."""
        inner = self.builder.frames[self.builder.frames.index(self.root) + 1 :]
        if any(f.kind != "python" for f in inner):
            raise UnsupportedSyntax(
                expected="`return` at the end of the function", found="`return` inside a body"
            )
        return value


def _is_long(value: Expr) -> bool:
    return sum(1 for _ in zip(walk_expr(value), range(INLINE_LIMIT), strict=False)) >= INLINE_LIMIT


def _late(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Callable[[], Any]:
    return lambda: function(a, b)
