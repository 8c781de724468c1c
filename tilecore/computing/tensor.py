"""Traced: the tensor that a computation is read with. It answers to what torch and NumPy write.

Methods, operators, functions of torch (``__torch_function__``) and ufuncs of NumPy
(``__array_ufunc__``) end in ``functions.FUNCTIONS``, by name; torch itself is called for what is
not there (``calls``).
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np

from tilecore.computing import calls
from tilecore.computing.extents import Extent, taken
from tilecore.computing.functions import ALIASES, FUNCTIONS, OF_ALL, OF_TRUTH, Value
from tilecore.computing.graph import FLOATS, Node, Shape, sliced
from tilecore.errors import (
    ShapeMismatch,
    SourceSpan,
    TileError,
    TypeMismatch,
    UnsupportedSyntax,
)

OWN = ("tilecore.computing", "torch", "numpy")  # packages between the user's line and a node
# Of NumPy's functions (its ufuncs apart) those that mean what torch's of that name do.
OF_NUMPY = (
    "sum",
    "mean",
    "amax",
    "amin",
    "max",
    "min",
    "where",
    "clip",
    "reshape",
    "swapaxes",
    "einsum",
    "concatenate",
    "stack",
)
# The device of a call's tensors; None: it passes arrays of NumPy, whose methods are not torch's.
_device: ContextVar[Any] = ContextVar("device", default=None)


@contextmanager
def reading(tensors: Iterable[Any]) -> Iterator[None]:
    """Have a function read that is called with some tensors."""
    import torch

    known = list(tensors)
    found = next((t.device for t in known if isinstance(t, torch.Tensor)), torch.device("cpu"))
    token = _device.set(None if any(isinstance(t, np.ndarray) for t in known) else found)
    try:
        yield
    finally:
        _device.reset(token)


class Traced:
    """A tensor of a computation that is being read: shapes and element types, no elements."""

    __array_priority__ = 1000
    is_nested = is_sparse = is_quantized = False  # which torch's modules ask for

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return self.node.shape

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.node.shape)

    @property
    def dtype(self) -> Any:
        """Its element type, as torch has it."""
        import torch

        return getattr(torch, self.node.dtype)

    @property
    def device(self) -> Any:
        """Where the tensors of the call are, as torch has it."""
        if _device.get() is None:
            raise _unknown("Tensor.device")
        return _device.get()

    @property
    def is_cuda(self) -> bool:
        """Whether the tensors of the call are on a GPU, as torch has it."""
        return bool(self.device.type == "cuda")

    @property
    def T(self) -> Traced:
        """It with its axes turned round."""
        found: Traced = called("permute", (self, tuple(reversed(range(self.ndim)))), {})
        return found

    @property
    def mT(self) -> Traced:
        """It with its last two axes swapped."""
        found: Traced = called("transpose", (self, -1, -2), {})
        return found

    def size(self, axis: int | None = None) -> Any:
        """Return its shape, or one extent."""
        return self.shape if axis is None else self.shape[axis]

    def dim(self) -> int:
        """Return how many axes it has."""
        return self.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        entries = index if isinstance(index, tuple) else (index,)
        if any(isinstance(e, Traced | list) or is_tensor(e) for e in entries):
            return called("__getitem__", (self, index), {})
        return Traced(_part(self.node, index, _caller()))

    def __neg__(self) -> Any:
        return called("neg", (self,), {})

    def __invert__(self) -> Any:
        return called("logical_not", (self,), {})

    def __abs__(self) -> Any:
        return called("abs", (self,), {})

    def __bool__(self) -> bool:
        raise UnsupportedSyntax(
            expected="a computation whose steps do not depend on elements",
            found="a tensor where Python decides", span=_caller(),
            hint="use torch.where(condition, a, b)",
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name in ALIASES or name in FUNCTIONS:
            return lambda *args, **kwargs: called(name, (self, *args), kwargs)
        if name.startswith("__"):
            raise AttributeError(name)
        if not callable(_method(name)):
            raise _unknown(f"Tensor.{name}")
        return lambda *args, **kwargs: called(name, (self, *args), kwargs)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        _ = types
        name = getattr(function, "__name__", str(function))
        return called(name, args, kwargs or {}, function)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            raise _unknown(f"numpy.{ufunc.__name__}.{method}")
        return called(ufunc.__name__, args, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        _ = types
        if function.__name__ not in OF_NUMPY:
            raise _unknown(f"numpy.{function.__name__}")
        return called(function.__name__, args, kwargs)


def _binary(name: str, *, is_turned: bool = False) -> Any:
    def method(self: Traced, other: Any) -> Any:
        return called(name, (other, self) if is_turned else (self, other), {})

    return method


def _in_place(name: str) -> Any:
    def method(self: Traced, other: Any) -> Any:
        if self.node.kind in ("input", "view"):  # what the caller has would change
            raise UnsupportedSyntax(
                expected="a computation that changes no tensor of its caller's",
                found="an update in place", span=_caller(), hint="write x = x + 1, not x += 1",
            )  # fmt: skip
        return called(name, (self, other), {})

    return method


_LOGIC = ("and", "or", "xor")
_ARITHMETIC = ("add", "sub", "mul", "truediv", "pow", "matmul", "floordiv", "mod")  # or refused
for _name in (*_ARITHMETIC, *_LOGIC, "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Traced, f"__{_name}__", _binary(_name))
for _name in (*_ARITHMETIC, *_LOGIC):
    setattr(Traced, f"__r{_name}__", _binary(_name, is_turned=True))
    setattr(Traced, f"__i{_name}__", _in_place(_name))
setattr(Traced, "__hash__", object.__hash__)  # noqa: B010 (an __eq__ of its own took it)


def called(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any],
    function: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """Return what a function of torch or NumPy makes of traced tensors.

    ``function``: that of torch, where it is one; else a method of this name.

    Raises:
        UnsupportedSyntax: computations have no such function, or not with these arguments (TC101).
        TileError: shapes or element types do not fit, placed at the caller's line.
    """
    span = _caller()
    bare = name[2:-2] if name.startswith("__") else name  # add_, in place, is none of them
    own = ALIASES.get(bare, bare)
    if own != "cat":
        need_elements(*(v.node for v in (*args, *kwargs.values()) if isinstance(v, Traced)))
    known = FUNCTIONS.get(own)
    if own in ("var", "std") and _device.get() is not None and not _says_correction(args, kwargs):
        kwargs = {**kwargs, "correction": 1}  # of NumPy it is 0
    if known is None or _is_of_torch(own, args, kwargs):
        of_torch = function or _method(bare, args, kwargs)
        if of_torch is None and known is not None:
            others = ", ".join(_kinds((*args, *kwargs.values())))
            raise TypeMismatch(expected=f"`{bare}` of {', '.join(FLOATS)}", found=others, span=span)
        if of_torch is None:
            raise _unknown(name)
        try:
            return _traced(calls.called(name, of_torch, _held(args), _held(kwargs), span))
        except TileError as error:
            raise error.at(span) from None
    try:
        found = known(span, *map(_node, args), **{k: _node(v) for k, v in kwargs.items()})
    except TypeError as error:
        raise UnsupportedSyntax(
            expected=f"arguments that computations know of `{bare}`", found=str(error), span=span
        ) from error
    except TileError as error:
        raise error.at(span) from None
    return _traced(found)


def need_elements(*nodes: Node) -> None:
    """Refuse parts of tensors that have no elements: joined to others they are left out.

    Raises:
        ShapeMismatch: one of them has none (TC201).
    """
    for node in nodes:
        if 0 in node.shape:
            raise ShapeMismatch(
                what=node.op, expected="elements", found=f"shape {node.shape}", span=node.span
            )


def _is_of_torch(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether torch computes a function that kernels compute of other arguments."""
    if name in OF_ALL:
        return False
    given = (*args, *kwargs.values())
    if (name in ("max", "min") and "dim" in kwargs) or (name == "to" and _is_exact(given)):
        return True
    kinds = _kinds(given)
    return bool(kinds - {"bool"} if name in OF_TRUTH else kinds)


def _kinds(given: Sequence[Any]) -> set[str]:
    """Return the element types of tensors that no kernel computes with."""
    nodes = [v.node for v in given if isinstance(v, Traced)]
    held = [v for v in given if not isinstance(v, Traced) and is_tensor(v)]
    found = {n.dtype for n in nodes if n.kind != "pointwise"}
    return (found | {str(v.dtype).removeprefix("torch.") for v in held}) - set(FLOATS)


def _says_correction(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a variance says what its sum is divided by."""
    is_named = "correction" in kwargs or kwargs.get("unbiased") is not None
    return is_named or any(isinstance(v, bool) for v in args[1:3])


def _is_exact(given: Sequence[Any]) -> bool:
    """Return whether one of some arguments is a type of integers, of truth or float64."""
    return any(str(v).removeprefix("torch.") in (*calls.INTEGERS, "bool", "float64") for v in given)


def _method(
    name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = MappingProxyType({})
) -> Callable[..., Any] | None:
    """Return what computes a method of torch's tensors, None if there is none."""
    if _device.get() is None:
        return None
    import torch

    of_python = getattr(operator, f"__{name}__", None)
    takes_numbers = of_python is not None and not kwargs and len(args) <= 2  # on the left, too
    found: Callable[..., Any] | None = of_python if takes_numbers else None
    return found or getattr(torch.Tensor, name, None)


def _held(value: Any) -> Any:
    """Return arguments with nodes in place of tensors, at any depth."""
    if isinstance(value, dict):
        return {k: _held(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_held(v) for v in value])
    return value if isinstance(value, slice) else _node(value)


def _node(value: Any) -> Value:
    if isinstance(value, Traced):
        return value.node
    if isinstance(value, tuple | list) and any(isinstance(v, Traced) for v in value):
        return [_node(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if is_tensor(value):
        return input_of("held", value, held=value)
    return value


def input_of(name: str, tensor: Any, shape: Shape | None = None, **attrs: Any) -> Node:
    """Return the node of a tensor; raises TypeMismatch for another element type (TC202).

    ``shape``: where some of its extents vary.
    """
    dtype, span = str(tensor.dtype).removeprefix("torch."), _caller()
    if dtype not in calls.INPUTS:
        raise TypeMismatch(
            expected=f"`{name}` of element type {', '.join(calls.INPUTS)}", found=dtype, span=span,
            hint="convert it first",
        )  # fmt: skip
    shape = tuple(int(n) for n in tensor.shape) if shape is None else shape
    if 0 in shape:
        raise ShapeMismatch(what=name, expected="elements", found=f"shape {shape}", span=span)
    return Node("input", name, (), shape, dtype, attrs, span)


def _traced(found: Any) -> Any:
    if isinstance(found, Node):
        return Traced(found)
    if not isinstance(found, tuple | list):
        return found
    parts = tuple(map(_traced, found))
    return type(found)(parts) if hasattr(found, "n_fields") else parts  # values, indices


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of torch or an array of NumPy."""
    is_class = isinstance(value, type)  # np.float16, whose attributes are those of its numbers
    return not is_class and hasattr(value, "shape") and hasattr(value, "dtype")


def _part(x: Node, index: Any, span: SourceSpan) -> Node:
    """Return the part that an index of integers, slices, None and ... names."""
    entries = list(index) if isinstance(index, tuple) else [index]
    count = sum(e is not None and e is not Ellipsis for e in entries)
    whole = [slice(None)] * (len(x.shape) - count)
    at = next((i for i, e in enumerate(entries) if e is Ellipsis), len(entries))
    entries[at : at + 1] = whole
    extents, shape = iter(x.shape), []
    for entry in entries:
        if entry is None:
            shape.append(1)
            continue
        extent = next(extents, 0)
        if isinstance(entry, slice):
            shape.append(taken(entry, extent)[1])
        elif not isinstance(entry, int | Extent) or not -extent <= entry < extent:
            raise UnsupportedSyntax(
                expected=f"integers, slices and None that lie in shape {x.shape}",
                found=f"[{index!r}]", span=span,
            )  # fmt: skip
    return sliced(x, tuple(entries), tuple(shape), span)


def _caller() -> SourceSpan:
    """Return the place of the user's that is being read."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_own(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    code = frame.f_code
    line, _, column, end = next(islice(code.co_positions(), frame.f_lasti // 2, None))
    start, stop = ((column or 0) + 1, (end or 0) + 1)
    return SourceSpan(code.co_filename, line or frame.f_lineno, start, max(stop, start + 1))


def _is_own(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in OWN)


class _Unknown(UnsupportedSyntax, AttributeError):
    """A function or method that there is not; ``hasattr`` says so."""


def _unknown(name: str) -> UnsupportedSyntax:
    known = ", ".join(sorted(FUNCTIONS))
    return _Unknown(
        expected="a function that computations know, or one of torch's", found=f"`{name}`",
        span=_caller(), hint=f"known are {known}",
    )  # fmt: skip
