"""The passes between the verified tile IR and inference, in order."""

from __future__ import annotations

from collections.abc import Callable

from tilecore.ir.nodes import PrimFunc
from tilecore.passes import fold_clear, stages, threads, tile_guards

Pass = Callable[[PrimFunc], PrimFunc]
PIPELINE: tuple[tuple[str, Pass], ...] = (
    ("guard_tiles", tile_guards.run),
    ("serialize_threads", threads.run),
    ("drop_stages", stages.run),
    ("fold_clear", fold_clear.run),
)


def run_passes(func: PrimFunc, observer: Callable[[str, PrimFunc], None] | None = None) -> PrimFunc:
    """Return ``func`` after every pass; ``observer`` sees the name and result of each."""
    for name, run in PIPELINE:
        func = run(func)
        if observer is not None:
            observer(name, func)
    return func
