"""A database with rows in every table, and what of them each older schema leaves when gone back to.

``LOSSES`` holds one function per schema: what going below it, and up again, does to the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, inspect, text

from db.idempotency import Once
from db.models import Base
from db.records import NewRun, NewTrial, RetentionPolicy
from db.store import SqlStore
from recommender.drift import Drift
from recommender.families import schema_of
from recommender.hardware import HardwareProfile, load_profile
from recommender.measurement import Protocol
from tests.db.conftest import HARDWARE, TOOLCHAIN, accept, measurement, workload
from tests.db.test_studies import NEW
from tilecore.tile_config import TileConfig

Rows = dict[str, list[dict[str, Any]]]
GPU = load_profile("h100-sxm")
ELSEWHERE = HardwareProfile(name="nobody's CPU", kind="cpu", arch="x86-64-avx2", cores=64)
DRAWN = "drawn"
COMPACT = RetentionPolicy(keep_days=1, keep_best=1, keep_recent=0, keep_training=0)


def fill(store: SqlStore) -> None:
    """Put rows into every table, by what the service does all day."""
    epoch = store.leader.acquire("me", 60)
    key, _ = store.keys.create("alice", "tune", once=Once("API key", "once", "b"))
    store.keys.revoke(store.keys.create("bob", "read")[0].prefix)
    for profile in (HARDWARE, GPU, ELSEWHERE):
        store.save_hardware(profile)
    _measure(store)
    for name, hardware in (("one", HARDWARE), ("two", GPU)):
        store.nodes.join(name, name=name, hardware=hardware, devices=2, epoch=epoch)
    store.nodes.see(["one"], [], epoch)
    _tune(store, epoch)
    _train(store)
    study, _ = store.studies.create(replace(NEW, created_by=key.name, idempotency_key="s"))
    (told, _) = store.studies.add(study, {row: {"a": row} for row in (0, 1)}, "w1", 60)
    store.studies.complete(study, told.id, "w1", [3.0, 1.0], "fine")
    store.programs.add("0" * 32, "matmul", b"{}", key.name)
    store.leader.acquire("me", 60)


def _measure(store: SqlStore) -> None:
    fails = [measurement(None, detail="odd", workload=workload(256)) for _ in range(3)]
    slow = [measurement(i * 1e-3, driver="d1") for i in range(1, 4)]
    store.add_all([*fails, *slow], created_by="alice")
    store.add_all([measurement(2e-3, hardware=GPU), measurement(1e-3, protocol=Protocol.CONFIRM)])
    assert store.retention.compact(COMPACT, vacuum="off", created_by="alice").removed == {
        "COMPILE_ERROR": 3, "OK": 2,
    }  # fmt: skip
    store.add_all([measurement(None), measurement(5e-3, driver="d2")])


def _tune(store: SqlStore, epoch: int) -> None:
    common = {
        "workload": workload(128), "program_digest": "p2", "toolchain": TOOLCHAIN,
        "spec": {"max_trials": 4, "time_limit_s": 60.0}, "body_hash": "b", "created_by": "alice",
    }  # fmt: skip
    new = NewRun(hardware=HARDWARE, **common, priority=20, ceiling_s=9.0, cause="drift", group="g")
    waiting = NewRun(hardware=ELSEWHERE, **common)
    for one in (new, waiting):
        assert store.runs.create(one)[1]
    paused, _ = store.runs.create(replace(new, idempotency_key="k", group=None))
    store.runs.pause(paused.public_id)
    (run,) = store.runs.of_group("g")
    store.runs.match_hardware([HARDWARE.key], epoch)
    store.runs.start(run, epoch)
    for number in range(2):
        trials = [
            NewTrial(config=TileConfig.of(x=4 * number + i), protocol=protocol, purpose="search",
                     predicted_s=1e-3, round=number)
            for i, protocol in enumerate((Protocol.SCREEN, Protocol.SCREEN, Protocol.CONFIRM))
        ]  # fmt: skip
        store.trials.add(run.id, trials, epoch)
        lost, *others = store.trials.claim(run.id, epoch, 9, 60)
        store.trials.retry_later(lost, epoch, "worker lost", 60.0)
        for trial in others:
            accept(
                store,
                trial,
                epoch,
                measurement(config=trial.config, protocol=trial.protocol, driver="d3"),
            )
        store.runs.finish(run.id, epoch, "SUCCEEDED", result={"best": number})
        if number == 0:
            store.runs.extend(run.public_id, trials=3)
            store.runs.start(run, epoch)
    since = measurement().measured_at + timedelta(days=1)
    assert store.drifts.add(store.runs.get(run.public_id), Drift(since, 1.3, 2, 2)) is not None


def _train(store: SqlStore) -> None:
    for family, promote in (
        ("cpu", True), ("cpu", True), ("cpu", False), ("sm_90a", True), ("sm_90a", True),
        ("gfx942", True), ("gfx942", False), ("emulated-sm_90a", True),
    ):  # fmt: skip
        store.models.save(
            kernel="gemm", family=family, blob=family.encode(), feature_schema=schema_of(family),
            metrics={"r": 1.0}, trained_on=3, promote=promote, origin="uploaded",
            created_by="alice", reason=None if promote else "slower",
        )  # fmt: skip


def rows(connection: Connection) -> Rows:
    """Return all rows of all tables but Alembic's; facets by what they are, whatever their ids.

    Lists and objects are read from SQLite's texts, which a copy of a row spaces otherwise.
    """
    names = sorted(set(inspect(connection).get_table_names()) - {"alembic_version"})
    found = {
        name: [
            {column: _read(value) for column, value in row.items()}
            for row in connection.execute(text(f"select * from {name}")).mappings()
        ]
        for name in names
    }
    facets = {row.pop("id"): tuple(row.values()) for row in found.get("facet", [])}
    for name in names:
        for row in found[name]:
            if row.get("facet_id") is not None:
                row["facet_id"] = facets[row["facet_id"]]
    return {name: _in_order(found[name]) for name in names}


def _read(value: Any) -> Any:
    is_json = isinstance(value, str) and value[:1] in ("{", "[")
    return json.loads(value) if is_json else value


def _in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: (row.get("id", 0), repr(sorted(row.items()))))


def after(revision: str, before: Rows) -> Rows:
    """Return what is left of rows after going back to a schema and up again."""
    left = {name: [dict(row) for row in found] for name, found in before.items()}
    for number in sorted(LOSSES, reverse=True):
        if number > revision:
            LOSSES[number](left)
    return {name: _in_order(found) for name, found in left.items()}


def narrowed(found: Rows, columns: Mapping[str, Sequence[str]]) -> Rows:
    """Return the rows of some tables, and of these some columns."""
    return {
        name: _in_order([{c: row[c] for c in row if c in columns[name]} for row in found[name]])
        for name in columns.keys() & found.keys()
    }


def with_drawn(found: Rows, before: Rows) -> Rows:
    """Return rows in which what migrations draw at random, and was not there before, is DRAWN."""
    for table, column in (("tuning_run", "public_id"), ("installation", "key")):
        known = {row[column] for row in before[table]}
        for row in found.get(table, []):
            row[column] = row[column] if row[column] in known else DRAWN
    return found


def tables() -> set[str]:
    """Return the names of all tables of this version."""
    return {table.name for table in Base.metadata.sorted_tables}


def _change(found: Rows, table: str, **values: Any) -> None:
    for row in found[table]:
        row.update(values)


def _0003(found: Rows) -> None:
    found["api_key"] = []


def _0002(found: Rows) -> None:
    """Facets are made of what was measured: those that compaction left without a record go."""
    in_use = {row["facet_id"] for row in found["measurement"]}
    found["facet"] = [row for row in found["facet"] if tuple(row.values()) in in_use]


def _0004(found: Rows) -> None:
    found |= {"study": [], "study_trial": []}


def _0005(found: Rows) -> None:
    found["node"] = []
    _change(found, "tuning_run", group_id=None, priority=10, ceiling_s=None, device_s=0.0, round=0)
    for row in found["tuning_run"]:
        row["pause_requested"] = type(row["pause_requested"])(0)
        if row["state"] in ("PAUSED", "WAITING_FOR_HARDWARE"):
            row["state"] = "QUEUED"
    _split(found)


def _split(found: Rows) -> None:
    """Confirmations that an extension repeated become runs of their own, as results stay."""
    confirmed = [row for row in found["trial"] if row["protocol"] == "confirm"]
    last = {run: max(r["round"] for r in confirmed if r["run_id"] == run)
            for run in {row["run_id"] for row in confirmed}}  # fmt: skip
    runs = {row["id"]: row for row in found["tuning_run"]}
    for run, number in sorted({(r["run_id"], r["round"]) for r in confirmed}):
        if number < last[run]:
            new = max(row["id"] for row in found["tuning_run"]) + 1
            found["tuning_run"].append(
                runs[run]
                | {"id": new, "public_id": DRAWN, "idempotency_key": None, "state": "SUCCEEDED"}
            )
            for row in confirmed:
                if (row["run_id"], row["round"]) == (run, number):
                    row["run_id"] = new
    _change(found, "trial", round=0, losses=0)


def _0006(found: Rows) -> None:
    found |= {"driver": [], "drift": [], "compaction": [], "compacted": []}
    _change(found, "measurement", driver_id=None, created_by=None)
    _change(found, "tuning_run", created_by=None, cause=None)
    _change(found, "model_version", origin="trained", created_by=None, reason=None)
    _change(found, "installation", key=DRAWN)


def _0007(found: Rows) -> None:
    found["tile_program"] = []


def _0010(found: Rows) -> None:
    """What is noted of workloads is of the records that are there."""
    timed = {
        (row["workload_id"], row["facet_id"])
        for row in found["measurement"]
        if row["time_s"] is not None
    }
    found["workload_facet"] = [{"workload_id": w, "facet_id": f} for w, f in timed]


def _0011(found: Rows) -> None:
    """Earlier versions know one model of a kernel: those of GPUs retire, and keep their family."""
    for row in found["model_version"]:
        if row["family"] != "cpu" and row["state"] == "active":
            row["state"] = "retired"


def _0013(found: Rows) -> None:
    found["idempotency"] = []


LOSSES: dict[str, Callable[[Rows], None]] = {
    "0002": _0002, "0003": _0003, "0004": _0004, "0005": _0005, "0006": _0006, "0007": _0007,
    "0010": _0010, "0011": _0011, "0013": _0013,
}  # fmt: skip
