"""How throughput grows with devices, and what the coordinator itself can do.

python -m benchmarks.scale --out benchmarks/results/scale_DATE.md

Devices are stand-ins that sleep for recorded times; coordinator, Ray, PostgreSQL and child
processes are the real ones, all on this machine. Rates are those of the steady state: from the
record that is 2 per device on to the last that screening gives.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from db.migrate import open_database, upgrade
from db.records import NewTrial, RunRecord
from db.session import Database
from db.store import SqlStore
from recommender.measurement import Measurement, Protocol
from recommender.ports import MeasureRequest
from tests.chaos.site import Site
from tests.postgres import database, server_url
from tests.tuner_service.table_measurer import TableMeasurer
from tuner_service import wiring
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.station import Station
from tuner_service.jobs import Effort, submit
from tuner_service.questions import understand

DEVICES = (1, 2, 4, 8)
PER_DEVICE = 36  # trials in the steady state
BODY = {"kernel": "gemm", "problem": {"m": 512, "n": 512, "k": 512}, "time_limit_s": 36_000}
BATCH = 16


def devices_rate(devices: int, repeats: float) -> tuple[float, float]:
    """Return trials per second, and the mean seconds that one sleeps."""
    with (
        tempfile.TemporaryDirectory(prefix="tcscale", dir="/tmp") as folder,
        Site(Path(folder), repeats=repeats, coordinators=1, nodes=["one"], devices=devices) as site,
    ):
        first = 2 * devices
        trials = first + PER_DEVICE * devices
        run_id = site.queue(BODY | {"max_trials": trials + 2 * devices}, "scale")
        site.wait_for_records(trials, 900)
        run = site.run(run_id)
        found = [t.measurement for t in site.store.trials.of_run(run.id, state="done")][:trials]
        events = [e.at for e in _events(site.store, run) if e.kind == "trial"][:trials]
        seconds = (events[-1] - events[first - 1]).total_seconds()
        slept = [m.time_s * repeats for m in found[first:] if m is not None and m.time_s]
        return (len(events) - first) / seconds, sum(slept) / len(slept)


def _events(store: SqlStore, run: RunRecord) -> list:
    found: list = []
    while new := store.runs.events(run.id, after=found[-1].id if found else 0):
        found += new
    return found


class InstantMeasurer(TableMeasurer):
    """Many devices that need no time: what is left is the coordinator's own work."""

    devices = 64

    def collect(self, timeout_s: float) -> list[tuple[MeasureRequest, Measurement]]:
        found = [(r, self._measure(r)) for r in self._queue]
        self._queue.clear()
        return found


def coordinator_rate(store: SqlStore, trials: int) -> float:
    """Return trials per second of a whole run whose devices need no time: search and database."""
    question = understand(store, "gemm", {"m": 512, "n": 512, "k": 512})
    submit(store, question, Effort(max_trials=trials, time_limit_s=3600.0))
    epoch = store.leader.acquire("bench", 3600.0)
    assert epoch is not None
    measurer = InstantMeasurer(question.hardware, toolchain=wiring.host_toolchain())
    station = Station(store, measurer, epoch, Limits())
    start = time.perf_counter()
    station.step(0.0)
    while not station.is_idle:
        station.step(0.0)
    elapsed = time.perf_counter() - start
    done = store.count_measurements()
    store.leader.release(epoch)
    return done / elapsed


def database_rate(store: SqlStore, trials: int) -> float:
    """Return trials per second that are proposed, leased and accepted, without any search."""
    question = understand(store, "gemm", {"m": 256, "n": 512, "k": 512})
    run, _ = submit(store, question, Effort(max_trials=trials, time_limit_s=3600.0))
    epoch = store.leader.acquire("bench", 3600.0)
    assert epoch is not None
    store.runs.start(run, epoch)
    measurer = InstantMeasurer(question.hardware, toolchain=wiring.host_toolchain())
    configs = _configs(question, trials)
    start = time.perf_counter()
    for i in range(0, len(configs), BATCH):
        new = [
            NewTrial(config=c, protocol=Protocol.SCREEN, purpose="search")
            for c in configs[i : i + BATCH]
        ]
        store.trials.add(run.id, new, epoch)
        claimed = store.trials.claim(run.id, epoch, BATCH, 600.0)
        requests = [
            MeasureRequest(
                token=f"{t.id}:1", workload=run.workload, config=t.config, protocol=t.protocol
            )
            for t in claimed
        ]
        measurer.submit(requests)
        measured = [m for _, m in measurer.collect(0.0)]
        store.trials.accept_all(list(zip(claimed, measured, strict=True)), epoch)
    elapsed = time.perf_counter() - start
    store.leader.release(epoch)
    return len(configs) / elapsed


def _configs(question, count: int) -> Sequence:
    from recommender.space import SearchSpace

    space = SearchSpace.build(
        question.definition, dict(question.workload.problem), question.hardware
    )
    return [space.config(i) for i in range(min(count, len(space)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=float, default=130.0, help="recorded times per trial")
    parser.add_argument("--trials", type=int, default=1000, help="of the coordinator's own rates")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = ["| devices | trials/s | ideal | efficiency |", "|---|---|---|---|"]
    for devices in DEVICES:
        rate, slept_s = devices_rate(devices, options.repeats)
        ideal = devices / slept_s
        lines.append(f"| {devices} | {rate:.2f} | {ideal:.2f} | {rate / ideal:.2f} |")
        print(lines[-1], f"(mean {slept_s:.2f} s, load {os.getloadavg()[0]:.1f})", flush=True)
    lines += ["", "| coordinator alone, trials/s | SQLite | PostgreSQL |", "|---|---|---|"]
    rates = _own_rates(options.trials)
    for what, row in rates.items():
        lines.append(f"| {what} | {' | '.join(f'{rate:.0f}' for rate in row)} |")
        print(lines[-1], flush=True)
    head = (
        f"{datetime.now():%Y-%m-%d}, `python -m benchmarks.scale`; Python "
        f"{platform.python_version()}, Ray {version('ray')}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f} at the end.\n\n"
    )
    if options.out:
        options.out.write_text(head + "\n".join(lines) + "\n")


def _own_rates(trials: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {"with the search": [], "without": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        server_url() as server,
        database(str(server)) as url,
    ):
        for target in (f"sqlite:///{folder}/scale.db", url):
            opened = Database(target) if target == url else open_database(target)
            if target == url:
                upgrade(opened)
            store = SqlStore(opened)
            rates["with the search"].append(coordinator_rate(store, trials))
            rates["without"].append(database_rate(store, trials))
            opened.close()
    return rates


if __name__ == "__main__":
    main()
