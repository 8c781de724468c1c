"""What operators do: compact the log by REST and by command line."""

import pytest

from tests.tuner_service.serving import TestClient
from tests.tuner_service.test_access import bearer  # noqa: F401
from tests.tuner_service.test_app import GEMM, problem
from tests.tuner_service.test_cli import cli  # noqa: F401
from tests.tuner_service.test_remeasure import measured, question  # noqa: F401
from tuner_service.app import create_app

BARE = {"keep_days": 0, "keep_best": 1, "keep_recent": 0, "keep_training": 0}


@pytest.fixture
def filled(store, question):  # noqa: F811
    store.add_all([measured(question, times_s=(1e-6 * i,)) for i in range(1, 9)])


def test_an_administrator_compacts_the_log(settings, store, filled, bearer):  # noqa: F811
    app = create_app(settings.model_copy(update={"auth": "required"}), store)
    client, admin = TestClient(app), bearer("admin")
    url = "/v1/database:compact"
    problem(client.post(url, json=BARE, headers=bearer("tune")), 403, "SV921")
    problem(client.post(url, json=BARE | {"keep_best": 0}, headers=admin), 422, "SV901")
    planned = client.post(url, json=BARE | {"dry_run": True}, headers=admin).json()
    assert (planned["measurements"], planned["removed"]) == (8, {"OK": 6})
    assert planned["is_dry_run"]
    assert store.count_measurements() == 8
    before = client.get("/v1/measurements?best=true&limit=1", headers=admin).json()["items"]
    asked = [GEMM, GEMM | {"problem": {"m": 128, "n": 64, "k": 64}}]
    answered = [
        client.post("/v1/recommendations", json=q, headers=admin).json()["recommendations"]
        for q in asked
    ]
    done = client.post(url, json=BARE, headers=admin).json()
    assert (done["removed"], done["is_complete"], done["note"]) == ({"OK": 6}, True, "")
    after = client.get("/v1/measurements?best=true", headers=admin).json()["items"]
    assert after[0] == before[0]
    assert len(after) == 2
    assert [
        client.post("/v1/recommendations", json=q, headers=admin).json()["recommendations"]
        for q in asked
    ] == answered
    gone = client.get("/v1/database/removed", headers=bearer("read")).json()["items"]
    assert gone == [{"kernel": "gemm", "status": "OK", "cause": "", "count": 6}]
    assert client.post(url, json={}, headers=admin).json()["removed"] == {}


def test_compacting_from_the_command_line(cli, store, filled):  # noqa: F811
    options = ["--keep-days", "0", "--keep-best", "1", "--keep-recent", "0"]
    command = ["db", "compact", *options, "--keep-training", "0"]
    status, out, _ = cli(*command, "--dry-run")
    assert status == 0
    assert "6 of 8 measurements would be removed (6 OK), 0 events" in out
    status, out, _ = cli(*command)
    assert "6 of 8 measurements removed (6 OK)" in out
    assert "MiB after" in out
    status, _, err = cli("db", "compact", "--keep-best", "0")
    assert status == 2
    assert "keep-best" in err
