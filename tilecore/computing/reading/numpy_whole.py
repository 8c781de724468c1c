"""What NumPy computes of whole arrays between kernels, and what it tells of that before.

It is asked for the results of arrays of the same shapes that hold something else: where shapes
follow from elements, two such arrays have results of two shapes.
"""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from tilecore.computing import arrays
from tilecore.computing.calls import REFUSALS, Impure, mapped, results
from tilecore.ir.dtype import DType

PREFIX = "numpy."  # of the names of calls
OPERATORS: Mapping[str, str] = MappingProxyType({  # of Python
    "truediv": "true_divide", "sub": "subtract", "mul": "multiply", "pow": "power",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
    "ne": "not_equal", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "mod": "remainder", "floordiv": "floor_divide", "lshift": "left_shift",
    "rshift": "right_shift", "neg": "negative", "abs": "absolute", "bitwise_not": "invert",
})  # fmt: skip
IN_PLACE = ("put", "place", "putmask", "fill_diagonal", "put_along_axis", "add.at")
WITH_EFFECTS = ("save", "savez", "savez_compressed", "savetxt")  # beyond what they return
SAMPLES = 4096  # numbers that are drawn; larger arrays repeat them


def name_of(name: str) -> str:
    """Return what the call of a function, or of an operator, is called."""
    return f"{PREFIX}{OPERATORS.get(name, name)}"


@functools.cache
def function_of(name: str) -> Callable[..., Any] | None:
    """Return a function of NumPy, or an operator, that takes tensors of torch; None: is none."""
    if name in ("getitem", "pow"):  # of truth, x ** 2 is another type than np.power(x, 2)
        return of_tensors(getattr(operator, name))
    if name in WITH_EFFECTS:
        return None
    try:
        found: Any = functools.reduce(getattr, OPERATORS.get(name, name).split("."), np)
    except AttributeError:
        return None
    if not callable(found) or isinstance(found, type):
        return None
    return of_tensors(_as_new(found) if name in IN_PLACE else found)


def _as_new(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns the array which another one changes."""

    def changed(x: Any, *args: Any, **kwargs: Any) -> Any:
        found = x.copy()
        function(found, *args, **kwargs)
        return found

    return changed


@functools.cache
def of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays as one of tensors, also of those that have no elements."""

    def computed(*args: Any, **kwargs: Any) -> Any:
        given = args, kwargs
        tensors: list[torch.Tensor] = []
        mapped(given, torch.Tensor, tensors.append)
        if any(tensor.is_meta for tensor in tensors):
            return _told(function, given)
        known: list[Any] = []

        def passed(tensor: torch.Tensor) -> Any:
            known.append(arrays.of_numpy(tensor))
            return known[-1]

        def made(array: Any) -> torch.Tensor:
            is_view = any(np.may_share_memory(array, other) for other in known)
            return _tensor_of(array.copy() if is_view else array)

        args, kwargs = mapped(given, torch.Tensor, passed)
        return mapped(function(*args, **kwargs), (np.ndarray, np.generic), made)

    computed.of_arrays = function  # type: ignore[attr-defined]
    return computed


def _told(function: Callable[..., Any], given: Any) -> Any:
    """Return what comes of tensors without elements, as NumPy says of arrays that have some.

    Raises:
        Impure: elements decide on the shapes or types of the results.
        Exception: whatever the function raises for such arrays.
    """
    outcomes: list[Any] = []
    refusals: list[Exception] = []
    for filled in (_drawn, _diagonal):
        args, kwargs = mapped(given, torch.Tensor, filled)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = function(*args, **kwargs)
        except (*REFUSALS, ArithmeticError) as error:
            refusals.append(error)
        else:
            outcome = mapped(found, (np.ndarray, np.generic), _without_elements)
            if not _is_of_tensors(outcome):
                raise Impure("functions that return arrays")
            outcomes.append(outcome)
    if not outcomes:
        raise refusals[0]
    shapes = [[(t.shape, t.dtype) for t in results(found)] for found in outcomes]
    if any(found != shapes[0] for found in shapes):
        raise Impure("functions whose results have shapes that follow from shapes")
    return outcomes[0]


def _is_of_tensors(found: Any) -> bool:
    """Return whether all that a function returns are tensors, or element types."""
    if isinstance(found, tuple | list):
        return all(map(_is_of_tensors, found))
    return isinstance(found, torch.Tensor | np.dtype)


def _tensor_of(array: Any) -> torch.Tensor:
    found: torch.Tensor = arrays.of_torch(np.array(array) if array.ndim == 0 else array)
    return found


def _without_elements(array: Any) -> torch.Tensor:
    return torch.empty(array.shape, dtype=_tensor_of(array.ravel()[:0]).dtype, device="meta")


def _drawn(tensor: torch.Tensor) -> Any:
    """Return an array like a tensor: of random floats, of 0 and 1 in turn."""
    dtype, count = _type(tensor), min(math.prod(tensor.shape), SAMPLES)
    is_whole = dtype.kind in "iub"
    some = np.arange(count) % 2 if is_whole else np.random.default_rng(0).normal(size=count)
    return np.resize(some.astype(dtype), tensor.shape)


def _diagonal(tensor: torch.Tensor) -> Any:
    """Return an array like a tensor: of zeros, floats with 1 on a diagonal."""
    found = np.zeros(tensor.shape, _type(tensor))
    if found.ndim > 1 and found.dtype.kind not in "iub":
        diagonal = range(min(found.shape[-2:]))
        found[..., diagonal, diagonal] = 1
    return found


def _type(tensor: torch.Tensor) -> Any:
    return type_of(str(tensor.dtype).removeprefix("torch."))


def type_of(name: str) -> Any:
    """Return an element type as NumPy has it."""
    return np.dtype(name if name.startswith("complex") else DType(name).numpy)
