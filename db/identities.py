"""Ids of what measurements refer to, stored at its first use: many at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Table, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from db.models import (
    Base,
    ConfigRow,
    DriverRow,
    FacetRow,
    HardwareRow,
    ProgramRow,
    ToolchainRow,
    WorkloadFacetRow,
    WorkloadRow,
)
from db.records import NewRun
from db.storable import storable_parameters
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Toolchain
from recommender.workload import Workload
from tilecore.tile_config import TileConfig

T = TypeVar("T", bound=Hashable)
Natural = tuple[Any, ...]
REMEMBERED = "ids of committed rows"  # keys of ``Session.info``; kept by ``db.session.Database``
FRESH = "ids read or inserted in this transaction"
CHUNK = 400  # keys asked for in one statement: below all limits on bound values


def identities(
    session: Session,
    row: type[Base],
    names: Sequence[str],
    wanted: Mapping[Natural, Mapping[str, Any]],
) -> dict[Natural, int]:
    """Return the ids of the rows with these natural keys, inserting those that are missing.

    Args:
        session: of a write.
        row: the table.
        names: columns of the natural key.
        wanted: the other columns of each natural key.
    """
    table = row.__table__
    assert isinstance(table, Table)
    remembered = session.info.get(REMEMBERED, {})
    name = table.name
    asked = ((key, remembered.get((name, key))) for key in wanted)
    found = {key: number for key, number in asked if number is not None}
    if len(found) == len(wanted):
        return found
    read = _read(session, table, names, [key for key in wanted if key not in found])
    missing = [key for key in wanted if key not in found and key not in read]
    if missing:
        values = [{**dict(zip(names, key, strict=True)), **wanted[key]} for key in missing]
        _insert_missing(session, table, names, _numbered(session, table, values))
        read |= _read(session, table, names, missing)
    session.info.setdefault(FRESH, {}).update({(name, key): read[key] for key in read})
    return found | read


def _insert_missing(
    session: Session, table: Table, names: Sequence[str], values: Sequence[Mapping[str, Any]]
) -> None:
    """Insert the rows that are not there; one writer at a time in SQLite, which is the order given.

    Writers of PostgreSQL that insert the same ones wait for each other: all go by the natural key,
    so that none waits in turn.
    """
    if _is_sqlite(session):
        statement: Any = sqlite.insert(table).on_conflict_do_nothing()
    else:
        statement = postgresql.insert(table).on_conflict_do_nothing()
        values = sorted(values, key=lambda row: [row[name] for name in names])
    session.connection().execute(statement, values)


def _numbered(
    session: Session, table: Table, values: Sequence[dict[str, Any]]
) -> Sequence[dict[str, Any]]:
    """Return rows with their ids, in order, where the order of inserting would not give them."""
    if len(values) == 1 or _is_sqlite(session):
        return values
    number = func.nextval(func.pg_get_serial_sequence(table.name, "id"))
    numbers = select(number).select_from(func.generate_series(1, len(values)))
    found = sorted(session.connection().execute(numbers).scalars())
    return [{"id": number, **row} for number, row in zip(found, values, strict=True)]


def _is_sqlite(session: Session) -> bool:
    return session.get_bind().dialect.name == "sqlite"


def _read(
    session: Session, table: Table, names: Sequence[str], keys: Sequence[Natural]
) -> dict[Natural, int]:
    columns = [table.c[name] for name in names]
    found: dict[Natural, int] = {}
    for start in range(0, len(keys), CHUNK):
        chunk = keys[start : start + CHUNK]
        query = select(table.c.id, *columns).where(_is_one_of(columns, chunk))
        found |= {tuple(rest): int(number) for number, *rest in session.connection().execute(query)}
    as_stored = ((key, storable_parameters(key)) for key in keys)
    return {key: found[stored] for key, stored in as_stored if stored in found}


def _is_one_of(
    columns: Sequence[ColumnElement[Any]], keys: Sequence[Natural]
) -> ColumnElement[bool]:
    if len(columns) == 1:
        return columns[0].in_([key[0] for key in keys])
    return tuple_(*columns).in_(keys)


def hardware_id(session: Session, hardware: HardwareProfile, now: datetime) -> int:
    """Return the id of a device kind, storing its profile at its first use."""
    key = (hardware.key,)
    return identities(session, HardwareRow, ("key",), {key: hardware_columns(hardware, now)})[key]


def of_runs(session: Session, runs: Sequence[NewRun], now: datetime) -> list[dict[str, int]]:
    """Return the columns of each run that refer to other tables.

    Table by table in the order of ``References``, and each by its keys: whoever stores the same new
    things at once waits for the other, but neither in turn.
    """
    workloads = _by_key(session, WorkloadRow, {r.workload: r.workload.key for r in runs},
                        workload_columns)  # fmt: skip
    kinds = {(r.hardware.key,): hardware_columns(r.hardware, now) for r in runs}
    hardware = identities(session, HardwareRow, ("key",), kinds)
    toolchains = _by_key(session, ToolchainRow, {r.toolchain: r.toolchain.key for r in runs},
                         toolchain_columns)  # fmt: skip
    digests = [(r.workload.kernel, r.program_digest) for r in runs]
    programs = identities(session, ProgramRow, ("kernel", "digest"), {d: {} for d in digests})
    return [
        {
            "workload_id": workloads[run.workload],
            "hardware_id": hardware[(run.hardware.key,)],
            "toolchain_id": toolchains[run.toolchain],
            "program_id": programs[digest],
        }
        for run, digest in zip(runs, digests, strict=True)
    ]


def config_ids(session: Session, configs: Iterable[TileConfig]) -> dict[TileConfig, int]:
    """Return the ids of configs."""
    return _by_key(session, ConfigRow, {c: c.key for c in configs}, config_columns)


def workload_columns(workload: Workload) -> dict[str, Any]:
    """Return the columns of a workload besides its key."""
    problem = dict(workload.problem)
    dtype = problem.get("dtype")
    return {
        "kernel": workload.kernel,
        "dtype": dtype if isinstance(dtype, str) else None,
        **{size: _size(problem.get(size, problem.get(size.upper()))) for size in ("m", "n", "k")},
        "threads": workload.threads,
        "problem": problem,
    }


def _size(value: object) -> int | None:
    """Return what the log is filtered by: programs that came as data call it what they like."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def hardware_columns(hardware: HardwareProfile, now: datetime) -> dict[str, Any]:
    """Return the columns of a device kind besides its key."""
    return {
        "kind": hardware.kind,
        "name": hardware.name,
        "profile": hardware.as_dict(),
        "updated_at": now,
    }


def toolchain_columns(toolchain: Toolchain) -> dict[str, Any]:
    """Return the columns of a toolchain besides its key."""
    names = ("tilecore", "tvm", "llvm", "linker", "nvrtc")
    return {"versions": {name: getattr(toolchain, name) for name in names}}


def config_columns(config: TileConfig) -> dict[str, Any]:
    """Return the columns of a config besides its key."""
    return {"knobs": dict(config.items_)}


def note_facets(session: Session, pairs: Collection[tuple[int, int]]) -> None:
    """Store that these workloads have an OK measurement of these facets."""
    table = WorkloadFacetRow.__table__
    assert isinstance(table, Table)
    remembered = session.info.get(REMEMBERED, {})
    missing = [pair for pair in pairs if (table.name, pair) not in remembered]
    if missing:
        names = ("workload_id", "facet_id")
        values = [dict(zip(names, pair, strict=True)) for pair in missing]
        _insert_missing(session, table, names, values)
        session.info.setdefault(FRESH, {}).update({(table.name, pair): 0 for pair in missing})


class References:
    """The ids that some measurements refer to, each looked up or stored once."""

    def __init__(
        self, session: Session, measurements: Sequence[Measurement], now: datetime
    ) -> None:
        workloads = {m.workload: m.workload.key for m in measurements}
        configs = {m.config: m.config.key for m in measurements}
        devices = {id(m.hardware): m.hardware for m in measurements}
        self._device_keys = {number: device.key for number, device in devices.items()}
        self._toolchain_keys = {t: t.key for t in {m.toolchain for m in measurements}}
        self._workload_ids = _by_key(session, WorkloadRow, workloads, workload_columns)
        self._config_ids = _by_key(session, ConfigRow, configs, config_columns)
        kinds = {self._device_keys[number]: device for number, device in devices.items()}
        self._hardware_ids = identities(
            session, HardwareRow, ("key",),
            {(key,): hardware_columns(device, now) for key, device in kinds.items()},
        )  # fmt: skip
        self._toolchain_ids = _by_key(
            session, ToolchainRow, self._toolchain_keys, toolchain_columns
        )
        programs: dict[Natural, dict[str, Any]] = {
            (m.workload.kernel, m.program_digest): {} for m in measurements
        }
        self._program_ids = identities(
            session, ProgramRow, ("kernel", "digest"), {p: {} for p in programs}
        )
        self._driver_ids = identities(
            session, DriverRow, ("name",), {(_driver(m),): {} for m in measurements if m.driver}
        )
        self._facet_ids = identities(
            session, FacetRow, FACET, {self._facet(m): {} for m in measurements}
        )
        timed = {(m.workload, self._facet(m)) for m in measurements if m.status is MeasureStatus.OK}
        pairs = {(self._workload_ids[w], self._facet_ids[facet]) for w, facet in timed}
        note_facets(session, pairs)

    def columns(self, m: Measurement) -> dict[str, int | None]:
        """Return the columns of a measurement that refer to other tables."""
        return {
            "workload_id": self._workload_ids[m.workload],
            "hardware_id": self._hardware_id(m),
            "program_id": self._program_ids[m.workload.kernel, m.program_digest],
            "toolchain_id": self._toolchain_ids[m.toolchain],
            "config_id": self._config_ids[m.config],
            "facet_id": self._facet_ids[self._facet(m)],
            "driver_id": self._driver_ids.get((_driver(m),)),
        }

    def _hardware_id(self, m: Measurement) -> int:
        return self._hardware_ids[(self._device_keys[id(m.hardware)],)]

    def _facet(self, m: Measurement) -> Natural:
        toolchain = self._toolchain_ids[m.toolchain]
        kernel = m.workload.kernel
        return (kernel, self._hardware_id(m), toolchain, m.protocol.value, m.status.value)


def _driver(m: Measurement) -> str:
    return m.driver[:200]


FACET = ("kernel", "hardware_id", "toolchain_id", "protocol", "status")


def _by_key(
    session: Session,
    row: type[Base],
    keys: Mapping[T, str],
    columns: Callable[[T], dict[str, Any]],
) -> dict[T, int]:
    wanted = {(key,): columns(value) for value, key in keys.items()}
    found = identities(session, row, ("key",), wanted)
    return {value: found[(key,)] for value, key in keys.items()}
