"""The configs of a portable program at one problem on one device, as values alone.

A program that somebody sent is looked at in a process of its own (its closed forms may cost
anything); what comes back is this table: no program, no closures, the most promising configs of all
variants with what the analytic model says of each. Recommendations and tuning runs go by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recommender.analytic import Estimates, estimate
from recommender.diversity import different
from recommender.errors import EmptySpace, NoClosedForm
from recommender.hardware import HardwareProfile
from recommender.knob_values import MOST_CONFIGS, knob_values, thinned
from recommender.open_programs import Check, Gate, assumptions, spaces_of
from recommender.search import Landscape
from recommender.space import SearchSpace
from recommender.tracing import Family
from tilecore.errors import InvalidConfig, TypeMismatch
from tilecore.graph import build, parameter_bytes
from tilecore.lazy import cached_property
from tilecore.portable import PortableProgram, Variant, at_sizes
from tilecore.recommending import OpenProgram
from tilecore.tile_config import KnobValue, TileConfig

MOST_ROWS = 1024
CHECKED = 12  # rows that the compiler's tile inference is asked for
Values = Mapping[str, KnobValue]


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
    *, fixed: Values | None = None, threads: int = 0,
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
    settled = _settled(program, fixed or {})
    variants = [v for v in program.variants if all(settled.get(k, x) == x for k, x in
                                                   v.values.items())]  # fmt: skip
    if not variants:
        knob = next(k for k in program.chosen if k in settled)
        program.variant({**program.variants[0].values, **settled})
        raise InvalidConfig(knob=knob, value=settled[knob], expected="a value of a variant sent")
    question = _question(program, problem, settled, variants)
    try:
        spaces = spaces_of(question, hardware, _families(question, problem, variants, hardware))
        ranked = _Ranked(spaces, threads or hardware.cores)
        if not ranked.order:
            reason = "the model expects no time of any config"
            raise EmptySpace(kernel=program.name, hardware=hardware.name, reason=reason)
    except TypeMismatch as error:  # of a closed form
        found = error.fields.get("found", error.message)
        raise NoClosedForm(program=program.name, found=found) from error
    table = ranked.table(_default(program, settled))
    table = replace(table, tensor_bytes=parameter_bytes(variants[0].func, problem))
    return _checked(table, question, hardware, check)


def _settled(program: PortableProgram, fixed: Values) -> dict[str, KnobValue]:
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
    program: PortableProgram, problem: Mapping[str, Any], settled: Values,
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


def _families(
    question: OpenProgram, problem: Mapping[str, Any], variants: Sequence[Variant],
    hardware: HardwareProfile,
) -> list[Family]:  # fmt: skip
    """Return a family per variant: its closed forms, and values of every knob."""
    graphs = []
    for variant in variants:
        symbols = {k: v for k, v in variant.symbols.items() if k in question.knobs}
        func = question.trace({**symbols, **variant.values})
        graphs.append(build(at_sizes(func, problem)))
    values = knob_values(question, graphs, hardware)
    rest = {k: v for k, v in values.items() if k not in variants[0].values}
    few = thinned(rest, max(1, MOST_CONFIGS // len(variants)))
    return [
        Family(v.values, g, {k: (v.values[k],) if k in v.values else few[k] for k in values})
        for v, g in zip(variants, graphs, strict=True)
    ]


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


def _default(program: PortableProgram, settled: Values) -> TileConfig | None:
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
