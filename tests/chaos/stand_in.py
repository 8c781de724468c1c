"""Candidates that sleep for recorded times instead of running: deterministic, on any machine.

The road is the real one (coordinator, Ray actors, child processes, database); only what a child
does with a candidate is replaced. The time of a config is that of the nearest recorded one.
"""

from __future__ import annotations

import csv
import functools
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recommender.open_shapes import program_digest
from recommender.workload import Workload
from tests.tuner_service.table_measurer import TableMeasurer
from tilecore import kernels
from tilecore.tile_config import TileConfig
from workers.outcome import Compiled, Timed
from workers.turn import Turn

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "gemm_space_2026-11-20.csv"
RIVAL_S = 2e-3
CONFIRM_SHARE = 0.5  # of a recorded time


@functools.cache
def recorded() -> Sequence[tuple[Mapping[str, str], float]]:
    with RECORDED.open() as file:
        return [(row, float(row["time_s"])) for row in csv.DictReader(file)]


@functools.cache
def recorded_time_s(config: TileConfig) -> float:
    """Return the time of the nearest recorded config, and a little that tells configs apart."""

    def distance(row: Mapping[str, str]) -> float:
        total = 0.0
        for name, value in config.items():
            found = row.get(name)
            if found is None:
                continue
            if isinstance(value, int):
                total += abs(math.log2((1 + value) / (1 + int(found))))
            else:
                total += float(found != value)
        return total

    _, time_s = min(recorded(), key=lambda pair: distance(pair[0]))
    return time_s * (1 + int(config.key[:6], 16) / 0xFFFFFF * 1e-2)


@dataclass(frozen=True, slots=True)
class StandInToolbox:
    """Compiles a candidate into its config; ``repeats`` recorded times make one measurement."""

    repeats: float
    log: Path  # a line per execution
    compile_modules: tuple[str, ...] = ("tests.chaos.stand_in",)
    run_modules: tuple[str, ...] = ("tests.chaos.stand_in",)

    def program_digest(self, workload: Workload, config: TileConfig) -> str:
        return program_digest(kernels.get(workload.kernel), dict(workload.problem))

    def problem(self, workload: Workload) -> None:
        raise NotImplementedError("the bench of the stand-in asks for none")

    def compile(self, workload: Workload, config: TileConfig, store: Path) -> Compiled:
        path = store / f"{config.key}.config"
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(repr(dict(config.items_)))
        partial.replace(path)
        return Compiled(path=str(path), digest=config.key, compile_s=1e-3)

    def set_threads(self, threads: int) -> None:
        pass


class StandInBench:
    """What the measuring child does: sleep, then say what was recorded."""

    def __init__(self, toolbox: StandInToolbox, cores: int) -> None:
        self._toolbox = toolbox

    def prepare(self, workload: Workload) -> None:
        pass

    prepare_rival = prepare

    def check(self, workload: Workload, path: str) -> float:
        return 0.0

    def screen(self, workload: Workload, path: str) -> Timed:
        return self._timed(path, 1.0)

    def confirm(self, workload: Workload, paths: Sequence[str], turn: Turn) -> list[Timed]:
        return [self._timed(path, CONFIRM_SHARE) for path in paths]

    def _timed(self, path: str, share: float) -> Timed:
        time_s = recorded_time_s(_config(Path(path))) * share
        time.sleep(time_s * self._toolbox.repeats)
        with self._toolbox.log.open("a") as log:
            log.write(f"{Path(path).stem}\n")
        reference = () if share == 1.0 else (RIVAL_S,) * 3
        return Timed(times_s=(time_s,) * 3, reference_times_s=reference, max_error=0.0)


class StandInMeasurer(TableMeasurer):
    """The same times at once and in this process: what an undisturbed run finds."""

    def _times(self, request):
        share = 1.0 if request.protocol.value == "screen" else CONFIRM_SHARE
        return (recorded_time_s(request.config) * share,) * 3


@functools.cache
def _config(path: Path) -> TileConfig:
    import ast

    return TileConfig.of(ast.literal_eval(path.read_text()))
