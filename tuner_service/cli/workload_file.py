"""Files of workloads: many problems for one `tilecore tune --file`, as text, CSV or JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tilecore.errors import TileError
from tilecore.utils.json_once import once
from tuner_service.errors import InvalidWorkloads
from tuner_service.questions import assigned

MAX_WORKLOADS = 256
MAX_BYTES = 1 << 20
SHOWN_FAULTS = 5
OF_THE_RUN = ("kernel", "threads")  # columns that are no fields of the problem
T = TypeVar("T")
Parse = Callable[[str, Any], "Entry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One workload of a file, as written."""

    where: str
    kernel: str
    problem: Mapping[str, Any]
    threads: int = 0


def read_workloads(path: Path, understand: Callable[[Entry], T]) -> Sequence[T]:
    """Return what ``understand`` makes of every entry of a file.

    `.json`: a list of objects with `kernel`, `threads` and either `problem` or its fields beside
    them; `.csv`: such columns; anything else: lines `kernel field=value ...`, `#` for comments.

    Raises:
        InvalidWorkloads: the file cannot be read, or lines of it cannot be used: all of them are
            named (SV915).
    """
    faults: list[str] = []
    found: list[T] = []
    for where, parse, raw in _entries(path):
        try:
            found.append(understand(parse(where, raw)))
        except (TileError, ValueError) as error:
            text = f"{error.code} {error.message}" if isinstance(error, TileError) else str(error)
            faults.append(f"{where}: {text}")
    if faults:
        more = f" (and {len(faults) - SHOWN_FAULTS} more)" if len(faults) > SHOWN_FAULTS else ""
        raise InvalidWorkloads(path=path, faults="; ".join(faults[:SHOWN_FAULTS]) + more)
    if not 1 <= len(found) <= MAX_WORKLOADS:
        expected = f"expected 1 to {MAX_WORKLOADS} workloads, found {len(found)}"
        raise InvalidWorkloads(path=path, faults=expected)
    return found


def _entries(path: Path) -> Sequence[tuple[str, Parse, Any]]:
    """Return where each entry stands, what parses it, and the entry."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"expected at most {MAX_BYTES} bytes, found {path.stat().st_size}")
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets begin with a mark
        if path.suffix == ".json":
            listed = json.loads(text, object_pairs_hook=once)
            if not isinstance(listed, list):
                raise ValueError(f"expected a list, found {type(listed).__name__}")
            return [(f"entry {i}", _of_json, entry) for i, entry in enumerate(listed, 1)]
        if path.suffix == ".csv":
            table = csv.DictReader(text.splitlines(), strict=True)
            names = list(table.fieldnames or ())
            if len(set(names)) < len(names):
                raise ValueError(f"expected every column once, found {', '.join(names)}")
            return [(f"line {i}", _of_row, row) for i, row in enumerate(table, 2)]
        lines = [line.split("#")[0].split() for line in text.splitlines()]
        return [(f"line {i}", _of_words, words) for i, words in enumerate(lines, 1) if words]
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidWorkloads(path=path, faults=reason) from error


def _of_json(where: str, found: Any) -> Entry:
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, found {type(found).__name__}")
    if "problem" in found:
        unknown = set(found) - {"problem", *OF_THE_RUN}
        if unknown or not isinstance(found["problem"], dict):
            raise ValueError("expected `kernel`, `threads` and an object `problem`, nothing else")
        return _entry(where, found, found["problem"])
    fields = {name: value for name, value in found.items() if name not in OF_THE_RUN}
    return _entry(where, found, fields)


def _of_row(where: str, row: Mapping[str | None, Any]) -> Entry:
    if None in row or None in row.values():
        raise ValueError("expected as many values as the first line has names")
    return _of_texts(where, [f"{name}={value}" for name, value in row.items() if value != ""])


def _of_words(where: str, words: Sequence[str]) -> Entry:
    kernel = [] if "=" in words[0] else [f"kernel={words[0]}"]
    texts = [*kernel, *words[1 if kernel else 0 :]]
    return _of_texts(where, texts)


def _of_texts(where: str, texts: Sequence[str]) -> Entry:
    found = assigned("workload", texts)
    fields = {name: value for name, value in found.items() if name not in OF_THE_RUN}
    return _entry(where, found, fields)


def _entry(where: str, found: Mapping[str, Any], problem: Mapping[str, Any]) -> Entry:
    kernel, threads = found.get("kernel", "gemm"), found.get("threads", 0)
    if not isinstance(kernel, str):
        raise ValueError(f"kernel: expected a name, found {kernel!r}")
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise ValueError(f"threads: expected an integer, found {threads!r}")
    return Entry(where=where, kernel=kernel, problem=problem, threads=threads)
