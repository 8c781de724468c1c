"""URLs of databases: of files, as people read them, and of servers with a password file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

PASSWORD_FILE = "password_file"  # of a URL's query: ``db.session.Database`` reads it


def file_url(path: Path) -> str:
    """Return a URL that names the file, whatever its folders are called; only % and ? are encoded.

    SQLAlchemy decodes the path of a URL and ends it at a question mark.
    """
    return f"sqlite:///{str(path).replace('%', '%25').replace('?', '%3F')}"


def with_password_file(url: str, path: Path) -> str:
    """Return a server's URL that names the file with its password, not what that holds now."""
    separator = "&" if "?" in url else "?"
    return f"{url}{separator}{PASSWORD_FILE}={quote(str(path.absolute()))}"
