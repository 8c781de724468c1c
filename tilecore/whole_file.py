"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield where to write what ``path`` shall hold; it takes that place when all has gone well.

    Raises:
        OSError: it cannot take the place.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        with suppress(OSError):  # a disk that can only be read says so of a file that is not there
            partial.unlink(missing_ok=True)
