"""In which order the steps of a computation run.

Tensors between kernels are let go of once they were read for the last time. Of the steps that can
run, the one is next that leaves the fewest bytes behind: gradients of weights are computed as soon
as what they read is there, not when all that the model returns is.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from tilecore.computing.graph import Node, bytes_of, viewed
from tilecore.computing.planning.together import Step, made_by, read_by


def scheduled(order: Sequence[Step], results: Sequence[Node]) -> list[Step]:
    """Return steps in an order that keeps fewer bytes at once than theirs, if one is found."""
    runs = _Runs(order, results)
    found = runs.greedy()
    if runs.most_bytes(found) >= runs.most_bytes(range(len(runs.units))):
        return list(order)
    computed = {step for unit in runs.units for step in unit}
    return [*(s for s in order if s not in computed), *(s for n in found for s in runs.units[n])]


class _Runs:
    """What runs at once: a kernel, or a function of torch with all of its results.

    Attributes:
        units: the steps of each, in the order that is there.
    """

    def __init__(self, order: Sequence[Step], results: Sequence[Node]) -> None:
        units: dict[object, list[Step]] = {}
        for step in order:
            if not isinstance(step, Node):
                units[step] = [step]
            elif step.kind == "call":
                units.setdefault(step.attrs["call"], []).append(step)
        self.units = list(units.values())
        made = [{node for step in unit for node in made_by(step)} for unit in self.units]
        self._makers = {node: number for number, nodes in enumerate(made) for node in nodes}
        self._reads = [
            {viewed(node) for step in unit for node in read_by(step)} & self._makers.keys()
            for unit in self.units
        ]
        self._bytes = {node: bytes_of(node) for node in self._makers}
        self._made = [sum(self._bytes[node] for node in nodes) for nodes in made]
        self._kept = {viewed(node) for node in results}
        self._readers: dict[Node, set[int]] = {node: set() for node in self._makers}
        for number, nodes in enumerate(self._reads):
            for node in nodes:
                self._readers[node].add(number)

    def most_bytes(self, order: Iterable[int]) -> int:
        """Return how many bytes units keep at once, in an order, beside what calls pass."""
        waiting = {node: len(readers) for node, readers in self._readers.items()}
        kept = most = 0
        for number in order:
            kept += self._made[number]
            most = max(most, kept)
            for node in self._reads[number]:
                waiting[node] -= 1
                if not waiting[node] and node not in self._kept:
                    kept -= self._bytes[node]
        return most

    def greedy(self) -> list[int]:
        """Return the order in which each unit leaves the fewest bytes behind, of those that can."""
        readers = {node: set(found) for node, found in self._readers.items()}
        needed = [{self._makers[node] for node in nodes} for nodes in self._reads]

        def left(number: int) -> int:
            gone = (n for n in self._reads[number] if len(readers[n]) == 1 and n not in self._kept)
            return self._made[number] - sum(self._bytes[node] for node in gone)

        following: list[list[int]] = [[] for _ in self.units]
        for number, makers in enumerate(needed):
            for maker in makers:
                following[maker].append(number)
        ready = [(left(number), number) for number, makers in enumerate(needed) if not makers]
        heapq.heapify(ready)
        done: dict[int, None] = {}
        while ready:
            expected, number = heapq.heappop(ready)
            if number in done or expected != left(number):
                continue  # it leaves fewer behind by now, and stands there with that
            done[number] = None
            changed = set[int]()
            for node in self._reads[number]:
                readers[node].discard(number)
                changed |= readers[node] if len(readers[node]) == 1 else set()
            for other in following[number]:
                needed[other].discard(number)
                changed.add(other)
            for other in changed:
                if not needed[other]:
                    heapq.heappush(ready, (left(other), other))
        return list(done)
