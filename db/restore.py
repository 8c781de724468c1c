"""Fill an empty database with the rows of a file: a backup, or an embedded database that moves."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Table, func, insert, literal_column, select, text

import db.service_models  # noqa: F401  its tables belong to the metadata
from db.errors import DatabaseUnreachable, NotADatabase, NotEmpty, SchemaTooOld
from db.file_url import file_url
from db.migrate import HEAD, revision
from db.models import Base
from db.session import Database

OWN = ("installation",)  # what each database has of its own
BATCH = 1000  # rows of a statement


def restore(source: Path, database: Database) -> dict[str, int]:
    """Copy all rows of an embedded database, all or none; return how many, by table.

    The file may be in use: what was committed when this began is copied.

    Raises:
        DatabaseUnreachable: there is no such file (DB804).
        NotADatabase: it is something else (DB805).
        SchemaTooNew: a newer version wrote it (DB802).
        SchemaTooOld: it, or the database, is not of this version's schema (DB803).
        NotEmpty: the database has rows already (DB835).
    """
    if not source.is_file():
        raise DatabaseUnreachable(url=file_url(source), reason="no such file")
    given = Database(file_url(source), busy_timeout_s=database.busy_timeout_s, only_read="mode=ro")
    hint = "upgrade it: `TILECORE_DATABASE_URL=sqlite:////path/to/it tilecore migrate`"
    try:
        for one, what_to_do in ((given, hint), (database, "")):
            found = revision(one)
            if found is None and one is given:
                raise NotADatabase(url=one.shown_url, found="no tables")
            if found != HEAD:
                raise SchemaTooOld(
                    url=one.shown_url, expected=HEAD, found=found or "no schema", hint=what_to_do
                )
        with (
            database.errors(), given.read() as reader, database.engine.connect() as writer,
            writer.begin(),
        ):  # fmt: skip
            origin = reader.connection()
            origin.exec_driver_sql("BEGIN")  # one state of the file, whoever writes it meanwhile
            return _copy(origin, writer, database.shown_url)
    finally:
        given.close()


def _copy(origin: Connection, writer: Connection, url: str) -> dict[str, int]:
    tables = [t for t in Base.metadata.sorted_tables if t.name not in OWN]
    is_server = writer.dialect.name == "postgresql"
    if is_server:  # SQLite's transaction keeps everybody else out by itself
        names = ", ".join(t.name for t in tables)
        writer.exec_driver_sql(f"lock table {names} in access exclusive mode")
    for table in tables:
        if writer.execute(select(literal_column("1")).select_from(table).limit(1)).first():
            raise NotEmpty(url=url, found=table.name)
    counts = {}
    for table in tables:
        counts[table.name] = _copy_table(table, origin, writer)
        if is_server:
            _go_on_counting(table, writer)
    return counts


def _copy_table(table: Table, origin: Connection, writer: Connection) -> int:
    count = 0
    rows = origin.execution_options(yield_per=BATCH).execute(select(table))
    for batch in rows.mappings().partitions(BATCH):
        writer.execute(insert(table), [dict(row) for row in batch])
        count += len(batch)
    return count


def _go_on_counting(table: Table, writer: Connection) -> None:
    """Have a server number new rows after those that were copied with their numbers."""
    column = table.autoincrement_column
    if column is None:
        return
    sequence = writer.execute(
        text("select pg_get_serial_sequence(:table, :column)"),
        {"table": table.name, "column": column.name},
    ).scalar()
    last = writer.execute(select(func.max(column))).scalar()
    if sequence is not None and last is not None:
        writer.execute(text("select setval(:name, :last)"), {"name": sequence, "last": last})
