"""A client that goes on asking the API during the storm, and what it was answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import httpx

from recommender.space import SearchSpace
from tests.chaos.site import Site
from tests.chaos.stand_in import CONFIRM_SHARE, recorded_time_s
from tests.chaos.storm import DATABASE_CUT, Strike
from tilecore import kernels
from tilecore.tile_config import TileConfig
from tuner_service import wiring

PAUSE_S = 0.3
PATIENCE_S = 60.0
STATES = ("QUEUED", "WAITING_FOR_HARDWARE", "RUNNING", "SUCCEEDED")
NOBODY, AWAY = 0, 503  # no answer, and that the database is away
CAUSES = {NOBODY: {"API"}, AWAY: {"PostgreSQL", DATABASE_CUT}}


@dataclass(frozen=True, slots=True)
class Ask:
    """One question: when, and what came back."""

    what: str
    began_at: float
    ended_at: float
    status: int
    detail: str = ""  # of what is no answer


@dataclass(slots=True)
class Asker:
    """Asks for a recommendation and for the run by turns until it is left."""

    site: Site
    run_id: str
    body: Mapping[str, Any]
    asks: list[Ask] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # answers that cannot be
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _trials: int = 0  # as told last
    _has_ended: bool = False
    _is_measured: bool = False
    _configs: set[TileConfig] = field(default_factory=set)

    def __enter__(self) -> Self:
        definition, host = kernels.get(str(self.body["kernel"])), wiring.detected_host()
        problem = dict(definition.parse_problem(dict(self.body["problem"])))
        space = SearchSpace.build(definition, problem, host)
        self._configs = {space.config(i) for i in range(len(space))}
        self._configs.add(definition.default_config())
        self._thread = threading.Thread(target=self._keep_asking, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        assert self._thread is not None
        self._thread.join(2 * PATIENCE_S)

    def check(self, strikes: Sequence[Strike], least: int) -> None:
        """Check that all answers were right, and that errors were those of what was just struck."""
        assert not self.wrong, self.wrong[:5]
        for what in ("run", "recommendation"):
            answered = sum(ask.what == what and ask.status == 200 for ask in self.asks)
            assert answered >= least, f"{what}: {answered} answers"
        assert self.asks[-1].status == 200
        assert (self._has_ended, self._is_measured) == (True, True)
        unexplained, well_at = [], 0.0  # when the last question that was answered had been put
        for ask in self.asks:
            if ask.status == 200:
                well_at = ask.began_at
                continue
            blows = {
                strike.kind
                for strike in strikes
                if strike.began_at <= ask.ended_at and well_at <= strike.landed_at
            }
            if not blows & CAUSES.get(ask.status, set()):
                unexplained.append((ask, blows))
        assert not unexplained, unexplained[:5]

    def counts(self) -> Mapping[int, int]:
        """Return how often there was which status."""
        found = [ask.status for ask in self.asks]
        return {status: found.count(status) for status in (200, NOBODY, AWAY)}

    def _keep_asking(self) -> None:
        headers = {"Authorization": f"Bearer {self.site.api_key}"}
        with httpx.Client(base_url=self.site.url, headers=headers, timeout=PATIENCE_S) as client:
            question = {key: self.body[key] for key in ("kernel", "problem")}
            advise = partial(client.post, "/v1/recommendations", json=question)
            follow = partial(client.get, f"/v1/tuning-runs/{self.run_id}")
            is_last = False
            while not is_last:
                is_last = self._stopping.is_set()
                self._ask("recommendation", advise, self._look_at_recommendation)
                self._ask("run", follow, self._look_at_run)
                self._stopping.wait(PAUSE_S)

    def _ask(
        self, what: str, ask: Callable[[], httpx.Response],
        look: Callable[[Mapping[str, Any]], list[str]],
    ) -> None:  # fmt: skip
        start = time.monotonic()
        try:
            answer = ask()
        except httpx.TransportError as error:
            self.asks.append(Ask(what, start, time.monotonic(), NOBODY, repr(error)))
            return
        is_good = answer.status_code == 200
        detail = "" if is_good else answer.text
        self.asks.append(Ask(what, start, time.monotonic(), answer.status_code, detail))
        if is_good:
            try:
                self.wrong += [f"{what}: {fault}" for fault in look(answer.json())]
            except (KeyError, TypeError, ValueError) as error:
                self.wrong.append(f"{what}: {error!r}: {answer.text}")

    def _look_at_run(self, told: Mapping[str, Any]) -> list[str]:
        trials, state = sum(told["trials"].values()), told["state"]
        faults = []
        if told["id"] != self.run_id or state not in STATES:
            faults.append(f"{told['id']} is {state}: {told}")
        if trials < self._trials:
            faults.append(f"{trials} trials after {self._trials}")
        if self._has_ended and state != "SUCCEEDED":
            faults.append(f"{state} after its end")
        self._trials = trials
        self._has_ended |= state == "SUCCEEDED"
        return faults

    def _look_at_recommendation(self, told: Mapping[str, Any]) -> list[str]:
        faults = []
        found = told["recommendations"]
        if not found or [r["rank"] for r in found] != list(range(1, len(found) + 1)):
            faults.append(f"no ranking: {found}")
        for one in found:
            config = TileConfig.of(**one["config"])
            if config not in self._configs:
                faults.append(f"no config of the space: {config}")
            if one["source"] == "measured" and "scaled to" not in one["rationale"]:
                confirmed_us = 1e6 * recorded_time_s(config) * CONFIRM_SHARE
                if abs(one["latency_us"] - confirmed_us) > 1e-6 * confirmed_us:
                    faults.append(f"{one['latency_us']} us of {config}: {confirmed_us} us")
        is_measured = bool(found) and found[0]["source"] == "measured"
        if self._is_measured and not is_measured:
            faults.append("what was measured is forgotten")
        self._is_measured |= is_measured
        return faults
