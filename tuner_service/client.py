"""A client of the REST service for programs of the user's: traced here, sent as data.

No Python leaves this machine: the service gets the tile program (``tilecore.portable``), its sizes
and what of it is open.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from recommender.hardware import HardwareProfile, nearest_profile
from recommender.portable_tracing import portable
from tilecore.dispatch_reader import read_table
from tilecore.dispatch_table import DispatchTable
from tilecore.portable import PortableProgram
from tilecore.recommending import LOWERING, OpenProgram, ProgramAdvice, RecommendedConfig
from tilecore.tile_config import TileConfig
from tuner_service.errors import NoServiceAddress, Refused, ServiceUnreachable
from tuner_service.wiring import detected_host

TIMEOUT_S = 120.0  # a service may wait for a free process, then look at the program
POLL_S = 0.5
OUTAGE_S = 60.0  # a service that restarts is back by then
BUSY = (429, 503)
ACCEPTED = 202
PAGE = 200  # measurements that are asked for at once
Watch = Callable[[Mapping[str, Any]], None]
FINISHED = ("SUCCEEDED", "FAILED", "CANCELLED", "PAUSED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A program as the service keeps it, and the question that the sender's sizes make.

    Attributes:
        program: what was sent.
        problem: the caller's values of its sizes.
        trace_s: how long tracing and checking took.
        is_new: whether the service had it not.
    """

    program: PortableProgram
    problem: Mapping[str, int]
    trace_s: float
    is_new: bool


class ServiceClient:
    """Talks to one service; use as a context manager.

    Raises:
        NoServiceAddress: it is no address of a service (SV936).
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url = _checked(url).rstrip("/")
        # To read the authorities that one trusts takes 30 ms and more: only where they are asked.
        has_tls = self.url.lower().startswith("https:")
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=TIMEOUT_S, verify=has_tls
        )

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def send(self, question: OpenProgram) -> Sent:
        """Trace a program and store it at the service.

        Raises:
            TileError: the program's own fault.
            Refused, ServiceUnreachable: the service's answer (SV918, SV917).
        """
        begin = time.perf_counter()
        program = portable(question, _device(question))
        traced = time.perf_counter()
        is_new = self.store(program)
        known = {**question.sizes, **question.problem}
        problem = {k: known[k] for k in (*program.sizes, *program.call_sizes) if k in known}
        return Sent(
            program=program, problem=problem, trace_s=traced - begin, is_new=is_new
        )  # fmt: skip

    def store(self, program: PortableProgram) -> bool:
        """Store a program at the service; return whether it is new there."""
        answer = self._ask("POST", "/v1/programs", content=program.to_bytes(),
                           headers={"Content-Type": "application/json"})  # fmt: skip
        return answer.status_code == 201

    def first(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the first recommendation for a question as ``POST /v1/recommendations`` has it."""
        first: dict[str, Any] = self.recommendations({**question, "top_k": 1})["recommendations"][0]
        return first

    def log(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield the measurements that match filters of ``GET /v1/measurements``, newest first."""
        cursor: str | None = None
        while True:
            asked = {"limit": PAGE, **filters, **({} if cursor is None else {"cursor": cursor})}
            page = self._ask("GET", "/v1/measurements", params=asked).json()
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def recommendations(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of ``POST /v1/recommendations``."""
        found: dict[str, Any] = self._ask("POST", "/v1/recommendations", json=dict(question)).json()
        return found

    def queue(
        self, request: Mapping[str, Any], idempotency_key: str | None = None
    ) -> dict[str, Any]:
        """Queue a tuning run, or return the one that was queued with this key."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        answer = self._ask("POST", "/v1/tuning-runs", json=dict(request), headers=headers)
        run: dict[str, Any] = answer.json()
        return run

    def recommend(self, question: OpenProgram) -> ProgramAdvice:
        """Return what the service recommends for a program; raises as ``send`` does."""
        sent = self.send(question)
        begin = time.perf_counter()
        body = self._about(sent, question) | {"top_k": question.top_k}
        found = self.recommendations(body)
        return _advice(sent, found, time.perf_counter() - begin)

    def dispatch_table(
        self, kernel: str, problem: Mapping[str, Any], sizes: Mapping[str, Any] | None = None,
        **asked: Any,
    ) -> DispatchTable:  # fmt: skip
        """Return a dispatch table for dynamic shapes of a kernel of the library.

        Args:
            kernel: its name.
            problem: fields that do not change.
            sizes: by dimension ``"1:4096"``, ``"1,16"`` or a list.
            asked: further fields of ``POST /v1/dispatch-tables``: shapes, tolerance, max_configs...
                With ``tuned``, a function that is told how it stands, the shapes are measured
                first, and the fields are those of ``POST /v1/dispatch-tables:tune``.

        Raises:
            Refused, ServiceUnreachable: the service's answer (SV918, SV917).
            InvalidDispatchTable: it answers with something else (TC506).
        """
        return self._table({"kernel": kernel}, problem, sizes, asked)

    def dispatch_table_of(
        self, program: PortableProgram, problem: Mapping[str, Any],
        sizes: Mapping[str, Any] | None = None, **asked: Any,
    ) -> DispatchTable:  # fmt: skip
        """Return the same for a program, which is stored at the service; its digest is left open.

        ``problem`` and ``sizes`` name what the program leaves open; raises as ``dispatch_table``.
        """
        self.store(program)
        return self._table({"program": program.digest}, problem, sizes, asked)

    def _table(
        self, subject: Mapping[str, str], problem: Mapping[str, Any],
        sizes: Mapping[str, Any] | None, asked: Mapping[str, Any],
    ) -> DispatchTable:  # fmt: skip
        """Return a table from what is known, or with the field ``tuned`` one that is measured."""
        asked = dict(asked)
        watch: Watch | None = asked.pop("tuned", None)
        body = {**subject, "problem": dict(problem), "sizes": dict(sizes or {}), **asked}
        path = "/v1/dispatch-tables" + (":tune" if watch else "")
        answer = self._ask("POST", path, json=body)
        while answer.status_code == ACCEPTED:
            assert watch is not None
            watch(answer.json())
            time.sleep(float(answer.headers.get("retry-after", POLL_S)))
            answer = self._ask("POST", path, json=body)
        return read_table(answer.json(), self.url)

    def tune(self, question: OpenProgram, effort: Mapping[str, Any]) -> dict[str, Any]:
        """Queue a tuning run of a program and return it as the service tells it."""
        sent = self.send(question)
        return self.queue({**self._about(sent, question), **effort})

    def follow(
        self,
        run: Mapping[str, Any],
        sleep: Callable[[float], None] = time.sleep,
        patience_s: float = OUTAGE_S,
    ) -> Iterator[dict[str, Any]]:
        """Yield a run as it stands, now and then, until it has ended or is paused.

        A service that restarts, or has too much to do, is waited for, up to ``patience_s``.
        """
        while True:
            path = f"/v1/tuning-runs/{run['id']}"
            now: dict[str, Any] = self._ask("GET", path, patience_s=patience_s).json()
            yield now
            if now["state"] in FINISHED:
                return
            sleep(POLL_S)

    def create_study(self, body: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Create a study of an external kernel, or return the one that was made with this key."""
        headers = {"Idempotency-Key": key}
        answer = self._ask("POST", "/v1/studies", json=dict(body), headers=headers)
        study: dict[str, Any] = answer.json()
        return study

    def study(self, study_id: str) -> dict[str, Any]:
        """Return a study as the service tells it."""
        found: dict[str, Any] = self._ask(
            "GET", f"/v1/studies/{study_id}", patience_s=OUTAGE_S
        ).json()
        return found

    def suggest(self, study_id: str, worker: str, lease_s: float) -> list[dict[str, Any]]:
        """Return the trial that a worker is to measure next, in a list; none where none is left."""
        found = self._ask(
            "POST", f"/v1/studies/{study_id}/trials:suggest", patience_s=OUTAGE_S,
            json={"worker": worker, "lease_s": lease_s},
        )  # fmt: skip
        items: list[dict[str, Any]] = found.json()["items"]
        return items

    def complete(self, study_id: str, trial_id: int, told: Mapping[str, Any]) -> None:
        """Tell what came of a trial: ``worker``, and ``repeats_us`` or ``failure``."""
        path = f"/v1/studies/{study_id}/trials/{trial_id}:complete"
        self._ask("POST", path, patience_s=OUTAGE_S, json=dict(told))

    def add_trials(self, study_id: str, worker: str, told: Sequence[Mapping[str, Any]]) -> None:
        """Tell what was measured elsewhere: of each ``config`` ``repeats_us`` or ``failure``."""
        path, body = f"/v1/studies/{study_id}/trials:add", {"worker": worker, "trials": list(told)}
        self._ask("POST", path, patience_s=OUTAGE_S, json=body)

    def _about(self, sent: Sent, question: OpenProgram) -> dict[str, Any]:
        return {
            "program": sent.program.digest,
            "problem": dict(sent.problem),
            "threads": question.cores,
            "hardware": question.target,
        }

    def _ask(
        self, method: str, path: str, *, patience_s: float = 0.0, **sent: Any
    ) -> httpx.Response:
        answer = self._answer(method, path, time.monotonic() + patience_s, sent)
        if answer.is_success:
            return answer
        with self._reaching():
            problem = answer.json() if "json" in answer.headers.get("content-type", "") else {}
        if "code" not in problem:
            found = f"HTTP status {answer.status_code} at {path}"
            raise ServiceUnreachable(url=self.url, found=found)
        raise Refused(
            url=self.url, code=problem["code"], detail=problem["detail"],
            hint=str(problem.get("hint") or ""),
        )  # fmt: skip

    def _answer(
        self, method: str, path: str, until: float, sent: Mapping[str, Any]
    ) -> httpx.Response:
        """Return what the service says, ``until`` then only if it is not to come again later."""
        while True:
            try:
                with self._reaching():
                    answer = self._http.request(method, path, **sent)
            except ServiceUnreachable:
                if time.monotonic() >= until:
                    raise
                time.sleep(POLL_S)
                continue
            left_s = until - time.monotonic()
            if answer.status_code not in BUSY or left_s <= 0:
                return answer
            asked_s = answer.headers.get("retry-after", "")
            time.sleep(min(left_s, float(asked_s) if asked_s.isdigit() else POLL_S))

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            found = str(error) or type(error).__name__
            raise ServiceUnreachable(url=self.url, found=found) from error


def _checked(url: str) -> str:
    try:
        httpx.URL(url)
        parts = urlsplit(url)
        is_served = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_served = is_served and parts.port != 0  # what is no port at all raises
    except (httpx.InvalidURL, ValueError) as error:
        raise NoServiceAddress(found=url) from error
    if not is_served or " " in url:
        raise NoServiceAddress(found=url)
    return url


def _device(question: OpenProgram) -> HardwareProfile:
    """Return the device whose values a knob gets that cannot be a symbol."""
    known = None if question.target is None else nearest_profile(question.target)
    return known or detected_host()


def _advice(sent: Sent, found: Mapping[str, Any], asked_s: float) -> ProgramAdvice:
    configs = [_recommended(r) for r in found["recommendations"]]
    first = found["recommendations"][0]
    notes = [f"program {sent.program.digest} of the service"]
    if found["hardware_asked_for"]:
        notes.append(f"nobody knows {found['hardware_asked_for']}; these are for the most like it")
    return ProgramAdvice(
        configs=tuple(configs), hardware=found["hardware"],
        work_flop=first["gflops"] * first["latency_us"] * 1e3,
        legal=found["legal"], enumerated=found["enumerated"],
        traces=len(sent.program.variants), trace_s=sent.trace_s, evaluate_s=asked_s, check_s=0.0,
        notes=(*notes, *sent.program.notes, *found["notes"]),
    )  # fmt: skip


def _recommended(r: Mapping[str, Any]) -> RecommendedConfig:
    own = {k: v for k, v in r["config"].items() if k not in LOWERING}
    lowering = {k: v for k, v in r["config"].items() if k in LOWERING}
    low_us, high_us = r["interval_us"]
    return RecommendedConfig(
        config=TileConfig.of(own), lowering=TileConfig.of(lowering), time_s=r["latency_us"] / 1e6,
        interval_s=(low_us / 1e6, high_us / 1e6), bound_by=r["bound_by"],
        rationale=r["rationale"], source=r["source"],
    )  # fmt: skip
