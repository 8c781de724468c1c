"""GPU candidates on the road of all candidates: compiled, shipped, checked, timed, attributed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recommender.measurement import MeasureStatus, Protocol
from recommender.ports import MeasureRequest
from recommender.workload import Workload
from tests.workers.emulated_faults import (
    FAULTS,
    HARDWARE,
    WORKLOAD,
    FaultyToolbox,
    StickyBench,
    config,
)
from tilecore import kernels
from tilecore.codegen.nvrtc import load_nvrtc
from tilecore.tile_config import TileConfig
from workers.measure_worker import MeasureWorker
from workers.outcome import Compiled, Failure, Timed
from workers.pool import LocalPool, wait_for_all
from workers.sandbox import Zygote

S = MeasureStatus
LINEAR = {"batch": 1, "heads": 1, "seq_len": 40, "dim": 32, "dim_v": 32}
WAIT_S = 900.0  # only reached when something is lost
EXPECTED = {
    "deadlock": (S.LAUNCH_ERROR, "threads 0 to 63: __syncthreads"),
    "race": (S.LAUNCH_ERROR, "which cp.async of thread 0 writes; no barrier is between them"),
    "unwritten": (S.WRONG_RESULT, "4096 never written"),
    "crash": (S.LAUNCH_ERROR, "SIGSEGV"),
}
needs_nvrtc = pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPool]:
    faults = tuple((config(i + 1).key, fault) for i, fault in enumerate(FAULTS))
    with LocalPool(
        HARDWARE, artifact_dir=tmp_path_factory.mktemp("artifacts"), compile_workers=1,
        toolbox=FaultyToolbox(faults=faults),
    ) as made:  # fmt: skip
        yield made


def request(token: str, wanted: TileConfig, protocol: Protocol) -> MeasureRequest:
    return MeasureRequest(token=token, workload=WORKLOAD, config=wanted, protocol=protocol)


@pytest.mark.exhaustive
@needs_nvrtc
def test_each_fault_has_its_status_and_the_others_are_fine(pool: LocalPool) -> None:
    good = request("good", config(0), Protocol.SCREEN)
    faulty = [request(f, config(i + 1), Protocol.SCREEN) for i, f in enumerate(FAULTS)]
    after = request("after", config(5), Protocol.SCREEN)
    found = wait_for_all(pool, [good, *faulty, after], WAIT_S)
    for fault, (status, detail) in EXPECTED.items():
        assert found[fault].status is status, (fault, found[fault].detail)
        assert detail in found[fault].detail, found[fault].detail
    for token in ("good", "after"):
        m = found[token]
        assert m.status is S.OK, m.detail
        assert m.metrics["is_emulated"] == 1
        assert m.metrics["registers"] > 0
        assert 0 < m.max_error <= 1
        assert (m.hardware, m.threads) == (HARDWARE, HARDWARE.cores)


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("name", ["gemm", "linear_attention"])
def test_products_of_float32_are_those_of_tensor_cores(pool: LocalPool, name: str) -> None:
    definition = kernels.get(name)
    problem = {"m": 32, "n": 16, "k": 48} if name == "gemm" else LINEAR
    wanted = MeasureRequest(
        token="a", workload=Workload.of(name, definition.parse_problem(problem)),
        config=definition.default_config("cuda"), protocol=Protocol.SCREEN,
    )  # fmt: skip
    found = wait_for_all(pool, [wanted], WAIT_S)["a"]
    assert found.status is S.OK, found.detail


LIBRARY = {
    "dequant_gemm": {"m": 20, "n": 64, "k": 128},
    "decode_attention": {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 1, "seq_kv": 200,
                         "dim": 64, "dtype": "bfloat16"},
    "attention_backward": {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 64, "seq_kv": 64,
                           "dim": 32, "dtype": "bfloat16"},
}  # fmt: skip


@pytest.mark.exhaustive
@needs_nvrtc
def test_library_kernels_go_the_road_of_devices(pool: LocalPool) -> None:
    wanted = [
        MeasureRequest(
            token=name, workload=Workload.of(name, kernels.get(name).parse_problem(problem)),
            config=kernels.get(name).default_config("cuda"), protocol=Protocol.SCREEN,
        )
        for name, problem in LIBRARY.items()
    ]  # fmt: skip
    found = wait_for_all(pool, wanted, WAIT_S)
    assert {n: (m.status, m.detail) for n, m in found.items()} == dict.fromkeys(LIBRARY, (S.OK, ""))
    for name, m in found.items():
        own = kernels.get(name).on("cuda")
        assert m.program_digest == own.program_digest(dict(m.workload.problem)), name


@pytest.mark.exhaustive
@needs_nvrtc
def test_finalists_are_confirmed_without_those_that_fail(pool: LocalPool) -> None:
    wanted = {"a": config(0), "b": config(5), "wrong": config(3), "crash": config(4)}
    found = wait_for_all(pool, [request(t, c, Protocol.CONFIRM) for t, c in wanted.items()], WAIT_S)
    assert {t: m.status for t, m in found.items()} == {
        "a": S.OK, "b": S.OK, "wrong": S.WRONG_RESULT, "crash": S.LAUNCH_ERROR,
    }  # fmt: skip
    assert found["a"].reference_times_s == ()  # torch on this CPU is no rival of a GPU


def test_a_process_does_not_keep_all_that_was_ever_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.measure_worker.RENEWED_AFTER", 2)
    zygote = Zygote("device", ["tests.workers.emulated_faults"])
    worker = MeasureWorker(
        zygote, FaultyToolbox(), cores=1, timeout_s=20.0, lock=tmp_path / "lock",
        bench=StickyBench, is_device=True,
    )  # fmt: skip
    try:
        found = [
            worker.screen(WORKLOAD, Compiled(path=n, digest=n, compile_s=0.0)) for n in "abcde"
        ]
        assert [type(outcome) for outcome in found] == [Timed] * 5
        assert worker._sandbox.starts == 3
    finally:
        worker.close()
        zygote.close()


def test_a_candidate_does_not_pay_for_what_another_one_did(tmp_path: Path) -> None:
    zygote = Zygote("sticky device", ["tests.workers.emulated_faults"])
    worker = MeasureWorker(
        zygote, FaultyToolbox(), cores=1, timeout_s=20.0, lock=tmp_path / "lock",
        bench=StickyBench, is_device=True,
    )  # fmt: skip

    def candidate(name: str) -> Compiled:
        return Compiled(path=name, digest=name, compile_s=0.0)

    names = ["fine", "poison", "innocent", "guilty", "innocent too"]
    try:
        found = {name: worker.screen(WORKLOAD, candidate(name)) for name in names}
        confirmed = worker.confirm(WORKLOAD, [candidate(n) for n in ("fine", "guilty", "last")])
    finally:
        worker.close()
        zygote.close()
    assert {n for n, outcome in found.items() if isinstance(outcome, Failure)} == {"guilty"}
    assert "illegal memory access" in found["guilty"].detail
    assert [type(outcome) for outcome in confirmed] == [Timed, Failure, Timed]
