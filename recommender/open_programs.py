"""Configs for any tile program: traced with its open knobs as symbols, estimated, ranked."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recommender.analytic import ANALYTIC_SPREAD, PREFILTER, estimate
from recommender.diversity import different
from recommender.errors import EmptySpace, NoClosedForm
from recommender.hardware import HardwareProfile
from recommender.programs import UNITS
from recommender.space import SearchSpace, space_of
from recommender.tracing import Family, trace_all
from tilecore.errors import TileError, TypeMismatch
from tilecore.graph import TileGraph, evaluate
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import Knob, ProgramDefinition
from tilecore.recommending import OpenProgram, ProgramAdvice, RecommendedConfig, knob_kind
from tilecore.tile_config import KnobValue, TileConfig

MOST_REFUSED = 64  # configs that the compiler refuses, after which the answer stays shorter
Check = Callable[[PrimFunc, Mapping[str, KnobValue]], object]


def advise(question: OpenProgram, hardware: HardwareProfile, check: Check) -> ProgramAdvice:
    """Return ranked configs of a program.

    Args:
        question: the program and what is open.
        hardware: the device.
        check: (program, knobs of the lowering) -> raises TileError where the compiler refuses it.

    Raises:
        NothingOpen: no parameter is open (RC608).
        NoClosedForm: sizes or lengths of loops are known at the call only (RC609).
        EmptySpace: no config can run on the device (RC602).
        TileError: the program's own fault, whatever values its knobs get.
    """
    traces = trace_all(question, hardware)
    begin = time.perf_counter()
    try:
        ranking = _Ranking(question, hardware, spaces_of(question, hardware, traces.families))
    except TypeMismatch as error:  # of a closed form
        raise NoClosedForm(program=question.name, found=error.fields["found"]) from error
    evaluated = time.perf_counter()
    gate = Gate(question, check)
    least = min(2, max(len(s.values) for s in ranking.spaces))
    chosen = list(
        itertools.islice(different(ranking.configs(), least, gate.accepts), question.top_k)
    )
    if not chosen:
        reason = f"the compiler refuses all that were tried: {gate.first_refusal}"
        raise EmptySpace(kernel=question.name, hardware=hardware.name, reason=reason)
    checked = time.perf_counter()
    notes = [*traces.notes, *assumptions(ranking.spaces)]
    if gate.refused:
        notes.append(f"{gate.refused} config(s) left out, as {gate.first_refusal}")
    return ProgramAdvice(
        configs=tuple(ranking.explained(position) for position, _ in chosen),
        hardware=hardware.name, work_flop=ranking.spaces[0].definition.work_flop({}),
        legal=ranking.legal, enumerated=ranking.enumerated, traces=traces.count,
        trace_s=traces.seconds, evaluate_s=evaluated - begin, check_s=checked - evaluated,
        notes=tuple(notes),
    )  # fmt: skip


def definition_of(question: OpenProgram, family: Family) -> ProgramDefinition:
    """Return a family of programs as a search space knows it."""
    knobs = tuple(
        Knob(
            name,
            _default(question.knobs.get(name), values),
            dict.fromkeys(("cpu", "cuda"), values),
            symbolic=name in question.knobs,
        )
        for name, values in family.values.items()
    )
    flop = work_flop(family)
    return ProgramDefinition(
        name=question.name, knobs=knobs,
        program=lambda _, knobs: question.trace(
            {k: v for k, v in knobs.items() if k in question.knobs} | dict(family.chosen)
        ),
        work_flop=lambda _: flop,
    )  # fmt: skip


def work_flop(family: Family) -> float:
    """Return the operations of a program, without those of padding: tiles of one element."""
    numbers = {k: tuple(map(int, v)) for k, v in family.values.items() if not isinstance(v[0], str)}
    least = {k: min(v) for k, v in numbers.items()}
    ones = {k: v if k in family.chosen or knob_kind(k) != "tile" else 1 for k, v in least.items()}
    found = [_work(family.graph, values) for values in (ones, least)]
    return min((work for work in found if work > 0), default=0.0)


def _work(graph: TileGraph, values: Mapping[str, int]) -> float:
    """Return the operations of products, or of everything where there are none."""
    by_unit = {unit: float(evaluate(graph.work(unit), values)) for unit in UNITS}
    return by_unit["fma"] or sum(by_unit.values())


def _default(given: KnobValue | None, values: tuple[KnobValue, ...]) -> KnobValue:
    return given if given in values and given is not None else values[0]


def spaces_of(
    question: OpenProgram, hardware: HardwareProfile, families: Sequence[Family]
) -> list[SearchSpace]:
    """Return the space of each family that has legal configs.

    Raises:
        EmptySpace: none has (RC602).
    """
    found, empty = [], None
    for family in families:
        try:
            definition = definition_of(question, family)
            found.append(space_of(definition, {}, hardware, family.graph))
        except EmptySpace as error:
            empty = error
    if not found:
        assert empty is not None
        raise empty
    return found


def assumptions(spaces: Iterable[SearchSpace]) -> tuple[str, ...]:
    """Return what the estimates of some spaces take for granted."""
    return tuple(dict.fromkeys(x for space in spaces for x in space.graph.assumptions))


class _Ranking:
    """The configs of all families, the fastest by the analytic model first."""

    def __init__(
        self, question: OpenProgram, hardware: HardwareProfile, spaces: list[SearchSpace]
    ) -> None:
        self.spaces, self.cores = spaces, question.cores or hardware.cores
        found: list[tuple[float, int, int]] = []
        for number, space in enumerate(spaces):
            times = estimate(space, threads=self.cores).time_s
            rows = np.argsort(times, kind="stable")[:PREFILTER].tolist()
            found += [(float(times[row]), number, row) for row in rows if np.isfinite(times[row])]
        self._order = sorted(found)[:PREFILTER]
        self.legal = sum(map(len, spaces))
        self.enumerated = sum(s.enumerated for s in spaces)

    def configs(self) -> Iterator[TileConfig]:
        """Yield configs, the fastest first."""
        for _, number, row in self._order:
            yield self.spaces[number].config(row)

    def explained(self, position: int) -> RecommendedConfig:
        """Return a candidate with its reason."""
        time_s, number, row = self._order[position]
        space = self.spaces[number]
        config = space.config(row)
        why = estimate(space, space.table([config]), threads=self.cores).at(0)
        program, lowering = _split(config, space.definition)
        return RecommendedConfig(
            config=program, lowering=lowering, time_s=time_s,
            interval_s=(time_s * ANALYTIC_SPREAD[0], time_s * ANALYTIC_SPREAD[1]),
            bound_by=why.bound_by,
            rationale=f"rank {position + 1} of {self.legal} legal configs by the analytic model; "
            f"{why.explain()}",
        )  # fmt: skip


def _split(
    config: Mapping[str, KnobValue], definition: ProgramDefinition
) -> tuple[TileConfig, TileConfig]:
    """Return the knobs of the program, and those of its lowering."""
    own = {k.name for k in definition.knobs if k.symbolic}
    program = {k: v for k, v in config.items() if k in own}
    return TileConfig.of(program), TileConfig.of({k: v for k, v in config.items() if k not in own})


@dataclass(slots=True)
class Gate:
    """Lets configs pass that the compiler takes: traced as they are, verified, laid out."""

    question: OpenProgram
    check: Check
    refused: int = 0
    first_refusal: str = ""

    def accepts(self, config: TileConfig) -> bool:
        """Return whether a config makes a program that the device's compiler takes."""
        if self.refused >= MOST_REFUSED:
            return False
        knobs = self.question.knobs
        try:
            program = self.question.trace({k: v for k, v in config.items() if k in knobs})
            lowering = {k: v for k, v in config.items() if k not in knobs}
            self.check(program, {**self.question.lowering, **lowering})
        except TileError as error:
            self.refused += 1
            self.first_refusal = self.first_refusal or f"{config}: {error.code} {error.message}"
            return False
        return True
