"""What pydantic refuses, in our words: what was expected, what was found."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from db.storable import storable_text
from tuner_service.errors import InvalidRequest

LONGEST = 60  # characters of what was found
EXPECTED = {  # by pydantic's type of an error; its context has the rest
    "missing": "a value",
    "extra_forbidden": "a known field",
    "greater_than_equal": "a number from {ge} up",
    "greater_than": "a number above {gt}",
    "less_than_equal": "a number up to {le}",
    "less_than": "a number below {lt}",
    "finite_number": "a finite number",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "a shorter integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "string_too_short": "a text of at least {min_length} character(s)",
    "string_too_long": "a text of at most {max_length} characters",
    "string_pattern_mismatch": "a text of the form {pattern}",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "timezone_aware": "a time with its zone (2026-11-22T10:00:00Z)",
    "json_invalid": "JSON",
}


def told(fault: Mapping[str, Any]) -> str:
    """Return what one of the errors of a ``ValidationError`` says."""
    kind, context = fault["type"], fault.get("ctx", {})
    form = EXPECTED.get(kind)
    if form is None:
        message = str(fault["msg"]).removeprefix("Value error, ")
        is_whole = isinstance(fault.get("input"), dict | list)  # of which the message tells a part
        if is_whole or "found" in message:
            return storable_text(message)
        return storable_text(f"{message}, found {_shown(fault.get('input'))}")
    return storable_text(f"expected {form.format(**context)}, found {_found(fault, kind, context)}")


def _found(fault: Mapping[str, Any], kind: str, context: Mapping[str, Any]) -> str:
    if kind == "missing":
        return "none"
    if kind == "extra_forbidden":
        return "an unknown one"
    if kind == "json_invalid":
        return f"at character {fault['loc'][-1]}: {context['error']}"
    if kind in ("too_short", "too_long"):
        length = context.get("actual_length")
        return "more" if length is None else str(length)
    return _shown(fault.get("input"))


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def in_utc(name: str, at: datetime | None) -> datetime | None:
    """Return a time in UTC; one without an offset is in UTC already.

    Raises:
        InvalidRequest: there it is beyond the years that there are (SV901).
    """
    try:
        if at is None or at.tzinfo is None:
            return at and at.replace(tzinfo=UTC)
        return at.astimezone(UTC)
    except OverflowError as error:
        expected = "a time from year 1 to year 9999 in UTC"
        raise InvalidRequest(message=f"{name}: expected {expected}, found {at}") from error
