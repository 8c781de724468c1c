"""What stands among the arguments of a function that is read, and who computes it."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilecore.computing import calls
from tilecore.computing.extents import varies
from tilecore.computing.functions.by_name import (
    BINARY,
    COMPARISONS,
    CONVERSIONS,
    OF_ALL,
    OF_TRUTH,
    UNARY,
    Value,
)
from tilecore.computing.graph import (
    CUT,
    FLOATS,
    INTEGERS,
    MOST_EXACT,
    Node,
    is_cut,
    is_number,
)
from tilecore.computing.operands import device, input_of, is_tensor, plain
from tilecore.computing.reading.storage import View
from tilecore.ir.dtype import DType

MIXED = ("add", "sub", "mul", "div")  # in kernels also of integers and truth, with floats
REAL = (*FLOATS, *(f"torch.{name}" for name in FLOATS))
PROMOTING = (  # functions of elements of several arrays, which have one element type for all
    *BINARY, *COMPARISONS, "where", "clamp", "atan2", "arctan2", "copysign", "floor_divide", "fmax",
    "fmin", "fmod", "heaviside", "hypot", "logaddexp", "logaddexp2", "mod", "remainder",
)  # fmt: skip
OF_NUMBERS = (*UNARY, "pow", "round", "reciprocal", "vector_norm")
BEFORE_INPUT = ("condition", "sorted_sequence", "n")  # in signatures of torch


def tensors_of(value: Any) -> Iterator[Any]:
    """Return the tensors in some values, at any depth."""
    if is_tensor(value):
        yield value
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)


def is_dense(value: Any) -> bool:
    """Return whether a tensor surely lies as rows, one after the other."""
    if isinstance(value, View):
        place = value.memory.place(value.seen)
        return place is not None and place.is_dense
    return not hasattr(value, "is_contiguous") or bool(value.is_contiguous())


def is_of_torch(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether torch computes a function that kernels compute of other arguments."""
    if name in OF_ALL:
        return False
    given = (*args, *kwargs.values())
    if is_constant(given):
        return True
    if device() is None and name in OF_NUMBERS and any(map(_is_truth, given)):
        return True  # of float16, or integers
    found = kinds(given) - set(CUT if name in CONVERSIONS else ())
    if name in MIXED and any(map(_is_real, given)):
        found -= {*INTEGERS, "bool"} if name != "sub" else set(INTEGERS)  # torch subtracts no truth
    if name in COMPARISONS and _compare_exactly(given):
        found -= set(INTEGERS)
    if name == "div" and _divides_as_float32():
        found -= set(INTEGERS)
    return bool(found - {"bool"} if name in OF_TRUTH else found)


def by_place(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return arguments with the tensor in front that most functions of torch call ``input``."""
    if args or "input" not in kwargs or any(name in kwargs for name in BEFORE_INPUT):
        return args, kwargs
    return (kwargs["input"],), {k: v for k, v in kwargs.items() if k != "input"}


def promoted(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return arguments with arrays in the element type that numbers of NumPy's give them.

    ``x * np.float64(2)`` of float32 is float64, as ``np.sqrt(2)`` is such a number; Python's change
    no element type.
    """
    given = [*args[name == "where" :], *kwargs.values()]  # not its condition
    numbers = [v.dtype for v in given if isinstance(v, np.number) and v.dtype.kind in "iuf"]
    if not numbers or name not in PROMOTING:
        return args, kwargs
    arrays = [v for v in given if isinstance(v, View) and not is_number(v.node)]
    floats = [v for v in arrays if v.seen.dtype in FLOATS]
    widening = floats or arrays  # a float that varies is one of Python's
    types = {v.seen.dtype for v in widening}
    if not types or any(name.startswith("complex") for name in types):
        return args, kwargs
    found = np.result_type(*(DType(name).numpy for name in types), *numbers)

    def widened(value: Any) -> Any:
        is_other = any(value is v for v in widening) and value.seen.dtype != found.name
        return value.astype(found) if is_other else value

    return [widened(v) for v in args], {k: widened(v) for k, v in kwargs.items()}


def _is_truth(value: Any) -> bool:
    return isinstance(value, View) and value.seen.dtype == "bool"


def _is_real(value: Any) -> bool:
    """Return whether a value is a float, or a tensor of them."""
    if isinstance(value, View):
        return value.seen.dtype in FLOATS
    return isinstance(value, float) or str(getattr(value, "dtype", "")) in REAL


def is_of_other_type(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a view is one of the same bits as another element type."""
    return "dtype" in kwargs or any(type(a).__name__ == "dtype" for a in args)


def converted_to(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments of ``to`` without devices: a tensor, maybe an element type and a copy."""
    import torch

    given = [*args[1:], *(kwargs[k] for k in ("dtype", "other", "tensor") if k in kwargs)]
    types = [v.dtype if is_tensor(v) else v for v in given]
    wanted = [v for v in types if isinstance(v, torch.dtype)]
    flags = [v for v in args[1:] if isinstance(v, bool)]
    is_copied = kwargs.get("copy") or flags[1:2] == [True]
    return (args[0], *wanted[:1]), {"copy": True} if is_copied else {}


def is_constant(given: Sequence[Any]) -> bool:
    """Return whether no argument, or tensor that the function holds, is among some values."""
    tensors = [v for v in given if is_tensor(v)]
    if device() is None or not tensors or not all(isinstance(v, View) for v in tensors):
        return False
    nodes = [t.node for t in tensors]
    return all(calls.is_constant(n) and not any(map(varies, n.shape)) for n in nodes)


def kinds(given: Sequence[Any]) -> set[str]:
    """Return the element types of tensors that no kernel computes with."""
    nodes = [v.node for v in given if isinstance(v, View)]
    held = [v for v in given if not isinstance(v, View) and is_tensor(v)]
    found = {n.dtype for n in nodes if n.kind != "pointwise" or is_cut(n)}
    return (found | {str(v.dtype).removeprefix("torch.") for v in held}) - set(FLOATS)


def says_correction(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a variance says what its sum is divided by."""
    is_named = "correction" in kwargs or kwargs.get("unbiased") is not None
    return is_named or any(isinstance(v, bool) for v in args[1:3])


def _divides_as_float32() -> bool:
    """Return whether integers are floats of 32 bits before they are divided, as torch has it."""
    import torch

    return device() is not None and torch.get_default_dtype() is torch.float32


def _compare_exactly(given: Sequence[Any]) -> bool:
    """Return whether float32 compares integers, and numbers, as they compare themselves.

    Far ones stay farther away than any that it has exactly.
    """
    tensors = [v for v in given if is_tensor(v)]
    numbers = [v for v in given if not is_tensor(v)]
    kinds_of = [_name_of(v) for v in tensors]
    if any(kind not in INTEGERS for kind in kinds_of):
        return False
    least, most = max((DType(kind).ends for kind in kinds_of), key=lambda ends: ends[0])
    for number in numbers:
        is_plain = type(number) in (int, float)
        if not is_plain or not abs(number) < MOST_EXACT or not least <= number <= most:
            return False
    exact = [v for v, kind in zip(tensors, kinds_of, strict=True) if _has_few(v, kind)]
    return len(exact) + len(numbers) >= len(given) - 1


def _has_few(value: Any, kind: str) -> bool:
    """Return whether all integers of a tensor are numbers of float32."""
    is_known = isinstance(value, View) and "counts_few" in value.node.attrs
    return is_known or DType(kind).bits <= 16


def _name_of(value: Any) -> str:
    return value.seen.dtype if isinstance(value, View) else str(value.dtype).removeprefix("torch.")


def nodes_of(value: Any) -> Any:
    """Return arguments with nodes in place of tensors, at any depth."""
    if isinstance(value, dict):
        return {k: nodes_of(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([nodes_of(v) for v in value])
    return value if isinstance(value, slice) else node_of(value)


def node_of(value: Any) -> Value:
    """Return the node of a tensor, in lists too; other values as they are."""
    if isinstance(value, Node):
        return value
    if isinstance(value, View):
        return value.node
    if isinstance(value, tuple | list) and any(isinstance(v, View) or is_tensor(v) for v in value):
        return [node_of(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if is_tensor(value):
        held = plain(value)
        return input_of("held", held, held=held)
    return value


def numbered(index: Any) -> Any:
    """Return an index with numbers for tensors in its slices, where no argument decides on them."""
    return calls.mapped(index, View, operator.index)


def is_plain(index: Any) -> bool:
    """Return whether an index names a view: by integers, slices, None and ..."""
    entries = index if isinstance(index, tuple) else (index,)
    return not any(isinstance(e, View | list | bool) or is_tensor(e) for e in entries)
