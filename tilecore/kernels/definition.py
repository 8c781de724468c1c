"""KernelDefinition: a tile program of the library with all that a tuner needs to know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilecore.errors import InvalidProblem, did_you_mean
from tilecore.ir.expr import Expr
from tilecore.ir.nodes import PrimFunc
from tilecore.tile_config import KnobValue, TileConfig

Problem = Mapping[str, int | str | bool]
MAX_DIMENSION = 1 << 20


def extent(problem: Problem, name: str) -> Any:
    """Return a dimension of a problem: a number, or the symbol that stands for any."""
    value: Any = problem[name]
    return value if isinstance(value, Expr) else int(value)


def is_at_most(size: Any, bound: int) -> bool:
    """Return whether a dimension is a number up to ``bound``; a symbol stands for larger ones."""
    return not isinstance(size, Expr) and int(size) <= bound


def no_numbers(problem: Problem) -> tuple[str, ...]:
    """Return that every dimension may be a symbol when a program is traced."""
    return ()


@dataclass(frozen=True, slots=True)
class ProblemField:
    """One field of a problem: its type, default (None: required) and accepted aliases.

    Attributes:
        of_dtype: by the problem's ``dtype`` the choices that go with it, its default first; of a
            type that is not named, all choices.
    """

    name: str
    kind: str  # "dimension" | "dtype" | "flag" | "choice"
    default: int | str | bool | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    doc: str = ""
    least: int = 1  # of a dimension
    of_dtype: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def beside(self, dtype: Any) -> tuple[int | str | bool | None, tuple[str, ...]]:
        """Return the default and the choices that go with the ``dtype`` of a problem."""
        own = self.of_dtype.get(str(dtype)) if self.of_dtype else None
        return (self.default, self.choices) if own is None else (own[0], own)


@dataclass(frozen=True, slots=True)
class Knob:
    """One knob of a program or its lowering, with the values worth trying on each target kind."""

    name: str
    default: KnobValue
    values: Mapping[str, tuple[KnobValue, ...]]  # target kind ("cpu", "cuda") -> values
    symbolic: bool = True  # a program knob, traced as a symbol; False: read by the lowering only
    doc: str = ""

    def values_on(self, kind: str) -> tuple[KnobValue, ...]:
        """Return the values worth trying on a kind of target; AMD's GPUs share NVIDIA's."""
        return tuple(self.values.get(kind, self.values.get("cuda", ()) if kind == "rocm" else ()))


THREADS = Knob(
    "threads", 128, {"cpu": (128,), "cuda": (64, 128, 256, 384, 512)},
    doc="GPU threads per block; no effect on a CPU",
)  # fmt: skip
NUM_STAGES = Knob(
    "num_stages", 3, {"cpu": (1,), "cuda": (1, 2, 3, 4, 5, 6)},
    doc="pipeline depth; no effect on a CPU",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProgramDefinition:
    """A tile program whose knobs are open: all that a search space needs to know of it.

    Attributes:
        program: (problem, knob values) -> traced PrimFunc. Knob values may be ints or symbolic
            Vars ("trace once, evaluate many").
        work_flop: (problem) -> FLOP of the computation (1 FMA = 2 FLOP).
    """

    name: str
    knobs: tuple[Knob, ...]
    program: Callable[[Problem, Mapping[str, Any]], PrimFunc]
    work_flop: Callable[[Problem], float]

    def on(self, kind: str) -> ProgramDefinition:
        """Return the definition as a kind of target has it."""
        return self

    def default_config(self, kind: str = "cpu") -> TileConfig:
        """Return the config a user gets who tunes nothing, on a kind of target."""
        return TileConfig.of({k.name: k.default for k in self.knobs_of(kind)})

    def knobs_of(self, kind: str) -> tuple[Knob, ...]:
        """Return the knobs that a kind of target has: those of the lowering are the CPU's."""
        knobs = self.on(kind).knobs
        return knobs if kind == "cpu" else tuple(k for k in knobs if k.symbolic)


@dataclass(frozen=True, slots=True)
class TorchCounterpart:
    """A kernel's inputs, reference and rival as torch makes them where the inputs lie.

    For GPUs and large problems: nothing crosses the bus, and references go by blocks.

    Attributes:
        inputs: (problem, generator) -> input tensors on the generator's device.
        reference: (problem, inputs) -> expected outputs, computed and returned in float64 (ints:
            exact), in float32 where an output would not fit otherwise.
        rival: (problem, inputs) -> a call of torch's operator, None without one.
    """

    inputs: Callable[[Problem, Any], Sequence[Any]]
    reference: Callable[[Problem, Sequence[Any]], Sequence[Any]]
    rival: Callable[[Problem, Sequence[Any]], Callable[[], Any] | None]


@dataclass(frozen=True, slots=True)
class GpuVariant:
    """What a kernel has on GPUs in place of its program and knobs: same tensors, same maths.

    Attributes:
        rounded_dtype, numbers: as KernelDefinition's, of this program.
    """

    knobs: tuple[Knob, ...]
    program: Callable[[Problem, Mapping[str, Any]], PrimFunc]
    rounded_dtype: Callable[[Problem], str] | None = None
    numbers: Callable[[Problem], tuple[str, ...]] = no_numbers


@dataclass(frozen=True, slots=True)
class KernelDefinition(ProgramDefinition):
    """A kernel of the library, which can be tuned and recommended by name.

    Attributes:
        inputs: (problem, rng) -> input arrays in parameter order (outputs excluded).
        reference: (problem, inputs) -> expected outputs in float64 (ints: exact).
        rival: (problem, inputs) -> a no-argument callable running the same work with torch into
            preallocated outputs, or None where torch has no such operator. Imports torch lazily.
        traffic_bytes: (problem) -> compulsory bytes (each operand once).
        reduction_length: (problem) -> length of the longest sum, for tolerances.
        rounded_dtype: (problem) -> type that terms of its sums are rounded to, for tolerances;
            None: they are as exact as the inputs.
        numbers: (problem) -> dimensions that the program's Python computes or branches with: they
            are numbers when it is traced, all others may be symbols.
        check: (problem) -> nothing; raises InvalidProblem where fields do not go together.
        on_device: the same with torch on a device; None: made in NumPy and copied there.
        gpu: what takes the place of program and knobs on GPUs; None: GPUs share the CPU's.
    """

    doc: str
    fields: tuple[ProblemField, ...]
    inputs: Callable[[Problem, np.random.Generator], Sequence[np.ndarray]]
    reference: Callable[[Problem, Sequence[np.ndarray]], Sequence[np.ndarray]]
    rival: Callable[[Problem, Sequence[np.ndarray]], Callable[[], Any] | None]
    traffic_bytes: Callable[[Problem], float]
    reduction_length: Callable[[Problem], int]
    rounded_dtype: Callable[[Problem], str] | None = None
    numbers: Callable[[Problem], tuple[str, ...]] = no_numbers
    check: Callable[[Problem], None] | None = None
    on_device: TorchCounterpart | None = None
    gpu: GpuVariant | None = None

    def on(self, kind: str) -> KernelDefinition:
        """Return the definition with the program and knobs of a kind of target."""
        if kind == "cpu" or self.gpu is None:
            return self
        return replace(
            self, knobs=self.gpu.knobs, program=self.gpu.program,
            rounded_dtype=self.gpu.rounded_dtype or self.rounded_dtype,
            numbers=self.gpu.numbers, gpu=None,
        )  # fmt: skip

    def program_digest(self, problem: Problem) -> str:
        """Return the digest (32 hex digits) of the program for a problem: the kernel's version.

        Of a kernel with a program of its own for GPUs that is ``on(kind).program_digest(...)``.

        It is the digest of the tile IR at the default config, so it changes with the program text
        and not with the config that is being tried. Database, recommender and workers all use it.
        """
        from tilecore.ir.printer import program_digest

        return program_digest(self.program(problem, dict(self.default_config())))

    def parse_problem(self, values: Mapping[str, Any]) -> dict[str, int | str | bool]:
        """Return the canonical problem: aliases resolved, defaults filled in, values checked.

        Raises:
            InvalidProblem: a field is unknown, missing, of the wrong type or out of range, or does
                not go with another one (TC502).
        """
        names = {f.name for f in self.fields}
        given: dict[str, Any] = {}
        for spelling, value in values.items():
            name = spelling if spelling in names else self._field_called(spelling)
            if name in given and given[name] != value:
                raise InvalidProblem(field=spelling, expected="one value", found="two spellings")
            given[name] = value
        result: dict[str, int | str | bool] = {}
        for f in self.fields:
            default, choices = f.beside(result.get("dtype"))
            value = given.get(f.name, default)
            if value is None:
                raise InvalidProblem(
                    field=f.name, expected=f"a {f.kind}", found="nothing", hint=self._takes()
                )
            result[f.name] = _check(f, choices, value)
        if self.check is not None:
            self.check(result)
        return result

    def _field_called(self, spelling: str) -> str:
        """Return the name of the field that has an alias, in letters of any size."""
        known = {alias.lower(): f.name for f in self.fields for alias in (f.name, *f.aliases)}
        found = known.get(spelling.lower())
        if found is None:
            expected = ", ".join(f.name for f in self.fields)
            raise InvalidProblem(
                field=spelling, expected=f"one of {expected}", found="unknown field",
                hint=did_you_mean(spelling, known),
            )  # fmt: skip
        return found

    def _takes(self) -> str:
        """Return which fields have to be given, and which may be."""
        needed = ", ".join(f.name for f in self.fields if f.default is None)
        rest = " ".join(f"{f.name}={f.default}" for f in self.fields if f.default is not None)
        return f"{self.name} needs {needed}; its defaults: {rest or 'none'}"


def _check(f: ProblemField, choices: Sequence[str], value: Any) -> int | str | bool:
    if f.kind == "dimension":
        is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not is_int or not f.least <= int(value) <= MAX_DIMENSION:
            expected = f"an integer from {f.least} to {MAX_DIMENSION}"
            raise InvalidProblem(field=f.name, expected=expected, found=repr(value))
        return int(value)
    if f.kind == "flag":
        if not isinstance(value, bool):
            raise InvalidProblem(field=f.name, expected="true or false", found=repr(value))
        return value
    name = str(value) if f.kind == "choice" else _dtype_name(value)
    if name not in choices:
        raise InvalidProblem(
            field=f.name, expected=f"one of {', '.join(choices)}", found=repr(value)
        )
    return name


def _dtype_name(value: Any) -> str:
    from tilecore.errors import TypeMismatch
    from tilecore.ir.dtype import DType

    try:
        return str(DType(value))
    except TypeMismatch:
        return ""


def knob_symbols(definition: ProgramDefinition) -> dict[str, Expr | KnobValue]:
    """Return a symbol for each program knob (and the default of each lowering knob)."""
    from tilecore.ir.expr import Var

    return {k.name: Var(k.name) if k.symbolic else k.default for k in definition.knobs}
