"""What was measured of a user's program: of these sizes, or of others of the same function.

Measurements come from ``@autotune`` and its like (``tuner_service.autotune``), which file them
under the function's name, its inputs' shapes and the version of each candidate; and from runs that
tune a program as data (``tilecore tune program.py:function``), under its digest and its sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recommender.analytic import ANALYTIC_SPREAD, Estimates, estimate
from recommender.freshness import differences
from recommender.measurement import Protocol
from recommender.nearest import best_nearby
from recommender.portable_tracing import portable
from recommender.ports import MeasurementStore
from recommender.programs import version
from recommender.recommend import CLOSE, MAX_NEIGHBOURS
from recommender.recommendation import Recommendation, of_measurement, of_neighbour
from recommender.space import SearchSpace
from recommender.workload import Workload, digest_of, kernel_name
from tilecore.errors import TileError
from tilecore.ir.analysis import marked_outputs
from tilecore.kernels.definition import KernelDefinition
from tilecore.logged import static_problem_of
from tilecore.recommending import LOWERING, OpenProgram
from tilecore.tile_config import KnobValue, TileConfig

LOOKED_AT = 64  # measurements of a problem whose programs are compared with today's


@dataclass(frozen=True, slots=True)
class Known:
    """Where evidence comes from.

    Attributes:
        store: what was measured.
        toolchain_key: of those measurements that count without a doubt.
        gemm: of the library; what is known of it holds for programs that are such a product.
        is_sent: (name of a function) -> whether a program of that name may have been tuned as data.
    """

    store: MeasurementStore
    toolchain_key: str
    gemm: KernelDefinition
    is_sent: Callable[[str], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class Evidence:
    """A config of a program's knobs and of its lowering, and what is known of it."""

    config: TileConfig
    space: SearchSpace
    found: Recommendation


def remembered(
    question: OpenProgram, spaces: Sequence[SearchSpace], known: Known
) -> tuple[list[Evidence], list[Evidence]]:
    """Return what goes before any model, and what comes behind it, the best first.

    Args:
        question: the program and what is open.
        spaces: of its families.
        known: what was measured.
    """
    workloads = [
        w
        for w in (_workload(question, spaces[0]), _sent(question, spaces[0], known))
        if w is not None
    ]
    exact = [e for w in workloads if (e := _exact(question, spaces, w, known)) is not None]
    first = sorted(exact, key=lambda e: (-e.found.confidence, e.found.time_s))
    near = sorted(
        (e for w in workloads for e in _near(question, spaces, w, known)),
        key=lambda e: e.found.distance,
    )[:MAX_NEIGHBOURS]
    close = [e for e in near if e.found.distance <= CLOSE and not e.found.is_stale]
    return [*first, *close], [e for e in near if e not in close]


def _workload(question: OpenProgram, space: SearchSpace) -> Workload | None:
    """Return what the log calls the program at its sizes; None: they are known at the call only."""
    if not question.logged:
        return None
    func = question.trace({k: v for k, v in space.config(0).items() if k in question.knobs})
    outputs = marked_outputs(func)
    params = [p for i, p in enumerate(func.params) if i not in outputs]
    problem = static_problem_of(params)
    return None if problem is None else Workload.of(question.logged, problem)


def _sent(question: OpenProgram, space: SearchSpace, known: Known) -> Workload | None:
    """Return what the log calls the program as data; None: it was never tuned so."""
    if not known.is_sent(question.name):
        return None
    try:
        program = portable(question, space.hardware)
    except TileError:  # it cannot be told as data
        return None
    sizes = {**question.sizes, **question.problem}
    names = (*program.sizes, *program.call_sizes)
    if not all(name in sizes for name in names):
        return None
    problem = {name: sizes[name] for name in names}
    return Workload.of(kernel_name(program.digest), problem, question.cores)


def _exact(
    question: OpenProgram, spaces: Sequence[SearchSpace], workload: Workload, known: Known
) -> Evidence | None:
    """Return the fastest config that was measured of the program as it is; None: there is none."""
    hardware = spaces[0].hardware
    found = [
        m
        for m in known.store.measurements(
            workload_key=workload.key, hardware_key=hardware.key, only_ok=True
        )
        if m.toolchain.key == known.toolchain_key
    ]
    found.sort(key=lambda m: (m.protocol is not Protocol.CONFIRM, m.time_s or math.inf))
    is_data = digest_of(workload.kernel) is not None  # its name says which program it is
    for m in found[:LOOKED_AT]:
        config = _whole(question, m.config)
        if config is not None and (is_data or m.program_digest == _version(question, config)):
            space = _space_of(spaces, config)
            expected = _estimates(question, space, config)
            told = of_measurement(m, 0, hardware, expected.at(0), expected.times_with(0))
            return Evidence(config, space, told)
    return None


def _near(
    question: OpenProgram, spaces: Sequence[SearchSpace], workload: Workload, known: Known
) -> Iterator[Evidence]:
    """Yield the winners of other sizes, nearest first."""
    hardware = spaces[0].hardware
    near = known.store.nearest(workload, hardware=hardware)
    others = [m for m in near if m.workload != workload]
    for n in best_nearby(
        others, workload, hardware, program_digest="", toolchain_key=known.toolchain_key
    ):
        config = _whole(question, n.measurement.config)
        if config is None:
            continue
        space = _space_of(spaces, config)
        explained = _estimates(question, space, config).at(0)
        low, high = ANALYTIC_SPREAD
        expected_s = (explained.time_s, explained.time_s * low, explained.time_s * high)
        doubts = differences(
            n.measurement, program_digest=n.measurement.program_digest,
            toolchain_key=known.toolchain_key, driver="",
        )  # fmt: skip
        yield Evidence(config, space, of_neighbour(n, doubts, hardware, expected_s, explained))


def _whole(question: OpenProgram, config: Mapping[str, KnobValue]) -> TileConfig | None:
    """Return a measured config with all open knobs; None: it is none of what is open here."""
    settled = {**question.fixed, **question.lowering}
    open_knobs = {**question.knobs, **dict.fromkeys(k for k in LOWERING if k not in settled)}
    if any(k not in open_knobs and settled.get(k) != v for k, v in config.items()):
        return None
    own = {k: v for k, v in config.items() if k in open_knobs}
    if any(v not in question.space.get(k, (v,)) for k, v in own.items()):
        return None
    defaults = {k: v for k, v in question.knobs.items() if v is not None}
    found = {**defaults, **own}
    return TileConfig.of(found) if found.keys() >= question.knobs.keys() else None


def _version(question: OpenProgram, config: TileConfig) -> str:
    """Return the version of a candidate as today's program makes it; "": it makes none."""
    knobs = {k: v for k, v in config.items() if k in question.knobs}
    lowering = {k: v for k, v in config.items() if k not in knobs}
    try:
        return version(question.trace(knobs), "", {**question.lowering, **lowering})
    except TileError:
        return ""


def _space_of(spaces: Sequence[SearchSpace], config: TileConfig) -> SearchSpace:
    """Return the space of the family that a config belongs to."""

    def agrees(space: SearchSpace) -> bool:
        chosen = {k: o[0] for k, o in space.values.items() if len(o) == 1}
        return all(config.get(k, v) == v for k, v in chosen.items())

    return next(filter(agrees, spaces), spaces[0])


def _estimates(question: OpenProgram, space: SearchSpace, config: TileConfig) -> Estimates:
    """Return the analytic estimate of one config."""
    columns = {k: np.array([v]) for k, v in config.items()}
    return estimate(space, columns, threads=question.cores)
