"""JSON in which every member of an object comes once: Python's reader takes the last of two."""

from __future__ import annotations

from collections import Counter
from typing import Any


class ComesTwice(ValueError):
    """A member of an object comes twice."""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members; for ``json.loads(text, object_pairs_hook=once)``.

    Raises:
        ComesTwice: one does.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ComesTwice(f"member {counts.most_common(1)[0][0][:40]!r} twice in one object")
    return found
