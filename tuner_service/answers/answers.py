"""Answers: recommendations, from memory while what they rest on stays as it is.

A cold answer costs milliseconds of one core, so each question is worked out once however many ask
it, by as many processes as there are cores (``answer_desk``), and a bounded number of questions
wait.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from anyio.to_thread import run_sync

from db.changes import Changes, Follower
from db.session import Database
from db.snapshot import Snapshot
from db.store import SqlStore
from tuner_service.answers.answering import work_out
from tuner_service.answers.desk import AnswerDesk
from tuner_service.answers.memory import Answer, AnswerMemory
from tuner_service.dispatch.answers import (
    ORDER,
    TABLE,
    TuningOrder,
    advance_table,
    work_out_table,
)
from tuner_service.dispatch.schemas import DispatchTableRequest
from tuner_service.errors import FaultyParts, Overloaded, is_of_request
from tuner_service.metrics import Metrics
from tuner_service.schemas import RecommendationRequest
from tuner_service.settings import Settings
from workers.errors import DeskBusy
from workers.program_desk import PLACES, WAIT_S

FRESH_S = 0.1  # an answer from memory is at most so far behind the database
MAX_REMEMBERED = 4096
MAX_CHANGES = 4096  # one every FRESH_S / 2 at most: an answer that nobody asked for so long is gone
MAX_WAITING = 64  # questions that are worked out, or wait for it
# Who is refused and asks again at once would leave the working threads no interpreter lock: beside
# 2,200 refusals/s no answer at all was worked out in 6 s (measured on 2 cores).
REFUSE_AFTER_S = 0.25
PROGRAMS = PLACES  # that are looked at: as many as there are processes for it
Answerable = RecommendationRequest | DispatchTableRequest
Found = TypeVar("Found")


class Answers:
    """Answers of one process."""

    def __init__(
        self,
        store: SqlStore,
        metrics: Metrics,
        settings: Settings,
        follower: Callable[[Database], Follower] = Follower,
    ) -> None:
        self.desk = AnswerDesk(settings)
        self._store, self._database = store, store.database
        self._settings = settings
        self._metrics = metrics
        self._memory = AnswerMemory(MAX_REMEMBERED, MAX_CHANGES)
        self._asked: dict[str, asyncio.Task[Answer]] = {}
        self._places = self.desk.places or os.cpu_count() or 1
        self._cores = asyncio.Semaphore(self._places)
        # A program takes seconds; whoever asks about kernels does not wait for it.
        self._programs = asyncio.Semaphore(PROGRAMS)
        self._follower = follower(store.database)
        self._snapshot = Snapshot(store)
        self._checked_at = -FRESH_S
        self._changes: int | None = None  # of the database, when it was asked the last time
        self._check: asyncio.Task[None] | None = None

    async def of(self, request: Answerable) -> bytes:
        """Return the JSON of the ``RecommendationResponse`` to a question, or of a dispatch table.

        Raises:
            Overloaded: too many other questions wait (SV923).
            DeskBusy: too many programs are being looked at (WK711).
            TileError: what ``questions.understand`` and ``questions.answer`` raise, or
                ``dispatch_answers.work_out_table``.
        """
        await self._be_fresh()
        is_table = isinstance(request, DispatchTableRequest)
        key = (TABLE if is_table else "") + request.model_dump_json()
        found = self._memory.get(key, time.monotonic())
        if found is None:
            found = await self._work_out(key, request)
        if not is_table:
            self._metrics.recommendation(found.kernel, found.source)
        return found.body

    async def of_all(self, requests: Sequence[RecommendationRequest]) -> list[bytes]:
        """Return the answers to several questions, as many at once as there are processes.

        Raises:
            FaultyParts: some of the questions cannot be understood.
            TileError: the service or its database is at fault.
        """
        places = asyncio.Semaphore(self._places)

        async def one(request: RecommendationRequest) -> bytes:
            async with places:
                return await self.of(request)

        found = await asyncio.gather(*map(one, requests), return_exceptions=True)
        for fault in found:
            if isinstance(fault, BaseException) and not is_of_request(fault):
                raise fault
        parts = [(f"/body/requests/{i}", e) for i, e in enumerate(found) if is_of_request(e)]
        if parts:
            raise FaultyParts(parts)
        return [body for body in found if isinstance(body, bytes)]

    async def advance(self, order: TuningOrder) -> Answer:
        """Return the table of an order, or where its tuning stands; what it lacks is queued.

        Raises:
            DeskBusy: too many programs are being looked at (WK711).
            TileError: see ``dispatch_answers.advance_table``.
        """
        if order.request.program is not None:
            return await self.looked_at(partial(advance_table, self._store, order), program=True)
        async with self._cores:
            made = await self.desk.told(self._memory.moment, ORDER + order.model_dump_json())
            if made is not None:
                return made
            return await run_sync(advance_table, self._store, order)

    async def looked_at(self, call: Callable[[], Found], *, program: bool) -> Found:
        """Return what a call returns, in a thread, once there is a place if it is about a program.

        Raises:
            DeskBusy: too many programs are being looked at (WK711).
        """
        if not program:
            return await run_sync(call)
        async with self._place_for_program():
            return await run_sync(call)

    async def _be_fresh(self) -> None:
        """Wait until what is remembered is FRESH_S behind the database at most.

        A database that cannot say at once whether anything was committed is asked ahead of time.
        Beside an event loop that is busy, a thread gets the interpreter lock late: its milliseconds
        took 70 of somebody's answer.
        """
        age_s = time.monotonic() - self._checked_at
        if age_s < FRESH_S / 2:
            return
        if self._check is None or self._check.done():
            if self._changes is not None and self._changes == self._database.changes():
                self._checked_at = time.monotonic()
                return
            self._check = asyncio.create_task(self._refresh())
            self._check.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen
        if age_s >= FRESH_S:
            await asyncio.shield(self._check)

    async def _refresh(self) -> None:
        """Look what was committed: answers that rest on it hold no longer."""
        began = time.monotonic()
        try:
            self._changes, found = await run_sync(self._look)
        finally:
            self._checked_at = began
        if found:
            self._memory.change(found)
            self._snapshot = self._snapshot.after(found)
            self._asked.clear()  # those who wait get what they asked for

    def _look(self) -> tuple[int | None, Changes]:
        """Return how the database is, and what was committed before that."""
        changes = self._database.changes()
        return changes, self._follower.look()

    async def _work_out(self, key: str, request: Answerable) -> Answer:
        task = self._asked.get(key)
        if task is None:
            if len(self._asked) >= MAX_WAITING:
                await asyncio.sleep(REFUSE_AFTER_S)
                raise Overloaded(limit=MAX_WAITING)
            task = asyncio.create_task(self._compute(key, request))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen
            self._asked[key] = task
        return await asyncio.shield(task)  # a client that leaves takes nobody's answer with it

    async def _compute(self, key: str, request: Answerable) -> Answer:
        began = self._memory.moment
        try:
            if request.program is None:
                async with self._cores:
                    made = await self._made(key, request)
            else:
                async with self._place_for_program():
                    made = await self._made(key, request)
        finally:
            if self._asked.get(key) is asyncio.current_task():
                del self._asked[key]
        self._memory.keep(key, made, began)
        return made

    @asynccontextmanager
    async def _place_for_program(self) -> AsyncIterator[None]:
        """Wait until a process has time for a program; raises DeskBusy (WK711)."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._programs.acquire()
        except TimeoutError:
            raise DeskBusy(places=PROGRAMS) from None
        try:
            yield
        finally:
            self._programs.release()

    async def _made(self, key: str, request: Answerable) -> Answer:
        """Return an answer of another process, or of this one: programs wait for their own desk."""
        snapshot = self._snapshot
        if request.kernel is not None:
            made = await self.desk.told(self._memory.moment, key)
            if made is not None:
                return made
        return await run_sync(self._worked_out, snapshot, request)

    def _worked_out(self, snapshot: Snapshot, request: Answerable) -> Answer:
        if isinstance(request, DispatchTableRequest):
            return work_out_table(snapshot, request)
        return work_out(snapshot, self._settings, request)
