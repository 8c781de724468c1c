"""spell_halves: arithmetic on two numbers of a word becomes arithmetic on each, where it has to."""

from __future__ import annotations

from tilecore.gpu_target import GpuTarget
from tilecore.ir.expr import PAIRED, Call, Expr
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.plain.halves import element_of, spelled_out
from tilecore.ir.substitute import Rebuilder

FIRST = {"float16": "sm_70", "bfloat16": "sm_80"}  # PTX ISA 9.0, section 9.7.4.4: fma


def run(func: PrimFunc, target: GpuTarget | None = None) -> PrimFunc:
    """Return the function as a target computes it; None: a CPU."""
    return _Spelled(target).func(func)


class _Spelled(Rebuilder):
    def __init__(self, target: GpuTarget | None) -> None:
        super().__init__()
        self.target = target

    def expr(self, expr: Expr) -> Expr:
        """Return ``expr`` rewritten."""
        found = super().expr(expr)
        if not isinstance(found, Call) or found.name not in PAIRED:
            return found
        target, first = self.target, FIRST[element_of(found.name)]
        is_known = target is not None and target.kind == "cuda" and target.has(first)
        return found if is_known else spelled_out(found)
