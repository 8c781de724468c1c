"""The dashboard: every page, empty and filled, with and without keys, whatever readers type."""

import re
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import update

from db.models import RunRow
from db.records import NewTrial
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.workload import Workload
from tests import postgres
from tests.tuner_service import browser
from tests.tuner_service.conftest import gemm
from tests.tuner_service.serving import LOCAL, ServiceProcess, TestClient, served
from tests.tuner_service.table_measurer import HARDWARE, TOOLCHAIN, TableMeasurer
from tests.tuner_service.test_app import GEMM, coordinate
from tilecore.tile_config import TileConfig
from tuner_service import wiring
from tuner_service.app import create_app
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import HostWorkplace
from tuner_service.dashboard import charts, overview, runs, trials
from tuner_service.dashboard.svg import LETTER, WIDTH
from tuner_service.jobs import Effort, submit
from tuner_service.questions import understand
from tuner_service.web.access import COOKIE

pytestmark = pytest.mark.few(1)  # a case takes long

EVIL = "<script>alert('x')</script>"
QUESTION = "/dashboard/recommend?kernel=gemm&problem.m=64&problem.n=64&problem.k=64"
PAGES = ["/dashboard", "/dashboard/runs", "/dashboard/studies", "/dashboard/log",
         "/dashboard/recommend", QUESTION]  # fmt: skip
VOID = {"meta", "link", "input", "br"}


class Document(HTMLParser):
    """A page as elements; complains of tags that do not match, and of what is inline."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        assert "style" not in given
        assert not any(name.startswith("on") for name in given)
        assert tag != "script" or given.get("src") == "/dashboard/dashboard.js"
        assert tag != "style"
        self.elements.append((tag, given, []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag):
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, text):
        for number in self._open:
            self.elements[number][2].append(text)

    def texts(self, tag, **wanted):
        return [
            " ".join("".join(text).split())
            for name, given, text in self.elements
            if name == tag and wanted.items() <= given.items()
        ]

    def attributes(self, tag, name):
        return [given[name] for t, given, _ in self.elements if t == tag and name in given]

    def links(self):
        return dict(zip(self.texts("a"), self.attributes("a", "href"), strict=True))


@pytest.fixture
def serve(settings, store):
    def start(**changes):
        changed = settings.model_copy(update={"answer_processes": 0} | changes)
        return TestClient(create_app(changed, store), raise_server_exceptions=False)

    return start


@pytest.fixture
def finished(serve, store):
    """Return a client of a service where a run has ended, and the run."""
    client = serve()
    return client, finish_a_run(client, store)


def finish_a_run(client, store):
    run = client.post("/v1/tuning-runs", json=GEMM | {"max_trials": 8}).json()
    coordinate(store)
    return client.get(f"/v1/tuning-runs/{run['id']}").json()


def study_of(client, times_us, text="tile", max_trials=9, **described):
    """Return the page of a study that was told these times (None: a failure)."""
    body = {"name": text, "parameters": {"tile": list(range(1, 10))}, "hardware": text,
            "max_trials": max_trials, "default": {"tile": 1}, "strategy": "exhaustive"}  # fmt: skip
    url = client.post("/v1/studies", json=body | described).headers["location"]
    for time_us in times_us:
        (trial,) = client.post(f"{url}/trials:suggest", json={"worker": text}).json()["items"]
        told = {"failure": text} if time_us is None else {"repeats_us": [time_us]}
        told["worker"] = text
        client.post(f"{url}/trials/{trial['id']}:complete", json=told).raise_for_status()
    return url.replace("/v1/", "/dashboard/")


def read(client, address, status=200):
    answer = client.get(address)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-store"
    return Document(answer.text)


def measured(config, *, workload=None, time_s=1e-4, status=MeasureStatus.OK, detail=""):
    return Measurement(
        workload=workload or gemm(),
        config=TileConfig.of(config),
        hardware=HARDWARE,
        toolchain=TOOLCHAIN,
        program_digest="a" * 32,
        protocol=Protocol.SCREEN,
        threads=1,
        status=status,
        times_s=(time_s,) * 3 if status is MeasureStatus.OK else (),
        detail=detail,
        worker="w",
        measured_at=datetime.now(UTC),
    )


def test_the_front_door_leads_to_the_dashboard(serve):
    answer = serve().get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/dashboard")


@pytest.mark.few(2)
@pytest.mark.parametrize("address", PAGES)
def test_pages_of_an_empty_database(serve, address):
    document = read(serve(), address)
    assert document.texts("h1")
    assert document.attributes("script", "src") == ["/dashboard/dashboard.js"]


def test_pages_are_not_in_the_api_document(serve):
    paths = serve().get("/openapi.json").json()["paths"]
    assert not any(path == "/" or path.startswith("/dashboard") for path in paths)


def test_the_overview_of_a_filled_database(finished):
    client, run = finished
    document = read(client, "/dashboard")
    links = document.links()
    assert links["gemm m=64 n=64 k=64 float32"] == f"/dashboard/runs/{run['id']}"
    assert "1 succeeded" in links
    assert "not measured" in document.texts("span")  # nobody profiled this machine here
    assert wiring.detected_host().name in links


@pytest.mark.few(1)
def test_more_devices_than_a_page_shows_are_told_of(serve, monkeypatch):
    client = serve()
    assert "There are more" not in client.get("/dashboard").text
    monkeypatch.setattr(overview, "MOST_DEVICES", 2)
    text = client.get("/dashboard").text
    assert "There are more: <code>GET /v1/hardware</code>" in text
    assert text.count("best_per=workload") == 2


def test_every_page_that_pages_lead_to_is_there(each_database):
    app = create_app(each_database.model_copy(update={"answer_processes": 0}))
    with TestClient(app, raise_server_exceptions=False) as client:
        run = finish_a_run(client, app.state.store)
        study = study_of(client, [1.5, None])
        seen, waiting = set(), ["/dashboard", QUESTION]
        while waiting:
            address = waiting.pop().partition("#")[0]
            kind = address.partition("hardware=")[0]  # one device stands for those without records
            if kind in seen or not address.startswith("/dashboard"):
                continue
            seen.add(kind)
            links = read(client, address).attributes("a", "href")
            waiting += links
            for file in (link for link in links if link.startswith("/v1/")):
                answer = client.get(file)
                is_told = answer.status_code == 422 and answer.json()["code"] == "DB810"
                assert answer.status_code == 200 or is_told, (file, answer.text)  # T4: one space
    assert {f"/dashboard/runs/{run['id']}", study} <= seen
    assert {urlsplit(address).path for address in seen} >= {
        "/dashboard/runs", "/dashboard/studies", "/dashboard/log", "/dashboard/recommend",
        "/dashboard/workload",
    }  # fmt: skip


def test_no_page_leads_to_what_was_not_measured(serve):
    """A run that was cancelled led to a map that is not there, the whole log to a file of T4."""
    client = serve()
    run = client.post("/v1/tuning-runs", json=GEMM | {"max_trials": 8}).json()
    client.post(f"/v1/tuning-runs/{run['id']}:cancel")
    pages = ["/dashboard", f"/dashboard/runs/{run['id']}", "/dashboard/log"]
    found = {link for page in pages for link in read(client, page).attributes("a", "href")}
    for link in found:
        assert client.get(link).status_code == 200, link


def test_no_page_is_wider_than_a_narrow_screen(serve, settings, store, finished):
    """The overview was 837 points wide once a model was promoted, and small."""
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium here: install the package chromium")
    _, run = finished
    chosen = {f"quality_of_{who}": 0.9 for who in ("model", "analytic", "nearest", "incumbent")}
    store.models.save(
        kernel="gemm", family="cpu", blob=b"m", feature_schema="f", metrics=chosen, trained_on=600,
        promote=True,
    )  # fmt: skip
    app = create_app(settings.model_copy(update={"answer_processes": 0, "access_log": "off"}))
    pages = ["", "/runs", f"/runs/{run['id']}", "/studies", "/log", "/recommend"]
    with served(app) as address, browser.opened(program) as page:
        page.resize(360, 800)
        for name in pages:
            page.open(f"{address}/dashboard{name}")
            page.wait(f"location.pathname == '/dashboard{name}'")
            assert page.ask("document.documentElement.scrollWidth") == 360, name


def test_a_run_under_way_shows_its_progress(serve):
    client = serve()
    run = client.post("/v1/tuning-runs", json=GEMM | {"max_trials": 8}).json()
    assert read(client, "/dashboard").attributes("progress", "max") == ["8"]
    document = read(client, f"/dashboard/runs/{run['id']}")
    assert document.attributes("main", "data-follow") == [f"/v1/tuning-runs/{run['id']}/events"]
    parts = [given["id"] for _, given, _ in document.elements if "data-part" in given]
    assert parts == ["state", "found", "causes", "trials"]


def test_a_finished_run(finished):
    client, run = finished
    document = read(client, f"/dashboard/runs/{run['id']}")
    assert document.attributes("main", "data-follow") == []
    trials = client.get(f"/v1/tuning-runs/{run['id']}/trials").json()["items"]
    shown = "".join(document.texts("section", id="trials"))
    assert len(document.texts("tr")) > len(trials)
    assert all(t["purpose"] in shown for t in trials)
    best = run["result"]["best"]["latency_us"]
    assert any(f"{best:.2f}"[:4] in text for text in document.texts("td"))
    assert f"OK{len(trials)}" in "".join(document.texts("section", id="causes"))
    titles = document.texts("title")
    assert "Best time over trials (screen)" in titles
    assert sum(t.startswith("trial ") for t in titles) == sum(
        t["protocol"] == "screen" for t in trials
    )
    links = document.links()
    for form in ("CSV", "Parquet", "T4"):
        assert run["id"] in links[form]
    assert client.get(links["CSV"]).text.count("\n") == len(trials) + 1
    fastest = read(client, links["fastest first"])
    assert fastest.texts("b") == ["fastest first"]
    assert read(client, f"/dashboard/runs/{run['id']}?start=100000").texts("p")[-1]


def test_what_makes_times_doubtful_stands_below_them(finished, store):
    client, run = finished
    record = store.runs.get(run["id"])
    result = {**record.result, "best": record.result["best"] | {"doubts": ["a neighbour"]}}
    with store.database.write() as session:
        session.execute(update(RunRow).where(RunRow.id == record.id).values(result=result))
    texts = read(client, f"/dashboard/runs/{run['id']}").texts("p")
    assert "Doubtful: a neighbour (best)." in texts


def test_times_of_different_protocols_are_not_compared():
    one_thread = {"latency_us": 80.0, "protocol": "screen", "config": {}}
    all_threads = {"latency_us": 30.0, "protocol": "confirm", "config": {}}
    beside = runs._beside_torch
    assert beside({"default": one_thread, "best": all_threads}) is None
    assert beside({"default": one_thread, "best": one_thread, "recommended": None})
    assert beside({}) is None


def test_trials_come_in_pages(finished, monkeypatch):
    client, run = finished
    count = sum(run["trials"].values())
    monkeypatch.setattr(trials, "ON_A_PAGE", 3)
    address, seen = f"/dashboard/runs/{run['id']}", 0
    while address:
        document = read(client, address)
        pages = "".join(document.texts("nav", **{"aria-label": "Pages of the trials"}))
        assert pages.startswith(f"{seen + 1} to ")
        seen = int(pages.split()[2])
        address = document.links().get("Next page")
    assert seen == count


def test_a_run_of_many_trials_shows_all_of_them(serve, store, queue_run):
    """The first 200 counted: the fastest and those that were confirmed did not."""
    run, epoch = queue_run(max_trials=210), store.leader.acquire("me", 60)
    configs = [{"block_M": 8 * i} for i in range(1, 211)]
    screens = [
        NewTrial(config=TileConfig.of(c), protocol=Protocol.SCREEN, purpose="search")
        for c in configs
    ]
    store.trials.add(
        run.id, [*screens, replace(screens[-1], protocol=Protocol.CONFIRM, purpose="best")], epoch
    )
    leased = store.trials.claim(run.id, epoch, 300, 60)
    found = [
        replace(
            measured(dict(t.config.items_), time_s=1e-3 / (1 + t.sequence)), protocol=t.protocol
        )
        for t in leased
    ]
    store.trials.accept_all(list(zip(leased, found, strict=True)), epoch)
    page = read(serve(), f"/dashboard/runs/{run.public_id}?order=time")
    assert "OK211" in "".join(page.texts("section", id="causes"))
    assert sum(title.startswith("trial ") for title in page.texts("title")) == 210
    best = page.texts("tr", **{"class": "best"})
    assert [row.split()[0][:3] for row in best] == ["210", "209"]  # confirmed, then screened
    assert sum("search" in row for row in page.texts("tr")) == 210


def test_the_model_that_answers_is_shown_however_many_came_after_it(serve, store):
    """It was looked for among the 200 newest."""

    def save(kernel, promote):
        store.models.save(
            kernel=kernel, family="cpu", blob=b"m", feature_schema="s", metrics={"model": 0.875},
            trained_on=4321, promote=promote,
        )  # fmt: skip

    save("softmax", promote=True)
    for _ in range(200):
        save("gemm", promote=False)
    shown = "".join(read(serve(), "/dashboard").texts("section", id="models"))
    assert "softmax" in shown
    assert "0.875" in shown
    assert "gemm" not in shown


def test_runs_by_filter_and_in_pages(serve, queue_run, monkeypatch):
    monkeypatch.setattr(runs, "ON_A_PAGE", 2)
    for author in ("ann", "ben", "ann", "ann"):
        queue_run(created_by=author)
    client = serve()
    first = read(client, "/dashboard/runs?state=&kernel=gemm&created_by=ann&group=")
    assert len(first.attributes("progress", "max")) == 2
    second = read(client, first.links()["Next page"])
    assert len(second.attributes("progress", "max")) == 1
    assert "Next page" not in second.links()
    assert "created_by=ann" in second.links()["First page"]
    assert read(client, "/dashboard/runs?state=PAUSED").texts("p") == ["No run matches."]


def test_the_log_by_filter_and_in_pages(serve, store):
    wrong = MeasureStatus.WRONG_RESULT
    store.add_all(
        [measured({"block_M": 8 * i}, time_s=1e-5 * i) for i in range(1, 6)]
        + [measured({"block_M": 8}, workload=gemm(128), status=wrong, detail="off by\n0.5")]
    )
    client = serve()
    everything = read(client, "/dashboard/log")
    assert "WRONG_RESULT" in everything.texts("span")
    first = read(client, "/dashboard/log?kernel=gemm&m=64&n=&status=OK&best=true&limit=3")
    assert [t for t in first.texts("code") if t.startswith("block")] == [
        "block_M=8", "block_M=16", "block_M=24",
    ]  # fmt: skip
    second = read(client, first.links()["Next page"])
    assert len([t for t in second.texts("code") if t.startswith("block")]) == 2
    export = urlsplit(first.links()["CSV"])
    assert parse_qs(export.query) == {
        "kernel": ["gemm"], "m": ["64"], "status": ["OK"], "best": ["true"], "format": ["csv"],
    }  # fmt: skip
    assert client.get(first.links()["CSV"]).text.count("\n") == 6
    winners = read(client, "/dashboard/log?best_per=workload&since=2020-01-01T00:00:00Z")
    assert len([t for t in winners.texts("code") if t.startswith("block")]) == 1
    near = read(client, "/dashboard/log?kernel=gemm&near=m=60,n=64,k=64")
    assert "Distance" in near.texts("th")


@pytest.mark.parametrize("conditions", [[], ["a + b + c + d < 150"]])
def test_a_study_says_how_its_space_was_counted_and_where_it_ends(serve, conditions):
    """Numbers that were counted were "about" so many, and `exhaustive` ended without a word."""
    client = serve()
    body = {
        "name": "large", "parameters": {name: list(range(100)) for name in "abcd"},
        "conditions": conditions, "strategy": "exhaustive",
    }  # fmt: skip
    study = client.post("/v1/studies", json=body).json()
    assert study["space_size_is_estimate"] is bool(conditions)
    (space,) = (
        text
        for text in read(client, f"/dashboard/studies/{study['id']}").texts("dd")
        if "looked at" in text
    )
    assert space.startswith("about " if conditions else "100,000,000 configs")
    told = f"exhaustive: it ends with {study['sampled']} configurations drawn at random"
    assert told in space
    assert study["notes"][0].startswith(told)
    searched = client.post("/v1/studies", json=body | {"strategy": "model"}).json()
    assert searched["notes"] == []


def test_studies_and_one_of_them(serve, monkeypatch):
    client = serve()
    first = study_of(client, [5.0] * 9, "my kernel", problem={"m": 16})
    second = study_of(client, [4.0, None, 2.5], "my kernel", problem={"m": 32})
    listed = read(client, "/dashboard/studies")
    assert [a for a in listed.attributes("a", "href") if "studies/" in a] == [second, first]
    assert {"m=16", "m=32", "my kernel", "2.500", "3"} <= {
        *listed.texts("td"),
        *listed.texts("span"),
    }
    page = read(client, second)
    assert page.attributes("a", "href").count(first) == 1  # what it knows
    assert page.texts("figcaption")
    assert len(page.texts("circle")) == 2
    rows = [row for row in page.texts("tr") if row.endswith("my kernel")]
    assert any(row.startswith("failed1") for row in rows)
    assert len(page.texts("tr", **{"class": "best"})) == 1
    monkeypatch.setattr(trials, "ON_A_PAGE", 2)
    fastest = read(client, f"{second}?order=time")
    assert len(fastest.texts("tr", **{"class": "best"})) == 1
    rest = read(client, fastest.links()["Next page"])
    assert not rest.texts("tr", **{"class": "best"})
    assert "3 to 3 of 3" in rest.texts("span")


def test_a_map_over_two_knobs(serve, store):
    pairs = [(m, n) for m in (8, 16, 32) for n in (8, 16)]
    store.add_all(
        [
            measured({"block_M": m, "block_N": n, "pack_a": "rows"}, time_s=1e-6 * (m + 2 * n))
            for m, n in pairs
        ]
        + [measured({"block_M": 8, "block_N": 8, "pack_a": "none"}, time_s=1e-6 * 90)]
    )
    client = serve()
    address = read(client, "/dashboard/log").links()["gemm m=64 n=64 k=64 float32"]
    document = read(client, address)
    assert document.texts("option")[:3] == ["pack_a", "block_M", "block_N"]  # by what they change
    document = read(client, f"{address}&x=block_M&y=block_N")
    assert {"24.00", "64.00"} <= set(document.texts("text"))
    assert "90.00" not in document.texts("text")  # not the best of its cell
    assert "mark best" in document.attributes("rect", "class")
    other = read(client, f"{address}&x=pack_a&y=block_N&protocol=screen")
    assert {"none", "rows"} <= set(other.texts("text"))
    assert len([c for c in other.attributes("rect", "class") if c == "none"]) == 1
    for wrong in ("&x=nope", "&x=block_M&y=block_M", f"&x={EVIL}"):
        read(client, address + wrong, 422)
    read(client, f"{address}&protocol=confirm", 404)


def test_a_map_of_many_values_stays_drawable(serve, store):
    workload = gemm()
    store.add_all([measured({"a": i, "b": i % 7}, time_s=1e-6 * (i + 1)) for i in range(400)])
    address = f"/dashboard/workload?workload={workload.key}&hardware={HARDWARE.key}&x=a&y=b"
    widths = read(serve(), address).attributes("rect", "width")
    assert len(widths) > 2800
    assert all(float(w) > 0 for w in widths)


def test_a_recommendation_with_its_terms(serve):
    client = serve()
    document = read(client, QUESTION + "&top_k=3&threads=1")
    body = client.post("/v1/recommendations", json=GEMM | {"top_k": 3, "threads": 1}).json()
    first = body["recommendations"][0]
    answer = "".join(document.texts("section", id="answer"))
    assert len(document.texts("details")) == 3
    assert first["rationale"] in document.texts("p")
    assert first["source"] in answer
    largest = max(first["terms_us"], key=first["terms_us"].get)
    assert largest in document.texts("text")


def test_every_kernel_has_its_fields(serve):
    client = serve()
    for kernel in client.get("/v1/kernels").json():
        document = read(client, f"/dashboard/recommend?kernel={kernel['name']}&show=fields")
        named = {*document.attributes("input", "name"), *document.attributes("select", "name")}
        assert {f"problem.{f['name']}" for f in kernel["fields"]} <= named
        assert document.texts("section", id="answer") == []


@pytest.mark.parametrize(
    ("query", "field", "status"),
    [
        ("kernel=gemm&problem.m=0&problem.n=1&problem.k=1", "problem.m", 422),
        ("kernel=gemm&problem.m=1&problem.n=&problem.k=1", "problem.n", 422),
        ("kernel=gemm&problem.m=1&problem.n=1&problem.k=1e3", "problem.k", 422),
        ("kernel=gemm&problem.m=1&problem.n=1&problem.k=1&problem.dtype=x", "problem.dtype", 422),
        ("kernel=gemm&problem.m=1&problem.n=1&problem.k=1&threads=99999", "threads", 422),
        ("kernel=gemm&problem.m=1&problem.n=1&problem.k=1&threads=4000", "threads", 422),
        ("kernel=gemm&problem.m=1&problem.n=1&problem.k=1&top_k=x", "top_k", 422),
        ("kernel=gemm&problem.m=1&problem.n=1&problem.k=1&hardware=abacus", "hardware", 404),
        ("kernel=fft", "kernel", 404),
    ],
)
def test_bad_input_is_told_beside_its_field_in_the_words_of_rest(serve, query, field, status):
    client = serve()
    document = read(client, f"/dashboard/recommend?{query}", status)
    (told,) = document.texts("p", id=f"fault-{field}")
    assert "expected" in told or "should" in told
    invalid = [given for _, given, _ in document.elements if "aria-invalid" in given]
    assert [given["name"] for given in invalid] == [field]


ODD = ["x", "-1", "9" * 40, EVIL, "%F0%9F%98%80", "%ED%A0%80", "a" * 500, "1.5", "nan", "'--", "[]"]
FIELDS = {
    "/dashboard/runs": ("state", "kernel", "group", "created_by", "cursor"),
    "/dashboard/studies": ("created_by", "cursor"),
    "/dashboard/log": (
        "kernel", "workload", "m", "threads", "dtype", "hardware", "status", "protocol", "since",
        "until", "near", "best", "best_per", "created_by", "run", "limit", "cursor",
    ),
    "/dashboard/recommend": ("kernel", "problem.m", "problem.dtype", "hardware", "top_k", "show"),
    "/dashboard/workload": ("workload", "hardware", "protocol", "x"),
}  # fmt: skip


@pytest.mark.parametrize("page", FIELDS)
def test_whatever_readers_type_they_get_a_page(serve, page):
    client = serve()
    for field in FIELDS[page]:
        for value in ODD:
            answer = client.get(f"{page}?{field}={value}")
            assert answer.status_code in (200, 404, 422), (field, value, answer.text)
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert EVIL not in answer.text
            Document(answer.text)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["nope", "a" * 500, "%3Cscript%3E", "x:cancel", "%F0%9F"])
def test_unknown_things_are_pages(serve, name):
    for pages in ("runs", "studies"):
        document = read(serve(), f"/dashboard/{pages}/{name}", 404)
        assert document.texts("h1") == ["There is no such thing"]


def test_no_page_takes_another_method_than_get(serve):
    client = serve()
    for address in ("/dashboard", "/dashboard/studies", "/dashboard/recommend"):
        answer = client.post(address)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_nul_in_an_address_is_told_on_a_page(serve):
    read(serve(), "/dashboard/log?kernel=%00", 422)


def test_what_users_wrote_is_escaped_everywhere(serve, store, queue_run):
    evil = Workload.of(EVIL, dict(gemm().problem) | {EVIL: EVIL})
    run = queue_run(evil, created_by=EVIL, group=EVIL)
    config, bad = {EVIL: EVIL, "x": 1}, MeasureStatus.COMPILE_ERROR
    store.add_all(
        [measured(config, workload=evil), measured(config, workload=evil, status=bad, detail=EVIL)]
    )
    store.save_hardware(replace(HARDWARE, name=EVIL))
    client = serve()
    addresses = [
        *PAGES,
        f"/dashboard/runs/{run.public_id}",
        study_of(client, [3.0, None], EVIL, problem={"m": EVIL}),
        f"/dashboard/workload?workload={evil.key}&hardware={HARDWARE.key}",
    ]
    told = 0
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code == 200, answer.text
        assert EVIL not in answer.text
        Document(answer.text)
        told += "&lt;script&gt;" in answer.text
    assert told >= 8


def test_a_recommendation_queues_nothing(serve, store):
    stale = replace(measured({"block_M": 64}), hardware=wiring.host_profile(store))
    store.add(stale)
    store.leader.acquire("a coordinator", 60.0)
    client = serve(retune="auto")
    assert any("may no longer hold" in text for text in read(client, QUESTION).texts("p"))
    assert store.runs.list() == []
    client.post("/v1/recommendations", json=GEMM)
    assert len(store.runs.list()) == 1  # which REST does, once


def test_without_a_key_pages_ask_for_one(serve, store):
    client = serve(auth="required")
    for address in ("/", *PAGES, "/dashboard/runs/nope", "/dashboard/nothing"):
        document = read(client, address, 401)
        assert document.attributes("form", "action") == ["/dashboard/login"]
        assert document.attributes("input", "name") == ["key", "wanted"]
    for asset, kind in (("css", "text/css"), ("js", "text/javascript")):
        answer = client.get(f"/dashboard/dashboard.{asset}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)


def test_logging_in_and_out(serve, store):
    client = serve(auth="required")
    _, secret = store.keys.create("ann <b>", "read")
    wanted = "/dashboard/log?kernel=gemm"
    assert read(client, wanted, 401).attributes("input", "value") == [wanted]
    answer = client.post(
        "/dashboard/login", data={"key": secret, "wanted": wanted}, follow_redirects=False
    )
    assert (answer.status_code, answer.headers["location"]) == (303, wanted)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    for address in PAGES:
        assert read(client, address).attributes("input", "name") != ["key", "wanted"]
    document = read(client, wanted)
    assert document.texts("form", action="/dashboard/logout") == ["ann <b> Log out"]
    assert client.get("/v1/tuning-runs").status_code == 200  # exports and events are read so
    out = client.post("/dashboard/logout", follow_redirects=False)
    assert out.status_code == 303
    assert COOKIE not in client.cookies
    read(client, wanted, 401)


def test_a_cookie_reads_and_changes_nothing(serve, store):
    client = serve(auth="required")
    _, secret = store.keys.create("root", "admin")
    client.cookies.set(COOKIE, secret)
    assert client.get("/v1/tuning-runs").status_code == 200
    assert client.post("/v1/tuning-runs", json=GEMM).status_code == 401
    assert client.post("/v1/keys", json={"name": "x"}).status_code == 401


def test_over_https_the_cookie_is_secure(serve, store):
    client = serve(auth="required")
    client.base_url = f"https://{LOCAL}"
    _, secret = store.keys.create("ann", "read")
    answer = client.post("/dashboard/login", data={"key": secret}, follow_redirects=False)
    assert answer.headers["location"] == "/dashboard"
    assert "Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize("key", ["", "tc_no", "x" * 5000, EVIL, "é", "a b", "\0"])
def test_a_wrong_key_is_answered_as_rest_does(serve, key):
    client = serve(auth="required")
    answer = client.post("/dashboard/login", data={"key": key, "wanted": EVIL})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "SV920" in answer.text
    assert EVIL not in answer.text
    assert "set-cookie" not in answer.headers
    Document(answer.text)


def test_keys_have_one_rate_limit_for_pages_and_rest(serve, store):
    client = serve(auth="required", rate_limit="3/minute")
    _, secret = store.keys.create("ann", "read")
    client.post("/dashboard/login", data={"key": secret}, follow_redirects=False)
    assert client.get("/dashboard/runs").status_code == 200
    assert client.get("/v1/tuning-runs").status_code == 200
    answer = client.get("/dashboard/runs")
    assert answer.status_code == 429
    assert answer.headers["retry-after"]
    assert Document(answer.text).texts("h1") == ["Too often"]
    again = client.post("/dashboard/login", data={"key": secret})
    assert again.status_code == 429


@pytest.mark.parametrize(
    "wanted",
    ["https://example.com", "//example.com", "/\\example.com", "/v1/keys", "/dashboard/login",
     "/dashboardx", "/dashboard/\nx"],
)  # fmt: skip
def test_a_login_leads_to_pages_of_the_dashboard_only(serve, store, wanted):
    client = serve(auth="required")
    _, secret = store.keys.create("ann", "read")
    form = {"key": secret, "wanted": wanted}
    answer = client.post("/dashboard/login", data=form, follow_redirects=False)
    assert answer.headers["location"] == "/dashboard"


def test_other_sites_can_log_nobody_in(serve, store):
    client = serve(auth="required")
    _, secret = store.keys.create("ann", "read")
    others = (
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:80"},
        {"Origin": "null"},
    )
    for headers in others:
        for address in ("/dashboard/login", "/dashboard/logout"):
            answer = client.post(address, data={"key": secret}, headers=headers)
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers
    own = {"Origin": f"http://{LOCAL}"}
    answer = client.post("/dashboard/login", data={"key": secret}, headers=own)
    assert answer.history[0].status_code == 303


def test_a_forgotten_cookie_locks_nobody_out_where_no_key_is_needed(serve):
    client = serve()
    client.cookies.set(COOKIE, "tc_gone")
    read(client, "/dashboard")


def test_what_the_middleware_refuses_is_told_on_a_page(serve):
    answer = serve().post("/dashboard/login", data={"key": "x" * 100_000})
    assert answer.status_code == 413
    assert "SV904" in Document(answer.text).texts("code")


def test_the_run_page_follows_a_run_in_a_browser(each_database):
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium here: install the package chromium")
    changes = {"answer_processes": 0, "access_log": "off", "auth": "required"}
    app = create_app(each_database.model_copy(update=changes))
    with served(app) as address, browser.opened(program) as page:
        _follow(page, address, app.state.store)


def test_a_page_follows_its_run_across_a_restart_and_not_while_hidden(settings, store):
    """A stream that was refused was given up for good, without a word; six tabs were the last."""
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium here: install the package chromium")
    options, port = ["--no-coordinator"], postgres.free_port()
    effort = Effort(max_trials=4, time_limit_s=60.0)
    run, _ = submit(store, understand(store, "gemm", GEMM["problem"]), effort)
    state = "document.querySelector('.state').textContent"
    away = "!!document.querySelector('#away')"
    with browser.opened(program) as page:
        with ServiceProcess(settings, options=options, port=port) as service:
            page.open(f"{service.url}/dashboard/runs/{run.public_id}")
            store.runs.pause(run.public_id)
            page.wait(f"{state} == 'paused'")
        page.wait(away)
        _hide(page, "true")
        one = settings.model_copy(update={"max_streams": 1})
        with ServiceProcess(one, options=options, port=port) as service:
            events = f"/v1/tuning-runs/{run.public_id}/events"
            with service.client.stream("GET", events) as held:
                assert next(held.iter_text())
                _hide(page, "false")
                page.wait(f"!{away}")
                time.sleep(2.0)  # its stream is refused
                store.runs.resume(run.public_id)
                page.wait(f"{state} == 'queued'")
            _hide(page, "true")
            store.runs.pause(run.public_id)
            time.sleep(2.0)
            assert page.ask(state) == "queued"
            _hide(page, "false")
            page.wait(f"{state} == 'paused'")
            store.runs.cancel(run.public_id)
            page.wait(f"{state} == 'cancelled'")


def _hide(page, is_hidden):
    """Do to a page what happens to it as another tab is shown, and again."""
    page.ask(
        f"Object.defineProperty(document, 'hidden', {{value: {is_hidden}, configurable: true}})"
    )
    page.ask("document.dispatchEvent(new Event('visibilitychange'))")


def test_the_line_of_the_best_has_a_step_for_each_better_trial():
    """It had one for each of 20,000 trials: half of the page."""
    points = [charts.Point(n, us, {}) for n, us in enumerate([5.0, 7.0, 5.0, 3.0, 4.0, 2.0], 1)]
    drawn = charts.best_over_trials("t", points, {})
    (path,) = re.findall(r'd="(M[^"]*)"', drawn)
    assert len(re.findall("H[^V]*V", path)) == 2
    assert path.count("H") == 3  # the last goes on to the end


def test_labels_of_charts_are_in_the_picture():
    """Of 100,000 µs one read "00,000", of trial 50,000 "5000"."""
    points = [charts.Point(number, 1e9 / number, {}) for number in (1, 900)]
    drawn = charts.best_over_trials("t", points, {}, 50_000)
    labels = re.findall(
        r'<text x="([\d.]+)" y="[\d.]+" text-anchor="(end|middle)">([\d,]+)</text>', drawn
    )
    assert {"1,000,000,000", "50000"} <= {text for *_, text in labels}
    for x, anchor, text in labels:
        width = LETTER * len(text)
        start = float(x) - (width if anchor == "end" else width / 2)
        assert start >= 0, text
        assert start + width <= WIDTH + 0.01, text


def _follow(page, url, store):
    """Log in, then see a run begin, come along and end on one page that is never loaded again."""
    _, secret = store.keys.create("ann", "read")
    question = understand(store, "gemm", GEMM["problem"])
    run, _ = submit(store, question, Effort(max_trials=12, time_limit_s=60.0))
    page.open(f"{url}/dashboard/runs/{run.public_id}")
    page.ask(f"document.querySelector('#key').value = '{secret}'")
    page.ask("document.querySelector('button.main').click()")
    page.wait("document.querySelector('#state') && document.readyState == 'complete'")
    page.messages.clear()  # of the page that asked for a key: 401
    assert page.ask("document.querySelector('.state').textContent") == "queued"
    page.ask("window.stayed = true")
    host = wiring.host_profile(store)
    toolchain = wiring.host_toolchain().on("cpu")
    slow = TableMeasurer(host, toolchain=toolchain, delay_s=0.2)
    coordinator = Coordinator(
        store, toolchain=toolchain, workplace=HostWorkplace(host, lambda _: slow),
        limits=Limits(poll_s=0.01), until_idle=True,
    )  # fmt: skip
    working = threading.Thread(target=coordinator.run)
    working.start()
    try:
        page.wait("document.querySelector('.state').textContent == 'running'")
        page.wait("document.querySelectorAll('circle').length >= 2")
        page.wait("document.querySelector('.state').textContent == 'succeeded'", 60.0)
    finally:
        working.join()
    assert page.ask("window.stayed")
    trials = store.trials.of_run(run.id)
    page.wait(f"document.querySelectorAll('#trials tbody tr').length == {len(trials)}")
    assert page.ask("document.querySelectorAll('figure').length") == 2
    assert page.messages == []
