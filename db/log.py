"""The tuning log: pages at any depth, winners, what lies near, the whole of it as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Select, bindparam, func, select

from db.errors import NotOneSpace
from db.exact import BEST, EPOCH, FASTEST, KNOWN
from db.exchange.csv_log import csv_lines
from db.exchange.parquet import parquet_pieces
from db.exchange.t4 import t4_chunks
from db.models import WorkloadRow
from db.reader import Reader
from db.records import MeasurementQuery, MeasurementRecord, Page
from db.scope import Scope, Ways
from db.session import Database
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement
from recommender.workload import Workload
from tilecore.tile_config import TileConfig

if TYPE_CHECKING:
    from db.near import Near, Winners, Workloads

MICROSECOND = timedelta(microseconds=1)
LATEST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
STREAMED = 500  # records held at a time while a log is exported
PIECE = 65_536  # characters of it that are sent at once
Form = Literal["csv", "t4", "parquet"]
Key = tuple[float, int]


class Log:
    """Queries of the measurements. Everything pages by keys, so depth costs nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dialect = database.engine.dialect.name
        self._reader = Reader(self._dialect)
        self._ways = Ways()
        self._indices: dict[str, Workloads] = {}

    def best(
        self, workload: Workload, hardware_key: str, program_digest: str, toolchain_key: str,
        driver: str = "",
    ) -> Measurement | None:  # fmt: skip
        """Return the fastest OK CONFIRM measurement (else the fastest SCREEN one) of this key.

        Those of other drivers than ``driver`` (if it is given) come after all of this one; where
        nobody noted the driver, it counts as the same. What was measured before a drift does not
        count.
        """
        found = self._of_key(
            BEST, workload, hardware_key, program_digest, toolchain_key, driver
        )  # fmt: skip
        return found[0] if found else None

    def fastest(
        self, workload: Workload, hardware_key: str, program_digest: str, toolchain_key: str,
        driver: str, count: int,
    ) -> Sequence[Measurement]:  # fmt: skip
        """Return what ``best`` does, then other configs: CONFIRM of the same driver, by time."""
        key = (workload, hardware_key, program_digest, toolchain_key, driver)
        found = self._of_key(FASTEST, *key, count=count)
        if not found:  # of SCREEN, or of another driver, only the best answers
            best = self.best(*key)
            return [] if best is None else [best]
        unique: dict[TileConfig, Measurement] = {}
        for m in found:
            unique.setdefault(m.config, m)
        return list(unique.values())

    def is_known(self, workload: Workload) -> bool:
        """Return whether anything may have been measured for exactly this workload."""
        return bool(self._database.ask(KNOWN, {"workload": workload.key}))

    def _of_key(
        self, query: Select[Any], workload: Workload, hardware_key: str, program_digest: str,
        toolchain_key: str, driver: str, **more: int,
    ) -> list[Measurement]:  # fmt: skip
        key: dict[str, Any] = {
            "workload": workload.key,
            "kernel": workload.kernel,
            "hardware": hardware_key,
            "digest": program_digest,
            "toolchain": toolchain_key,
            "driver": driver,
            **more,
        }
        found = self._database.ask(query, key)
        known = {row.workload_id: workload for row in found}
        return self._reader.measurements(self._database.ask, found, known)

    def page(self, query: MeasurementQuery, *, limit: int, after: Key | None = None) -> Page:
        """Return up to ``limit`` measurements that match, from behind the key ``after``.

        The key is (time_s, id) with ``best_first``, (number of the workload, id of the device) with
        ``winners``, else (microseconds since 1970, id).
        """
        near, distance = self._near(query)
        scope = Scope(query, self._dialect, near)
        if query.winners:
            last = (-1, 0) if after is None else (_clamped(after[0], -1, 2**31 - 1), after[1])
            found = scope.winners(self._database.ask, last, limit + 1, self._ways)
            items = self._reader.records(self._database.ask, found[:limit], distance)
            more = found[limit - 1] if len(found) > limit else None
            return Page(items=items, next_after=more and (more.key_number, more.key_device))
        bound: tuple[Any, int] | None = None
        if after is not None:
            date = EPOCH + _clamped(after[0], 0, LATEST) * MICROSECOND
            bound = (after[0] if query.best_first else date, after[1])
        rows = scope.rows(self._database.ask, bound, limit + 1, self._ways)
        items = self._reader.records(self._database.ask, rows[:limit], distance)
        if len(rows) <= limit:
            return Page(items=items)
        value, number = rows[limit - 1].key_value, rows[limit - 1].key_id
        key = value if query.best_first else (value - EPOCH) // MICROSECOND
        return Page(items=items, next_after=(key, number))

    def stream(self, query: MeasurementQuery) -> Iterator[MeasurementRecord]:
        """Yield all measurements that match; a few hundred at a time are in memory."""
        after: Key | None = None
        while True:
            page = self.page(query, limit=STREAMED, after=after)
            yield from page.items
            after = page.next_after
            if after is None:
                return

    def export(self, query: MeasurementQuery, form: Form) -> Iterator[str] | Iterator[bytes]:
        """Return the log that matches as pieces of a file, in bounded memory.

        Raises:
            NotOneSpace: T4 of no or of several workloads or devices (DB810).
            FormatMissing: Parquet without pyarrow (DB826).
        """
        if form == "parquet":
            return parquet_pieces(self.stream(query))
        if form == "csv":
            return _pieces(csv_lines(self.stream(query)))
        near, _ = self._near(query)
        found = Scope(query, self._dialect, near).subjects(self._database.ask, 2)
        if len(found) != 1:
            raise NotOneSpace(found="none" if not found else "several")
        return _pieces(t4_chunks(self.stream(query)))

    def nearest(
        self, workload: Workload, count: int, hardware: HardwareProfile | None = None,
    ) -> Sequence[Measurement]:  # fmt: skip
        """Return the fastest of each device, toolchain and protocol, of near workloads.

        ``count`` of them, and of those measured on devices like ``hardware`` (``Near.winners``).
        """
        known = self.workloads(workload.kernel)
        return self.near(workload.kernel, {}).winners(workload, known, count, hardware)

    def near(self, kernel: str, kept: Winners) -> Near:
        """Return what looks up winners of a kernel; ``kept``: those known before that hold."""
        from db.near import Near

        return Near(self._database, self._reader, kernel, kept)

    def workloads(self, kernel: str) -> Workloads:
        """Return the workloads of a kernel, by their ids; they are only ever added."""
        from db.near import NO_WORKLOADS  # loads NumPy, which no page of the log needs

        known = self._indices.get(kernel, NO_WORKLOADS)
        ((count,),) = self._database.ask(COUNTED, {"kernel": kernel})
        if len(known.ids) != count:
            rows = self._workload_rows(kernel, behind=known.ids[-1] if known.ids else 0)
            if not rows or len(known.ids) + len(rows) != rows[0].count:  # lower ids came late
                known, rows = NO_WORKLOADS, self._workload_rows(kernel, behind=0)
            known = self._indices[kernel] = known.with_more(rows)
        return known

    def _workload_rows(self, kernel: str, *, behind: int) -> Sequence[Any]:
        return self._database.execute(OF_KERNEL, {"kernel": kernel, "behind": behind})

    def _near(self, query: MeasurementQuery) -> tuple[list[int] | None, dict[str, float]]:
        """Return the ids of the workloads near by, nearest first, and distances by their keys."""
        if query.near is None:
            return None, {}
        known = self.workloads(query.near.kernel)
        found = known.index.nearest(query.near, query.near_count)
        index = known.index
        return [known.ids[i] for i, _ in found], {index.workloads[i].key: d for i, d in found}


_KERNEL = WorkloadRow.kernel == bindparam("kernel", type_=WorkloadRow.kernel.type)
COUNTED = select(func.count()).select_from(WorkloadRow).where(_KERNEL)
OF_KERNEL = (
    select(WorkloadRow.__table__, COUNTED.scalar_subquery().label("count"))
    .where(_KERNEL, WorkloadRow.id > bindparam("behind", type_=WorkloadRow.id.type))
    .order_by(WorkloadRow.id)
)


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Yield the same text in longer pieces: each goes to a thread of the service and back."""
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= PIECE:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held)


def _clamped(value: float, low: int, high: int) -> int:
    """Return a part of a key that a stranger may have forged, as one the database can hold."""
    return min(max(int(value), low), high)
