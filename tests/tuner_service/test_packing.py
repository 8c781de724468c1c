"""tilecore pack, its run.py and tilecore import: the way to a device that nothing can reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from db.records import MeasurementQuery
from recommender.gpu.model import DEFAULT_GPU_CONSTANTS, gpu_terms
from recommender.hardware import load_profile
from recommender.measurement import MeasureStatus, Protocol
from tilecore.codegen.nvrtc import load_nvrtc
from tuner_service.cli.app import run_cli

pytestmark = pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
DEVICE = load_profile("emulated a100")
RECORDED = Path(__file__).parents[2] / "benchmarks/data/h200/c5_2026-11-26.jsonl.gz"
WORKLOADS = "gemm m=64 n=48 k=32 dtype=float16 out_dtype=float16\nsoftmax m=4 n=64\n"


@pytest.fixture
def cli(settings, monkeypatch, capfd):
    monkeypatch.setenv("TILECORE_DATA_DIR", str(settings.data_dir))
    monkeypatch.setenv("TILECORE_COMPILE_WORKERS", "1")

    def run(*arguments):
        status = run_cli([str(a) for a in arguments])
        shown = capfd.readouterr()
        return status, shown.out, shown.err

    return run


def run_pack(folder: Path, *options: object) -> str:
    """Run a pack as one does on the device: nothing of ours is on the path but the pack."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, str(folder / "run.py"), *map(str, options)]
    done = subprocess.run(
        command, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_a_pack_goes_to_a_device_and_its_results_come_back(cli, store, tmp_path):
    listed, folder, results = tmp_path / "w.txt", tmp_path / "pack", tmp_path / "results.jsonl"
    listed.write_text(WORKLOADS)
    status, shown, error = cli(
        "pack", folder, "--file", listed, "--target", "emulated a100", "--configs", 2
    )
    assert status == 0, error
    assert "2 workloads" in shown
    shown = run_pack(folder, "--results", results, "--confirm", 1, "--chunk", 2)
    assert "0 candidates left" in shown
    first = results.read_text()
    assert "0 candidates left" in run_pack(folder, "--results", results, "--confirm", 1)
    again = results.read_text().removeprefix(first)
    assert len(again.splitlines()) == 1  # a header: nothing was measured twice
    status, shown, error = cli("import", results)
    assert status == 0, error
    assert "known already" in shown
    found = store.page(MeasurementQuery(hardware_key=DEVICE.key), limit=100).items
    measured = [r.measurement for r in found]
    assert len(measured) == len(first.splitlines()) - 1
    assert {m.status for m in measured} == {MeasureStatus.OK}
    assert {m.hardware.name for m in measured} == {"emulated NVIDIA A100-SXM4-40GB"}
    screened = [m for m in measured if m.protocol is Protocol.SCREEN]
    assert sorted(m.workload.kernel for m in screened) == ["gemm"] * 2 + ["softmax"] * 2
    assert {m.workload.kernel for m in measured if m.protocol is Protocol.CONFIRM} == {
        "gemm", "softmax",
    }  # fmt: skip
    assert all(m.metrics["registers"] > 0 and m.worker.startswith("pack:") for m in measured)
    status, shown, _ = cli("import", results)
    assert "0 measurements stored" in shown
    assert store.count_measurements() == len(measured)


@pytest.mark.exhaustive
def test_what_comes_back_teaches_a_cost_model_of_its_gpus(cli, store, monkeypatch):
    """Beside formulas as they were before anything was measured: no model beats the fitted."""
    by_hand = replace(
        DEFAULT_GPU_CONSTANTS, tensor_efficiency=0.92, work_efficiency=0.5, special_operations=6.0,
        box_latency_s=0.7e-6, group_overlap=0.0, own_overlap=0.0, step_clocks=60.0,
        block_clocks=1500.0, memory_efficiency=0.88, issue_clocks=0.0,
    )  # fmt: skip
    monkeypatch.setattr("recommender.gpu.model.gpu_terms", partial(gpu_terms, constants=by_hand))
    status, shown, error = cli("import", RECORDED)
    assert status == 0, error
    assert "cost model of attention for sm_90a: promoted: 0.9" in shown
    assert "cost model of gemm for sm_90a: " in shown
    assert store.active_model("attention", "sm_90a") is not None
    assert store.active_model("attention", "cpu") is None
    sizes = {"batch": 3, "heads": 24, "kv_heads": 8, "seq_q": 3072, "seq_kv": 3072, "dim": 128}
    given = [x for k, v in sizes.items() for x in ("--set", f"{k}={v}")]
    question = ("recommend", "attention", *given, "--set", "dtype=float16", "--hardware")
    status, shown, error = cli(*question, "h200", "--json")
    assert status == 0, error
    assert "predicted" in {r["source"] for r in json.loads(shown)}
    status, shown, _ = cli("model", "list")
    assert "sm_90a" in shown


BAD = {
    "no problem": ([], "SV901"),
    "problem and file": (["--set", "m=1", "--file", "w.txt"], "SV901"),
    "no GPU": (["--set", "m=1", "--target", "host"], "SV901"),
    "an AMD GPU": (["--set", "m=1", "--target", "mi300x"], "SV901"),
    "an unknown device": (["--set", "m=1", "--target", "z80"], "RC601"),
    "too large to emulate": (
        ["--set", "m=4096", "--set", "n=4096", "--set", "k=4096", "--target", "emulated h200"],
        "SV930",
    ),
    "a problem that fits no GPU": (
        [
            "--kernel",
            "attention",
            "--set",
            "batch=1",
            "--set",
            "heads=1",
            "--set",
            "kv_heads=1",
            "--set",
            "seq_q=64",
            "--set",
            "seq_kv=64",
            "--set",
            "dim=65536",
        ],
        "RC602",
    ),
    "no legal problem": (["--set", "m=1"], "TC502"),
    "no file": (["--file", "none.txt"], "SV915"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_packed_is_told(cli, tmp_path, name):
    options, code = BAD[name]
    status, shown, error = cli("pack", tmp_path / "pack", *options)
    assert (status, shown) == (2, "")
    assert code in error
    assert not (tmp_path / "pack").exists()


def test_a_folder_that_cannot_be_is_told_before_anything_is_compiled(cli, tmp_path):
    (tmp_path / "pack").touch()
    status, shown, error = cli(
        "pack", tmp_path / "pack", "--set", "m=64", "--set", "n=64", "--set", "k=64"
    )
    assert (status, shown) == (2, "")
    assert "expected a folder, found a file" in error


def test_of_an_empty_file_nothing_is_read_and_that_is_told(cli, tmp_path):
    (tmp_path / "none.jsonl").touch()
    status, shown, _ = cli("import", tmp_path / "none.jsonl")
    assert status == 0
    assert f"{tmp_path / 'none.jsonl'}: no result in it" in shown
    assert "0 measurements stored" in shown


def test_of_a_file_with_a_fault_nothing_is_stored(cli, store, tmp_path):
    path = tmp_path / "results.jsonl"
    header = {
        "schema": 1, "hardware": {"name": DEVICE.name, "key": DEVICE.key}, "worker": "",
        "toolchain": {"tilecore": "", "tvm": "", "llvm": ""},
    }  # fmt: skip
    path.write_text(json.dumps({"header": header}) + "\n{}\n")
    status, _, error = cli("import", path)
    assert status == 2
    assert "WK709" in error
    assert "line 2" in error
    assert store.count_measurements() == 0
