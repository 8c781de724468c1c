"""Pools of several kinds of hardware on one node: while one measures, none compiles there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from recommender.hardware import load_profile
from recommender.measurement import Protocol, Toolchain
from recommender.ports import MeasureRequest
from recommender.workload import Workload
from tests.workers.fault_toolbox import HARDWARE, WORKLOAD, FaultToolbox, config
from tilecore.tile_config import TileConfig
from tuner_service.cluster_workplace import ClusterWorkplace, _Known
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
