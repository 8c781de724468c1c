"""Turn: which of several participants a process is timing just now, in a file that outlives it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Turn:
    """A file with the name of the participant whose turn it is.

    Who times writes it before each turn, not within one; who owns that process reads it once the
    process has died or hangs.
    """

    path: Path

    def begin(self, name: str) -> None:
        """Note that a participant's turn begins."""
        self.path.write_text(name)

    def whose(self) -> str:
        """Return the name of the last one whose turn began, "" where none did."""
        return self.path.read_text()
