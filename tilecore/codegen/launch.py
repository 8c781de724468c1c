"""The object file that every CPU kernel is linked with: its way to the threads of torch."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from pathlib import Path

from tilecore.artifact import compiler_versions
from tilecore.codegen.llvm import assemble

SOURCE = Path(__file__).with_name("launch.ll")


def launcher(folder: Path) -> Path:
    """Return the object file of ``launch.ll`` in a folder, made there if it lacks.

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


@functools.cache
def _object() -> bytes:
    """Return the object file: made once in a process, however many folders it goes to."""
    with tempfile.TemporaryDirectory(prefix="tilecore-") as folder:
        path = Path(folder) / "launch.o"
        assemble(SOURCE.read_text()).write_to_file(str(path), "o")
        return path.read_bytes()


@functools.cache
def _version() -> str:
    text = f"{SOURCE.read_text()} {sorted(compiler_versions().items())}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
