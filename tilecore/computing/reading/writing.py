"""What is written in place: operators (``+=``), methods (``add_``), parts (``x[...] = v``).

Each computes what the function of that name returns, which becomes the tensor's part of its
storage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilecore.computing import calls
from tilecore.computing.extents import Extent
from tilecore.computing.functions import views
from tilecore.computing.functions.by_name import ALIASES, FUNCTIONS
from tilecore.computing.graph import Node
from tilecore.computing.operands import device, is_tensor
from tilecore.computing.reading.given import is_plain, node_of, nodes_of, numbered
from tilecore.computing.reading.storage import CALLERS, WritesHeld
from tilecore.computing.reading.tensor import Traced, called
from tilecore.computing.reading.windows import Filled
from tilecore.errors import ShapeMismatch, SourceSpan, TileError, TypeMismatch, UnsupportedSyntax

OPERATORS = frozenset(
    f"i{op}" for op in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and",
                        "or", "xor", "lshift", "rshift")
)  # fmt: skip
OF_VIEWS = ("squeeze", "unsqueeze", "transpose", "t", "swapaxes", "swapdims")  # of no elements
OF_MEMORY = ("set", "resize", "resize_as", "as_strided", "apply", "map", "map2", "rename",
             "share_memory", "data")  # fmt: skip
NUMBERS = (bool, int, float, Extent)


def is_in_place(name: str) -> bool:
    """Return whether a function of this name writes to its first argument."""
    return name in OPERATORS or name == "setitem" or (name[-1:] == "_" and name[0] != "_")


def by_name(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any],
    function: Callable[..., Any] | None, span: SourceSpan,
) -> Any:  # fmt: skip
    """Return the tensor to which a function of torch wrote.

    Raises:
        UnsupportedSyntax: it is not the function's own; there is no such function (TC101).
        TypeMismatch: its element type does not hold what is written (TC202).
        ShapeMismatch: it has another shape (TC201).
    """
    x, base = args[0], name[1:] if name in OPERATORS else name.removesuffix("_")
    if not isinstance(x, Traced):
        raise WritesHeld([x], span)
    x.memory.need_own(span)
    if x.memory.owner == CALLERS and base in (*OF_VIEWS, "requires_grad", "detach"):
        raise UnsupportedSyntax(
            expected=f"a computation that only writes elements of {CALLERS}", found=f"`{name}`",
            span=span, hint=f"write x = x.{base}(...)",
        )  # fmt: skip
    if kwargs.get("inplace"):
        rest = {k: v for k, v in kwargs.items() if k != "inplace"}
        return changed(name, x, lambda: called(name, args, rest, function), span)
    if base in ("requires_grad", "detach"):
        return x
    if base in OF_VIEWS:
        found = called(base, args, kwargs)
        x.see(found.seen)
    elif base in ("copy", "fill"):
        given = args[1] if len(args) > 1 else kwargs["value" if base == "fill" else "src"]
        if base == "fill" and is_tensor(given) and len(given.shape):
            raise ShapeMismatch(what=name, expected="a number", found=tuple(given.shape), span=span)
        _put(x, given, span)
    elif base == "zero":
        _put(x, 0, span)
    elif base in OF_MEMORY:
        raise UnsupportedSyntax(
            expected="functions of elements in place", found=f"`{name}`", span=span
        )
    else:
        return changed(name, x, lambda: _functional(name, base, args, kwargs), span)
    return x


def _functional(name: str, base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what the function without the underscore returns."""
    import torch

    if ALIASES.get(base, base) in FUNCTIONS or hasattr(torch.Tensor, base):
        return called(base, args, kwargs)
    if hasattr(torch.Tensor, name):

        def of_copy(x: Any, *rest: Any, **named: Any) -> Any:
            return getattr(x.clone(), name)(*rest, **named)

        return called(base, args, kwargs, of_copy)
    for module in (torch, torch.nn.functional):
        if hasattr(module, base):
            return called(base, args, kwargs, getattr(module, base))
    return called(base, args, kwargs)  # which tells that there is none


def changed(name: str, x: Traced, compute: Callable[[], Traced], span: SourceSpan) -> Traced:
    """Have a tensor be what is computed; return it."""
    x.memory.need_own(span)
    if 0 in x.shape:  # nothing is written
        return x
    found = compute()
    if found is x:  # of dropout: it is as it was
        return x
    import torch

    if not torch.can_cast(getattr(torch, found.seen.dtype), getattr(torch, x.seen.dtype)):
        raise TypeMismatch(
            expected=f"`{name}` to return what {x.seen.dtype} holds", found=found.seen.dtype,
            span=span,
        )  # fmt: skip
    if tuple(found.shape) != x.shape:
        raise ShapeMismatch(
            what=name, expected=f"shape {x.shape}, as what it writes to has",
            found=tuple(found.shape), span=span,
        )  # fmt: skip
    x.memory.write(x.seen, _converted(found, x), span)
    return x


def assign(x: Traced, index: Any, value: Any, span: SourceSpan) -> None:
    """Write to a part of a tensor, which an index names."""
    from tilecore.computing.reading.masked import Masked, alone

    x.memory.need_own(span)
    mask = alone(index)
    if isinstance(value, Masked):
        if not isinstance(mask, Traced):
            raise value.refused()
        x.memory.write(x.seen, _converted(value.in_place_of(x, mask), x), span)
        return
    if is_plain(index):
        part = views.part(span, x.seen, numbered(index))
        _put(Traced(x.memory, part), value, span, is_part=True)
        return
    is_mask = is_tensor(mask) and str(mask.dtype) in ("torch.bool", "bool")
    if is_mask and (isinstance(value, NUMBERS) or value.shape == ()):
        lead = [n in (1, m) for n, m in zip(mask.shape, x.shape, strict=False)]
        if len(mask.shape) > x.ndim or not all(lead):
            raise ShapeMismatch(
                what="a mask", expected=f"the first extents of {x.shape}",
                found=tuple(mask.shape), span=span,
            )  # fmt: skip
        rest = x.ndim - len(mask.shape)
        whole = mask[(..., *[None] * rest)] if rest else mask
        if device() is None:
            found = called("where", (whole, value, x), {})
        else:
            found = called("masked_fill", (x, whole, value), {})
        x.memory.write(x.seen, _converted(found, x), span)
        return
    entries = index if isinstance(index, tuple) else (index,)
    has_masks = any(is_tensor(e) and str(e.dtype) in ("torch.bool", "bool") for e in entries)
    try:
        given = nodes_of([x, index, value])
        put = calls.called("put", calls.with_values, given, {}, span, is_told=not has_masks)
    except TileError as error:
        raise error.at(span) from None
    x.memory.write(x.seen, put, span)


def _put(x: Traced, value: Any, span: SourceSpan, is_part: bool = False) -> None:
    """Have a tensor be a value: converted to its type, expanded to its shape."""
    if isinstance(value, np.generic):
        value = value.item()
    if 0 in x.shape:
        return
    if isinstance(value, NUMBERS):
        x.memory.write(x.seen, Filled(value, x.seen.dtype, span), span)
        return
    if isinstance(value, list | tuple) and device() is None:
        from tilecore.computing.reading.numpy_creation import array

        value = array(value)
    if not is_tensor(value):
        raise TypeMismatch(expected="a tensor or a number", found=type(value).__name__, span=span)
    node = _converted(value, x)
    while is_part and len(node.shape) > x.ndim and node.shape[0] == 1:
        node = views.select(span, node, 0, 0)
    x.memory.write(x.seen, calls.expanded(node, x.shape, span), span)


def _converted(value: Any, x: Traced) -> Node:
    """Return a tensor in the element type of another one."""
    node: Node = node_of(value)
    if node.dtype == x.seen.dtype:
        return node
    found: Traced = called("to", (value, x.dtype), {})
    return found.node
