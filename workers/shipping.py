"""Artifacts on the move: from the machine that compiled to the machine that measures."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from workers.outcome import Compiled

SINGLE = ""  # the name under which an artifact that is one file travels


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped(Compiled):
    """A compiled candidate together with its files' content, by name below ``path``."""

    files: Mapping[str, bytes] = field(default_factory=dict)


def pack(compiled: Compiled) -> Shipped:
    """Return the candidate with the content of its artifact (a file or a directory)."""
    path = Path(compiled.path)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file())
        files = {p.relative_to(path).as_posix(): p.read_bytes() for p in found}
    else:
        files = {SINGLE: path.read_bytes()}
    values = {f.name: getattr(compiled, f.name) for f in fields(Compiled)}
    return Shipped(**values, files=files)


def unpack(compiled: Compiled, store: Path) -> Compiled:
    """Return the candidate with a path on this machine, writing its files if they are missing.

    A file appears under its name only when complete (rename), so that readers see all or nothing.
    """
    if not isinstance(compiled, Shipped) or Path(compiled.path).exists():
        return compiled
    place = store / Path(compiled.path).name
    for name, content in compiled.files.items():
        target = place if name == SINGLE else place / name
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(partial, target)
    return replace(compiled, path=str(place), files={})
