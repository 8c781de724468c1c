"""Which kernel a call of a function in the eager style runs, found again by what it is like."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    return argument.dtype, shape, strides_of(argument)
