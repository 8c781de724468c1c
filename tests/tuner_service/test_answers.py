"""Answers from memory: nobody waits for a check of the database that comes ahead of time."""

import asyncio
import threading

import pytest

from db.errors import DatabaseLocked
from db.session import Database
from db.store import SqlStore
from tests.tuner_service.test_app import GEMM
from tests.tuner_service.test_remeasure import measured
from tuner_service import questions
from tuner_service.answers import FRESH_S, Answers
from tuner_service.metrics import Metrics
from tuner_service.schemas import RecommendationRequest

REQUEST = RecommendationRequest(**GEMM)


class SlowDatabase(Database):
    """A database that does not say at once whether it has changed, as PostgreSQL."""

    def changes(self):
        return None


class HeldStore(SqlStore):
    """A store that says how its database is when the test lets it."""

    def __init__(self, database):
        super().__init__(database)
        self.may_say, self.checks = threading.Event(), 0
        self.fault = None
        self.may_say.set()

    def generation(self):
        self.checks += 1
        assert self.may_say.wait(60)
        if self.fault is not None:
            raise self.fault
        return super().generation()


@pytest.fixture
def held(store, settings):
    database = SlowDatabase(settings.url)
    yield HeldStore(database)
    database.close()


@pytest.fixture
def answers(settings, held):
    return Answers(held, Metrics(held), settings.model_copy(update={"answer_processes": 0}))


def test_nobody_waits_for_a_check_that_comes_ahead_of_time(held, answers):
    async def was_told_during_a_check():
        await answers.of(REQUEST)
        before = held.checks
        held.may_say.clear()
        await asyncio.sleep(0.6 * FRESH_S)
        asked = asyncio.create_task(answers.of(REQUEST))
        told, _ = await asyncio.wait({asked}, timeout=2 * FRESH_S)
        await asyncio.sleep(FRESH_S)  # the check has begun in its thread
        held.may_say.set()
        await asked
        return bool(told) and held.checks > before

    async def any_of(times):  # a busy machine may sleep for longer than answers stay fresh
        for _ in range(times):
            if await was_told_during_a_check():
                return True
        return False

    assert asyncio.run(any_of(20))


def test_all_who_ask_after_a_pause_see_what_was_stored_meanwhile(held, answers):
    """Only the first of them waited for the check; the others were told what had been so far."""

    async def ask():
        before = await answers.of(REQUEST)
        question = questions.understand(held, "gemm", GEMM["problem"])
        held.add(measured(question))
        await asyncio.sleep(FRESH_S)
        held.may_say.clear()
        asked = [asyncio.create_task(answers.of(REQUEST)) for _ in range(3)]
        await asyncio.sleep(FRESH_S / 2)
        held.may_say.set()
        return before, await asyncio.gather(*asked)

    before, after = asyncio.run(ask())
    assert b'"source":"measured"' not in before
    assert all(b'"source":"measured"' in body for body in after)


def test_where_nothing_was_committed_nothing_is_read(store, settings):
    held = HeldStore(store.database)
    answers = Answers(held, Metrics(held), settings.model_copy(update={"answer_processes": 0}))

    async def ask():
        first = await answers.of(REQUEST)
        before = held.checks
        for _ in range(5):
            await asyncio.sleep(1.2 * FRESH_S)
            assert await answers.of(REQUEST) == first
        assert held.checks == before
        question = questions.understand(held, "gemm", GEMM["problem"])
        held.add(measured(question))
        await asyncio.sleep(1.2 * FRESH_S)
        return await answers.of(REQUEST)

    assert b'"source":"measured"' in asyncio.run(ask())


def test_a_check_that_failed_is_made_again(store, settings):
    """What was committed before it is still looked at: answers do not get older than they may."""
    held = HeldStore(store.database)
    answers = Answers(held, Metrics(held), settings.model_copy(update={"answer_processes": 0}))

    async def ask():
        await answers.of(REQUEST)
        question = questions.understand(held, "gemm", GEMM["problem"])
        held.add(measured(question))
        held.fault = DatabaseLocked(url="", timeout_s=1.0)
        await asyncio.sleep(1.2 * FRESH_S)
        with pytest.raises(DatabaseLocked):
            await answers.of(REQUEST)
        held.fault = None
        await asyncio.sleep(1.2 * FRESH_S)
        return await answers.of(REQUEST)

    assert b'"source":"measured"' in asyncio.run(ask())
