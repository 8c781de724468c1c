"""The recommendation route under load: answers per second and latency, by wrk.

    python benchmarks/service_load.py [--seconds 5] [--clients 1,2,8,64] [--answers cache,cold]
                                      [--tuned 8000] [--json FILE]
    python benchmarks/service_load.py --requests 100000 [--json FILE]

Starts `tilecore serve --no-coordinator` on an SQLite file in a temporary folder, and asks it for
GEMM on this host with an API key (needed, so that its check is in the figures):

- cache: the same question again and again.
- database: questions tuned before, each asked once: eight different configs were confirmed for
  each, as a run leaves them (records made up by the analytic model). Where they run out (there are
  as many as ``--tuned`` says), a run's own are asked again, and its line says how often.
- database of a GPU: the same of an H100 that the service does not see.
- one record: the same with one measurement each: the rest of the list has to be worked out.
- cold: questions never measured, each asked once; the space has tens of thousands of configs.
- beside a run, beside a near run: 200 questions with one measurement each, again and again, while a
  run stores ten measurements per second: of another, larger GEMM, or of one amid the questions.

With `--requests N` it sends N requests of every kind instead (`mixed_requests.py`: answers from
memory, from the database and cold ones, pages and files of the log, runs, studies, keys, bad input)
and reports the service's memory every tenth of them.

Beside the times of the wall, which neighbours of a shared machine lengthen, stands the processors'
time of an answer: of the service, and of the processes that work answers out.

wrk, server and everything else share this machine's cores. Before
each run one question is asked for a second, so that the service is warm. Refused requests
(503 with Retry-After) are counted apart.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import fastapi
import numpy as np
import psutil
from mixed_requests import Client, drive

from recommender.analytic import estimate
from recommender.diversity import different
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.space import SearchSpace
from tilecore.tile_config import TileConfig
from tuner_service.questions import Question, understand
from tuner_service.settings import load_settings
from tuner_service.wiring import open_store

MEASURED, TUNED, FIRST_ROW = 4000, 8000, 64
CLIENTS = 4
OF_GPU, GPU = "database of a GPU", "h100-sxm"
AGAIN, RUN_PER_S = 200, 10.0  # questions that are asked again and again; measurements beside them
RUNS = {
    "beside a run": {"m": 8192, "n": 4096, "k": 4096},
    "beside a near run": {"m": FIRST_ROW + AGAIN // 2, "n": 512, "k": 1024},
}
KINDS = ("cache", "database", OF_GPU, "one record", "cold", *RUNS)
SCRIPT = """
local asked = {first}
request = function()
  local m = asked
  asked = asked + 1
  if asked > {last} then asked = {first} end
  local body = string.format(
    '{{"kernel": "gemm", "problem": {{"m": %d, "n": {n}, "k": 1024}}, {device}"top_k": 5}}', m)
  return wrk.format("POST", "/v1/recommendations",
    {{["Content-Type"] = "application/json", ["Authorization"] = "Bearer {key}"}}, body)
end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d %d\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), latency.max, e.status,
    e.connect + e.read + e.write + e.timeout))
end
"""


def fill(
    store: Any, count: int, *, n: int = 512, each: int = 1, hardware: str | None = None
) -> None:
    """Store ``each`` confirmed measurements of the analytic model's choices for ``count`` GEMMs."""
    found = []
    for i in range(count):
        problem = {"m": FIRST_ROW + i, "n": n, "k": 1024}
        question = understand(store, "gemm", problem, hardware=hardware)
        if i % 200 == 0:  # configs of a near shape do as well
            space = SearchSpace.build(
                question.definition, dict(question.workload.problem), question.hardware
            )
            order = estimate(space).time_s.argsort(kind="stable").tolist()
            configs = [c for _, c in islice(different(map(space.config, order), 2), each)]
        found += confirmed(question, configs)
    store.add_all(found)


def confirmed(question: Question, configs: Iterable[TileConfig]) -> list[Measurement]:
    """Return confirmed measurements of configs for a question, each slower than the one before."""
    return [
        Measurement(
            workload=question.workload, config=config, hardware=question.hardware,
            toolchain=question.toolchain, program_digest=question.program_digest,
            protocol=Protocol.CONFIRM, threads=question.hardware.cores,
            status=MeasureStatus.OK, times_s=(1e-3 + rank * 1e-5,) * 5,
            reference_times_s=(2e-3,) * 5, measured_at=datetime.now(UTC),
        )
        for rank, config in enumerate(configs)
    ]  # fmt: skip


def apart(work: Callable[..., None], *args: Any) -> None:
    """Do some work in a process of its own: what it remembers would speed up what is timed here."""
    process = multiprocessing.get_context("fork").Process(target=work, args=args)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{work.__name__} failed")


@contextmanager
def running(store: Any, problem: dict[str, Any]) -> Iterator[None]:
    """Store measurements as a run does that tries random configs: sometimes a faster one."""
    question = understand(store, "gemm", problem)
    space = SearchSpace.build(
        question.definition, dict(question.workload.problem), question.hardware
    )
    rng, ended = np.random.default_rng(5), threading.Event()

    def store_some() -> None:
        began, count = time.monotonic(), 0
        while not ended.wait(max(0.0, began + count / RUN_PER_S - time.monotonic())):
            time_s = 1e-3 * float(rng.lognormal(1.0, 0.5))
            store.add(
                Measurement(
                    workload=question.workload, config=space.config(int(rng.integers(len(space)))),
                    hardware=question.hardware, toolchain=question.toolchain,
                    program_digest=question.program_digest, protocol=Protocol.SCREEN, threads=1,
                    status=MeasureStatus.OK, times_s=(time_s,) * 3,
                    reference_times_s=(2e-3,) * 3, measured_at=datetime.now(UTC),
                )
            )  # fmt: skip
            count += 1

    thread = threading.Thread(target=store_some)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def memory_mib(process: psutil.Process) -> float:
    """Return the memory of a process and all that it started; shared pages count once."""
    own = [process, *process.children(recursive=True)]
    return sum(p.memory_full_info().pss for p in own) / 2**20


def cpu_s(process: psutil.Process) -> tuple[float, float]:
    """Return the processors' time of a process so far, and of those that it started."""
    own, *others = (sum(p.cpu_times()[:2]) for p in (process, *process.children(recursive=True)))
    return own, sum(others)


def load(url: str, script: str, clients: int, seconds: float) -> dict[str, Any]:
    """Run wrk and return what it saw; latencies in milliseconds."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds:g}s", "--timeout", "20s"]
        said = subprocess.run(
            [*command, "-s", file.name, url], check=True, capture_output=True, text=True
        ).stdout
    match = re.search(r"RESULT (.*)", said)
    assert match is not None, said
    requests, duration, p50, p99, most, refused, broken = map(int, match[1].split())
    return {
        "clients": clients, "per_second": (requests - refused) / duration * 1e6,
        "p50_ms": p50 / 1e3, "p99_ms": p99 / 1e3, "max_ms": most / 1e3,
        "sent": requests, "refused": refused, "broken": broken,
    }  # fmt: skip


def serve(folder: str, port: int) -> subprocess.Popen[bytes]:
    """Start the service and wait until it is ready."""
    environment = {
        **os.environ, "TILECORE_DATA_DIR": folder, "TILECORE_AUTH": "required",
        "TILECORE_RATE_LIMIT": "1000000/second", "TILECORE_ACCESS_LOG": "off",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "tuner_service", "serve", "--no-coordinator"]
    server = subprocess.Popen([*command, "--port", str(port)], env=environment)
    for _ in range(200):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1)
            return server
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the service did not start")


def memory(store: Any, port: int, process: psutil.Process, requests: int) -> dict[str, Any]:
    """Send requests of every kind and return the service's memory after every tenth of them."""
    _, key = store.keys.create("mixed", "admin")
    clients = [Client(port, key, seed, FIRST_ROW, MEASURED) for seed in range(CLIENTS)]

    def sent() -> int:
        return sum(client.codes.total() for client in clients)

    kinds: Counter[str] = Counter()
    rows = []
    for tenth in range(11):
        started, before = time.perf_counter(), sent()
        drive(clients, requests * tenth // 10, sent, kinds)
        seconds = time.perf_counter() - started
        memory_info = process.memory_info()
        rows.append(
            {
                "requests": sent(), "rss_mib": memory_info.rss / 2**20, "seconds": seconds,
                "per_second": (sent() - before) / seconds if tenth else 0.0,
                "threads": process.num_threads(), "files": process.num_fds(),
            }
        )  # fmt: skip
        print({name: round(value, 1) for name, value in rows[-1].items()}, flush=True)
    codes = sum((client.codes for client in clients), Counter())
    print("answers by status:", dict(codes))
    return {"rows": rows, "kinds": dict(kinds), "statuses": {str(k): n for k, n in codes.items()}}


def arguments() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", default="1,2,8,64")
    parser.add_argument("--answers", default=",".join(KINDS))
    parser.add_argument("--tuned", type=int, default=TUNED, help="questions that were tuned before")
    parser.add_argument("--requests", type=int, help="of every kind: memory instead of latency")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        store = open_store(load_settings(data_dir=folder))
        fill(store, MEASURED)
        for device in (None, *([GPU] if OF_GPU in given.answers else [])):
            if given.requests is None:
                fill(store, given.tuned, n=640, each=8, hardware=device)
        _, key = store.keys.create("benchmark", "read")
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        server = serve(folder, port)
        process, url = psutil.Process(server.pid), f"http://127.0.0.1:{port}"
        if given.requests:
            try:
                found = memory(store, port, process, given.requests)
            finally:
                server.terminate()
                server.wait()
            write(given.json, found)
            return
        time.sleep(5)  # until all its processes are there
        before_mib, results = memory_mib(process), []
        shapes = {
            "cache": {"first": 512, "last": 512, "n": 512},
            "database": {"first": FIRST_ROW, "last": FIRST_ROW + given.tuned - 1, "n": 640},
            OF_GPU: {
                "first": FIRST_ROW,
                "last": FIRST_ROW + given.tuned - 1,
                "n": 640,
                "device": f'"hardware": "{GPU}", ',
            },
            "one record": {"first": FIRST_ROW, "last": FIRST_ROW + MEASURED - 1, "n": 512},
            "cold": {"first": FIRST_ROW, "last": 1_000_000, "n": 768},
            **{
                kind: {"first": FIRST_ROW, "last": FIRST_ROW + AGAIN - 1, "n": 512} for kind in RUNS
            },
        }
        try:
            for kind in given.answers.split(","):
                shape = {"device": "", **shapes[kind]}
                for clients in map(int, given.clients.split(",")):
                    time.sleep(3)  # what clients of the last run left behind is worked out
                    load(url, SCRIPT.format(**(shape | {"first": 32, "last": 32}), key=key), 1, 1.0)
                    run = running(store, RUNS[kind]) if kind in RUNS else nullcontext()
                    if kind in RUNS:
                        load(url, SCRIPT.format(**shape, key=key), 2, 5.0)
                    before = cpu_s(process)
                    with run:
                        found = load(url, SCRIPT.format(**shape, key=key), clients, given.seconds)
                    used = (b - a for a, b in zip(before, cpu_s(process), strict=True))
                    found["cpu_ms"], found["desk_cpu_ms"] = (1e3 * s / found["sent"] for s in used)
                    if kind != "cache" and kind not in RUNS:  # the next asks what this one did not
                        left = shape["last"] + 1 - shape["first"]
                        found["asked_again"] = max(0, found["sent"] - left)
                        shape["first"] = min(
                            shape["first"] + found["sent"] + clients, shape["last"]
                        )
                    results.append({"answers": kind, **found})
                    print(
                        f"{kind:10} {clients:3} clients: {found['per_second']:7.0f}/s, p50"
                        f" {found['p50_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms,"
                        f" refused {found['refused']}, broken {found['broken']}, processors'"
                        f" {found['cpu_ms']:.2f} + {found['desk_cpu_ms']:.2f} ms"
                        + (f", {n} ASKED AGAIN" if (n := found.get("asked_again")) else ""),
                        flush=True,
                    )  # fmt: skip
            after_mib = memory_mib(process)
        finally:
            server.terminate()
            server.wait()
    print(f"memory of the service: {before_mib:.0f} MiB before, {after_mib:.0f} MiB after")
    found = {"load_before": load_before, "memory_mib": [before_mib, after_mib], "results": results}
    write(given.json, found)


def write(path: Path | None, found: dict[str, Any]) -> None:
    """Write what was found with date and versions, if there is a path."""
    if path is None:
        return
    document = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "cores": os.cpu_count(),
        "versions": {"python": platform.python_version(), "fastapi": fastapi.__version__},
        **found,
    }  # fmt: skip
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
