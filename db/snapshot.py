"""Snapshot: a store whose profiles, models and winners are read once, as long as they hold."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Self, TypeVar, cast

from db.changes import Changes
from db.near import Winners, Workloads
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement
from recommender.ports import StoredModel
from recommender.workload import Workload

Found = TypeVar("Found")


class Snapshot(SqlStore):
    """The store as answers see it between two changes (``db.changes``).

    Devices, active models, which workloads there are and what won for them are asked for once. What
    was measured for exactly the workload of a question is asked for every time.

    Attributes:
        looked_at: ids of the workloads whose winners were asked for.
        reach: a workload that is farther away than this would change nothing in what was found.
    """

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store.database)
        self.log = store.log  # with its index of workloads
        self.looked_at: set[int] = set()
        self.reach = -1.0
        self._facts: dict[tuple[str, str], object] = {}
        self._winners: Winners = {}

    def after(self, changes: Changes) -> Self:
        """Return a snapshot that keeps what changes leave as it is; this one stays as it is."""
        later = self.view()
        if changes.everything:
            later._facts, later._winners = {}, {}
        else:
            gone = {("workloads", workload.kernel) for workload in changes.grown}
            later._facts = {key: v for key, v in self._facts.copy().items() if key not in gone}
            kept = dict(self._winners)
            later._winners = {key: v for key, v in kept.items() if key not in changes.won}
        return later

    def view(self) -> Self:
        """Return the same for one question, with ``looked_at`` and ``reach`` of its own."""
        one = copy.copy(self)
        one.looked_at, one.reach = set(), -1.0
        return one

    def hardware(self, key: str) -> HardwareProfile | None:
        """Return the stored profile of a device kind."""
        return self._once("hardware", key, lambda: super(Snapshot, self).hardware(key))

    def all_hardware(self) -> Sequence[HardwareProfile]:
        """Return all stored profiles by name."""
        return self._once("all hardware", "", super().all_hardware)

    def active_model(self, kernel: str, family: str) -> StoredModel | None:
        """Return the promoted cost model of a kernel for devices of a family, if it is whole."""
        return self._once(
            "model",
            f"{kernel} {family}",
            lambda: super(Snapshot, self).active_model(kernel, family),
        )

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
        near = self.log.near(workload.kernel, self._winners)
        known = self._workloads(workload.kernel)
        found = near.winners(workload, known, count, hardware)
        self.looked_at |= near.looked_at
        self.reach = max(self.reach, near.reach)
        return found

    def _workloads(self, kernel: str) -> Workloads:
        return self._once("workloads", kernel, lambda: self.log.workloads(kernel))

    def _once(self, what: str, name: str, read: Callable[[], Found]) -> Found:
        if (what, name) not in self._facts:
            self._facts[what, name] = read()
        return cast(Found, self._facts[what, name])
