"""SearchSpace: every config worth measuring for one problem on one device, as NumPy columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from recommender.cpu.choices import Columns, instruction
from recommender.errors import EmptySpace, UnknownCandidate
from recommender.factored import Factored, Grid
from recommender.hard_rule import KEPT, hard_rule
from recommender.hardware import HardwareProfile
from recommender.hashed import Hashed
from recommender.limits import (
    Limit,
    hard_limits,
    soft_limits,
    value_fault,
    with_sizes,
)
from recommender.open_shapes import TracedShape, traced
from recommender.straight_line import Numbers, StraightLine
from tilecore.errors import InvalidConfig
from tilecore.graph import Bindings, Contraction, TileGraph, sole_contraction
from tilecore.kernels.definition import (
    KernelDefinition,
    Knob,
    Problem,
    ProgramDefinition,
)
from tilecore.lazy import cached_property
from tilecore.tile_config import KnobValue, TileConfig


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """Candidates are rows 0..len-1; a row's config is its value in every column.

    They are enumerated when first asked for: who only asks about given configs does without.

    Attributes:
        limits_of: returns what configs must keep; asked once, by who looks at configs.
        values: per knob the values that span the space, in order.
        sizes: of the problem, where they are symbols in the graph.
    """

    definition: ProgramDefinition
    problem: Mapping[str, int | str | bool]
    hardware: HardwareProfile
    graph: TileGraph
    site: Contraction | None
    limits_of: Callable[[], Sequence[Limit]]
    values: Mapping[str, tuple[KnobValue, ...]]
    sizes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def build(
        cls, definition: KernelDefinition, problem: Problem, hardware: HardwareProfile
    ) -> SearchSpace:
        """Return the space of ``definition`` for a canonical problem.

        Raises:
            EmptySpace: the kernel has no knob values for the device, or no legal config (RC602).
        """
        found = cls.outline(definition, problem, hardware)
        found.enumerate()
        return found

    @classmethod
    def outline(
        cls, definition: KernelDefinition, problem: Problem, hardware: HardwareProfile
    ) -> SearchSpace:
        """Return the same before its candidates are enumerated; there may be none.

        Raises:
            EmptySpace: the kernel has no knob values for the device (RC602).
        """
        return _outline(
            Hashed(definition.on(hardware.kind), definition.name),
            tuple(sorted(problem.items())),
            Hashed(hardware, hardware.key),
        )

    def enumerate(self) -> None:
        """Find the candidates.

        Raises:
            EmptySpace: there are none (RC602).
        """
        _ = self._candidates

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """What configs must keep to run, and to be worth trying."""
        return tuple(self.limits_of())

    @cached_property
    def _candidates(self) -> tuple[Columns, np.ndarray, bool]:
        hard = [limit for limit in self.limits if limit.is_hard]
        columns, codes = _enumerate(self.values, self.limits)
        is_last_resort = not len(codes)
        if is_last_resort and len(hard) < len(self.limits):
            columns, codes = _enumerate(self.values, hard)
        if not len(codes):
            reason = "; ".join(limit.expected for limit in hard)
            name = self.hardware.name
            raise EmptySpace(kernel=self.definition.name, hardware=name, reason=reason)
        return columns, codes, is_last_resort

    @property
    def is_last_resort(self) -> bool:
        """Whether no config is worth trying: the candidates are then all that can run."""
        return self._candidates[2]

    @property
    def factored(self) -> Columns:
        """Per knob its column, as the models take it."""
        return self._candidates[0]

    @property
    def codes(self) -> np.ndarray:
        """Mixed-radix number of every candidate over ``values``, ascending."""
        return self._candidates[1]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def columns(self) -> Columns:
        """Per knob the value of every candidate, as plain arrays."""
        return {knob: np.asarray(column) for knob, column in self.factored.items()}

    @property
    def enumerated(self) -> int:
        """Number of configs that were looked at, legal ones among them."""
        return math.prod(len(options) for options in self.values.values())

    def config(self, row: int) -> TileConfig:
        """Return the config of a candidate."""
        return self.config_of(int(self.codes[row]))

    def config_of(self, code: int) -> TileConfig:
        """Return the config with a number of ``codes``."""
        found = {}
        for knob, options in reversed(tuple(self.values.items())):
            code, place = divmod(code, len(options))
            found[knob] = options[place]
        return TileConfig.of(found)

    def index(self, config: Mapping[str, KnobValue]) -> int:
        """Return the row of ``config``.

        Raises:
            UnknownCandidate: the config is not in the space (RC605).
        """
        row = self._row(self._code(config))
        if row is None:
            raise UnknownCandidate(kernel=self.definition.name, config=str(config))
        return row

    def contains(self, config: Mapping[str, KnobValue]) -> bool:
        """Return whether ``config`` is a candidate."""
        return self._row(self._code(config)) is not None

    def explain(self, config: Mapping[str, KnobValue]) -> list[str]:
        """Return one line per limit that ``config`` breaks; empty for a candidate worth trying."""
        faults = self._value_faults(config)
        lines = [f"{knob}={value}: expected {want}" for knob, value, want in faults]
        if faults:
            return lines
        columns = self.table([config])
        for limit in self.limits:
            if not np.all(limit.holds(columns)):
                kind = "" if limit.is_hard else " (legal, not worth trying)"
                value = config.get(limit.knob, "default")
                lines.append(f"{limit.knob}={value}: expected {limit.expected}{kind}")
        return lines

    def check(self, config: Mapping[str, KnobValue]) -> None:
        """Return if ``config`` can run, be it in the space or not.

        Raises:
            InvalidConfig: a value is out of range or a hard limit is broken (TC303).
        """
        for knob, value, want in self._value_faults(config):
            raise InvalidConfig(knob=knob, value=value, expected=want)
        columns = self.table([config])
        for limit in self.limits:
            if limit.is_hard and not np.all(limit.holds(columns)):
                value = config.get(limit.knob, "default")
                raise InvalidConfig(knob=limit.knob, value=value, expected=limit.expected)

    def can_run(self, configs: Sequence[Mapping[str, KnobValue]]) -> list[bool]:
        """Return of each config whether it can run, be it in the space or not (see ``check``)."""
        are_fine = [not self._value_faults(config) for config in configs]
        fine = [config for config, is_fine in zip(configs, are_fine, strict=True) if is_fine]
        kept = iter(self._keep_hard_limits(fine))
        return [is_fine and next(kept) for is_fine in are_fine]

    def _keep_hard_limits(self, configs: Sequence[Mapping[str, KnobValue]]) -> list[bool]:
        """Return of each config, whose values are in range, whether it keeps the hard limits."""
        if self.sizes:
            device = Hashed(self.hardware, self.hardware.key)
            keeps = hard_rule(self.graph, tuple(self.values), device, tuple(self.sizes))
            found = self.each(keeps, configs)
            if found is not None:
                return [x[KEPT] for x in found]
        columns, kept = self.table(configs), np.ones(len(configs), bool)
        for limit in self.limits:
            if limit.is_hard:
                kept &= np.asarray(limit.holds(columns))
        return kept.tolist()

    def neighbours(self, config: Mapping[str, KnobValue]) -> list[int]:
        """Return the candidates that differ from ``config`` in one knob.

        Numbers move to the next smaller or larger value of the space, choices to any other.
        """
        rows = []
        for knob, values in self.values.items():
            for value in _adjacent(values, config.get(knob, self._default(knob))):
                code = self._code({**config, knob: value})
                row = self._row(code)
                if row is not None:
                    rows.append(row)
        return rows

    def table(self, configs: Sequence[Mapping[str, KnobValue]]) -> Columns:
        """Return columns for any configs (missing knobs take their default)."""
        rows = self.given(configs)
        knobs = self.definition.knobs_of(self.hardware.kind)
        return {k.name: np.array([row[k.name] for row in rows]) for k in knobs}

    def given(self, configs: Sequence[Mapping[str, KnobValue]]) -> list[dict[str, KnobValue]]:
        """Return the values of all knobs of any configs (missing ones take their default)."""
        knobs = self.definition.knobs_of(self.hardware.kind)
        rows = map(_values_of, configs)
        return [{k.name: row.get(k.name, k.default) for k in knobs} for row in rows]

    def each(
        self, straight: StraightLine, configs: Sequence[Mapping[str, KnobValue]]
    ) -> list[Numbers] | None:
        """Return what straight-line code says of each config; None: of one it is left to NumPy."""
        found = []
        for row in self.given(configs):
            numbers = straight({**row, **self.sizes})
            if numbers is None:
                return None
            found.append(numbers)
        return found

    def rows(self, indices: np.ndarray) -> Columns:
        """Return the columns of some candidates."""
        return {knob: column[indices] for knob, column in self.factored.items()}

    def known(self, columns: Columns) -> Bindings:
        """Return the values of all symbols of the graph: knobs (per config) and sizes."""
        return with_sizes(columns, self.sizes)

    def _default(self, knob: str) -> KnobValue:
        return next(k.default for k in self.definition.knobs if k.name == knob)

    def _value_faults(self, config: Mapping[str, KnobValue]) -> list[tuple[str, KnobValue, str]]:
        faults = ((k, v, value_fault(self._knobs, k, v)) for k, v in _values_of(config).items())
        return [fault for fault in faults if fault[2]]

    @cached_property
    def _knobs(self) -> Mapping[str, Knob]:
        return {k.name: k for k in self.definition.knobs}

    def _code(self, config: Mapping[str, KnobValue]) -> int | None:
        code = 0
        for knob, values in self.values.items():
            value = config.get(knob, self._default(knob))
            if value not in values:
                return None
            code = code * len(values) + values.index(value)
        return code if set(config) <= set(self.values) else None

    def _row(self, code: int | None) -> int | None:
        if code is None:
            return None
        row = int(np.searchsorted(self.codes, code))
        return row if row < len(self.codes) and self.codes[row] == code else None


def _values_of(config: Mapping[str, KnobValue]) -> Mapping[str, KnobValue]:
    """Return a config as a dict: a ``TileConfig`` looks through all its knobs for each value."""
    return dict(config.items_) if isinstance(config, TileConfig) else config


def _adjacent(values: tuple[KnobValue, ...], value: KnobValue) -> Iterator[KnobValue]:
    if isinstance(values[0], str):
        yield from (v for v in values if v != value)
        return
    smaller = [v for v in values if not isinstance(v, str) and int(v) < int(value)]
    larger = [v for v in values if not isinstance(v, str) and int(v) > int(value)]
    yield from smaller[-1:]
    yield from larger[:1]


@lru_cache(maxsize=16)  # some megabytes each
def _outline(
    kernel: Hashed, problem_items: tuple[tuple[str, int | str | bool], ...], device: Hashed
) -> SearchSpace:
    definition, hardware, problem = kernel.value, device.value, dict(problem_items)
    assert isinstance(definition, KernelDefinition)
    assert isinstance(hardware, HardwareProfile)
    found = traced(definition, problem)
    return _outline_of(definition, problem, hardware, found)


def space_of(
    definition: ProgramDefinition, problem: Problem, hardware: HardwareProfile, graph: TileGraph
) -> SearchSpace:
    """Return the space of a program whose fused tile graph is known.

    Raises:
        EmptySpace: the program has no knob values for the device, or no legal config (RC602).
    """
    found = outline_of(definition, problem, hardware, graph)
    found.enumerate()
    return found


def outline_of(
    definition: ProgramDefinition, problem: Problem, hardware: HardwareProfile, graph: TileGraph
) -> SearchSpace:
    """Return the same before its candidates are enumerated; there may be none.

    Raises:
        EmptySpace: the program has no knob values for the device (RC602).
    """
    shape = TracedShape(graph, sole_contraction(graph), {})
    return _outline_of(definition, problem, hardware, shape)


def _outline_of(
    definition: ProgramDefinition, problem: Problem, hardware: HardwareProfile, shape: TracedShape
) -> SearchSpace:
    graph, site = shape.graph, shape.site
    values = {k.name: k.values_on(hardware.kind) for k in definition.knobs_of(hardware.kind)}
    bare = [knob for knob, options in values.items() if not options]
    if bare or not values:
        reason = f"no values for {', '.join(bare) or 'any knob'} on {hardware.kind}"
        raise EmptySpace(kernel=definition.name, hardware=hardware.name, reason=reason)
    if hardware.kind == "cpu":
        values |= _settled(site, values, hardware)
    elif isinstance(definition, KernelDefinition):
        values |= _idle(definition, graph, values)

    def limits() -> Sequence[Limit]:
        if hardware.kind != "cpu":
            from recommender.gpu.limits import gpu_limits  # questions about CPUs need none of it

            return gpu_limits(graph, site, values, hardware, shape.sizes)
        found = hard_limits(graph, values, hardware, shape.sizes)
        if site is not None and site.a.source is not None and site.b.source is not None:
            knobs = {k.name: k for k in definition.knobs}
            found += soft_limits(site, knobs, hardware, shape.sizes)
        return found

    return SearchSpace(definition, problem, hardware, graph, site, limits, values, shape.sizes)


def _settled(
    site: Contraction | None, knobs: Iterable[str], hardware: HardwareProfile
) -> dict[str, tuple[KnobValue, ...]]:
    """Return the values of knobs that make no difference: tiles leave no choice of registers."""
    dot = None if site is None else instruction(site, hardware)
    if dot is None or not dot.is_tiled:
        return {}
    return {knob: (0,) for knob in ("micro_m", "micro_n") if knob in knobs}


def _idle(
    definition: KernelDefinition, graph: TileGraph, values: Mapping[str, tuple[KnobValue, ...]]
) -> dict[str, tuple[KnobValue, ...]]:
    """Return one value of each knob that the kernel's program for this problem has no use for."""
    used = {var.name for var in graph.variables}
    found: dict[str, tuple[KnobValue, ...]] = {}
    for knob in definition.knobs:
        if knob.symbolic and knob.name in values and knob.name not in used:
            known = values[knob.name]
            found[knob.name] = (knob.default if knob.default in known else known[0],)
    return found


def _enumerate(
    values: Mapping[str, tuple[KnobValue, ...]], limits: Sequence[Limit]
) -> tuple[Columns, np.ndarray]:
    """Return the columns and codes of the configs that keep all limits."""
    sizes = [len(options) for options in values.values()]
    choices = {knob: np.array(options) for knob, options in values.items()}
    everything = Grid(sizes)
    columns = everything.columns(choices)
    few: list[Factored] = []
    whole: list[np.ndarray] = []  # of so many knobs that there is an entry per config
    for limit in limits:
        holds: Any = limit.holds(columns)
        if isinstance(holds, Factored):
            few.append(holds)
        else:
            whole.append(np.broadcast_to(holds, (len(everything),)))
    kept = everything.span.kept(few)
    if whole:
        codes = kept.codes
        for mask in whole:
            codes = codes[mask[codes]]
        kept = everything.span.grid(codes)
    return kept.columns(choices), kept.codes
