"""DispatchQuestion: for which shapes of a kernel, on which device, a dispatch table is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recommender.hardware import HardwareProfile
from recommender.measurement import Toolchain
from recommender.open_shapes import program_digest
from recommender.shapes import Shape, ShapeSet
from recommender.workload import Workload, kernel_name
from tilecore.kernels.definition import KernelDefinition
from tilecore.tile_config import KnobValue, TileConfig

if TYPE_CHECKING:
    from recommender.dispatch.candidates import ShapeCandidates
    from recommender.predict import Learned
    from recommender.program_table import ProgramTable

Problem = Mapping[str, KnobValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedProgram:
    """A program that came as data, of which a dispatch table is asked.

    Attributes:
        name: of the function that makes it.
        digest: of the program with its sizes open.
        given: arguments of the function that do not change, sizes among them.
        table: (sizes) -> the configs there.
    """

    name: str
    digest: str
    given: Problem
    table: Callable[[Problem], ProgramTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchQuestion:
    """What a dispatch table is asked for, in canonical form.

    Attributes:
        definition: of a kernel of the library; None: it is asked of ``program``.
        fixed: canonical fields of the problem, without the dimensions of ``shapes``.
        threads: cores to use; 0: all.
        target: what tilecore compiles for there.
    """

    definition: KernelDefinition | None
    fixed: Problem
    shapes: ShapeSet
    hardware: HardwareProfile
    toolchain: Toolchain
    target: str = "llvm"
    threads: int = 0
    program: AskedProgram | None = field(default=None)

    def problem(self, shape: Shape) -> dict[str, KnobValue]:
        """Return the canonical problem of a shape."""
        return {**self.fixed, **dict(zip(self.shapes.dims, shape, strict=True))}

    def workload(self, shape: Shape) -> Workload:
        """Return the workload of a shape."""
        return Workload.of(self.logged, self.problem(shape), self.threads)

    @property
    def logged(self) -> str:
        """What the log calls the kernel."""
        return self.name if self.program is None else kernel_name(self.program.digest)

    @property
    def name(self) -> str:
        """What the table calls the kernel."""
        if self.program is not None:
            return self.program.name
        assert self.definition is not None
        return self.definition.name

    @property
    def told(self) -> Problem:
        """What the table says of the problem."""
        return self.fixed if self.program is None else self.program.given

    def digest(self, problem: Problem) -> str:
        """Return the version of the program that measurements of a problem are of."""
        if self.program is not None:
            return self.program.digest
        assert self.definition is not None
        return program_digest(self.definition, problem)

    def default_config(self) -> TileConfig:
        """Return what a user gets who tunes nothing."""
        if self.program is not None:
            return self.program.table(self.problem(self.shapes.shapes[-1])).default
        assert self.definition is not None
        return self.definition.default_config(self.hardware.kind)

    def candidates(self, shape: Shape, learned: Learned | None) -> ShapeCandidates:
        """Return what the models say of the configs at a shape.

        Raises:
            EmptySpace: no config can run there (RC602).
        """
        # They load XGBoost, which asking needs not.
        from recommender.dispatch.candidates import KernelCandidates, TableCandidates
        from recommender.space import SearchSpace

        problem = self.problem(shape)
        if self.program is not None:
            return TableCandidates(self.program.table(problem))
        assert self.definition is not None
        space = SearchSpace.outline(self.definition, problem, self.hardware)
        return KernelCandidates(space, self.cores, learned)

    @property
    def cores(self) -> int:
        """How many cores the times are of."""
        return self.threads or self.hardware.cores
