"""The configs of a portable program at one problem on one device, as values alone.

A program that somebody sent is looked at in a process of its own (its closed forms may cost
anything); what comes back is this table: no program, no closures, the most promising configs of all
variants with what the analytic model says of each. Recommendations and tuning runs go by it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recommender.analytic import Estimates, estimate
from recommender.around import far_around
from recommender.diversity import different
from recommender.errors import EmptySpace, NoClosedForm
from recommender.hardware import HardwareProfile
from recommender.knob_values import MOST_CONFIGS, Values, knob_values, left_out, thinned
from recommender.open_programs import Check, Gate, assumptions, definition_of, spaces_of
from recommender.search import Landscape
from recommender.space import SearchSpace, outline_of
from recommender.tracing import Family
from tilecore.errors import InvalidConfig, TypeMismatch
from tilecore.graph import TileGraph, build, parameter_bytes
from tilecore.lazy import cached_property
from tilecore.portable import PortableProgram, Variant, at_sizes
from tilecore.recommending import OpenProgram
from tilecore.tile_config import KnobValue, TileConfig

MOST_ROWS = 1024
MOST_NUMBERED = 1 << 62  # configs that have a number
CHECKED = 12  # rows that the compiler's tile inference is asked for
Settled = Mapping[str, KnobValue]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rows:
    """Configs of a program as a table has them (see ``ProgramTable``)."""

    configs: tuple[TileConfig, ...] = ()
    time_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
    alone_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
    bound_by: tuple[str, ...] = ()
    rationale: tuple[str, ...] = ()

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return the configs of all parts of which a time is expected."""
        rows = [(p, i) for p in parts for i in np.flatnonzero(np.isfinite(p.time_s)).tolist()]
        return cls(
            configs=tuple(p.configs[i] for p, i in rows),
            time_s=np.array([p.time_s[i] for p, i in rows], float),
            alone_s=np.array([p.alone_s[i] for p, i in rows], float),
            bound_by=tuple(p.bound_by[i] for p, i in rows),
            rationale=tuple(p.rationale[i] for p, i in rows),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class ProgramTable:
    """The most promising configs, the fastest by the analytic model first.

    Attributes:
        configs: values of the program's knobs and, where some are open, of the lowering.
        default: what the author would have, or the first row where a knob has no default.
        time_s, alone_s: expected time with the threads asked for, and with one.
        bound_by, rationale: what bounds each, and why it is here.
        accepted: rows that tile inference takes, different from each other, the fastest first.
        work_flop: operations of the program (1 FMA = 2 FLOP).
        legal, enumerated: configs that the device can run, of all that were looked at.
        notes: what else there is to know.
        tensor_bytes: of what the program is called with (``parameter_bytes``).
        is_whole: whether these are all legal configs of all values that knobs may have.
    """

    configs: tuple[TileConfig, ...]
    default: TileConfig
    time_s: np.ndarray
    alone_s: np.ndarray
    bound_by: tuple[str, ...]
    rationale: tuple[str, ...]
    accepted: tuple[int, ...]
    work_flop: float
    legal: int
    enumerated: int
    notes: tuple[str, ...] = ()
    tensor_bytes: int = 0
    is_whole: bool = True

    # --- recommender.screening.Candidates -----------------------------------------------------

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def landscape(self) -> Landscape:
        """What a search may know before it starts."""
        return Landscape(self.time_s, self._features(), self.neighbours)

    def config(self, row: int) -> TileConfig:
        """Return the config of a row."""
        return self.configs[row]

    def row(self, config: TileConfig) -> int | None:
        """Return the row of a config, None where it is none of the candidates."""
        return self._rows.get(config)

    def scale(self, config: TileConfig) -> float:
        """Return the expected time with all threads over that with one."""
        row = self.row(config)
        return 1.0 if row is None else float(self.time_s[row] / self.alone_s[row])

    def predicted_s(self, config: TileConfig, threads: int) -> float | None:
        """Return the expected time with one thread, or (0) with those asked for."""
        row = self.row(config)
        if row is None:
            return None
        return float(self.alone_s[row] if threads == 1 else self.time_s[row])

    def with_rows(self, more: Rows) -> ProgramTable:
        """Return the table with further configs behind its own, whose rows stay what they are."""
        new = [row for row, config in enumerate(more.configs) if config not in self._rows]
        return replace(
            self,
            configs=(*self.configs, *(more.configs[row] for row in new)),
            time_s=np.concatenate([self.time_s, more.time_s[new]]),
            alone_s=np.concatenate([self.alone_s, more.alone_s[new]]),
            bound_by=(*self.bound_by, *(more.bound_by[row] for row in new)),
            rationale=(*self.rationale, *(more.rationale[row] for row in new)),
        )

    def neighbours(self, row: int) -> list[int]:
        """Return the rows that differ in one knob, by the next value of a number."""
        config, found = self.configs[row], []
        for knob, values in self._values.items():
            place = values.index(config[knob])
            is_text = isinstance(values[0], str)
            near = values if is_text else values[max(0, place - 1) : place + 2]
            found += [self.row(config.replace(**{knob: v})) for v in near if v != config[knob]]
        return [r for r in found if r is not None]

    @cached_property
    def _rows(self) -> dict[TileConfig, int]:
        return {config: row for row, config in enumerate(self.configs)}

    @cached_property
    def _values(self) -> dict[str, list[KnobValue]]:
        return {
            knob: sorted({c[knob] for c in self.configs}, key=lambda v: (str(type(v)), v))
            for knob in self.configs[0]
        }

    def _features(self) -> np.ndarray:
        """Return the knobs as numbers, logarithms of sizes, and the expected times."""
        columns = [np.log(self.time_s), np.log(self.time_s / self.alone_s)]
        for knob, values in self._values.items():
            own = [c[knob] for c in self.configs]
            if isinstance(values[0], str):
                columns += [np.array([v == value for v in own], float) for value in values[1:]]
            else:
                columns.append(np.array([math.log2(max(1, int(v))) for v in own]))
        return np.stack(columns, axis=1).astype(np.float32)


def tabulate(
    program: PortableProgram, problem: Mapping[str, Any], hardware: HardwareProfile, check: Check,
    *, fixed: Settled | None = None, threads: int = 0,
) -> ProgramTable:  # fmt: skip
    """Return the table of a program.

    Args:
        program: sizes and knobs open.
        problem: a value for each size (``PortableProgram.parse_problem``).
        hardware: the device.
        check: (program, knobs of the lowering) -> raises TileError where the compiler refuses it.
        fixed: knobs that the asker has settled.
        threads: cores used; 0: all.

    Raises:
        InvalidConfig: a fixed knob is none of the program's, or has no such variant (TC303).
        NoClosedForm: lengths of loops are known at the call only (RC609).
        EmptySpace: no config can run on the device, or be compiled for it (RC602).
        TileError: the sizes make no program.
    """
    opened = _open(program, problem, hardware, fixed or {})
    few = thinned(opened.shared, max(1, MOST_CONFIGS // len(opened.variants)))
    try:
        spaces = spaces_of(opened.question, hardware, opened.families(few))
        ranked = _Ranked(spaces, threads or hardware.cores)
        if not ranked.order:
            reason = "the model expects no time of any config"
            raise EmptySpace(kernel=program.name, hardware=hardware.name, reason=reason)
    except TypeMismatch as error:  # of a closed form
        found = error.fields.get("found", error.message)
        raise NoClosedForm(program=program.name, found=found) from error
    table = ranked.table(_default(program, opened.settled))
    notes = left_out(opened.shared, few)
    table = replace(
        table, tensor_bytes=parameter_bytes(opened.variants[0].func, problem),
        notes=(*notes, *table.notes), is_whole=not notes and table.legal == len(table),
    )  # fmt: skip
    return _checked(table, opened.question, hardware, check)


def look_around(
    program: PortableProgram, problem: Mapping[str, Any], hardware: HardwareProfile,
    centres: Sequence[TileConfig], also: Sequence[TileConfig] = (), *,
    fixed: Settled | None = None, threads: int = 0,
) -> Rows:  # fmt: skip
    """Return legal configs around some, of all values that knobs may have (``far_around``).

    Args:
        program: sizes and knobs open.
        problem: a value for each size.
        hardware: the device.
        centres: configs of the program.
        also: configs that are returned themselves, where they are legal.
        fixed: knobs that the asker has settled.
        threads: cores used; 0: all.

    Raises:
        TileError: as ``tabulate`` does, but not where nothing is legal.
    """
    opened = _open(program, problem, hardware, fixed or {})
    # Their numbers fit 64 bits: of more combinations than that some values are left out.
    every = thinned(opened.shared, MOST_NUMBERED)
    found: list[Rows] = []
    try:
        for family in opened.families(every):
            definition = definition_of(opened.question, family)
            space = outline_of(definition, {}, hardware, family.graph)
            near, own = (
                [c for c in configs if family.chosen.items() <= c.items()]
                for configs in (centres, also)
            )
            if near or own:
                found.append(_around(space, near, own, threads or hardware.cores))
    except TypeMismatch as error:  # of a closed form
        text = error.fields.get("found", error.message)
        raise NoClosedForm(program=program.name, found=text) from error
    return Rows.joined(found)


def _around(
    space: SearchSpace, centres: Sequence[TileConfig], also: Sequence[TileConfig], threads: int
) -> Rows:
    """Return what is around some configs of one space, and others of it that keep its limits.

    Where the centres themselves are not worth trying, nothing of the program was: then all counts
    that can run.
    """
    is_hard = all(space.explain(centre) for centre in centres)
    codes = far_around(space, centres, only_hard=is_hard).codes.tolist() if centres else []
    kept = itertools.compress(also, space.can_run(also)) if also else ()
    configs = tuple(dict.fromkeys([*map(space.config_of, codes), *kept]))
    if not configs:
        return Rows()
    whole = estimate(space, space.table(configs), threads=threads)
    return Rows(
        configs=configs, time_s=whole.time_s, alone_s=whole.on(1).time_s,
        bound_by=tuple(map(str, whole.bound_by)),
        rationale=tuple(
            f"around what is fast; {whole.at(row).explain()}" for row in range(len(configs))
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A program at one problem, and what is open of it.

    Attributes:
        question: its knobs, and how it is traced.
        settled: knobs that the asker has settled.
        variants: those that have these values.
        graphs: closed forms of each variant.
        values: of every knob.
    """

    question: OpenProgram
    settled: Settled
    variants: Sequence[Variant]
    graphs: Sequence[TileGraph]
    values: Values

    @property
    def shared(self) -> Values:
        """The values of the knobs that all variants leave open."""
        return {k: v for k, v in self.values.items() if k not in self.variants[0].values}

    def families(self, few: Values) -> list[Family]:
        """Return a family per variant, with these values of the knobs that all leave open."""
        return [
            Family(v.values, g, {k: (v.values[k],) if k in v.values else few[k]
                                 for k in self.values})
            for v, g in zip(self.variants, self.graphs, strict=True)
        ]  # fmt: skip


def _open(
    program: PortableProgram, problem: Mapping[str, Any], hardware: HardwareProfile, fixed: Settled
) -> _Opened:
    """Return a program at one problem; raises as ``tabulate`` does of faulty questions."""
    settled = _settled(program, fixed)
    variants = [v for v in program.variants if all(settled.get(k, x) == x for k, x in
                                                   v.values.items())]  # fmt: skip
    if not variants:
        knob = next(k for k in program.chosen if k in settled)
        program.variant({**program.variants[0].values, **settled})
        raise InvalidConfig(knob=knob, value=settled[knob], expected="a value of a variant sent")
    question = _question(program, problem, settled, variants)
    graphs = []
    try:
        for variant in variants:
            symbols = {k: v for k, v in variant.symbols.items() if k in question.knobs}
            func = question.trace({**symbols, **variant.values})
            graphs.append(build(at_sizes(func, problem)))
        values = knob_values(question, graphs, hardware)
    except TypeMismatch as error:  # of a closed form
        found = error.fields.get("found", error.message)
        raise NoClosedForm(program=program.name, found=found) from error
    return _Opened(question=question, settled=settled, variants=variants, graphs=graphs,
                   values=values)  # fmt: skip


def _settled(program: PortableProgram, fixed: Settled) -> dict[str, KnobValue]:
    known = {knob.name: knob for knob in program.knobs}
    for name, value in fixed.items():
        if name not in known:
            expected = f"a knob among {', '.join(known) or 'none'}"
            raise InvalidConfig(knob=name, value=value, expected=expected)
        named = known[name].values
        if named is not None and value not in named:
            expected = f"one of {', '.join(map(str, named))}"
            raise InvalidConfig(knob=name, value=value, expected=expected)
        is_whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if name not in program.chosen and not is_whole:
            raise InvalidConfig(knob=name, value=value, expected="a positive integer")
    return dict(fixed)


def _question(
    program: PortableProgram, problem: Mapping[str, Any], settled: Settled,
    variants: Sequence[Variant],
) -> OpenProgram:  # fmt: skip
    """Return what a program and its answered sizes leave open."""
    sizes = {name: problem[name] for name in program.sizes}
    space: dict[str, tuple[KnobValue, ...]] = {k.name: k.values for k in program.knobs
                                               if k.values is not None}  # fmt: skip
    space |= {k: tuple(dict.fromkeys(v.values[k] for v in variants)) for k in program.chosen}
    space |= {k: (v,) for k, v in settled.items()}
    return OpenProgram(
        name=program.name,
        trace=lambda knobs: program.program({**sizes, **knobs}),
        knobs={k.name: k.default for k in program.knobs},
        space={**space, **program.space},
        lowering=program.fixed,
    )


class _Ranked:
    """The configs of all spaces, the fastest first."""

    def __init__(self, spaces: Sequence[SearchSpace], threads: int) -> None:
        self.spaces = spaces
        self.whole = [estimate(space, threads=threads) for space in spaces]
        self.alone = [found.on(1) for found in self.whole]
        found: list[tuple[float, int, int]] = []
        for number, estimates in enumerate(self.whole):
            times = estimates.time_s
            rows = np.argsort(times, kind="stable")[:MOST_ROWS].tolist()
            found += [(float(times[r]), number, r) for r in rows if np.isfinite(times[r])]
        self.order = sorted(found)[:MOST_ROWS]

    def table(self, default: TileConfig | None) -> ProgramTable:
        """Return the table, the author's default among its rows where it is legal."""
        order = list(self.order)
        wanted = None if default is None else self._place(default)
        if wanted is not None and wanted not in order:
            order = sorted([*order[: MOST_ROWS - 1], wanted])
        configs = tuple(self.spaces[number].config(row) for _, number, row in order)
        first = configs[0] if wanted is None else configs[order.index(wanted)]
        legal = sum(map(len, self.spaces))
        return ProgramTable(
            configs=configs, default=first,
            time_s=np.array([time_s for time_s, _, _ in order]),
            alone_s=np.array([self.alone[number].time_s[row] for _, number, row in order]),
            bound_by=tuple(str(bounds[row]) for bounds, row in self._each(order)),
            rationale=tuple(self._why(order, legal)), accepted=(),
            work_flop=self.spaces[0].definition.work_flop({}), legal=legal,
            enumerated=sum(space.enumerated for space in self.spaces),
            notes=assumptions(self.spaces),
        )  # fmt: skip

    def _place(self, config: TileConfig) -> tuple[float, int, int] | None:
        for number, space in enumerate(self.spaces):
            whole = config.replace(**{
                k: values[0] for k, values in space.values.items() if k not in config
            })  # fmt: skip
            if space.contains(whole):
                row = space.index(whole)
                return float(self.whole[number].time_s[row]), number, row
        return None

    def _each(
        self, order: Sequence[tuple[float, int, int]]
    ) -> Iterator[tuple[np.ndarray, int]]:  # fmt: skip
        bounds = [estimates.bound_by for estimates in self.whole]
        return ((bounds[number], row) for _, number, row in order)

    def _why(self, order: Sequence[tuple[float, int, int]], legal: int) -> Iterator[str]:
        for rank, (_, number, row) in enumerate(order, 1):
            found: Estimates = self.whole[number]
            explained = found.at(row).explain()
            yield f"rank {rank} of {legal} legal configs by the analytic model; {explained}"


def _default(program: PortableProgram, settled: Settled) -> TileConfig | None:
    values = {k.name: settled.get(k.name, k.default) for k in program.knobs}
    known = {name: value for name, value in values.items() if value is not None}
    return TileConfig.of(known) if len(known) == len(values) else None


def _checked(
    table: ProgramTable, question: OpenProgram, hardware: HardwareProfile, check: Check
) -> ProgramTable:
    """Return the table with the rows that the compiler takes.

    Raises:
        EmptySpace: it takes none (RC602).
    """
    gate = Gate(question, check)
    least = min(2, len(table.configs[0]))
    chosen = []
    for row, _ in different(table.configs, least, gate.accepts):
        chosen.append(row)
        if len(chosen) == CHECKED:
            break
    if not chosen:
        reason = f"the compiler refuses all that were tried: {gate.first_refusal}"
        raise EmptySpace(kernel=question.name, hardware=hardware.name, reason=reason)
    notes = table.notes
    if gate.refused:
        notes += (f"{gate.refused} config(s) left out, as {gate.first_refusal}",)
    default = table.default if gate.accepts(table.default) else table.configs[chosen[0]]
    return replace(table, accepted=tuple(chosen), notes=notes, default=default)
