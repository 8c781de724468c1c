"""Plans of a computation by what its function held when they were read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tilecore.computing.planning.plan import Plan
from tilecore.computing.planning.varying import Family
from tilecore.computing.reading.held import Change, Held, Taken
from tilecore.runtime.memo import Memo

MOST = 8  # states that plans are kept for
MOST_TAKEN = 16  # entries that others changed at once; with more the function is read again
MOST_SIZED = 128  # plans for sizes that vary: they are made in a moment, but not small
_LOG = logging.getLogger("tilecore.computing")


@dataclass(eq=False)
class Variant:
    """Plans that were read while the function held the same.

    Attributes:
        held: what that is.
        containers: what of it calls pass, by a name.
        plans: with kernels for one set of sizes, by all that decides on them.
        sized: for sizes that vary.
        families: calls that differ in sizes only, by what else they are.
        calls: by their likeness, the plan and where its tensors stand among the arguments.
    """

    held: Held
    containers: dict[str, Any]
    plans: Memo[Plan] = field(default_factory=Memo)
    sized: Memo[Plan] = field(default_factory=lambda: Memo(MOST_SIZED))
    families: Memo[Family] = field(default_factory=Memo)
    calls: Memo[tuple[Plan, list[tuple[str, Any]]]] = field(
        default_factory=lambda: Memo(MOST_SIZED)
    )


class Variants:
    """Those of a function, and which of them serves."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._taken = Taken()
        self._known: list[Variant] = []  # the latest first

    @property
    def plans(self) -> list[Plan]:
        """All that there are."""
        return [p for v in self._known for p in (*v.plans.values(), *v.sized.values())]

    def now(self) -> Variant:
        """Return the variant for what the function holds at the moment."""
        known = self._known
        if known and known[0].held.holds():
            return known[0]
        for at, variant in enumerate(known[1:], 1):
            if variant.held.holds():
                known.insert(0, known.pop(at))
                return variant
        if known:
            self._leave(known[0])
        found = Variant(Held(self._function, self._taken), self._taken.containers())
        self._known = [found, *self._known[: MOST - 1]]
        return found

    def take(self, changes: Iterable[Change]) -> bool:
        """Have calls pass what changed; return whether that is anything new."""
        is_more = self._taken.take(changes)
        if is_more:
            self._known = []
        return is_more

    def _leave(self, variant: Variant) -> None:
        """See what others changed: what can vary is passed from now on."""
        changes = variant.held.changes()
        _LOG.info("%d entries changed that a function holds", len(changes))
        if 0 < len(changes) <= MOST_TAKEN and all(change.can_vary for change in changes):
            self.take(changes)
        elif not changes or any(change.is_of_tensors for change in changes):
            self._known = [v for v in self._known if not v.held.is_gone()]
