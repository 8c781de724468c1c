"""Bring a database to the schema of this version, or say why it cannot be used."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text

from db.backup import back_up
from db.errors import (
    BackupFailed,
    DatabaseAway,
    DatabaseError,
    DatabaseLocked,
    DatabaseUnreachable,
    NotADatabase,
    SchemaTooNew,
    SchemaTooOld,
    UnknownRevision,
)
from db.file_url import file_url
from db.session import Database

if TYPE_CHECKING:
    from alembic.config import Config

LOG = logging.getLogger(__name__)
# Oldest first; a test compares it with the files in versions/.
REVISIONS = tuple(f"{number:04}" for number in range(1, 17))
HEAD = REVISIONS[-1]


def open_database(url: str, *, busy_timeout_s: float = 30.0) -> Database:
    """Return the database at ``url``, ready for use.

    An embedded SQLite file is created or upgraded (after copying it aside, and with a warning:
    what runs of earlier versions stops); any other database must be at this version's schema
    already.

    Raises:
        DatabaseUnreachable: it cannot be opened (DB804).
        NotADatabase: the file is something else (DB805).
        SchemaTooNew: a newer version wrote it (DB802).
        SchemaTooOld: it must be migrated first (DB803).
        DatabaseLocked: another process holds it (DB801).
    """
    database = Database(url, busy_timeout_s=busy_timeout_s)
    if database.path is not None:
        _make_folder(database, database.path)
    found = revision(database)
    if found == HEAD:
        return database
    if database.path is None:
        raise SchemaTooOld(url=database.shown_url, expected=HEAD, found=found or "no schema")
    upgrade(database)
    if found is not None and database.path is not None:
        copy = _aside(database.path, found, HEAD)
        LOG.warning(
            "%s: schema %s was upgraded to %s (a copy of before: %s); end what runs of earlier "
            "versions", database.shown_url, found, HEAD, copy.name,
        )  # fmt: skip
    return database


def open_to_read(url: str, *, busy_timeout_s: float = 30.0) -> Database:
    """Return the database at ``url`` for who only asks: also where its file cannot be written.

    The disk may be full, or the file somebody else's. That is warned of.

    Raises:
        DatabaseError: as ``open_database``, where the file cannot be read either, or is not of the
            schema of this version.
    """
    try:
        return open_database(url, busy_timeout_s=busy_timeout_s)
    except (DatabaseAway, DatabaseUnreachable) as error:
        if isinstance(error, (DatabaseLocked, SchemaTooNew, SchemaTooOld)):
            raise
        found = _only_to_read(url, busy_timeout_s)
        if found is None:
            raise
        why = f"{error.message} [{error.code}]"
        LOG.warning("the database is only read, as it cannot be written: %s", why)
        return found


@contextmanager
def opened_for_now() -> Iterator[Database]:
    """Yield an empty database that lies among the temporary files meanwhile.

    Raises:
        DatabaseError: it cannot be made there.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tilecore-"))
        except OSError as error:
            reason = error.strerror or str(error)
            raise DatabaseUnreachable(url="a temporary file", reason=reason) from error
        database = open_database(file_url(Path(folder) / "tilecore.db"))
        yield stack.enter_context(closing(database))


def _only_to_read(url: str, busy_timeout_s: float) -> Database | None:
    """Return a file of this version's schema, opened for reading alone; None: that cannot be."""
    for how in ("mode=ro", "immutable=1"):
        database = Database(url, busy_timeout_s=busy_timeout_s, only_read=how)
        path = database.path
        if path is None or not os.path.isfile(path):  # False also where its folder may not be read
            return None
        log = path.with_name(f"{path.name}-wal")
        if how == "immutable=1" and log.exists() and log.stat().st_size:
            return None  # what stands in there belongs to the database
        with suppress(DatabaseError):
            if revision(database) == HEAD:
                return database
        database.close()
    return None


def revision(database: Database) -> str | None:
    """Return the schema revision of a database, None where it is empty.

    Raises:
        SchemaTooNew: this version does not know the revision (DB802).
        NotADatabase: there are tables, but not ours (DB805).
    """
    with database.errors(), database.engine.connect() as connection:
        tables = set(inspect(connection).get_table_names())
        if not tables:
            return None
        if "alembic_version" not in tables:
            raise NotADatabase(
                url=database.shown_url, found=f"tables {', '.join(sorted(tables)[:5])}"
            )
        found = connection.execute(text("select version_num from alembic_version")).scalar()
    if found is not None and found not in REVISIONS:
        raise SchemaTooNew(url=database.shown_url, expected=HEAD, found=found)
    return None if found is None else str(found)


def upgrade(database: Database) -> str:
    """Migrate to this version's schema and return the revision found before ('' if empty)."""
    from alembic import command

    with _migration_lock(database.path):
        before = revision(database)
        if before == HEAD:
            return before
        if before is not None and database.path is not None:
            copy_aside(database.path, before)
        with migrating(database) as config:
            command.upgrade(config, "head")
    return before or ""


def downgrade(database: Database, target: str) -> str:
    """Go back to the schema of an earlier version and return the revision found before.

    What that version knows nothing of is lost; a file is copied aside before.

    Raises:
        SchemaTooOld: the database is empty (DB803).
        UnknownRevision: there is no such schema, or the database is older (DB834).
    """
    from alembic import command

    with _migration_lock(database.path):
        before = revision(database) or "no schema"
        if before not in REVISIONS:
            raise SchemaTooOld(url=database.shown_url, expected=target, found=before)
        if target not in REVISIONS or before < target:
            raise UnknownRevision(
                url=database.shown_url, expected=f"{REVISIONS[0]} to {before}", found=target
            )
        if before != target:
            if database.path is not None:
                copy_aside(database.path, before, target)
            with migrating(database) as config:
                command.downgrade(config, target)
    return before


@contextmanager
def migrating(database: Database) -> Iterator[Config]:
    """Yield Alembic's configuration in a transaction in which tables may be rebuilt.

    SQLite changes constraints by copying a table; that must not touch the rows that refer to it,
    so foreign keys are off, and checked before the commit.
    """
    is_file = database.path is not None
    with database.errors(), database.engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        assert driver is not None
        if is_file:
            driver.cursor().execute("PRAGMA foreign_keys=OFF")  # has no effect in a transaction
        try:
            with connection.begin():
                config = alembic_config()
                config.attributes["connection"] = connection
                yield config
                if is_file:
                    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
                    assert not broken, f"rows refer to nothing: {broken[:5]}"
        finally:
            if is_file:
                driver.cursor().execute("PRAGMA foreign_keys=ON")


def alembic_config() -> Config:
    """Return Alembic's configuration: no ini file, the scripts beside this module."""
    from alembic.config import Config  # slow to import; most starts find the schema current

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def copy_aside(path: Path, before: str, after: str = HEAD) -> Path:
    """Copy an SQLite database (with its write-ahead log) and return where the copy lies.

    Raises:
        BackupFailed: there is no room for it beside the database, or it is damaged (DB833).
    """
    target = _aside(path, before, after)
    try:
        back_up(path, target)
    except BackupFailed as error:
        error.hint = (
            "the schema is changed only where a copy of before was made: see that the folder of "
            "the database can be written and has room for it once more"
        )
        raise
    return target


def _aside(path: Path, before: str, after: str) -> Path:
    return path.with_name(f"{path.name}.before-{after}-from-{before}")


def _make_folder(database: Database, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseUnreachable(url=database.shown_url, reason=str(error)) from error


@contextmanager
def _migration_lock(path: Path | None) -> Iterator[None]:
    """Let one process migrate at a time (PostgreSQL takes an advisory lock in env.py).

    Raises:
        DatabaseUnreachable: the folder of the file cannot be written (DB804).
    """
    if path is None:
        yield
        return
    try:
        lock = path.with_name(f"{path.name}.migrate.lock").open("w")
    except OSError as error:
        reason = error.strerror or str(error)
        raise DatabaseUnreachable(url=file_url(path), reason=reason) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
