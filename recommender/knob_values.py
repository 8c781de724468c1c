"""Values worth trying for the knobs of any program, by name, program and device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from recommender.hardware import HardwareProfile
from tilecore.graph import TileGraph
from tilecore.ir.expr import Var, int_value
from tilecore.kernels.definition import NUM_STAGES, THREADS
from tilecore.recommending import LOWERING, OpenProgram, knob_kind
from tilecore.tile_config import KnobValue

# Powers of two and their multiples by 1.5, which all fit instructions of 16 rows or 8 columns.
TILES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
LARGEST_TILE = {"cpu": 2048, "cuda": 256, "rocm": 256}
FULL_WARPS = 64  # rows of a product by four warps that have rows of their own
STAGES = (1, 2, 3, 4, 5)
BLOCK_THREADS = (64, 96, 128, 192, 256, 384, 512)
MOST_THREADS = 1024  # of blocks that multiply nothing: long rows need the registers of all
MOST_CONFIGS = 200_000
Values = Mapping[str, tuple[KnobValue, ...]]


def knob_values(
    question: OpenProgram, graphs: Iterable[TileGraph], hardware: HardwareProfile
) -> dict[str, tuple[KnobValue, ...]]:
    """Return the values of every open knob, those of the lowering behind those of the program.

    Args:
        question: the program, with what the caller says of its knobs.
        graphs: of the program, knobs as symbols where they can be.
        hardware: the device.
    """
    known = list(graphs)
    found: dict[str, tuple[KnobValue, ...]] = {}
    for knob, default in question.knobs.items():
        if knob in question.space:
            found[knob] = question.space[knob]
        elif knob_kind(knob) == "tile":
            found[knob] = _tiles(max(_extent(g, knob) for g in known), hardware.kind)
        else:
            found[knob] = _settings(knob_kind(knob), default, hardware.kind)
            if found[knob] == BLOCK_THREADS and not any(map(_multiplies, known)):
                found[knob] += (MOST_THREADS,)
    if hardware.kind == "cpu":
        settled = {k: (v,) for k, v in question.lowering.items() if k in LOWERING}
        chosen = {k: v for k, v in question.space.items() if k in LOWERING}
        found |= settled | chosen
    return found


def thinned(values: Values, most: int = MOST_CONFIGS) -> dict[str, tuple[KnobValue, ...]]:
    """Return values that span at most ``most`` configs: every other one of the longest lists."""
    found = dict(values)
    while math.prod(map(len, found.values())) > most:
        longest = max(found, key=lambda knob: len(found[knob]))
        kept = found[longest]
        powers = tuple(v for v in kept if isinstance(v, int) and v > 0 and v & (v - 1) == 0)
        found[longest] = powers if 0 < len(powers) < len(kept) else kept[::2]
    return found


def left_out(values: Values, few: Values) -> tuple[str, ...]:
    """Return in words how many of all combinations are looked at; nothing where all are.

    Args:
        values: of each knob.
        few: what ``thinned`` left of some.
    """
    fewer = {knob: few[knob] for knob in few if few[knob] != values[knob]}
    if not fewer:
        return ()
    every = math.prod(map(len, values.values()))
    looked_at = math.prod(len(few.get(knob, options)) for knob, options in values.items())
    shown = "; ".join(f"{knob} {', '.join(map(str, kept))}" for knob, kept in fewer.items())
    return (f"looked at {looked_at:,} of {every:,} combinations of values: {shown}",)


def _settings(kind: str, default: KnobValue | None, device: str) -> tuple[KnobValue, ...]:
    """Return the numbers of stages or threads; on a CPU they make no difference."""
    library = NUM_STAGES if kind == "stages" else THREADS
    if device == "cpu":
        return library.values["cpu"] if default is None else (default,)
    return STAGES if kind == "stages" else BLOCK_THREADS


def _multiplies(graph: TileGraph) -> bool:
    return any(op.kind == "gemm" for launch in graph.launches for op in launch.ops)


def _tiles(extent: int, device: str) -> tuple[KnobValue, ...]:
    """Return the tiles up to the smallest that covers the problem (0: nobody knows its extent).

    On GPUs larger ones too where a few rows are to fill the warps of a block.
    """
    known = [t for t in TILES if t <= LARGEST_TILE[device]]
    if extent == 0:
        return tuple(t for t in known if t <= 256)
    least = extent if device == "cpu" else max(extent, FULL_WARPS)
    covering = next((t for t in known if t >= least), known[-1])
    return tuple(t for t in known if t <= covering)


def _extent(graph: TileGraph, knob: str) -> int:
    """Return the longest axis of a tensor of which boxes are as long as ``knob``; 0: none."""
    longest = 0
    for launch in graph.launches:
        for op in launch.ops:
            for access in (*op.reads, *op.writes):
                if access.buffer.scope != "global":
                    continue
                for extent, whole in zip(access.extents, access.buffer.shape, strict=True):
                    if isinstance(extent, Var) and extent.name == knob:
                        longest = max(longest, int_value(whole) or 0)
    return longest
