"""Expected times of any traced programs: the analytic model where a program has no knobs to ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from recommender.analytic import Estimate, estimate_graph
from recommender.hardware import HardwareProfile
from tilecore.errors import TileError
from tilecore.graph import TileGraph, build, evaluate, sole_contraction
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.printer import program_digest
from tilecore.tile_config import KnobValue, digest

UNITS = ("fma", "elementwise", "special")


def expect(
    program: PrimFunc,
    hardware: HardwareProfile,
    threads: int = 0,
    knobs: Mapping[str, KnobValue] | None = None,
) -> Estimate | None:
    """Return the time that a program is expected to take, None where the model cannot tell.

    Args:
        program: traced; all sizes known.
        hardware: the device.
        threads: cores used (0: all of the device).
        knobs: of the lowering.
    """
    columns = {"program": np.zeros(1), **{k: np.array([v]) for k, v in (knobs or {}).items()}}
    try:
        graph = build(program)
        return estimate_graph(
            graph, sole_contraction(graph), hardware, columns,
            work_flop=work_flop(graph), threads=threads,
        ).at(0)  # fmt: skip
    except TileError:  # sizes known at the call only, or a graph without a closed form
        return None


def work_flop(graph: TileGraph) -> float:
    """Return the operations of all blocks, 1 FMA = 2 FLOP."""
    return sum(float(evaluate(graph.work(unit), {})) for unit in UNITS)


def version(program: PrimFunc, target: str, lowering: Mapping[str, KnobValue]) -> str:
    """Return what measurements of a program are filed under, beside device and toolchain.

    Args:
        program: traced, its outputs marked.
        target: by name, as code is generated for it; "": that of the device.
        lowering: knobs of the lowering.
    """
    return digest([program_digest(program), target, dict(lowering)])


def by_promise(expected: Sequence[Estimate | None]) -> list[int]:
    """Return positions: the first one (the author's default), then the most promising first."""
    rest = range(1, len(expected))

    def time_s(position: int) -> float:
        found = expected[position]
        return float("inf") if found is None else found.time_s

    return [*range(min(1, len(expected))), *sorted(rest, key=time_s)]
