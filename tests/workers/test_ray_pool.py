from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from recommender.measurement import MeasureStatus
from recommender.ports import Measurer
from tests.workers.fault_toolbox import HARDWARE, FaultToolbox
from tests.workers.measurer_contract import WAIT_S, MeasurerContract, screen
from workers.errors import ClusterUnavailable, StaleEpoch
from workers.pool import wait_for_all
from workers.ray_cluster import retire_older, start_local
from workers.ray_pool import RayPool


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    previous = signal.getsignal(signal.SIGTERM)
    try:
        assert start_local(HARDWARE)
    except ClusterUnavailable as error:  # Ray's own start-up limits, on a starved machine
        pytest.skip(f"no local Ray can be started here: {error.message}")
    assert signal.getsignal(signal.SIGTERM) is previous
    yield
    ray.shutdown()


def make_pool(path: Path, epoch: int) -> RayPool:
    return RayPool(
        HARDWARE,
        artifact_dir=path,
        epoch=epoch,
        compile_timeout_s=15.0,
        run_timeout_s=15.0,
        toolbox=FaultToolbox(),
    )


class TestRayPool(MeasurerContract):
    @pytest.fixture(scope="class")
    def measurer(
        self, cluster: None, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Measurer]:
        with make_pool(tmp_path_factory.mktemp("artifacts"), epoch=1) as pool:
            yield pool


def test_a_killed_meter_is_a_lost_worker_and_restarts(cluster: None, tmp_path: Path) -> None:
    with make_pool(tmp_path, epoch=2) as pool:
        wait_for_all(pool, [screen("ok")], WAIT_S)
        pool.submit([screen("hang", "hang")])
        deadline = time.monotonic() + WAIT_S
        while len(meters := _meters()) != 1:
            assert time.monotonic() < deadline, f"one meter is to run, found {meters}"
            time.sleep(0.05)
        [meter] = meters
        while not (children := meter.children(recursive=True)):
            assert time.monotonic() < deadline, "the candidate never started"
            time.sleep(0.05)
        meter.kill()
        [(_, lost)] = pool.collect(WAIT_S)
        assert lost.status is MeasureStatus.WORKER_LOST
        assert wait_for_all(pool, [screen("next")], WAIT_S)["next"].status is MeasureStatus.OK
        _, alive = psutil.wait_procs(children, timeout=WAIT_S)
        assert not alive, "the candidate's process outlived its actor"


def test_a_new_leader_kills_the_actors_of_the_old_one(cluster: None, tmp_path: Path) -> None:
    old = make_pool(tmp_path, epoch=10)
    old.submit([screen("hang", "hang")])
    with make_pool(tmp_path, epoch=11) as new:
        assert wait_for_all(new, [screen("a")], WAIT_S)["a"].status is MeasureStatus.OK
        with pytest.raises(StaleEpoch, match=r"WK705.*10.*11"):
            retire_older(10)
    old.close()


def test_importing_workers_and_the_local_pool_loads_neither_ray_nor_a_compiler() -> None:
    code = (
        "import sys, workers, workers.pool, workers.host, workers.toolchain\n"
        "workers.toolchain.current_toolchain()\n"
        "print([m for m in ('ray', 'tvm', 'torch') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def _meters() -> list[psutil.Process]:
    """Return the meters of this test's own cluster: other tests run beside it."""
    ours = psutil.Process().children(recursive=True)
    return [p for p in ours if "MeasureActor" in _title(p)]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) if process.pid != os.getpid() else ""
    except psutil.Error:
        return ""
