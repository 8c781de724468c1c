"""The tuning log at size: how long each question takes, how fast it grows, who loses nothing.

    python benchmarks/database.py FOLDER [--rows 1000000] [--url URL] [--json FILE]

FOLDER holds recorded spaces KERNEL__DEVICE.csv.gz. Campaigns are made from them as tuning leaves
them: one workload on one device with one toolchain, some hundred configurations of the recorded
space with its times (scaled by the size of the problem, with noise) and its failures, the fastest
ten confirmed. Toolchains follow each other in two years; workloads are asked for unevenly, nine of
ten by the same author. Inserts go through the store in batches. Then random questions are asked,
one process, warm and unprepared alike, and 32 processes write to one database at a time.

Without --url, an SQLite file in a temporary folder, deleted afterwards. Another database must be
empty and migrated (`tilecore migrate`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy
from campaigns import AUTHORS, DAYS, FAILURES, START, Recording, author, campaigns, read
from sqlalchemy import text

from db.migrate import open_database, upgrade
from db.models import MeasurementRow
from db.reader import FLAT
from db.records import MeasurementQuery, NewRun
from db.session import Database
from db.store import SqlStore
from recommender.measurement import Measurement
from recommender.workload import Workload
from tilecore.tile_config import TileConfig, digest

BATCH, WRITERS, WRITES = 1000, 32, 40


def fill(store: SqlStore, spaces: Sequence[Recording], rows: int) -> float:
    """Store the campaigns; return the seconds spent in the store."""
    waiting: dict[str, list[Measurement]] = {}
    seconds, stored = 0.0, 0
    for found in campaigns(spaces, rows, seed=1):
        name = author(found)
        batch = waiting.setdefault(name, [])
        batch += found
        if len(batch) >= BATCH:
            began = time.perf_counter()
            store.add_all(batch, created_by=name)
            seconds += time.perf_counter() - began
            stored += len(waiting.pop(name))
            if stored // 100_000 > (stored - len(batch)) // 100_000:
                print(f"{stored:,} stored, {stored / seconds:,.0f}/s", flush=True)
    for name, batch in waiting.items():
        store.add_all(batch, created_by=name)
    return seconds


def stored_keys(store: SqlStore) -> list[Any]:
    """Return workload, device, program and toolchain of every campaign."""
    with store.database.read() as session:
        campaigns = session.execute(
            text("select workload_id, hardware_id, program_id, toolchain_id, min(id) "
                 "from measurement group by 1, 2, 3, 4")
        ).all()  # fmt: skip
    found = []
    for start in range(0, len(campaigns), 500):
        ids = [c[-1] for c in campaigns[start : start + 500]]
        rows = store.database.execute(FLAT.where(MeasurementRow.id.in_(ids)), {})
        for record in store.log._reader.records(store.database.ask, rows, None):
            m = record.measurement
            found.append((m.workload, m.hardware.key, m.program_digest, m.toolchain.key))
    return found


def servers(store: SqlStore) -> list[Path]:
    """Return where Linux tells the CPU time of this machine's PostgreSQL servers of our sessions.

    None with SQLite, which works in this process, or with a server elsewhere.
    """
    if store.database.path is not None or store.database.engine.url.host:
        return []
    with store.database.read() as session:
        pids = session.execute(
            text("select pid from pg_stat_activity "
                 "where datname = current_database() and backend_type = 'client backend'")
        ).scalars()  # fmt: skip
        return [path for pid in pids if (path := Path(f"/proc/{pid}/schedstat")).exists()]


def cpu_s(servers: Sequence[Path]) -> float:
    """Return the CPU seconds of this thread and of the servers that answer it."""
    return time.thread_time() + sum(int(p.read_text().split()[0]) for p in servers) / 1e9


def timed(ask: Callable[[], object], count: int, servers: Sequence[Path] = ()) -> dict[str, float]:
    """Return p50 and p99 of ``count`` questions in ms, of the wall and of the CPU.

    On a machine with busy neighbours the wall's p99 tells of them. The CPU's is what a question
    costs this process and its database's, which for SQLite are one.
    """
    wall, cpu = [], []
    for _ in range(count):
        used, began = cpu_s(servers), time.perf_counter()
        ask()
        wall.append((time.perf_counter() - began) * 1e3)
        cpu.append((cpu_s(servers) - used) * 1e3)
    found = {"asked": float(count)}
    for name, took in (("", wall), ("cpu_", cpu)):
        found |= {f"{name}p50_ms": round(statistics.median(took), 3),
                  f"{name}p99_ms": round(float(np.quantile(took, 0.99)), 3)}  # fmt: skip
    return found


class Questions:
    """What users ask, with random parameters."""

    def __init__(self, store: SqlStore, keys: Sequence[Any]) -> None:
        self.store, self.keys = store, keys
        self.rng = np.random.default_rng(7)
        self.kernels = sorted({key[0].kernel for key in keys})
        self.devices = sorted({key[1] for key in keys})
        self.toolchains = sorted({key[3] for key in keys})

    def one(self, values: Sequence[Any]) -> Any:
        return values[self.rng.integers(len(values))]

    def page(self, limit: int = 50, **filters: Any) -> int:
        return len(self.store.page(MeasurementQuery(**filters), limit=limit).items)

    def exact(self) -> dict[str, Any]:
        workload, device, _, _ = self.one(self.keys)
        problem = dict(workload.problem)
        shape = {name: problem[name] for name in ("m", "n", "k", "dtype")}
        return {"kernel": workload.kernel, "hardware_key": device} | shape

    def dates(self) -> dict[str, Any]:
        since = START + timedelta(days=float(self.rng.uniform(0, DAYS - 7)))
        return {"since": since, "until": since + timedelta(days=7)}

    def unseen(self) -> Workload:
        """Return a workload of a known kernel that nobody measured."""
        m, n, k = (int(2 ** self.rng.uniform(5, 14)) for _ in "mnk")
        return Workload.of(self.one(self.kernels), {"m": m, "n": n, "k": k, "dtype": "float16"})

    def all(self) -> dict[str, Callable[[], object]]:
        """Return every question by its name."""
        device, kernel = (lambda: self.one(self.devices)), (lambda: self.one(self.kernels))
        status = lambda: self.one(FAILURES)  # noqa: E731
        tool = lambda: self.one(self.toolchains)  # noqa: E731
        program = lambda: self.one(self.keys)[2]  # noqa: E731
        near = self.unseen
        page = self.page
        return {
            "best of workload, device, program, toolchain": lambda: self.store.best(
                *self.one(self.keys)),
            "best: unknown workload": lambda: self.store.best(near(), *self.one(self.keys)[1:]),
            "top 10 of workload and device": lambda: page(10, best_first=True, **self.exact()),
            "log of workload and device": lambda: page(**self.exact()),
            "newest": page,
            "kernel": lambda: page(kernel=kernel()),
            "device": lambda: page(hardware_key=device()),
            "status (a failure)": lambda: page(status=status()),
            "toolchain": lambda: page(toolchain_key=tool()),
            "a week": lambda: page(**self.dates()),
            "kernel, device, status": lambda: page(
                kernel=kernel(), hardware_key=device(), status=status()),
            "kernel, a week": lambda: page(kernel=kernel(), **self.dates()),
            "device, status, a week": lambda: page(
                hardware_key=device(), status=status(), **self.dates()),
            "toolchain, status": lambda: page(toolchain_key=tool(), status=status()),
            "m alone": lambda: page(m=dict(self.one(self.keys)[0].problem)["m"]),
            "kernel and dtype": lambda: page(kernel=kernel(), dtype="bfloat16"),
            "fastest of all": lambda: page(best_first=True),
            "fastest of kernel and device": lambda: page(
                best_first=True, kernel=kernel(), hardware_key=device()),
            "fastest of kernel in a week": lambda: page(
                best_first=True, kernel=kernel(), **self.dates()),
            **self.of_authors(AUTHORS[0]),
            **self.of_authors("user"),
            "program, fastest": lambda: page(best_first=True, program_digest=program()),
            "program, status": lambda: page(program_digest=program(), status=status()),
            "winners of kernel and device": lambda: page(
                winners=True, kernel=kernel(), hardware_key=device()),
            "winners of the 8 nearest workloads": lambda: page(winners=True, near=near()),
            "log of the 8 nearest workloads": lambda: page(near=near()),
            "what recommend() asks": lambda: self.store.nearest(near()),
            **self.pages(),
        }  # fmt: skip

    def of_authors(self, name: str) -> dict[str, Callable[[], object]]:
        """Return the questions for what those measured whose names begin so."""
        names = [found for found in AUTHORS if found.startswith(name)]

        def page(**filters: Callable[[], Any]) -> Callable[[], object]:
            return lambda: self.page(
                created_by=self.one(names), **{n: value() for n, value in filters.items()}
            )

        kernel, device = (lambda: self.one(self.kernels)), (lambda: self.one(self.devices))
        return {
            f"{name}: log": page(),
            f"{name}: status": page(status=lambda: self.one(FAILURES)),
            f"{name}: kernel, device": page(kernel=kernel, hardware_key=device),
            f"{name}: fastest": page(best_first=lambda: True),
            f"{name}: fastest of kernel and device": page(
                best_first=lambda: True, kernel=kernel, hardware_key=device),
            f"{name}: winners of kernel and device": page(
                winners=lambda: True, kernel=kernel, hardware_key=device),
            f"{name}: a workload": lambda: self.page(created_by=self.one(names), **self.exact()),
        }  # fmt: skip

    def pages(self) -> dict[str, Callable[[], object]]:
        """Return the questions for pages at depths, in three orders."""
        found: dict[str, Callable[[], object]] = {}
        for title, query in (
            ("log", MeasurementQuery()),
            ("log of a kernel", MeasurementQuery(kernel=self.kernels[0])),
            ("fastest of a kernel", MeasurementQuery(kernel=self.kernels[0], best_first=True)),
        ):
            for name, share in (("start", 0.0), ("half", 0.5), ("end", 0.9995)):
                after = self.depth(query, share)
                found[f"page at {name}: {title}"] = lambda q=query, a=after: self.store.page(
                    q, limit=50, after=a
                )
        return found

    def depth(self, query: MeasurementQuery, share: float) -> tuple[float, int] | None:
        """Return the key of a record that deep in the log."""
        if share == 0.0:
            return None
        with self.store.database.read() as session:
            column, way = ("time_s", "asc") if query.best_first else ("measured_at", "desc")
            where = "where f.status = 'OK'" if query.best_first else "where 1 = 1"
            if query.kernel:
                where += f" and f.kernel = '{query.kernel}'"
            base = f"from measurement m join facet f on f.id = m.facet_id {where}"
            total = session.execute(text(f"select count(*) {base}")).scalar_one()
            number = session.execute(
                text(f"select m.id {base} order by m.{column} {way}, m.id {way} limit 1 offset :n"),
                {"n": int(total * share)},
            ).scalar_one()
            at, time_s = session.execute(
                text("select measured_at, time_s from measurement where id = :i"), {"i": number}
            ).one()
        if query.best_first:
            return time_s, number
        at = at if isinstance(at, datetime) else datetime.fromisoformat(at).replace(tzinfo=UTC)
        return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1), number


def history(store: SqlStore, questions: Questions) -> dict[str, dict[str, float]]:
    """Return how long the newest 2,000 of a kernel take, read and remembered."""
    kernels = iter(questions.kernels * 3)

    def read_again() -> None:
        store._recent.clear()
        store.measurements(kernel=next(kernels), only_ok=True, limit=2000)

    name = questions.kernels[0]
    cold = timed(read_again, 2 * len(questions.kernels), servers(store))
    store.measurements(kernel=name, only_ok=True, limit=2000)
    warm = timed(lambda: store.measurements(kernel=name, only_ok=True, limit=2000), 100)
    return {"newest 2,000 of a kernel, read": cold, "newest 2,000 of a kernel, remembered": warm}


def insert_rates(store: SqlStore, spaces: Sequence[Recording]) -> dict[str, float]:
    """Return inserts per second, one at a time and in batches of 1,000, into the full log."""
    more = [m for found in campaigns(spaces, 4_400, seed=2) for m in found]
    began = time.perf_counter()
    for m in more[:400]:
        store.add(m)
    single = 400 / (time.perf_counter() - began)
    began = time.perf_counter()
    for start in range(400, 4_400, BATCH):
        store.add_all(more[start : start + BATCH])
    return {"single_per_s": single, "batched_per_s": 4_000 / (time.perf_counter() - began)}


def _write(url: str, name: int, run: int, epoch: int, example: Measurement, faults: Any) -> None:
    try:
        store = SqlStore(open_database(url))
        slowest = 0.0
        for n in range(WRITES):
            began = time.perf_counter()
            config = TileConfig.of(writer=name, number=n)
            store.add(replace(example, config=config, worker=f"writer-{name}"))
            store.runs.add_time(run, 1.0, 0.0, epoch)
            slowest = max(slowest, time.perf_counter() - began)
        faults.put(("", slowest))
    except Exception as error:  # noqa: BLE001  reported by the parent
        faults.put((repr(error), 0.0))


def writers(url: str, example: Measurement) -> dict[str, Any]:
    """Let 32 processes add records and count up one number; return what was lost."""
    store = SqlStore(open_database(url))
    spec = {"benchmark": "writers"}
    run, _ = store.runs.create(
        NewRun(
            workload=example.workload, hardware=example.hardware, toolchain=example.toolchain,
            program_digest="p", spec=spec, body_hash=digest(spec),
        )
    )  # fmt: skip
    epoch = store.leader.acquire("benchmark", 3600, is_gone=lambda _: True)  # an earlier benchmark
    before = store.count_measurements()
    store.database.close()
    context = multiprocessing.get_context("fork")
    faults = context.Queue()
    started = [
        context.Process(target=_write, args=(url, name, run.id, epoch, example, faults))
        for name in range(WRITERS)
    ]
    began = time.perf_counter()
    for process in started:
        process.start()
    reports = [faults.get(timeout=300) for _ in started]
    for process in started:
        process.join()
    took = time.perf_counter() - began
    store = SqlStore(open_database(url))
    expected = WRITERS * WRITES
    return {
        "writers": WRITERS,
        "errors": [fault for fault, _ in reports if fault],
        "records_lost": expected - (store.count_measurements() - before),
        "updates_lost": expected - round(store.runs.get(run.public_id).active_s),
        "transactions_per_s": 2 * expected / took,
        "slowest_write_s": max(slowest for _, slowest in reports),
    }


def versions(store: SqlStore) -> dict[str, str]:
    """Return what was measured."""
    found = {"python": platform.python_version(), "sqlalchemy": sqlalchemy.__version__}
    if store.database.path is not None:
        return found | {"sqlite": sqlite3.sqlite_version}
    with store.database.read() as session:
        shown = session.execute(text("show server_version")).scalar_one()
    return found | {"postgresql": str(shown)}


def measure(url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Fill a database, ask, and return everything that was measured."""
    spaces = read(args.folder)
    database = Database(url)
    upgrade(database)
    database.close()
    store = SqlStore(open_database(url))
    report: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "versions": versions(store)}
    if not args.filled:
        report["fill_per_s"] = args.rows / fill(store, spaces, args.rows)
    report |= {"rows": store.count_measurements(), "load_average": os.getloadavg()[0]}
    if args.fill_only:
        return report
    if store.database.path is not None:
        report["bytes_per_row"] = round(store.database.path.stat().st_size / report["rows"])
    else:
        with store.database.read() as session:
            session.execute(text("analyze"))
    questions = Questions(store, stored_keys(store))
    report["queries"] = {}
    for name, ask in questions.all().items():
        ask()
        count = args.asked * 5 if name.startswith("best") else args.asked
        report["queries"][name] = found = timed(ask, count, servers(store))
        shown = "  ".join(f"{key} {value:8.2f}" for key, value in found.items() if key != "asked")
        print(f"{name:46} {shown}", flush=True)
    report["queries"] |= history(store, questions)
    report["inserts"] = insert_rates(store, spaces)
    example = next(campaigns(spaces, 1, seed=3))[0]
    store.database.close()
    report["concurrent"] = writers(url, example)
    report["load_average_after"] = os.getloadavg()[0]
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--asked", type=int, default=400, help="questions of each kind")
    parser.add_argument("--url", help="an empty database; default: SQLite in a temporary folder")
    parser.add_argument("--fill-only", action="store_true", help="ask nothing yet")
    parser.add_argument("--filled", action="store_true", help="the database was filled before")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tilecore-database-") as scratch:
        report = measure(args.url or f"sqlite:///{scratch}/tilecore.db", args)
    shown = json.dumps(report, indent=1)
    print(shown)
    if args.json:
        args.json.write_text(shown + "\n")


if __name__ == "__main__":
    main()
