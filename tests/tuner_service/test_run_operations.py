"""Runs over REST and the command line: pause, extend, groups, files of workloads, nodes."""

import io
import json
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console
from sqlalchemy import event

from recommender.hardware import HardwareProfile
from recommender.measurement import Protocol, Toolchain
from tests.tuner_service.table_measurer import TableMeasurer
from tests.tuner_service.test_app import GEMM, coordinate, problem
from tests.tuner_service.test_cli import cli  # noqa: F401  a fixture
from tilecore import kernels
from tuner_service import wiring
from tuner_service.cli.console import print_group, print_nodes, print_runs
from tuner_service.cli.workload_file import read_workloads
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import HostWorkplace
from tuner_service.jobs import Effort, submit
from tuner_service.questions import understand
from tuner_service.watch import is_led


def shape(m, **changes):
    return GEMM | {"problem": GEMM["problem"] | {"m": m}, "max_trials": 4} | changes


def test_a_run_is_paused_resumed_amended_and_extended(client, store):
    url = client.post("/v1/tuning-runs", json=shape(64, priority=3, ceiling_s=50)).headers[
        "location"
    ]
    paused = client.post(f"{url}:pause")
    assert (paused.status_code, paused.json()["state"]) == (202, "PAUSED")
    coordinate(store)
    assert client.get(url).json()["trials"] == {}
    amended = client.patch(url, json={"priority": 7}).json()
    assert (amended["priority"], amended["ceiling_s"]) == (7, 50)
    assert client.post(f"{url}:resume").json()["state"] == "QUEUED"
    problem(client.post(f"{url}:resume"), 409, "DB811")
    early = client.get(f"{url}/result").json()
    assert (early["is_final"], early["result"]["best"]) == (False, None)
    coordinate(store)
    final = client.get(f"{url}/result").json()
    assert (final["state"], final["is_final"]) == ("SUCCEEDED", True)
    problem(client.post(f"{url}:pause"), 409, "DB811")
    problem(client.post(f"{url}:cancel"), 409, "DB811")
    problem(client.patch(url, json={"priority": 7}), 409, "DB811")
    problem(client.post(f"{url}:extend", json={"seconds": 5}), 409, "DB812")
    problem(client.post(f"{url}:extend", json={}), 422, "SV901")
    problem(client.post(f"{url}:extend", json={"trials": -1}), 422, "SV901")
    problem(client.post(f"{url}:extend", json={"seconds": 10**400}), 422, "SV901")
    extended = client.post(f"{url}:extend", json={"trials": 3}).json()
    assert (extended["state"], extended["round"], extended["planned_trials"]) == ("QUEUED", 1, 7)
    coordinate(store)
    again = client.get(url).json()
    assert again["state"] == "SUCCEEDED"
    assert again["trials"]["OK"] > final["result"]["by_status"]["OK"]
    assert 0 < again["device_s"] <= again["active_s"]


def test_an_extension_that_is_sent_again_counts_once(client, store):
    url = client.post("/v1/tuning-runs", json=shape(64)).headers["location"]
    key, more = {"Idempotency-Key": "more"}, {"trials": 3, "seconds": 1.5}
    first = client.post(f"{url}:extend", json=more, headers=key)
    again = client.post(f"{url}:extend", json=more, headers=key)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json() == again.json()
    problem(client.post(f"{url}:extend", json={"trials": 4}, headers=key), 422, "DB807")
    other = client.post("/v1/tuning-runs", json=shape(32)).headers["location"]
    assert client.post(f"{other}:extend", json={"trials": 4}, headers=key).status_code == 202
    second = client.post(f"{url}:extend", json=more, headers={"Idempotency-Key": "again"}).json()
    assert (second["round"], second["planned_trials"]) == (2, 10)
    client.post(f"{url}:cancel")
    assert client.post(f"{url}:extend", json=more, headers=key).status_code == 200
    problem(client.post(f"{url}:extend", json=more), 409, "DB811")


def test_the_trials_of_a_group_are_counted_together(client, store, queue_run):
    """Each run of it was asked for by itself: a group of 161 took a second."""
    counts = []
    for size in (2, 9):
        for _ in range(size):
            queue_run(group=f"g-{size}")
        asked = []

        def note(*told, asked=asked):
            asked.append(told[2])

        event.listen(store.database._read, "before_cursor_execute", note)
        assert len(client.get(f"/v1/run-groups/g-{size}").json()["runs"]) == size
        event.remove(store.database._read, "before_cursor_execute", note)
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("more", [{"trials": 3}, {"seconds": 30}])
def test_a_run_that_other_code_ended_begins_again_when_it_is_extended(client, store, cli, more):  # noqa: F811
    """It was refused (SV912), and before that queued to fail at once, its result gone."""
    older, host = Toolchain(tilecore="older", tvm="x", llvm="y"), wiring.host_profile(store)
    made = client.post("/v1/tuning-runs:batch", json={"runs": [shape(64, max_trials=5)]})
    run, group = store.runs.get(made.json()["runs"][0]["id"]), made.headers["location"]
    Coordinator(
        store, toolchain=older, limits=Limits(poll_s=0.01), until_idle=True,
        workplace=HostWorkplace(host, lambda _: TableMeasurer(host, toolchain=older)),
    ).run()  # fmt: skip
    done, known = store.runs.get(run.public_id), store.count_measurements()
    assert (done.state, done.toolchain, done.result["trials"]) == ("SUCCEEDED", older, known)
    url = f"/v1/tuning-runs/{run.public_id}"
    grown = client.post(f"{url}:extend", json=more)  # of the seconds alone no trial is left
    assert (grown.status_code, grown.json()["state"]) == (202, "QUEUED")
    assert grown.json()["result"] == client.get(url).json()["result"] is not None
    status, out, _ = cli("run", "extend", group.rsplit("/", 1)[1], "--trials", "1")
    told = f"{run.public_id}: an earlier version of the code measured it; it begins again, with all"
    assert (status, told in out) == (0, True), out
    coordinate(store)
    found, trials = store.runs.get(run.public_id), store.trials.of_run(run.id)
    assert found.state == "SUCCEEDED"
    assert {t.measurement.toolchain for t in trials} == {found.toolchain} != {older}
    screened = sum(t.protocol is Protocol.SCREEN for t in trials)
    assert screened == 5 + 1 + more.get("trials", 0)
    assert store.count_measurements() == known + len(trials)  # what was measured stays
    best = done.result["best"]["config"]
    assert best in [dict(t.config.items_) for t in trials]
    status, out, _ = cli("run", "extend", run.public_id, "--trials", "1")
    assert (status, "begins again" in out) == (0, False)


def test_an_extension_is_answered_again_after_an_upgrade(client, store, queue_run):
    """The client whose answer got lost was told 409: of what had been done."""
    older = Toolchain(tilecore="older", tvm="x", llvm="y")
    run = queue_run(toolchain=older, group="g-old")
    urls, key = (f"/v1/tuning-runs/{run.public_id}", "/v1/run-groups/g-old"), "Idempotency-Key"
    for number, url in enumerate(urls):
        more = {"json": {"trials": 3}, "headers": {key: f"more-{number}"}}
        assert client.post(f"{url}:extend", **more).status_code == 202
        if number == len(urls) - 1:
            epoch = store.leader.acquire("me", 60)
            store.runs.finish(run.id, epoch, "SUCCEEDED", result={})
    for number, url in enumerate(urls):
        headers = {key: f"more-{number}"}
        again = client.post(f"{url}:extend", json={"trials": 3}, headers=headers)
        assert again.status_code == 200
        problem(client.post(f"{url}:extend", json={"trials": 4}, headers=headers), 422, "DB807")


def test_a_group_is_extended_whole_or_not_at_all(client, store):
    created = client.post("/v1/tuning-runs:batch", json={"runs": [shape(64), shape(32), shape(16)]})
    url, runs = created.headers["location"], created.json()["runs"]
    client.post(f"/v1/tuning-runs/{runs[2]['id']}:cancel")
    problem(client.post(f"{url}:extend", json={"seconds": 604800}), 409, "DB812")
    key = {"Idempotency-Key": "more"}
    grown = client.post(f"{url}:extend", json={"trials": 2}, headers=key)
    again = client.post(f"{url}:extend", json={"trials": 2}, headers=key)
    assert (grown.status_code, again.status_code) == (202, 200)
    assert again.json() == grown.json()
    assert [r["planned_trials"] for r in grown.json()["runs"]] == [6, 6, 4]
    coordinate(store)
    problem(client.post(f"{url}:extend", json={"seconds": 5}), 409, "DB812")
    assert {r["round"] for r in client.get(url).json()["runs"]} == {0, 1}
    first = client.post(f"/v1/tuning-runs/{runs[0]['id']}:extend", json={"trials": 1})
    assert first.json()["state"] == "QUEUED"
    amended = client.patch(url, json={"priority": 99}).json()["runs"]
    assert [r["priority"] for r in amended] == [99, 10, 10]
    problem(client.post("/v1/run-groups/g-none:extend", json={"trials": 2}), 404, "DB809")


def test_partial_results_of_a_run_under_way(client, store):
    run_id = client.post("/v1/tuning-runs", json=shape(64, max_trials=60)).json()["id"]
    host, toolchain = wiring.host_profile(store), wiring.host_toolchain().on("cpu")

    class Interrupted(TableMeasurer):
        def collect(self, timeout_s):
            if store.count_measurements() >= 10:
                store.runs.pause(run_id)
            return super().collect(timeout_s)

    Coordinator(
        store,
        workplace=HostWorkplace(host, lambda _: Interrupted(host, toolchain=toolchain)),
        toolchain=toolchain,
        limits=Limits(poll_s=0.01),
        until_idle=True,
    ).run()
    found = client.get(f"/v1/tuning-runs/{run_id}/result").json()
    assert (found["state"], found["is_final"]) == ("PAUSED", False)
    times = [m["latency_us"] for m in client.get("/v1/measurements").json()["items"]]
    assert found["result"]["best"]["latency_us"] == pytest.approx(min(times))
    assert found["result"]["by_status"] == {"OK": len(times)}
    assert found["result"]["default"]["status"] == "OK"
    assert found["result"]["space_size"] > len(times)


def test_a_group_is_queued_watched_and_cancelled_together(client, store):
    body, headers = {"runs": [shape(64), shape(32), shape(16)]}, {"Idempotency-Key": "all"}
    created = client.post("/v1/tuning-runs:batch", json=body, headers=headers)
    assert created.status_code == 202
    group, url = created.json()["id"], created.headers["location"]
    again = client.post("/v1/tuning-runs:batch", json=body, headers=headers)
    assert (again.status_code, again.json()["id"]) == (200, group)
    other = {"runs": [shape(64)]}
    problem(client.post("/v1/tuning-runs:batch", json=other, headers=headers), 422, "DB807")
    assert {r["group"] for r in client.get(f"/v1/tuning-runs?group={group}").json()["items"]} == {
        group
    }
    assert client.post(f"{url}:pause").json()["runs_by_state"] == {"PAUSED": 3}
    last = created.json()["runs"][2]["id"]
    client.post(f"/v1/tuning-runs/{last}:cancel")
    assert client.post(f"{url}:resume").json()["runs_by_state"] == {"QUEUED": 2, "CANCELLED": 1}
    coordinate(store)
    done = client.get(url).json()
    assert done["is_finished"]
    assert done["runs_by_state"] == {"SUCCEEDED": 2, "CANCELLED": 1}
    assert [r["workload"]["problem"]["m"] for r in done["runs"]] == [64, 32, 16]
    assert done["trials"]["OK"] == store.count_measurements()
    assert client.post(f"{url}:cancel").json()["runs_by_state"] == done["runs_by_state"]


def test_a_group_with_one_bad_workload_queues_nothing(client, store):
    body = {"runs": [shape(64), shape(-1), shape(64) | {"hardware": "h100"}]}
    told = problem(client.post("/v1/tuning-runs:batch", json=body), 422, "TC502")
    found = [(e["pointer"], e["code"]) for e in told["errors"]]
    assert found == [("/body/runs/1", "TC502"), ("/body/runs/2", "SV906")]
    assert told["detail"].startswith("/body/runs/1: m: expected")
    problem(client.post("/v1/tuning-runs:batch", json={"runs": []}), 422, "SV901")
    problem(client.get("/v1/run-groups/g-none"), 404, "DB809")
    assert store.runs.list() == []


def test_nodes(client, store):
    epoch, host = store.leader.acquire("me", 60), wiring.detected_host()
    store.nodes.join("n1", name="one", hardware=host, devices=2, epoch=epoch)
    assert [n["key"] for n in client.get("/v1/nodes").json()["items"]] == ["n1"]
    assert client.post("/v1/nodes/n1:drain").json()["state"] == "draining"
    assert client.post("/v1/nodes/n1:undrain").json()["state"] == "active"
    problem(client.post("/v1/nodes/n2:drain"), 404, "DB813")
    store.nodes.see([], [], epoch)
    problem(client.post("/v1/nodes/n1:drain"), 409, "DB811")
    assert client.get("/v1/nodes").json()["items"] == []
    assert client.get("/v1/nodes?with_lost=true").json()["items"][0]["state"] == "lost"


# --- the command line -----------------------------------------------------------------------------

FILES = {
    "w.txt": "# a model\ngemm m=64 n=64 k=64\nm=32 n=64 k=64 dtype=float32 # the kernel is gemm\n",
    "w.csv": "kernel,m,n,k,dtype\ngemm,64,64,64,\ngemm,32,64,64,float32\n",
    "w.json": json.dumps(
        [{"m": 64, "n": 64, "k": 64}, {"kernel": "gemm", "problem": {"m": 32, "n": 64, "k": 64}}]
    ),
}


@pytest.fixture
def leader(store):
    """A coordinator on the table that leads, so that commands start none."""
    host = HardwareProfile(**{**wiring.detected_host().as_dict(), "source": "measured for a test"})
    store.save_hardware(host)
    toolchain = wiring.host_toolchain().on("cpu")
    coordinator = Coordinator(
        store,
        workplace=HostWorkplace(host, lambda _: TableMeasurer(host, toolchain=toolchain)),
        toolchain=toolchain,
        limits=Limits(poll_s=0.01),
    )
    thread = threading.Thread(target=coordinator.run)
    thread.start()
    while not is_led(store):
        time.sleep(0.01)
    yield coordinator
    coordinator.stop()
    thread.join(20)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_workloads_is_tuned_as_a_group(cli, store, tmp_path, leader, name):  # noqa: F811
    path = tmp_path / name
    path.write_text(FILES[name])
    status, out, err = cli("tune", "--file", str(path), "--trials", "3")
    assert (status, err) == (0, "")
    assert "2 workloads, 2 queued as group g-" in out
    runs = store.runs.list()
    assert {r.state for r in runs} == {"SUCCEEDED"}
    assert {dict(r.workload.problem)["m"] for r in runs} == {64, 32}
    for run in runs:
        assert f"{run.result['best']['latency_us']:,.1f}" in out
    status, out, err = cli("tune", "--file", str(path), "--trials", "3")
    assert (status, err) == (0, "")
    assert "2 workloads, 0 queued" in out
    assert len(store.runs.list()) == 2
    status, out, _ = cli("run", "show", runs[0].group)
    assert status == 0
    assert out.count("SUCCEEDED") == 2


def test_tables_of_runs_are_whole_in_80_columns(store):
    """Once ids and workloads were folded to 7 columns, and a cancelled run was only RUNNING."""
    question = understand(store, "gemm", {"m": 1024, "n": 1024, "k": 1024})
    run, _ = submit(store, question, Effort(max_trials=3, time_limit_s=60))
    result = {
        "best": {"latency_us": 12345.6, "gflops": 7654.3, "ratio_to_reference": 1.25},
        "gain_over_default": 10.5,
    }
    asked = replace(run, state="RUNNING", cancel_requested=True)
    console = Console(width=80, file=io.StringIO())
    print_group(console, [(asked, {"OK": 3}, result)])
    print_runs(console, [(asked, {"OK": 3}), (replace(asked, cancel_requested=False), {})])
    shown = console.file.getvalue()
    assert shown.count(run.public_id) == 3
    assert shown.count("gemm 1024x1024x1024 float32") == 3
    assert all(text in shown for text in ("12,345.6", "7,654.3", "10.50x", "1.25x"))
    assert shown.count("cancelling") == 2
    print_runs(console, [(replace(asked, cancel_requested=False, pause_requested=True), {})])
    assert "pausing" in console.file.getvalue()


def test_a_command_waits_for_whoever_else_writes(cli, store, settings):  # noqa: F811
    """What made the test above fail now and then: a write beside it that took 0.2 s."""
    question = understand(store, "gemm", {"m": 32, "n": 64, "k": 64})
    submit(store, question, Effort(max_trials=3, time_limit_s=60))
    other = sqlite3.connect(
        settings.data_dir / "tilecore.db", isolation_level=None, check_same_thread=False
    )
    with closing(other):
        other.execute("begin immediate")
        threading.Timer(0.6, other.execute, ["commit"]).start()
        status, _, err = cli("run", "pause", store.runs.list()[0].public_id)
        assert (status, err) == (0, "")
        assert not other.in_transaction


BAD_FILES = {
    "no.txt": (None, "No such file"),
    "empty.txt": ("# nothing\n", "expected 1 to 256 workloads, found 0"),
    "bad.txt": ("gemm m=4 n=4\ngemm m=4 n=4 k=4\nconv m=4\n", "line 1: TC502"),
    "words.txt": ("gemm m=4 n\n", "line 1: TC502"),
    "bad.csv": ("m,n,k\n4,4\n", "line 2: expected as many values"),
    "bad.json": ('{"m": 4}', "expected a list, found dict"),
    "broken.json": ("[", "Expecting value"),
    "number.json": ("[4]", "entry 1: expected an object, found int"),
    "extra.json": ('[{"problem": {"m": 4}, "m": 4}]', "entry 1: expected `kernel`"),
    "kernel.json": ('[{"kernel": 4, "m": 4}]', "entry 1: kernel: expected a name, found 4"),
    "nested.json": ('[{"m": [4], "n": 4, "k": 4}]', "entry 1: TC502"),
    "threads.txt": ("gemm m=4 n=4 k=4 threads=all\n", "line 1: threads: expected an integer"),
    "binary.txt": (b"\xff\xfe\x00", "decode"),
    "twice.txt": ("gemm m=4 m=8 n=4 k=4\n", "line 1: TC502 m: expected one value, found several"),
    "twice.json": ('[{"m": 4, "n": 4, "k": 4, "m": 8}]', "member 'm' twice in one object"),
    "twice.csv": ("m,n,k,m\n4,4,4,8\n", "expected every column once, found m, n, k, m"),
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bom.csv", "kernel,m,n,k\ngemm,4,8,16\n"),
        ("bom.txt", "gemm m=4 n=8 k=16\n"),
        ("bom.json", '[{"m": 4, "n": 8, "k": 16}]'),
    ],
)
def test_files_of_spreadsheets_are_read(tmp_path, name, text):
    """The mark they begin with became part of the first column's name."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8-sig")
    (entry,) = read_workloads(path, lambda entry: entry)
    assert (entry.kernel, dict(entry.problem)) == ("gemm", {"m": 4, "n": 8, "k": 16})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("w.csv", "kernel,batch,height,width,channels,filters,kernel_size\nconv2d,1,9,8,7,6,5\n"),
        ("w.txt", "conv2d batch=1 height=9 width=8 channels=7 filters=6 kernel_size=5\n"),
        (
            "w.json",
            '[{"kernel": "conv2d", "batch": 1, "height": 9, "width": 8, "channels": 7,'
            ' "filters": 6, "kernel_size": 5}]',
        ),
    ],
)
def test_a_convolution_has_a_window_in_every_kind_of_file(tmp_path, name, text):
    """Its field "kernel" cannot stand there, beside the name of the kernel."""
    path = tmp_path / name
    path.write_text(text)
    (problem,) = read_workloads(path, lambda e: kernels.get(e.kernel).parse_problem(e.problem))
    assert (problem["width"], problem["filters"], problem["kernel"]) == (8, 6, 5)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_of_workloads_is_told_line_by_line(cli, store, tmp_path, name):  # noqa: F811
    content, message = BAD_FILES[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    status, out, err = cli("tune", "--file", str(path))
    assert (status, out) == (2, "")
    assert err.startswith("error: SV915")
    assert message in err
    assert store.runs.list() == []
    if name == "bad.txt":
        assert "line 3: TC501" in err


def test_runs_are_changed_from_the_command_line(cli, client, store):  # noqa: F811
    body = {"runs": [shape(64), shape(32)]}
    created = client.post("/v1/tuning-runs:batch", json=body).json()
    group, first = created["id"], created["runs"][0]["id"]
    assert cli("run", "pause", group)[1].count("PAUSED") == 2
    assert cli("run", "resume", first)[1].count("QUEUED") == 1
    assert cli("run", "amend", first, "--priority", "77")[0] == 0
    assert store.runs.get(first).priority == 77
    assert cli("run", "extend", first, "--trials", "2")[0] == 0
    assert store.runs.get(first).planned_trials == 6
    assert cli("run", "extend", group, "--trials", "3")[0] == 0
    assert [r.planned_trials for r in store.runs.of_group(group)] == [9, 7]
    assert cli("run", "amend", group, "--priority", "5")[0] == 0
    assert [r.priority for r in store.runs.of_group(group)] == [5, 5]
    assert "QUEUED" in cli("run", "show", first)[1]
    assert cli("run", "cancel", first)[1].count("CANCELLED") == 1
    for wrong, code in (
        (["run", "pause", first], "DB811"),
        (["run", "pause", "none"], "DB809"),
        (["run", "cancel", "g-none"], "DB809"),
        (["run", "extend", first], "SV901"),
        (["run", "amend", first], "SV901"),
        (["node", "drain", "none"], "DB813"),
        (["tune", "gemm", "--m", "4", "--file", "x"], "SV901"),
    ):
        status, _, err = cli(*wrong)
        assert status in (1, 2)
        assert err.startswith(f"error: {code} ")
    assert cli("node", "list")[0] == 0


def test_a_command_does_not_wait_for_a_paused_run(cli, store, leader):  # noqa: F811
    host = wiring.host_profile(store)
    question = understand(store, "gemm", {"m": 64, "n": 64, "k": 64})
    assert question.hardware == host
    run, _ = submit(store, question, Effort(max_trials=96, time_limit_s=600))
    store.runs.pause(run.public_id)
    status, out, err = cli("tune", "gemm", "--m", "64", "--n", "64", "--k", "64")
    assert status == 1
    assert f"resuming run {run.public_id}" in out
    assert err.startswith("error: SV916")
    assert run.public_id in err


def test_nodes_fit_a_narrow_terminal(store):
    epoch, host = store.leader.acquire("me", 60), wiring.detected_host()
    store.nodes.join("f" * 56, name="vm/192.0.2.2", hardware=host, devices=2, epoch=epoch)
    console = Console(width=80, file=io.StringIO())
    print_nodes(console, store.nodes.list())
    shown = console.file.getvalue()
    assert all(text in shown for text in (f" {'f' * 12} ", "vm/192", "active", "devices", "seen"))
    store.nodes.join(f"{'f' * 12}e", name="other", hardware=host, devices=1, epoch=epoch)
    print_nodes(console, store.nodes.list())
    assert f" {'f' * 12}e " in console.file.getvalue()  # as much as tells them apart
    print_nodes(console, store.nodes.list(), in_full=True)
    assert console.file.getvalue().count("f") >= 56  # the key is whole
