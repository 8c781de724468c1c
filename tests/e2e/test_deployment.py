"""What docker-compose.yml runs, by hand: its commands, PostgreSQL over TCP, passwords of files.

Only what containers give is replaced: names of hosts, ports, and where the secrets are.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import CompletedProcess

import httpx
import psycopg
import pytest
import yaml
from sqlalchemy import make_url

from db.migrate import HEAD, upgrade
from db.session import Database
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from tests import postgres
from tuner_service import wiring

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
PROGRAMS = {"tilecore": "tuner_service", "ray": "ray.scripts.scripts"}
DATABASE = "postgresql+psycopg://tilecore@postgres:5432/tilecore"  # as its first lines say

pytestmark = pytest.mark.skipif(
    not postgres.PROGRAMS, reason="no PostgreSQL here: install postgresql"
)


class Site:
    """The services of docker-compose.yml as processes of this machine."""

    def __init__(self, folder: Path, data: Path, **variables: str) -> None:
        """Start PostgreSQL in ``data`` as the service does; ``variables`` are those of compose."""
        self.folder, self._variables = folder, {"DATABASE_URL": DATABASE, **variables}
        subprocess.run(["make", "-sf", ROOT / "Makefile", "secrets"], cwd=folder, check=True)
        self.password = (folder / "secrets" / "db_password").read_text()
        self.ports = {port: postgres.free_port() for port in ("5432", "6379", "8711")}
        port = self.ports["5432"]
        self.server = postgres.Cluster(data, port, postgres.UNSAFE, self.password)
        self.server.start()
        self.server.wait()
        url = make_url(self._here(DATABASE)).set(password=self.password)
        self.url = url.render_as_string(hide_password=False)
        with self.connect("postgres") as connection:
            connection.execute("create database tilecore")

    def connect(self, database: str) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self.ports["5432"], user="tilecore", dbname=database,
            password=self.password, autocommit=True,
        )  # fmt: skip

    def run(self, service: str, command: Sequence[str] = (), **changes: str) -> CompletedProcess:
        """Run a service's command, or another one in its container, to its end."""
        program, environment = self._process(service, command, changes)
        return subprocess.run(
            program, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    def health(self, service: str) -> CompletedProcess:
        kind, *command = SERVICES[service]["healthcheck"]["test"]
        assert kind == "CMD"
        return self.run(service, command)

    @contextmanager
    def running(self, service: str, more: Sequence[str] = ()) -> Iterator[subprocess.Popen]:
        """Have a service run until the block ends, as ``docker compose stop`` ends it."""
        program, environment = self._process(service, (), {})
        with (self.folder / f"{service}.log").open("ab") as log:
            process = subprocess.Popen(
                [*program, *more], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(45)  # its stop_grace_period
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    @contextmanager
    def store(self) -> Iterator[SqlStore]:
        """Yield the store that the services share."""
        store = SqlStore(Database(self.url))
        yield store
        store.database.close()

    def prepare(self) -> None:
        """Migrate, and say that this machine's peaks were measured: that takes some seconds."""
        database = Database(self.url)
        upgrade(database)
        host = wiring.detected_host().as_dict()
        SqlStore(database).save_hardware(
            HardwareProfile(**host | {"source": "measured for a test"})
        )
        database.close()

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text()

    def _process(
        self, service: str, command: Sequence[str], changes: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        found = SERVICES[service]
        words = list(command or found.get("entrypoint", ["tilecore"]) + found["command"])
        program, *arguments = (self._here(word) for word in words)
        start = ["-m", PROGRAMS[program]] if program in PROGRAMS else []
        given = {n: self._here(self._filled(v)) for n, v in found["environment"].items()} | changes
        given |= {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": str(self.folder)}
        given["TMPDIR"] = str(self.folder)
        return [sys.executable, *start, *arguments], given

    def _filled(self, value: str) -> str:
        """Return a value with its variables, as compose fills them in."""

        def fill(found: re.Match[str]) -> str:
            name, is_for_unset, other = found.groups()
            value = self._variables.get(name, "")
            return (value or other) if is_for_unset == "-" else (value and other)

        return re.sub(r"\$\{(\w+):([-+])([^}]*)\}", fill, value)

    def _here(self, text: str) -> str:
        text = text.replace("/run/secrets", str(self.folder / "secrets"))
        text = text.replace("/var/lib/tilecore", str(self.folder / "data"))
        text = text.replace("/tmp/tilecore", str(self.folder / "worker"))
        text = re.sub(r"\b(postgres|ray-head)(?=:\d)|0\.0\.0\.0", "127.0.0.1", text)
        return re.sub(r"\b(5432|6379|8711)\b", lambda found: str(self.ports[found[0]]), text)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with started() as made:
        yield made


@contextmanager
def started(**variables: str) -> Iterator[Site]:
    with (
        postgres.postgres_folder() as data,
        tempfile.TemporaryDirectory(prefix="tcdp", dir="/tmp") as folder,  # sockets: short paths
    ):
        made = Site(Path(folder), data, **variables)
        try:
            yield made
        finally:
            made.server.stop()


def is_told(done: CompletedProcess, status: int, message: str) -> None:
    """Check that one error of one line, and a hint, was all that was said."""
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    first, *others = done.stderr.splitlines()
    assert re.match(f"error: {message}", first), first
    assert all(line.startswith("  hint: ") for line in others)
    assert len(others) <= 1


def waits_for(condition, process: subprocess.Popen, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, "it ended"
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_commands_get_in_with_the_password_of_the_file_and_only_with_it(site):
    is_told(site.health("coordinator"), 2, "DB803 .*no schema")
    wrong = site.folder / "wrong"
    wrong.write_text("guess" + secrets.token_hex(8))
    done = site.run("migrate", TILECORE_DATABASE_PASSWORD_FILE=str(wrong))
    is_told(done, 2, 'DB804 .*password authentication failed for user "tilecore"')
    assert wrong.read_text() not in done.stderr
    done = site.run("migrate")
    assert (done.returncode, done.stderr) == (0, "")
    shown = f"tilecore@127.0.0.1:{site.ports['5432']}/tilecore"
    assert re.fullmatch(f".*{re.escape(shown)}: schema is current \\(was empty\\)\n", done.stdout)
    with site.connect("tilecore") as connection:
        assert connection.execute("select version_num from alembic_version").fetchall() == [(HEAD,)]


@pytest.mark.exhaustive
def test_a_coordinator_of_one_host_leads_and_its_check_says_so(site):
    """With the variables of the file: no Ray, whose address is empty."""
    site.prepare()
    with site.store() as store, site.running("coordinator") as process:
        waits_for(lambda: store.leader.current() is not None, process)
        assert site.health("coordinator").returncode == 0
    assert process.returncode == 0
    assert (done := site.health("coordinator")).returncode == 1
    assert (done.stdout, done.stderr) == ("no coordinator leads\n", "")
    assert "Traceback" not in site.log("coordinator")
    assert site.password not in site.log("coordinator")


@pytest.mark.exhaustive
def test_what_is_asked_of_the_service_is_measured_by_a_worker_of_the_cluster():
    """All services of the profile `cluster`, from `make secrets` to a tuned GEMM."""
    pytest.importorskip("ray")
    with started(EXECUTOR="ray", RAY_ADDRESS="ray-head:6379") as site, ExitStack() as stack:
        site.prepare()
        processes = {}
        head = ["--node-ip-address=127.0.0.1", "--include-dashboard=false"]
        for service, more in (
            ("ray-head", head), ("worker", ["--node-ip", "127.0.0.1"]), ("api", []),
            ("coordinator", []),
        ):  # fmt: skip
            process = processes[service] = stack.enter_context(site.running(service, more))
            if "CMD" in SERVICES[service]["healthcheck"]["test"]:
                waits_for(lambda name=service: site.health(name).returncode == 0, process)
        made = site.run("api", ["tilecore", "keys", "create", "me", "--role", "admin"])
        key = re.search(r"\btc_[\w-]+", made.stdout)
        assert key, made.stderr
        body = {"kernel": "gemm", "problem": {"m": 64, "n": 64, "k": 64}, "max_trials": 3}
        with httpx.Client(
            base_url=f"http://127.0.0.1:{site.ports['8711']}/v1/",
            headers={"Authorization": f"Bearer {key[0]}"},
        ) as client:
            queued = client.post("tuning-runs", json=body)
            run = f"tuning-runs/{queued.raise_for_status().json()['id']}"
            ended = ("SUCCEEDED", "FAILED", "CANCELLED")
            waits_for(lambda: client.get(run).json()["state"] in ended, process)
            assert client.get(run).json()["state"] == "SUCCEEDED"
        with site.store() as store:
            counts = store.counts()
            assert sum(counts.measurements.values()) >= 3
            assert counts.devices == {(wiring.detected_host().name, "active"): 1}
        stack.close()
        assert processes["api"].returncode == processes["coordinator"].returncode == 0
        for service in processes:
            assert site.password not in site.log(service), service
