"""Dispatch tables by command line and REST: what people send, and what tuning makes of it."""

import json
from dataclasses import replace

import pytest

from recommender.dispatch.table import dispatch_table
from recommender.errors import InvalidShapes
from recommender.measurement import Protocol
from recommender.shapes import Sizes
from tests.tuner_service.serving import LOCAL
from tests.tuner_service.table_measurer import TableMeasurer
from tests.tuner_service.test_app import problem
from tests.tuner_service.test_cli import cli  # noqa: F401
from tilecore import kernels
from tilecore.dispatch_reader import load_table, read_table
from tilecore.errors import TileError
from tuner_service import wiring
from tuner_service.answers.desk import Answerer
from tuner_service.cli import dispatching
from tuner_service.client import ServiceClient
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import HostWorkplace
from tuner_service.dispatch.answers import TABLE
from tuner_service.dispatch.evidence import LoggedSessions
from tuner_service.dispatch.schemas import DispatchTableRequest
from tuner_service.dispatch.shapes import AskedTable, read_weights, split_sizes, understand_table
from tuner_service.jobs import Effort

REQUEST = {"kernel": "gemm", "problem": {"n": 64, "k": 64}, "sizes": {"m": "1:64"}, "samples": 6}


# --- the command line -------------------------------------------------------------------------


def test_a_table_is_printed_and_written(cli, tmp_path):  # noqa: F811
    path = tmp_path / "table.json"
    status, shown, _ = cli(
        "dispatch", "gemm", "--n", "64", "--k", "64", "--m", "1:64", "--samples", "6",
        "--output", str(path),
    )  # fmt: skip
    assert status == 0, shown
    table = load_table(path)
    assert table.dims == ("m",)
    assert [s.shape for s in table.shapes][:: len(table.shapes) - 1] == [(1,), (64,)]
    assert "fewest" in shown
    assert "0% of the calls rest on measurements" in shown


def test_a_table_in_the_form_of_vllm(cli, tmp_path):  # noqa: F811
    path = tmp_path / "table.json"
    arguments = ["dispatch", "gemm", "--n", "64", "--k", "64", "--m", "1,16,64"]
    assert cli(*arguments, "--format", "vllm", "--output", str(path))[0] == 0
    assert list(json.loads(path.read_text())) == ["1", "16", "64"]


def test_weights_from_a_file_of_counts(cli, tmp_path):  # noqa: F811
    path, counts = tmp_path / "table.json", tmp_path / "calls.csv"
    counts.write_text("m,n,weight\n1,64,90\n16,64,9\n16,32,1\n")
    status, _, said = cli(
        "dispatch", "gemm", "--k", "64", "--weights", str(counts), "--output", str(path)
    )
    assert status == 0, said
    table = load_table(path)
    assert (table.dims, table.rule) == (("m", "n"), "nearest")
    assert {s.shape: s.weight for s in table.shapes} == {
        (1, 64): 0.9,
        (16, 64): 0.09,
        (16, 32): 0.01,
    }


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--m", "0:8"], "RC611"), (["--m", "8:1"], "RC611"), (["--m", "a"], "RC611"),
        (["--m", "7"], "RC611"), (["--m", "1:8", "--weights", "none.csv"], "RC611"),
        (["--m", "1:8", "--tolerance", "-1"], "RC611"), (["--m", "1:8", "--set", "q=1:8"], "TC502"),
        (["--m", "1:4096", "--set", "n=1:4096"], "TC502"),
        (["--m", "1:8", "--threads", "9999"], "SV907"),
        (["--m", "1:8", "--hardware", "abacus"], "RC601"), (["--m", "1:8", "--n", "x"], "RC611"),
        (["--m", "1:8", "--output", "/nowhere/t.json"], "SV9"),
    ],
)  # fmt: skip
def test_bad_input_is_one_message(cli, arguments, said):  # noqa: F811
    status, _, complaint = cli("dispatch", "gemm", "--n", "64", "--k", "64", *arguments)
    assert status in (1, 2)
    assert said in complaint
    assert "Traceback" not in complaint


def test_too_many_shapes_are_one_message(cli):  # noqa: F811
    status, _, complaint = cli("dispatch", "gemm", "--k", "64", "--m", "1:64", "--set", "n=1:4096")
    assert (status, "RC611" in complaint) == (2, True)


def test_an_unknown_kernel_is_one_message(cli):  # noqa: F811
    status, _, complaint = cli("dispatch", "gemmm", "--m", "1:8")
    assert (status, "TC501" in complaint) == (2, True)


def test_a_device_that_nobody_stored_yet_is_tuned_by_its_name(cli):  # noqa: F811
    """It was looked up by its key, and refused as unknown (RC601)."""
    status, _, complaint = cli(
        "dispatch", "gemm", "--n", "4096", "--k", "4096", "--m", "512,1024", "--dtype", "float16",
        "--hardware", "emulated h200", "--tune",
    )  # fmt: skip
    assert (status, "SV930" in complaint) == (2, True)  # too large for the emulator


@pytest.mark.parametrize(
    "content",
    ["", "m\n1\n", "m,weight\n1\n", "m,weight\na,1\n", "m,weight\n1,b\n", "weight\n1\n",
     "m,weight\n1,-1\n", "m,weight\n0,1\n", "m,weight\n1,0\n", "m,q,weight\n1,2,3\n"],
)  # fmt: skip
def test_files_of_weights_that_make_no_sense(tmp_path, store, content):
    path = tmp_path / "w.csv"
    path.write_text(content)

    def asked():
        fixed = {"n": 64, "k": 64}
        return AskedTable(kernel="gemm", problem=fixed, counts=read_weights(str(path))[1])

    with pytest.raises(TileError) as caught:
        understand_table(store, asked())
    assert caught.value.code in ("RC611", "TC502")


@pytest.mark.parametrize(
    ("name", "content"), [("w.csv", ""), ("w.csv", "m,weight\n"), ("w.json", "[]")]
)
def test_a_file_of_weights_without_a_shape_is_named(tmp_path, name, content):
    """Once it was as if none had been given."""
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidShapes, match=rf"{name}: expected .* found no shape in it"):
        read_weights(str(tmp_path / name))


def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(cli, tmp_path, store):  # noqa: F811
    asked = ("dispatch", "gemm", "--n", "64", "--k", "64", "--m", "1:8", "--tune", "--output")
    for place in (tmp_path / "none" / "t.json", tmp_path):
        status, shown, complaint = cli(*asked, str(place))
        assert (status, shown) == (2, "")
        assert complaint.startswith("error: SV914 ")
        assert "csv" not in complaint
    assert store.runs.list() == []


def test_counted_shapes_of_a_spreadsheet_are_read(tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("m,weight\n16,9\n", encoding="utf-8-sig")
    assert read_weights(str(path)) == ("log", [({"m": 16}, 9.0)])


def test_fields_of_one_value_stay_fields():
    gemm = kernels.get("gemm")
    fixed, sizes = split_sizes(gemm, {"m": "1:8", "n": "64", "K": "32", "dtype": "float32"})
    assert fixed == {"n": 64, "K": 32, "dtype": "float32"}
    assert sizes == {"m": Sizes(low=1, high=8)}


# --- tuning -----------------------------------------------------------------------------------


def work(settings, store, runs):
    """A coordinator of this host whose times follow from a config's knobs."""
    host, toolchain = wiring.host_profile(store), wiring.host_toolchain().on("cpu")
    Coordinator(
        store, toolchain=toolchain,
        workplace=HostWorkplace(host, lambda _: TableMeasurer(host, toolchain=toolchain)),
        limits=Limits(poll_s=0.01), until_idle=True,
    ).run()  # fmt: skip


@pytest.mark.exhaustive
def test_tuned_tables_rest_on_what_was_measured_side_by_side(settings, store):
    store.save_hardware(replace(wiring.detected_host(), source="measured 2026-11-22"))
    asked = AskedTable(
        kernel="gemm", problem={"n": 64, "k": 64}, sizes={"m": Sizes(values=(16, 64, 256))}
    )
    effort = Effort(max_trials=6, time_limit_s=60)
    question, times = dispatching.tuned_times(settings, store, asked, effort, follow=work)
    table = dispatch_table(question, times)
    assert set(times.best_source) == {"measured"}
    assert table.measured_share() == pytest.approx(1.0)
    groups = {run.group for run in store.runs.list()}
    assert len(groups) == 2
    crossed = [r for r in store.runs.list() if r.spec["time_limit_s"] == 0.0]
    assert len(crossed) == 3
    for run in crossed:
        confirmed = {
            t.config for t in store.trials.of_run(run.id) if t.protocol is Protocol.CONFIRM
        }
        for config in table.configs:
            assert config in confirmed
        logged = LoggedSessions(store, question)(run.workload)
        assert {m.config for m in logged if m.protocol is Protocol.CONFIRM} == confirmed
        assert len({m.config for m in logged if m.protocol is Protocol.SCREEN}) > 3
    again, _ = dispatching.tuned_times(settings, store, asked, effort, follow=work)
    assert again == question
    searched = [r for r in store.runs.list() if r.spec["time_limit_s"] > 0]
    assert len(searched) == 3  # the second time they answer from the database


# --- REST -------------------------------------------------------------------------------------


def test_a_table_by_rest_is_the_file_that_a_dispatcher_reads(client, unmeasured_source):
    body = client.post("/v1/dispatch-tables", json=REQUEST).json()
    table = read_table(body)
    assert {s.source for s in table.shapes} == {unmeasured_source}
    assert table.span == ((1, 64),)
    assert client.post("/v1/dispatch-tables", json=REQUEST).json() == body  # from memory


def test_an_answering_process_makes_the_same_table(client, settings):
    answerer = Answerer(settings.url, 5.0)
    asked = DispatchTableRequest(**REQUEST).model_dump_json()
    here = json.loads(answerer.answer((), TABLE + asked).body)
    there = client.post("/v1/dispatch-tables", json=REQUEST).json()
    assert here | {"created_at": ""} == there | {"created_at": ""}
    wrong = DispatchTableRequest(**REQUEST | {"sizes": {"m": "0:4"}}).model_dump_json()
    assert answerer.answer((), TABLE + wrong).code == "RC611"


def test_lists_counts_and_limits_by_rest(client):
    listed = REQUEST | {"sizes": {"m": [1, 16, 64.0]}, "max_configs": 1}
    table = read_table(client.post("/v1/dispatch-tables", json=listed).json())
    assert [s.shape for s in table.shapes] == [(1,), (16,), (64,)]
    assert len(table.configs) == 1
    counted = {
        "kernel": "gemm", "problem": {"k": 64},
        "shapes": [{"sizes": {"m": 1, "n": 32}, "weight": 3}, {"sizes": {"m": 8, "n": 32}}],
    }  # fmt: skip
    table = read_table(client.post("/v1/dispatch-tables", json=counted).json())
    assert [s.weight for s in table.shapes] == [0.75, 0.25]


def test_a_table_for_a_gpu_that_is_not_here(client):
    half = REQUEST | {"problem": {"n": 4096, "k": 4096, "dtype": "float16"}, "hardware": "h100"}
    table = read_table(client.post("/v1/dispatch-tables", json=half).json())
    assert table.hardware.startswith("NVIDIA H100")
    assert table.target not in ("", "llvm")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sizes": {"m": "0:4"}}, "RC611"), ({"sizes": {"q": "1:4"}}, "TC502"),
        ({"sizes": {"m": "1:4", "M": "1:8"}}, "RC611"), ({"sizes": {"m": "x"}}, "SV901"),
        ({"sizes": {}}, "SV901"), ({"sizes": {"m": [0]}}, "SV901"), ({"samples": 65}, "SV901"),
        ({"tolerance": -1}, "SV901"), ({"kernel": "gemmm"}, "TC501"),
        ({"problem": {"n": 64}}, "TC502"), ({"hardware": "abacus"}, "RC601"),
        ({"sizes": {"m": "1:512", "n": "1:512"}, "samples": 16}, "RC611"),
        ({"problem": {"k": 64}, "sizes": {"m": "1:64", "n": "1:64"}, "samples": 12}, "RC611"),
        ({"shapes": [{"sizes": {"n": 4}, "weight": 1}]}, "RC611"),
        ({"shapes": [{"sizes": {"m": 4}, "weight": 0}]}, "RC611"),
        ({"unknown": 1}, "SV901"),
    ],
)  # fmt: skip
def test_bad_requests_are_problems_with_a_code(client, changes, code):
    status = 404 if code in ("TC501", "RC601") else 422
    assert problem(client.post("/v1/dispatch-tables", json=REQUEST | changes), status, code)


@pytest.mark.parametrize("route", ["/v1/dispatch-tables", "/v1/dispatch-tables:tune"])
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("[1e999]", "1 to 64 sizes from 1 to 1048576"),  # was an error of the service
        ("[NaN]", "1 to 64 sizes from 1 to 1048576"),
        ('"a:b"', "'FIRST:LAST', 'A,B,...' or a list of sizes"),
        ("5", "'FIRST:LAST', 'A,B,...' or a list of sizes"),
    ],
)
def test_sizes_that_are_none_are_told_with_their_form(client, route, found, expected):
    text = json.dumps(REQUEST).replace('"1:64"', found)
    answer = client.post(route, content=text, headers={"content-type": "application/json"})
    assert f"/body/sizes/m: expected {expected}" in problem(answer, 422, "SV901")["detail"]


def test_the_client_gets_a_table(client):
    with ServiceClient(f"http://{LOCAL}") as service:
        service._http = client
        table = service.dispatch_table("gemm", {"n": 64, "k": 64}, {"m": "1:64"}, samples=4)
    assert table.span == ((1, 64),)
