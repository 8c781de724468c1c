"""Snapshot: a store whose profiles and models are read once, for as long as they stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.ports import StoredModel

Found = TypeVar("Found")


class Snapshot(SqlStore):
    """The store as answers of one generation see it (``SqlStore.generation``).

    Devices and active models are asked for once. What was measured is asked for every time: it is
    of the question.
    """

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store.database)
        self.log = store.log  # with its index of workloads
        self._facts: dict[tuple[str, str], object] = {}

    def hardware(self, key: str) -> HardwareProfile | None:
        """Return the stored profile of a device kind."""
        return self._once("hardware", key, lambda: super(Snapshot, self).hardware(key))

    def all_hardware(self) -> Sequence[HardwareProfile]:
        """Return all stored profiles by name."""
        return self._once("all hardware", "", super().all_hardware)

    def active_model(self, kernel: str) -> StoredModel | None:
        """Return the promoted cost model of a kernel.

        Raises:
            ModelCorrupt: its bytes are not those that were saved (DB808).
        """
        return self._once("model", kernel, lambda: super(Snapshot, self).active_model(kernel))

    def _once(self, what: str, name: str, read: Callable[[], Found]) -> Found:
        if (what, name) not in self._facts:
            self._facts[what, name] = read()
        return cast(Found, self._facts[what, name])
