"""A device made of the analytic model with other constants, and a store that lives in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from recommender.analytic import estimate
from recommender.cpu.model import CpuConstants
from recommender.hardware import HardwareProfile, load_profile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from recommender.nearest import device_distance, fastest, workload_distance
from recommender.ports import StoredModel
from recommender.space import SearchSpace
from recommender.workload import Workload
from tilecore import kernels
from tilecore.tile_config import TileConfig, digest

HOST = replace(load_profile("avx512"), cores=2, l2_bytes=2 << 20, l1d_bytes=48 << 10)
TOOLCHAIN = Toolchain(tilecore="a", tvm="0.27", llvm="22")
PROGRAM = "p" * 32
GEMM = kernels.get("gemm")
TRUTH = CpuConstants(
    efficiency=0.9, call_slots=70, l2_bytes_per_slot=10, a_copy_bytes_per_slot=3, c_vector_slots=6
)


def workload(m: int, n: int, k: int, threads: int = 0, **fields: object) -> Workload:
    return Workload.of("gemm", GEMM.parse_problem({"m": m, "n": n, "k": k, **fields}), threads)


def space_of(w: Workload, hardware: HardwareProfile = HOST) -> SearchSpace:
    return SearchSpace.build(GEMM, dict(w.problem), hardware)


def measured(
    w: Workload,
    config: TileConfig,
    time_s: float | None,
    *,
    protocol: Protocol = Protocol.SCREEN,
    status: MeasureStatus = MeasureStatus.OK,
    hardware: HardwareProfile = HOST,
    toolchain: Toolchain = TOOLCHAIN,
    program: str = PROGRAM,
) -> Measurement:
    times = () if time_s is None else (time_s, time_s * 1.01, time_s * 0.99)
    return Measurement(
        workload=w,
        config=config,
        hardware=hardware,
        toolchain=toolchain,
        program_digest=program,
        protocol=protocol,
        threads=1 if protocol is Protocol.SCREEN else (w.threads or hardware.cores),
        status=status,
        times_s=times,
        measured_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


class SimulatedDevice:
    """Times configs by the analytic model with TRUTH's constants, a systematic twist and noise."""

    def __init__(self, w: Workload, noise: float = 0.02, failing: str = "") -> None:
        self.workload, self.noise, self.failing = w, noise, failing
        self.space = space_of(w)

    def time_s(self, config: TileConfig, threads: int) -> float:
        columns = self.space.table([config])
        base = float(estimate(self.space, columns, threads=threads, constants=TRUTH).time_s[0])
        twist = 1.0 + 0.15 * (config["micro_n"] == 3) + 0.1 * (config["block_N"] == 128)
        twist += 0.1 * (config["pack_a"] == "rows")
        wobble = int(digest([config.key, threads], 8), 16) / 0xFFFFFFFF - 0.5
        return base * twist * math.exp(2 * self.noise * wobble)

    def measure(self, config: TileConfig, protocol: Protocol) -> Measurement:
        if self.failing and config["pack_a"] == self.failing:
            wrong = MeasureStatus.WRONG_RESULT
            return measured(self.workload, config, None, protocol=protocol, status=wrong)
        threads = 1 if protocol is Protocol.SCREEN else HOST.cores
        return measured(self.workload, config, self.time_s(config, threads), protocol=protocol)

    def best_s(self, threads: int) -> float:
        table = estimate(self.space, threads=threads, constants=TRUTH).time_s
        rows = np.argsort(table)[:400]
        return min(self.time_s(self.space.config(int(r)), threads) for r in rows)


class MemoryStore:
    """MeasurementStore over a list."""

    def __init__(self, measurements: Sequence[Measurement] = ()) -> None:
        self.all = list(measurements)
        self.model: StoredModel | None = None

    def best(
        self, workload: Workload, hardware_key: str, program_digest: str, toolchain_key: str,
        driver: str = "",
    ) -> Measurement | None:  # fmt: skip
        key = (workload.key, hardware_key, program_digest, toolchain_key)
        found = [
            m
            for m in self.all
            if (m.workload.key, m.hardware.key, m.program_digest, m.toolchain.key) == key
        ]
        in_turn = (
            fastest([m for m in found if m.protocol is protocol and m.driver in drivers(m)])
            for protocol in (Protocol.CONFIRM, Protocol.SCREEN)
            for drivers in (lambda m: ("", driver or m.driver), lambda m: (m.driver,))
        )
        return next((m for m in in_turn if m is not None), None)

    def fastest(
        self, workload: Workload, hardware_key: str, program_digest: str, toolchain_key: str,
        driver: str = "", *, count: int,
    ) -> Sequence[Measurement]:  # fmt: skip
        key = (workload, hardware_key, program_digest, toolchain_key)
        best = self.best(*key, driver)
        others = [
            m for m in self.all
            if (m.workload, m.hardware.key, m.program_digest, m.toolchain.key) == key
            and m.protocol is Protocol.CONFIRM and m.time_s is not None
            and m.driver in ("", driver or m.driver)
        ]  # fmt: skip
        in_turn = [best, *sorted(others, key=lambda m: m.time_s or 0.0)] if best else []
        unique: dict[TileConfig, Measurement] = {}
        for m in in_turn:
            unique.setdefault(m.config, m)
        return list(unique.values())[:count]

    def is_known(self, workload: Workload) -> bool:
        return any(m.workload == workload for m in self.all)

    def measurements(
        self,
        *,
        kernel: str | None = None,
        workload_key: str | None = None,
        hardware_key: str | None = None,
        protocol: Protocol | None = None,
        only_ok: bool = False,
        limit: int = 10_000,
    ) -> Sequence[Measurement]:
        found = [
            m
            for m in reversed(self.all)
            if kernel in (None, m.workload.kernel)
            and workload_key in (None, m.workload.key)
            and hardware_key in (None, m.hardware.key)
            and protocol in (None, m.protocol)
            and (not only_ok or m.status is MeasureStatus.OK)
        ]
        return found[:limit]

    def nearest(
        self, workload: Workload, *, count: int = 9, hardware: HardwareProfile | None = None
    ) -> Sequence[Measurement]:
        good = [m for m in self.all if m.status is MeasureStatus.OK]
        alike = [m for m in good if m.workload.kernel == workload.kernel]
        apart = {m.workload: workload_distance(m.workload, workload) for m in alike}
        in_turn = sorted(apart, key=lambda w: apart[w])
        near = in_turn[:count]
        if hardware is not None:
            like = {m.workload for m in alike if device_distance(m.hardware, hardware) < math.inf}
            here = {m.workload for m in alike if m.hardware.key == hardware.key}
            near += [w for of in (like, here) for w in [w for w in in_turn if w in of][:count]]
        groups: dict[object, list[Measurement]] = {}
        for m in alike:
            if m.workload in near:
                key = (m.workload, m.hardware.key, m.toolchain, m.protocol)
                groups.setdefault(key, []).append(m)
        return [min(group, key=lambda m: m.time_s or math.inf) for group in groups.values()]

    def active_model(self, kernel: str, family: str) -> StoredModel | None:
        return self.model if family == "cpu" else None


def sample(w: Workload, count: int, seed: int = 0) -> list[Measurement]:
    """Return SCREEN measurements of random configs on the simulated device."""
    device = SimulatedDevice(w)
    rows = np.random.default_rng(seed).choice(len(device.space), count, replace=False)
    return [device.measure(device.space.config(int(r)), Protocol.SCREEN) for r in rows]
