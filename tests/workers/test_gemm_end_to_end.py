"""Real candidates: traced, compiled, loaded, checked and timed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.ports import MeasureRequest
from recommender.workload import Workload
from tilecore import kernels
from tilecore.tile_config import TileConfig
from workers.host import detect
from workers.outcome import Compiled
from workers.pool import LocalPool, wait_for_all
from workers.shipping import Shipped, pack, unpack

GEMM = kernels.get("gemm")
WORKLOAD = Workload.of("gemm", GEMM.parse_problem({"m": 130, "n": 200, "k": 257}))
CONFIGS = {
    "default": GEMM.default_config(),
    "tuned": TileConfig.of(block_M=64, block_N=96, block_K=128, micro_m=6, micro_n=1),
    "unknown knob": TileConfig.of(block_Q=1),
    "too many registers": TileConfig.of(micro_m=14, micro_n=4),
}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPool]:
    with LocalPool(detect(), artifact_dir=tmp_path_factory.mktemp("artifacts")) as made:
        yield made


def requests(protocol: Protocol) -> list[MeasureRequest]:
    return [
        MeasureRequest(token=name, workload=WORKLOAD, config=config, protocol=protocol)
        for name, config in CONFIGS.items()
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("protocol", list(Protocol))
def test_gemm_candidates_through_the_pool(pool: LocalPool, protocol: Protocol) -> None:
    found = wait_for_all(pool, requests(protocol), 240)
    for name in ("default", "tuned"):
        measurement: Measurement = found[name]
        if measurement.status is MeasureStatus.UNSTABLE:
            continue  # a busy machine; that the check passed is what counts here
        assert measurement.status is MeasureStatus.OK, measurement.detail
        assert 0 < (measurement.max_error or 0) <= 1
        assert bool(measurement.reference_times_s) == (protocol is Protocol.CONFIRM)
        assert measurement.program_digest == GEMM.program_digest(dict(WORKLOAD.problem))
        assert measurement.metrics["code_bytes"] > 0
    for name in ("unknown knob", "too many registers"):
        assert found[name].status is MeasureStatus.INVALID_CONFIG
        assert "TC303" in found[name].detail


def test_an_artifact_travels_whole(tmp_path: Path) -> None:
    there, here = tmp_path / "there" / "ab" / "abc", tmp_path / "here"
    there.mkdir(parents=True)
    (there / "kernel.so").write_bytes(b"\x7fELF")
    (there / "manifest.json").write_text("{}")
    shipped = pack(Compiled(path=str(there), digest="d", compile_s=1.0))
    assert isinstance(shipped, Shipped)
    assert unpack(shipped, here).path == str(there)  # the same machine: nothing to do
    (there / "kernel.so").unlink()
    (there / "manifest.json").unlink()
    there.rmdir()
    arrived = Path(unpack(shipped, here).path)
    assert arrived.parent == here
    assert {p.name: p.read_bytes() for p in arrived.iterdir()} == {
        "kernel.so": b"\x7fELF",
        "manifest.json": b"{}",
    }
