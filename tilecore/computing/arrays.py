"""Tensors of torch and arrays of NumPy: in arguments, their strides, views and copies of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from tilecore.computing import calls
from tilecore.computing.calls import Call, results
from tilecore.computing.graph import Node, Shape
from tilecore.computing.operands import is_tensor
from tilecore.computing.places import Place, row_major
from tilecore.computing.reading.given import tensors_of
from tilecore.errors import ArgumentError, TypeMismatch
from tilecore.ir.dtype import DType


def strides(tensor: Any) -> tuple[int, ...] | None:
    """Return the strides of a tensor in elements.

    None: it is row-major, or to be made so at each call: its axes run backwards, by parts of
    elements, or on the spot.
    """
    if hasattr(tensor, "is_contiguous"):
        if tensor.is_contiguous():
            return None
        found, rests = tuple(tensor.stride()), ()
    else:
        if tensor.flags.c_contiguous:
            return None
        found = tuple(s // tensor.itemsize for s in tensor.strides)
        rests = tuple(s % tensor.itemsize for s in tensor.strides)
    return None if any(rests) or min(found) < 1 else found


def laid(tensor: Any, node: Node, alignment: int = 1) -> Any:
    """Return the tensor of an argument in the strides that a plan knows of, and aligned (bytes)."""
    found = tensor if "strides" in node.attrs else whole(tensor)
    if alignment == 1 or _address(found) % alignment == 0:
        return found
    steps = node.attrs.get("strides") or row_major(node.shape)
    span = (1 + sum((n - 1) * s for n, s in zip(node.shape, steps, strict=True)),)
    return _seen(copied(_seen(found, 0, span, (1,)), span), 0, node.shape, steps)


def at(known: Mapping[Any, Any], place: Place) -> Any:
    """Return what lies at a place, which is not one of named rows."""
    memory = known[place.memory]
    if place.is_whole:
        return memory if tuple(memory.shape) == place.shape else memory.reshape(place.shape)
    return _seen(memory, place.offset, place.shape, place.strides)


def read(known: Mapping[Any, Any], place: Place) -> Any:
    """Return what a kernel reads at a place: as ``at`` does, but for what autograd would note."""
    memory = known[place.memory]
    if place.is_whole and memory.shape == place.shape:
        return memory
    kinds, laid_out = _of_plain_tensors()
    if type(memory) not in kinds:
        return at(known, place)
    return laid_out(memory, place.shape, place.strides, place.offset)


@functools.cache
def _of_plain_tensors() -> tuple[frozenset[type], Callable[..., Any]]:
    """Return tensors of torch that are no more than that, and what sees them in other strides.

    What torch.compile's own backend calls takes half the time of ``as_strided``; it is not torch's
    public interface.
    """
    import torch

    kinds = frozenset((torch.Tensor, torch.nn.Parameter))
    with suppress(AttributeError):
        return kinds, torch._C._dynamo.guards._reinterpret_tensor
    return frozenset(), torch.as_strided


def part(tensor: Any, place: Place) -> Any:
    """Return the part of an argument that lies at a place."""
    return _seen(tensor, place.offset, place.shape, place.strides)


def _seen(memory: Any, offset: int, shape: Shape, strides: Shape) -> Any:
    """Return the tensor of a shape and strides that begins at an element of another one."""
    if hasattr(memory, "as_strided"):
        return memory.as_strided(shape, strides, memory.storage_offset() + offset)
    size = memory.itemsize
    steps = [s * size for s in strides]
    if memory.flags.c_contiguous:  # in a tenth of the time
        return np.ndarray(shape, memory.dtype, memory, offset * size, steps)
    view = np.lib.stride_tricks.as_strided
    return view(view(memory, (offset + 1,), (size,))[offset:], shape, steps)


def _address(tensor: Any) -> int:
    found: int = tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data
    return found


def whole(tensor: Any) -> Any:
    """Return a tensor whose elements lie one after the other."""
    if hasattr(tensor, "contiguous"):
        return tensor.contiguous()
    return tensor if tensor.flags.c_contiguous else np.ascontiguousarray(tensor)


def copied(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Return a copy in another shape, row-major."""
    if not hasattr(tensor, "contiguous"):
        return np.array(tensor, order="C").reshape(shape)
    import torch

    return tensor.clone(memory_format=torch.contiguous_format).reshape(shape)


def own(tensor: Any) -> Any:
    """Return a copy, laid out alike."""
    return tensor.detach().clone() if hasattr(tensor, "detach") else tensor.copy(order="K")


def write(tensor: Any, value: Any) -> None:
    """Have a tensor hold what another one of its shape does; that may be itself, by now."""
    if tensor is value:
        _note_write(tensor)
    elif hasattr(tensor, "copy_"):
        tensor.copy_(value)
    else:
        np.copyto(tensor, value)


def _note_write(tensor: Any) -> None:
    """Tell torch of a write that it did not do, so that it refuses gradients of what was there."""
    if hasattr(tensor, "is_inference") and not tensor.is_inference():
        import torch

        torch.autograd.graph.increment_version(tensor)


def mark(tensor: Any) -> Any:
    """Return what is another one once a tensor was written to; of NumPy's its elements.

    Of inference tensors, whose writes torch does not count, nothing tells.
    """
    if isinstance(tensor, np.ndarray):
        return tensor.tobytes()
    return None if tensor.is_inference() else tensor._version


def memory(tensor: Any) -> int:
    """Return what tensors have alike that share memory."""
    if hasattr(tensor, "untyped_storage"):
        found: int = tensor.untyped_storage().data_ptr()
        return found
    while isinstance(tensor.base, np.ndarray):
        tensor = tensor.base
    return int(tensor.ctypes.data)


def called(call: Call, tensors: Sequence[Any], node: Node) -> list[Any]:
    """Return the tensors that a function of torch returns; arrays of NumPy for such arrays.

    ``node``: one of them.

    Raises:
        ArgumentError: torch or NumPy refuses them, for what their elements are, or returns for that
            reason another shape than it told (TC402).
    """
    is_numpy = not all(hasattr(tensor, "data_ptr") for tensor in tensors)
    is_numpy = is_numpy or bool(node.attrs.get("is_numpy"))  # if it is created
    of_arrays = call.of_arrays if is_numpy else None
    if of_arrays is not None and all(type(t) is np.ndarray for t in tensors):
        with _refusals(call, node):
            made = _own_arrays(of_arrays(tensors, node.shape), tensors)
    else:
        given = [of_torch(t) for t in tensors] if is_numpy else tensors
        with _refusals(call, node):
            found = results(call(given, node.shape))
        if not is_numpy:
            return found
        made = [of_numpy(tensor) for tensor in found]
    own = made[node.attrs["place"]]
    if (own.shape, _name_of(own.dtype)) != (node.shape, node.dtype):
        raise ArgumentError(
            position="of", name=call.name, expected=f"a result {node.shape} of {node.dtype}",
            found=f"{own.shape} of {own.dtype}", span=node.span,
            hint="its shape follows from elements: call it outside of the computation",
        )  # fmt: skip
    return made


def _own_arrays(found: Any, given: Sequence[Any]) -> list[Any]:
    """Return the arrays that a function of NumPy returned, in memory of their own."""
    made: list[Any] = []
    calls.mapped(found, (np.ndarray, np.generic), made.append)
    return [
        np.array(a) if a.ndim == 0 or any(np.may_share_memory(a, one) for one in given) else a
        for a in made
    ]


@functools.lru_cache(256)
def _name_of(dtype: Any) -> str:
    """Return the name of an element type, which NumPy makes anew each time."""
    return str(dtype)


def called_in_place(call: Call, tensors: Sequence[Any], node: Node) -> list[Any]:
    """Change the first tensor to what a function of torch returns of it; return it as ``called``.

    Raises:
        ArgumentError: torch refuses the tensors, for what their elements are (TC402).
    """
    if not hasattr(tensors[0], "data_ptr"):
        return called(call, tensors, node)
    with _refusals(call, node):
        call.in_place(tensors)
    return [tensors[0]]


@contextmanager
def _refusals(call: Call, node: Node) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, IndexError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise ArgumentError(
            position="of", name=call.name, expected="what torch takes", found=said, span=node.span
        ) from error


def of_torch(array: Any) -> Any:
    """Return the tensor of torch of an array's elements, in its memory."""
    import torch

    if _name_of(array.dtype) == "bfloat16":  # which NumPy knows by ml_dtypes, torch does not
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    has_negative = any(n < 0 for n in getattr(array, "strides", ()))
    return torch.as_tensor(array.copy() if has_negative else array)


def of_numpy(tensor: Any) -> Any:
    """Return the array of NumPy of a tensor's elements, in its memory."""
    import torch

    if tensor.dtype is torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(DType("bfloat16").numpy)
    return tensor.numpy()


# --- arguments ------------------------------------------------------------------------------------


def mapped(value: Any, place: str, change: Callable[[str, Any], Any]) -> Any:
    """Return a value with its tensors changed, in lists, tuples and dicts too, by their place."""
    if is_tensor(value):
        return change(place, value)
    if isinstance(value, list | tuple):
        parts = [mapped(v, f"{place}.{i}", change) for i, v in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {k: mapped(v, f"{place}.{k}", change) for k, v in value.items()}
    return value


def computed(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a function returns for the arguments of a call, computed by torch or NumPy.

    Functions of torch may be given arrays of NumPy of which one has no elements.
    """
    try:
        return function(*args, **kwargs)
    except (AttributeError, TypeError):
        given = [args, dict(kwargs)]
        if not any(isinstance(t, np.ndarray) and 0 in t.shape for t in tensors_of(given)):
            raise
        import torch

        given, named = mapped(given, "", lambda _, t: torch.as_tensor(t))
        return mapped(function(*given, **named), "", lambda _, t: t.numpy())


def hashable(value: Any) -> Any:
    """Return an argument as part of a key, whatever its tensors hold.

    Raises:
        TypeMismatch: it has no value to compare (TC202).
    """
    if is_tensor(value):
        return "tensor"
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(hashable, value))
    if isinstance(value, dict):
        return "dict", tuple((k, hashable(v)) for k, v in value.items())
    try:
        hash(value)
    except TypeError:
        expected = "tensors, and values that can be keys of a dict"
        raise TypeMismatch(expected=expected, found=type(value).__name__) from None
    return type(value).__name__, value
