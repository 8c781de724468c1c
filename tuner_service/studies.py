"""Studies: the search engine for kernels that others run (ask and tell).

A study of a kernel and a space that were searched before, for whatever problem and on whatever
device, begins with what is fast there, and weighs what was told there against what it is told.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.records import NewStudy, StudyRecord, StudyTrial, ToldConfig
from db.store import SqlStore
from recommender.cost_model import MIN_ROWS
from recommender.errors import InvalidExternalSpace
from recommender.external import ExternalSpace
from recommender.gpu_names import steps_between
from recommender.search import STRATEGIES, Landscape, Observations
from recommender.transfer import FIRST, Sources, steps_of_problem
from tilecore.tile_config import digest
from tuner_service.study_spaces import (
    OUTSIDE,
    KernelSpace,
    StudySpace,
    described,
    rebuilt,
)

MAX_REMEMBERED = 16  # spaces; the largest take some tens of megabytes
MAX_RELATED = 8  # studies that one learns from: the nearest, of those the newest
MAX_LOOKED_AT = 64  # of which they are taken, the newest


@dataclass(frozen=True, slots=True)
class View:
    """What a study's search sees: the space, its landscape, and the rows to begin with."""

    space: StudySpace
    landscape: Landscape
    first: Sequence[int] = ()


class StudyEngine:
    """Gives out trials. What is known of a study is in the database; spaces are kept in memory."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
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
            space = self._view(study).space
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
        space, rows = self._view(study).space, dict[int, ToldConfig]()
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

    def _view(self, study: StudyRecord) -> View:
        """Return the space of a study (without its default) and what a search sees of it."""
        related = study.space.get("learns_from", ())
        key = study.public_id if related else study.space_key
        with self._lock:
            found = self._views.get(key)
            if found is None:
                space = rebuilt(self._store, study.space, study.space_key)
                found = self._warm(study, space, related) or View(space, space.landscape())
                self._views[key] = found
                if len(self._views) > MAX_REMEMBERED:
                    self._views.popitem(last=False)
            self._views.move_to_end(key)
            return found

    def _warm(self, study: StudyRecord, space: StudySpace, related: Sequence[str]) -> View | None:
        """Return a space as one sees it that knows earlier studies; None: they tell too little.

        Of them counts what they had been told when the study began: what it asks for stays the
        same after a restart.
        """
        if not related or not isinstance(space, ExternalSpace):
            return None
        studies = self._store.studies
        others = [studies.get(public_id) for public_id in related]
        told = [studies.told_before(study, other) for other in others]
        problem = study.space.get("problem", {})
        steps = [_steps(study.hardware, problem, other) for other in others]
        sources = Sources.told(space.features(), told, steps)
        if sources is None:
            return None
        return View(space, sources.landscape(space.landscape()), sources.cover(FIRST))

    def _ask(self, study: StudyRecord, count: int) -> list[int]:
        known = self._store.studies.known(study)
        count = min(count, study.max_trials - len(known))
        if count <= 0:
            return []
        view = self._view(study)
        seen = Observations()
        for row, state, time_s in known:
            if row == OUTSIDE:
                continue
            if state == "leased":
                seen.pending.add(row)
            else:
                seen.times_s[row] = time_s
        default = study.space["default"]
        planned = [] if default is None else [view.space.row(default)]
        taken = {row for row, _, _ in known}
        first = [row for row in dict.fromkeys([*planned, *view.first]) if row not in taken][:count]
        seen.pending.update(row for row in first if row != OUTSIDE)
        strategy = STRATEGIES[study.strategy]
        return first + strategy.ask(count - len(first), view.landscape, seen, study.seed)

    def _has_room(self, study: StudyRecord) -> bool:
        return sum(self._store.studies.count(study).values()) < study.max_trials


def _steps(hardware: str, problem: Mapping[str, Any], other: StudyRecord) -> float:
    """Return how far what another study measured is from a device and a problem."""
    apart = steps_of_problem(problem, other.space.get("problem", {}))
    return steps_between(hardware, other.hardware) + apart


def _is_outside(stored: Mapping[str, Any], space: ExternalSpace | KernelSpace) -> bool:
    """Return whether the default is one more than the configurations of the space."""
    default = stored["default"]
    return default is not None and space.row(default) == OUTSIDE
