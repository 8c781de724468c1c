from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from db.migrate import open_database
from db.store import SqlStore
from recommender.hardware import load_profile
from recommender.measurement import MeasureStatus
from recommender.ports import Measurer
from tests.workers.emulated_faults import StickyDevice
from tests.workers.fault_toolbox import HARDWARE, FaultToolbox
from tests.workers.measurer_contract import WAIT_S, MeasurerContract, orphans, screen
from tests.workers.ray_nodes import node_beside
from tuner_service.coordinator.cluster_workplace import ClusterWorkplace
from tuner_service.coordinator.run_driver import Limits
from workers.errors import ClusterUnavailable, StaleEpoch
from workers.measure_bench import MeasureBench
from workers.offer import resource_name
from workers.pool import wait_for_all
from workers.ray_cluster import _has_node, nodes, retire_older, start_local
from workers.ray_pool import RayPool
from workers.toolchain import current_toolchain


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


def make_pool(
    path: Path, epoch: int, installation: str = "one", compile_workers: int = 1,
    run_timeout_s: float = 6.0,
) -> RayPool:  # fmt: skip
    return RayPool(
        HARDWARE,
        artifact_dir=path,
        epoch=epoch,
        installation=installation,
        compile_workers=compile_workers,
        compile_timeout_s=6.0,
        run_timeout_s=run_timeout_s,
        toolbox=FaultToolbox(),
    )


class TestRayPool(MeasurerContract):
    @pytest.fixture(scope="class")
    def measurer(
        self, cluster: None, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Measurer]:
        with make_pool(tmp_path_factory.mktemp("artifacts"), 1, compile_workers=2) as pool:
            yield pool

    @pytest.mark.exhaustive
    def test_each_fault_has_its_status_and_the_next_candidate_is_fine(
        self, measurer: Measurer
    ) -> None:
        super().test_each_fault_has_its_status_and_the_next_candidate_is_fine(measurer)


@pytest.mark.exhaustive
def test_a_killed_meter_is_a_lost_worker_and_restarts(cluster: None, tmp_path: Path) -> None:
    with make_pool(tmp_path, epoch=2) as pool:
        wait_for_all(pool, [screen("ok")], WAIT_S)
        pool.submit([screen("hang", "hang")])
        [meter] = _await_meters(1)
        deadline = time.monotonic() + WAIT_S
        while not (children := meter.children(recursive=True)):
            assert time.monotonic() < deadline, "the candidate never started"
            time.sleep(0.05)
        meter.kill()
        [(_, lost)] = pool.collect(WAIT_S)
        assert lost.status is MeasureStatus.WORKER_LOST
        assert wait_for_all(pool, [screen("next")], WAIT_S)["next"].status is MeasureStatus.OK
        _, alive = psutil.wait_procs(children, timeout=WAIT_S)
        assert not alive, "the candidate's process outlived its actor"


@pytest.mark.exhaustive
def test_a_new_leader_kills_the_actors_of_the_old_one(cluster: None, tmp_path: Path) -> None:
    old = make_pool(tmp_path, epoch=10)
    old.submit([screen("hang", "hang")])
    with make_pool(tmp_path, epoch=11) as new:
        assert wait_for_all(new, [screen("a")], WAIT_S)["a"].status is MeasureStatus.OK
        with pytest.raises(StaleEpoch, match=r"WK705.*10.*11"):
            retire_older(10, "one")
    old.close()


@pytest.mark.exhaustive
def test_pools_of_two_databases_leave_each_other_alone(cluster: None, tmp_path: Path) -> None:
    with make_pool(tmp_path, epoch=15, installation="one") as one:
        assert wait_for_all(one, [screen("a")], WAIT_S)["a"].status is MeasureStatus.OK
        retire_older(3, "another")  # neither too old for the first one's, nor their end
        assert _meters()
        with make_pool(tmp_path, epoch=3, installation="another") as two:
            two.submit([screen("waits")])  # the device is the first one's until it lets go
            assert wait_for_all(one, [screen("b")], WAIT_S)["b"].status is MeasureStatus.OK
            one.close()
            [(_, late)] = two.collect(WAIT_S)
            assert late.status is MeasureStatus.OK


@pytest.mark.exhaustive
def test_a_drained_node_ends_what_is_under_way_and_works_again(
    cluster: None, tmp_path: Path
) -> None:
    # A screen of calls this long takes 4 s of a core, and a busy machine gives it half of one.
    with make_pool(tmp_path, epoch=20, run_timeout_s=WAIT_S) as pool:
        [node] = nodes()
        assert pool.devices == 1
        pool.submit([screen("under way", delay_us=300_000)])
        while not _meters():
            time.sleep(0.05)
        while not pool.follow([node], draining={node.key}):
            time.sleep(0.05)
        assert (pool.devices, pool.compilers) == (0, 0)
        pool.submit([screen("later")])
        before = pool.collect(1.0)
        assert {m.status for _, m in before} <= {MeasureStatus.OK}
        assert "later" not in {r.token for r, _ in before}
        assert pool.follow([node]) == set()
        found = {r.token: m for r, m in before}
        deadline = time.monotonic() + WAIT_S
        while len(found) < 2:
            assert time.monotonic() < deadline
            found |= {r.token: m for r, m in pool.collect(1.0)}
        assert {m.status for m in found.values()} == {MeasureStatus.OK}


def test_a_node_that_is_not_what_it_offers_is_refused(cluster: None, tmp_path: Path) -> None:
    store = SqlStore(open_database(f"sqlite:///{tmp_path}/tilecore.db"))
    workplace = ClusterWorkplace(
        "unused", current_toolchain(), lambda *_, **__: make_pool(tmp_path, epoch)
    )
    for _ in range(50):  # newer than the leaders of the other tests here
        epoch = store.leader.acquire("me", 600, lambda _: True)
    workplace.open()
    deadline = time.monotonic() + WAIT_S
    while not store.nodes.list():
        assert workplace.refresh(store, epoch) == []
        assert time.monotonic() < deadline
        time.sleep(0.1)
    [row] = store.nodes.list()
    store.database.close()
    assert row.state == "refused"
    assert "not what it offers" in row.detail


@pytest.mark.exhaustive
def test_code_for_a_gpu_is_compiled_on_one_node_and_measured_on_another(
    cluster: None, tmp_path: Path
) -> None:
    device = load_profile("emulated a100")
    [host] = nodes()
    with node_beside(device, devices=2, cpus=1) as other:
        assert other.resource == resource_name(device)
        usable = [host, replace(other, compiles=False)]  # as one without TVM
        with RayPool(
            device, artifact_dir=tmp_path, epoch=60, there=usable, toolbox=FaultToolbox(),
            bench=MeasureBench,
        ) as pool:  # fmt: skip
            assert pool.devices == 2
            # compile:INSTALLATION:EPOCH:HARDWARE:NODE:OPENING:INDEX
            from ray.util import list_named_actors

            names = [name.split(":") for name in list_named_actors()]
            ours = {(role, key) for role, _, epoch, _, key, *_ in names if epoch == "60"}
            assert ours == {("compile", host.key[:12]), ("meter", other.key[:12])}
            found = wait_for_all(pool, [screen("a")], WAIT_S)["a"]
            assert (found.status, found.hardware) == (MeasureStatus.OK, device), found.detail
        with RayPool(
            device, artifact_dir=tmp_path, epoch=61, there=usable, toolbox=FaultToolbox(),
            bench=StickyDevice,
        ) as pool:  # fmt: skip
            names = [*("fine", "poison", "fine", "guilty") * 3, "fine"]
            found = wait_for_all(
                pool, [screen(f"{n} {i}", n, delay_us=i) for i, n in enumerate(names)], WAIT_S
            )
            for token, m in found.items():
                is_guilty = token.startswith("guilty")
                expected = MeasureStatus.LAUNCH_ERROR if is_guilty else MeasureStatus.OK
                assert m.status is expected, (token, m.detail)
                assert ("illegal memory access" in m.detail) == is_guilty


@pytest.mark.exhaustive
def test_innocents_of_lost_actors_of_two_nodes_are_measured_when_tried_again(
    cluster: None, tmp_path: Path
) -> None:
    """As a run does it: candidates of lost workers are tried up to six times."""
    with (
        node_beside(HARDWARE, devices=1, cpus=2),
        make_pool(tmp_path, epoch=70) as pool,
    ):
        assert (pool.devices, pool.compilers) == (2, 2)
        good = [screen(f"good {i}", delay_us=5_000 + i) for i in range(12)]
        bad = [screen(fault, fault) for fault in ("segfault", "daemons-crash")]
        pool.submit([*good, *bad])
        actors = _await_meters(2)  # on a busy machine the one works before the other started
        found = {r.token: m for r, m in pool.collect(WAIT_S)}
        for actor in actors:
            actor.kill()
        for _ in range(Limits().max_attempts):
            while len(found) < len(good) + len(bad):
                found |= {r.token: m for r, m in pool.collect(WAIT_S)}
            lost = [r for r in (*good, *bad) if found[r.token].status is MeasureStatus.WORKER_LOST]
            for request in lost:
                del found[request.token]
            pool.submit(lost)
            if not lost:
                break
    assert lost == []
    assert {found[r.token].status for r in good} == {MeasureStatus.OK}
    assert "SIGSEGV" in found["segfault"].detail
    assert orphans() == []


def test_importing_workers_and_the_local_pool_loads_neither_ray_nor_a_compiler() -> None:
    code = (
        "import sys, workers, workers.pool, workers.host, workers.toolchain\n"
        "workers.toolchain.current_toolchain()\n"
        "print([m for m in ('ray', 'tvm', 'torch') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def _await_meters(count: int) -> list[psutil.Process]:
    deadline = time.monotonic() + WAIT_S
    while len(meters := _meters()) != count:
        assert time.monotonic() < deadline, f"{count} meters are to run, found {meters}"
        time.sleep(0.05)
    return meters


def _meters() -> list[psutil.Process]:
    """Return the meters of this test's own cluster: other tests run beside it."""
    ours = psutil.Process().children(recursive=True)
    return [p for p in ours if "MeasureActor" in _title(p)]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) if process.pid != os.getpid() else ""
    except psutil.Error:
        return ""


@pytest.mark.usefixtures("cluster")
def test_the_node_of_this_machine_is_found_by_any_of_its_names() -> None:
    """By 127.0.0.1 it was not: Ray calls it by another address of the machine."""
    import ray

    named, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    for host in (named, "127.0.0.1", "localhost"):
        assert _has_node(f"{host}:{port}"), host
        assert not _has_node(f"{host}:1"), host
