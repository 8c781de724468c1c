"""Samples on a device: how many calls, in which order, with caches flushed before each."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field

import pytest

from recommender.hardware import load_profile
from tilecore import kernels
from workers.device_timing import (
    DEVICE_CONFIRMING,
    DEVICE_SCREENING,
    MAX_CALLS,
    CudaTimer,
    EmulatorTimer,
    calls_per_sample,
    interleave,
    screen,
)

H200 = load_profile("h200")


@pytest.mark.parametrize(("size", "least", "most"), [(64, 10, 16), (4096, 1, 1), (16384, 1, 1)])
def test_calls_per_sample_follow_from_the_workload_alone(size, least, most):
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": size, "n": size, "k": size, "dtype": "float16"})
    found = calls_per_sample(H200, gemm.work_flop(problem), gemm.traffic_bytes(problem))
    assert least <= found <= most
    assert calls_per_sample(load_profile("avx512"), 1.0, 1.0) <= MAX_CALLS


@dataclass
class Recorded:
    """A participant whose samples are known."""

    name: str
    times: list[float]
    log: list[str]

    def sample(self) -> float:
        self.log.append(self.name)
        return self.times[len([x for x in self.log if x == self.name]) % len(self.times)]


def test_participants_take_turns_until_all_are_known_well():
    log: list[str] = []
    steady, noisy = Recorded("a", [1.0], log), Recorded("b", [1.6, 1.8, 2.0, 2.2, 2.4], log)
    found = interleave({"a": steady, "b": noisy}, DEVICE_CONFIRMING, begin=log.append)
    assert log == ["a", "a", "b", "b"] * (len(log) // 4)  # each is named before its sample
    assert len(found["a"]) == len(found["b"]) == DEVICE_CONFIRMING.max_samples
    assert len(interleave({"a": Recorded("a", [1.0], [])}, DEVICE_CONFIRMING)["a"]) == 10


def test_a_slow_candidate_gets_few_samples():
    seconds = iter(range(0, 100, 3))
    found = screen(
        Recorded("", [1.0, 1.3, 0.8], []), DEVICE_SCREENING, clock=lambda: float(next(seconds))
    )
    assert len(found) == 3


# --- CudaTimer's conversation with torch: no CUDA device is here to have it with -----------------


@dataclass
class FakeDevice:
    """Notes what a CUDA device would be asked to do, in order; a replay takes 1 us per call."""

    log: list[str] = field(default_factory=list)
    clock_ms: float = 0.0
    captured: int | None = None

    def module(self) -> types.ModuleType:
        device, torch = self, types.ModuleType("torch")

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                device.log.append("event")
                self.at = device.clock_ms

            def synchronize(self) -> None:
                device.log.append("wait")

            def elapsed_time(self, other: Event) -> float:
                return other.at - self.at

        class Graph:
            calls = 0

            def capture_begin(self) -> None:
                assert device.log[-1] == "side stream"
                device.captured = 0

            def capture_end(self) -> None:
                self.calls, device.captured = device.captured or 0, None

            def replay(self) -> None:
                device.log.append(f"replay {self.calls}")
                device.clock_ms += 1e-3 * self.calls

        class Stream:
            def wait_stream(self, other: object) -> None:
                pass

        class Use:
            def __init__(self, stream: object) -> None:
                pass

            def __enter__(self) -> None:
                device.log.append("side stream")

            def __exit__(self, *_: object) -> None:
                pass

        class Buffer:
            def __init__(self, size: int) -> None:
                self.size = size

            def __len__(self) -> int:
                return self.size

            def zero_(self) -> None:
                device.log.append(f"flush {self.size}")

        torch.uint8 = "uint8"
        torch.empty = lambda size, dtype, device: Buffer(size)
        torch.cuda = types.SimpleNamespace(
            Event=Event, CUDAGraph=Graph, Stream=Stream, stream=Use,
            current_stream=Stream, synchronize=lambda: device.log.append("synchronize"),
        )  # fmt: skip
        return torch

    def call(self) -> None:
        if self.captured is None:
            self.log.append("call")
        else:
            self.captured += 1


def test_a_sample_is_a_flush_and_a_graph_between_two_events(monkeypatch):
    device = FakeDevice()
    monkeypatch.setitem(sys.modules, "torch", device.module())
    monkeypatch.setattr("workers.device_timing.WARM_S", 0.0)
    timer = CudaTimer(7, l2_bytes=1000, readings=lambda: {"sm_clock_hz": 1.98e9})
    sampler = timer.sampler(device.call)
    assert device.log[:4] == ["side stream", "call", "call", "call"]
    assert "replay 7" in device.log
    device.log.clear()
    assert sampler.sample() == pytest.approx(1e-6)
    assert device.log == ["flush 2000", "event", "replay 7", "event", "wait"]
    assert timer.metrics() == {
        "calls_per_sample": 7.0, "flushed_bytes": 2000.0, "sm_clock_hz": 1.98e9,
    }  # fmt: skip


def test_the_emulator_s_times_are_marked():
    calls = []
    assert EmulatorTimer().sampler(lambda: calls.append(1)).sample() > 0
    assert calls == [1]
    assert EmulatorTimer().metrics() == {"is_emulated": 1.0}
