"""Which cases of a grid `make test` runs: each value, and each combination that the code crosses.

A test over a grid is marked ``covering("a b", ...)``. Of its cases a few are kept that hold each
combination of the values of ``a`` and ``b`` that the grid has, and each value of every parameter
that no text names. The others get the marker ``exhaustive``: `make exhaustive` runs them, and
`.ci/run` after `make test`. Arguments that one ``parametrize`` gives together are one parameter,
of which every row is a value: any of their names stands for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest

Combination = tuple[tuple[str, ...], tuple[str, ...]]  # parameters and their values


def mark_repetitions(items: Iterable[pytest.Item]) -> None:
    """Mark as ``exhaustive`` the cases of grids that repeat what the cases kept cover."""
    grids: dict[str, list[pytest.Item]] = {}
    for item in items:
        kinds = {marker.name for marker in item.iter_markers()}
        if "covering" in kinds and "exhaustive" not in kinds:
            grids.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in grids.items():
        kept = cover([frozenset(_combinations(name, case)) for case in cases])
        for position, case in enumerate(cases):
            if position not in kept:
                case.add_marker(pytest.mark.exhaustive)


def cover(cases: Sequence[frozenset[Combination]]) -> set[int]:
    """Return positions of cases that have together what all have.

    Chosen greedily: the case that adds most, of equals the one whose combinations were met least,
    so that the values of every parameter take turns.
    """
    met = Counter[Combination]()
    kept: set[int] = set()
    missing = frozenset[Combination]().union(*cases)
    while missing:

        def worth(position: int, missing: frozenset[Combination] = missing) -> tuple[int, int]:
            case = cases[position]
            return len(case & missing), -sum(met[combination] for combination in case)

        best = max(range(len(cases)), key=worth)
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
