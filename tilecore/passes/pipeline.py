"""The passes between the verified tile IR and inference, in order.

Each takes a program to another one of the same meaning, and its module says when and why; what
needs what is said here. ``kernel.show()`` prints a program after each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from tilecore.inference.cpu.options import CpuOptions
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.plain.scaled_gemm import without_factors
from tilecore.passes import (
    converting_copies,
    drop_stages,
    few_rows,
    fold_clear,
    guard_tiles,
    guarded_loads,
    hoist_views,
    join_blocks,
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
    shared_operands,
    spell_halves,
    split_tiles,
    stage_outputs,
    upright,
    variables,
    write_out,
)
from tilecore.passes.threads import serialize_threads, vectorize_threads
from tilecore.target import Target

Pass = Callable[[PrimFunc], PrimFunc]
PIPELINE: tuple[tuple[str, Pass], ...] = (
    # What only GPUs have instructions for, in plain statements.
    ("scaled_products", without_factors),
    ("spell_halves", spell_halves.run),
    # Before anything moves: what would leave a tile stops there, what would trap does not.
    ("guard_tiles", guard_tiles.run),
    ("safe_quotients", safe_quotients.run),
    ("hoist_views", hoist_views.run),
    # From a block of threads and stages to one thread: loops over the threads, the lanes of nests
    # where that pays, one copy of what had one per stage.
    ("serialize_threads", serialize_threads.run),
    ("vectorize_threads", vectorize_threads.run),
    ("drop_stages", drop_stages.run),
    # Conditions and variables that say nothing new: what follows looks at plain loads and stores.
    ("settle", settle.run),
    ("variables", variables.run),
    ("guarded_loads", guarded_loads.run),
    # Statements in the form in which inference knows what to do with them.
    ("converting_copies", converting_copies.run),
    ("fold_clear", fold_clear.run),
    ("live_rows", live_rows.run),
    ("split_tiles", split_tiles.run),
    # Blocks and nests as one core runs them best.
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
    ("guard_tiles", guard_tiles.run),
    ("safe_quotients", safe_quotients.run),
    ("hoist_views", hoist_views.run),
    ("settle", settle.run),
    ("reducers", reducers.run),
    # What pipelines may run ahead: copies that are written as nests, tiles that may be shared, and
    # names for what copies look up.
    ("nest_copies", nest_copies.run),
    ("shared_operands", shared_operands.run),
    ("name_lookups", name_lookups.run),
    # Nests whose points may be spread over threads, of known extents.
    ("looked_up", looked_up.run),
    ("merge_nests", merge_nests.run),
    ("write_out", write_out.run),
    ("private_tiles", private_tiles.run),
    ("open_extents", open_extents.run),
    # What goes back to tensors.
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
