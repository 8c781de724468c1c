"""Variables and arrays that each thread has for itself."""

from __future__ import annotations

import numpy as np

from tilecore.ordering.program import Lanes, Value


class Locals:
    """What threads keep: elements by the slot of their array and their index."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, int], Value] = {}
        self._lost: set[int] = set()  # arrays written at an index that nobody knows

    def load(self, slot: int, index: Value, lanes: Lanes) -> Value:
        """Return an element of each thread that runs, as a number where all have the same."""
        if slot in self._lost or index is None or isinstance(index, np.ndarray):
            return None
        value = self._values.get((slot, int(index)))
        if isinstance(value, np.ndarray):
            some = value[lanes.ids]
            if (some == some[0]).all():
                return int(some[0])
        return value

    def store(self, slot: int, index: Value, value: Value, lanes: Lanes) -> None:
        """Give an element of each thread that runs a value."""
        if index is None or isinstance(index, np.ndarray):
            self._lost.add(slot)
            return
        key = (slot, int(index))
        old = self._values.get(key)
        if key in self._values and old is not value and len(lanes.ids) < len(lanes.bits):
            value = None if old is None or value is None else np.where(lanes.bits, value, old)
        self._values[key] = value
