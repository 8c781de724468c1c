"""How what fails inside compiled code comes back as an error: assertions, faults of an emulator."""

from __future__ import annotations

import json

from tilecore.errors import AssertionFailed, EmulationError, SourceSpan

MARK = "tilecore-assertion "
EMULATION_MARK = "tilecore-emulation "


def failure_text(message: str, span: SourceSpan) -> str:
    """Return what compiled code says when an assertion fails."""
    place = [span.file, span.line, span.column, span.end_column]
    return MARK + json.dumps([message, place])


def parse_failure(text: str, kernel: str) -> AssertionFailed | EmulationError | None:
    """Return the error that a failure says somewhere in ``text``, or None."""
    _, is_fault, what = text.partition(EMULATION_MARK)
    if is_fault:
        return EmulationError(kernel=kernel, what=what.splitlines()[0])
    start = text.find(MARK)
    if start < 0:
        return None
    (message, place), _ = json.JSONDecoder().raw_decode(text[start + len(MARK) :])
    return AssertionFailed(message=message, span=SourceSpan(*place))
