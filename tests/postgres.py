"""A PostgreSQL for tests: the one of TILECORE_TEST_POSTGRES_URL, or a cluster of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy import exc as sa_exc
from sqlalchemy.pool import NullPool

import db.service_models  # noqa: F401  its tables belong to the metadata
from db.migrate import upgrade
from db.models import Base
from db.session import Database

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
# Nothing is lost where a server is killed: it has written what it committed, the system has it yet.
SYSTEM_STAYS = ["-c", "fsync=off", "-c", "full_page_writes=off"]
UNSAFE = [*SYSTEM_STAYS, "-c", "synchronous_commit=off"]


def as_postgres(command: list[str]) -> list[str]:
    """Return a command that does not run as root, which PostgreSQL refuses."""
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command] if (
        os.geteuid() == 0
    ) else command  # fmt: skip


class Cluster:
    """A PostgreSQL cluster in a folder, reached by a socket there.

    With a ``password`` it is reached at a port of ``address``, too, as one in a container is: by
    whoever has the password.
    """

    def __init__(
        self, folder: Path, port: int, options: Sequence[str] = (), password: str = "",
        address: str = "127.0.0.1",
    ) -> None:  # fmt: skip
        self._bin = PROGRAMS[-1].parent
        self.folder, self._port = folder, port
        self._options, self._address = options, address if password else ""
        self.process: subprocess.Popen[bytes] | None = None
        initdb = [str(self._bin / "initdb"), "-D", str(folder), "-U", "tilecore", "--no-sync"]
        if password:
            given = folder.parent / "password"
            given.write_text(password)
            initdb += ["-A", "scram-sha-256", f"--pwfile={given}", "-E", "UTF8"]
            initdb += ["--locale=C.UTF-8"]
        else:
            initdb += ["-A", "trust"]
        subprocess.run(as_postgres(initdb), check=True, stdout=subprocess.DEVNULL)
        if password:
            with (folder / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet scram-sha-256\n")

    @property
    def command(self) -> list[str]:
        """What runs the server."""
        command = [str(self._bin / "postgres"), "-D", str(self.folder), "-p", str(self._port)]
        command += ["-k", str(self.folder), "-c", f"listen_addresses={self._address}"]
        return as_postgres([*command, *self._options])

    def start(self) -> None:
        with (self.folder.parent / "postgres.log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def wait(self, timeout_s: float = 60.0) -> None:
        ready = [str(self._bin / "pg_isready"), "-q", "-h", str(self.folder), "-p", str(self._port)]
        for _ in range(int(timeout_s / 0.1)):
            if subprocess.run(ready, check=False).returncode == 0:
                return
            time.sleep(0.1)
        raise TimeoutError("PostgreSQL does not answer")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)

    def url(self, database: str) -> str:
        host = f"host={self.folder}&port={self._port}"
        return f"postgresql+psycopg://tilecore@/{database}?{host}"


@contextmanager
def postgres_folder() -> Iterator[Path]:
    """Yield a folder that PostgreSQL's user may write to, with a short path for its socket."""
    base = Path(tempfile.mkdtemp(prefix="tcpg", dir="/tmp"))
    data = base / "data"
    data.mkdir(mode=0o700)
    if os.geteuid() == 0:
        base.chmod(0o755)
        shutil.chown(data, "postgres", "postgres")
    try:
        yield data
    finally:
        shutil.rmtree(base, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server_url() -> Iterator[str | None]:
    """Yield the URL of a server in which databases may be made, None where there is none."""
    given = os.environ.get("TILECORE_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    if not PROGRAMS:
        yield None
        return
    with postgres_folder() as folder:
        cluster = Cluster(folder, free_port(), UNSAFE)
        cluster.start()
        try:
            cluster.wait()
            yield cluster.url("postgres")
        finally:
            cluster.stop()


@contextmanager
def database(server: str, template: str | None = None) -> Iterator[str]:
    """Yield the URL of a new database, migrated or a copy of ``template``."""
    name = f"t{uuid.uuid4().hex[:12]}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    url = make_url(server).set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        source = f" template {template}" if template else ""
        version = connection.dialect.server_version_info or (0,)
        if template and version >= (15,):  # by the log, the default, takes three times as long
            source += " strategy file_copy"
        connection.exec_driver_sql(f"create database {name}{source}")
        try:
            if template is None:
                migrated = Database(url)
                upgrade(migrated)
                migrated.close()
            yield url
        finally:
            connection.exec_driver_sql(f"drop database {name} with (force)")
    engine.dispose()


class Spare:
    """A migrated database that tests get one after the other, emptied in between.

    A copy takes a quarter of a second, to empty one two milliseconds. One that a test left with
    another schema, or that cannot be emptied, is replaced by a new copy.
    """

    def __init__(self, server: str, template: str) -> None:
        self._server, self._template = server, template
        self._stack = ExitStack()
        self._url: str | None = None
        self._found = ""

    @contextmanager
    def empty(self) -> Iterator[str]:
        """Yield its URL; what is still connected at the end is cut off."""
        if self._url is None:
            self._url = self._stack.enter_context(database(self._server, self._template))
            with _connected(self._url) as connection:
                self._found = _schema(connection)
        try:
            yield self._url
        finally:
            if not self._is_emptied(self._url):
                self.close()

    def close(self) -> None:
        """Drop the database."""
        self._url = None
        self._stack.close()

    def _is_emptied(self, url: str) -> bool:
        try:
            with _connected(url) as connection:
                while connection.exec_driver_sql(CUT_OFF).all():
                    time.sleep(0.001)
                if _schema(connection) != self._found:
                    return False
                connection.exec_driver_sql(EMPTY)
        except sa_exc.DBAPIError:  # who may not switch off triggers, for one
            return False
        return True


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def _schema(connection: Connection) -> str:
    return str(connection.exec_driver_sql(SCHEMA).scalar_one())


TABLES = [t.name for t in Base.metadata.sorted_tables if t.name != "installation"]
NUMBERED = [t.name for t in Base.metadata.sorted_tables if "id" in t.columns and t.name in TABLES]
CUT_OFF = (
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where datname = current_database() and pid <> pg_backend_pid()"
)
EMPTY = "; ".join(
    [
        "set session_replication_role = replica",  # no triggers, of foreign keys either
        *(f"delete from {name}" for name in TABLES),
        *(f"select setval(pg_get_serial_sequence('{n}', 'id'), 1, false)" for n in NUMBERED),
    ]
)
SCHEMA = """
select md5(string_agg(part, ' ' order by part)) from (
  select concat(attrelid, attname, atttypid, attnotnull) from pg_attribute
    join pg_class on pg_class.oid = attrelid where relnamespace = 'public'::regnamespace
  union all select concat(tgname, tgenabled) from pg_trigger where not tgisinternal
  union all select concat(oid) from pg_proc where pronamespace = 'public'::regnamespace
  union all select concat(oid) from pg_constraint where connamespace = 'public'::regnamespace
  union all select version_num from alembic_version
) as found (part)
"""
