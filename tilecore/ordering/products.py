"""Products of warpgroups under way (wgmma): their groups, and the registers that they use."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilecore.ordering.clocks import Clocks
from tilecore.ordering.faults import Faults
from tilecore.ordering.program import Array

WARPGROUP = 128


@dataclass(slots=True)
class Issued:
    """One product: when, where, its sums, and its operand in registers."""

    time: int
    site: int
    sums: int
    operand: int | None


@dataclass(slots=True)
class Warpgroup:
    """The products of a warpgroup; ``dirty``: arrays written since the last wgmma.fence."""

    open: list[Issued] = field(default_factory=list)
    groups: list[list[Issued]] = field(default_factory=list)
    dirty: dict[int, int] = field(default_factory=dict)
    is_fenced: bool = False

    def running(self) -> list[Issued]:
        """Return the products under way."""
        return [p for group in (*self.groups, self.open) for p in group]


class Products:
    """The products of all warpgroups."""

    def __init__(self, clocks: Clocks, faults: Faults) -> None:
        self.clocks, self.faults = clocks, faults
        self.of: dict[int, Warpgroup] = {}

    def warpgroups(self, ids: Array) -> list[tuple[int, Warpgroup]]:
        """Return the warpgroups of threads, by number."""
        numbers = np.unique(ids // WARPGROUP)
        return [(int(n), self.of.setdefault(int(n), Warpgroup())) for n in numbers]

    def agent(self, number: int) -> int:
        """Return the unit that runs the products of a warpgroup."""
        return self.clocks.unit(("wgmma", number), f"wgmma of warpgroup {number}")

    def issue(self, number: int, made: Issued) -> None:
        """Note a product."""
        group = self.of[number]
        for array in (made.sums, made.operand):
            if array is not None and (array in group.dirty or not group.is_fenced):
                self.faults.add(
                    "registers", "registers of a wgmma are written and no wgmma.fence is between",
                    group.dirty.get(array, made.site), made.site, "wgmma.fence",
                )  # fmt: skip
        group.open.append(made)

    def fence(self, ids: Array) -> None:
        """Order the writes of registers with the products that follow."""
        for _, group in self.warpgroups(ids):
            group.dirty.clear()
            group.is_fenced = True

    def commit(self, ids: Array) -> None:
        """Make a group of the products since the last commit."""
        for _, group in self.warpgroups(ids):
            group.groups.append(group.open)
            group.open = []

    def wait(self, ids: Array, pending: int) -> None:
        """Wait for all groups but the last ``pending``."""
        for number, group in self.warpgroups(ids):
            done = group.groups[: len(group.groups) - pending] if pending else group.groups
            group.groups = group.groups[len(done) :]
            times = [p.time for products in done for p in products]
            if times:
                some = ids[ids // WARPGROUP == number]
                self.clocks.tell(some, self.agent(number), max(times))

    def touch(self, ids: Array, array: int, site: int, *, writes: bool) -> None:
        """Let threads read or write an array that products use."""
        for _, group in self.warpgroups(ids):
            for product in group.running():
                if product.sums == array or (writes and product.operand == array):
                    self.faults.add(
                        "registers", "registers of a wgmma are used while it is under way",
                        product.site, site, "wgmma.commit_group and wgmma.wait_group",
                    )  # fmt: skip
                    break
            if writes:
                group.dirty[array] = site

    def end(self) -> None:
        """Look for products that nobody has waited for."""
        for group in self.of.values():
            for product in group.running():
                self.faults.add("in flight", "a wgmma when its threads exit", product.site)
