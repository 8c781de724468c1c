"""A copy of an embedded database while others write: whole, or not there."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from db.errors import BackupFailed
from tilecore.whole_file import written_whole

OURS = "select 1 from sqlite_master where name = 'alembic_version'"
EMPTY = "look whether TILECORE_DATA_DIR or TILECORE_DATABASE_URL names the right database"


def back_up(path: Path, target: Path) -> int:
    """Copy an SQLite database, with what its write-ahead log has yet; return the bytes.

    A file that is there is replaced, at once and by a copy that was checked.

    Raises:
        BackupFailed: it cannot be written, or what was copied is damaged, or
            is no database of tilecore's (DB833).
    """
    if not path.exists():  # sqlite3 would make an empty one
        raise BackupFailed(path=path, reason="there is no such database")
    if target.exists() and target.samefile(path):
        raise BackupFailed(path=target, reason="it is the database itself")
    try:
        with written_whole(target) as partial:
            partial.unlink(missing_ok=True)
            with closing(sqlite3.connect(partial)) as copy:
                with closing(sqlite3.connect(path)) as source:
                    source.backup(copy)
                copy.execute("pragma journal_mode = delete")  # one file, without a log beside it
                (found,) = copy.execute("pragma quick_check(1)").fetchone()
                is_ours = copy.execute(OURS).fetchone() is not None
            if found != "ok":
                raise BackupFailed(path=path, reason=f"it is damaged: {found}")
            if not is_ours:  # an empty file is a database to SQLite
                raise BackupFailed(path=path, reason="it has no table of tilecore's", hint=EMPTY)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            return partial.stat().st_size
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BackupFailed(path=target, reason=reason) from error
