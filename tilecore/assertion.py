"""How an assertion that fails inside compiled code comes back as an error with its source line."""

from __future__ import annotations

import json

from tilecore.errors import AssertionFailed, SourceSpan

MARK = "tilecore-assertion "


def failure_text(message: str, span: SourceSpan) -> str:
    """Return what compiled code says when an assertion fails."""
    place = [span.file, span.line, span.column, span.end_column]
    return MARK + json.dumps([message, place])


def parse_failure(text: str) -> AssertionFailed | None:
    """Return the error that ``failure_text`` stands for somewhere in ``text``, or None."""
    start = text.find(MARK)
    if start < 0:
        return None
    (message, place), _ = json.JSONDecoder().raw_decode(text[start + len(MARK) :])
    return AssertionFailed(message=message, span=SourceSpan(*place))
