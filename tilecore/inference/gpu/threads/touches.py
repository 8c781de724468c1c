"""What statements touch of the memory of a block and of tensors, between two barriers."""

from __future__ import annotations

from dataclasses import dataclass

from tilecore.inference.gpu.threads.teams import Team
from tilecore.ir.arithmetic.polynomial import Key
from tilecore.ir.nodes import Buffer


@dataclass(frozen=True, slots=True)
class Touch:
    """An access of a buffer: by a tile statement, or by each thread for itself.

    ``own``: (axis, index) where no two threads ever have the same index; ``source``: the id of the
    statement; ``until``: the barriers of the program on which who needs this to be done waits;
    ``is_apart``: whether the same statement has written other elements since.
    """

    buffer: Buffer
    is_tile: bool
    team: Team
    own: frozenset[tuple[int, Key]] = frozenset()
    source: int = 0
    until: Buffer | None = None
    is_apart: bool = False


@dataclass(frozen=True, slots=True)
class Touched:
    """Memory touched since the last barrier."""

    read: frozenset[Touch] = frozenset()
    written: frozenset[Touch] = frozenset()

    def union(self, other: Touched) -> Touched:
        """Return what either touched."""
        return Touched(self.read | other.read, self.written | other.written)

    def without(self, team: Team) -> Touched:
        """Return what other teams touched."""
        kept = (frozenset(t for t in s if t.team != team) for s in (self.read, self.written))
        return Touched(*kept)
