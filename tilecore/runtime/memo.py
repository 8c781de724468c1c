"""What calls are remembered by: a bounded dict, and what tells tensors of one layout."""

from __future__ import annotations

from typing import Any, TypeVar

MOST = 1024  # calls of a kernel or a function that are remembered

Value = TypeVar("Value")


class Memo(dict[Any, Value]):
    """A dict that forgets everything when it is full."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: Any, value: Value) -> None:
        """Remember a value."""
        if len(self) >= self._most:
            self.clear()
        self[key] = value


def strides_of(tensor: Any) -> Any:
    """Return the strides of a torch tensor (in elements) or of a NumPy array (in bytes).

    Raises:
        AttributeError: it is neither.
    """
    return tensor.stride() if hasattr(tensor, "stride") else tensor.strides
