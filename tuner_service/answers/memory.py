"""AnswerMemory: answers that hold until something is committed that they rest on."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import islice

from db.changes import Changes
from recommender.nearest import workload_distance
from recommender.workload import Workload

MANY = 50  # new workloads that are not looked at one by one


@dataclass(frozen=True, slots=True)
class Basis:
    """What an answer rests on, beside devices and models.

    Attributes:
        kernel: as the log calls it.
        workload: the one that was asked about; None: all of the kernel.
        near: ids of workloads whose winners were looked at.
        reach: how far from the workload others that are new might change the answer.
    """

    kernel: str
    workload: Workload | None = None
    near: frozenset[int] = frozenset()
    reach: float = math.inf

    def is_touched(self, changes: Changes) -> bool:
        """Return whether another answer might follow from changes."""
        if changes.everything or self.kernel not in changes.kernels:
            return changes.everything
        if self.workload is None or self.workload.key in changes.workloads:
            return True
        if not self.near.isdisjoint(changes.won):
            return True
        if len(changes.grown) > MANY:
            return self.reach >= 0
        within = self.reach * (1 + 1e-9)  # indices compute distances in arrays
        return any(workload_distance(w, self.workload) <= within for w in changes.grown)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it goes over the wire, and what the metrics say of it.

    Attributes:
        body: JSON.
        kernel: what the metrics call it.
        source: of the first recommendation.
        basis: what it rests on.
        until: when it ends to hold anyway, on the monotonic clock.
    """

    body: bytes
    kernel: str
    source: str
    basis: Basis
    until: float


class AnswerMemory:
    """The answers that were given last, and what was committed since.

    Changes are compared when an answer is asked for again: most are asked for once.

    Attributes:
        moment: how many changes there were.
    """

    def __init__(self, most: int, most_changes: int) -> None:
        """Remember up to ``most`` answers, for as long as ``most_changes`` reach back."""
        self._most = most
        self._known: OrderedDict[str, tuple[int, Answer]] = OrderedDict()
        self._changes: deque[Changes] = deque(maxlen=most_changes)
        self.moment = 0

    def change(self, changes: Changes) -> None:
        """Note what was committed."""
        self.moment += 1
        if changes.everything:
            self._known.clear()
        self._changes.append(changes)

    def get(self, question: str, now: float) -> Answer | None:
        """Return the answer that was given before, if it holds at the time ``now``."""
        found = self._known.get(question)
        if found is None:
            return None
        began, answer = found
        if answer.until < now or not self.holds(answer, began):
            del self._known[question]
            return None
        self._known[question] = self.moment, answer
        self._known.move_to_end(question)
        return answer

    def keep(self, question: str, answer: Answer, began: int) -> None:
        """Remember an answer if nothing touched it since the moment when its making ``began``."""
        if not self.holds(answer, began):
            return
        self._known[question] = self.moment, answer
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def holds(self, answer: Answer, since: int) -> bool:
        """Return whether none of the changes since a moment touches an answer."""
        count = self.moment - since
        if count > len(self._changes):
            return False
        return not any(map(answer.basis.is_touched, islice(reversed(self._changes), count)))
