"""Reads dispatch tables: every field is there, of its type, in its range, and fits the others."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tilecore.dispatch_table import (
    FORMAT,
    RULES,
    VERSION,
    DispatchTable,
    Range,
    Served,
)
from tilecore.errors import InvalidDispatchTable
from tilecore.tile_config import TileConfig

MAX_SIZE = 1 << 20
MAX_BYTES = 16 << 20
MAX_ENTRIES = 4096
SOURCES = ("measured", "screened", "predicted", "prior", "analytic")
Check = Callable[["Place", Any], Any]


class Place:
    """Where in the document a value stands: errors name it."""

    def __init__(self, path: str, inside: str = "") -> None:
        self.path, self.inside = path, inside

    def at(self, step: str | int) -> Place:
        """Return the place of a part."""
        name = f"[{step}]" if isinstance(step, int) else f".{step}" if self.inside else step
        return Place(self.path, self.inside + name)

    def fail(self, expected: str, found: Any) -> NoReturn:
        """Raise the error that names this place (TC506)."""
        where = f"{self.path}: {self.inside}" if self.inside else self.path
        shown = repr(found)
        raise InvalidDispatchTable(
            path=where, expected=expected, found=shown if len(shown) <= 80 else shown[:77] + "..."
        )


def load_table(path: Path | str) -> DispatchTable:
    """Return the table in a file.

    Raises:
        InvalidDispatchTable: it cannot be read or is no dispatch table (TC506).
    """
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        document = json.loads(Path(path).read_bytes(), parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as error:
        expected = f"a dispatch table (format {FORMAT}, version {VERSION})"
        found = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InvalidDispatchTable(path=path, expected=expected, found=found) from error
    return read_table(document, str(path))


def read_table(document: Any, path: str = "table") -> DispatchTable:
    """Return the table that JSON values describe; ``path`` is named in errors.

    Raises:
        InvalidDispatchTable: it is none (TC506).
    """
    root = Place(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = _kind(document)
        if isinstance(document, dict) and document and all(key.isdecimal() for key in document):
            found = "a file of `tilecore dispatch --format vllm`"
        root.fail(f"an object with format {FORMAT!r}", found)
    if document.get("version") != VERSION:
        root.at("version").fail(f"{VERSION}, which this tilecore reads", document.get("version"))
    fields = {k: v for k, v in document.items() if k not in ("format", "version")}
    table = DispatchTable(**_members(root, fields, _TABLE))
    _check_whole(root, table)
    return table


def _check_whole(root: Place, table: DispatchTable) -> None:
    """Check what fields say of each other."""
    shared = sorted(set(table.dims) & set(table.problem))
    if shared:
        root.at("problem").fail("no field that is one of `dims`", shared[0])
    _check_shapes(root.at("shapes"), table)
    if table.rule == "ranges":
        _check_ranges(root.at("ranges"), table)
    elif table.ranges:
        root.at("ranges").fail("no ranges with the rule 'nearest'", f"{len(table.ranges)}")


def _check_shapes(place: Place, table: DispatchTable) -> None:
    rank, count = len(table.dims), len(table.configs)
    for i, served in enumerate(table.shapes):
        if len(served.shape) != rank:
            place.at(i).at("shape").fail(f"{rank} sizes", list(served.shape))
        if served.config >= count:
            place.at(i).at("config").fail(f"at most {count - 1}", served.config)
    for i, (a, b) in enumerate(itertools.pairwise(table.shapes), 1):
        if not a.shape < b.shape:
            place.at(i).at("shape").fail("shapes in ascending order, each once", list(b.shape))


def _check_ranges(place: Place, table: DispatchTable) -> None:
    rank, count = len(table.dims), len(table.configs)
    if rank != 1 or not table.ranges:
        found = f"{rank} and {len(table.ranges)}"
        place.fail("one dimension and one range at least with the rule 'ranges'", found)
    for i, r in enumerate(table.ranges):
        if r.config >= count:
            place.at(i).at("config").fail(f"at most {count - 1}", r.config)
        if r.last < r.first:
            place.at(i).fail("first <= last", [r.first, r.last])
        if i and r.first != table.ranges[i - 1].last + 1:
            place.at(i).at("first").fail(f"{table.ranges[i - 1].last + 1}, without a gap", r.first)


# --- parts ------------------------------------------------------------------------------------


def _members(place: Place, values: Any, checks: Mapping[str, Check]) -> dict[str, Any]:
    if not isinstance(values, dict):
        place.fail("an object", _kind(values))
    for name in checks:
        if name not in values:
            place.fail(f"a field {name!r}", f"none among {', '.join(map(str, values)) or 'none'}")
    for name in values:
        if name not in checks:
            place.fail(f"fields {', '.join(checks)}", name)
    return {name: check(place.at(name), values[name]) for name, check in checks.items()}


def _text(place: Place, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 2000:
        place.fail("a text", value)
    return str(value)


def _integer(low: int, high: int) -> Check:
    def check(place: Place, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            place.fail(f"an integer from {low} to {high}", value)
        return int(value)

    return check


def _number(low: float, *, is_open: bool = False) -> Check:
    def check(place: Place, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (math.isfinite(value) and value >= low):
            place.fail(f"a number from {low:g} up", value)
        if is_open and value == low:
            place.fail(f"a number above {low:g}", value)
        return float(value)

    return check


def _one_of(*choices: str) -> Check:
    def check(place: Place, value: Any) -> str:
        if value not in choices:
            place.fail(f"one of {', '.join(choices)}", value)
        return str(value)

    return check


def _list_of(check: Check, least: int = 0) -> Check:
    def whole(place: Place, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not least <= len(value) <= MAX_ENTRIES:
            place.fail(f"a list of {least} to {MAX_ENTRIES}", _kind(value))
        return tuple(check(place.at(i), part) for i, part in enumerate(value))

    return whole


def _mapping_of(check: Check) -> Check:
    def whole(place: Place, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > 64:
            place.fail("an object of at most 64 fields", _kind(value))
        return {_text(place, k): check(place.at(k), v) for k, v in value.items()}

    return whole


def _knob(place: Place, value: Any) -> int | str | bool:
    if not isinstance(value, int | str) or len(str(value)) > 64:
        place.fail("an integer, a flag or a short text", value)
    return value


def _config(place: Place, value: Any) -> TileConfig:
    return TileConfig.of(_mapping_of(_knob)(place, value))


def _range(place: Place, value: Any) -> Range:
    return Range(**_members(place, value, _RANGE))


def _served(place: Place, value: Any) -> Served:
    found = _members(place, value, _SHAPE)
    low_us, high_us = found["interval_us"]
    if not low_us <= high_us:
        place.at("interval_us").fail("its ends in ascending order", [low_us, high_us])
    return Served(
        shape=found["shape"], weight=found["weight"], config=found["config"],
        time_s=found["time_us"] / 1e6, best_s=found["best_us"] / 1e6, source=found["source"],
        best_source=found["best_source"], interval_s=(low_us / 1e6, high_us / 1e6),
    )  # fmt: skip


def _pair(place: Place, value: Any) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        place.fail("a list of two numbers", value)
    low, high = (_number(0.0)(place.at(i), part) for i, part in enumerate(value))
    return low, high


def _dims(place: Place, value: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = _list_of(_text, 1)(place, value)
    if len(set(names)) != len(names):
        place.fail("each dimension once", value)
    return names


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no JSON")


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return kinds.get(type(value), type(value).__name__)


_SIZE = _integer(1, MAX_SIZE)
_PLACE = _integer(0, MAX_ENTRIES)
_RANGE: dict[str, Check] = {"first": _SIZE, "last": _SIZE, "config": _PLACE}
_SHAPE: dict[str, Check] = {
    "shape": _list_of(_SIZE, 1), "weight": _number(0.0), "config": _PLACE,
    "time_us": _number(0.0, is_open=True), "interval_us": _pair,
    "best_us": _number(0.0, is_open=True), "loss": _number(-1.0),
    "source": _one_of(*SOURCES), "best_source": _one_of(*SOURCES),
}  # fmt: skip
_TABLE: dict[str, Check] = {
    "kernel": _text, "program_digest": _text, "problem": _mapping_of(_knob), "dims": _dims,
    "threads": _integer(0, 1 << 16), "hardware": _text, "hardware_key": _text, "target": _text,
    "toolchain": _mapping_of(_text), "tolerance": _number(0.0), "created_at": _text,
    "rule": _one_of(*RULES), "method": _text, "reason": _text,
    "configs": _list_of(_config, 1), "ranges": _list_of(_range), "shapes": _list_of(_served, 1),
}  # fmt: skip
