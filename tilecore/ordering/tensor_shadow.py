"""The shadow of a tensor: of the pages alone that the block touches, however large it is."""

from __future__ import annotations

import numpy as np

from tilecore.ordering.clocks import Clocks
from tilecore.ordering.faults import Faults
from tilecore.ordering.program import Array
from tilecore.ordering.shadow import Shadow

PAGE = 32  # elements that lie side by side in the shadow
OPEN = 2**31 - 1  # elements of a tensor in TIR that has so many, or more, or a dynamic size


class TensorShadow(Shadow):
    """The shadow of one tensor, by elements. Granules are numbered in the order they are met."""

    def __init__(self, clocks: Clocks, faults: Faults, elements: int) -> None:
        super().__init__(clocks, faults, PAGE, 1, "a tensor")
        self.elements = elements if elements < OPEN else 2**62
        self.pages: dict[int, int] = {}  # number in the tensor -> number in the shadow
        self.met: list[int] = []

    def place(self, at: int) -> str:
        """Return where a granule is."""
        return super().place(self.met[at // PAGE] * PAGE + at % PAGE)

    def _inside(self, at: Array, site: int) -> Array:
        """Return granules of elements, of which those outside of the tensor become its ends."""
        is_outside = (at < 0) | (at >= self.elements)
        if is_outside.any():
            found = super().place(int(at[is_outside][0]))
            self.faults.add("bounds", f"expected less than {self.elements}, found {found}", site)
            at = np.clip(at, 0, self.elements - 1)
        pages, of = np.unique(at // PAGE, return_inverse=True)
        numbers = np.array([self._page(page) for page in pages.tolist()], np.int64)
        room = len(self.writer)
        if len(self.met) * PAGE > room:
            self.grow(max(len(self.met) * PAGE, 2 * room))
        places: Array = numbers[of.reshape(at.shape)] * PAGE + at % PAGE
        return places

    def _page(self, page: int) -> int:
        if page not in self.pages:
            self.pages[page] = len(self.met)
            self.met.append(page)
        return self.pages[page]
