"""Database: engines set up so that nothing is lost, sessions, and errors people can act on."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    URL,
    Engine,
    PoolProxiedConnection,
    Row,
    Select,
    Update,
    create_engine,
    event,
    func,
    make_url,
    select,
)
from sqlalchemy import exc as sa_exc
from sqlalchemy.orm import Session

from db.errors import (
    DatabaseAway,
    DatabaseLocked,
    DatabaseUnreachable,
    NotADatabase,
    SchemaChanged,
    TransactionUndone,
    ValueOutOfRange,
)
from db.file_url import PASSWORD_FILE, file_url
from db.identities import FRESH, REMEMBERED, Natural
from db.prepared import Prepared
from db.storable import storable_json, storable_parameters, stored_json
from tilecore.errors import TileError

URLS = "write sqlite:////path/to/file.db or postgresql+psycopg://USER@HOST/NAME"
CACHE = "cache_size=-32768"  # KiB per connection
POOL, OVERFLOW = 5, 10  # connections to a server, each for reading and for writing
PLANNED_ONCE = (
    "select set_config('plan_cache_mode', 'force_generic_plan', false), "
    "set_config('jit', 'off', false)"
)
UNDEFINED = ("42P01", "42703")  # PostgreSQL: no such table, no such column
UNDONE = ("40P01", "40001", "55P03")  # PostgreSQL: deadlock, serialization, no lock in time
READ_ONLY = "25006"  # PostgreSQL: a standby, or one that was told to write nothing
NO_SUCH = ("no such table: ", "no such column: ", "has no column named")  # SQLite
ANSWERS = 2  # times as long as for a lock a server is waited for that answers nothing
PING_S = 5.0  # a sign of life takes no longer; who has none is asked anew
MAX_PREPARED = 500  # statements: there is one for every combination of filters
MAX_REMEMBERED = 200_000  # ids of identities: some 50 MB


class Database:
    """A write engine (serialised on SQLite by BEGIN IMMEDIATE) and a read engine (autocommit).

    SQLite's default transactions silently lose concurrent updates: 1,212 of 2,000 increments by
    four processes (2026-11-20).
    """

    def __init__(
        self, url: str, *, busy_timeout_s: float = 30.0, only_read: str | None = None
    ) -> None:
        """Prepare to open a database.

        Args:
            url: of SQLAlchemy; ``password_file`` of its query is a file with the password, which
                may change while the database is open.
            busy_timeout_s: for how long a lock is waited for.
            only_read: how a file is opened of which nothing is written ("mode=ro", or
                "immutable=1": there is nobody who writes it, and no log beside it); None: writably.

        Raises:
            DatabaseUnreachable: it is no URL of a database (DB804).
        """
        self._only_read = only_read
        try:
            self._url = make_url(url)
        except (sa_exc.ArgumentError, ValueError) as error:  # ValueError: of the port
            shown = re.sub(r":[^:/@]*@", ":***@", url)  # whatever it is, it may have a password
            raise DatabaseUnreachable(url=shown, reason="not a database URL", hint=URLS) from error
        found = self._url.query.get(PASSWORD_FILE)
        self._password_file = Path(found) if isinstance(found, str) else None
        self._url = self._url.difference_update_query([PASSWORD_FILE])
        self._check_kind()
        self.busy_timeout_s = busy_timeout_s
        self._remembered: dict[tuple[str, Natural], int] = {}
        self._prepared: dict[Select[Any], Prepared] = {}
        self._ping = Ping()
        self._watcher: PoolProxiedConnection | None = None
        self._write = self._engine(immediate=True)
        self._read = self._engine(immediate=False)

    def _check_kind(self) -> None:
        kind = self._url.get_backend_name()
        if kind not in ("sqlite", "postgresql"):
            reason = f"expected a database of SQLite or PostgreSQL, found {kind}"
            raise DatabaseUnreachable(url=self.shown_url, reason=reason, hint=URLS)
        if kind == "sqlite" and self.path is None:  # every connection would have one of its own
            reason = "expected the path of a file, found none"
            raise DatabaseUnreachable(url=self.shown_url, reason=reason, hint=URLS)

    @property
    def shown_url(self) -> str:
        """The URL without a password."""
        if self.path is not None and not self._url.query:
            return file_url(self.path)  # readable, where SQLAlchemy encodes all but ASCII
        return self._url.render_as_string(hide_password=True)

    @property
    def path(self) -> Path | None:
        """The file of an SQLite database, else None."""
        name = self._url.database
        if self._url.get_backend_name() != "sqlite" or not name or name == ":memory:":
            return None
        return Path(name)

    @cached_property
    def engine(self) -> Engine:
        """The engine of what may take long: migrations, and giving space back."""
        is_file = self._url.get_backend_name() == "sqlite"
        return self._write if is_file else self._engine(immediate=True, is_patient=True)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Yield a session whose changes are committed together, or not at all."""
        with (
            self.errors(),
            Session(self._write, expire_on_commit=False) as session,
            session.begin(),
        ):
            session.info[REMEMBERED] = self._remembered
            yield session
        self._remember(session.info.get(FRESH, {}))

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session for queries."""
        with self.errors(), Session(self._read, expire_on_commit=False) as session:
            yield session

    def execute(self, query: Select[Any], values: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """Return the rows of a query of columns."""
        with self.errors(), self._read.connect() as connection:
            return connection.execute(query, values).all()

    def ask(self, query: Select[Any], values: Mapping[str, Any]) -> Sequence[Any]:
        """Return the rows of a query of columns that is asked all the time (``db.prepared``).

        It is asked on a connection as it lies in the pool; what fails, because the server has
        closed that one or otherwise, is executed once more on one that answers.
        """
        prepared = self._prepared.get(query)
        if prepared is None:
            if len(self._prepared) >= MAX_PREPARED:
                self._prepared.clear()
            prepared = self._prepared[query] = Prepared(query, self._read.dialect)
        with self.errors(), suppress(self._read.dialect.loaded_dbapi.Error):
            with self._ping.off():
                connection = self._read.raw_connection()
            try:
                return prepared.rows(connection, values)
            finally:
                connection.close()
        return self.execute(query, values)

    def changes(self) -> int | None:
        """Return a number that is another one after every commit; None: nothing says so at once.

        It takes microseconds and waits for nobody. One thread at a time may ask.
        """
        if self.path is None:
            return None
        try:
            if self._watcher is None:
                self._watcher = self._read.raw_connection()
                self._watcher.execute("PRAGMA busy_timeout=0")
            return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])
        except (sa_exc.DBAPIError, sqlite3.Error):
            return None

    def _remember(self, committed: Mapping[tuple[str, Natural], int]) -> None:
        """Keep ids of rows that are never changed or deleted once they are committed."""
        if len(self._remembered) + len(committed) > MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered.update(committed)

    def now(self, session: Session) -> datetime:
        """Return the time of the one clock that all coordinators of a database share."""
        if self._url.get_backend_name() == "sqlite":  # one file, one host
            return datetime.now(UTC)
        found: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
        return found.astimezone(UTC)

    def close(self) -> None:
        """Close all connections."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
        unhurried = vars(self).get("engine", self._write)  # if it was asked for
        for engine in {unhurried, self._write, self._read}:
            engine.dispose()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate the driver's errors into ours, which say what the driver says."""
        try:
            yield
        except sa_exc.DBAPIError as error:
            translated = self.translate(error)
            if translated is None:
                raise
            raise translated from None
        except sa_exc.NoSuchModuleError as error:
            raise DatabaseUnreachable(url=self.shown_url, reason=str(error)) from error
        except sa_exc.TimeoutError as error:  # of the pool: it hangs, or too many ask
            reason = f"none of {POOL + OVERFLOW} connections was free for {self.busy_timeout_s:g} s"
            raise DatabaseUnreachable(
                url=self.shown_url, reason=reason, hint="see whether the database server answers"
            ) from error

    def translate(self, error: sa_exc.DBAPIError) -> TileError | None:
        """Return our error for one of the driver's, or None for a fault of our own."""
        text = str(error.orig)
        if "database is locked" in text or "database table is locked" in text:
            return DatabaseLocked(url=self.shown_url, timeout_s=self.busy_timeout_s)
        if "file is not a database" in text or "malformed" in text:
            return NotADatabase(url=self.shown_url, found=text)
        if isinstance(error, sa_exc.IntegrityError):
            return None
        if getattr(error.orig, "sqlstate", "") in UNDEFINED or any(w in text for w in NO_SUCH):
            return SchemaChanged(url=self.shown_url, reason=text.splitlines()[0])
        if isinstance(error, sa_exc.DataError):
            return ValueOutOfRange(reason=text.splitlines()[0])
        if getattr(error.orig, "sqlstate", "") in UNDONE:
            return TransactionUndone(url=self.shown_url, reason=text.splitlines()[0])
        if getattr(error.orig, "sqlstate", "") == READ_ONLY:
            hint = "have TILECORE_DATABASE_URL name the server that writes, not a copy of it"
            return DatabaseAway(url=self.shown_url, reason=text.splitlines()[0], hint=hint)
        if "disk is full" in text:
            return DatabaseAway(url=self.shown_url, reason=text, hint="free some disk space")
        if "readonly database" in text:
            hint = "whoever writes it needs the right to write the file and its folder"
            return DatabaseAway(url=self.shown_url, reason=text, hint=hint)
        if "disk I/O error" in text:  # also where a full disk has no room for the files beside it
            hint = "free some disk space; if there is enough, see the kernel's log"
            return DatabaseAway(url=self.shown_url, reason=text, hint=hint)
        if isinstance(error, (sa_exc.OperationalError, sa_exc.InterfaceError)):
            is_file = self._url.get_backend_name() == "sqlite"
            hint = "" if is_file else "see whether its server runs and lets this machine in"
            return DatabaseUnreachable(url=self.shown_url, reason=text.splitlines()[0], hint=hint)
        return None

    def _patience(self) -> dict[str, int]:
        """Return for how long a server is waited for that a cut link hides, unless the URL says so.

        The system's own limits are a quarter of an hour, or none.
        """
        if self._url.get_backend_name() != "postgresql":
            return {}
        limit_s = max(2, round(self.busy_timeout_s))
        wanted = {
            "connect_timeout": min(limit_s, 10),
            "tcp_user_timeout": 1000 * limit_s,
            "keepalives_idle": max(1, limit_s // 3),
            "keepalives_interval": max(1, limit_s // 6),
            "keepalives_count": 3,
        }
        return {name: value for name, value in wanted.items() if name not in self._url.query}

    def _opened_url(self) -> URL:
        """Return the URL by which it is opened."""
        if self._only_read is None or self.path is None:
            return self._url
        name, _, value = self._only_read.partition("=")
        file = f"file:{quote(str(self.path.absolute()))}"
        return URL.create("sqlite", database=file, query={name: value, "uri": "true"})

    def _engine(self, *, immediate: bool, is_patient: bool = False) -> Engine:
        try:
            if self._url.get_backend_name() != "sqlite":
                options: dict[str, Any] = {
                    "pool_size": POOL,
                    "max_overflow": OVERFLOW,
                    "pool_timeout": self.busy_timeout_s,
                    "connect_args": self._patience(),
                }
                if not immediate:
                    options |= {"isolation_level": "AUTOCOMMIT", "skip_autocommit_rollback": True}
            else:
                options = {"connect_args": {"timeout": self.busy_timeout_s}}
            engine = create_engine(
                self._opened_url(),
                json_serializer=storable_json,
                json_deserializer=stored_json,
                **options,
            )
        except (sa_exc.NoSuchModuleError, ImportError) as error:
            is_ours = self._url.get_driver_name() == "psycopg"
            hint = "pip install 'tilecore[postgres]' for PostgreSQL" if is_ours else URLS
            raise DatabaseUnreachable(url=self.shown_url, reason=str(error), hint=hint) from error
        event.listen(engine, "before_cursor_execute", _make_storable, retval=True)
        if engine.dialect.name != "sqlite":
            self._ping.listen(engine)
            if self._password_file is not None:
                _give_password(engine, self._password_file)
            if engine.dialect.driver == "psycopg" and not is_patient:
                _limit_waits(engine, max(2.0, ANSWERS * self.busy_timeout_s))
            if engine.dialect.name == "postgresql" and not immediate:
                event.listen(engine, "connect", _prepare_postgresql)
            return engine
        if self._only_read is not None:
            event.listen(engine, "connect", _prepare_to_read)
            return engine
        event.listen(engine, "connect", _prepare_sqlite)
        if immediate:
            event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine


class Ping:
    """Asks pooled connections for a sign of life, except while a thread says ``is_off``."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Take connections as they lie in the pool."""
        self._of_thread.is_off = True
        try:
            yield
        finally:
            self._of_thread.is_off = False

    def listen(self, engine: Engine) -> None:
        """Ping what is taken out of an engine's pool; what does not answer is replaced."""
        dialect = engine.dialect

        def ping(connection: Any, _record: object, _proxy: object) -> None:
            if getattr(self._of_thread, "is_off", False):
                return
            limit_s = getattr(connection, "limit_s", None)
            if limit_s is not None:
                connection.limit_s = min(limit_s, PING_S)
            try:
                is_alive = dialect.do_ping(connection)
            except dialect.loaded_dbapi.Error:
                is_alive = False
            if limit_s is not None:
                connection.limit_s = limit_s
            if not is_alive:
                raise sa_exc.InvalidatePoolError

        event.listen(engine, "checkout", ping)


def change(session: Session, statement: Update) -> int:
    """Run an UPDATE and return how many rows it changed; loaded rows are not looked through."""
    done = session.execute(statement, execution_options={"synchronize_session": False})
    return int(done.rowcount)  # type: ignore[attr-defined]


def _give_password(engine: Engine, path: Path) -> None:
    """Have connections made with what a file holds then: passwords are changed under services."""

    def connect(dialect: Any, _record: object, _args: object, named: dict[str, Any]) -> None:
        try:
            named["password"] = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = f"the password cannot be read: {error}"
            raise dialect.loaded_dbapi.OperationalError(reason) from error

    event.listen(engine, "do_connect", connect)


def _limit_waits(engine: Engine, limit_s: float) -> None:
    """Have connections end what takes longer: a hanging server ends nothing itself."""
    from db.patience import patient

    kind = patient(limit_s)

    def connect(_dialect: object, _record: object, args: Any, named: Any) -> Any:
        return kind.connect(*args, **named)

    event.listen(engine, "do_connect", connect)


def _make_storable(
    _connection: object, _cursor: object, statement: str, parameters: Any, *_: object
) -> tuple[str, Any]:
    return statement, storable_parameters(parameters)


def _prepare_postgresql(connection: Any, _record: object) -> None:
    """Have statements planned once per connection.

    They read by an index whatever is asked for. A plan for each question costs more than most
    questions, is a bad one where the planner takes rows to be spread evenly in an index, and with
    it come five of the general plan's per statement and connection. Compiling takes longer than
    any of them.
    """
    with connection.cursor() as cursor:
        cursor.execute(PLANNED_ONCE)


def _prepare_to_read(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA {CACHE}")


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", CACHE):
        connection.execute(f"PRAGMA {pragma}")
