"""The values of the metrics after known events, and what boards and alerts make of them."""

import json
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from recommender.hardware import HardwareProfile
from tests.tuner_service.serving import TestClient
from tests.tuner_service.table_measurer import HARDWARE, TOOLCHAIN, TableMeasurer
from tests.tuner_service.test_app import GEMM
from tilecore import kernels
from tuner_service.app import create_app
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import HostWorkplace
from tuner_service.metrics import Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
GIVEN_BY_PROMETHEUS = {"job", "instance"}
COLUMNS = 24  # of Grafana's grid


def values(text, name):
    """Return the samples of a metric by the values of their labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                found[tuple(sample.labels[label] for label in sorted(sample.labels))] = sample.value
    return found


def metric(store, name):
    """Return a metric as a process tells it that has counted nothing before."""
    return values(Metrics(store).text().decode(), name)


def tune(store, measurer, **limits):
    Coordinator(
        store, workplace=HostWorkplace(HARDWARE, lambda _: measurer), toolchain=TOOLCHAIN,
        limits=Limits(poll_s=0.005, retry_base_s=0.0, **limits), until_idle=True,
    ).run()  # fmt: skip


def test_devices_follow_nodes_that_join_drain_and_go(store):
    assert metric(store, "tilecore_devices") == {}
    other = HardwareProfile(name="other CPU", kind="cpu", arch="x86-64-avx2", cores=4)
    epoch = store.leader.acquire("me", 60)
    store.nodes.join("n1", name="one", hardware=HARDWARE, devices=2, epoch=epoch)
    assert metric(store, "tilecore_devices") == {("table CPU", "active"): 2.0}
    store.nodes.join("n2", name="two", hardware=HARDWARE, devices=3, epoch=epoch)
    store.nodes.join("n3", name="three", hardware=other, devices=1, epoch=epoch, refused="old")
    active, refused = {("table CPU", "active"): 5.0}, {("other CPU", "refused"): 1.0}
    assert metric(store, "tilecore_devices") == active | refused
    store.nodes.drain("n1")
    both = {("table CPU", "active"): 3.0, ("table CPU", "draining"): 2.0}
    assert metric(store, "tilecore_devices") == both | refused
    store.nodes.see(["n1", "n3"], ["n1"], epoch)
    gone = {("table CPU", "lost"): 3.0, ("table CPU", "drained"): 2.0}
    assert metric(store, "tilecore_devices") == gone | refused


def test_nobody_waits_for_counts_that_take_long(store, queue_run, monkeypatch):
    """Of 1,000,000 measurements each scrape of a cold database took a second."""
    now_s, may_count, counted = [0.0], threading.Event(), store.counts
    metrics = Metrics(store, clock=lambda: now_s[0])
    may_count.set()

    def count():
        may_count.wait(20)
        now_s[0] += 0.4
        return counted()

    monkeypatch.setattr(store, "counts", count)
    assert metrics.counts().runs == {}
    may_count.clear()
    queue_run()
    now_s[0] += 11.0
    assert metrics.counts().runs == {}  # at once, from before
    may_count.set()
    while metrics.counts().runs == {}:
        time.sleep(0.01)
    assert metrics.counts().runs == {"QUEUED": 1}
    queue_run()
    now_s[0] += 61.0  # nobody asked for long: that is told to nobody
    assert metrics.counts().runs == {"QUEUED": 2}


def test_trials_that_end_well_and_badly_are_told_apart(store, queue_run):
    run = queue_run(max_trials=6)
    assert metric(store, "tilecore_tuning_runs") == {("QUEUED",): 1.0}
    assert metric(store, "tilecore_trials") == {}
    assert metric(store, "tilecore_lost_executions") == {(): 0.0}
    default_m = dict(kernels.get("gemm").default_config(dict(run.workload.problem)).items_)
    tune(store, TableMeasurer(broken_block_m=default_m["block_M"]))
    trials = store.trials.of_run(run.id)
    statuses = [t.measurement.status.value for t in trials]
    wrong = statuses.count("WRONG_RESULT")
    assert 0 < wrong < len(trials)
    assert metric(store, "tilecore_trials") == {("done",): float(len(trials))}
    assert metric(store, "tilecore_measurements") == {
        ("gemm", "OK"): float(len(trials) - wrong), ("gemm", "WRONG_RESULT"): float(wrong),
    }  # fmt: skip
    assert metric(store, "tilecore_lost_executions") == {(): 0.0}


def test_executions_that_are_lost_are_counted_and_trials_given_up_are_failed(store, queue_run):
    queue_run(max_trials=3)
    tune(store, TableMeasurer(lost_attempts=2))  # each is executed a third time, and that is done
    (done,) = metric(store, "tilecore_trials").values()
    assert metric(store, "tilecore_trials") == {("done",): done}
    assert metric(store, "tilecore_lost_executions") == {(): 2 * done}
    run = queue_run(max_trials=2)
    tune(store, TableMeasurer(lost_attempts=99), max_attempts=4)
    assert store.runs.get(run.public_id).state == "FAILED"
    given_up = len([t for t in store.trials.of_run(run.id) if t.state == "failed"])
    assert given_up > 0
    found = metric(store, "tilecore_trials")
    assert found == {("done",): done, ("failed",): float(given_up)}
    assert metric(store, "tilecore_lost_executions") == {(): 2 * done + 3 * given_up}
    assert metric(store, "tilecore_tuning_runs") == {("SUCCEEDED",): 1.0, ("FAILED",): 1.0}


def test_leaders_are_told(store):
    assert metric(store, "tilecore_coordinator_leads") == {(): 0.0}
    assert metric(store, "tilecore_coordinator_epoch") == {(): 0.0}
    for epoch in (1.0, 2.0):
        number = store.leader.acquire("me", 60)
        assert metric(store, "tilecore_coordinator_leads") == {(): 1.0}
        assert metric(store, "tilecore_coordinator_epoch") == {(): epoch}
        store.leader.release(number)
        assert metric(store, "tilecore_coordinator_leads") == {(): 0.0}


def test_the_metrics_of_a_cost_model_are_those_of_the_promoted_one(store):
    def save(value, *, promote, family="cpu"):
        return store.models.save(
            kernel="gemm", family=family, blob=b"m", feature_schema="s",
            metrics={"model": value, "nearest": 0.5}, trained_on=1, promote=promote,
        )  # fmt: skip

    save(0.1, promote=False)
    assert metric(store, "tilecore_cost_model") == {}
    first = save(0.8, promote=True)
    cpu = {("cpu", "gemm", "model"): 0.8, ("cpu", "gemm", "nearest"): 0.5}
    assert metric(store, "tilecore_cost_model") == cpu
    save(0.7, promote=True, family="sm_90a")
    gpu = {("sm_90a", "gemm", "model"): 0.7, ("sm_90a", "gemm", "nearest"): 0.5}
    assert metric(store, "tilecore_cost_model") == cpu | gpu
    save(0.9, promote=True)
    later = cpu | gpu | {("cpu", "gemm", "model"): 0.9}
    assert metric(store, "tilecore_cost_model") == later
    store.models.activate(first)
    assert metric(store, "tilecore_cost_model") == cpu | gpu


# --- what reads them ------------------------------------------------------------------------------


def test_routes_are_called_as_the_description_calls_them(settings, store):
    """They were `/tuning-runs/{run_id:name}`: without the front of their address, and odd."""
    with TestClient(create_app(settings, store), raise_server_exceptions=False) as client:
        made = client.post("/v1/tuning-runs", json=GEMM).headers["location"]
        addresses = (made, f"{made}/trials", f"{made}:pause", "/v1/kernels/gemm", "/healthz", "/no",
                     "/v1/no", "/dashboard", f"/dashboard{made.removeprefix('/v1')}")  # fmt: skip
        for address in addresses:
            (client.post if address.endswith(":pause") else client.get)(address)
        described = set(client.get("/openapi.json").json()["paths"])
        told = set(re.findall(r'_count\{.*route="([^"]*)"', client.get("/metrics").text))
    own = {"/v1/tuning-runs/{run_id}", "/v1/tuning-runs/{run_id}/trials", "/v1/kernels/{name}",
           "/v1/tuning-runs/{run_id}:pause", "/v1/tuning-runs", "/healthz"}  # fmt: skip
    assert own <= told
    assert {name for name in told - described if not name.startswith("/dashboard")} <= {
        "unknown", "/openapi.json",
    }  # fmt: skip


@pytest.fixture
def exported(settings, store, queue_run):
    """The text of a service in which something of everything has happened."""
    queue_run(max_trials=2)
    tune(store, TableMeasurer(lost_attempts=1))
    epoch = store.leader.acquire("me", 60)
    store.nodes.join("n1", name="one", hardware=HARDWARE, devices=2, epoch=epoch)
    store.models.save(
        kernel="gemm", family="cpu", blob=b"m", feature_schema="s", metrics={"model": 0.9},
        trained_on=1, promote=True,
    )  # fmt: skip
    with TestClient(create_app(settings, store)) as client:
        assert client.post("/v1/recommendations", json=GEMM).status_code == 200
        wrong = {"Authorization": "Bearer nobody's"}
        assert client.get("/v1/kernels", headers=wrong).status_code == 401
        return client.get("/metrics").text


def labels_of(text):
    """Return the labels of every series by its name."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def board():
    return json.loads((DEPLOY / "grafana/boards/tilecore.json").read_text())


def alerts():
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def selected(node):
    """Yield the selectors of an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        inner = getattr(node, name, None)
        if isinstance(inner, promql_parser.Expr):
            yield from selected(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selected(inner)


def grouped(node):
    """Yield the labels by which an expression groups."""
    modifier = getattr(node, "modifier", None)
    if isinstance(node, promql_parser.AggregateExpr) and modifier is not None:
        yield from modifier.labels
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        inner = getattr(node, name, None)
        if isinstance(inner, promql_parser.Expr):
            yield from grouped(inner)
    for inner in getattr(node, "args", None) or ():
        yield from grouped(inner)


def faults_of(expression, known, legend=""):
    """Return what an expression, and the legend of its series, asks for that nobody exports."""
    tree = promql_parser.parse(expression)
    faults, there = [], set(GIVEN_BY_PROMETHEUS)
    for selector in selected(tree):
        if selector.name not in known and selector.name != "up":
            faults.append(f"no metric {selector.name}")
        has = known.get(selector.name, set()) | GIVEN_BY_PROMETHEUS
        there |= has
        faults += [f"{selector.name} has no {m.name}" for m in selector.matchers.matchers
                   if m.name not in has]  # fmt: skip
    kept = set(grouped(tree))
    faults += [f"nothing has {label}" for label in kept - there]
    left = kept if isinstance(tree, promql_parser.AggregateExpr) else there
    in_legend = set(re.findall(r"{{(\w+)}}", legend))
    return faults + [f"the legend has no {label}" for label in in_legend - left - kept]


def test_boards_and_alerts_ask_for_what_is_exported(exported):
    known = labels_of(exported)
    asked = [(t["expr"], t["legendFormat"]) for p in board()["panels"] for t in p["targets"]]
    asked += [(rule["expr"], "") for rule in alerts()]
    assert len(asked) > 20
    faults = {expression: faults_of(expression, known, legend) for expression, legend in asked}
    assert {expression: found for expression, found in faults.items() if found} == {}
    # every metric of ours is on the board or in an alert
    used = {s.name for expression, _ in asked for s in selected(promql_parser.parse(expression))}
    families = {f.name for f in text_string_to_metric_families(exported)}
    ours = {n for n in families if n.startswith("tilecore_") and not n.endswith("_created")}
    assert {n for n in ours if not any(u.startswith(n) for u in used)} == set()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("expression", "legend", "fault"),
    [
        ("tilecore_device", "", "no metric tilecore_device"),
        ('tilecore_trials{status="done"}', "", "tilecore_trials has no status"),
        ("sum by (place) (tilecore_trials)", "", "nothing has place"),
        ("sum by (state) (tilecore_trials)", "{{hardware}}", "the legend has no hardware"),
        ("rate(tilecore_recommendations[5m])", "", "no metric tilecore_recommendations"),
    ],
)
def test_what_is_not_exported_is_found(exported, expression, legend, fault):
    assert fault in faults_of(expression, labels_of(exported), legend)


def provisioned(path):
    return yaml.safe_load((DEPLOY / "grafana/provisioning" / path).read_text())


def test_the_board_is_what_grafana_takes_and_its_places_are_mounted():
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())
    grafana = compose["services"]["grafana"]
    mounts = dict(v.split(":")[:2][::-1] for v in grafana["volumes"])
    provisioning = mounts["/etc/grafana/provisioning"]
    assert (DEPLOY.parent / provisioning).resolve() == (DEPLOY / "grafana/provisioning").resolve()
    sources = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    assert sources["apiVersion"] == 1
    uids = {source["uid"]: source for source in sources["datasources"]}
    assert sum(bool(source.get("isDefault")) for source in uids.values()) == 1
    for source in uids.values():
        assert source["access"] in ("proxy", "direct")
        host, port = re.fullmatch(r"http://([a-z-]+):(\d+)", source["url"]).groups()
        assert port == "9090"
        shared = set(compose["services"][host]["networks"]) & set(grafana["networks"])
        assert shared, "Grafana does not reach it"
    boards = provisioned("dashboards/tilecore.yml")
    assert boards["apiVersion"] == 1
    for provider in boards["providers"]:
        assert (provider["type"], bool(provider["name"])) == ("file", True)
        place = mounts[provider["options"]["path"]]
        files = list((DEPLOY.parent / place).glob("*.json"))
        assert files
    (file,) = files
    assert board() == json.loads(file.read_text())


def test_panels_have_a_source_a_place_and_what_to_show():
    sources = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    kinds = {source["uid"]: source["type"] for source in sources["datasources"]}
    found, panels = board(), board()["panels"]
    assert re.fullmatch("[A-Za-z0-9_-]{1,40}", found["uid"])
    assert isinstance(found["schemaVersion"], int)
    assert found.get("id") is None  # Grafana gives it
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = set()
    for panel in panels:
        source = panel["datasource"]
        assert kinds[source["uid"]] == source["type"], panel["title"]
        assert panel["type"] in ("timeseries", "stat")
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0, panel["title"]
        at = panel["gridPos"]
        assert 0 <= at["x"] <= at["x"] + at["w"] <= COLUMNS, panel["title"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"])
               for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not own & cells, f"{panel['title']} lies over another panel"
        cells |= own


# --- by Prometheus itself -------------------------------------------------------------------------

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here (Debian: prometheus)"
)
FIRES = {  # alert -> series that raise it, series that do not
    "ServiceAway": (["up{job='tilecore'}: 0x10"], ["up{job='tilecore'}: 1x10"]),
    "DatabaseAway": (["tilecore_database_up: 0x10"], ["tilecore_database_up: 1x10"]),
    "NobodyTunes": (
        ["tilecore_coordinator_leads: 0x10", "tilecore_tuning_runs{state='QUEUED'}: 2x10"],
        ["tilecore_coordinator_leads: 0x10", "tilecore_tuning_runs{state='SUCCEEDED'}: 2x10"],
    ),
    "ErrorsOfTheService": (
        ["tilecore_request_seconds_count{status='503',route='/x'}: 0+60x10"],
        ["tilecore_request_seconds_count{status='404',route='/x'}: 0+60x10"],
    ),
    "SlowRecommendations": (
        ["tilecore_request_seconds_bucket{route='/v1/recommendations',le='0.25'}: 0+90x30",
         "tilecore_request_seconds_bucket{route='/v1/recommendations',le='+Inf'}: 0+100x30",
         "tilecore_request_seconds_bucket{route='/v1/recommendations',le='1.0'}: 0+100x30"],
        ["tilecore_request_seconds_bucket{route='/v1/recommendations',le='0.25'}: 0+100x30",
         "tilecore_request_seconds_bucket{route='/v1/recommendations',le='+Inf'}: 0+100x30"],
    ),
    "KeysAreGuessed": (
        ["tilecore_wrong_keys_total{answer='limited'}: 0+5x20"],
        ["tilecore_wrong_keys_total{answer='unknown'}: 0+5x20"],
    ),
}  # fmt: skip


def promtool(*arguments, **given):
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, **given
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_promtool
def test_prometheus_takes_the_configuration_and_what_is_exported(exported, tmp_path):
    key = tmp_path / "metrics_key"
    key.write_text("a key")
    text = (DEPLOY / "prometheus/prometheus.yml").read_text()
    text = text.replace("/run/secrets/metrics_key", str(key))
    text = text.replace("/etc/prometheus", str(DEPLOY / "prometheus"))
    (tmp_path / "prometheus.yml").write_text(text)
    assert f"{len(alerts())} rules found" in promtool(
        "check", "config", tmp_path / "prometheus.yml"
    )
    promtool("check", "metrics", input=exported)


@needs_promtool
def test_alerts_fire_when_they_should_and_not_else(tmp_path):
    rules = {rule["alert"]: rule for rule in alerts()}
    assert set(rules) == set(FIRES)
    tests = []
    for name, (bad, good) in FIRES.items():
        for series, fires in ((bad, True), (good, False)):
            given = [dict(zip(("series", "values"), s.split(": "), strict=True)) for s in series]
            tests.append({
                "interval": "1m", "name": f"{name} {fires}", "input_series": given,
                "promql_expr_test": [{
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                    "eval_time": f"{re.match('[0-9]+', rules[name]['for'])[0]}m",
                    "exp_samples": [{"value": float(fires), "labels": "{}"}],
                }],
            })  # fmt: skip
    for one in tests:  # a minute later than `for`, from the moment on when rates are known
        minutes = int(one["promql_expr_test"][0]["eval_time"][:-1])
        one["promql_expr_test"][0]["eval_time"] = f"{minutes + 3}m"
    document = {"rule_files": [str(DEPLOY / "prometheus/alerts.yml")], "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(document))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "tests.yml")
