"""Which facets and workloads a query of the log selects, and how to walk them in order.

The log lies in order within every facet and within every workload (``db.models``). A query that
selects a good part of the log finds its rows among the next few of the whole; one that does not
takes the first rows of each of its facets or workloads and merges those. Neither reads far, however
large the log is and however deep the page. Within what one program or one author measured the log
lies in order, too: with such a filter that is walked instead of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from sqlalchemy import Select

from db.records import MeasurementQuery
from db.shape import (
    FACET_FILTERS,
    FACETS,
    FEW,
    OTHER_FILTERS,
    PAIRS,
    WORKLOAD_FILTERS,
    WORKLOADS,
    Shape,
    counted,
    dated_rows,
    first_rows,
    own_rows,
    pairs,
    programs,
    winners,
)

PROBED = (2_000, 6_000, 20_000)  # next rows of the log that are looked at, as far as that pays
HEAD = 30  # rows that could be looked at while the first one of a facet or workload is found
FEW_OF_SHAPE = 8  # workloads of one shape, say: element types, threads, what follows the product
KEPT_FOR, MAX_KEPT = 64, 1000  # pages that know of one another; filters
MOST_WORKLOADS = 512  # that are looked through for winners in one statement
NO_PROGRAM = 0
FEW_OF_DAYS = 50_000  # measurements of some days: the pairs of winners are looked for there
FEW_OF_OWN = 10_000  # measurements of a program or an author: looked through for what matches
Ask = Callable[[Select[Any], Mapping[str, Any]], Sequence[Any]]  # ``Database.ask``


class Scope:
    """The facets, the workloads and the other conditions of one query."""

    def __init__(
        self, query: MeasurementQuery, dialect: str, near: Sequence[int] | None = None
    ) -> None:
        self.query, self.near = query, near
        names = (*FACET_FILTERS, *WORKLOAD_FILTERS, *OTHER_FILTERS)
        values = {name: getattr(query, name) for name in names}
        self.values: dict[str, Any] = {n: v for n, v in values.items() if v is not None}
        if near is not None:
            self.values["near"] = list(near)
        only_ok = query.best_first or query.winners
        self.shape = Shape(frozenset(self.values), dialect, query.best_first, only_ok)

    def rows(
        self, ask: Ask, after: tuple[Any, int] | None, limit: int, ways: Ways
    ) -> Sequence[Any]:
        """Return the first measurements behind the key ``after``, in order.

        Returns:
            Of each the columns of ``FLAT`` and its key: ``key_value``, ``key_id``.
        """
        self._find_program(ask)
        shape = replace(self.shape, goes_on=after is not None)
        values = self.values | {"limit": limit}
        if after is not None:
            values |= {"after_value": after[0], "after_id": after[1]}
        found = self._rows(ask, shape, values, ways)
        place = attrgetter("key_value", "key_id")
        return sorted(found, key=place, reverse=not shape.by_time)

    def _find_program(self, ask: Ask) -> None:
        """Let the id of the program stand for its digest, unless kernels share that."""
        if "program_digest" not in self.shape.names:
            return
        found = ask(programs(self.shape), self.values)
        if len(found) <= 1:
            names = self.shape.names - {"program_digest"} | {"program_id"}
            self.shape = replace(self.shape, names=names)
            self.values["program_id"] = found[0].id if found else NO_PROGRAM

    def _rows(self, ask: Ask, shape: Shape, values: Mapping[str, Any], ways: Ways) -> Sequence[Any]:
        limit, most = values["limit"], _most(values["limit"])
        if "run" in shape.names or not (shape.has_facets or shape.has_workloads):
            return ask(first_rows(shape, most), values)
        way = ways.of(self, ask)
        if way.is_own_few:
            return ask(first_rows(shape, most), values)
        merging = HEAD * way.count + min(way.count, limit) * limit // 2
        is_dated = bool(shape.names & {"since", "until"})
        by_date = shape.by_time and is_dated
        walked = way.walked
        if walked == WORKLOADS.name and shape.by_time and not by_date:
            walked = PAIRS.name
        has_heads = not shape.own or walked != FACETS.name  # those of others may be many
        if walked and has_heads and (by_date or merging <= PROBED[0]):
            return ask(first_rows(replace(shape, walked=walked), most), values)
        probed = PROBED[0] if is_dated else way.probed[shape.goes_on]  # other days, other rows
        while probed:
            found = ask(first_rows(shape, most, probed), values)
            if len(found) >= limit:
                return found
            probed = _farther(probed, limit, len(found), merging if walked else None)
            if not is_dated:
                way.probed[shape.goes_on] = probed
        return ask(first_rows(replace(shape, walked=walked), most), values)

    def winners(self, ask: Ask, after: tuple[int, int], limit: int, ways: Ways) -> list[Any]:
        """Return the first winners behind the number of a workload and the id of a device.

        Returns:
            Of each the columns of ``FLAT`` and its key: ``key_number``, ``key_device``.
        """
        self._find_program(ask)
        shape = self.shape
        if shape.own:
            shape = replace(shape, is_own_few=ways.of_own(self, ask).is_own_few)
        if shape.names & {"since", "until"} and not shape.is_own_few:
            count = ask(dated_rows(shape, FEW_OF_DAYS), self.values)[0][0]
            shape = replace(shape, is_dated_few=count <= FEW_OF_DAYS)
        found: list[Any] = []
        looked_at, width = 0, 3 * limit // 2 if self.query.hardware_key else limit // 4
        while True:
            width = 16 * max(1, min(math.ceil(width / 16), MOST_WORKLOADS // 16))
            left = limit - len(found)
            key = {"after_number": after[0], "after_device": after[1], "limit": left}
            rows = ask(winners(shape, _most(left), width), self.values | key)
            found += [row for row in rows if row.id is not None]
            end = rows[0].key_end
            if len(found) >= limit or end is None:
                return sorted(found, key=attrgetter("key_number", "key_device"))
            after, looked_at = (end + 1, 0), looked_at + width
            width = looked_at * (limit - len(found)) // max(len(found), 1)

    def subjects(self, ask: Ask, limit: int) -> Sequence[tuple[int, int]]:
        """Return some of the pairs of workload and device that have a measurement here."""
        return ask(pairs(self.shape), self.values | {"limit": limit})

    def way(self, ask: Ask, ways: Ways) -> Way:
        """Return how to walk: the table to walk row by row, and of how many rows."""
        if self.shape.own and (own := ways.of_own(self, ask)).is_own_few:
            return own
        if self.near is not None:
            return Way(WORKLOADS.name, len(self.near))
        if self.shape.names & {"workload_key"} or self.shape.names >= {"m", "n", "k"}:
            return Way(WORKLOADS.name, FEW_OF_SHAPE)
        count = 0
        parts = ((WORKLOADS.name, self.shape.has_workloads), (FACETS.name, self.shape.has_facets))
        for table, is_selected in parts:
            if is_selected:
                count = ask(counted(self.shape, table), self.values)[0][0]
                if count <= FEW:
                    return Way(table, count)
        return Way("", count)


@dataclass(slots=True)
class Way:
    """How to find what some filters select; a guess, which no row depends on.

    Attributes:
        walked: the table to walk row by row; "": the log as a whole.
        count: of its rows that are selected.
        probed: of how many rows of the log the next probe looks at, for first pages and for those
            behind others; 0: probes find too little.
        asked: how often it was asked for.
        is_own_few: the program or the author has so few measurements that all are looked through.
    """

    walked: str
    count: int
    probed: dict[bool, int] = field(default_factory=lambda: dict.fromkeys((False, True), PROBED[0]))
    asked: int = 0
    is_own_few: bool = False


class Ways:
    """What was found out about filters by the last pages of theirs, so that the next one need not.

    It is found out anew every ``KEPT_FOR`` pages: the log grows.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, Way] = {}

    def of(self, scope: Scope, ask: Ask) -> Way:
        """Return the way of a query."""
        if scope.near is not None:
            return scope.way(ask, self)
        values = {n: v for n, v in scope.values.items() if n not in ("since", "until")}
        return self._keep((scope.shape, *values.values()), lambda: scope.way(ask, self))

    def of_own(self, scope: Scope, ask: Ask) -> Way:
        """Return the way in a program's or an author's own index, whatever else is asked of it."""

        def find() -> Way:
            count = ask(own_rows(scope.shape, FEW_OF_OWN), scope.values)[0][0]
            return Way("", count, is_own_few=count <= FEW_OF_OWN)

        own = scope.shape.own
        return self._keep((own, scope.values[own]), find)

    def _keep(self, key: Hashable, find: Callable[[], Way]) -> Way:
        way = self._kept.get(key)
        if way is None or way.asked >= KEPT_FOR:
            way = find()
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[key] = way
        way.asked += 1
        return way


def _most(limit: int) -> int:
    """Return a number of rows that is not smaller; there are few of these, each a statement."""
    return max(64, 1 << (limit - 1).bit_length())


def _farther(probed: int, limit: int, found: int, merging: int | None) -> int:
    """Return how many rows to look at after ``probed`` ones had too few; 0: it does not pay.

    ``merging``: the rows that could be looked at while parts are merged; None: they cannot be.
    """
    expected = probed * limit // max(found, 1)
    farther = [rows for rows in PROBED if rows > probed]
    if merging is None:
        return next((rows for rows in farther if rows >= 2 * expected), (farther or [0])[-1])
    return next((rows for rows in farther if rows >= 2 * expected), 0) if expected < merging else 0
