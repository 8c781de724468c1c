"""The URL of an SQLite file, as people read and write it."""

from __future__ import annotations

from pathlib import Path


def file_url(path: Path) -> str:
    """Return a URL that names the file, whatever its folders are called; only % and ? are encoded.

    SQLAlchemy decodes the path of a URL and ends it at a question mark.
    """
    return f"sqlite:///{str(path).replace('%', '%25').replace('?', '%3F')}"
