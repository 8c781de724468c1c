"""Checks: whether entries of dicts, lists and closures are what they were, in one expression.

The expression is compiled, with a term for each entry (``benchmarks/held_state.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_
from types import CellType
from typing import Any

WRITTEN = (str, int)  # types of keys that stand in the expression themselves


class Check:
    """Entries, and what they were when it was last compiled or refreshed."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {"same": _same}
        self._now: list[str] = []  # expressions
        self._conditions: list[str] = []  # on what they were: was0, was1, ...

    def __len__(self) -> int:
        return len(self._now)

    def entries(self, owner: Any, keys: Iterable[Any]) -> None:
        """Look at some entries of a dict or list."""
        name = self._named(owner)
        for key in keys:
            text = repr(key) if type(key) in WRITTEN else self._named(key)
            self._add(f"{name}[{text}]", f"{name}[{text}] is {{}}")

    def size(self, owner: Any) -> None:
        """Look at how many entries there are."""
        name = self._named(owner)
        self._add(f"len({name})", f"len({name}) == {{}}" if owner else f"not {name}")

    def parts(self, owner: Any) -> None:
        """Look at all of a set, in the order in which it has them."""
        name = self._named(owner)
        self._add(f"tuple({name})", f"same({name}, {{}})")

    def variable(self, cell: CellType) -> None:
        """Look at a variable of a closure."""
        name = self._named(cell)
        self._add(f"{name}.cell_contents", f"{name}.cell_contents is {{}}")

    def compile(self) -> None:
        """Have ``holds`` compare with what is there now."""
        whole = " and ".join(self._conditions) or "True"
        listed = ", ".join(self._now)
        exec(f"def holds(): return {whole}\ndef now(): return [{listed}]", self._names)
        self.refresh()

    def holds(self) -> bool:
        """Return whether all is what it was.

        Raises:
            KeyError, IndexError, ValueError: an entry is gone.
        """
        return bool(self._names["holds"]())

    def refresh(self) -> None:
        """Compare with what is there now."""
        self._names.update((f"was{i}", value) for i, value in enumerate(self._names["now"]()))

    def _named(self, value: Any) -> str:
        name = f"of{len(self._names)}"
        self._names[name] = value
        return name

    def _add(self, now: str, condition: str) -> None:
        self._conditions.append(condition.format(f"was{len(self._now)}"))
        self._now.append(now)


def _same(owner: Any, parts: tuple[Any, ...]) -> bool:
    return len(owner) == len(parts) and all(map(is_, owner, parts))
