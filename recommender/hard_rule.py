"""Whether a few configs can run, as straight-line code of one program on one device."""

from __future__ import annotations

import operator
from functools import lru_cache, reduce
from typing import Any

from recommender.hashed import Hashed
from recommender.limits import hard_limits
from recommender.straight_line import StraightLine
from tilecore.graph import TileGraph

KEPT = "kept"


@lru_cache(maxsize=64)
def hard_rule(
    graph: TileGraph, knobs: tuple[str, ...], device: Hashed, sizes: tuple[str, ...]
) -> StraightLine:
    """Return what tells, as ``KEPT``, whether a config keeps all hard limits.

    ``sizes``: names of those that are symbols in the graph, given beside the knobs.
    """
    hardware = device.value

    def keeps(columns: dict[str, Any]) -> dict[str, Any]:
        known = {name: columns.pop(name) for name in sizes}
        if hardware.kind == "cpu":
            limits = hard_limits(graph, knobs, hardware, known)
        else:
            from recommender.gpu.limits import gpu_limits  # questions about CPUs need none of it

            limits = gpu_limits(graph, None, dict.fromkeys(knobs, ()), hardware, known)
        hard = (limit.holds(columns) for limit in limits if limit.is_hard)
        return {KEPT: reduce(operator.and_, hard)}

    return StraightLine(keeps)
