"""How much space a database takes, and giving back what is free in it."""

from __future__ import annotations

import sqlite3

from sqlalchemy import exc as sa_exc

from db.session import Database

TABLES = ("measurement", "measurement_sample", "trial", "event", "compacted")


def size_bytes(database: Database) -> int:
    """Return the bytes of a database."""
    with database.errors(), database.engine.connect() as connection:
        if database.path is None:
            query = "select pg_database_size(current_database())"
            return int(connection.exec_driver_sql(query).scalar_one())
        driver = connection.connection.dbapi_connection
        assert driver is not None
        sizes = [driver.cursor().execute(f"PRAGMA {n}").fetchone()[0] for n in PAGES]
        return int(sizes[0]) * int(sizes[1])


PAGES = ("page_count", "page_size")


def give_back(database: Database, *, full: bool = False) -> str:
    """Return free space to the system (PostgreSQL: for reuse, unless ``full``).

    Returns:
        "", or why that was not possible: what is free is used again then.
    """
    if database.path is not None:
        return _vacuum_sqlite(database)
    engine = database.engine.execution_options(isolation_level="AUTOCOMMIT")
    options = "full, analyze" if full else "analyze"
    try:
        with engine.connect() as connection:
            for table in TABLES:
                connection.exec_driver_sql(f"vacuum ({options}) {table}")
    except sa_exc.DBAPIError as error:
        return f"no space given back: {str(error.orig).splitlines()[0]}"
    return ""


def _vacuum_sqlite(database: Database) -> str:
    with database.engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        assert driver is not None
        try:
            driver.cursor().execute("VACUUM")  # not in a transaction: SQLAlchemy has begun none
            driver.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError as error:
            return f"no space given back: {error}"
    return ""
