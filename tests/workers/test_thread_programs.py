"""A program written per thread (SIMT) takes the road of all candidates: sent as data, compiled,
shipped, checked and timed, on this CPU, on an emulated GPU and by Ray."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

import tilecore as tilelang
import tilecore.language as T
from recommender.hardware import HardwareProfile, load_profile
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.portable_tracing import portable
from recommender.ports import Measurer, MeasureRequest
from recommender.workload import ProgramSource, Workload, kernel_name
from tilecore.advice import question_of
from tilecore.codegen.nvrtc import load_nvrtc
from tilecore.tile_config import TileConfig
from tuner_service.settings import Settings
from tuner_service.wiring import detected_host, make_measurer
from workers.errors import ClusterUnavailable
from workers.pool import LocalPool, wait_for_all

S = MeasureStatus
ROWS, LENGTH = 6, 200
WAIT_S = 600.0
GPU = load_profile("emulated h200")


@tilelang.jit(out_idx=-1)
def row_sums(M, N, threads=64, block_N=64):
    """Each block sums a row: its threads some elements each, then in shared memory and a warp.

    Right where the steps along a row are as long as there are threads.
    """

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as b:
            tx = T.get_thread_binding(0)
            shared = T.alloc_shared((threads,), "float32")
            acc = T.alloc_var("float32", init=0.0)
            for k in T.serial(T.ceildiv(N, block_N)):
                if k * block_N + tx < N:
                    acc = acc + X[b, k * block_N + tx]
            shared[tx] = acc
            T.sync_threads()
            if tx < 32:
                total = T.alloc_var("float32", init=0.0)
                for k in T.serial(threads // 32):
                    total = total + shared[k * 32 + tx]
                for step in T.serial(5):
                    total = total + T.shfl_xor(total, 16 >> step)
                if tx == 0:
                    Y[b] = total

    return main


CONFIGS = {
    "two warps": TileConfig.of(threads=64, block_N=64),
    "four warps": TileConfig.of(threads=128, block_N=128),
    "half of the elements": TileConfig.of(threads=64, block_N=128),
}


def requests(hardware: HardwareProfile, protocol: Protocol) -> Sequence[MeasureRequest]:
    sizes = {"M": ROWS, "N": LENGTH}
    data = portable(question_of(row_sums, (), sizes), hardware)
    source = ProgramSource(data.to_bytes(), CONFIGS["two warps"])
    workload = Workload(kernel_name(data.digest), tuple(sizes.items()), source=source)
    return [
        MeasureRequest(token=token, workload=workload, config=config, protocol=protocol)
        for token, config in CONFIGS.items()
    ]


def measured(
    pool: Measurer, hardware: HardwareProfile, protocol: Protocol
) -> dict[str, Measurement]:
    """Return what a pool finds, after looking at what is the same everywhere."""
    found = wait_for_all(pool, requests(hardware, protocol), WAIT_S)
    for token in ("two warps", "four warps"):
        m = found[token]
        assert m.status in (S.OK, S.UNSTABLE), m.detail  # as busy as the machine is
        if m.status is S.OK:
            assert m.time_s is not None
            assert m.time_s > 0
            assert 0 <= (m.max_error or 0) <= 1
        assert m.hardware == hardware
        assert kernel_name(m.program_digest) == m.workload.kernel
        assert m.compile_s is not None
    assert found["half of the elements"].status is S.WRONG_RESULT, found[
        "half of the elements"
    ].detail
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("protocol", list(Protocol))
def test_on_the_cpu(tmp_path: Path, protocol: Protocol) -> None:
    with LocalPool(detected_host(), artifact_dir=tmp_path, compile_workers=1) as pool:
        measured(pool, detected_host(), protocol)


@pytest.mark.exhaustive
@pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
def test_on_an_emulated_gpu(tmp_path: Path) -> None:
    with LocalPool(GPU, artifact_dir=tmp_path, compile_workers=1) as pool:
        found = measured(pool, GPU, Protocol.SCREEN)
    for token in ("two warps", "four warps"):
        assert found[token].metrics["is_emulated"] == 1
        assert found[token].metrics["registers"] > 0  # NVRTC's code for the device is there, too


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["host", "emulated h200"])
def test_by_ray(tmp_path: Path, name: str) -> None:
    ray = pytest.importorskip("ray")
    if name != "host" and load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    hardware = detected_host() if name == "host" else GPU
    settings = Settings(data_dir=tmp_path, executor="ray")
    try:
        pool = make_measurer(settings, hardware, 1, "threads")
    except ClusterUnavailable as error:  # Ray's own start-up limits, on a starved machine
        pytest.skip(f"no local Ray can be started here: {error.message}")
    try:
        with closing(pool):
            for protocol in Protocol:
                found = measured(pool, hardware, protocol)
                assert {m.worker.partition(":")[0] for m in found.values()} == {"ray"}
    finally:
        ray.shutdown()
