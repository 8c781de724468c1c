"""From a function of the user's to a program as data: traced here, checked, told in one document.

Every size and knob is tried as a symbol. It may be one only if the program that the document gives
for known values is the one that Python traces with these values: compared by digest for two sets
of values. What cannot be a symbol stays as it is (a size) or gets a variant per value (a knob).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recommender.errors import NothingOpen
from recommender.hardware import HardwareProfile
from recommender.knob_values import knob_values, thinned
from recommender.tracing import NeedsValue, combinations, refuse_branches_on, working_values
from tilecore.errors import TileError, TypeMismatch
from tilecore.graph import TileGraph, build
from tilecore.ir.document import digest
from tilecore.ir.expr import Var
from tilecore.ir.nodes import PrimFunc
from tilecore.portable import MOST_VARIANTS, OpenKnob, PortableProgram, Variant
from tilecore.recommending import LOWERING, OpenProgram
from tilecore.tile_config import KnobValue

SENT = ("float32_products", "fast_math", *LOWERING)  # settled knobs of the lowering that travel
Chosen = Mapping[str, KnobValue]


def portable(question: OpenProgram, hardware: HardwareProfile) -> PortableProgram:
    """Return the program of a question as data.

    Args:
        question: the program and what is open.
        hardware: the device it is asked for: it decides which values a knob gets that needs some.

    Raises:
        NothingOpen: no parameter is open (RC608).
        TileError: the program's own fault, whatever values its knobs get.
    """
    if not question.knobs and not set(question.space) & set(LOWERING):
        raise NothingOpen(program=question.name, fixed=", ".join(question.fixed) or "none")
    tracer = _Tracer(question, hardware)
    needed = tracer.needed()
    sizes = tuple(sorted(name for name in question.sizes if name not in needed))
    variants = tracer.variants([k for k in question.knobs if k in needed], sizes)
    return PortableProgram(
        name=question.name,
        sizes=sizes,
        knobs=tuple(
            OpenKnob(name, default, question.space.get(name))
            for name, default in question.knobs.items()
        ),
        fixed={k: v for k, v in question.lowering.items() if k in SENT},
        space={k: v for k, v in question.space.items() if k in LOWERING},
        variants=variants,
        notes=tuple(tracer.notes),
    )


class _Tracer:
    """Traces of one question, each symbol checked."""

    def __init__(self, question: OpenProgram, hardware: HardwareProfile) -> None:
        self.question, self.hardware = question, hardware
        self.probe = working_values(question)
        self.names = [*question.sizes, *question.knobs]
        self.notes: list[str] = []

    def needed(self) -> list[str]:
        """Return the sizes and knobs that cannot be symbols."""
        never = [k for k in self.question.knobs if not self._may_be_symbol(k)]
        if self._agrees([n for n in self.names if n not in never]):
            return never
        settled = list(self.names)
        for name in self.names:  # which of them can be symbols, beside those that can already?
            if name not in never:
                rest = [n for n in settled if n != name]
                if self._agrees([n for n in self.names if n not in rest]):
                    settled = rest
        return settled

    def variants(self, needed: Sequence[str], sizes: Sequence[str]) -> tuple[Variant, ...]:
        """Return a program for each combination of values of the knobs that need one.

        Raises:
            TileError: there is none for any.
        """
        if not needed:
            return (self._variant({}, sizes),)
        wanted = self._values(needed, sizes)
        values = thinned(wanted, MOST_VARIANTS)
        self.notes.append(f"a variant for each value of {', '.join(needed)}: Python asks for it")
        if values != wanted:
            shown = "; ".join(f"{k} {', '.join(map(str, v))}" for k, v in values.items())
            self.notes.append(f"at most {MOST_VARIANTS} variants: {shown}")
        found, faults = [], []
        for chosen in combinations(values):
            try:
                found.append(self._variant(chosen, sizes))
            except (TileError, NeedsValue) as error:
                faults.append(error)
        if not found:
            raise next(
                (e for e in faults if isinstance(e, TileError)),
                TypeMismatch(expected="a program that can be traced", found=str(faults[0])),
            )
        if faults:
            first = faults[0].message if isinstance(faults[0], TileError) else str(faults[0])
            self.notes.append(f"{len(faults)} combination(s) make no program: {first}")
        return tuple(found)

    # --- details ------------------------------------------------------------------------------

    def _may_be_symbol(self, knob: str) -> bool:
        values = self.question.space.get(knob, (1,))
        return all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values)

    def _agrees(self, symbols: Sequence[str]) -> bool:
        """Return whether the program with these symbols is what Python traces for known values."""
        for scale in (1, 2):
            values = self._values_at(scale)
            chosen = {k: v for k, v in values.items() if k not in symbols}
            try:
                direct = self.question.trace(values)
            except TileError:
                if scale == 1:
                    return False
                continue  # e.g. a product of twice the tile that does not divide the size
            try:
                func, opened = self._trace(chosen, symbols)
                known = {name: values[name] for name in symbols}
                made = _program(func, opened, known)
            except (TileError, NeedsValue):
                return False
            if digest(made) != digest(direct):
                return False
        return True

    def _values_at(self, scale: int) -> dict[str, Any]:
        sizes = {k: v * scale for k, v in self.question.sizes.items()}
        probe = self.probe if scale == 1 else working_values(self.question, later=True)
        return {**sizes, **probe}

    def _trace(
        self, chosen: Mapping[str, Any], symbols: Sequence[str]
    ) -> tuple[PrimFunc, dict[str, Var]]:
        opened = {name: Var(name) for name in symbols}
        func = self.question.trace({**chosen, **opened})
        refuse_branches_on(func, frozenset(opened.values()))
        return func, opened

    def _variant(self, chosen: Chosen, sizes: Sequence[str]) -> Variant:
        symbols = [*sizes, *(k for k in self.question.knobs if k not in chosen)]
        settled = {k: v for k, v in self.question.sizes.items() if k not in sizes}
        func, opened = self._trace({**settled, **chosen}, symbols)
        return Variant(dict(chosen), func, opened)

    def _values(self, needed: Sequence[str], sizes: Sequence[str]) -> dict[str, Any]:
        """Return the values worth a variant, of the knobs that need one."""
        probe = {k: self.probe[k] for k in needed}
        variant = self._variant(probe, sizes)
        values = knob_values(self.question, [_graph(variant, self.question.sizes)], self.hardware)
        return {k: values[k] for k in needed}


def _graph(variant: Variant, sizes: Mapping[str, int]) -> TileGraph:
    known = {name: sizes[name] for name in variant.symbols if name in sizes}
    return build(_program(variant.func, variant.symbols, known))


def _program(func: PrimFunc, opened: Mapping[str, Var], known: Mapping[str, Any]) -> PrimFunc:
    one = Variant({}, func, opened)
    made = PortableProgram(name="probe", sizes=tuple(opened), knobs=(), variants=(one,))
    return made.program(known)
