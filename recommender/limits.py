"""Limits of a search space: what a config must keep to run, and what is not worth trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from recommender.cpu.choices import Columns, Tiling, needed_extents
from recommender.hardware import HardwareProfile
from recommender.straight_line import plain
from tilecore.graph import Bindings, Contraction, TileGraph, evaluate
from tilecore.inference.cpu.dots import TILE_ROWS
from tilecore.kernels.definition import Knob
from tilecore.tile_config import KnobValue

LATENCY_BOUND_ACCUMULATORS = 8  # 4 cycles of FMA latency x 2 ports (Intel optimization manual)
WORKSPACE_BYTES = 64 << 20  # scratch of one block beyond which a launch is refused


@dataclass(frozen=True, slots=True)
class Limit:
    """One condition on configs.

    Attributes:
        knob: the knob to change first.
        expected: what must hold, with the numbers of this problem and device.
        holds: columns -> mask.
        is_hard: a config that breaks it does not run; otherwise it is only not worth trying.
    """

    knob: str
    expected: str
    holds: Callable[[Columns], np.ndarray]
    is_hard: bool


def with_sizes(columns: Columns, sizes: Mapping[str, int]) -> Bindings:
    """Return the values of all symbols of a graph: knobs (per config) and sizes of the problem."""
    return Bindings({**columns, **{name: plain(size) for name, size in sizes.items()}})


def hard_limits(
    graph: TileGraph, knobs: Iterable[str], hardware: HardwareProfile, sizes: Mapping[str, int]
) -> list[Limit]:
    """Return what every config must keep on ``hardware``; values were checked by value_fault.

    ``sizes``: of the problem, where they are symbols in the graph.
    """
    registers = hardware.vector_registers

    def fits(c: Columns) -> np.ndarray:
        rows, vectors = c["micro_m"], c["micro_n"]
        kept: np.ndarray = (
            (rows == 0) | (vectors == 0) | (rows * vectors + vectors + 1 <= registers)
        )
        return kept

    def scratch(c: Columns) -> np.ndarray:
        known = with_sizes(c, sizes)
        live = [evaluate(e, known) for x in graph.launches for e in x.live_bytes.values()]
        return np.broadcast_to(sum(live) <= WORKSPACE_BYTES, (len(next(iter(c.values()))),))

    first = next(iter(sorted(_symbols(graph) - set(sizes))), "block_M")
    limits = [Limit(first, f"tiles of one block within {WORKSPACE_BYTES >> 20} MiB", scratch, True)]
    if {"micro_m", "micro_n"} <= set(knobs):
        expected = f"micro_m * micro_n + micro_n + 1 <= {registers} registers"
        limits.insert(0, Limit("micro_m", expected, fits, True))
    return limits


class _LastTiling:
    """Tile counts, computed once for all limits that look at the same columns."""

    def __init__(
        self, site: Contraction, hardware: HardwareProfile, sizes: Mapping[str, int]
    ) -> None:
        self._site, self._hardware, self._sizes = site, hardware, sizes
        self._last: tuple[Columns, Tiling] | None = None

    def of(self, columns: Columns) -> Tiling:
        """Return the tile counts of some columns."""
        if self._last is None or self._last[0] is not columns:
            known = with_sizes(columns, self._sizes)
            self._last = columns, Tiling(self._site, known, self._hardware)
        return self._last[1]


def soft_limits(
    site: Contraction, knobs: Mapping[str, Knob], hardware: HardwareProfile,
    sizes: Mapping[str, int],
) -> list[Limit]:  # fmt: skip
    """Return what a config of a matrix product should keep to be worth a measurement."""
    l2 = hardware.l2_bytes

    tiling = _LastTiling(site, hardware, sizes)

    def rule(knob: str, expected: str, test: Callable[..., np.ndarray]) -> Limit:
        return Limit(knob, expected, lambda c: test(tiling.of(c), c), False)

    limits = [
        rule("block_M", f"block_M a multiple of {2 * TILE_ROWS} rows of tiles (or all rows)",
             lambda t, c: (t.block_m % (2 * TILE_ROWS) == 0) | (t.block_m >= t.m)
             | (t.dot is None or not t.dot.is_tiled)),
        rule("block_N", "block_N a multiple of micro_n vectors",
             lambda t, c: t.block_n % t.panel == 0),
        rule("micro_n", "micro_n vectors within block_N", lambda t, c: c["micro_n"] <= t.micro_n),
        rule("micro_m", "micro_m <= block_M", lambda t, c: c["micro_m"] <= t.block_m),
        rule(
            "micro_m",
            f"at least {LATENCY_BOUND_ACCUMULATORS} accumulators to hide the FMA latency "
            "(or all rows of the problem)",
            lambda t, c: (t.micro_m * t.micro_n >= LATENCY_BOUND_ACCUMULATORS)
            | (t.micro_m >= t.m),
        ),
        rule("block_K", f"a tile of A within the L2 cache ({l2 >> 10} KiB)",
             lambda t, c: t.block_m * np.minimum(t.block_k, t.k) * t.packed_bytes <= l2),
        rule("block_K", f"a panel of B within half the L2 cache ({l2 >> 11} KiB)",
             lambda t, c: t.panel * np.minimum(t.block_k, t.k) * t.packed_bytes <= l2 / 2),
        rule("block_N", f"a tile of B that each block packs within the L2 cache ({l2 >> 10} KiB)",
             lambda t, c: t.is_b_hoisted
             | (t.block_n * np.minimum(t.block_k, t.k) * t.packed_bytes <= l2)),
        rule("pack_a", "pack_a=block or rows: elements are widened before they are multiplied",
             lambda t, c: (c["pack_a"] != "none") | (t.packed_bytes <= site.dtype.itemsize)),
        rule("pack_b", "pack_b=block: no two blocks share a tile of B",
             lambda t, c: (c["pack_b"] != "grid") | (t.b_reuse > 1)),
        rule("pack_b", "pack_b=block or grid: more rows use B than read it in place",
             lambda t, c: (c["pack_b"] != "none") | t.is_b_in_place),
    ]  # fmt: skip
    limits = [limit for limit in limits if limit.knob in knobs]
    for name, (axis, needed) in needed_extents(site, sizes).items():
        if name in knobs:
            limits.append(_no_larger_than_needed(knobs[name], axis, needed, hardware))
    return limits


def _no_larger_than_needed(
    knob: Knob, axis: str, needed: float, hardware: HardwareProfile
) -> Limit:
    """Return the limit that a block covers the problem with the smallest value that does."""
    values = sorted(int(v) for v in knob.values[hardware.kind])
    largest = next((v for v in values if v >= needed), values[-1])
    return Limit(
        knob.name,
        f"{knob.name} <= {largest} ({axis} = {needed:.0f})",
        lambda c: c[knob.name] <= largest,
        False,
    )


def value_fault(knobs: Mapping[str, Knob], knob: str, value: KnobValue) -> str:
    """Return what is expected of a knob's value where ``value`` is not it, else ''."""
    known = knobs.get(knob)
    if known is None:
        return f"one of the knobs {', '.join(sorted(knobs))}"
    if isinstance(known.default, str):
        if isinstance(value, str) and any(value in options for options in known.values.values()):
            return ""
        choices = {str(v) for values in known.values.values() for v in values}
        choices.add(str(known.default))
        return "" if value in choices else f"one of {', '.join(sorted(choices))}"
    lowest, highest = (1, 1 << 16) if known.symbolic else (0, 30)
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        return f"an integer from {lowest} to {highest}"
    return ""


def _symbols(graph: TileGraph) -> set[str]:
    from tilecore.graph import free_vars

    live = [e for launch in graph.launches for e in launch.live_bytes.values()]
    return {v.name for v in free_vars(*live)}
