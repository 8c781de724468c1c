"""What the decisions need from the outside: protocols that db and workers implement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol as TypingProtocol

from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, Protocol
from recommender.workload import Workload
from tilecore.tile_config import TileConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A trained cost model as the store keeps it."""

    id: int
    kernel: str
    blob: bytes  # XGBoost UBJ/JSON bytes, sha256-checked by the store
    feature_schema: str
    metrics: dict[str, float]
    trained_on: int  # number of measurements


class MeasurementStore(TypingProtocol):
    """Read access to what was measured."""

    def best(
        self, workload: Workload, hardware_key: str, program_digest: str, toolchain_key: str,
        driver: str = "",
    ) -> Measurement | None:  # fmt: skip
        """Return the fastest OK CONFIRM measurement (else SCREEN) of exactly this key.

        Those of other drivers than ``driver`` (if it is given) come after all of this one.
        """
        ...

    def fastest(
        self, workload: Workload, hardware_key: str, program_digest: str, toolchain_key: str,
        driver: str = "", *, count: int,
    ) -> Sequence[Measurement]:  # fmt: skip
        """Return what ``best`` does, then other configs: CONFIRM of the same driver, by time."""
        ...

    def is_known(self, workload: Workload) -> bool:
        """Return whether anything may have been measured for exactly this workload."""
        ...

    def measurements(
        self,
        *,
        kernel: str | None = None,
        workload_key: str | None = None,
        hardware_key: str | None = None,
        protocol: Protocol | None = None,
        only_ok: bool = False,
        limit: int = 10_000,
    ) -> Sequence[Measurement]:
        """Return measurements, newest first."""
        ...

    def nearest(
        self, workload: Workload, *, count: int = 9, hardware: HardwareProfile | None = None
    ) -> Sequence[Measurement]:
        """Return what was fastest for the ``count`` workloads of its kernel nearest to this one.

        Of each of them the fastest OK measurement of every device, toolchain and protocol. With
        ``hardware`` there are as many of those measured on this device, and on devices of its kind,
        as far as there are that many near by: records of other devices do not take their places.
        """
        ...

    def active_model(self, kernel: str, family: str) -> StoredModel | None:
        """Return the promoted cost model of a kernel."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """One candidate to compile, check and time.

    ``token`` is the caller's name for it; results carry it back.
    """

    token: str
    workload: Workload
    config: TileConfig
    protocol: Protocol


class Measurer(TypingProtocol):
    """Compiles, checks and times candidates. CONFIRM requests of one call are timed interleaved."""

    hardware: HardwareProfile

    @property
    def devices(self) -> int:
        """How many devices measure side by side just now."""
        ...

    @property
    def compilers(self) -> int:
        """How many candidates are compiled side by side just now."""
        ...

    def submit(self, requests: Sequence[MeasureRequest]) -> None:
        """Queue candidates; returns at once."""
        ...

    def collect(self, timeout_s: float) -> list[tuple[MeasureRequest, Measurement]]:
        """Return what has finished, waiting up to ``timeout_s`` for the first result."""
        ...

    def waiting(self) -> Collection[str]:
        """Return the tokens of requests that wait for a worker: nobody works on them just now."""
        ...

    def withdraw(self, tokens: Collection[str]) -> None:
        """Forget requests: what nobody works on is not begun, and none of them has a result."""
        ...

    def close(self) -> None:
        """Stop all processes of this measurer."""
        ...
