"""Cells: some entries of a dict, attributes of a class, or a variable of a closure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import CellType
from typing import Any

CONTENTS = "cell_contents"  # the key of a closure's variable


class Cells:
    """Some of what a dict, a class or a variable of a closure holds.

    Attributes:
        owner: what holds them.
        keys: which; some may be missing at the moment.
    """

    def __init__(self, owner: Any, keys: Sequence[Any]) -> None:
        self.owner, self.keys = owner, tuple(keys)

    def items(self) -> dict[Any, Any]:
        """Return what is in them, by their keys."""
        if isinstance(self.owner, CellType):
            try:
                return {CONTENTS: self.owner.cell_contents}
            except ValueError:  # it has none yet
                return {}
        held = vars(self.owner) if isinstance(self.owner, type) else self.owner
        return {key: held[key] for key in self.keys if key in held}

    def fill(self, items: Mapping[Any, Any]) -> None:
        """Have them hold some items and nothing else."""
        gone = self.items().keys() - items.keys()
        if isinstance(self.owner, dict):
            for key in gone:
                del self.owner[key]
            self.owner.update(items)
            return
        for key in gone:
            delattr(self.owner, key)
        for key, item in items.items():
            setattr(self.owner, key, item)
