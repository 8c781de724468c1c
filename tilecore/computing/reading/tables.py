"""Arrays of numbers that a function makes with NumPy while it is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilecore.computing import calls
from tilecore.computing.operands import caller
from tilecore.computing.reading.storage import View
from tilecore.errors import UnsupportedSyntax


class Table(np.ndarray):
    """An array that the function makes of numbers: it takes indices that are computed."""

    is_own = True  # functions of NumPy mean what they mean of its own class

    def __getitem__(self, index: Any) -> Any:
        return self.traced()[index] if is_read(index) else super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if is_read((index, value)):
            raise UnsupportedSyntax(
                expected="an array that takes what is computed", found="one of numbers",
                span=caller(), hint="write to x.copy(), or to np.zeros(shape)",
            )  # fmt: skip
        super().__setitem__(index, value)

    def traced(self) -> Any:
        """Return it as an array of the computation, which the function holds."""
        from tilecore.computing.reading import numpy_functions  # which needs torch

        return numpy_functions.held(self)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else super().__array_wrap__(array, context)

    def take(self, indices: Any, axis: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return elements, or parts along an axis, that integers name."""
        if is_read(indices):
            return self.traced().take(indices, axis, *args, **kwargs)
        return super().take(indices, axis, *args, **kwargs)

    def dot(self, b: Any, out: Any = None) -> Any:
        """Return its product with another array."""
        return self.traced().dot(b, out) if is_read(b) else super().dot(b, out)


def is_read(value: Any) -> bool:
    """Return whether an array that is read is among some values."""
    found: list[View] = []
    calls.mapped(value, View, found.append)
    return bool(found)
