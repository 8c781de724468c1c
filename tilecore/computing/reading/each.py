"""Functions of lists of tensors, as optimizers call them: ``torch._foreach_add_(weights, steps)``.

Each tensor gets what the function of that name makes of it and of its part of the other arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tilecore.errors import ShapeMismatch, SourceSpan

PREFIX = "_foreach_"
SCALED = ("addcmul", "addcdiv")  # whose last argument is a number
NAMED = MappingProxyType({"scalars": "value", "weights": "weight", "ord": "p"})  # of one tensor


def is_each(name: str) -> bool:
    """Return whether a function of torch takes lists of tensors, and one of each is known."""
    return name.startswith(PREFIX) and name != f"{PREFIX}powsum"


def computed(
    called: Callable[[str, Sequence[Any], Mapping[str, Any]], Any], name: str,
    args: Sequence[Any], kwargs: Mapping[str, Any], span: SourceSpan,
) -> Any:  # fmt: skip
    """Return the results of all tensors; ``called`` computes a function of one, by its name.

    Raises:
        ShapeMismatch: lists have different lengths (TC201).
    """
    own = name.removeprefix(PREFIX)
    named = {NAMED.get(k, k): v for k, v in kwargs.items()}
    given = list(args)
    if own.strip("_") in SCALED and len(given) > len(("self", "tensor1", "tensor2")):
        named["value"] = given.pop()
    counts = {len(v) for v in (*given, *named.values()) if isinstance(v, list | tuple)}
    if len(counts) != 1:
        raise ShapeMismatch(
            what=name, expected="lists of one length", found=sorted(counts), span=span
        )
    found = [
        called(own, [_part(v, at) for v in given], {k: _part(v, at) for k, v in named.items()})
        for at in range(counts.pop())
    ]
    return found if own.endswith("_") else tuple(found)


def _part(value: Any, at: int) -> Any:
    """Return the part of a list that goes with a tensor; another value as it is."""
    return value[at] if isinstance(value, list | tuple) else value
