"""A year of a cluster in its database: every route, page and command, and how long each takes.

    python -m benchmarks.year [--rows 1000000] [--url URL] [--json FILE]

Runs of kernels of the library and of 200 sent programs are made on this host and nine GPUs, as
tuning leaves them: each with its trials, events, measurements and repeats, the fastest ten
confirmed, some cancelled or failed, a few hundred still open. Configs are those of the kernel's
space, times what the model says, with noise. Beside them are studies, of which one has 20,000 told
trials, keys, models and lost nodes. Then a service answers every route and page, and every command
of the command line runs, one after the other.

Without --url, an SQLite file in a temporary folder, deleted afterwards. Another database must be
empty and migrated (`tilecore migrate`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from sqlalchemy import insert, text

from db.identities import config_ids, of_runs
from db.migrate import open_database, upgrade
from db.models import EventRow, NodeRow, RunRow, TrialRow
from db.records import NewRun
from db.rows import add_measurements
from db.service_models import StudyTrialRow
from db.session import Database
from db.store import SqlStore
from recommender.analytic import estimate
from recommender.errors import EmptySpace
from recommender.external import ExternalSpace
from recommender.hardware import HardwareProfile, load_profile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from recommender.space import SearchSpace
from recommender.workload import Workload, kernel_name
from tests.tuner_service.serving import ServiceProcess
from tilecore import kernels
from tilecore.tile_config import TileConfig, digest
from tuner_service.settings import Settings
from tuner_service.studies.ask_tell import StudyEngine
from tuner_service.wiring import detected_host, host_toolchain

DAYS, TOOLCHAINS, PROGRAMS, CONFIRMED = 365, 12, 200, 10
SIZES = (8, 24, 24, 48, 96, 96, 240)  # trials of runs
RUNS_PER_TRANSACTION = 40
AUTHORS = (None, "nightly", *(f"user {n}" for n in range(30)))
GPUS = (
    "h100-sxm", "h200", "a100-80gb", "b200", "l40s", "rtx-4090", "v100", "mi300x", "l4",
)  # fmt: skip
FAILURES = (
    (MeasureStatus.COMPILE_ERROR, "TC310 needs 98304 B of shared memory, a block has 65536"),
    (MeasureStatus.RUN_TIMEOUT, "no answer for 60 s"),
    (MeasureStatus.WRONG_RESULT, "element (3, 17): expected 0.25, found nan"),
    (MeasureStatus.WORKER_LOST, "the worker's process ended by signal 9"),
)
STUDY = {"block": [2**i for i in range(10)], "warps": [1, 2, 4, 8, 16], "stages": list(range(1, 9)),
         "split": list(range(1, 9)), "group": list(range(1, 9)), "unroll": [1, 2, 4]}  # fmt: skip
STUDIES, TOLD = 120, 20_000  # studies; trials of the largest one


@dataclass(frozen=True)
class Candidates:
    """Configs of a kernel on a device, with the times that a model gives them at one problem."""

    configs: tuple[TileConfig, ...]
    time_s: np.ndarray


class Year:
    """Makes the runs of a year."""

    def __init__(self, rng: np.random.Generator, host: HardwareProfile) -> None:
        self.rng = rng
        self.devices = [host, *map(load_profile, GPUS)]
        base = host_toolchain()
        self.toolchains = [
            *(Toolchain(tilecore=f"t{i}", tvm="0.27", llvm="22") for i in range(TOOLCHAINS - 1)),
            base,
        ]
        self.names = [*kernels.KERNELS, *(kernel_name(digest([i])) for i in range(PROGRAMS))]
        self.problems = {name: _problems(name, rng) for name in self.names}
        self._candidates: dict[tuple[str, str], Candidates] = {}

    def candidates(self, kernel: str, device: HardwareProfile) -> Candidates:
        """Return what may be measured of a kernel on a device."""
        key = (kernel, device.key)
        if key not in self._candidates:
            try:
                self._candidates[key] = self._made(kernel, device)
            except EmptySpace:  # the device has none of what the kernel's programs need
                self._candidates[key] = self._made(self.names[0], device)
        return self._candidates[key]

    def _made(self, kernel: str, device: HardwareProfile) -> Candidates:
        definition = kernels.KERNELS.get(kernel)
        if definition is None:
            configs = tuple(
                TileConfig.of(block_M=m, block_N=n, block_K=k, num_stages=s, threads=t)
                for m in (16, 32, 64, 128) for n in (32, 64, 128, 256)
                for k in (16, 32, 64) for s in (1, 2, 3) for t in (128, 256)
            )  # fmt: skip
            return Candidates(configs, self.rng.lognormal(-8.0, 0.7, len(configs)))
        problem = dict(self.problems[kernel][0].problem)
        space = SearchSpace.build(definition, problem, device)
        rows = self.rng.choice(len(space), min(len(space), 600), replace=False)
        configs = tuple(space.config(int(row)) for row in rows)
        return Candidates(configs, estimate(space, space.table(list(configs))).time_s)

    def run(self, share: float) -> tuple[NewRun, datetime, list[Measurement]]:
        """Return a run that began when so much of the year was over, and what it measured."""
        rng = self.rng
        kernel = self.names[min(int(rng.exponential(20)), len(self.names) - 1)]
        device = self.devices[min(int(rng.exponential(2.5)), len(self.devices) - 1)]
        problems = self.problems[kernel]
        workload = problems[min(int(rng.exponential(12)), len(problems) - 1)]
        toolchain = self.toolchains[int(share * TOOLCHAINS)].on(device.kind)
        began = datetime.now(UTC) - timedelta(days=DAYS * (1 - share))
        size = int(rng.choice(SIZES))
        new = NewRun(
            workload=workload, hardware=device, toolchain=toolchain,
            program_digest=digest([kernel, toolchain.tilecore]),
            spec={"max_trials": size, "time_limit_s": 900.0}, body_hash="b" * 32,
            planned_trials=size, created_by=AUTHORS[int(rng.integers(len(AUTHORS)))],
            group=str(uuid.UUID(int=int(share * 4000))) if rng.random() < 0.5 else None,
            cause="stale" if rng.random() < 0.1 else None,
        )  # fmt: skip
        return new, began, self._measured(new, began, size)

    def _measured(self, new: NewRun, began: datetime, size: int) -> list[Measurement]:
        rng, known = self.rng, self.candidates(new.workload.kernel, new.hardware)
        factor = float(rng.lognormal(0.0, 1.5))
        rows = rng.choice(len(known.configs), min(size, len(known.configs)), replace=False)
        common: dict[str, Any] = {
            "workload": new.workload, "hardware": new.hardware, "toolchain": new.toolchain,
            "program_digest": new.program_digest, "threads": 1, "compile_s": 0.2,
            "worker": f"node-{int(rng.integers(24))}/0", "driver": "580.95",
            "metrics": {"load": 0.5, "registers": 64.0},
        }  # fmt: skip
        found = []
        for number, row in enumerate(rows):
            at = began + timedelta(seconds=number)
            own: dict[str, Any] = {"config": known.configs[row], "measured_at": at}
            own |= {"protocol": Protocol.SCREEN}
            if rng.random() < 0.12:
                status, detail = FAILURES[int(rng.choice(4, p=[0.8, 0.1, 0.07, 0.03]))]
                found.append(Measurement(**common, **own, status=status, detail=detail))
                continue
            times = known.time_s[row] * factor * rng.normal(1.0, 0.02, 3).clip(0.9)
            found.append(
                Measurement(**common, **own, status=MeasureStatus.OK, times_s=tuple(times.tolist()))
            )
        good = sorted((m for m in found if m.times_s), key=lambda m: m.times_s[0])[:CONFIRMED]
        for m in good:
            times = m.times_s[0] * rng.normal(1.0, 0.01, 10).clip(0.9)
            own = {"config": m.config, "measured_at": m.measured_at + timedelta(seconds=size)}
            own |= {"protocol": Protocol.CONFIRM, "times_s": tuple(times.tolist())}
            own |= {"reference_times_s": tuple((times * 1.1).tolist())}
            found.append(Measurement(**common | {"threads": 2}, **own, status=MeasureStatus.OK))
        return found


def _problems(kernel: str, rng: np.random.Generator) -> list[Workload]:
    """Return problems that people have of a kernel."""
    definition = kernels.KERNELS.get(kernel)
    found: dict[str, Workload] = {}
    for _ in range(60):
        size = lambda: int(2 ** rng.integers(8, 13))  # noqa: E731
        given: dict[str, Any] = {"m": size(), "n": size(), "k": size(), "dtype": "float32"}
        if definition is not None:
            heads, sequence, dim = 16, size(), 128
            small = {
                "batch": 2, "heads": heads, "kv_heads": heads, "seq_q": sequence,
                "seq_kv": sequence, "seq_len": sequence, "dim": dim, "dim_v": dim, "experts": 4,
                "height": 64, "width": 64, "channels": 128, "filters": 128,
            }  # fmt: skip
            if kernel == "decode_attention":
                small["seq_q"] = 1
            names = [f.name for f in definition.fields if f.default is None]
            given = {n: small.get(n, given.get(n)) for n in names}
            if kernel in ("batched_gemm", "conv2d"):
                given["batch"] = int(rng.integers(1, 65))
            given = dict(definition.parse_problem(given))
        made = Workload.of(kernel, given)
        found[made.key] = made
    return list(found.values())


def fill(store: SqlStore, rows: int) -> dict[str, float]:
    """Store the runs of a year, oldest first; return how many of everything and the seconds."""
    year = Year(np.random.default_rng(1), detected_host())
    began, stored, runs = time.perf_counter(), 0, 0
    while stored < rows:
        batch = []
        while len(batch) < RUNS_PER_TRANSACTION and stored < rows:
            batch.append(year.run(min(stored / rows, 0.9999)))
            stored += len(batch[-1][2])
        _store(store, year.rng, batch)
        runs += len(batch)
        if runs % 1000 == 0:
            print(f"{runs:,} runs, {stored:,} measurements", flush=True)
    _open(store, year)
    _studies(store)
    _nodes(store, year)
    return {"runs": runs, "rows": stored, "fill_s": round(time.perf_counter() - began, 1)}


def _store(
    store: SqlStore,
    rng: np.random.Generator,
    batch: Sequence[tuple[NewRun, datetime, Sequence[Measurement]]],
) -> None:
    """Store finished runs, and all that belongs to them, in one transaction."""
    with store.database.write() as session:
        now = store.database.now(session)
        refer = of_runs(session, [new for new, _, _ in batch], now)
        configs = config_ids(session, [m.config for _, _, found in batch for m in found])
        connection = session.connection()
        ids = _insert(connection, RunRow, [
            _run(new, began, found, ids, str(rng.choice(STATES, p=SHARES)))
            for (new, began, found), ids in zip(batch, refer, strict=True)
        ])  # fmt: skip
        flat = [(run, n, new, m) for run, (new, _, found) in zip(ids, batch, strict=True)
                for n, m in enumerate(found)]  # fmt: skip
        trials = _insert(connection, TrialRow, [
            {
                "run_id": run, "config_id": configs[m.config], "protocol": m.protocol.value,
                "purpose": "default" if n == 0 else "search", "sequence": n, "attempt": 1,
                "state": "failed" if m.status is MeasureStatus.WORKER_LOST else "done",
            }
            for run, n, _, m in flat
        ])  # fmt: skip
        add_measurements(
            session, [m for *_, m in flat], now, trials, [new.created_by for _, _, new, _ in flat]
        )
        events = [
            {"run_id": run, "at": m.measured_at, "kind": "trial", "payload": {
                "sequence": n, "purpose": "search", "protocol": m.protocol.value,
                "status": m.status.value, "time_s": m.time_s, "config": dict(m.config.items_),
                "reference_time_s": m.reference_time_s, "detail": m.detail}}
            for run, n, _, m in flat
        ]  # fmt: skip
        for run, (_, at, _) in zip(ids, batch, strict=True):
            kinds = ("queued", "started", "succeeded")
            events += [{"run_id": run, "at": at, "kind": kind, "payload": {}} for kind in kinds]
        connection.execute(insert(EventRow.__table__), events)


STATES, SHARES = ("SUCCEEDED", "FAILED", "CANCELLED"), (0.93, 0.03, 0.04)


def _insert(connection: Any, row: Any, values: Sequence[Mapping[str, Any]]) -> list[int]:
    statement = insert(row.__table__).returning(row.id, sort_by_parameter_order=True)
    return list(connection.execute(statement, values).scalars())


def _run(
    new: NewRun, began: datetime, found: Sequence[Measurement], refer: Mapping[str, int], state: str
) -> dict[str, Any]:
    ended = began + timedelta(seconds=2.0 * len(found))
    best = min((m for m in found if m.time_s), key=lambda m: m.time_s or 0.0, default=None)
    result = None if best is None else {"best": {
        "config": dict(best.config.items_), "latency_us": (best.time_s or 0.0) * 1e6,
        "protocol": best.protocol.value,
    }, "trials": {"OK": len(found)}}  # fmt: skip
    return {
        "public_id": str(uuid.uuid4()), "body_hash": new.body_hash, "group_id": new.group,
        "state": state, "priority": new.priority, **refer, "spec": dict(new.spec),
        "created_by": new.created_by, "cause": new.cause, "seed": 0,
        "planned_trials": new.planned_trials, "created_at": began, "started_at": began,
        "finished_at": ended, "active_s": 60.0, "device_s": 60.0,
        "result": result if state == "SUCCEEDED" else None,
        "error": "WK701 the worker was lost" if state == "FAILED" else None,
    }  # fmt: skip


def _open(store: SqlStore, year: Year) -> None:
    """Queue runs that nobody works on."""
    store.runs.create_all([year.run(0.9999)[0] for _ in range(300)])


def _studies(store: SqlStore) -> None:
    """Store studies; the first one has the most trials."""
    space = ExternalSpace({name: tuple(values) for name, values in STUDY.items()})
    engine = StudyEngine(store)
    for number in range(STUDIES):
        study, _ = engine.create(
            space, name=f"study {number % 7}", hardware="H100", strategy="model",
            max_trials=50_000, seed=number, created_by="alice", idempotency_key=None,
        )  # fmt: skip
        count = TOLD if number == 0 else 100
        with store.database.write() as session:
            now = store.database.now(session)
            values = [
                {
                    "study_id": study.id, "row": row, "worker": "w", "attempt": 1, "detail": "",
                    "config": space.config(row), "lease_until": now, "told_at": now,
                    "state": "ok", "time_s": 1e-3 * (1 + row % 97),
                    "times_s": [1e-3 * (1 + row % 97)] * 5,
                }
                for row in range(count)
            ]  # fmt: skip
            session.connection().execute(insert(StudyTrialRow.__table__), values)


def _nodes(store: SqlStore, year: Year) -> None:
    """Store the machines of a year: thousands that came and went."""
    with store.database.write() as session:
        now = store.database.now(session)
        ids = session.execute(text("select id from hardware order by id")).scalars().all()
        values = [
            {
                "key": digest([number]), "name": f"node-{number}", "devices": 8, "detail": "",
                "hardware_id": ids[number % len(ids)], "joined_at": now, "seen_at": now,
                "state": "active" if number < 24 else "lost",
            }
            for number in range(3000)
        ]  # fmt: skip
        session.connection().execute(insert(NodeRow.__table__), values)


Asked = tuple[str, str, dict[str, Any]]  # method, path, query or body
Got = tuple[str, dict[str, Any]]  # path and query
PROBLEM = {"m": 512, "n": 1024, "k": 512}
FINISHED, OPEN = ("SUCCEEDED", "FAILED"), ("QUEUED", "RUNNING", "PAUSED")


class Questions:
    """What operators and users ask of a service, by name: method, path, query or body."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        with store.database.read() as session:
            self._one = lambda query: session.execute(text(query)).scalars().first()
            self.run = self._one(
                "select public_id from tuning_run where state = 'SUCCEEDED' "
                "order by planned_trials desc, id limit 1"
            )
            self.oldest = self._one("select public_id from tuning_run order by id limit 1")
            self.group = self._one(
                "select group_id from tuning_run where group_id is not null "
                "group by group_id order by count(*) desc limit 1"
            )
            self.rare = self._one("select kernel from workload order by id desc limit 1")
            self.workload, self.device = session.execute(
                text(
                    "select w.key, h.key from tuning_run r join workload w on w.id = r.workload_id "
                    "join hardware h on h.id = r.hardware_id where w.kernel = 'gemm' "
                    "group by w.key, h.key order by count(*) desc limit 1"
                )
            ).one()
            self.study = self._one("select public_id from study order by id limit 1")
            self.program = self._one("select digest from program order by id desc limit 1")
            self.toolchain = self._one("select key from toolchain order by id limit 1")

    def all(self) -> dict[str, Asked]:
        """Return every question by its name."""
        got = [*self._runs(), *self._studies(), *self._pages(), *self._log(), *self._exports()]
        found: dict[str, Asked] = {}
        for path, given in got:
            shown = " ".join(f"{n}={v}" for n, v in given.items())
            found[f"GET {path} {shown}".strip()] = ("GET", path, given)
        return found | self._posted()

    def _runs(self) -> Iterator[Got]:
        filters: list[dict[str, Any]] = [{"state": state} for state in (*FINISHED, *OPEN)]
        filters += [{"kernel": name} for name in ("gemm", "reduction", "nothing", self.rare)]
        filters += [{"created_by": name} for name in ("nightly", "nobody")]
        filters += [{}, {"group": self.group}, {"kernel": self.rare, "state": "FAILED"}]
        for base in ("/v1/tuning-runs", "/dashboard/runs"):
            yield from ((base, given) for given in filters)
        yield "/v1/tuning-runs", {"limit": 200}
        for run in (self.run, self.oldest):
            for part in ("", "/trials", "/result", "/events"):
                yield f"/v1/tuning-runs/{run}{part}", {}
            yield f"/dashboard/runs/{run}", {}
        yield f"/v1/run-groups/{self.group}", {}

    def _studies(self) -> Iterator[Got]:
        yield f"/v1/studies/{self.study}", {}
        yield f"/v1/studies/{self.study}/trials", {"limit": 200}
        yield f"/dashboard/studies/{self.study}", {}
        yield f"/dashboard/studies/{self.study}", {"order": "time", "start": TOLD - 500}

    def _pages(self) -> Iterator[Got]:
        for path in (
            "healthz", "readyz", "metrics", "v1/kernels", "v1/hardware", "v1/hardware/h100",
            "v1/nodes", "v1/models", "v1/keys", "v1/programs", "v1/studies", "v1/database/removed",
            "dashboard", "dashboard/studies", "dashboard/recommend",
        ):  # fmt: skip
            yield f"/{path}", {}
        yield "/v1/nodes", {"with_lost": "true", "limit": 200}
        yield "/dashboard/workload", {"workload": self.workload, "hardware": self.device}
        problem = {f"problem.{name}": size for name, size in PROBLEM.items()}
        yield "/dashboard/recommend", {"kernel": "gemm", "hardware": "h100", **problem}

    def _log(self) -> Iterator[Got]:
        long_ago, day = (
            f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%dT00:00:00Z}" for days in (200, 2)
        )
        filters: list[dict[str, Any]] = [
            {}, {"best": "true"}, {"best_per": "workload"}, {"status": "WORKER_LOST"},
            {"kernel": "gemm", "best_per": "workload"}, {"kernel": self.rare},
            {"kernel": "gemm", "near": "m=1000,n=1024,k=512"}, {"threads": 2}, {"m": 4096},
            {"m": 4096, "status": "WRONG_RESULT"}, {"dtype": "float32"}, {"dtype": "int8"},
            {"created_by": "nightly"}, {"created_by": "nobody"}, {"since": long_ago},
            {"until": long_ago, "best": "true"}, {"since": day, "best": "true"},
            {"since": day, "best_per": "workload"}, {"run": self.run}, {"run": self.oldest},
            {"program": self.program}, {"toolchain": self.toolchain},
            {"toolchain": self.toolchain, "until": long_ago},
            {"hardware": "v100", "status": "RUN_TIMEOUT"}, {"workload": self.workload},
            {"created_by": "user 3", "kernel": self.rare, "best": "true"},
            {"protocol": "confirm", "best": "true", "since": long_ago, "status": "OK"},
        ]  # fmt: skip
        for base in ("/v1/measurements", "/dashboard/log"):
            yield from ((base, given) for given in filters)

    def _exports(self) -> Iterator[Got]:
        space = {"workload": self.workload, "hardware": self.device}
        for form in ("csv", "t4", "parquet"):
            yield "/v1/measurements/export", {"format": form, **space}
        yield "/v1/measurements/export", {"format": "csv", "kernel": "gemm", "status": "OK"}

    def _posted(self) -> dict[str, Asked]:
        ask, gemm = "/v1/recommendations", {"kernel": "gemm", "problem": PROBLEM}
        odd = {"kernel": "gemm", "problem": {"m": 700, "n": 333, "k": 512}}
        suggest = f"/v1/studies/{self.study}/trials:suggest"
        return {
            "POST recommendation": ("POST", ask, gemm),
            "POST recommendation, H100": ("POST", ask, gemm | {"hardware": "h100"}),
            "POST recommendation, never measured": ("POST", ask, odd),
            f"POST suggest, {TOLD:,} told": ("POST", suggest, {"worker": "w1", "count": 1}),
            "POST compact, dry": ("POST", "/v1/database:compact", {"dry_run": True}),
        }


def sweep(
    service: ServiceProcess, questions: Mapping[str, Asked], repeats: int
) -> dict[str, dict[str, Any]]:
    """Return what became of each question: status, bytes, first and median milliseconds.

    And the CPU's milliseconds that one takes the service, to ten over the number of repeats: on a
    machine with busy neighbours the others tell of them.
    """
    found: dict[str, dict[str, Any]] = {}
    with httpx.Client(base_url=service.url, timeout=600) as client:
        for name, (method, path, given) in questions.items():
            took, answer, used = [], None, _cpu_s(service)
            for _ in range(repeats):
                began = time.perf_counter()
                if method == "GET":
                    answer = client.get(path, params=given)
                else:
                    answer = client.post(path, json=given)
                took.append((time.perf_counter() - began) * 1e3)
                if took[0] > SLOW_MS and len(took) > 1:
                    break
            assert answer is not None
            found[name] = {
                "status": answer.status_code, "bytes": len(answer.content),
                "first_ms": round(took[0], 1), "median_ms": round(statistics.median(took[1:]), 1),
                "cpu_ms": round((_cpu_s(service) - used) * 1e3 / len(took), 1),
            }  # fmt: skip
            mark = " <-- slow" if took[0] > SLOW_MS else ""
            shown = f"{answer.status_code} {took[0]:9.1f} {found[name]['median_ms']:9.1f}"
            shown += f" {found[name]['cpu_ms']:9.1f}"
            print(f"{shown} {len(answer.content):10,} {name}{mark}", flush=True)
    return found


SLOW_MS = 1000.0


def _cpu_s(service: ServiceProcess) -> float:
    """Return the CPU seconds of a service and the processes that answer for it."""
    own = psutil.Process(service.process.pid)
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def serving(url: str, folder: str) -> ServiceProcess:
    """Return a service of the database, without a coordinator."""
    settings = Settings(data_dir=Path(folder), database_url=url, answer_processes=1)
    return ServiceProcess(settings, options=["--no-coordinator"])


COMMANDS = (
    "runs", "runs --state FAILED", "measurements", "measurements --kernel gemm --best",
    "log", "log --winners --kernel gemm", "log --near m=1000,n=1024,k=512 --kernel gemm",
    "recommend gemm --m 512 --n 1024 --k 512", "node list", "keys list", "model list",
    "db compact --dry-run",
)  # fmt: skip


def commands(url: str, folder: str) -> dict[str, float]:
    """Return the CPU's seconds of every command."""
    environment = os.environ | {"TILECORE_DATABASE_URL": url, "TILECORE_DATA_DIR": folder}
    found = {}
    for command in COMMANDS:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        program = [sys.executable, "-c", "from tuner_service.cli.app import main; main()"]
        done = subprocess.run(
            [*program, *command.split()], env=environment, capture_output=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found[command] = round(used, 2)
        print(f"{done.returncode} {found[command]:7.2f} s  tilecore {command}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--url", help="an empty database; default: SQLite in a temporary folder")
    parser.add_argument("--filled", action="store_true", help="the database was filled before")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tilecore-year-") as folder:
        url = args.url or f"sqlite:///{folder}/tilecore.db"
        report = measure(url, folder, args)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


def measure(url: str, folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Fill a database, ask everything, and return what was measured."""
    report: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}"}
    database = Database(url)
    upgrade(database)
    database.close()
    began = time.perf_counter()
    store = SqlStore(open_database(url))
    report["open_s"] = round(time.perf_counter() - began, 3)
    if not args.filled:
        report |= fill(store, args.rows)
    questions = Questions(store).all()
    began = time.perf_counter()
    with serving(url, folder) as service:
        report["start_s"] = round(time.perf_counter() - began, 2)
        report["questions"] = sweep(service, questions, args.repeats)
        memory = psutil.Process(service.process.pid).memory_info().rss
        report["service_mib"] = round(memory / 2**20)
    report["commands"] = commands(url, folder)
    print({name: value for name, value in report.items() if not isinstance(value, dict)})
    return report


if __name__ == "__main__":
    main()
