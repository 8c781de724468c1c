"""The command line: one clear message and exit status 2 for bad input, never a traceback."""

import io
import json
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import make_url

from db.errors import DatabaseAway, SchemaTooNew
from db.migrate import HEAD, open_database
from db.session import Database
from db.store import SqlStore
from recommender.measurement import Protocol
from tests.tuner_service.table_measurer import TableMeasurer
from tuner_service import wiring
from tuner_service.cli.app import run_cli
from tuner_service.cli.console import print_result, print_runs
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import HostWorkplace
from tuner_service.errors import InvalidSettings
from tuner_service.jobs import Effort, submit
from tuner_service.questions import understand
from tuner_service.report import candidate, doubts_of
from tuner_service.settings import load_settings

GEMM = ["gemm", "--m", "64", "--n", "64", "--k", "64"]
MATMUL = f"{Path(__file__).parents[2]}/examples/quickstart_lazy.py:matmul"


@pytest.fixture
def cli(settings, monkeypatch, capsys):
    monkeypatch.setenv("TILECORE_DATA_DIR", str(settings.data_dir))
    # A coordinator writes beside some of these commands, and a busy machine makes each write long.
    monkeypatch.setenv("TILECORE_DATABASE_TIMEOUT_S", "30")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        status = run_cli(list(arguments))
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


@pytest.fixture
def tuned(store):
    """A finished run of this host for the workload GEMM."""
    question = understand(store, "gemm", {"m": 64, "n": 64, "k": 64})
    run, _ = submit(store, question, Effort(max_trials=5, time_limit_s=60))
    Coordinator(
        store,
        toolchain=question.toolchain,
        workplace=HostWorkplace(
            question.hardware,
            lambda _: TableMeasurer(question.hardware, toolchain=question.toolchain),
        ),
        limits=Limits(poll_s=0.01),
        until_idle=True,
    ).run()
    return run


BAD_INPUT = {
    "unknown kernel": (["recommend", "conv", "--m", "4"], "TC501"),
    "unknown kernel, tune": (["tune", "conv", "--m", "4"], "TC501"),
    "unknown hardware": (["recommend", *GEMM, "--hardware", "z80"], "RC601"),
    "negative dimension": (["tune", "gemm", "--m", "-4", "--n", "4", "--k", "4"], "TC502"),
    "huge dimension": (["tune", "gemm", "--m", "9999999", "--n", "4", "--k", "4"], "TC502"),
    "missing dimension": (["recommend", "gemm", "--m", "4"], "TC502"),
    "dtype mismatch": (["tune", *GEMM, "--dtype", "int7"], "TC502"),
    "unknown field": (["recommend", *GEMM, "--set", "colour=red"], "TC502"),
    "no value": (["recommend", *GEMM, "--set", "transpose_a"], "TC502"),
    "wrong value": (["recommend", *GEMM, "--set", "transpose_a=7"], "TC502"),
    "too many threads": (["tune", *GEMM, "--threads", "4000"], "SV907"),
    "no address": (["dispatch", *GEMM, "--m", "1:16", "--service", "nix"], "SV936"),
    "a format of no file": (["dispatch", *GEMM, "--m", "1:4", "--format", "vllm"], "SV901"),
    "nobody's field": (["recommend", *GEMM, "--set", "=3"], "TC502"),
    # Once the last word had it, without a word.
    "two sizes": (["recommend", *GEMM, "--set", "m=32"], "TC502"),
    "two types": (["tune", *GEMM, "--dtype", "float16", "--set", "dtype=float32"], "TC502"),
    "two ranges": (["dispatch", *GEMM, "--m", "1:16", "--set", "m=8"], "TC502"),
    "two sizes of a program": (["recommend", MATMUL, "--m", "8", "--set", "M=4"], "TC502"),
    "two values": (["recommend", MATMUL, "--fixed", "a=1", "--fixed", "a=2"], "TC502"),
    "vLLM knows one dimension": (
        ["dispatch", "--m", "1:4", "--n", "1:4", "--k", "4", "--format", "vllm", "--output", "t"],
        "TC506",
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_gets_one_message_and_status_2(cli, store, name):
    arguments, code = BAD_INPUT[name]
    status, out, err = cli(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {code} ")
    assert "Traceback" not in err
    assert store.runs.list() == []


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["tune", "gemm", "--m", "many"],
        ["tune", "--trials", "0"],
        ["tune", "--executor", "slurm"],
        ["recommend", *GEMM, "--top-k", "0"],
        ["recommend", *GEMM, "--top-k", "51"],
        ["tune", *GEMM, "--time-limit", "inf"],  # once a run that ended as FAILED
        ["tune", *GEMM, "--trials", "9" * 20],  # once an OverflowError
        ["tune", *GEMM, "--seed", "9" * 20],
        ["tune", *GEMM, "--ceiling", "inf"],
        ["run", "extend", "ID", "--seconds", "inf"],
        ["run", "extend", "ID", "--trials", "9" * 20],
        ["run", "amend", "ID", "--ceiling", "inf"],
        ["dispatch", *GEMM, "--tune", "--trials", "9" * 20],
        ["serve", "--port", "99999999"],
        ["measurements", "--status", "FINE"],
        ["measurements", "--m", "9" * 20],  # once an OverflowError, as the following
        ["log", "--n", "9" * 20],
        ["log", "--k", "0"],
        ["model", "activate", "9" * 20],
        ["db", "compact", "--keep-recent", "9" * 20],
        ["db", "compact", "--keep-training", "9" * 20],
        ["db", "compact", "--above-mib", "9" * 20],
    ],
)
def test_wrong_usage_is_explained(cli, arguments):
    status, _, err = cli(*arguments)
    assert status == 2
    assert "Usage: tilecore" in err


@pytest.mark.parametrize("host", ["127.0.0.1", "nosuch.invalid", "203.0.113.7"])
def test_an_address_that_cannot_be_had_is_told_before_anything_starts(cli, host):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, out, err = cli("serve", "--host", host, "--port", port)
    assert (status, out) == (2, "")
    assert err.startswith("error: SV933 cannot-listen: expected a free address of this machine")
    assert f"{host}:{port}" in err


def test_a_ray_address_without_a_port_is_refused(cli):
    status, _, err = cli("coordinator", "--ray-address", "head")
    assert status == 2
    assert "TILECORE_RAY_ADDRESS: expected HOST:PORT" in err


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31mred", "n" * 65])
def test_names_of_keys_are_those_that_rest_takes(cli, store, name):
    status, out, err = cli("keys", "create", name)
    assert (status, out) == (2, "")
    assert err.startswith("error: SV901 ")
    assert store.keys.count() == 0


@pytest.mark.exhaustive
def test_a_disk_without_room_is_told_as_such(settings):
    """A process may write no files longer than 16 KiB: to SQLite that is a disk that is full."""
    environment = {
        "TILECORE_DATA_DIR": str(settings.data_dir),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    shell = f'ulimit -f 16; exec "{sys.executable}" -m tuner_service keys create x'
    done = subprocess.run(
        ["bash", "-c", shell], env={**os.environ, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "free some disk space" in done.stderr


def test_a_locked_database(cli, database_lock, monkeypatch):
    monkeypatch.setenv("TILECORE_DATABASE_TIMEOUT_S", "0.2")
    with database_lock():
        status, _, err = cli("tune", *GEMM, "--executor", "local")
    assert status == 2
    assert "DB801" in err


def test_a_newer_database(cli, settings):
    with closing(sqlite3.connect(settings.data_dir / "tilecore.db")) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
        connection.commit()
    status, _, err = cli("runs")
    assert status == 2
    assert "DB802" in err
    with pytest.raises(SchemaTooNew):
        open_database(settings.url)


@pytest.mark.parametrize(
    ("name", "text"),
    [("TILECORE_PORT", "eighty"), ("TILECORE_TIME_LIMIT_S", "inf"), ("TILECORE_LEASE_S", "nan")],
)
def test_a_setting_that_cannot_be_used(cli, monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    status, _, err = cli("runs")
    assert status == 2
    assert name in err
    assert f"'{text}'" in err
    with pytest.raises(InvalidSettings):
        load_settings()


def test_recommend_prints_source_interval_and_reason(cli, unmeasured_source):
    status, out, _ = cli("recommend", *GEMM, "--top-k", "2")
    assert status == 0
    assert unmeasured_source in out
    assert "80 % interval" in out
    assert "1. block_K=" in out


def test_times_of_a_machine_that_was_not_profiled_rest_on_rates_of_one_like_it(cli, store):
    def flop_per_s() -> float:
        (best,) = json.loads(cli("recommend", *GEMM, "--top-k", "1", "--json")[1])
        return best["gflops"] * 1e9

    _, out, _ = cli("recommend", *GEMM)
    assert "times rest on the rates of x86-64 with" in out
    assumed = wiring.host_profile(store)
    assert assumed.key == wiring.detected_host().key
    assert flop_per_s() > 0.1 * assumed.peak_flop_per_s["float32"]
    assert not wiring.is_measured(assumed)
    store.save_hardware(replace(assumed, source="measured 2026-11-25"))
    _, out, _ = cli("recommend", *GEMM)
    assert "times rest on" not in out


@pytest.mark.few(1)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_whose_encoding_lacks_letters_gets_others(settings, store, encoding):
    """A UnicodeEncodeError ("unexpected error") took the place of the answer."""
    environment = {**settings.environment(), "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "tuner_service", "recommend", *GEMM, "--hardware", "h100"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode(encoding)
    assert ("µs" if encoding == "latin-1" else " us |") in shown
    assert "fastest of" in shown


def test_recommend_as_json(cli):
    status, out, _ = cli("recommend", *GEMM, "--top-k", "2", "--json")
    ranked = json.loads(out)
    assert status == 0
    assert [r["rank"] for r in ranked] == [1, 2]
    assert set(ranked[0]["config"]) >= {"block_M", "block_N", "block_K"}


def test_a_second_tune_answers_from_the_database(cli, store, tuned):
    host = wiring.detected_host()
    measured = {**host.as_dict(), "source": "measured 2026-11-20"}
    store.save_hardware(type(host)(**measured))
    before = store.count_measurements()
    status, out, err = cli("tune", *GEMM, "--trials", "5")
    assert (status, err) == (0, "")
    assert "answered from the database (--force tunes again)" in out
    for expected in ("default config", "zero-measurement recommendation", "best found"):
        assert expected in out
    assert tuned.public_id in out
    assert "vs torch" in out
    assert store.count_measurements() == before
    assert len(store.runs.list()) == 1


def test_lists(cli, tuned):
    status, out, _ = cli("runs")
    assert status == 0
    assert tuned.public_id in out
    status, out, _ = cli("measurements", "--best", "--limit", "3", "--m", "64")
    assert status == 0
    assert out.count("gemm 64x64x64") == 3
    status, out, _ = cli("recommend", *GEMM, "--top-k", "1")
    assert "measured" in out


def test_a_list_of_runs_can_be_read_in_80_columns(tuned):
    """Once the workload had two characters a line there."""
    file = io.StringIO()
    print_runs(Console(width=80, file=file), [(tuned, {"done": 3})])
    out = file.getvalue()
    assert tuned.public_id in out
    assert "3 trials" in out
    assert "gemm 64x64x64 float32" in out
    assert f"{tuned.created_at:%Y-%m-%d}" in out


def test_migrate_says_what_it_did(cli, settings):
    status, out, _ = cli("migrate")
    assert status == 0
    assert f"schema is current (was {HEAD})" in out
    (settings.data_dir / "tilecore.db").unlink()
    assert "schema is current (was empty)" in cli("migrate")[1]


def test_whether_a_coordinator_leads_is_said(cli, store):
    """The status alone said it, and a container's log of health checks nothing."""
    assert cli("coordinator", "--check")[:2] == (1, "no coordinator leads\n")
    store.leader.acquire("somebody", 60)
    assert cli("coordinator", "--check")[:2] == (0, "a coordinator leads\n")


def test_a_coordinator_ends_with_its_parent(settings):
    """A coordinator whose parent is gone stops by itself (SIGKILL of `serve` leaves nothing)."""
    command = [sys.executable, "-m", "tuner_service", "coordinator", "--parent", "999999"]
    host = wiring.detected_host()
    store = wiring.open_store(settings)
    store.save_hardware(type(host)(**{**host.as_dict(), "source": "measured 2026-11-20"}))
    done = subprocess.run(
        command,
        env=settings.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert not store.leader.current() or not store.leader.current().is_alive


RECORDED = Path(__file__).parents[1] / "recommender" / "recorded" / "convolution_milo__A100.csv.gz"


def test_replay_prints_and_draws_the_curves(cli, tmp_path):
    drawing = tmp_path / "curves.svg"
    status, shown, _ = cli(
        "replay", str(RECORDED), "--trials", "16", "--seeds", "2", "--plot", str(drawing)
    )
    assert status == 0
    assert "fraction of the best speed" in shown
    text = drawing.read_text()
    assert text.count('stroke-width="2"') == 2
    assert "convolution_milo__A100, model" in text


def test_replay_refuses_what_is_no_recording(cli, tmp_path):
    bad = tmp_path / "space.csv"
    bad.write_text("nothing\n")
    for path in (bad, tmp_path):
        status, _, shown = cli("replay", str(path))
        assert status == 2
        assert f"RC607 invalid-recording: {path}: " in shown
    assert "invalid-recording: .: Is a directory" in cli("replay", ".")[2]  # once it had no name


def test_a_drawing_that_cannot_be_written_is_told(cli, tmp_path):
    drawing = tmp_path / "nowhere" / "curves.svg"
    few = ("--trials", "2", "--seeds", "1", "--strategy", "random")
    status, _, shown = cli("replay", str(RECORDED), *few, "--plot", str(drawing))
    assert (status, "SV901" in shown, str(drawing) in shown) == (2, True, True)


@pytest.mark.parametrize("address", ["nix", "localhost:", ":6379", "localhost:66000", "a:b"])
def test_a_worker_needs_an_address(cli, address):
    status, _, shown = cli("worker", "--address", address)
    assert (status, "expected HOST:PORT" in shown) == (2, True)


def test_a_cpu_is_one_device(cli):
    """Two meters would each use all of its cores, and measure each other."""
    status, _, shown = cli("worker", "--address", "localhost:1", "--devices", "2")
    assert (status, "--devices: expected 1 of a CPU" in shown) == (2, True)
    status, _, shown = cli("worker", "--address", "localhost:1", "--devices", "1")
    assert "WK707" in shown  # nothing listens there


def test_api_keys(cli, store):
    status, out, err = cli("keys", "create", "ci [x]", "--role", "tune", "--expires-in-days", "2")
    secret = out.strip()
    record = store.keys.find(secret)
    assert (status, record.role, record.name) == (0, "tune", "ci [x]")
    assert secret not in err
    assert (record.expires_at - record.created_at).days in (1, 2)
    status, out, _ = cli("keys", "list")
    assert status == 0
    assert all(shown in out for shown in (record.prefix, "ci [x]", "tune", "valid"))
    assert secret not in out
    assert cli("keys", "revoke", record.prefix)[0] == 0
    assert "revoked" in cli("keys", "list")[1]
    status, _, err = cli("keys", "revoke", "tc_none")
    assert status == 2
    assert "DB820" in err
    assert cli("keys", "create", "x", "--role", "root")[0] == 2


@pytest.mark.parametrize(
    "name", ["\uff44\uff41\uff54\uff41 \u6570", "50%41", "who?", "a#b", "plain"]
)
def test_the_database_is_in_the_folder_that_is_named(tmp_path, name):
    """Once "50%41" was decoded and "who?" ended at its question mark."""
    settings = load_settings(data_dir=tmp_path / name)
    database = open_database(settings.url)
    assert database.path == tmp_path / name / "tilecore.db"
    assert database.path.exists()
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert database.shown_url == settings.url
    assert name in settings.url or name in ("50%41", "who?")


def test_a_password_comes_from_a_file(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("p@ss/wörd:\n", encoding="utf-8")
    given = {"database_url": "postgresql+psycopg://me@db:5432/x", "database_password_file": secret}
    settings = load_settings(**given)
    assert make_url(settings.url).query["password_file"] == str(secret)
    assert "p@ss" not in repr(settings) + settings.url
    assert Database(settings.url).shown_url == "postgresql+psycopg://me@db:5432/x"
    for url in ("sqlite:////tmp/x.db", "postgresql+psycopg://me:other@db/x"):
        with pytest.raises(InvalidSettings, match="TILECORE_DATABASE_URL"):
            _ = load_settings(**given | {"database_url": url}).url
    secret.unlink()
    with pytest.raises(InvalidSettings, match="PASSWORD_FILE"):
        _ = settings.url


@pytest.mark.parametrize("arguments", [["-h"], ["tune", "-h"], ["keys", "create", "-h"]])
def test_help_has_the_short_name_that_people_try(cli, arguments):
    status, out, _ = cli(*arguments)
    assert status == 0
    assert "Usage: tilecore" in out


def test_the_version(cli):
    status, out, _ = cli("--version")
    assert status == 0
    assert re.fullmatch(r"tilecore [0-9]+\.[0-9]+\.[0-9]+.*\n", out)


HINTED = {
    "unknown kernel": (["recommend", "gemmm", "--m", "4"], "did you mean `gemm`?"),
    "a kernel of one's own": (["recommend", "zzz", "--m", "4"], "path/program.py:function"),
    "missing dimension": (["recommend", "gemm", "--m", "4"], "gemm needs m, n, k; its defaults:"),
    "unknown field": (["recommend", *GEMM, "--set", "dtyp=int8"], "did you mean `dtype`?"),
    "too many threads": (["recommend", *GEMM, "--threads", "4000"], "leave threads out"),
    "unknown hardware": (["log", "--hardware", "h20"], "did you mean `h200`?"),
    "no address": (["dispatch", *GEMM, "--m", "1:16", "--service", "nix"], "http://"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", HINTED)
def test_errors_that_people_meet_often_say_what_to_do(cli, name):
    arguments, hint = HINTED[name]
    status, _, err = cli(*arguments)
    assert status == 2
    assert hint in err.partition("hint:")[2]


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "none under @tilelang.jit"), ("def made(): pass\n", "did you mean `made`?"),
     ("raise SystemExit(3)\n", '__name__ == "__main__"')],
)  # fmt: skip
def test_a_file_without_the_function_says_what_it_has(cli, tmp_path, text, told):
    file = tmp_path / "program.py"
    file.write_text(text)
    status, _, err = cli("recommend", f"{file}:mad", "--m", "4")
    assert status == 2
    assert err.startswith("error: SV913 ")
    assert told in err


def test_a_doubtful_time_is_told_of(cli, store, tuned):
    """Where others took the cores torch was 28 times as slow as the best config, without a word."""
    run = store.runs.get(tuned.public_id)
    confirmed = next(
        t.measurement for t in store.trials.of_run(run.id) if t.protocol is Protocol.CONFIRM
    )
    crowded = replace(confirmed, metrics={"neighbour_busy": 0.56, "is_apart": 1.0})
    assert list(doubts_of(replace(confirmed, metrics={"neighbour_busy": 0.1}))) == []
    shown = candidate(crowded, run.hardware, 1e6)
    result = run.result | {"best": shown, "default": shown | {"doubts": shown["doubts"][:1]}}
    console = Console(width=200, file=io.StringIO())
    print_result(console, replace(run, result=result), {"OK": 3}, "here")
    told = [line for line in console.file.getvalue().splitlines() if line.startswith("doubtful")]
    assert told == [
        "doubtful: others took 56% of the cores while it was timed (default config, best found)",
        "doubtful: it was timed at another moment than the others (best found)",
    ]


@pytest.mark.parametrize("arguments", [["--help"], ["runs"]])
def test_output_that_has_no_room_is_told(tmp_path, arguments):
    """It was an unexpected error, whose place in the code the log level shows."""
    environment = os.environ | {"TILECORE_DATA_DIR": str(tmp_path)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tuner_service", *arguments],
            stdout=full, stderr=subprocess.PIPE, env=environment, text=True, check=False,
        )  # fmt: skip
    told = "error: No space left on device: what was to be written is not, or not whole"
    assert (done.returncode, done.stderr.strip().splitlines()[0]) == (1, told)


def _without_room():
    """Let nothing be written into files, as where a disk is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("command", ["recommend", "log", "runs"])
def test_who_only_asks_needs_no_room_on_the_disk(settings, tuned, command):
    """DB800: SQLite makes files beside the database even for who only reads."""
    asked = ["--m", "64", "--n", "64", "--k", "64"]
    arguments = {"recommend": ["gemm", *asked, "--json"], "log": asked, "runs": []}[command]
    with closing(sqlite3.connect(settings.data_dir / "tilecore.db")) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for beside in settings.data_dir.glob("tilecore.db-*"):
        beside.unlink()  # as it lies where nobody uses it
    done = subprocess.run(
        [sys.executable, "-m", "tuner_service", command, *arguments], text=True, check=False,
        env=os.environ | {"TILECORE_DATA_DIR": str(settings.data_dir)},
        capture_output=True, preexec_fn=_without_room,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    warning = "the database is only read, as it cannot be written"
    assert done.stderr.startswith(warning)
    assert "[DB80" in done.stderr
    if command == "recommend":
        assert json.loads(done.stdout)[0]["source"] == "measured"
    else:
        assert "64" in done.stdout


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "arguments",
    [
        ["recommend", *GEMM, "--top-k", "1"],
        ["recommend", MATMUL, *GEMM[1:], "--set", "dtype=float16", "--hardware", "h100"],
        ["dispatch", "gemm", "--m", "1:4", "--n", "64", "--k", "64"],
    ],
)
def test_what_ships_answers_where_there_can_be_no_database(
    arguments, monkeypatch, tmp_path, caplog
):
    """DB804, whatever was asked, where the folder of data cannot be made."""
    (tmp_path / "file").touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TILECORE_DATA_DIR", str(tmp_path / "file" / "tilecore"))
    with caplog.at_level("WARNING", "tuner_service.wiring"):
        assert run_cli(arguments) == 0
    assert "answering without a database, from what ships" in caplog.text
    assert "[DB804]" in caplog.text
    assert list(temporary.iterdir()) == []
    for changed in (["tune", *GEMM], ["runs"], ["keys", "list"]):
        assert run_cli(changed) == 2
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))  # nowhere else either
    assert run_cli(arguments) == 2


def test_a_database_that_is_there_answers_or_is_told(cli, settings, monkeypatch):
    """What cannot be read is not passed over, nor is a place that somebody named."""
    (settings.data_dir / "tilecore.db").write_text("no database")
    assert "DB805" in cli("recommend", *GEMM)[2]
    monkeypatch.setenv("TILECORE_DATABASE_URL", "sqlite:////proc/none/x.db")
    assert "DB804" in cli("recommend", *GEMM)[2]


def test_a_database_that_is_only_read_takes_no_changes(settings, tuned):
    for how in ("mode=ro", "immutable=1"):
        with closing(sqlite3.connect(settings.data_dir / "tilecore.db")) as file:
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store = SqlStore(Database(settings.url, only_read=how))
        assert store.runs.list()[0].state == "SUCCEEDED"
        with pytest.raises(DatabaseAway, match="readonly"):
            store.keys.create("a", "reader")
        store.database.close()


def _interruptible():
    """Undo what shells do to commands in the background, whose children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_while_modules_are_loaded_shows_no_traceback(tmp_path):
    command = [sys.executable, "-m", "tuner_service", "runs"]
    environment = os.environ | {"TILECORE_DATA_DIR": str(tmp_path)}
    for _ in range(9):  # a busy machine may let it end before it is told to
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True,
            preexec_fn=_interruptible,  # no thread of pytest's holds its locks
        ) as process:  # fmt: skip
            mapped = Path(f"/proc/{process.pid}/maps")
            while "pydantic_core" not in mapped.read_text():  # among the first of what is loaded
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        if process.returncode != 0:
            break
    assert process.returncode in (-signal.SIGINT, 130)
    assert (out, err) == ("", "")


@pytest.mark.few(1)
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_workers_start_is_answered_at_once(tmp_path, times):
    """For as long as they took to start, up to 30 s, nothing was said."""
    log = tmp_path / "coordinator.log"
    environment = os.environ | {"TILECORE_DATA_DIR": str(tmp_path), "TILECORE_EXECUTOR": "local"}
    command = [sys.executable, "-m", "tuner_service", "tune", "gemm", "--m", "64", "--n", "64"]
    with subprocess.Popen(
        [*command, "--k", "64"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=environment, preexec_fn=_interruptible,
    ) as process:  # fmt: skip
        while not log.exists() or "leading" not in log.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        told = [next(x for x in iter(process.stderr.readline, "") if "peaks" not in x)]
        if times > 1:
            process.send_signal(signal.SIGINT)
        told += process.stderr.readlines()
        process.wait()
    assert process.returncode == 130
    assert [line.strip() for line in told] == [
        "stopping the workers (Ctrl-C again: they end by themselves)",
        "stopped; the same command goes on where this one stopped",
    ]


def test_a_pipe_that_closes_early_is_told_by_the_status_alone(tmp_path):
    """It was 1 where typer found out, and 141 elsewhere."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "tuner_service", "--help"], check=False,
        stdout=writer, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TILECORE_DATA_DIR": str(tmp_path)},
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_times_of_the_log_keep_their_offset(cli, tuned):
    """An offset was dropped without a word: the same digits were taken for UTC."""
    begin = tuned.created_at - timedelta(minutes=1)
    for hours in (2, -7):
        there = begin.astimezone(timezone(timedelta(hours=hours))).isoformat(timespec="seconds")
        assert "64x64x64" in cli("log", f"--since={there}")[1]
        assert "no measurement" in cli("log", f"--until={there}")[1]
    assert "64x64x64" in cli("log", "--since", begin.strftime("%Y-%m-%dT%H:%M:%S"))[1]
    assert cli("log", "--since", "0001-01-01T00:00:00+14:00")[0] == 2


@pytest.mark.parametrize("command", ["log", "measurements"])
def test_a_kernel_that_nobody_knows_is_refused_by_the_log(cli, tuned, command):
    """It was as one of which nothing is measured."""
    status, _, err = cli(command, "--kernel", "gem")
    assert (status, "TC501" in err, "did you mean `gemm`" in err) == (2, True, True)
    assert "64x64x64" in cli(command, "--kernel", "gemm")[1]
    for own in ("script:function", f"program:{'0' * 32}"):
        assert "no measurement" in cli(command, "--kernel", own)[1]
