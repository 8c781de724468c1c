"""What databases refuse in values, and what takes its place.

PostgreSQL stores no NUL in a text and no NaN or infinity in JSON; neither database stores half a
surrogate pair. A candidate's last words may hold any of them, and must not cost its record.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import from_json

BRACKETS, DECODER = frozenset("{["), json.JSONDecoder()
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
NUL_SIGN, UNKNOWN = "\N{SYMBOL FOR NULL}", "\N{REPLACEMENT CHARACTER}"


def storable_text(text: str) -> str:
    """Return a text of the same length that both databases store."""
    return UNSTORABLE.sub(lambda found: NUL_SIGN if found[0] == "\0" else UNKNOWN, text)


def storable_parameters(parameters: Any) -> Any:
    """Return the parameters of a statement, or of many, with texts that can be stored."""
    if isinstance(parameters, list):
        return [storable_parameters(row) for row in parameters]
    if isinstance(parameters, Mapping):
        if _are_storable(parameters.values()):
            return parameters
        return {name: _stored(value) for name, value in parameters.items()}
    if isinstance(parameters, tuple) and not _are_storable(parameters):
        return tuple(map(_stored, parameters))
    return parameters


def storable_json(value: Any) -> str:
    """Return JSON that both databases store: null for what is no number."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_plain(value))
    is_suspect = "\\u0000" in text or "\\ud" in text
    return json.dumps(_plain(value)) if is_suspect else text


def stored_json(stored: str | bytes) -> Any:
    """Return the value of JSON as it is stored; most of it is short."""
    text = stored.decode() if isinstance(stored, bytes) else stored  # PostgreSQL's driver
    if text[:1] in BRACKETS:
        value, end = DECODER.raw_decode(text)  # json.loads takes twice as long to get there
        if end == len(text):
            return value
    return json.loads(text)


def decoded_json(text: str) -> Any:
    """Return the value of JSON of the database, three times as fast as ``json`` does."""
    try:
        return from_json(text)
    except ValueError:  # half a surrogate pair, of a release that stored them
        return json.loads(text)


def _are_storable(values: Iterable[Any]) -> bool:
    """Return whether all texts among some values can be stored: asked of every statement."""
    text = "".join([value for value in values if isinstance(value, str)])
    return "\0" not in text if text.isascii() else UNSTORABLE.search(text) is None


def _stored(value: Any) -> Any:
    return storable_text(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_stored(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
