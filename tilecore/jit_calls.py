"""Which kernel a call of a function in the eager style runs, found again by what it is like."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilecore.frontend.signature import TensorSpec
from tilecore.kernel import JITKernel
from tilecore.runtime.memo import strides_of


@dataclass(frozen=True, slots=True)
class Found:
    """The kernel of a call, and where the call has its arguments: by position, name or default."""

    kernel: JITKernel
    places: tuple[int | str, ...]
    defaults: Mapping[str, Any]

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return what a call passes on to the kernel."""
        return [
            args[p] if isinstance(p, int) else kwargs[p] if p in kwargs else self.defaults[p]
            for p in self.places
        ]


def key_of(value: Any) -> Any:
    """Return something hashable that is equal for equal arguments."""
    if isinstance(value, Mapping):
        return tuple((k, key_of(v)) for k, v in sorted(value.items(), key=lambda kv: str(kv[0])))
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *(key_of(v) for v in value))
    if isinstance(value, TensorSpec):
        return ("tensor", str(value))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return (type(value).__name__, value)


def likeness(args: Sequence[Any], kwargs: Mapping[str, Any], numbers: Collection[int | str]) -> Any:
    """Return what is equal for calls of one kernel: sizes of tensors, values of the others.

    None: there are arguments of which that is not known. ``numbers`` are positions and names of
    those that the kernel takes as they come.
    """
    try:
        like = (
            *[None if i in numbers else _measures(a) for i, a in enumerate(args)],
            *[(k, None if k in numbers else _measures(a)) for k, a in kwargs.items()],
        )
        hash(like)
    except (TypeError, AttributeError):
        return None
    return like


def _measures(argument: Any) -> Any:
    """Return type, shape and strides of a tensor, or type and value of another argument.

    Raises:
        AttributeError: the strides of a tensor are not known.
    """
    shape = getattr(argument, "shape", None)
    if shape is None:
        return type(argument), argument
    return type(argument), argument.dtype, shape, strides_of(argument)
