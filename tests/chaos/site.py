"""A whole installation under supervision: PostgreSQL, API, coordinators, Ray head, two nodes.

The database has a host of its own, API, coordinators and Ray's head another, and so has each node.
"""

from __future__ import annotations

import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from db.errors import DatabaseError
from db.migrate import upgrade
from db.records import RunRecord
from db.session import Database
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from tests.chaos.network import Network
from tests.chaos.services import Service
from tests.postgres import Cluster, free_port, postgres_folder
from tuner_service import wiring

ROOT = Path(__file__).parents[2]
DATABASE, HEAD, NODES = "db", "head", ("one", "two")
COORDINATORS = ("coordinator-a", "coordinator-b")
RAY = {  # a dead node or head is noticed within seconds instead of a minute
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "8",
    "RAY_enable_worker_prestart": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
T = TypeVar("T")


class Site:
    """Starts everything; ``services`` are killed by name."""

    def __init__(
        self,
        folder: Path,
        *,
        repeats: float,
        coordinators: int = 2,
        nodes: Sequence[str] = NODES,
        devices: int = 1,
    ) -> None:
        self.folder = folder
        self._nodes, self._devices = nodes, devices
        self.executions = folder / "executions"
        self.network = Network([DATABASE, HEAD, *nodes])
        self.services: dict[str, Service] = {}
        self._repeats = repeats
        self._coordinators = COORDINATORS[:coordinators]
        self._token = secrets.token_hex(32)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._stack = stack
            stack.enter_context(self.network)
            postgres = stack.enter_context(postgres_folder())
            stack.callback(self._stop)
            self._start_database(postgres)
            self._ray_port, self._api_port = free_port(), free_port()
            head = self.network.address(HEAD)
            self.address = f"{head}:{self._ray_port}"
            self.url = f"http://{head}:{self._api_port}"
            self._start_all()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_coordinators(self) -> None:
        for name in self._coordinators:
            self._service(
                name, HEAD,
                ["-m", "tests.chaos.coordinator", str(self._repeats), str(self.executions)],
            )  # fmt: skip

    def queue(self, body: dict[str, Any], key: str) -> str:
        """Ask the API for a run until it has it; return its id."""
        headers = {"Idempotency-Key": key, "Authorization": f"Bearer {self.api_key}"}
        url = f"{self.url}/v1/tuning-runs"
        post = lambda: httpx.post(url, json=body, headers=headers, verify=False)
        return str(patient(lambda: post().raise_for_status()).json()["id"])

    def run(self, run_id: str) -> RunRecord:
        return patient(lambda: self.store.runs.get(run_id))

    def wait_for_records(self, count: int, timeout_s: float = 240.0) -> None:
        deadline = time.monotonic() + timeout_s
        while patient(self.store.count_measurements) < count:
            assert time.monotonic() < deadline, "nothing is measured"
            time.sleep(0.1)

    def wait_for_end(self, run_id: str, timeout_s: float) -> RunRecord:
        deadline = time.monotonic() + timeout_s
        while not (run := self.run(run_id)).is_finished:
            assert time.monotonic() < deadline, f"{run.state} after {timeout_s} s"
            time.sleep(0.2)
        return run

    def leader(self) -> Service | None:
        """Return the coordinator that leads."""
        found = patient(self.store.leader.current)
        for name in self._coordinators:
            if found and any(p.pid == _pid(found.owner) for p in self.services[name].processes()):
                return self.services[name]
        return None

    # --- details ------------------------------------------------------------------------------

    def _start_database(self, folder: Path) -> None:
        password, port = secrets.token_hex(16), free_port()
        host = self.network.address(DATABASE)
        cluster = Cluster(folder, port, password=password, address=host)
        self.database_url = f"postgresql+psycopg://tilecore:{password}@{host}:{port}/postgres"
        command = self.network.on(DATABASE, cluster.command)
        self._add(Service("postgres", command, {}, self.folder))
        cluster.wait()
        upgrade(Database(self.database_url))
        self.store = SqlStore(Database(self.database_url))
        self.api_key = self.store.keys.create("chaos", "tune")[1]
        here = wiring.detected_host().as_dict()
        self.store.save_hardware(HardwareProfile(**{**here, "source": "measured for this test"}))

    def _start_all(self) -> None:
        head = ["start", "--head", "--block", "--num-cpus=0", f"--port={self._ray_port}"]
        head += [f"--node-ip-address={self.network.address(HEAD)}", "--include-dashboard=false"]
        self._service("ray-head", HEAD, ["-m", "ray.scripts.scripts", *head])
        host, port = self.network.address(HEAD), self._api_port
        serve = ["serve", "--no-coordinator", "--host", host, "--port", str(port)]
        self._service("api", HEAD, ["-m", "tuner_service", *serve])
        patient(lambda: socket.create_connection((host, self._ray_port), 1).close())
        for node in self._nodes:
            self.start_node(node)
        self.start_coordinators()

    def start_node(self, node: str, **environment: str) -> None:
        """Let a host measure."""
        worker = ["--address", self.address, "--node-ip", self.network.address(node)]
        command = ["-m", "tuner_service", "worker"]
        if self._devices > 1:  # no machine has several CPUs; stand-ins sleep side by side
            command = ["-m", "tests.chaos.node", "--devices", str(self._devices)]
        self._service(node, node, [*command, *worker], environment)

    def _service(
        self, name: str, host: str, arguments: Sequence[str],
        more: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        temporary, locks = self.folder / f"tmp-{host}", self.folder / f"locks-{host}"
        for made in (temporary, locks):
            made.mkdir(exist_ok=True)
        locks.chmod(0o1777)
        environment = RAY | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(temporary),
            "TILECORE_DATABASE_URL": self.database_url,
            "TILECORE_DATA_DIR": str(self.folder / f"data-{host}"),
            "TILECORE_RAY_ADDRESS": self.address,
            "TILECORE_LEADER_TTL_S": "3",
            "TILECORE_COMPILE_WORKERS": "1",
            "TILECORE_MAX_ATTEMPTS": "20",
            **(more or {}),
        }
        command = self.network.on(host, [sys.executable, *arguments], locks)
        self._add(Service(name, command, environment, self.folder))

    def _add(self, service: Service) -> None:
        self.services[service.name] = service.start()

    def _stop(self) -> None:
        for service in reversed(list(self.services.values())):
            service.stop()
        self.store.database.close()


def patient(call: Callable[[], T], timeout_s: float = 60.0) -> T:
    """Return what a call returns once what it needs is there."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except (OSError, DatabaseError, httpx.HTTPError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _pid(owner: str) -> int:
    return int(owner.split("/")[2])
