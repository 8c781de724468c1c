"""Which cases of a test `make test` runs.

A test over a grid is marked ``covering("a b", ...)``. Of its cases some are kept that hold each
combination of the values of ``a`` and ``b`` that the grid has, and each value of every parameter
that no text names. Arguments that one ``parametrize`` gives together are one parameter, of which
every row is a value: any of their names stands for it.

A test whose cases take long is marked ``few(n)``: of its cases, or of those that cover its grid, n
are kept, spread over their order. Of ``few(1)`` the test's name chooses which, so that of tests
with the same cases some keep one, some another.

The others get the marker ``exhaustive``: `make exhaustive` runs them, and `.ci/run` after
`make test`.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest

Combination = tuple[tuple[str, ...], tuple[str, ...]]  # parameters and their values


def mark_repetitions(items: Iterable[pytest.Item]) -> None:
    """Mark as ``exhaustive`` the cases that repeat what the cases kept show."""
    items = list(items)
    for name, cases in _marked(items, "covering").items():
        _leave_out(cases, cover([frozenset(_combinations(name, case)) for case in cases]))
    for name, cases in _marked(items, "few").items():
        marker = cases[0].get_closest_marker("few")
        assert marker is not None
        _leave_out(cases, spread(name, len(cases), *marker.args))


def _marked(items: Iterable[pytest.Item], marker: str) -> dict[str, list[pytest.Item]]:
    """Return the cases of `make test` of each test that is marked so."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        kinds = {m.name for m in item.iter_markers()}
        if marker in kinds and "exhaustive" not in kinds:
            found.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return found


def _leave_out(cases: Sequence[pytest.Item], kept: set[int]) -> None:
    for position, case in enumerate(cases):
        if position not in kept:
            case.add_marker(pytest.mark.exhaustive)


def spread(name: str, cases: int, kept: int) -> set[int]:
    """Return ``kept`` positions of the cases of a test, of several the first and the last one."""
    if kept >= cases:
        return set(range(cases))
    if kept == 1:
        return {zlib.crc32(name.encode()) % cases}
    return {i * (cases - 1) // (kept - 1) for i in range(kept)}


def cover(cases: Sequence[frozenset[Combination]]) -> set[int]:
    """Return positions of cases that have together what all have.

    Chosen greedily: the case that adds most, of equals the one whose combinations were met least,
    so that the values of every parameter take turns.
    """
    met = Counter[Combination]()
    kept: set[int] = set()
    missing = frozenset[Combination]().union(*cases)
    while missing:
        added = [len(case & missing) for case in cases]
        most = max(added)
        best = min(
            (position for position, count in enumerate(added) if count == most),
            key=lambda position: sum(map(met.__getitem__, cases[position])),
        )
        kept.add(best)
        met.update(cases[best])
        missing -= cases[best]
    return kept


def _combinations(name: str, case: pytest.Item) -> Iterator[Combination]:
    marker = case.get_closest_marker("covering")
    crossed = [tuple(text.split()) for text in marker.args] if marker else []
    values: dict[str, object] = case.callspec.params if hasattr(case, "callspec") else {}
    together = {parameter: (parameter,) for parameter in values}
    for given in case.iter_markers("parametrize"):
        names = given.args[0].split(",") if isinstance(given.args[0], str) else given.args[0]
        row = tuple(parameter.strip() for parameter in names)
        together |= dict.fromkeys(row, row)
    if unknown := {parameter for group in crossed for parameter in group} - set(values):
        raise pytest.UsageError(f"{name}: covering names {sorted(unknown)}, found {list(values)}")
    groups = [tuple(p for parameter in group for p in together[parameter]) for group in crossed]
    named = {parameter for group in groups for parameter in group}
    groups += sorted({together[parameter] for parameter in values if parameter not in named})
    for group in groups:
        yield group, tuple(repr(values[parameter]) for parameter in group)
