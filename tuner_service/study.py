"""Study: the search engine for a kernel of your own, in any language, from Python.

    study = Study("transpose", {"rows": [8, 16, 32], "columns": [8, 16, 32]}, max_trials=6)
    best = study.optimize(measure)  # measure({"rows": 8, "columns": 16}) -> seconds
    best.config, best.time_s

What is measured is kept in this machine's database or at a service: later studies of the name, for
other problems and on other devices, begin with what was fast.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from db.errors import AlreadyTold, LeaseLost, StudyClosed
from db.records import StudyRecord, ToldConfig
from db.studies import Studies
from recommender.external import LONGEST_S, SHORTEST_S, Value
from recommender.recorded import RecordedSpace
from tuner_service.client import ServiceClient
from tuner_service.errors import InvalidRequest, NothingMeasured, Refused
from tuner_service.settings import load_settings
from tuner_service.studies.ask_tell import StudyEngine
from tuner_service.studies.schemas import StudyTerms
from tuner_service.studies.spaces import plain_value, written_down
from tuner_service.wiring import open_store
from tuner_service.wording import told

POLL_S = 0.2  # between questions whether others have told what they hold
MOST_TOLD = 4096  # characters of a failure
ADDED_AT_ONCE = 256  # configurations: what services take
LONGEST_LEASE_S = 86_400.0  # what services take
Measure = Callable[[dict[str, Value]], "float | Sequence[float]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyBest:
    """The fastest configuration of a study.

    Attributes:
        config: a value for each parameter.
        time_s: the median of its times.
        measured: how many configurations have been told, failures among them.
    """

    config: Mapping[str, Value]
    time_s: float
    measured: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """How far a study is: trials by state, and the fastest (configuration, seconds)."""

    trials: Mapping[str, int]
    best: tuple[Mapping[str, Value], float] | None


class _Desk(Protocol):
    """What gives out trials and is told what came of them."""

    def suggest(self, worker: str, lease_s: float) -> tuple[int, Mapping[str, Value]] | None:
        """Return a trial's number and configuration; None: none is left, or others have them.

        Raises:
            StudyClosed: nothing is given out any more (DB822).
        """

    def tell(self, trial: int, worker: str, times_s: Sequence[float], failure: str) -> None:
        """Store times, or why there are none; a trial that others have by now stays theirs."""

    def add(self, worker: str, told: Sequence[ToldConfig]) -> None:
        """Store what was measured of configurations that were not given out."""

    def standing(self) -> _Standing:
        """Return how far the study is."""


class Study:
    """A search over the parameters of a kernel that the caller runs.

    Args:
        name: of the kernel. What was told to earlier studies of the name with the same parameters
            and conditions is where this one begins.
        parameters: values by name, numbers or texts.
        configurations: instead of parameters and conditions: these and no others.
        conditions: what every configuration keeps, as text: ``"rows * columns <= 4096"``.
            Where more than 200,000 do, the search looks at a sample of them (``space.sample``) and
            at what is around the fastest.
        default: measured first.
        problem: sizes and other fields; they tell how near earlier studies are.
        hardware: where it is measured; of a GPU the name that torch gives it.
        max_trials: how many configurations are measured at most.
        strategy: "model", "evolutionary", "random" or "exhaustive" (of more than 200,000
            configurations: of a sample, and of what is around the fastest).
        warm_start: whether it begins with what earlier studies found.
        seed: of the search.
        key: processes that give the same key, on whatever machine, share one study, and one that
            was finished answers at once. None: a study of its own.
        service: address of the service that keeps the study; None: that of TILECORE_SERVICE_URL,
            else this machine's database.

    Raises:
        InvalidExternalSpace: parameters, configurations or conditions make no space (RC610).
        InvalidRequest: another argument cannot be used (SV901).
    """

    def __init__(
        self, name: str, parameters: Mapping[str, Sequence[Value]] | None = None, *,
        configurations: Sequence[Mapping[str, Value]] | None = None,
        conditions: Sequence[str] = (), default: Mapping[str, Value] | None = None,
        problem: Mapping[str, bool | int | str] | None = None, hardware: str = "",
        max_trials: int = 200, strategy: str = "model", warm_start: bool = True, seed: int = 0,
        key: str | None = None, service: str | None = None,
    ) -> None:  # fmt: skip
        self.name, self.service = name, service
        self.key = key or str(uuid.uuid4())
        if (parameters is None) == (configurations is None):
            found = "neither" if parameters is None else "both"
            raise InvalidRequest(message=f"expected parameters or configurations, found {found}")
        self.space = written_down(parameters, configurations, conditions, default)
        self._asked: dict[str, Any] = _terms(
            name=name, hardware=hardware, strategy=strategy, max_trials=max_trials, seed=seed,
            warm_start=warm_start, problem=problem,
        )  # fmt: skip
        for what, text, longest in (("key", self.key, 128), ("service", service or "", 2000)):
            if not isinstance(text, str) or len(text) > longest:
                expected = f"a text of at most {longest} characters"
                raise InvalidRequest(
                    message=f"{what}: expected {expected}, found {repr(text)[:80]}"
                )

    def optimize(
        self, measure: Measure, *, catch: tuple[type[Exception], ...] = (Exception,),
        lease_s: float = 600.0,
    ) -> StudyBest:  # fmt: skip
        """Measure configurations until ``max_trials`` of them are told, and return the fastest.

        Args:
            measure: configuration -> seconds per call, or several such times, whose median counts.
                What it raises is the reason of a failure, as is a time that no call takes: one
                that is not finite, or less than 1e-10 s.
            catch: exceptions that make a failure; others come out of here, and the configuration
                is measured again by the next call.
            lease_s: how long a configuration may take before others get it.

        Raises:
            NothingMeasured: no configuration has a time (SV937).
            InvalidRequest: ``measure`` returns something else (SV901).
            DatabaseError, ServiceUnreachable, Refused: of the place where the study is kept.
        """
        worker, last, catch = _worker(), "", _caught(catch)
        if not callable(measure):
            raise InvalidRequest(message=f"measure: expected a function, found {measure!r}")
        if not _is_lease(lease_s):
            message = f"lease_s: expected seconds, up to {LONGEST_LEASE_S:g}, found {lease_s!r}"
            raise InvalidRequest(message=message)
        with self._desk() as desk:
            while (given := _next(desk, worker, lease_s)) is not None:
                trial, config = given
                times_s, failure = _outcome(measure, dict(config), catch)
                last = failure or last
                desk.tell(trial, worker, times_s, failure)
            now = desk.standing()
        found = _best(now)
        if found is None:
            count = sum(now.trials.values())
            raise NothingMeasured(name=self.name, count=count, last=last or "told by others")
        return found

    def add(self, told: Iterable[tuple[Mapping[str, Value], float | Sequence[float] | str]]) -> int:
        """Tell what was measured elsewhere, and return of how many configurations.

        The search learns from it and asks for none of it; it comes on top of ``max_trials``, and
        may be told again. What is known already stays as it is.

        Args:
            told: configurations with seconds per call, several such times, or as a text why there
                are none.

        Raises:
            InvalidExternalSpace, Refused: a configuration is not in the space (RC610).
            StudyClosed, Refused: nothing is taken any more (DB822).
            InvalidRequest: something else stands in place of times (SV901).
        """
        worker, count = f"added by {_worker()}", 0
        if isinstance(told, (str, bytes, Mapping)) or not isinstance(told, Iterable):
            raise _no_pair(told)
        rest = iter(told)
        with self._desk() as desk:
            while part := list(islice(rest, ADDED_AT_ONCE)):
                desk.add(worker, [_told(one) for one in part])
                count += len(part)
        return count

    def add_recorded(self, path: str | Path) -> int:
        """Tell what a file holds that was measured elsewhere; return of how many configurations.

        Args:
            path: CSV of parameters, ``time_ms`` and ``status``, T4 results, or a cache of Kernel
                Tuner (.gz or not). What is not in the space is left out.

        Raises:
            InvalidRecording: it cannot be read, or has other parameters (RC607).
            DatabaseError, ServiceUnreachable, Refused: as ``add`` does.
        """
        file = Path(path)
        found = RecordedSpace.load(file).configs_of(self.space, file)
        return self.add((c, "failed" if math.isnan(t) else t) for c, t in found)

    def best(self) -> StudyBest | None:
        """Return the fastest configuration so far, of all who share the study."""
        with self._desk() as desk:
            return _best(desk.standing())

    @contextmanager
    def _desk(self) -> Iterator[_Desk]:
        settings = load_settings()
        url = self.service or settings.service_url
        if url is not None:
            with ServiceClient(url, settings.key) as client:
                yield _DeskOfService(client, self._body(), self.key)
            return
        store = open_store(settings)
        with closing(store.database):
            engine = StudyEngine(store)
            study, _ = engine.create(
                self.space, created_by="", idempotency_key=self.key, **self._asked
            )
            yield _DeskHere(engine, store.studies, study)

    def _body(self) -> dict[str, Any]:
        space = self.space
        default = None if space.default is None else dict(space.default)
        if space.listed is not None:
            return {**self._asked, "configurations": list(space.listed), "default": default}
        parameters = {name: list(values) for name, values in space.parameters.items()}
        conditions = list(space.conditions)
        return {
            **self._asked, "parameters": parameters, "conditions": conditions, "default": default
        }  # fmt: skip


class _DeskHere:
    """A study in this machine's database."""

    def __init__(self, engine: StudyEngine, studies: Studies, study: StudyRecord) -> None:
        self._engine, self._studies, self._study = engine, studies, study

    def suggest(self, worker: str, lease_s: float) -> tuple[int, Mapping[str, Value]] | None:
        given = self._engine.suggest(self._study, worker, 1, lease_s)
        return (given[0].id, given[0].config) if given else None

    def tell(self, trial: int, worker: str, times_s: Sequence[float], failure: str) -> None:
        try:
            self._studies.complete(self._study, trial, worker, times_s, failure)
        except (LeaseLost, AlreadyTold):
            return

    def add(self, worker: str, told: Sequence[ToldConfig]) -> None:
        self._engine.tell(self._study, told, worker)

    def standing(self) -> _Standing:
        first = self._studies.best([self._study]).get(self._study.id)
        best = None
        if first is not None and first.time_s is not None:
            best = (first.config, first.time_s)
        return _Standing(trials=self._studies.count(self._study), best=best)


class _DeskOfService:
    """A study that a service keeps."""

    def __init__(self, client: ServiceClient, body: Mapping[str, Any], key: str) -> None:
        self._client = client
        self._id = client.create_study(body, key)["id"]

    def suggest(self, worker: str, lease_s: float) -> tuple[int, Mapping[str, Value]] | None:
        try:
            given = self._client.suggest(self._id, worker, lease_s)
        except Refused as error:
            if error.fields["code"] == StudyClosed.code:
                raise StudyClosed(study=self._id) from error
            raise
        return (given[0]["id"], given[0]["config"]) if given else None

    def tell(self, trial: int, worker: str, times_s: Sequence[float], failure: str) -> None:
        told = {"failure": failure} if failure else {"repeats_us": [t * 1e6 for t in times_s]}
        try:
            self._client.complete(self._id, trial, {"worker": worker, **told})
        except Refused as error:
            if error.fields["code"] not in (LeaseLost.code, AlreadyTold.code):
                raise

    def add(self, worker: str, told: Sequence[ToldConfig]) -> None:
        asked = [
            {"config": dict(t.config)}
            | ({"repeats_us": [s * 1e6 for s in t.times_s]} if t.times_s else {"failure": t.detail})
            for t in told
        ]
        self._client.add_trials(self._id, worker, asked)

    def standing(self) -> _Standing:
        found = self._client.study(self._id)
        best = found["best"]
        fastest = None if best is None else (best["config"], best["latency_us"] / 1e6)
        return _Standing(trials=found["trials"], best=fastest)


def _terms(*, problem: Any, **given: Any) -> dict[str, Any]:
    """Return what a study is of and how it searches, as services take it.

    Raises:
        InvalidRequest: they take none of it (SV901).
    """
    if isinstance(problem, Mapping):
        problem = {name: plain_value(value) for name, value in problem.items()}
    given = {name: plain_value(value) for name, value in given.items()}
    try:
        return StudyTerms.model_validate({**given, "problem": problem}).model_dump()
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc']))}: {told(e)}" for e in error.errors()]
        raise InvalidRequest(message="; ".join(faults).removeprefix(": ")) from None


def _caught(catch: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions that make a failure."""
    several = tuple(catch) if isinstance(catch, (list, tuple, set)) else (catch,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in several):
        raise InvalidRequest(message=f"catch: expected kinds of exceptions, found {catch!r}")
    return several


def _is_lease(found: Any) -> bool:
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return is_number and 0 < found <= LONGEST_LEASE_S


def _worker() -> str:
    return f"{socket.gethostname()[:80]}:{os.getpid()}:{threading.get_ident()}"


def _told(one: Any) -> ToldConfig:
    """Return a configuration and what came of it, as they were told."""
    if not isinstance(one, (tuple, list)) or len(one) != 2 or not isinstance(one[0], Mapping):
        raise _no_pair(one)
    config, found = one
    if isinstance(found, str):
        return ToldConfig(config=config, detail=found[:MOST_TOLD] or "failed")
    times_s, failure = _times(found)
    return ToldConfig(config=config, times_s=times_s, detail=failure)


def _no_pair(found: object) -> InvalidRequest:
    message = f"told: expected pairs of a configuration and its times, found {found!r}"
    return InvalidRequest(message=message[:MOST_TOLD])


def _next(desk: _Desk, worker: str, lease_s: float) -> tuple[int, Mapping[str, Value]] | None:
    """Return what to measure next; waits for what others hold. None: the study is finished."""
    try:
        while (given := desk.suggest(worker, lease_s)) is None:
            if not desk.standing().trials.get("leased"):
                return None
            time.sleep(POLL_S)
    except StudyClosed:
        return None
    return given


def _outcome(
    measure: Measure, config: dict[str, Value], catch: tuple[type[Exception], ...]
) -> tuple[Sequence[float], str]:
    """Return the times of a configuration, or why it has none."""
    try:
        found = measure(config)
    except catch as error:
        return (), f"{type(error).__name__}: {error}"[:MOST_TOLD]
    return _times(found)


def _times(found: Any) -> tuple[Sequence[float], str]:
    """Return times of a configuration, or why they are none."""
    # An array without axes is iterable by its type alone.
    has_several = isinstance(found, Iterable) and getattr(found, "ndim", 1) != 0
    several = found if has_several else [found]
    try:
        if isinstance(found, (str, bytes, bool)):  # its letters would be times, and true 1 s
            raise TypeError
        times_s = [float(t) for t in several]
    except (TypeError, ValueError):
        message = f"measure: expected seconds, or a sequence of them, found {found!r}"
        raise InvalidRequest(message=message[:MOST_TOLD]) from None
    if not times_s or not all(SHORTEST_S <= t <= LONGEST_S for t in times_s):
        return (), f"measured {found!r} s"[:MOST_TOLD]
    return times_s, ""


def _best(now: _Standing) -> StudyBest | None:
    if now.best is None:
        return None
    measured = sum(count for state, count in now.trials.items() if state != "leased")
    return StudyBest(config=now.best[0], time_s=now.best[1], measured=measured)
