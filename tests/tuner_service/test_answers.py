"""Answers from memory: nobody waits for a check of the database that comes ahead of time."""

import asyncio
import threading
from dataclasses import replace

import pytest

from db.changes import Follower
from db.errors import DatabaseLocked
from db.session import Database
from db.store import SqlStore
from recommender.measurement import MeasureStatus
from tests.tuner_service.test_app import GEMM
from tests.tuner_service.test_remeasure import measured
from tuner_service import questions
from tuner_service.answers import answers as answers_module
from tuner_service.answers.answers import FRESH_S, Answers
from tuner_service.errors import Overloaded
from tuner_service.metrics import Metrics
from tuner_service.schemas import RecommendationRequest

REQUEST = RecommendationRequest(**GEMM)


class SlowDatabase(Database):
    """A database that does not say at once whether it has changed, as PostgreSQL."""

    def changes(self):
        return None


class HeldFollower(Follower):
    """One that says what was committed when the test lets it."""

    def __init__(self, database):
        super().__init__(database)
        self.may_say, self.checks = threading.Event(), 0
        self.fault = None
        self.may_say.set()

    def look(self):
        self.checks += 1
        assert self.may_say.wait(60)
        if self.fault is not None:
            raise self.fault
        return super().look()


@pytest.fixture
def slow(settings):
    database = SlowDatabase(settings.url)
    yield SqlStore(database)
    database.close()


def answers_of(store, settings):
    """Return answers of this process, and the follower that they ask."""
    held = []

    def made(database):
        held.append(HeldFollower(database))
        return held[0]

    here = settings.model_copy(update={"answer_processes": 0})
    return Answers(store, Metrics(store), here, made), held[0]


def test_nobody_waits_for_a_check_that_comes_ahead_of_time(slow, settings):
    answers, held = answers_of(slow, settings)

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


def test_all_who_ask_after_a_pause_see_what_was_stored_meanwhile(slow, settings):
    """Only the first of them waited for the check; the others were told what had been so far."""
    answers, held = answers_of(slow, settings)

    async def ask():
        before = await answers.of(REQUEST)
        question = questions.understand(slow, "gemm", GEMM["problem"])
        slow.add(measured(question))
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
    answers, held = answers_of(store, settings)

    async def ask():
        first = await answers.of(REQUEST)
        before = held.checks
        for _ in range(5):
            await asyncio.sleep(1.2 * FRESH_S)
            assert await answers.of(REQUEST) == first
        assert held.checks == before
        question = questions.understand(store, "gemm", GEMM["problem"])
        store.add(measured(question))
        await asyncio.sleep(1.2 * FRESH_S)
        return await answers.of(REQUEST)

    assert b'"source":"measured"' in asyncio.run(ask())


def test_a_check_that_failed_is_made_again(store, settings):
    """What was committed before it is still looked at: answers do not get older than they may."""
    answers, held = answers_of(store, settings)

    async def ask():
        await answers.of(REQUEST)
        question = questions.understand(store, "gemm", GEMM["problem"])
        store.add(measured(question))
        held.fault = DatabaseLocked(url="", timeout_s=1.0)
        await asyncio.sleep(1.2 * FRESH_S)
        with pytest.raises(DatabaseLocked):
            await answers.of(REQUEST)
        held.fault = None
        await asyncio.sleep(1.2 * FRESH_S)
        return await answers.of(REQUEST)

    assert b'"source":"measured"' in asyncio.run(ask())


def test_answers_are_kept_while_something_else_is_measured(store, settings):
    """A run of one workload leaves answers about others as they are, but for its new winners."""
    answers, _ = answers_of(store, settings)
    asked = {m: RecommendationRequest(kernel="gemm", problem={"m": m, "n": 64, "k": 64})
             for m in (64, 65, 60000)}  # fmt: skip
    subject = questions.understand(store, "gemm", {"m": 64, "n": 64, "k": 64})
    for m in (60000, 50000, 40000, 30000, 20000, 15000, 12000, 10000, 9000):  # that are nearer
        store.add(measured(questions.understand(store, "gemm", {"m": m, "n": 64, "k": 64})))
    worked_out = []
    original = answers._worked_out
    answers._worked_out = lambda snapshot, request: (
        worked_out.append(request.problem["m"]) or original(snapshot, request)
    )

    async def answered():
        await asyncio.sleep(1.2 * FRESH_S)
        worked_out.clear()
        for request in asked.values():
            await answers.of(request)
        return list(worked_out)

    async def of_a_run():
        yield await answered()
        config = measured(subject).config
        for time_s, is_ok in ((1e-3, True), (2e-3, True), (1e-3, False), (5e-4, True)):
            found = measured(subject, config=config)
            times = (time_s,) * 5 if is_ok else ()
            status = MeasureStatus.OK if is_ok else MeasureStatus.COMPILE_ERROR
            store.add(replace(found, times_s=times, status=status, detail="" if is_ok else "no"))
            yield await answered()

    async def all_of_it():
        return [found async for found in of_a_run()]

    first, grown, slower, failed, faster = asyncio.run(all_of_it())
    assert first == [64, 65, 60000]
    assert grown == [64, 65]  # a workload more; nine are nearer to 60000
    assert slower == failed == [64]
    assert faster == [64, 65]


def test_a_bounded_number_of_questions_waits(store, settings, monkeypatch):
    may_go, work_out = threading.Event(), answers_module.work_out

    def held(*given):
        assert may_go.wait(60)
        return work_out(*given)

    monkeypatch.setattr(answers_module, "MAX_WAITING", 3)
    monkeypatch.setattr(answers_module, "work_out", held)
    answers, _ = answers_of(store, settings)
    asked = [
        RecommendationRequest(kernel="gemm", problem={"m": m, "n": 64, "k": 64})
        for m in (64, 65, 66, 67)
    ]

    async def scenario():
        waiting = [asyncio.create_task(answers.of(one)) for one in asked[:3]]
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded) as refused:
            await answers.of(asked[3])
        assert refused.value.code == "SV923"
        waiting.append(asyncio.create_task(answers.of(asked[0])))  # the same is no further one
        await asyncio.sleep(0.1)
        may_go.set()
        first, *_, again = await asyncio.gather(*waiting)
        assert first == again
        assert b'"m":67' in await answers.of(asked[3])

    asyncio.run(scenario())
