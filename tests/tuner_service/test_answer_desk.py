"""Answers worked out in other processes are those of the service itself, whatever ends there."""

import asyncio
import os
import signal
import threading
import time

import psutil
import pytest

from tests.tuner_service.serving import TestClient
from tests.tuner_service.test_app import GEMM, problem
from tests.tuner_service.test_remeasure import measured
from tilecore.errors import InvalidProblem
from tuner_service import questions
from tuner_service.answers.answers import FRESH_S
from tuner_service.answers.desk import LONG, AnswerDesk, Answerer, fitting_places
from tuner_service.app import create_app
from tuner_service.errors import AnswerLost
from tuner_service.schemas import RecommendationRequest

REQUEST = RecommendationRequest(**GEMM).model_dump_json()
ASKED = (
    GEMM,
    {"kernel": "gemm", "problem": {"m": 300, "n": 768, "k": 555}, "top_k": 8, "threads": 1},
    {"kernel": "softmax", "problem": {"m": 512, "n": 1000}},
    {"kernel": "gemm", "problem": {"m": 512, "n": 512, "k": 512}, "hardware": "h100"},
    {"kernel": "gemm", "problem": {"m": 512, "n": 512, "k": 512}, "hardware": "NVIDIA H20 Super"},
    {"kernel": "gemm", "problem": {"m": -1, "n": 512, "k": 512}},
    {"kernel": "gemm", "problem": {"m": 64, "n": 64, "k": 64}, "threads": 4000},
)


def opened(desk):
    """Wait until all processes of a desk are there."""
    for _ in range(600):
        if desk.ready == desk.places:
            return desk
        time.sleep(0.1)
    raise AssertionError("the processes do not start")


@pytest.mark.parametrize(
    ("cores", "gib", "places"), [(1, 64, 0), (2, 64, 2), (64, 64, 8), (64, 1, 4), (4, 0.2, 0)]
)
def test_there_are_as_many_processes_as_fit(cores, gib, places):
    assert fitting_places(cores, int(gib * 2**30)) == places


def test_processes_answer_as_the_service_itself_does(settings, store):
    apps = [create_app(settings.model_copy(update={"answer_processes": n}), store) for n in (2, 0)]
    with TestClient(apps[1]) as alone, TestClient(apps[0]) as client:
        desk = opened(apps[0].state.answers.desk)
        for asked in ASKED:
            here, there = (c.post("/v1/recommendations", json=asked) for c in (alone, client))
            assert (there.status_code, there.content) == (here.status_code, here.content)
        assert desk.ask(0, REQUEST).body == client.post("/v1/recommendations", json=GEMM).content
        question = questions.understand(store, "gemm", GEMM["problem"])
        store.add(old := measured(question, program_digest="another"))
        time.sleep(FRESH_S)
        stale = client.post("/v1/recommendations", json=GEMM).json()
        assert stale["remeasurement"]["cause"] == "stale"  # by the service: it may queue a run
        assert dict(old.config.items_) in [r["config"] for r in stale["recommendations"]]
        store.add(new := measured(question))
        time.sleep(FRESH_S)
        first = client.post("/v1/recommendations", json=GEMM).json()["recommendations"][0]
        assert (first["source"], first["config"]) == ("measured", dict(new.config.items_))
        zygote = psutil.Process(desk._zygote._running.process.pid)
        processes = [zygote, *zygote.children(recursive=True)]
        assert len(processes) == 3
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


class Mortal(Answerer):
    """Ends over one question."""

    def answer(self, moment, request):
        if '"m":13,' in request:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().answer(moment, request)


@pytest.mark.exhaustive
def test_a_question_that_ends_processes_fails_alone(settings, store):
    desk = AnswerDesk(settings.model_copy(update={"answer_processes": 1}), Mortal)
    desk.open()
    opened(desk)
    fatal = REQUEST.replace('"m":64,', '"m":13,')
    with pytest.raises(AnswerLost, match=r"SV925.*SIGKILL"):
        desk.ask(0, fatal)
    answer = desk.ask(0, REQUEST)
    assert answer is not None
    child = psutil.Process(desk._zygote._running.process.pid).children()[0]
    child.kill()  # between two questions: nobody notices
    assert desk.ask(0, REQUEST).body == answer.body
    # This takes its children along; the next question starts it again.
    desk._zygote._running.process.kill()
    desk._zygote._running.process.wait()
    assert desk.ask(0, REQUEST).body == answer.body
    app = create_app(settings, store)
    app.state.answers.desk = desk
    refused = TestClient(app).post(
        "/v1/recommendations", json=GEMM | {"problem": {"m": 13, "n": 64, "k": 64}}
    )
    problem(refused, 503, "SV925")
    assert refused.headers["retry-after"]
    desk.close()


@pytest.mark.exhaustive
def test_no_thread_waits_for_a_process_that_is_ready(settings, store):
    desk = AnswerDesk(settings.model_copy(update={"answer_processes": 1}), Mortal)
    desk.open()
    opened(desk)
    expected = desk.ask(0, REQUEST).body
    fatal, wrong = REQUEST.replace('"m":64,', '"m":13,'), REQUEST.replace('"m":64,', '"m":-1,')
    before = threading.active_count()

    def children():
        return psutil.Process(desk._zygote._running.process.pid).children()

    async def ask():
        assert (await desk.told((), REQUEST)).body == expected
        assert threading.active_count() == before
        with pytest.raises(InvalidProblem):
            await desk.told((), wrong)
        children()[0].kill()  # between two questions: nobody notices
        assert (await desk.told((), REQUEST)).body == expected
        with pytest.raises(AnswerLost, match=r"SV925.*SIGKILL"):
            await desk.told((), fatal)
        assert (await desk.told((), REQUEST)).body == expected
        (answering,) = children()
        answering.suspend()
        asked = asyncio.create_task(desk.told((), REQUEST))
        await asyncio.sleep(0.1)
        assert await desk.told((), REQUEST) is None  # the only process has a question
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await desk.told((), REQUEST)).body == expected  # not the answer nobody waits for
        assert answering.pid not in {child.pid for child in children()}
        assert (await desk.told((), REQUEST + " " * LONG)).body == expected
        desk._zygote._running.process.kill()
        desk._zygote._running.process.wait()
        assert (await desk.told((), REQUEST)).body == expected

    asyncio.run(ask())
    assert desk.ready == 1
    desk.close()


class Stillborn(Answerer):
    """Cannot be started."""

    def __init__(self, *_):
        raise OSError("no database here")


@pytest.mark.exhaustive
def test_where_no_process_starts_the_service_answers(settings, store):
    desk = AnswerDesk(settings.model_copy(update={"answer_processes": 1}), Stillborn)
    desk.open()
    for thread in threading.enumerate():
        if thread.name == "answer desk":
            thread.join()
    assert desk.ready == 0
    app = create_app(settings, store)
    app.state.answers.desk = desk
    client = TestClient(app)  # not entered: the desk is open already
    assert client.post("/v1/recommendations", json=GEMM).status_code == 200
    wrong = GEMM | {"problem": {"m": 64}}
    problem(client.post("/v1/recommendations", json=wrong), 422, "TC502")
    desk.close()
