"""Fragment: which thread of a GPU holds an element of a tile, and at which place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.ir.expr import const
from tilecore.ir.layout import Layout


class Fragment(Layout):
    """A layout whose first coordinate is a thread and whose others are places in its registers.

    Args:
        shape: logical extents.
        forward_fn: indices (and the number of the copy, if there are several) -> (thread, place).
        forward_thread_fn: without ``forward_fn``: the same arguments -> thread.
        forward_index_fn: without ``forward_fn``: indices -> place.
        replicate: how many threads hold each element.

    Raises:
        ShapeMismatch: the shape is symbolic, or a function takes other indices (TC201).
        TypeMismatch: no function, or one that gives no integers (TC202).
    """

    def __init__(
        self,
        shape: Sequence[Any],
        forward_fn: Callable[..., Any] | None = None,
        forward_thread_fn: Callable[..., Any] | None = None,
        replicate: int = 1,
        forward_index_fn: Callable[..., Any] | None = None,
    ) -> None:
        if forward_fn is None and forward_thread_fn is None:
            raise TypeMismatch(expected="forward_fn or forward_thread_fn of T.Fragment", found=None)
        if not isinstance(replicate, int) or replicate < 1:
            raise TypeMismatch(expected="replicate of at least 1", found=repr(replicate))
        self.replicate = replicate
        copy = (const(0),) if replicate > 1 else ()  # the first copy tells elements apart

        def forward(*indices: Any) -> tuple[Any, ...]:
            if forward_fn is not None:
                thread, *places = forward_fn(*indices, *copy)
            else:
                assert forward_thread_fn is not None
                thread = forward_thread_fn(*indices, *copy)
                places = [const(0) if forward_index_fn is None else forward_index_fn(*indices)]
            flat = [p for place in places for p in (place if _is_many(place) else [place])]
            return (thread, *flat)

        super().__init__(shape, forward, "fragment")

    def equals(self, other: Layout) -> bool:
        """Return whether both hold every element in as many threads, and the first copy alike."""
        return self.replicate == getattr(other, "replicate", 1) and super().equals(other)


def _is_many(place: Any) -> bool:
    return isinstance(place, (list, tuple))
