"""What the benchmarks of everyday programs measure: a program beside torch, and the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilecore.ir.nodes import PrimFunc


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A program, its inputs, what torch does with them, and the exact outputs.

    ``zeroed``: the program adds to its last two outputs, which are cleared before every call.
    ``begun``: what the outputs hold before the first call, where that is not 0. ``tolerance``: how
    far off a result may be, of its largest element.
    """

    label: str
    program: PrimFunc
    inputs: list[torch.Tensor]
    rival: Callable[[], Any]
    exact: list[torch.Tensor]
    zeroed: bool = False
    begun: Sequence[torch.Tensor] = ()
    tolerance: float = 1e-4
