"""DispatchQuestion: for which shapes of a kernel, on which device, a dispatch table is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recommender.hardware import HardwareProfile
from recommender.measurement import Toolchain
from recommender.shapes import Shape, ShapeSet
from recommender.workload import Workload
from tilecore.kernels.definition import KernelDefinition
from tilecore.tile_config import KnobValue


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchQuestion:
    """What a dispatch table is asked for, in canonical form.

    Attributes:
        definition: of the kernel.
        fixed: canonical fields of the problem, without the dimensions of ``shapes``.
        threads: cores to use; 0: all.
        target: what tilecore compiles for there.
    """

    definition: KernelDefinition
    fixed: Mapping[str, KnobValue]
    shapes: ShapeSet
    hardware: HardwareProfile
    toolchain: Toolchain
    target: str = "llvm"
    threads: int = 0

    def problem(self, shape: Shape) -> dict[str, KnobValue]:
        """Return the canonical problem of a shape."""
        return {**self.fixed, **dict(zip(self.shapes.dims, shape, strict=True))}

    def workload(self, shape: Shape) -> Workload:
        """Return the workload of a shape."""
        return Workload.of(self.definition.name, self.problem(shape), self.threads)

    @property
    def cores(self) -> int:
        """How many cores the times are of."""
        return self.threads or self.hardware.cores
