"""What was fastest for the workloads nearest to one, with enough of them from devices of use."""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, select

from db.models import FacetRow, HardwareRow, WorkloadFacetRow
from db.reader import Reader
from db.records import MeasurementQuery
from db.rows import hardware_of, workload_of
from db.scope import Scope
from db.session import Database
from db.shape import fastest
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus
from recommender.nearest import UNUSABLE
from recommender.workload import Workload
from recommender.workload_index import WorkloadIndex

BLOCKS = (64, 512)  # near workloads that are looked through for those of a device
MOST_KEPT = 4096
Winners = MutableMapping[int, Sequence[Measurement]]


@dataclass(frozen=True, slots=True)
class Workloads:
    """The workloads of a kernel: their ids in the order of the index, and their keys."""

    ids: list[int]
    keys: frozenset[str]
    index: WorkloadIndex

    def with_more(self, rows: Sequence[Any]) -> Workloads:
        """Return these and those of more rows."""
        return Workloads(
            [*self.ids, *(row.id for row in rows)],
            self.keys.union(row.key for row in rows),
            self.index.with_more([workload_of(row) for row in rows]),
        )


NO_WORKLOADS = Workloads([], frozenset(), WorkloadIndex([]))


class Near:
    """Looks up winners: of a workload the fastest OK of every device, toolchain and protocol.

    Attributes:
        looked_at: ids of the workloads whose winners were asked for.
        reach: a workload that is farther away than this would change nothing in what was found.
    """

    def __init__(self, database: Database, reader: Reader, kernel: str, kept: Winners) -> None:
        """Args: kept: winners of workloads, by their ids, as long as these stay as they are."""
        self._database, self._reader, self._kernel, self._kept = database, reader, kernel, kept
        self.looked_at: set[int] = set()
        self.reach = -1.0
        query = MeasurementQuery(kernel=kernel, winners=True)
        self._winners = fastest(Scope(query, database.engine.dialect.name).shape)
        self._workloads: dict[int, Workload] = {}

    def winners(
        self, workload: Workload, known: Workloads, count: int, hardware: HardwareProfile | None
    ) -> list[Measurement]:
        """Return the winners of the ``count`` nearest workloads.

        With ``hardware`` also those of the ``count`` nearest ones that were measured on devices of
        its kind, and on the device itself: many records of others do not crowd them out.
        """
        near = self._nearest(workload, known, count)
        self.reach = max(self.reach, near[-1][1] if len(near) == count else math.inf)
        first = self._of([number for number, _ in near])
        found = [m for winners in first for m in winners]
        if (
            hardware is None
            or len(first) < count
            or self._missing(first, {hardware.key}, count) < 1
        ):
            return found
        far = self._nearest(workload, known, max(count, BLOCKS[-1]))[count:]
        rest = {number: distance for number, distance in far if distance <= UNUSABLE}
        for keys in (self._keys_like(hardware), {hardware.key}):
            missing = self._missing(first, keys, count)
            more = self._measured_on(keys, list(rest), missing)
            if missing > 0:
                last = rest[more[-1]] if len(more) == missing else UNUSABLE
                self.reach = max(self.reach, last)
            found += [m for winners in self._of(more) for m in winners if m not in found]
        return found

    def _nearest(self, workload: Workload, known: Workloads, count: int) -> list[tuple[int, float]]:
        """Return ids of workloads and their distances."""
        places = known.index.nearest(workload, count)
        self._workloads |= {known.ids[i]: known.index.workloads[i] for i, _ in places}
        return [(known.ids[i], distance) for i, distance in places]

    @staticmethod
    def _missing(first: Sequence[Sequence[Measurement]], keys: set[str], count: int) -> int:
        """Return how many more workloads measured on devices are wanted."""
        return count - sum(any(m.hardware.key in keys for m in winners) for winners in first)

    def _keys_like(self, hardware: HardwareProfile) -> set[str]:
        """Return the devices that tell something about one."""
        query = select(HardwareRow).where(HardwareRow.kind == hardware.kind)
        with self._database.read() as session:
            devices = list(map(hardware_of, session.scalars(query)))
        return {d.key for d in devices if d.is_emulated == hardware.is_emulated}

    def _measured_on(self, keys: set[str], rest: Sequence[int], count: int) -> list[int]:
        """Return the first ``count`` of the workloads ``rest`` that were measured on devices."""
        found: list[int] = []
        if not keys or not rest or count < 1:
            return found
        values = {"kernel": self._kernel, "keys": sorted(keys)}
        facets = [row.id for row in self._database.execute(FACETS, values)]
        if not facets:
            return found
        for start, end in zip((0, *BLOCKS[:-1]), BLOCKS, strict=True):
            some = rest[start:end]
            if not some or len(found) >= count:
                break
            part = {"some": list(some), "facets": list(facets)}
            have = {row.workload_id for row in self._database.execute(HAVE, part)}
            found += [number for number in some if number in have]
        return found[:count]

    def _of(self, ids: Sequence[int]) -> list[Sequence[Measurement]]:
        """Return the winners of some workloads."""
        self.looked_at.update(ids)
        found = {number: self._kept.get(number) for number in ids}
        missing = [number for number, winners in found.items() if winners is None]
        if missing:
            read = self._read(missing)
            if len(self._kept) > MOST_KEPT:
                self._kept.clear()
            self._kept.update(read)
            found |= read
        return [winners for winners in found.values() if winners is not None]

    def _read(self, ids: Sequence[int]) -> dict[int, Sequence[Measurement]]:
        values = {"kernel": self._kernel, "some": list(ids)}
        rows = self._database.ask(self._winners, values)
        found = self._reader.measurements(self._database.ask, rows, self._workloads)
        read: dict[int, list[Measurement]] = {number: [] for number in ids}
        for row, measured in sorted(zip(rows, found, strict=True), key=lambda both: both[0].id):
            read[row.workload_id].append(measured)
        return dict(read)


FACETS = (
    select(FacetRow.id)
    .join(HardwareRow, FacetRow.hardware_id == HardwareRow.id)
    .where(
        FacetRow.kernel == bindparam("kernel"),
        FacetRow.status == MeasureStatus.OK.value,
        HardwareRow.key.in_(bindparam("keys", expanding=True)),
    )
)
HAVE = (
    select(WorkloadFacetRow.workload_id)
    .where(
        WorkloadFacetRow.workload_id.in_(bindparam("some", expanding=True)),
        WorkloadFacetRow.facet_id.in_(bindparam("facets", expanding=True)),
    )
    .distinct()
)
