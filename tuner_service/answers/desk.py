"""AnswerDesk: processes that work out answers, since one process has one interpreter lock.

A child is forked from a process that has imported all it needs; it opens the database itself, keeps
what devices, models and winners it read, and looks what was committed since when the service says
that something was. A child that ends is replaced and the question asked once more; if that ends
too, the question fails alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

from anyio.to_thread import run_sync

from db.changes import Follower
from db.session import Database
from db.snapshot import Snapshot
from db.store import SqlStore
from tilecore import kernels
from tilecore.errors import TileError
from tuner_service.answers.answering import work_out_undoubted
from tuner_service.answers.memory import Answer
from tuner_service.dispatch.answers import (
    ORDER,
    TABLE,
    TuningOrder,
    advance_table,
    work_out_table,
)
from tuner_service.dispatch.schemas import DispatchTableRequest
from tuner_service.errors import AnswerLost
from tuner_service.schemas import RecommendationRequest
from tuner_service.settings import Settings
from tuner_service.wiring import detected_host
from workers.errors import WorkerError
from workers.host import memory_bytes
from workers.program_desk import ENVIRONMENT
from workers.sandbox import Crashed, Outcome, Raised, Returned, Sandbox, Zygote

LOG = logging.getLogger(__name__)
LIMIT_S = 60.0
LONG = 16_384  # characters of a question that might not fit into the way to a process at once
MOST_PLACES = 8
PLACE_BYTES = 256 << 20  # of the machine's memory for each: it takes some 100 MiB itself
START_AGAIN_S = 30.0  # after the machinery itself failed
PRELOAD = (
    "tuner_service.answers.desk", "recommender.program_answers", "recommender.recommend", "xgboost",
    "recommender.gpu.limits", "recommender.gpu.model", "recommender.gpu.features", *kernels.MODULES,
)  # fmt: skip
FIRST = '{"kernel": "gemm", "problem": {"m": 64, "n": 64, "k": 64}}'  # loads all that answers need


class Answerer:
    """Lives in the child process."""

    def __init__(self, url: str, busy_timeout_s: float) -> None:
        self._store = SqlStore(Database(url, busy_timeout_s=busy_timeout_s))
        self._follower = Follower(self._store.database)
        self._snapshot, self._moment = Snapshot(self._store), -1

    def answer(self, moment: int, request: str) -> Answer | TileError | None:
        """Return the answer to a question in JSON, why there is none, or None: not from here."""
        try:
            if self._moment != moment:
                self._snapshot = self._snapshot.after(self._follower.look())
                self._moment = moment
            if request.startswith(TABLE):
                asked = DispatchTableRequest.model_validate_json(request.removeprefix(TABLE))
                return work_out_table(self._snapshot, asked)
            if request.startswith(ORDER):
                order = TuningOrder.model_validate_json(request.removeprefix(ORDER))
                return advance_table(self._store, order)
            return work_out_undoubted(
                self._snapshot, RecommendationRequest.model_validate_json(request)
            )
        except TileError as error:
            return error


def fitting_places(cores: int, memory: int) -> int:
    """Return how many processes a machine or container has room for; 0: one core is for one."""
    return min(cores, MOST_PLACES, memory // PLACE_BYTES) if cores > 1 else 0


class AnswerDesk:
    """Some child processes that answer; none until ``open``, nor where the settings say so.

    Attributes:
        places: how many there are to be.
    """

    def __init__(self, settings: Settings, answerer: type = Answerer) -> None:
        wanted = settings.answer_processes
        room = fitting_places(detected_host().cores, memory_bytes())
        self.places = room if wanted is None else wanted
        self._settings, self._answerer = settings, answerer
        self._zygote = Zygote(
            "answerer", PRELOAD, absent=("tvm", "torch", "ray"), environment=ENVIRONMENT
        )
        self._free: deque[Sandbox] = deque()  # the one that answered last is asked first
        self._away_until = 0.0
        self._is_closed = False

    @property
    def ready(self) -> int:
        """How many processes wait for a question."""
        return len(self._free)

    def open(self) -> None:
        """Start the processes; returns at once. They answer as they become ready."""
        if self.places:
            threading.Thread(target=self._start, name="answer desk", daemon=True).start()

    def close(self) -> None:
        """End the processes."""
        self._is_closed = True
        self._zygote.close()

    async def told(self, moment: int, request: str) -> Answer | None:
        """Return what ``ask`` does; no thread waits for a process that is ready."""
        if len(request) > LONG or time.monotonic() < self._away_until:
            return await run_sync(self.ask, moment, request)
        try:
            sandbox = self._free.pop()
        except IndexError:
            return None
        outcome: Outcome | None = None
        try:
            outcome = await sandbox.awaited("answer", moment, request, timeout_s=LIMIT_S)
        except WorkerError as error:
            LOG.info("an answering process is lost: %s", error.message)
        finally:
            self._free.append(sandbox)
        if outcome is None:  # it has to be started
            return await run_sync(self.ask, moment, request)
        if isinstance(outcome, Crashed):
            return await run_sync(self.ask, moment, request, 1)
        return _meant(outcome, request)

    def ask(self, moment: int, request: str, tries: int = 2) -> Answer | None:
        """Return the answer to a question; None: it is to be worked out here.

        Args:
            moment: of the database; after another one the child looks what was committed.
            request: a ``RecommendationRequest`` in JSON, TABLE and a ``DispatchTableRequest``, or
                ORDER and a ``TuningOrder``.
            tries: how many processes may end over it.

        Raises:
            TileError: what ``answering.work_out`` raises.
            AnswerLost: the processes ended over the question, or one took too long (SV925).
        """
        if time.monotonic() < self._away_until:
            return None
        try:
            sandbox = self._free.pop()
        except IndexError:  # none is ready yet
            return None
        try:
            outcome = sandbox.call("answer", moment, request, timeout_s=LIMIT_S)
            if isinstance(outcome, Crashed) and tries > 1:  # perhaps for something else than this
                outcome = sandbox.call("answer", moment, request, timeout_s=LIMIT_S)
        except WorkerError as error:
            LOG.warning("answers are worked out in the service itself: %s", error.message)
            self._away_until = time.monotonic() + START_AGAIN_S
            return None
        finally:
            self._free.append(sandbox)
        return _meant(outcome, request)

    def _start(self) -> None:
        where = self._settings.url, self._settings.database_timeout_s
        for _ in range(self.places):
            sandbox = Sandbox(self._zygote, self._answerer, *where)
            try:
                sandbox.call("answer", 0, FIRST, timeout_s=LIMIT_S)
            except (WorkerError, OSError) as error:
                if not self._is_closed:  # while it started
                    LOG.warning("an answering process does not start: %s", error)
                return
            self._free.append(sandbox)


def _meant(outcome: Outcome, request: str) -> Answer | None:
    """Return the answer in what became of a call; raises as ``AnswerDesk.ask``."""
    if isinstance(outcome, Returned):
        return _given(outcome.value)
    if isinstance(outcome, Raised):
        raise RuntimeError(f"{outcome.kind} while a question was answered: {outcome.text}")
    LOG.error("a process ended over the question %s: %s", request, outcome)
    raise AnswerLost(reason=str(outcome))


def _given(value: Any) -> Answer | None:
    if isinstance(value, TileError):
        raise value
    assert value is None or isinstance(value, Answer)
    return value
