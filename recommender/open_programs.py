"""Configs for any tile program: traced with its open knobs as symbols, estimated, ranked."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recommender.analytic import ANALYTIC_SPREAD, PREFILTER, estimate, estimate_each
from recommender.diversity import different
from recommender.errors import EmptySpace, NoClosedForm
from recommender.hardware import HardwareProfile
from recommender.kin import kin_of
from recommender.programs import UNITS
from recommender.recommendation import Recommendation
from recommender.remembered import Known, remembered
from recommender.space import SearchSpace, space_of
from recommender.tracing import Family, trace_all
from tilecore.errors import InvalidProblem, TileError, TypeMismatch
from tilecore.graph import TileGraph, evaluate
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import Knob, ProgramDefinition
from tilecore.recommending import OpenProgram, ProgramAdvice, RecommendedConfig, knob_kind
from tilecore.tile_config import MOST_RETURNED, KnobValue, TileConfig

MOST_REFUSED = 64  # configs that the compiler refuses, after which the answer stays shorter
Check = Callable[[PrimFunc, Mapping[str, KnobValue]], object]


def advise(
    question: OpenProgram, hardware: HardwareProfile, check: Check, known: Known | None = None
) -> ProgramAdvice:
    """Return ranked configs of a program.

    What was measured of the program, or is known of the library's gemm where the program is such
    a product, goes before the analytic model's choice (``remembered``, ``kin``).

    Args:
        question: the program and what is open.
        hardware: the device.
        check: (program, knobs of the lowering) -> raises TileError where the compiler refuses it.
        known: what was measured; None: the analytic model answers alone.

    Raises:
        NothingOpen: no parameter is open (RC608).
        NoClosedForm: sizes or lengths of loops are known at the call only (RC609).
        EmptySpace: no config can run on the device (RC602).
        InvalidProblem: a tensor has no elements (TC502).
        TypeMismatch: so many configs are never returned, or none is asked for (TC202).
        TileError: the program's own fault, whatever values its knobs get.
    """
    if not 1 <= question.top_k <= MOST_RETURNED:
        raise TypeMismatch(expected=f"top_k from 1 to {MOST_RETURNED}", found=str(question.top_k))
    traces = trace_all(question, hardware)
    for family in traces.families:
        _refuse_empty_tensors(question, family.graph.func)
    begin = time.perf_counter()
    try:
        spaces = spaces_of(question, hardware, traces.families)
        ranking = _Ranking(question, hardware, spaces, known)
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


def _refuse_empty_tensors(question: OpenProgram, func: PrimFunc) -> None:
    """Check that there is something to compute: a time per element of none is no number."""
    for tensor in func.buffers:
        for axis, extent in enumerate(tensor.shape):
            if int_value(extent) != 0:
                continue
            zeros = [k for k, v in question.fixed.items() if v == 0 and not isinstance(v, bool)]
            field = zeros[0] if len(zeros) == 1 else f"axis {axis} of {tensor.name}"
            raise InvalidProblem(field=field, expected="a size of at least 1", found=0)


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
    """Return the space of each family that has configs worth trying; if none has, that can run.

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
    return [space for space in found if not space.is_last_resort] or found


def assumptions(spaces: Iterable[SearchSpace]) -> tuple[str, ...]:
    """Return what the estimates of some spaces take for granted."""
    return tuple(dict.fromkeys(x for space in spaces for x in space.graph.assumptions))


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A config of a ranking: of a space, by the analytic model, or what else is known of one."""

    config: TileConfig
    space: SearchSpace
    time_s: float
    rank: int = 0  # by the analytic model
    found: Recommendation | None = None


class _Ranking:
    """The configs of all families, the most promising first.

    Measurements of the program go before what is known of a gemm like it, this before the analytic
    model's favourites; what is too far, or too doubtful, comes behind two of them.
    """

    def __init__(
        self, question: OpenProgram, hardware: HardwareProfile, spaces: list[SearchSpace],
        known: Known | None,
    ) -> None:  # fmt: skip
        self.spaces, self.cores = spaces, question.cores or hardware.cores
        self.legal = sum(map(len, spaces))
        self.enumerated = sum(s.enumerated for s in spaces)
        found: list[tuple[float, int, int]] = []
        favourites: list[tuple[SearchSpace, TileConfig]] = []
        for number, space in enumerate(spaces):
            times = estimate(space, threads=self.cores).time_s
            rows = np.argsort(times, kind="stable")[:PREFILTER].tolist()
            found += [(float(times[row]), number, row) for row in rows if np.isfinite(times[row])]
            favourites.append((space, space.config(rows[0])))
        modelled = [
            _Candidate(spaces[number].config(row), spaces[number], time_s, rank)
            for rank, (time_s, number, row) in enumerate(sorted(found)[:PREFILTER], 1)
        ]
        first, rest = ([], []) if known is None else self._known(question, favourites, known)
        self._order = [*first, *modelled[:2], *rest, *modelled[2:]]

    def _known(
        self, question: OpenProgram, favourites: Sequence[tuple[SearchSpace, TileConfig]],
        known: Known,
    ) -> tuple[list[_Candidate], list[_Candidate]]:  # fmt: skip
        """Return what was measured of the program and of gemm: before the model, and behind it."""
        own, kin = remembered(question, self.spaces, known), kin_of(question, favourites, known)
        first, rest = (
            [_Candidate(e.config, e.space, e.found.time_s, found=e.found) for e in (*mine, *theirs)]
            for mine, theirs in zip(own, kin, strict=True)
        )
        return first, rest

    def configs(self) -> Iterator[TileConfig]:
        """Yield configs, the most promising first."""
        return (candidate.config for candidate in self._order)

    def explained(self, position: int) -> RecommendedConfig:
        """Return a candidate with its reason."""
        chosen = self._order[position]
        program, lowering = _split(chosen.config, chosen.space.definition)
        if chosen.found is not None:
            return RecommendedConfig(
                config=program, lowering=lowering, time_s=chosen.time_s,
                interval_s=chosen.found.interval_s, bound_by=chosen.found.bound_by,
                rationale=chosen.found.rationale, source=chosen.found.source,
            )  # fmt: skip
        space, time_s = chosen.space, chosen.time_s
        (why,) = estimate_each(space, [chosen.config], threads=self.cores)
        return RecommendedConfig(
            config=program, lowering=lowering, time_s=time_s,
            interval_s=(time_s * ANALYTIC_SPREAD[0], time_s * ANALYTIC_SPREAD[1]),
            bound_by=why.bound_by,
            rationale=f"rank {chosen.rank} of {self.legal} legal configs by the analytic model; "
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
