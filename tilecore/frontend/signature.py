"""Parameters of tile programs: tensor specs, slots of the eager style, and what is a tensor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilecore.errors import ArgumentError, ScopeError, ShapeMismatch, TypeMismatch
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, ExprLike, Pointer, Var, as_expr, int_value
from tilecore.ir.indexing import format_shape
from tilecore.ir.nodes import NO_SPAN, Buffer

LARGEST_EXTENT = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class TensorSpec:
    """What ``T.Tensor(shape, dtype)`` gives: the shape and element type of a tensor parameter.

    ``strides`` (None: row-major) are what ``T.StridedTensor`` adds; ``scope`` is another than
    "global" in annotations of macro arguments.
    """

    shape: tuple[Expr, ...]
    dtype: DType
    strides: tuple[Expr, ...] | None = None
    scope: str = "global"

    def buffer(self, name: str, is_output: bool = False) -> Buffer:
        """Return a global tensor of this spec."""
        return Buffer(
            name, self.shape, self.dtype, "global", is_output, span=NO_SPAN, strides=self.strides
        )

    def __str__(self) -> str:
        return f"{self.dtype}{format_shape(self.shape)}"


def tensor_spec(
    shape: Any, dtype: Any, strides: Any = None, scope: str = "global", least: int = 0
) -> TensorSpec:
    """Return the spec for a shape (int, expression, or a sequence of them) and an element type.

    Args:
        shape: extents of at least ``least``: tensors may be empty, tiles may not.
        dtype: element type.
        strides: elements between neighbours along each axis; without it row-major.
        scope: the memory.
        least: see shape.

    Raises:
        TypeMismatch: an extent or stride is not an integer or is too small (TC202).
        ShapeMismatch: not one stride per axis (TC201).
    """
    extents = shape if isinstance(shape, (tuple, list)) else (shape,)
    found = tuple(extent(e, least) for e in extents)
    steps = None if strides is None else tuple(extent(s) for s in strides)
    if steps is not None and len(steps) != len(found):
        raise ShapeMismatch(
            what="strides of a tensor", expected=f"{len(found)}, one per axis", found=len(steps)
        )
    kind = "int64" if isinstance(dtype, PointerSpec) else dtype
    return TensorSpec(found, DType(kind), steps, scope)


@dataclass(frozen=True, slots=True)
class PointerSpec:
    """What ``T.ptr`` gives: a parameter that is the address of a tensor.

    As the element type of a tensor it means a table of addresses (int64).
    """

    dtype: DType | None = None

    def var(self, name: str) -> Pointer:
        """Return the parameter."""
        return Pointer(name, DType("int64"), self.dtype)

    def __call__(self, dtype: Any = None, storage_scope: str = "global", **options: Any) -> Any:
        """Return the pointer to elements of ``dtype``."""
        _ = options
        if storage_scope != "global":
            raise TypeMismatch(expected='storage_scope "global"', found=repr(storage_scope))
        return PointerSpec(None if dtype is None else DType(dtype))


_PYTHON_TYPES = {int: DType("int32"), float: DType("float32"), bool: DType("bool")}


def scalar_type(annotation: Any) -> DType | PointerSpec | None:
    """Return the type of a scalar parameter, or None if the annotation is none."""
    if isinstance(annotation, (DType, PointerSpec)):
        return annotation
    return _PYTHON_TYPES.get(annotation) if isinstance(annotation, type) else None


def scalar(name: str, kind: DType | PointerSpec) -> Var:
    """Return the scalar or pointer parameter of that type."""
    return kind.var(name) if isinstance(kind, PointerSpec) else Var(name, kind)


def extent(value: ExprLike, least: int = 1) -> Expr:
    """Return one extent of a shape as an expression.

    Raises:
        TypeMismatch: it is not an integer, below ``least``, or none of 64 bits (TC202).
    """
    expr = as_expr(value)
    number = int_value(expr)
    if not expr.dtype.is_integer or (number is not None and not least <= number <= LARGEST_EXTENT):
        known = f"an extent (an integer of at least {least})"
        if expr.dtype.is_integer and number is not None and number > LARGEST_EXTENT:
            known = "an extent (an integer below 2^63)"
        raise TypeMismatch(expected=known, found=f"{value!s}")
    return expr


@dataclass(frozen=True, slots=True)
class ParamSlot:
    """A tensor parameter of an eager function before its in-body annotation is met."""

    name: str

    def __repr__(self) -> str:
        return f"the tensor given for `{self.name}`"

    def __getitem__(self, key: Any) -> Any:
        raise self.unannotated()

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self.unannotated()

    def unannotated(self) -> ScopeError:
        """Return the error of using the parameter, or leaving the body, without an annotation."""
        return ScopeError(
            message=f"parameter `{self.name}` has no tensor annotation",
            hint=f"write `{self.name}: T.Tensor[[M, K], dtype]` in the body or the signature",
        )


def is_tensor(value: Any) -> bool:
    """Return whether a call argument is a tensor (torch, NumPy, DLPack) or a TensorSpec."""
    if isinstance(value, TensorSpec):
        return True
    return (
        not isinstance(value, (Expr, type)) and hasattr(value, "shape") and hasattr(value, "dtype")
    )


def solve_constants(
    params: Sequence[Buffer | Var], tensors: Mapping[str, Any], constants: Mapping[str, Var]
) -> dict[str, int]:
    """Return the value of each ``T.const`` name, read off shapes and strides of actual tensors.

    Raises:
        ArgumentError: a rank differs, two tensors disagree, or a name appears in no shape (TC402).
    """
    names = {id(v): n for n, v in constants.items()}
    found: dict[str, int] = {}
    for position, buffer in enumerate(params):
        if isinstance(buffer, Var):
            continue
        shape, steps = _measures(tensors[buffer.name], buffer.dtype)
        if len(shape) != buffer.ndim:
            raise ArgumentError(
                position=position,
                name=buffer.name,
                expected=f"{buffer.ndim} axes {format_shape(buffer.shape)}",
                found=f"shape {tuple(int(s) for s in shape)}",
            )
        written = (*buffer.shape, *(buffer.strides or ()))
        for axis, (expr, actual) in enumerate(zip(written, (*shape, *steps), strict=False)):
            name = names.get(id(expr))
            if name is None:
                continue
            if found.setdefault(name, int(actual)) != int(actual):
                raise ArgumentError(
                    position=position,
                    name=buffer.name,
                    expected=f"{name} = {found[name]} on axis {axis}, as in the tensors before it",
                    found=int(actual),
                )
    missing = [n for n in constants if n not in found]
    if missing:
        raise TypeMismatch(
            expected="every T.const name as an axis of some tensor parameter",
            found=f"no tensor with axis {', '.join(missing)}",
        )
    return found


def _measures(tensor: Any, dtype: DType) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides of a torch or NumPy tensor in elements of ``dtype``."""
    shape = tuple(tensor.shape)
    if isinstance(tensor, TensorSpec):
        return tensor.shape, tensor.strides or ()  # type: ignore[return-value]  # known numbers
    stride = getattr(tensor, "stride", None)
    if callable(stride):
        steps = tuple(stride())
    else:
        steps = tuple(s // max(1, tensor.itemsize) for s in tensor.strides)
    if not dtype.is_packed:
        return shape, steps
    rows = tuple(s * 2 for s in steps[:-1])  # a byte of the tensor is two elements
    return (*shape[:-1], *(n * 2 for n in shape[-1:])), (*rows, *steps[-1:])


def bound_call(
    function: Any, bind: Callable[..., inspect.BoundArguments], args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> inspect.BoundArguments:  # fmt: skip
    """Return the arguments of a call of ``function`` by its parameters, without defaults.

    Args:
        function: whose name and parameters an error tells.
        bind: ``bind`` or ``bind_partial`` of its signature.
        args: by position.
        kwargs: by name.

    Raises:
        TypeMismatch: too many or too few of them, or names that are no parameters (TC202).
    """
    try:
        bound = bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(inspect.signature(function).parameters)
        given = ", ".join([*(f"#{i + 1}" for i in range(len(args))), *kwargs]) or "nothing"
        raise TypeMismatch(
            expected=f"arguments of {function.__name__} ({names})", found=given, hint=str(error)
        ) from None
    return bound
