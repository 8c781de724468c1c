"""SqlStore: the memory of the system. Implements ``recommender.ports.MeasurementStore``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from heapq import merge
from itertools import islice
from operator import attrgetter

from sqlalchemy import func, select, update

from db.changes import STATE
from db.cost_models import CostModels
from db.drifts import Drifts
from db.errors import ModelCorrupt
from db.identities import hardware_id
from db.keys import Keys
from db.leader import Leadership
from db.log import Log
from db.models import HardwareRow, MeasurementRow
from db.nodes import Nodes
from db.overview import Counts, count
from db.programs import Programs
from db.records import MeasurementQuery, Page
from db.retention import Retention
from db.rows import (
    add_measurements,
    by_clock,
    hardware_of,
)
from db.runs import Runs
from db.service_models import CompactionRow, InstallationRow
from db.session import Database
from db.studies import Studies
from db.trained import devices_by_family
from db.trials import Trials
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.ports import StoredModel
from recommender.workload import Workload

LOG = logging.getLogger(__name__)
REMEMBERED_QUERIES = 8  # an answer holds until the next measurement, or compaction


class SqlStore:
    """Measurements, hardware and cost models; its parts do the jobs: ``runs``, ``trials``, ..."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.runs = Runs(database)
        self.trials = Trials(database)
        self.leader = Leadership(database)
        self.nodes = Nodes(database)
        self.log = Log(database)
        self.keys = Keys(database)
        self.studies = Studies(database)
        self.drifts = Drifts(database)
        self.retention = Retention(database)
        self.models = CostModels(database)
        self.programs = Programs(database)
        self._recent: dict[tuple[object, ...], tuple[object, Sequence[Measurement]]] = {}

    def state(self) -> tuple[str, ...]:
        """Return what is another one after anything was committed that answers may rest on."""
        (found,) = self.database.ask(STATE, {})
        return tuple(map(str, found))

    @cached_property
    def installation(self) -> str:
        """The name of this database among others: 32 hex digits."""
        with self.database.read() as session:
            return session.execute(select(InstallationRow.key)).scalar_one()

    # --- measurements -------------------------------------------------------------------------

    def best(
        self, workload: Workload, hardware_key: str, program_digest: str, toolchain_key: str,
        driver: str = "",
    ) -> Measurement | None:  # fmt: skip
        """Return the fastest OK CONFIRM measurement (else the fastest SCREEN one) of this key.

        Those of other drivers than ``driver`` (if it is given) come after all of this one.
        """
        return self.log.best(workload, hardware_key, program_digest, toolchain_key, driver)

    def fastest(
        self, workload: Workload, hardware_key: str, program_digest: str, toolchain_key: str,
        driver: str = "", *, count: int,
    ) -> Sequence[Measurement]:  # fmt: skip
        """Return what ``best`` does, then other configs: CONFIRM of the same driver, by time."""
        key = (workload, hardware_key, program_digest, toolchain_key, driver)
        return self.log.fastest(*key, count)

    def is_known(self, workload: Workload) -> bool:
        """Return whether anything may have been measured for exactly this workload."""
        return self.log.is_known(workload)

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
        """Return measurements, newest first (from memory while no new one was stored)."""
        query = MeasurementQuery(
            kernel=kernel,
            workload_key=workload_key,
            hardware_key=hardware_key,
            protocol=protocol,
            status=MeasureStatus.OK if only_ok else None,
        )
        (newest,) = self.database.ask(LOG_STATE, {})
        known = self._recent.get((query, limit))
        if known is not None and known[0] == newest:
            return known[1]
        found = [r.measurement for r in self.log.page(query, limit=limit).items]
        if len(self._recent) >= REMEMBERED_QUERIES:
            self._recent.clear()
        self._recent[query, limit] = (newest, found)
        return found

    def training(self, kernel: str, family: str, *, limit: int) -> Sequence[Measurement]:
        """Return the newest OK measurements of a kernel on devices of one family, newest first."""
        with self.database.read() as session:
            families = devices_by_family(session, kernel)
            keys = [row.key for row in families.get(family, ())]
        if len(families) <= 1:  # the kernel's are the family's
            return self.measurements(kernel=kernel, only_ok=True, limit=limit) if keys else []
        found = [
            self.measurements(kernel=kernel, hardware_key=key, only_ok=True, limit=limit)
            for key in keys
        ]
        return list(islice(merge(*found, key=attrgetter("measured_at"), reverse=True), limit))

    def nearest(
        self, workload: Workload, *, count: int = 9, hardware: HardwareProfile | None = None
    ) -> Sequence[Measurement]:
        """Return the fastest OK ones of each device, toolchain and protocol, of near workloads."""
        return self.log.nearest(workload, count, hardware)

    def add(self, measurement: Measurement) -> int:
        """Store a measurement that belongs to no run and return its id."""
        return self.add_all([measurement])[0]

    def add_all(
        self, measurements: Sequence[Measurement], *, created_by: str | None = None
    ) -> list[int]:
        """Store measurements that belong to no run, all or none, and return their ids.

        They were dated by this host's clock. ``created_by``: the name of the API key they came
        with; None: none.
        """
        with self.database.write() as session:
            now = self.database.now(session)
            authors = [created_by] * len(measurements)
            return add_measurements(session, by_clock(measurements, now), now, authors=authors)

    def add_unknown(self, look: Callable[[], Sequence[Measurement]]) -> Sequence[Measurement]:
        """Store, and return, what ``look`` returns: what it has looked for and did not find.

        Of those who call this one at a time looks and stores. What another machine dated later
        than now is dated now: it would head the log until then, and never be old.
        """
        with self.database.write() as session:
            session.execute(select(InstallationRow).with_for_update())
            now = self.database.now(session)
            unknown = [m if m.measured_at <= now else replace(m, measured_at=now) for m in look()]
            add_measurements(session, unknown, now)
            return unknown

    def page(
        self, query: MeasurementQuery, *, limit: int, after: tuple[float, int] | None = None
    ) -> Page:
        """Return up to ``limit`` measurements that match, from behind the key ``after``."""
        return self.log.page(query, limit=limit, after=after)

    # --- hardware -----------------------------------------------------------------------------

    def save_hardware(self, profile: HardwareProfile) -> None:
        """Store a profile, replacing the rates of an earlier one with the same key."""
        with self.database.write() as session:
            now = self.database.now(session)
            found = hardware_id(session, profile, now)
            session.execute(
                update(HardwareRow)
                .where(HardwareRow.id == found)
                .values(profile=profile.as_dict(), updated_at=now)
            )

    def hardware(self, key: str) -> HardwareProfile | None:
        """Return the stored profile of a device kind."""
        with self.database.read() as session:
            row = session.scalars(select(HardwareRow).where(HardwareRow.key == key)).first()
            return None if row is None else hardware_of(row)

    def all_hardware(self) -> Sequence[HardwareProfile]:
        """Return all stored profiles by name."""
        with self.database.read() as session:
            rows = session.scalars(select(HardwareRow).order_by(HardwareRow.name, HardwareRow.id))
            return [hardware_of(row) for row in rows]

    # --- cost models --------------------------------------------------------------------------

    def active_model(self, kernel: str, family: str) -> StoredModel | None:
        """Return the promoted cost model of a kernel for devices of a family.

        None where it is damaged: everything goes on without it, and training makes a new one.
        """
        try:
            return self.models.active(kernel, family)
        except ModelCorrupt as error:
            LOG.warning("%s", error)
            return None

    def has_drifted(self) -> bool:
        """Return whether times of anything changed that nobody has tuned since."""
        return self.drifts.any_open()

    def count_measurements(self) -> int:
        """Return how many measurements there are."""
        with self.database.read() as session:
            return session.execute(select(func.count(MeasurementRow.id))).scalar_one()

    def counts(self) -> Counts:
        """Return how many of everything there are."""
        return count(self.database)


NEWEST = select(func.max(MeasurementRow.id)).scalar_subquery()
REMOVED = select(func.sum(CompactionRow.removed)).scalar_subquery()
LOG_STATE = select(NEWEST, REMOVED)
