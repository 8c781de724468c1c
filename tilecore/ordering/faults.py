"""What may be wrong with the order of a program."""

from __future__ import annotations

from dataclasses import dataclass

from tilecore.ordering.program import Site


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: "race" (two accesses without an order), "proxy" (a fence.proxy.async is missing),
            "deadlock", "arrivals" (not as many as a barrier expects), "in flight" (when a thread
            exits), "registers" (of a product under way), "setup" (of a barrier), "bounds" (outside
            of the memory).
        text: what was expected and found.
        first: the site of the earlier access, or of the only one.
        second: that of the later one.
        remedy: what would order them.
    """

    kind: str
    text: str
    first: Site
    second: Site | None = None
    remedy: str = ""

    def __str__(self) -> str:
        pair = f"{self.first}" if self.second is None else f"{self.first}; {self.second}"
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"{self.kind}: {self.text}: {pair}{remedy}"


class Faults:
    """Collects faults; each kind of each pair of sites once."""

    def __init__(self, sites: tuple[Site, ...]) -> None:
        self.sites = sites
        self.found: dict[tuple[str, int, int], Fault] = {}

    def add(self, kind: str, text: str, first: int, second: int = -1, remedy: str = "") -> None:
        """Note a fault at one or two sites, by number."""
        key = (kind, first, second)
        if key not in self.found:
            other = None if second < 0 else self.sites[second]
            self.found[key] = Fault(kind, text, self.sites[first], other, remedy)
