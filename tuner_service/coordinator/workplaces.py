"""Workplaces: where a coordinator's trials are measured: on this host, or on nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.ports import Measurer


class Workplace(Protocol):
    """Knows which hardware there is, and measures on it."""

    is_elsewhere: bool  # whether workers that are away may come back without us

    @property
    def is_settled(self) -> bool:
        """Whether all that is there has said what it is."""
        ...

    def open(self) -> None:
        """Reach the workers; raises WorkerError while that is not possible."""
        ...

    def refresh(self, store: SqlStore, epoch: int) -> Sequence[HardwareProfile]:
        """Return the hardware on offer now."""
        ...

    def measurer(self, hardware: HardwareProfile, epoch: int) -> Measurer:
        """Return workers for one kind of hardware."""
        ...

    def release(self, hardware_key: str) -> None:
        """Forget workers that were closed for want of work."""
        ...

    def close(self) -> None:
        """Leave the workers."""
        ...


class HostWorkplace:
    """This machine: its processor and other devices, whose workers start with their first run."""

    is_elsewhere = False
    is_settled = True

    def __init__(
        self,
        hardware: HardwareProfile,
        make_measurer: Callable[[int], Measurer],
        others: Sequence[HardwareProfile] = (),
        make_other: Callable[[HardwareProfile, int], Measurer] | None = None,
    ) -> None:
        """Offer the processor, and ``others`` with what makes their workers."""
        self._hardware, self._others = hardware, others
        self._make_measurer, self._make_other = make_measurer, make_other

    def open(self) -> None:
        """Nothing to reach."""

    def refresh(self, store: SqlStore, epoch: int) -> Sequence[HardwareProfile]:
        """Return the devices of this machine."""
        return (self._hardware, *self._others)

    def measurer(self, hardware: HardwareProfile, epoch: int) -> Measurer:
        """Return workers of this machine."""
        if hardware.key == self._hardware.key or self._make_other is None:
            return self._make_measurer(epoch)
        return self._make_other(hardware, epoch)

    def release(self, hardware_key: str) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to leave."""
