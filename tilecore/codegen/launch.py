"""The object file that every CPU kernel is linked with: its entry, and how it starts threads."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from pathlib import Path

from tilecore.artifact import compiler_versions
from tilecore.codegen.llvm import assemble

SOURCES = tuple(Path(__file__).with_name(name) for name in ("launch.ll", "accept.ll"))


def launcher(folder: Path) -> Path:
    """Return the object file of ``SOURCES`` in a folder, made there if it lacks.

    Raises:
        CompileFailed: LLVM rejects the text (TC305).
    """
    path = folder / f"launch-{_version()}.o"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".staging-", dir=folder) as staging:
            made = Path(staging) / path.name
            made.write_bytes(_object())
            made.replace(path)
    return path


def _text() -> str:
    return "\n".join(source.read_text(encoding="utf-8") for source in SOURCES)


@functools.cache
def _object() -> bytes:
    """Return the object file: made once in a process, however many folders it goes to."""
    with tempfile.TemporaryDirectory(prefix="tilecore-") as folder:
        path = Path(folder) / "launch.o"
        assemble(_text()).write_to_file(str(path), "o")
        return path.read_bytes()


@functools.cache
def _version() -> str:
    text = f"{_text()} {sorted(compiler_versions().items())}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
