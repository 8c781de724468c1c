"""Pools of several kinds of hardware on one node: while one measures, none compiles there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from recommender.hardware import load_profile
from recommender.measurement import Measurement, Protocol, Toolchain
from recommender.ports import MeasureRequest
from recommender.workload import Workload
from tests.workers.fault_toolbox import HARDWARE, WORKLOAD, FaultToolbox, config
from tilecore.tile_config import TileConfig
from tuner_service.coordinator.cluster_workplace import ClusterWorkplace, _Known
from workers.gate import Gate
from workers.measure_pool import MeasurePool
from workers.offer import resource_name
from workers.outcome import Compiled, Timed
from workers.pool import wait_for_all
from workers.ray_cluster import ClusterNode

H200 = load_profile("h200")


@dataclass
class Lane:
    """A compiler and a meter in one; ``measuring`` holds a confirmation up until it is set."""

    log: list[str]
    name: str
    measuring: threading.Event = field(default_factory=threading.Event)

    def compile(self, workload: Workload, config: TileConfig) -> Compiled:
        self.log.append(f"{self.name} compiles")
        return Compiled(path="", digest=config.key, compile_s=0.0)

    def screen(self, workload: Workload, compiled: Compiled) -> Timed:
        return Timed(times_s=(1.0,))

    def confirm(self, workload: Workload, batch: Sequence[Compiled]) -> list[Timed]:
        self.log.append(f"{self.name} confirms")
        self.measuring.wait(60)
        self.log.append(f"{self.name} has confirmed")
        return [Timed(times_s=(1.0,))] * len(batch)

    def recover(self) -> None:
        pass

    kill = close = recover


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def request(protocol: Protocol) -> MeasureRequest:
    return MeasureRequest(token="a", workload=WORKLOAD, config=config(), protocol=protocol)


def test_nothing_is_compiled_for_a_gpu_while_the_cpu_is_measured() -> None:
    log: list[str] = []
    cpu, gpu, gate = Lane(log, "cpu"), Lane(log, "gpu"), Gate()
    toolbox = FaultToolbox()
    with MeasurePool(HARDWARE, toolbox=toolbox) as one, MeasurePool(H200, toolbox=toolbox) as two:
        one.add_node("n", "node", [cpu], [cpu], gate)
        two.add_node("n", "node", [gpu], [gpu], gate)
        one.submit([request(Protocol.CONFIRM)])
        wait_until(lambda: "cpu confirms" in log)
        two.submit([request(Protocol.SCREEN)])
        time.sleep(0.3)
        assert log == ["cpu compiles", "cpu confirms"]
        cpu.measuring.set()
        found = two.collect(60)
        assert log == ["cpu compiles", "cpu confirms", "cpu has confirmed", "gpu compiles"]
        assert [m.threads for _, m in found] == [H200.cores]  # a GPU is measured whole
        one.remove_node("n")  # its gate is still the other pool's
        assert wait_for_all(two, [request(Protocol.SCREEN)], 60)["a"].time_s == 1.0


def test_a_node_that_is_drained_ends_what_it_has_and_begins_nothing() -> None:
    log: list[str] = []
    one, two = Lane(log, "one"), Lane(log, "two")
    two.measuring.set()
    with MeasurePool(HARDWARE, toolbox=FaultToolbox()) as pool:
        pool.add_node("1", "node 1", [one], [one])
        pool.submit([replace(request(Protocol.CONFIRM), token="under way")])
        wait_until(lambda: "one confirms" in log)
        pool.submit([replace(request(Protocol.CONFIRM), token="z", config=config(delay_us=9))])
        wait_until(lambda: not pool.waiting())  # node 1 would compile it once it has confirmed
        pool.add_node("2", "node 2", [two], [two])
        assert not pool.drain_node("1")
        assert (pool.devices, pool.node_keys) == (1, {"1", "2"})
        later = [replace(request(Protocol.CONFIRM), token=t, config=config(delay_us=i))
                 for i, t in enumerate("abc", 1)]  # fmt: skip
        pool.submit(later)
        found: dict[str, Measurement] = {}
        wait_until(lambda: found.update((r.token, m) for r, m in pool.collect(0.1)) or "c" in found)
        assert set(found) == set("abc")
        assert {m.worker for m in found.values()} == {"node 2"}
        assert log.count("one confirms") == 1
        assert not pool.drain_node("1")
        one.measuring.set()
        found.clear()
        wait_until(
            lambda: found.update((r.token, m) for r, m in pool.collect(0.1)) or len(found) > 1
        )
        assert {t: m.worker for t, m in found.items()} == {"under way": "node 1", "z": "node 2"}
        wait_until(lambda: pool.drain_node("1"))
        pool.remove_node("1")
        assert pool.collect(0.1) == []
        assert log.count("one compiles") == 1


def node(key: str, resource: str, *, compiles: bool) -> ClusterNode:
    return ClusterNode(
        key=key, name=key, cpus=2, resource=resource, devices=1, compiles=compiles
    )  # fmt: skip


def test_a_gpu_is_on_offer_only_where_somebody_compiles(tmp_path: Path) -> None:
    toolchain = Toolchain(tilecore="t", tvm="v", llvm="l")
    workplace = ClusterWorkplace("unused", toolchain, lambda *_, **__: None)
    gpu = _Known(node("g", resource_name(H200), compiles=False), None, H200)
    workplace._known = {"g": gpu}
    assert workplace._offers(set()) == []
    workplace._known["c"] = _Known(
        node("c", resource_name(HARDWARE), compiles=True), None, HARDWARE
    )
    assert {h.name for h in workplace._offers(set())} == {H200.name, HARDWARE.name}
    workplace._offered.clear()
    compiler = workplace._known["c"]
    compiler.node = replace(compiler.node, same_nvrtc=False)
    assert {h.name for h in workplace._offers(set())} == {HARDWARE.name}
    workplace._offered.clear()
    compiler.node = replace(compiler.node, same_nvrtc=True)
    assert workplace._offers({"c"}) == []  # the one that compiles is drained
