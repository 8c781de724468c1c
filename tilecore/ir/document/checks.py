"""What JSON may hold: checks of single values; every complaint names the place in the document."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tilecore.errors import InvalidDocument
from tilecore.ir.document.grammar import MOST_NODES
from tilecore.ir.dtype import BITS, DType

NAME = re.compile(r"[^\W\d][\w.]*")  # as Python's: letters of any script
FILE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
MOST_SHOWN, LONGEST_NAME = 80, 128


@dataclass(frozen=True, slots=True)
class Limits:
    """What a document may hold at most."""

    nodes: int = MOST_NODES  # statements, expressions, regions and hints together
    depth: int = 96  # of statements and expressions inside each other
    names: int = 4096  # vars, and buffers
    axes: int = 16
    text: int = 1000  # characters of a message
    layout: int = 1 << 18  # elements of a tile with a layout of its own
    threads: int = 1 << 16
    files: int = 64


class Checks:
    """Values of one document, checked one by one and counted."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.nodes = 0

    def fail(self, path: str, expected: str, found: Any) -> NoReturn:
        """Complain about the value at ``path``."""
        shown = found if isinstance(found, str) else _shown(found)
        raise InvalidDocument(path=path or "/", expected=expected, found=shown[:MOST_SHOWN])

    def members(self, value: Any, known: Collection[str], path: str) -> dict[str, Any]:
        """Return an object that has no other members."""
        if not isinstance(value, dict):
            self.fail(path, "an object", value)
        for name in value:
            if name not in known:
                self.fail(path, f"one of {', '.join(sorted(known))}", f"member {name[:40]!r}")
        return value

    def items(self, value: Any, path: str, most: int) -> list[Any]:
        """Return a list of at most so many items."""
        if not isinstance(value, list):
            self.fail(path, "a list", value)
        if len(value) > most:
            self.fail(path, f"at most {most} items", f"{len(value)}")
        return value

    def matching(self, value: Any, pattern: re.Pattern[str], path: str, what: str) -> str:
        """Return a short text of a form."""
        if not isinstance(value, str) or not pattern.fullmatch(value):
            self.fail(path, what, value)
        if len(value) > LONGEST_NAME:
            self.fail(path, f"{what} of at most {LONGEST_NAME} characters", value)
        return value

    def text(self, value: Any, path: str, choices: Sequence[str] = ()) -> str:
        """Return a printable text, one of ``choices`` where there are some."""
        if not isinstance(value, str) or (choices and value not in choices):
            self.fail(path, f"one of {', '.join(choices)}" if choices else "a text", value)
        if len(value) > self.limits.text or not all(c.isprintable() or c == "\n" for c in value):
            self.fail(path, f"at most {self.limits.text} printable characters", "another text")
        return value

    def integer(self, value: Any, path: str, low: int, high: int) -> int:
        """Return an integer within bounds."""
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.fail(path, f"an integer from {low} to {high}", value)
        return value

    def flag(self, value: Any, path: str) -> bool:
        """Return true or false."""
        if not isinstance(value, bool):
            self.fail(path, "true or false", value)
        return value

    def dtype(self, value: Any, path: str) -> DType:
        """Return the element type of a name."""
        if not isinstance(value, str) or value not in BITS:
            self.fail(path, "the name of an element type", value)
        return DType(value)

    def count(self, path: str, depth: int) -> None:
        """Count one more node, this deep."""
        self.nodes += 1
        if self.nodes > self.limits.nodes:
            self.fail(path, f"at most {self.limits.nodes} nodes", "more")
        if depth > self.limits.depth:
            self.fail(path, f"at most {self.limits.depth} levels", "more")


def _shown(value: Any) -> str:
    """Return a value as a short text, however long it is."""
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {', '.join(map(repr, list(value)[:4]))}"[:80]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 64:
        return "an integer of more than 64 bits"
    return repr(value)[:60]
