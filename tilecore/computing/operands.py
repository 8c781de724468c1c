"""What a function is read with: the line that is read, the device, and the tensors it holds."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType
from typing import Any

import numpy as np

from tilecore.computing import calls
from tilecore.computing.graph import Node, Shape
from tilecore.errors import ShapeMismatch, SourceSpan, TypeMismatch

OWN = ("tilecore.computing", "torch", "numpy")  # packages between the user's line and a node


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A function that is read.

    Attributes:
        device: of the call's tensors; None: it passes arrays of NumPy, whose methods are not
            torch's.
        settles: whether what is computed of tensors that the function holds is known by now, since
            Python decides by it.
        values: tensors that the function holds whose elements decide on how it is read.
    """

    device: Any
    settles: bool = False
    values: list[Any] = field(default_factory=list)


_reading: ContextVar[Reading | None] = ContextVar("reading", default=None)


def reading() -> Reading | None:
    """Return what is read now, which tells it from what was read before; None: nothing is."""
    return _reading.get()


def device() -> Any:
    """Return the device of the call that is read; None: its tensors are arrays of NumPy."""
    now = _reading.get()
    return None if now is None else now.device


def is_on_gpu() -> bool:
    """Return whether the call that is read has tensors of a GPU."""
    return getattr(device(), "type", "cpu") == "cuda"


def begin(tensors: Iterable[Any], settles: bool) -> Token[Reading | None]:
    """Have a function read that is called with some tensors, until the token is reset."""
    import torch

    known = list(tensors)
    found = next((t.device for t in known if isinstance(t, torch.Tensor)), torch.device("cpu"))
    is_numpy = any(isinstance(t, np.ndarray) for t in known)
    return _reading.set(Reading(None if is_numpy else found, settles))


def end(token: Token[Reading | None]) -> None:
    """Undo ``begin``."""
    _reading.reset(token)


def depend_on(held: Iterable[Any]) -> None:
    """Have what is read serve while the elements of some tensors stay as they are."""
    now = _reading.get()
    assert now is not None
    now.values.extend(held)


def caller() -> SourceSpan:
    """Return the place of the user's that is being read."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_of_package(frame):
        frame = frame.f_back
    code = frame.f_code
    line, _, column, end = next(islice(code.co_positions(), frame.f_lasti // 2, None))
    start, stop = ((column or 0) + 1, (end or 0) + 1)
    return SourceSpan(code.co_filename, line or frame.f_lineno, start, max(stop, start + 1))


def is_of_package(frame: FrameType) -> bool:
    """Return whether a frame is of a package between the user's line and a node."""
    module = frame.f_globals.get("__name__", "")
    return any(module == name or module.startswith(f"{name}.") for name in OWN)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of torch or an array of NumPy."""
    is_class = isinstance(value, type)  # np.float16, whose attributes are those of its numbers
    return not is_class and hasattr(value, "shape") and hasattr(value, "dtype")


def plain(tensor: Any) -> Any:
    """Return an array that a function makes of numbers as one of NumPy's own class."""
    return tensor.view(np.ndarray) if getattr(type(tensor), "is_own", False) else tensor


def input_of(name: str, tensor: Any, shape: Shape | None = None, **attrs: Any) -> Node:
    """Return the node of a tensor; raises TypeMismatch for another element type (TC202).

    ``shape``: where some of its extents vary.
    """
    dtype, span = str(tensor.dtype).removeprefix("torch."), caller()
    need_own_class(name, tensor, span)
    layout = str(getattr(tensor, "layout", "torch.strided"))
    if layout != "torch.strided":
        raise TypeMismatch(
            expected=f"`{name}` of all elements", found=layout, span=span,
            hint="convert it first: to_dense()",
        )  # fmt: skip
    if dtype not in calls.TYPES:
        raise TypeMismatch(
            expected=f"`{name}` of element type {', '.join(calls.TYPES)}", found=dtype, span=span,
            hint="convert it first",
        )  # fmt: skip
    shape = tuple(int(n) for n in tensor.shape) if shape is None else shape
    if 0 in shape:
        raise ShapeMismatch(what=name, expected="elements", found=f"shape {shape}", span=span)
    return Node("input", name, (), shape, dtype, attrs, span)


def need_own_class(name: str, tensor: Any, span: SourceSpan | None = None) -> None:
    """Refuse arrays of classes that mean something else by NumPy's functions (masks, matrices).

    Raises:
        TypeMismatch: it is one (TC202).
    """
    tensor = plain(tensor)
    if isinstance(tensor, np.ndarray) and type(tensor) not in (np.ndarray, np.memmap):
        raise TypeMismatch(
            expected=f"`{name}` as an array of NumPy's own class", found=type(tensor).__name__,
            span=span, hint="convert it first: np.asarray(x)",
        )  # fmt: skip


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
