"""Packs and results on disk: what is written is read, what is damaged is told."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from recommender.hardware import load_profile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from tests.workers.emulated_faults import HARDWARE, WORKLOAD, config
from workers.device_toolbox import DeviceToolbox
from workers.devices import gpu_devices
from workers.errors import DeviceMissing, InvalidPack
from workers.measure_pack import Plan, device_for, measure
from workers.pack_results import Header, ResultLog, read_results
from workers.packs import Pack, PackedCandidate, PackWriter

TOOLCHAIN = Toolchain(tilecore="t", tvm="v", llvm="l")
LIMIT = 16 << 20


def candidates(count: int = 2) -> list[PackedCandidate]:
    return [
        PackedCandidate(
            config=config(i), purpose="search", predicted_s=1e-5, digest=f"d{i}", compile_s=0.1,
            metrics={"registers": 40.0},
        )
        for i in range(count)
    ]  # fmt: skip


@pytest.fixture
def artifacts(tmp_path: Path) -> dict[str, Path]:
    made = {}
    for name in ("d0", "d1"):
        place = tmp_path / "store" / name
        place.mkdir(parents=True)
        for file in ("manifest.json", "kernel.cubin", "kernel.cu", "program.txt"):
            (place / file).write_text(f"{name} {file}")
        made[name] = place
    return made


def write(folder: Path, artifacts: dict[str, Path], limit: int = LIMIT) -> PackWriter:
    writer = PackWriter(folder, HARDWARE, TOOLCHAIN, limit)
    writer.add(WORKLOAD, "p" * 32, candidates(), artifacts)
    return writer


def test_a_pack_is_read_as_it_was_written(tmp_path, artifacts):
    write(tmp_path / "pack", artifacts).close()
    pack = Pack.open(tmp_path / "pack")
    assert (pack.hardware, pack.toolchain) == (HARDWARE, TOOLCHAIN)
    (packed,) = pack.workloads
    assert (packed.workload, packed.program_digest) == (WORKLOAD, "p" * 32)
    assert pack.unpack(packed, tmp_path / "place") == candidates()
    unpacked = sorted(p.name for p in (tmp_path / "place" / "d1").iterdir())
    assert unpacked == ["kernel.cubin", "manifest.json"]  # no texts: a device needs none
    assert Pack.open(tmp_path / "pack").id == pack.id


def test_what_is_more_than_a_pack_holds_becomes_another_one(tmp_path, artifacts):
    once = write(tmp_path / "one", artifacts)
    once.close()
    kernels = once.written[0][2] - (tmp_path / "one" / "pack.json").stat().st_size
    writer = write(tmp_path / "two", artifacts, kernels + 64)
    for m in (128, 192):
        problem = dict(WORKLOAD.problem) | {"m": m}
        writer.add(WORKLOAD.of("gemm", problem), "p" * 32, candidates(), artifacts)
    writer.close()
    assert [place.name for place, _, _ in writer.written] == ["two", "two-2", "two-3"]
    found = [dict(Pack.open(p).workloads[0].workload.problem)["m"] for p, _, _ in writer.written]
    assert found == [64, 128, 192]
    with pytest.raises(InvalidPack, match=r"WK709.*at most 0 MiB.*alone"):
        write(tmp_path / "three", artifacts, 1000)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("not to be removed")
    with pytest.raises(InvalidPack, match=r"WK709.*nothing but a pack, found thesis"):
        write(tmp_path / "mine", artifacts)
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.parametrize("mine", ["results.jsonl", "notes/a.txt"])
def test_what_lies_beside_an_older_pack_is_not_removed_with_it(tmp_path, artifacts, mine):
    """Once the whole folder went: results of the older pack, or all beside somebody's code.zip."""
    folder = tmp_path / "pack"
    write(folder, artifacts).close()
    (folder / mine).parent.mkdir(exist_ok=True)
    (folder / mine).write_text("not to be removed")
    with pytest.raises(InvalidPack, match=r"WK709.*found (results|notes)"):
        write(folder, artifacts)
    assert (folder / mine).exists()
    assert Pack.open(folder).workloads


def test_a_pack_takes_the_place_of_an_older_one(tmp_path, artifacts):
    write(tmp_path / "pack", artifacts).close()
    (tmp_path / "pack" / "001-softmax.tar.xz").write_text("of an older pack")
    write(tmp_path / "pack", artifacts).close()
    assert not (tmp_path / "pack" / "001-softmax.tar.xz").exists()
    assert Pack.open(tmp_path / "pack").workloads


def test_a_file_is_no_folder(tmp_path, artifacts):
    (tmp_path / "pack").touch()
    with pytest.raises(InvalidPack, match=r"WK709.*expected a folder") as caught:
        write(tmp_path / "pack", artifacts)
    assert caught.value.hint == "name another folder"


def test_damaged_packs_are_told(tmp_path, artifacts):
    write(tmp_path / "pack", artifacts).close()
    pack = Pack.open(tmp_path / "pack")
    archive = tmp_path / "pack" / pack.workloads[0].archive
    archive.write_bytes(archive.read_bytes()[:200])
    with pytest.raises(InvalidPack, match=r"WK709.*damaged"):
        pack.unpack(pack.workloads[0], tmp_path / "place")
    head = json.loads((tmp_path / "pack" / "pack.json").read_text())
    other_key = {"name": HARDWARE.name, "key": "0" * 32}
    other_kernel = {"workload": {"kernel": "conv"}, "program_digest": "", "archive": ""}
    for change in ({"schema": 9}, {"hardware": other_key}, {"workloads": [other_kernel]}, None):
        text = "{" if change is None else json.dumps(head | change)
        (tmp_path / "pack" / "pack.json").write_text(text)
        with pytest.raises(InvalidPack, match="WK709"):
            Pack.open(tmp_path / "pack")
    shutil.rmtree(tmp_path / "pack")
    with pytest.raises(InvalidPack, match=r"WK709.*No such file"):
        Pack.open(tmp_path / "pack")


@pytest.mark.skipif(bool(gpu_devices()), reason="this machine has a GPU")
def test_a_pack_wants_its_device(tmp_path, artifacts):
    write(tmp_path / "pack", artifacts).close()
    pack = Pack.open(tmp_path / "pack")
    assert device_for(pack) == HARDWARE
    with pytest.raises(DeviceMissing, match=r"WK708.*sm_90a.*NVIDIA H200.*no NVIDIA device"):
        device_for(replace(pack, hardware=load_profile("h200")))


def measurement(**changes: object) -> Measurement:
    fields: dict[str, object] = {
        "workload": WORKLOAD, "config": config(0), "hardware": HARDWARE, "toolchain": TOOLCHAIN,
        "program_digest": "p" * 32, "protocol": Protocol.SCREEN, "threads": 108,
        "status": MeasureStatus.OK, "times_s": (1e-5, 1.25e-5), "reference_times_s": (2e-5,),
        "compile_s": 0.1, "max_error": 0.5, "worker": "pack:1",
        "driver": "NVIDIA 580.1",
        "measured_at": datetime(2026, 11, 22, 12, 0, 0, 123456, tzinfo=UTC),
        "metrics": {"registers": 40.0, "sm_clock_hz": 1.98e9},
    }  # fmt: skip
    return Measurement(**(fields | changes))


HEADER = Header(HARDWARE, TOOLCHAIN, "pack:1")


@pytest.mark.parametrize("packed", [False, True])
def test_results_are_read_as_they_were_written(tmp_path, packed):
    path = tmp_path / "results.jsonl"
    log = ResultLog(path, HEADER, {"torch": "2"})
    failed = {"status": MeasureStatus.WRONG_RESULT, "times_s": (), "reference_times_s": ()}
    written = [
        measurement(),
        measurement(config=config(1), max_error=None, compile_s=None, detail="ü off", **failed),
    ]
    for m in written:
        log.add(m)
    log.close()
    if packed:
        text = path.read_bytes()
        path = tmp_path / "results.jsonl.gz"
        path.write_bytes(gzip.compress(text))
    assert list(read_results(path)) == written


def test_a_torn_line_is_nobody_s_result_and_the_file_goes_on(tmp_path):
    path = tmp_path / "results.jsonl"
    log = ResultLog(path, HEADER, {})
    log.add(measurement())
    log.close()
    with path.open("a") as file:
        file.write('{"workload": {"kern')
    assert list(read_results(path)) == [measurement()]
    log = ResultLog(path, HEADER, {})
    assert list(log.known.values()) == [measurement()]
    log.add(measurement(config=config(1)))
    log.close()
    assert [m.config for m in read_results(path)] == [config(0), config(1)]


LINES = {
    "no JSON": "{",
    "no object": "[1]",
    "no header": '{"workload": {}}',
    "a field is missing": '{"header": {"schema": 1}}',
    "another version": '{"header": {"schema": 2}}',
    "nobody's device": '{"header": {"schema": 1, "hardware": {"name": "z80", "key": ""}, '
    '"toolchain": {"tilecore": "", "tvm": "", "llvm": ""}, "worker": ""}}',
}


@pytest.mark.parametrize("name", LINES)
def test_lines_that_are_none_of_ours_are_told(tmp_path, name):
    path = tmp_path / "results.jsonl"
    path.write_text(LINES[name] + "\n")
    with pytest.raises(InvalidPack, match=r"WK709.*results.jsonl: line 1: "):
        list(read_results(path))


CHANGES = {
    "times of a failure": {"status": "WRONG_RESULT"},
    "negative times": {"times_s": [-1.0]},
    "an unknown status": {"status": "FINE"},
    "an unknown kernel": {"workload": {"kernel": "conv", "problem": {}}},
    "a problem without a field": {"workload": {"kernel": "gemm", "problem": {"m": 1}}},
    "a config of lists": {"config": {"block_M": [1]}},
    "a time without a zone": {"measured_at": "2026-11-22T12:00:00"},
    "text for numbers": {"metrics": {"registers": "many"}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_results_that_cannot_be_are_told(tmp_path, name):
    path = tmp_path / "results.jsonl"
    log = ResultLog(path, HEADER, {})
    log.add(measurement())
    log.close()
    head, result = path.read_text().splitlines()
    path.write_text(f"{head}\n{json.dumps(json.loads(result) | CHANGES[name])}\n")
    with pytest.raises(InvalidPack, match=r"WK709.*line 2: "):
        list(read_results(path))


def test_a_missing_file_and_a_damaged_archive_are_told(tmp_path):
    with pytest.raises(InvalidPack, match="WK709"):
        list(read_results(tmp_path / "none.jsonl"))
    (tmp_path / "r.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(InvalidPack, match="WK709"):
        list(read_results(tmp_path / "r.jsonl.gz"))
    with pytest.raises(InvalidPack, match="WK709"):
        measure(tmp_path, tmp_path / "r.jsonl", Plan())


def test_measuring_needs_neither_tvm_nor_a_database():
    absent = ("tvm", "tvm_ffi", "ray", "sqlalchemy", "fastapi", "pydantic", "typer", "psutil")
    modules = (*DeviceToolbox(load_profile("h200")).run_modules, "workers.measure_pack")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r}))\n"
        f"import importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
        "from workers.rig import Rig, toolbox_of\nprint('all there')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "all there", done.stderr
