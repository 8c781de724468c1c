"""What the log of measurements calls a user's program, and the problem that it solved."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilecore.ir.expr import int_value
from tilecore.ir.nodes import Buffer
from tilecore.tile_config import KnobValue

NAME_CHARACTERS = 64


def name_of(function: Any) -> str:
    """Return what the log calls a program: its module (the script's name) and function."""
    module = getattr(function, "__module__", "")
    if module == "__main__":
        module = Path(sys.argv[0]).stem
    name = getattr(function, "__qualname__", type(function).__name__).replace(".<locals>", "")
    return f"{module}:{name}"[-NAME_CHARACTERS:]


def problem_of(params: Sequence[Any], inputs: Sequence[Any]) -> dict[str, KnobValue]:
    """Return element types and extents of the inputs, and the numbers, by parameter name.

    ``A: float32``, ``A[0]: 1024``, ``A[1]: 512``: near sizes are near problems.

    Args:
        params: that are no outputs.
        inputs: of a call.
    """
    found: dict[str, KnobValue] = {}
    for param, value in zip(params, inputs, strict=False):
        if isinstance(param, Buffer):
            found |= _tensor(param, [int(n) for n in np.shape(value)])
        else:
            is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
            found[param.name] = int(value) if is_whole else str(value)
    return found


def static_problem_of(params: Sequence[Any]) -> dict[str, KnobValue] | None:
    """Return the same of a program whose inputs are tensors of known shapes; None: they are not."""
    found: dict[str, KnobValue] = {}
    for param in params:
        extents = [int_value(e) for e in param.shape] if isinstance(param, Buffer) else [None]
        known = [e for e in extents if e is not None]
        if len(known) < len(extents):
            return None
        found |= _tensor(param, known)
    return found


def _tensor(param: Buffer, extents: Sequence[int]) -> dict[str, KnobValue]:
    sizes = {f"{param.name}[{axis}]": extent for axis, extent in enumerate(extents)}
    return {param.name: str(param.dtype), **sizes}
