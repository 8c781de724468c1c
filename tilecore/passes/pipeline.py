"""The passes between the verified tile IR and inference, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from tilecore.inference.options import CpuOptions
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.scaled_gemm import without_factors
from tilecore.passes import (
    converting_copies,
    few_rows,
    fold_clear,
    guarded_loads,
    hoist_views,
    join_blocks,
    lanes,
    live_rows,
    looked_up,
    merge_nests,
    name_lookups,
    nest_copies,
    open_extents,
    own_tiles,
    private_tiles,
    reducers,
    repeated_math,
    rows_in_turn,
    safe_quotients,
    settle,
    spell_halves,
    split_tiles,
    stage_outputs,
    stages,
    threads,
    tile_guards,
    upright,
    variables,
    write_out,
)
from tilecore.target import Target

Pass = Callable[[PrimFunc], PrimFunc]
PIPELINE: tuple[tuple[str, Pass], ...] = (
    ("scaled_products", without_factors),
    ("spell_halves", spell_halves.run),
    ("guard_tiles", tile_guards.run),
    ("safe_quotients", safe_quotients.run),
    ("hoist_views", hoist_views.run),
    ("serialize_threads", threads.run),
    ("vectorize_threads", lanes.run),
    ("drop_stages", stages.run),
    ("settle", settle.run),
    ("variables", variables.run),
    ("guarded_loads", guarded_loads.run),
    ("converting_copies", converting_copies.run),
    ("fold_clear", fold_clear.run),
    ("live_rows", live_rows.run),
    ("split_tiles", split_tiles.run),
    ("join_blocks", join_blocks.run),
    ("own_tiles", own_tiles.run),
    ("repeated_math", repeated_math.run),
    ("rows_in_turn", rows_in_turn.run),
)


def cpu_pipeline(target: Target, options: CpuOptions) -> tuple[tuple[str, Pass], ...]:
    """Return the passes for a CPU, with those that its instructions and the config decide on."""
    return (
        *PIPELINE,
        ("few_rows", partial(few_rows.run, target=target, options=options)),
        ("upright", upright.run),
    )


# On a GPU threads and stages are what the program says they are, and so are clears before loops.
GPU_PIPELINE: tuple[tuple[str, Pass], ...] = (
    ("guard_tiles", tile_guards.run),
    ("safe_quotients", safe_quotients.run),
    ("hoist_views", hoist_views.run),
    ("settle", settle.run),
    ("reducers", reducers.run),
    ("nest_copies", nest_copies.run),
    ("name_lookups", name_lookups.run),
    ("looked_up", looked_up.run),
    ("merge_nests", merge_nests.run),
    ("write_out", write_out.run),
    ("private_tiles", private_tiles.run),
    ("open_extents", open_extents.run),
    ("stage_outputs", stage_outputs.run),
    ("fold_clear", fold_clear.run_outside_loops),
)


def run_passes(
    func: PrimFunc,
    observer: Callable[[str, PrimFunc], None] | None = None,
    pipeline: Iterable[tuple[str, Pass]] = PIPELINE,
) -> PrimFunc:
    """Return ``func`` after every pass; ``observer`` sees the name and result of each."""
    for name, run in pipeline:
        func = run(func)
        if observer is not None:
            observer(name, func)
    return func
