"""Studies: the search engine for kernels that others run (ask and tell).

A study of a kernel and a space that were searched before, for whatever problem and on whatever
device, begins with what is fast there, and weighs what was told there against what it is told.

Of a space that is too large to look at whole, a search sees a sample, all that it knows already,
and what is around the fastest of that; which those are is looked at again after every few trials.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from db.records import NewStudy, StudyRecord, StudyTrial, ToldConfig
from db.store import SqlStore
from recommender.cost_model import MIN_ROWS
from recommender.errors import InvalidExternalSpace
from recommender.external import ExternalSpace
from recommender.gpu_names import steps_between
from recommender.search import STRATEGIES, Landscape, Observations
from recommender.transfer import FIRST, Sources, steps_of_problem
from tilecore.tile_config import digest
from tuner_service.studies.spaces import (
    OUTSIDE,
    KernelSpace,
    StudySpace,
    described,
    rebuilt,
)

MAX_REMEMBERED = 16  # spaces; the largest take some tens of megabytes
MAX_RELATED = 8  # studies that one learns from: the nearest, of those the newest
MAX_LOOKED_AT = 64  # of which they are taken, the newest
CENTRES = 8  # configurations of a sampled space around which others are looked at
RENEWED = 16  # trials after which these are chosen anew
Kept = TypeVar("Kept")
Known = Sequence[tuple[int, str, float | None]]  # row, state and time


@dataclass(frozen=True, slots=True)
class View:
    """What a study's search sees.

    Attributes:
        landscape: of the configurations that it may choose from.
        first: numbers of the configurations to begin with.
        rows: numbers of what is in the landscape, ascending; None: the places there.
        centres: of a sampled space, around which others are looked at.
    """

    landscape: Landscape
    first: Sequence[int] = ()
    rows: NDArray[np.int64] | None = None
    centres: Sequence[int] = ()

    def place(self, row: int) -> int:
        """Return where a configuration stands in the landscape."""
        return row if self.rows is None else int(np.searchsorted(self.rows, row))

    def row(self, place: int) -> int:
        """Return the number of what stands there."""
        return place if self.rows is None else int(self.rows[place])

    def shows(self, known: Known, centres: Sequence[int]) -> bool:
        """Return whether it is still what a search sees that knows so much."""
        if self.rows is None:
            return True
        known_rows = np.array([row for row, _, _ in known], np.int64)
        return centres == self.centres and bool(np.isin(known_rows, self.rows).all())


class StudyEngine:
    """Gives out trials. What is known of a study is in the database; spaces are kept in memory."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._spaces: OrderedDict[str, StudySpace] = OrderedDict()
        self._views: OrderedDict[str, View] = OrderedDict()
        self._lock = threading.Lock()

    def create(
        self, space: ExternalSpace | KernelSpace, *, name: str, hardware: str, strategy: str,
        max_trials: int, seed: int, created_by: str, idempotency_key: str | None,
        warm_start: bool = True, problem: Mapping[str, Any] | None = None,
    ) -> tuple[StudyRecord, bool]:  # fmt: skip
        """Store a study; return it and whether it is new.

        With ``warm_start`` it learns from earlier studies of its name and space, those of the
        nearest devices and (of an external kernel) problems.

        Raises:
            IdempotencyConflict: the key came before with another study (DB807).
        """
        stored = described(space) | ({} if problem is None else {"problem": dict(problem)})
        asked = [stored, name, hardware, strategy, max_trials, seed, *([] if warm_start else [0])]
        related: list[StudyRecord] = []
        if warm_start and isinstance(space, ExternalSpace) and strategy != "random":
            known = self._store.studies.related(name, space.key, MIN_ROWS, MAX_LOOKED_AT)
            near = sorted(known, key=lambda s: _steps(hardware, problem or {}, s))
            related = near[:MAX_RELATED]
        return self._store.studies.create(
            NewStudy(
                name=name,
                hardware=hardware,
                space={**stored, "learns_from": [s.public_id for s in related]},
                space_key=space.key,
                strategy=strategy,
                seed=seed,
                max_trials=min(max_trials, len(space) + _is_outside(stored, space)),
                body_hash=digest(asked),
                created_by=created_by,
                idempotency_key=idempotency_key,
            )
        )

    def suggest(
        self, study: StudyRecord, worker: str, count: int, lease_s: float
    ) -> Sequence[StudyTrial]:
        """Return up to ``count`` trials for ``worker`` to measure; none where nothing is left.

        Those it holds already come first, then those that others held too long, then new ones.

        Raises:
            StudyClosed: nothing is given out any more (DB822).
            StudyOfAnotherVersion: the kernel of the library has other candidates by now (SV934).
        """
        given = list(self._store.studies.lease_again(study, worker, count, lease_s))
        while len(given) < count:
            wanted = count - len(given)
            rows = self._ask(study, wanted)
            if not rows:
                break
            space = self._space(study)
            configs = {row: space.config(row) for row in rows}
            made = self._store.studies.add(study, configs, worker, lease_s)
            given += made
            if len(made) == len(rows) or not self._has_room(study):
                break  # otherwise somebody else took some of the rows meanwhile
        return given

    def tell(
        self, study: StudyRecord, told: Sequence[ToldConfig], worker: str
    ) -> Sequence[StudyTrial]:
        """Take in what was measured of configurations that were not given out.

        Raises:
            InvalidExternalSpace: one is not in the space, or comes twice (RC610).
            StudyClosed: nothing is taken any more (DB822).
            StudyOfAnotherVersion: the kernel of the library has other candidates by now (SV934).
        """
        space, rows = self._space(study), dict[int, ToldConfig]()
        for number, one in enumerate(told):
            row = space.find(one.config)
            if row is None or row in rows:
                expected = "each configuration once" if row in rows else "one of the space"
                raise InvalidExternalSpace(
                    what=f"trials[{number}].config", expected=expected,
                    found=repr(dict(one.config))[:200],
                )  # fmt: skip
            rows[row] = one
        return self._store.studies.tell(study, rows, worker)

    def _space(self, study: StudyRecord) -> StudySpace:
        """Return the space of a study (without its default)."""
        with self._lock:
            found = self._spaces.get(study.space_key)
            if found is None:
                found = rebuilt(self._store, study.space, study.space_key)
            _remember(self._spaces, study.space_key, found)
            return found

    def _view(self, study: StudyRecord, known: Known) -> View:
        """Return what the search of a study sees that knows so much."""
        related = study.space.get("learns_from", ())
        space = self._space(study)
        is_sampled = isinstance(space, ExternalSpace) and space.sample is not None
        key = study.public_id if related or is_sampled else study.space_key
        centres = _centres(study, known) if is_sampled else []
        with self._lock:
            found = self._views.get(key)
            if found is None or not found.shows(known, centres):
                found = self._seen(study, space, related, known, centres)
            _remember(self._views, key, found)
            return found

    def _seen(
        self, study: StudyRecord, space: StudySpace, related: Sequence[str], known: Known,
        centres: Sequence[int],
    ) -> View:  # fmt: skip
        """Return a view, as one has it that knows earlier studies where these tell enough.

        Of them counts what they had been told when the study began: what it asks for stays the
        same after a restart.
        """
        if not isinstance(space, ExternalSpace):
            return View(space.landscape())
        studies = self._store.studies
        others = [studies.get(public_id) for public_id in related]
        told = [studies.told_before(study, other) for other in others]
        rows = _looked_at(space, known, told, centres)
        view = View(space.landscape(rows), (), rows, centres)
        problem = study.space.get("problem", {})
        steps = [_steps(study.hardware, problem, other) for other in others]
        there = [{view.place(row): time_s for row, time_s in times.items()} for times in told]
        sources = Sources.told(space.features(rows), there, steps)
        if sources is None:
            return view
        first = [view.row(place) for place in sources.cover(FIRST)]
        return View(sources.landscape(view.landscape), first, rows, centres)

    def _ask(self, study: StudyRecord, count: int) -> list[int]:
        known = self._store.studies.known(study)
        count = min(count, study.max_trials - len(known))
        if count <= 0:
            return []
        default = study.space["default"]
        planned = [] if default is None else [self._space(study).row(default)]
        taken = {row for row, _, _ in known}
        view = self._view(study, [*known, *((row, "planned", None) for row in planned)])
        seen = Observations()
        for row, state, time_s in known:
            if row == OUTSIDE:
                continue
            if state == "leased":
                seen.pending.add(view.place(row))
            else:
                seen.times_s[view.place(row)] = time_s
        first = [row for row in dict.fromkeys([*planned, *view.first]) if row not in taken][:count]
        seen.pending.update(view.place(row) for row in first if row != OUTSIDE)
        strategy = STRATEGIES[study.strategy]
        places = strategy.ask(count - len(first), view.landscape, seen, study.seed)
        return first + [view.row(place) for place in places]

    def _has_room(self, study: StudyRecord) -> bool:
        return sum(self._store.studies.count(study).values()) < study.max_trials


def _remember(kept: OrderedDict[str, Kept], key: str, found: Kept) -> None:
    """Keep what was used last."""
    kept[key] = found
    kept.move_to_end(key)
    if len(kept) > MAX_REMEMBERED:
        kept.popitem(last=False)


def _centres(study: StudyRecord, known: Known) -> list[int]:
    """Return the fastest of the first trials, of so many that new ones seldom change them."""
    if study.strategy == "random":
        return []
    settled = known[: len(known) // RENEWED * RENEWED]
    timed = sorted((time_s, row) for row, _, time_s in settled if time_s is not None)
    return [row for _, row in timed[:CENTRES]]


def _looked_at(
    space: ExternalSpace, known: Known, told: Sequence[Mapping[int, float | None]],
    centres: Sequence[int],
) -> NDArray[np.int64] | None:  # fmt: skip
    """Return the rows of a space that a search may choose from, ascending; None: all.

    Args:
        space: of the study.
        known: to the study.
        told: times by rows, of earlier studies; it looks around their fastest, too.
        centres: around which it looks.
    """
    if space.sample is None:
        return None
    around = set(centres)
    for times_s in told:
        timed = sorted((t, row) for row, t in times_s.items() if t is not None)
        around.update(row for _, row in timed[: CENTRES // 2])
    rows = [row for row, _, _ in known] + [row for times_s in told for row in times_s]
    near = [space.around(row) for row in sorted(around)]
    return np.unique(np.concatenate([space.sample, np.array(rows, np.int64), *near]))


def _steps(hardware: str, problem: Mapping[str, Any], other: StudyRecord) -> float:
    """Return how far what another study measured is from a device and a problem."""
    apart = steps_of_problem(problem, other.space.get("problem", {}))
    return steps_between(hardware, other.hardware) + apart


def _is_outside(stored: Mapping[str, Any], space: ExternalSpace | KernelSpace) -> bool:
    """Return whether the default is one more than the configurations of the space."""
    default = stored["default"]
    return default is not None and space.row(default) == OUTSIDE
