"""Container files and Makefile say what the program can do (no engine is needed to know that)."""

import importlib.resources
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import typer.testing
import yaml

from tests.tuner_service.serving import TestClient
from tilecore.codegen.llvm import LINKERS
from tuner_service.app import create_app
from tuner_service.cli.app import app
from tuner_service.settings import Settings
from workers.device_lock import lock_path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OFFER = ["--offer", "cuda"]
KUBERNETES = "1.33"


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_what_services_refer_to_exists(compose):
    services = compose["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services, name
            once = how["condition"] == "service_completed_successfully"
            restart = services[other].get("restart", "no")
            assert not once or restart == "no" or restart.startswith("on-failure"), name
            assert once or "healthcheck" in services[other], name
            own, others = (set(s.get("profiles", [])) for s in (service, services[other]))
            assert not others or (own and own <= others), name  # each of its profiles starts both
        for kind in ("networks", "secrets"):
            assert set(service.get(kind, [])) <= set(compose[kind]), name
        for volume in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", volume).split(":")[0]
            is_ours = source.startswith("./") and (ROOT / source).exists()
            assert is_ours or source in compose["volumes"], name


def test_the_compose_file_fits_the_compose_schema(compose):
    folder = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert not [f"{e.json_path}: {e.message}" for e in validator.iter_errors(compose)]
    compose = {**compose, "services": {"api": {"image": "x", "depend_on": ["y"]}}}
    assert list(validator.iter_errors(compose))


def test_every_service_that_stays_says_how_it_is(compose):
    for name, service in compose["services"].items():
        assert name == "migrate" or "healthcheck" in service, name


def test_services_are_confined(compose):
    for name in ("migrate", "api", "coordinator"):
        service = compose["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert compose["networks"]["backend"] == {"internal": True}
    open_ = {n: s["ports"] for n, s in compose["services"].items() if "ports" in s}
    assert list(open_) == ["api", "grafana"]
    assert all("127.0.0.1" in port["host_ip"] for ports in open_.values() for port in ports)


def test_nothing_runs_as_root(compose, manifests):
    """PostgreSQL's image begins as root unless it is told not to; those of KubeRay's pods did."""
    assert re.search(r"^USER (?!root|0)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    as_built = ("prom/prometheus", "grafana/grafana")  # as nobody, and as 472
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        is_ours = "TILECORE_IMAGE" in service["image"]
        assert is_ours or service["image"].split(":")[0] in as_built or service["user"], name
    for name, pod in pods(manifests).items():
        (container,) = pod["containers"]
        context = container["securityContext"]
        assert context["runAsNonRoot"], name
        assert context["runAsUser"], name
        assert context["capabilities"] == {"drop": ["ALL"]}, name
        assert not context["allowPrivilegeEscalation"], name


def test_gpu_workers_have_gpus_and_what_uses_them(compose, manifests):
    worker = compose["services"]["gpu-worker"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", "all", ["gpu"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(worker["build"]["args"]["EXTRAS"].split(","))
    assert {"cuda", "cuda-runtime"} <= extras <= set(project["optional-dependencies"])
    (container,) = pods(manifests)["gpu"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["command"][1:] == ["worker", "--address", "tilecore-head-svc:6379", *OFFER]
    assert worker["command"][-2:] == OFFER


def test_who_measures_on_a_host_holds_the_locks_of_its_devices(compose, manifests):
    """Containers and pods have files of their own, so that each had a lock of its own."""
    place = lock_path("cpu").parent
    shared = {n for n, s in compose["services"].items() if f":{place}" in str(s.get("volumes"))}
    assert shared == {"coordinator", "worker", "gpu-worker"}
    assert compose["volumes"]["locks"] == {"name": "tilecore-locks"}  # whatever the project's name
    assert f"install -d -m 1777 {place}" in (ROOT / "Dockerfile").read_text()
    (cluster,) = [m for m in manifests if m["kind"] == "RayCluster"]
    group = cluster["spec"]["workerGroupSpecs"][0]
    labels = group["template"]["metadata"]["labels"]
    affinity = group["template"]["spec"]["affinity"]["podAntiAffinity"]
    (rule,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"].items() <= labels.items()
    assert rule["namespaceSelector"] == {}  # those of other installations, too


def test_images_are_pinned_and_secrets_are_files(compose):
    for name, service in compose["services"].items():
        assert re.search(r":[^/]+$", service["image"]), name
        assert ":latest" not in service["image"]
        for key, value in service.get("environment", {}).items():
            is_secret = re.search("PASSWORD|TOKEN|SECRET", key)
            assert not is_secret or key.endswith(("_FILE", "_PATH")), f"{name}: {key}"
            named = re.match("/run/secrets/(.+)", str(value))
            assert not named or named[1] in service["secrets"], f"{name}: {key}"


def test_environment_variables_are_settings(compose):
    known = {f"TILECORE_{field.upper()}" for field in Settings.model_fields}
    text = (ROOT / "Dockerfile").read_text()
    found = set(re.findall(r"\b(TILECORE_[A-Z_]+)=", text))
    for service in compose["services"].values():
        found |= {key for key in service.get("environment", {}) if key.startswith("TILECORE_")}
    assert found
    assert found <= known


@pytest.fixture(scope="module")
def manifests():
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "tilecore.yaml").read_text()))


def pods(manifests):
    """Return the pod specifications of Kubernetes manifests by name."""
    found = {}
    for manifest in manifests:
        spec = manifest["spec"]
        if manifest["kind"] == "RayCluster":
            groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
            found |= {g.get("groupName", "head"): g["template"]["spec"] for g in groups}
        elif "template" in spec:
            found[manifest["metadata"]["name"]] = spec["template"]["spec"]
    return found


def test_kubernetes_manifests_fit_the_program(manifests):
    known = {f"TILECORE_{field.upper()}" for field in Settings.model_fields}
    found = pods(manifests)
    assert set(found) == {"migrate", "api", "coordinator", "head", "cpu", "gpu"}
    for name, pod in found.items():
        (container,) = pod["containers"]
        command = container.get("command", ["tilecore"]) + container.get("args", [])
        if command[0] == "tilecore":
            parses(command[1:])
        variables = {v["name"] for v in container["env"] if v["name"].startswith("TILECORE_")}
        assert variables <= known, name
        mounted = {m["name"] for m in container["volumeMounts"]}
        assert mounted == {v["name"] for v in pod["volumes"]}, name
        secret = next(v["secret"] for v in pod["volumes"] if v["name"] == "secrets")
        needs_database = "TILECORE_DATABASE_URL" in variables
        assert needs_database or [i["key"] for i in secret["items"]] == ["ray_token"], name
    (cluster,) = [m for m in manifests if m["kind"] == "RayCluster"]
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert cluster["spec"]["rayVersion"] == pinned[1]


def test_manifests_fit_the_schema_of_kubernetes(manifests):
    """KubeRay's own fields are those of ray.io/v1, release 1.4."""
    (cluster,) = [m for m in manifests if m["kind"] == "RayCluster"]
    for manifest in manifests:
        if manifest is not cluster:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    spec = cluster["spec"]
    assert cluster["apiVersion"] == "ray.io/v1"
    assert set(spec) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    assert set(spec["headGroupSpec"]) == {"rayStartParams", "template"}
    numbers = {"replicas", "minReplicas", "maxReplicas"}
    for group in spec["workerGroupSpecs"]:
        assert set(group) == {"groupName", "rayStartParams", "template", *numbers}
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for name, pod in pods([cluster]).items():
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod}
        kubernetes_validate.validate(whole, KUBERNETES, strict=True)
        whole["spec"] = {**pod, "containers": [{**pod["containers"][0], "comand": ["x"]}]}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(whole, KUBERNETES, strict=True)


def test_containers_of_ray_are_probed_by_what_the_image_has(compose, manifests):
    """Where a container has no probe, KubeRay asks by wget for what only ray[default] answers."""
    (cluster,) = [m for m in manifests if m["kind"] == "RayCluster"]
    for name, pod in pods([cluster]).items():
        (container,) = pod["containers"]
        for kind in ("livenessProbe", "readinessProbe"):
            command = container[kind]["exec"]["command"]
            assert command[0] == ("ray" if name == "head" else "sh"), name
    ours = compose["services"]["worker"]["healthcheck"]["test"]
    assert ours == ["CMD-SHELL", command[2]]
    process = subprocess.Popen(["sleep", "30"], executable=shutil.which("sleep"))
    try:
        check = command[2].replace("raylet", "sleep")
        assert subprocess.run(["sh", "-c", check], check=False).returncode == 0
    finally:
        process.kill()
        process.wait()
    check = command[2].replace("raylet", "no-such-name")
    assert subprocess.run(["sh", "-c", check], check=False, stderr=subprocess.DEVNULL).returncode


def test_the_image_has_a_linker():
    text = (ROOT / "Dockerfile").read_text()
    (packages,) = re.findall(r"apt-get install -y --no-install-recommends ([^\\&]+)", text)
    assert "binutils" in packages.split()
    assert "ld" in dict(LINKERS)


def parses(command):
    result = typer.testing.CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0, command
    options = [word for word in command if word.startswith("--")]
    assert all(re.sub("^--no-", "--", o) in result.output for o in options), command


def test_commands_are_commands_of_the_program(compose):
    ours = [s for s in compose["services"].values() if "TILECORE_IMAGE" in s["image"]]
    commands = [s["command"] for s in ours]
    assert len(commands) >= 3
    commands.append(compose["services"]["coordinator"]["healthcheck"]["test"][2:])
    commands.append(["serve", "--host", "0.0.0.0"])
    for command in commands:
        parses(command)


def test_what_is_watched_is_there(compose, tmp_path):
    """Targets are services; boards and alerts ask for metrics that the service has."""
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    for target in job["static_configs"][0]["targets"]:
        host, port = target.split(":")
        assert compose["services"][host]["ports"][0]["target"] == int(port)
    key = job["authorization"]["credentials_file"].removeprefix("/run/secrets/")
    assert key in compose["services"]["prometheus"]["secrets"]
    client = TestClient(create_app(Settings(data_dir=tmp_path)))
    question = {"kernel": "gemm", "problem": {"m": 8, "n": 8, "k": 8}}
    client.post("/v1/recommendations", json=question)
    text = client.get("/metrics").text
    assert 'route="/v1/recommendations"' in text
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    board = json.loads((DEPLOY / "grafana" / "boards" / "tilecore.json").read_text())
    asked = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    asked += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    names = {re.sub("_(count|bucket)$", "", n) for n in re.findall(r"tilecore_\w+", str(asked))}
    assert len(names) > 9
    assert names <= known


def test_the_image_gets_every_package():
    copied = re.findall(r"^COPY (\w+) \w+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    packages = {p.parent.name for p in ROOT.glob("*/__init__.py")}
    assert packages - {"tests", "benchmarks", "examples"} == set(copied)


@pytest.mark.parametrize("goal", ["tune", "test", "check", "venv", "serve", "secrets", "help"])
def test_make_knows_its_goals(goal):
    shown = subprocess.run(
        ["make", "--dry-run", goal, "VENV=/nonexistent"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr


def test_ci_runs_the_tests_only():
    script = (ROOT / ".ci" / "run").read_text()
    calls = [shlex.split(line) for line in script.splitlines() if line.startswith("make")]
    assert calls == [["make", "test"], ["make", "exhaustive"]]
