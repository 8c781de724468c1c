"""What a function holds: what it finds beside its arguments, which may change between its calls.

A plan serves while all that the function may read (``reach``) is what it was. What the function
changes, and what others change that can vary, is passed at each call as if it were an argument
(``Taken``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType
from typing import Any

from tilecore.computing import arrays
from tilecore.computing.operands import is_tensor
from tilecore.computing.reading.cells import CONTENTS, Cells
from tilecore.computing.reading.checks import Check
from tilecore.computing.reading.reach import DICTS, PLAIN, Reach
from tilecore.computing.reading.storage import WritesHeld
from tilecore.errors import UnsupportedSyntax

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Change:
    """An entry that is not what it was.

    Attributes:
        owner: a dict, list, set, class, or variable of a closure.
        key: of the entry.
        before: what it was.
        now: what it is.
    """

    owner: Any
    key: Any
    before: Any = _MISSING
    now: Any = _MISSING

    @property
    def can_vary(self) -> bool:
        """Whether one plan may serve both."""
        values = self.before, self.now
        kinds = {type(v) for v in values}
        return all(map(is_tensor, values)) or kinds in ({int}, {float})

    @property
    def is_of_tensors(self) -> bool:
        """Whether it is, or may hold, another tensor."""
        return type(self.before) not in PLAIN and not callable(self.before)


class Changing(Exception):
    """The function changes what it holds: it is to be read again, with that passed to it."""

    def __init__(self, changes: Iterable[Change]) -> None:
        super().__init__("the function changes what it holds")
        self.changes = list(changes)


class Taken:
    """Entries of what a function holds that calls pass to it, as if they were arguments."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[Any, dict[Any, None]]] = {}

    def keys(self, owner: Any) -> Iterable[Any]:
        """Return which entries of an owner are among them."""
        return self._keys[id(owner)][1] if id(owner) in self._keys else ()

    def take(self, changes: Iterable[Change]) -> bool:
        """Take entries that changed; return whether they are more than before.

        Raises:
            UnsupportedSyntax: it is a set, or something else whose entries have no place (TC101).
        """
        is_more = False
        for change in changes:
            if not isinstance(change.owner, dict | list | type | CellType):
                raise UnsupportedSyntax(
                    expected="a computation that changes lists, dicts and attributes at most",
                    found=f"one that changes a {type(change.owner).__name__}, which it holds",
                    hint="use a list or a dict",
                )
            _, keys = self._keys.setdefault(id(change.owner), (change.owner, {}))
            is_more |= change.key not in keys
            keys[change.key] = None
        return is_more

    def containers(self) -> dict[str, Any]:
        """Return what calls pass, by names that no parameter has."""
        return {
            f"held.{i}": owner if isinstance(owner, list) else Cells(owner, list(keys))
            for i, (owner, keys) in enumerate(self._keys.values())
        }


# --- whether it is what it was --------------------------------------------------------------------


class Held:
    """What a function holds, and what it was when it was looked at."""

    def __init__(self, function: Callable[..., Any], taken: Taken) -> None:
        reach = Reach(function, taken.keys)
        self._taken = taken
        self._spaces = [s for s in reach.spaces.values() if s.known or s.grows]
        self._variables, self._wholes = reach.variables, reach.wholes
        self._values: list[tuple[Any, Any]] = []
        self._before = [_entries(*owner) for owner in self._owners()]
        self._check = self._checked()

    @property
    def count(self) -> int:
        """How many entries are looked at."""
        return len(self._check)

    @property
    def tensors(self) -> list[Any]:
        """Those that are entries, or in tuples."""
        return [t for items in self._before for value in items.values() for t in _tensors(value)]

    def depend_on(self, tensors: Iterable[Any]) -> None:
        """Have it be another where elements of some tensors are others."""
        self._values += [(t, arrays.mark(t)) for t in tensors]

    def holds(self) -> bool:
        """Return whether all is what it was; quick if it is."""
        if self._has_other_values():
            return False
        try:
            if self._check.holds():
                return True
            if self.changes():
                return False
            self._check.refresh()  # equal values, or attributes that nothing reads
        except (LookupError, ValueError):  # an entry is gone
            return False
        return True

    def _checked(self) -> Check:
        check = Check()
        for space in self._spaces:
            check.entries(space.entries, space.known - DICTS)
            if space.grows:
                check.size(space.owner)
        for cell in self._variables:
            check.variable(cell)
        for whole in self._wholes:
            if isinstance(whole, set | deque):
                check.parts(whole)
                continue
            check.size(whole)
            check.entries(whole, whole if isinstance(whole, dict) else range(len(whole)))
        check.compile()
        return check

    def is_gone(self) -> bool:
        """Return whether it holds tensors that are no more there, or other elements of theirs."""
        return self._has_other_values() or any(c.is_of_tensors for c in self.changes())

    def _has_other_values(self) -> bool:
        return any(arrays.mark(tensor) != mark for tensor, mark in self._values)

    def changes(self) -> list[Change]:
        """Return what is not as it was."""
        found: list[Change] = []
        for owner, before in zip(self._owners(), self._before, strict=True):
            found += self._changes(owner, before)
        return found

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Have all be afterwards what it was before.

        Raises:
            Changing: something was not, or a tensor that is held was to be written to.
        """
        owners = list(self._owners(of_all=True))
        before, changes = [_entries(*owner) for owner in owners], list[Change]()
        try:
            yield
        except WritesHeld as error:
            changes = self._places(error.tensors)
            if not changes:
                raise
        finally:
            for owner, items in zip(owners, before, strict=True):
                changed = self._changes(owner, items)
                if changed:
                    _put_back(owner[0], items, changed)
                changes += changed
        if changes:
            raise Changing(changes)

    def _places(self, tensors: Sequence[Any]) -> list[Change]:
        """Return where some tensors, or views of them, are held, and others like them."""
        memories = {arrays.memory(t) for t in tensors}
        entries = [
            Change(owner, key, value)
            for owner, names in self._owners()
            for key, value in _entries(owner, names).items()
            if key not in self._taken.keys(owner)
        ]
        found = [
            e for e in entries if any(arrays.memory(t) in memories for t in _tensors(e.before))
        ]
        kinds = {_kind(e) for e in found} - {None}
        return found + [e for e in entries if _kind(e) in kinds]

    def _owners(self, of_all: bool = False) -> Iterator[tuple[Any, Any]]:
        """Return what holds entries, and the names of those that matter; None: all."""
        for space in self._spaces:
            yield space.owner, None if of_all and space.grows else space.names
        for owner in (*self._variables, *self._wholes):
            yield owner, None

    def _changes(self, owner: tuple[Any, Any], before: Mapping[Any, Any]) -> list[Change]:
        now, taken = _entries(*owner), self._taken.keys(owner[0])
        pairs = ((k, before.get(k, _MISSING), now.get(k, _MISSING)) for k in {**before, **now})
        return [
            Change(owner[0], k, a, b)
            for k, a, b in pairs
            if a is not b and k not in taken and not _is_equal(a, b)
        ]


def _entries(owner: Any, names: Any) -> dict[Any, Any]:
    """Return what an owner holds under some names; None: all."""
    if isinstance(owner, CellType):
        return Cells(owner, [CONTENTS]).items()
    if isinstance(owner, type):
        owner = vars(owner)
    if isinstance(owner, Mapping):
        return {k: v for k, v in list(owner.items()) if names is None or k in names}
    return dict(enumerate(owner)) if isinstance(owner, list | deque) else {v: v for v in owner}


def _is_equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_is_equal, a, b))
    return type(a) in PLAIN and bool(a == b)


def _put_back(owner: Any, items: Mapping[Any, Any], changed: Sequence[Change]) -> None:
    if isinstance(owner, list | deque | set):
        owner.clear()
        owner.extend(items.values()) if not isinstance(owner, set) else owner.update(items)
    else:
        Cells(owner, [c.key for c in changed]).fill(
            {c.key: c.before for c in changed if c.before is not _MISSING}
        )


def _tensors(value: Any) -> list[Any]:
    """Return the tensors that an entry is, or has in tuples."""
    if isinstance(value, tuple):
        return [t for part in value for t in _tensors(part)]
    return [value] if is_tensor(value) else []


def _kind(entry: Change) -> Any:
    """Return what entries have alike that hold tensors of one meaning: caches of several layers."""
    value = entry.before
    return (entry.key, value.dtype, tuple(value.shape)) if is_tensor(value) else None
