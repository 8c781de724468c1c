"""Snapshot: a store whose profiles and models are read once, for as long as they stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from db.near import Winners, Workloads
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement
from recommender.ports import StoredModel
from recommender.workload import Workload

Found = TypeVar("Found")


class Snapshot(SqlStore):
    """The store as answers of one generation see it (``SqlStore.generation``).

    Devices, active models, which workloads there are and what won for them are asked for once. What
    was measured for exactly the workload of a question is asked for every time.
    """

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store.database)
        self.log = store.log  # with its index of workloads
        self._facts: dict[tuple[str, str], object] = {}
        self._winners: Winners = {}

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

    def has_drifted(self) -> bool:
        """Return whether times of anything changed that nobody has tuned since."""
        return self._once("drifts", "", super().has_drifted)

    def is_known(self, workload: Workload) -> bool:
        """Return whether anything may have been measured for exactly this workload."""
        return workload.key in self._workloads(workload.kernel).keys

    def nearest(
        self, workload: Workload, *, count: int = 9, hardware: HardwareProfile | None = None
    ) -> Sequence[Measurement]:
        """Return the fastest OK ones of each device, toolchain and protocol, of near workloads."""
        known = self._workloads(workload.kernel)
        return self.log.nearest(workload, count, hardware, known, self._winners)

    def _workloads(self, kernel: str) -> Workloads:
        return self._once("workloads", kernel, lambda: self.log.workloads(kernel))

    def _once(self, what: str, name: str, read: Callable[[], Found]) -> Found:
        if (what, name) not in self._facts:
            self._facts[what, name] = read()
        return cast(Found, self._facts[what, name])
