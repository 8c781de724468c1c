"""NothingKept: what is known where there is no database: nothing was measured or stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement
from recommender.workload import Workload


class NothingKept:
    """An empty ``recommender.ports.MeasurementStore``, and ``wiring.Devices``."""

    def best(self, *_: Any, **__: Any) -> Measurement | None:
        """Return None."""
        return None

    def fastest(self, *_: Any, **__: Any) -> Sequence[Measurement]:
        """Return none."""
        return ()

    def is_known(self, workload: Workload) -> bool:
        """Return False."""
        return False

    def measurements(self, **_: Any) -> Sequence[Measurement]:
        """Return none."""
        return ()

    def nearest(self, *_: Any, **__: Any) -> Sequence[Measurement]:
        """Return none."""
        return ()

    def active_model(self, kernel: str, family: str) -> None:
        """Return None."""
        return

    def hardware(self, key: str) -> HardwareProfile | None:
        """Return None."""
        return None

    def all_hardware(self) -> Sequence[HardwareProfile]:
        """Return none."""
        return ()
