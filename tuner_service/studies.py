"""Studies: the search engine for kernels that others run (ask and tell)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from db.records import NewStudy, StudyRecord, StudyTrial
from db.store import SqlStore
from recommender.external import ExternalSpace
from recommender.search import STRATEGIES, Landscape, Observations
from tilecore.tile_config import digest
from tuner_service.study_spaces import (
    OUTSIDE,
    KernelSpace,
    StudySpace,
    described,
    rebuilt,
)

MAX_REMEMBERED = 16  # spaces; the largest take some tens of megabytes


class StudyEngine:
    """Gives out trials. What is known of a study is in the database; spaces are kept in memory."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._spaces: OrderedDict[str, tuple[StudySpace, Landscape]] = OrderedDict()
        self._lock = threading.Lock()

    def create(
        self, space: ExternalSpace | KernelSpace, *, name: str, hardware: str, strategy: str,
        max_trials: int, seed: int, created_by: str, idempotency_key: str | None,
    ) -> tuple[StudyRecord, bool]:  # fmt: skip
        """Store a study; return it and whether it is new.

        Raises:
            IdempotencyConflict: the key came before with another study (DB807).
        """
        stored = described(space)
        asked = [stored, name, hardware, strategy, max_trials, seed]
        return self._store.studies.create(
            NewStudy(
                name=name,
                hardware=hardware,
                space=stored,
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
            space, _ = self._space(study)
            configs = {row: space.config(row) for row in rows}
            made = self._store.studies.add(study, configs, worker, lease_s)
            given += made
            if len(made) == len(rows) or not self._has_room(study):
                break  # otherwise somebody else took some of the rows meanwhile
        return given

    def _space(self, study: StudyRecord) -> tuple[StudySpace, Landscape]:
        """Return the space of a study (without its default) and what a search sees of it."""
        with self._lock:
            found = self._spaces.get(study.space_key)
            if found is None:
                space = rebuilt(self._store, study.space, study.space_key)
                found = space, space.landscape()
                self._spaces[study.space_key] = found
                if len(self._spaces) > MAX_REMEMBERED:
                    self._spaces.popitem(last=False)
            self._spaces.move_to_end(study.space_key)
            return found

    def _ask(self, study: StudyRecord, count: int) -> list[int]:
        known = self._store.studies.trials(study)
        count = min(count, study.max_trials - len(known))
        if count <= 0:
            return []
        space, landscape = self._space(study)
        seen = Observations()
        for trial in known:
            if trial.row == OUTSIDE:
                continue
            if trial.state == "leased":
                seen.pending.add(trial.row)
            else:
                seen.times_s[trial.row] = trial.time_s
        default = None if known else study.space["default"]
        first = [] if default is None else [space.row(default)]
        seen.pending.update(row for row in first if row != OUTSIDE)
        rows = STRATEGIES[study.strategy].ask(count - len(first), landscape, seen, study.seed)
        return first + rows

    def _has_room(self, study: StudyRecord) -> bool:
        return sum(self._store.studies.count(study).values()) < study.max_trials


def _is_outside(stored: Mapping[str, Any], space: ExternalSpace | KernelSpace) -> bool:
    """Return whether the default is one more than the configurations of the space."""
    default = stored["default"]
    return default is not None and space.row(default) == OUTSIDE
